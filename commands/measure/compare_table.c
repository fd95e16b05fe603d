/* SPDX-License-Identifier: Apache-2.0 */
#include "commands/measure/compare_table.h"

#include "core/base/log.h"
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { WIDTH = 100, NAME = 24 /* columns of a case's name */ };

/* How far an accuracy or an AUC may be from the median of the other cases'. */
static const double FAR = 0.05;

void compare_table_digits(char text[COMPARE_TABLE_DIGITS], int digits,
                          double value) {
    enum { MOST_DECIMALS = 6 };
    double size = fabs(value);
    int before = size > 0 && isfinite(size) ? 1 + (int)floor(log10(size)) : 0;
    int decimals = digits - before;
    if (decimals < 0 || decimals > MOST_DECIMALS)
        decimals = decimals < 0 ? 0 : MOST_DECIMALS;
    snprintf(text, COMPARE_TABLE_DIGITS, "%.*f", decimals, value);
    char *end = text + strlen(text);
    while (decimals && end[-1] == '0')
        *--end = '\0';
    if (end[-1] == '.')
        *--end = '\0';
}

double compare_table_number(const json_t *object, const char *inside,
                            const char *key) {
    const json_t *value =
        json_object_get(inside ? json_object_get(object, inside) : object, key);
    if (json_is_boolean(value))
        return json_is_true(value);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

static const char *text(const json_t *object, const char *key) {
    const char *found = json_string_value(json_object_get(object, key));
    return found ? found : "";
}

/* Prints in WIDTH columns with DIGITS decimals; a dash for NAN. */
static void compare_table_print_number(FILE *out, int width, int digits,
                                       double value) {
    if (isnan(value))
        fprintf(out, " %*s", width, "-");
    else
        fprintf(out, " %*.*f", width, digits, value);
}

static void compare_table_print_share(FILE *out, int width, double share) {
    if (isnan(share))
        fprintf(out, " %*s", width, "-");
    else
        fprintf(out, " %*.0f%%", width - 1, 100 * share);
}

const char *compare_table_mode(const json_t *one) {
    const char *mode = text(one, "mode");
    return !strcmp(mode, "ps")         ? "synchronous"
           : !strcmp(mode, "ps-async") ? "asynchronous"
                                       : "all-reduce";
}

bool compare_table_failed(const json_t *one) {
    return json_is_null(json_object_get(
               json_object_get(one, "examples_per_second"), "mean")) ||
           !json_object_get(one, "examples_per_second");
}

static void compare_table_print_name(FILE *out, const json_t *one) {
    double ps = compare_table_number(one, NULL, "ps");
    fprintf(out, "%7.0f", compare_table_number(one, NULL, "workers"));
    if (ps > 0)
        fprintf(out, " %3.0f", ps);
    else
        fprintf(out, " %3s", "-");
    fprintf(out, " %-12s", compare_table_mode(one));
}

/* Wraps CONTENT from column AT on; further lines are indented by INDENT. */
static void print_wrapped(FILE *out, int at, int indent, const char *content) {
    bool line_started = false; /* this line */
    while (*content) {
        int length = (int)strcspn(content, " ");
        if (line_started && at + 1 + length > WIDTH) {
            fprintf(out, "\n%*s", indent, "");
            at = indent;
            line_started = false;
        }
        fprintf(out, "%s%.*s", line_started ? " " : "", length, content);
        at += line_started + length;
        line_started = true;
        content += length;
        content += strspn(content, " ");
    }
    fputc('\n', out);
}

static void print_failure(FILE *out, const char *label, const char *error) {
    char line[600];
    snprintf(line, sizeof line, "%s: %s", label, error);
    fputc(' ', out);
    print_wrapped(out, NAME + 1, NAME + 1, line);
}

static bool has_diverged(const json_t *one) {
    return json_is_true(json_object_get(one, "diverged"));
}

/* One that has diverged may have any number of digits. */
static void print_loss(FILE *out, const json_t *one) {
    double loss = compare_table_number(one, NULL, "train_loss");
    if (loss >= 1e6)
        fprintf(out, " %7s", ">999999");
    else
        compare_table_print_number(out, 7, loss < 1000 ? 3 : 0, loss);
}

/* The value of the first case that has KEY. */
static double known(const json_t *result, const char *key) {
    size_t i;
    const json_t *one;
    json_array_foreach(json_object_get(result, "cases"), i, one) {
        if (!isnan(compare_table_number(one, NULL, key)))
            return compare_table_number(one, NULL, key);
    }
    return NAN;
}

/* What the table has of the test set: AUC where a case has one. */
const char *compare_table_quality_key(const json_t *result) {
    return isnan(known(result, "test_auc")) ? "test_accuracy" : "test_auc";
}

const char *compare_table_quality_name(const json_t *result) {
    return strcmp(compare_table_quality_key(result), "test_auc") != 0
               ? "accuracy"
               : "AUC";
}

static int by_size(const void *left, const void *right) {
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

/* Is ONE's quality more than FAR from the median of those others that have not
 * diverged; of an even number of them, from both in the middle? */
static bool is_far(const json_t *result, const json_t *one, const char *key) {
    const json_t *cases = json_object_get(result, "cases"), *other;
    double *others = calloc(json_array_size(cases) + 1, sizeof *others);
    double quality = compare_table_number(one, NULL, key);
    size_t i, count = 0;
    json_array_foreach(cases, i, other) {
        double value = compare_table_number(other, NULL, key);
        if (others && other != one && !isnan(value) && !has_diverged(other))
            others[count++] = value;
    }
    if (count)
        qsort(others, count, sizeof *others, by_size);
    bool far = count && fabs(quality - others[(count - 1) / 2]) > FAR &&
               fabs(quality - others[count / 2]) > FAR;
    free(others);
    return far;
}

char compare_table_mark(const json_t *result, const json_t *one) {
    const char *key = compare_table_quality_key(result);
    return has_diverged(one) ? '!' : is_far(result, one, key) ? '*' : ' ';
}

static void print_quality(FILE *out, const json_t *result, const json_t *one) {
    const char *key = compare_table_quality_key(result);
    double quality = compare_table_number(one, NULL, key);
    fputc(compare_table_mark(result, one), out);
    if (isnan(quality))
        fprintf(out, "%8s", "-");
    else
        fprintf(out, "%8.4f", quality);
}

const char *compare_table_failure(const json_t *one) {
    return has_diverged(one)                ? "diverged"
           : json_object_get(one, "tables") ? "tables"
                                            : "failed";
}

static void compare_table_print_case(FILE *out, const json_t *result,
                                     const json_t *one) {
    static const char speed[] = "examples_per_second";
    compare_table_print_name(out, one);
    if (compare_table_failed(one)) {
        print_failure(out, compare_table_failure(one), text(one, "error"));
        return;
    }
    compare_table_print_number(out, 8, 0,
                               compare_table_number(one, speed, "mean"));
    compare_table_print_number(out, 8, 0,
                               compare_table_number(one, speed, "min"));
    compare_table_print_number(out, 8, 0,
                               compare_table_number(one, speed, "max"));
    compare_table_print_number(
        out, 8, 0,
        compare_table_number(one, NULL, "bound_examples_per_second"));
    compare_table_print_share(out, 7,
                              compare_table_number(one, NULL, "reached"));
    print_loss(out, one);
    print_quality(out, result, one);
    fprintf(out, "  %s\n", text(one, "limit"));
    if (text(one, "error")[0]) {
        fprintf(out, "%*s", NAME, "");
        print_failure(out, has_diverged(one) ? "then diverged" : "then failed",
                      text(one, "error"));
    }
}

static void print_times(FILE *out, const json_t *result, const json_t *one) {
    (void)result;
    static const char times[] = "seconds_per_step";
    if (compare_table_failed(one))
        return;
    compare_table_print_name(out, one);
    compare_table_print_number(out, 7, 2,
                               1e3 * compare_table_number(one, times, "input"));
    compare_table_print_number(
        out, 7, 2, 1e3 * compare_table_number(one, times, "compute"));
    compare_table_print_number(
        out, 7, 2,
        1e3 * compare_table_number(one, times, "waiting_for_weights"));
    compare_table_print_number(
        out, 9, 2,
        1e3 * compare_table_number(one, times, "waiting_for_gradients"));
    compare_table_print_number(
        out, 6, 2, 1e3 * compare_table_number(one, times, "update"));
    compare_table_print_number(
        out, 8, 2, 1e-6 * compare_table_number(one, NULL, "bytes_per_step"));
    compare_table_print_number(out, 8, 2,
                               compare_table_number(one, NULL, "speed_up"));
    compare_table_print_number(
        out, 5, 0, compare_table_number(one, NULL, "ideal_speed_up"));
    compare_table_print_share(out, 6,
                              compare_table_number(one, NULL, "efficiency"));
    fputc('\n', out);
}

/* Does a worker of any case compute on more than one device? */
static bool compare_table_has_devices(const json_t *result) {
    size_t i;
    const json_t *one;
    json_array_foreach(
        json_object_get(result, "cases"), i,
        one) if (compare_table_number(one, NULL, "replicas") >
                 compare_table_number(one, NULL, "workers")) return true;
    return false;
}

/* The command that was run, or the job. */
static const char *subject(const json_t *result) {
    const char *command = text(result, "command");
    return command[0] ? command : text(result, "job");
}

void compare_table_title(char line[COMPARE_TABLE_TITLE], const json_t *result) {
    enum { SIZE = COMPARE_TABLE_TITLE };
    char where[64], samples[64] = "";
    double each = compare_table_number(result, NULL, "samples_per_step");
    double rounds = compare_table_number(result, NULL, "rounds");
    double members = compare_table_number(result, NULL, "members");
    double cores = compare_table_number(result, NULL, "cores");
    double repeats = compare_table_number(result, NULL, "repeats");
    if (isnan(cores))
        snprintf(where, sizeof where, "across a cluster");
    else
        snprintf(where, sizeof where, "%s%.0f core%s",
                 members > 0 ? "a cluster on one machine, " : "", cores,
                 cores == 1 ? "" : "s");
    if (!isnan(each))
        snprintf(samples, sizeof samples, "%s of %.0f samples a %s",
                 isnan(rounds) ? "," : "", each,
                 compare_table_has_devices(result) ? "device" : "worker");
    int used = snprintf(line, SIZE, "%.4096s: ", subject(result));
    if (!isnan(rounds))
        used +=
            snprintf(line + used, SIZE - (size_t)used, "%.0f rounds", rounds);
    else
        used += snprintf(line + used, SIZE - (size_t)used, "its %s",
                         text(result, "command")[0] ? "own steps" : "epochs");
    snprintf(line + used, SIZE - (size_t)used,
             "%s; means of %.0f run%s in turns; %s", samples, repeats,
             log_plural((uint64_t)repeats), where);
}

/* Prints a row per case, with the numbers of workers separated; both tables use
 * it. */
static void print_rows(FILE *out, const json_t *result,
                       void (*row)(FILE *, const json_t *result,
                                   const json_t *one)) {
    size_t i;
    const json_t *one;
    double before = NAN;
    json_array_foreach(json_object_get(result, "cases"), i, one) {
        double workers = compare_table_number(one, NULL, "workers");
        if (workers > before)
            fprintf(out, "\n");
        before = workers;
        row(out, result, one);
    }
}

static void print_tables(FILE *out, const json_t *result) {
    char rates[32];
    snprintf(rates, sizeof rates, "%s/s", text(result, "unit"));
    fprintf(out, "\n%*s %35s %7s %16s\n", NAME, "", rates, "", "at equal time");
    fprintf(out, "workers  ps %-12s %8s %8s %8s %8s %7s %7s %8s  limit\n", "",
            "mean", "min", "max", "bound", "reached", "loss",
            compare_table_quality_name(result));
    print_rows(out, result, compare_table_print_case);
    fprintf(out, "\n%*s%16s%18s\n", NAME, "", "of a step, ms:", "waiting for");
    fprintf(out, "workers  ps %-12s %7s %7s %7s %9s %6s %8s %8s %5s %6s\n", "",
            "input", "compute", "weights", "gradients", "update", "MB/step",
            "speed-up", "ideal", "T1/nTn");
    print_rows(out, result, print_times);
    fprintf(out, "\n");
}

/* Prints the answers in words for one number of workers. */
static void print_answers(FILE *out, const json_t *one) {
    static const char unknown[] = "unknown without a link rate (--link-gbits)";
    char line[2000];
    double workers = compare_table_number(one, NULL, "workers");
    const char *plural = workers == 1 ? "" : "s";
    const char *measured = text(one, "measured_answer");
    const char *predicted = text(one, "predicted_answer");
    if (measured[0]) {
        snprintf(line, sizeof line,
                 "%.0f worker%s, measured, by means and their 95 %% intervals: "
                 "%s",
                 workers, plural, measured);
        print_wrapped(out, 0, 4, line);
    }
    if (predicted[0] || (measured[0] && workers > 1)) {
        snprintf(line, sizeof line, "%.0f worker%s, predicted: %s", workers,
                 plural, predicted[0] ? predicted : unknown);
        print_wrapped(out, 0, 4, line);
    }
}

/* Prints one bandwidth for all hosts, or one of each kind. */
static void print_links(FILE *out, const json_t *result, double gbits) {
    double worker = known(result, "worker_link_gbits");
    double ps = known(result, "ps_link_gbits");
    char texts[3][COMPARE_TABLE_DIGITS];
    compare_table_digits(texts[0], 3, worker);
    compare_table_digits(texts[1], 3, ps);
    compare_table_digits(texts[2], 3, gbits);
    if (worker > 1.1 * ps || ps > 1.1 * worker)
        fprintf(out,
                "bound with %s Gbit/s in each direction of a worker's host and "
                "%s of a ps's\n",
                texts[0], texts[1]);
    else
        fprintf(out, "bound with %s Gbit/s in each direction per host\n",
                texts[2]);
}

/* Explains the mark if a row has one. */
static void print_diverged(FILE *out, const json_t *result) {
    size_t i;
    const json_t *one;
    bool marked = false;
    double first = compare_table_number(result, NULL, "first_loss");
    json_array_foreach(json_object_get(result, "cases"), i, one) marked |=
        has_diverged(one) && !compare_table_failed(one);
    if (marked && isnan(first))
        fprintf(out, "! diverged: the loss is NaN\n");
    else if (marked)
        fprintf(out,
                "! diverged: the loss is NaN, or above %s of the "
                "initial weights, %.3f\n",
                text(result, "command")[0] ? "1.5 times that" : "that", first);
}

/* Explains the mark of a quality if a row has one. */
static void print_far(FILE *out, const json_t *result) {
    const char *key = compare_table_quality_key(result);
    size_t i;
    const json_t *one;
    bool marked = false;
    json_array_foreach(json_object_get(result, "cases"), i, one) marked |=
        !has_diverged(one) && is_far(result, one, key);
    if (marked)
        fprintf(out,
                "* its %s is more than %g from the median of the others'\n",
                compare_table_quality_name(result), FAR);
}

/* Says that workers compute on the same GPU, in the case where most do. */
static void print_shared_devices(FILE *out, const json_t *result) {
    size_t i;
    const json_t *one;
    char line[200];
    double sharers = 0, shared = 1;
    json_array_foreach(json_object_get(result, "cases"), i, one) {
        double devices = compare_table_number(one, NULL, "devices");
        double replicas = compare_table_number(one, NULL, "replicas");
        if (replicas > devices && replicas * shared > sharers * devices) {
            sharers = replicas;
            shared = devices;
        }
    }
    snprintf(line, sizeof line,
             "up to %.0f workers share %.0f GPU%s and slow each other down, as "
             "they would not with one each",
             sharers, shared, shared == 1 ? "" : "s");
    if (sharers > 0)
        print_wrapped(out, 0, 4, line);
}

/* Explains how one machine differs from hosts with links between them. */
static void print_sharing(FILE *out, const json_t *result) {
    size_t i;
    const json_t *one;
    char line[400];
    double most = 0, cores = compare_table_number(result, NULL, "cores");
    double gbits = compare_table_number(result, NULL, "assumed_link_gbits");
    json_array_foreach(json_object_get(result, "cases"), i, one) most =
        fmax(most, compare_table_number(one, NULL, "processes"));
    if (most > cores) {
        snprintf(
            line, sizeof line,
            "up to %.0f processes (workers and ps) share %.0f core%s and slow "
            "each other down, as they would not on hosts of their own",
            most, cores, cores == 1 ? "" : "s");
        print_wrapped(out, 0, 4, line);
    }
    if (isnan(gbits))
        return;
    char link[COMPARE_TABLE_DIGITS];
    compare_table_digits(link, 3, gbits);
    snprintf(
        line, sizeof line,
        "--link-gbits %s does not apply to processes of one machine, "
        "which exchange over shared memory or loopback: bound, reached and "
        "limit ignore it; predictions, which give each process a host of its "
        "own, use it",
        link);
    print_wrapped(out, 0, 4, line);
}

/* Explains what the loss is of, and what a command has not reported. */
static void print_reported(FILE *out, const json_t *result) {
    double seconds = compare_table_number(result, NULL, "equal_seconds");
    bool command = text(result, "command")[0];
    if (!strcmp(text(result, "unit"), "steps"))
        fprintf(out, "the command reports no samples: a rate counts the steps "
                     "of all workers\n");
    if (!isnan(seconds)) {
        char after[COMPARE_TABLE_DIGITS];
        compare_table_digits(after, 3, seconds);
        fprintf(out, "loss%s%s after %s s of training each\n",
                command ? "" : " and ",
                command ? "" : compare_table_quality_name(result), after);
    } else if (command)
        fprintf(out, "the command reports no loss: none is compared\n");
}

void compare_table_print_notes(FILE *out, const json_t *result) {
    size_t i;
    const json_t *one;
    double gbits = known(result, "link_gbits");
    if (isnan(gbits))
        fprintf(out, "no link between hosts is known: the bound is that of "
                     "reading, computing and the update rule\n");
    else
        print_links(out, result, gbits);
    print_shared_devices(out, result);
    print_sharing(out, result);
    print_reported(out, result);
    print_diverged(out, result);
    print_far(out, result);
    json_array_foreach(json_object_get(result, "crossover"), i, one)
        print_answers(out, one);
}

void compare_table_print(FILE *out, const json_t *result) {
    char title[COMPARE_TABLE_TITLE];
    compare_table_title(title, result);
    print_wrapped(out, 0, 0, title);
    print_tables(out, result);
    compare_table_print_notes(out, result);
}

const struct compare_table_column compare_table_columns[COMPARE_TABLE_COLUMNS] =
    {
        {"workers", NULL, "workers", NULL},
        {"ps", NULL, "ps", NULL},
        {"runs", NULL, "runs", NULL},
        {"examples_per_second", "examples_per_second", "median", NULL},
        {"examples_per_second_min", "examples_per_second", "min", NULL},
        {"examples_per_second_max", "examples_per_second", "max", NULL},
        {"steps_per_second", "steps_per_second", "median", "steps/s"},
        {"bound_examples_per_second", NULL, "bound_examples_per_second",
         "bound of examples/s"},
        {"predicted_examples_per_second", NULL, "predicted_examples_per_second",
         NULL},
        {"reached", NULL, "reached", "reached of the bound"},
        {"input_s", "seconds_per_step", "input", "input, s"},
        {"compute_s", "seconds_per_step", "compute", "compute, s"},
        {"waiting_for_weights_s", "seconds_per_step", "waiting_for_weights",
         "waiting for weights, s"},
        {"waiting_for_gradients_s", "seconds_per_step", "waiting_for_gradients",
         "waiting for gradients, s"},
        {"update_s", "seconds_per_step", "update", "update, s"},
        {"bytes_per_step", NULL, "bytes_per_step", "bytes/step"},
        {"link_gbits", NULL, "link_gbits", NULL},
        {"worker_link_gbits", NULL, "worker_link_gbits", NULL},
        {"ps_link_gbits", NULL, "ps_link_gbits", NULL},
        {"speed_up", NULL, "speed_up", "speed-up"},
        {"ideal_speed_up", NULL, "ideal_speed_up", NULL},
        {"efficiency", NULL, "efficiency", NULL},
        {"train_loss", NULL, "train_loss", "loss"},
        {"test_accuracy", NULL, "test_accuracy", "accuracy"},
        {"examples_per_second_mean", "examples_per_second", "mean",
         "examples/s"},
        {"examples_per_second_spread", "examples_per_second", "spread", NULL},
        {"diverged", NULL, "diverged", NULL},
        {"test_auc", NULL, "test_auc", "AUC"},
        {"test_logloss", NULL, "test_logloss", "log loss"},
};
/* The first column behind the texts. */
enum { BEHIND_TEXTS = COMPARE_TABLE_COLUMNS - 2 };

static void print_cell(FILE *out, double value) {
    fprintf(out, isnan(value) ? "," : ",%.9g", value);
}

static void compare_table_print_quoted(FILE *out, const char *content) {
    fputc('"', out);
    for (; *content; content++) {
        if (*content == '"')
            fputc('"', out);
        fputc(*content, out);
    }
    fputc('"', out);
}

static void print_texts(FILE *out, const json_t *one) {
    fputc(',', out);
    compare_table_print_quoted(out, text(one, "limit"));
    fputc(',', out);
    compare_table_print_quoted(out, text(one, "error"));
}

void compare_table_csv(FILE *out, const json_t *result) {
    size_t i;
    const json_t *one;
    fprintf(out, "mode");
    for (int c = 0; c < COMPARE_TABLE_COLUMNS; c++)
        fprintf(out, "%s,%s", c == BEHIND_TEXTS ? ",limit,error" : "",
                compare_table_columns[c].name);
    fprintf(out, "\r\n");
    json_array_foreach(json_object_get(result, "cases"), i, one) {
        compare_table_print_quoted(out, text(one, "mode"));
        for (int c = 0; c < COMPARE_TABLE_COLUMNS; c++) {
            if (c == BEHIND_TEXTS)
                print_texts(out, one);
            print_cell(
                out, compare_table_number(one, compare_table_columns[c].inside,
                                          compare_table_columns[c].key));
        }
        fprintf(out, "\r\n");
    }
}
