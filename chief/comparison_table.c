#include "chief/comparison_table.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

/* A number at KEY, or at KEY of its member INSIDE; NAN when there is none. */
static double number(const json_t *object, const char *inside,
                     const char *key) {
    const json_t *value =
        json_object_get(inside ? json_object_get(object, inside) : object, key);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

static const char *text(const json_t *object, const char *key) {
    const char *found = json_string_value(json_object_get(object, key));
    return found ? found : "";
}

/* In WIDTH columns with DIGITS behind the point; a dash for NAN. */
static void put(FILE *out, int width, int digits, double value) {
    if (isnan(value))
        fprintf(out, " %*s", width, "-");
    else
        fprintf(out, " %*.*f", width, digits, value);
}

static void put_share(FILE *out, int width, double share) {
    if (isnan(share))
        fprintf(out, " %*s", width, "-");
    else
        fprintf(out, " %*.0f%%", width - 1, 100 * share);
}

static const char *mode_text(const json_t *one) {
    const char *mode = text(one, "mode");
    return !strcmp(mode, "ps")         ? "synchronous"
           : !strcmp(mode, "ps-async") ? "asynchronous"
                                       : "all-reduce";
}

static bool failed(const json_t *one) {
    return json_is_null(json_object_get(
               json_object_get(one, "examples_per_second"), "median")) ||
           !json_object_get(one, "examples_per_second");
}

static void put_name(FILE *out, const json_t *one) {
    double ps = number(one, NULL, "ps");
    fprintf(out, "%7.0f", number(one, NULL, "workers"));
    if (ps > 0)
        fprintf(out, " %3.0f", ps);
    else
        fprintf(out, " %3s", "-");
    fprintf(out, " %-12s", mode_text(one));
}

static void put_case(FILE *out, const json_t *one) {
    static const char speed[] = "examples_per_second",
                      times[] = "seconds_per_step";
    put_name(out, one);
    if (failed(one)) {
        fprintf(out, " failed: %s\n", text(one, "error"));
        return;
    }
    put(out, 9, 0, number(one, speed, "median"));
    put(out, 9, 0, number(one, speed, "min"));
    put(out, 9, 0, number(one, speed, "max"));
    put(out, 9, 0, number(one, NULL, "bound_examples_per_second"));
    put_share(out, 7, number(one, NULL, "reached"));
    fprintf(out, " |");
    put(out, 6, 2, 1e3 * number(one, times, "input"));
    put(out, 7, 2, 1e3 * number(one, times, "compute"));
    put(out, 7, 2, 1e3 * number(one, times, "waiting_for_weights"));
    put(out, 9, 2, 1e3 * number(one, times, "waiting_for_gradients"));
    put(out, 6, 2, 1e3 * number(one, times, "update"));
    fprintf(out, " |");
    put(out, 7, 2, 1e-6 * number(one, NULL, "bytes_per_step"));
    put(out, 8, 2, number(one, NULL, "speed_up"));
    put_share(out, 6, number(one, NULL, "efficiency"));
    put(out, 7, 3, number(one, NULL, "train_loss"));
    put(out, 8, 4, number(one, NULL, "test_accuracy"));
    fprintf(out, "  %s\n", text(one, "limit"));
    if (text(one, "error")[0])
        fprintf(out, "%24s then failed: %s\n", "", text(one, "error"));
}

static void put_heads(FILE *out, const json_t *result) {
    double rounds = number(result, NULL, "rounds");
    fprintf(out, "%s: ", text(result, "job"));
    if (isnan(rounds))
        fprintf(out, "its epochs, ");
    else
        fprintf(out, "%.0f rounds ", rounds);
    fprintf(out,
            "of %.0f samples a worker; medians of %.0f runs in turns; %.0f "
            "cores\n\n",
            number(result, NULL, "samples_per_step"),
            number(result, NULL, "repeats"), number(result, NULL, "cores"));
    fprintf(out, "%24s %37s %8s | %39s | %7s %15s %16s\n", "", "examples/s", "",
            "of a step, ms: waiting for     ", "", "", "at equal time");
    fprintf(out,
            "workers  ps %-12s %9s %9s %9s %9s %7s | %6s %7s %7s %9s %6s | %7s "
            "%8s %6s %7s %8s  limit\n",
            "", "median", "min", "max", "bound", "reached", "input", "compute",
            "weights", "gradients", "update", "MB/step", "speed-up", "T1/nTn",
            "loss", "accuracy");
}

/* Has all-reduce been measured with WORKERS? */
static bool reduced(const json_t *result, double workers) {
    size_t i;
    const json_t *one;
    json_array_foreach(
        json_object_get(result, "cases"), i,
        one) if (!strcmp(text(one, "mode"), "allreduce") && !failed(one) &&
                 number(one, NULL, "workers") == workers) return true;
    return false;
}

static void put_crossover(FILE *out, const json_t *result, const json_t *one) {
    double workers = number(one, NULL, "workers");
    double measured = number(one, NULL, "measured_ps");
    double formula = number(one, NULL, "predicted_ps");
    bool both = reduced(result, workers);
    if (workers < 2 || (!both && isnan(formula)))
        return;
    fprintf(out, "%.0f workers: a round by ps is as fast as all-reduce",
            workers);
    if (!isnan(measured))
        fprintf(out, " from %.0f ps on, measured;", measured);
    else if (both)
        fprintf(out, " with none of these numbers of ps, measured;");
    if (isnan(formula))
        fprintf(out, " by the formulas it needs the rate of a link\n");
    else
        fprintf(out,
                " from %.0f on by the formulas (of the exchange alone m >= "
                "n^2/(2(n-1)))\n",
                formula);
}

void comparison_table_print(FILE *out, const json_t *result) {
    size_t i;
    const json_t *one;
    double gbits = NAN, before = NAN;
    put_heads(out, result);
    json_array_foreach(json_object_get(result, "cases"), i, one) {
        double workers = number(one, NULL, "workers");
        if (workers > before)
            fprintf(out, "\n");
        before = workers;
        if (isnan(gbits))
            gbits = number(one, NULL, "link_gbits");
        put_case(out, one);
    }
    fprintf(out, "\n");
    if (isnan(gbits))
        fprintf(out, "no link between hosts is known: the bound is that of "
                     "reading, computing and the update rule\n");
    else
        fprintf(out, "bound with %.3g Gbit/s each way a host\n", gbits);
    if (!isnan(number(result, NULL, "equal_seconds")))
        fprintf(out, "loss and accuracy after %.3g s of training each\n",
                number(result, NULL, "equal_seconds"));
    json_array_foreach(json_object_get(result, "crossover"), i, one)
        put_crossover(out, result, one);
}

struct column {
    const char *name, *inside, *key;
};

static const struct column columns[] = {
    {"workers", NULL, "workers"},
    {"ps", NULL, "ps"},
    {"runs", NULL, "runs"},
    {"examples_per_second", "examples_per_second", "median"},
    {"examples_per_second_min", "examples_per_second", "min"},
    {"examples_per_second_max", "examples_per_second", "max"},
    {"steps_per_second", "steps_per_second", "median"},
    {"bound_examples_per_second", NULL, "bound_examples_per_second"},
    {"predicted_examples_per_second", NULL, "predicted_examples_per_second"},
    {"reached", NULL, "reached"},
    {"input_s", "seconds_per_step", "input"},
    {"compute_s", "seconds_per_step", "compute"},
    {"waiting_for_weights_s", "seconds_per_step", "waiting_for_weights"},
    {"waiting_for_gradients_s", "seconds_per_step", "waiting_for_gradients"},
    {"update_s", "seconds_per_step", "update"},
    {"bytes_per_step", NULL, "bytes_per_step"},
    {"link_gbits", NULL, "link_gbits"},
    {"speed_up", NULL, "speed_up"},
    {"efficiency", NULL, "efficiency"},
    {"train_loss", NULL, "train_loss"},
    {"test_accuracy", NULL, "test_accuracy"},
};
enum { COLUMNS = sizeof columns / sizeof *columns };

static void put_quoted(FILE *out, const char *words) {
    fputc('"', out);
    for (; *words; words++) {
        if (*words == '"')
            fputc('"', out);
        fputc(*words, out);
    }
    fputc('"', out);
}

void comparison_table_csv(FILE *out, const json_t *result) {
    size_t i;
    const json_t *one;
    fprintf(out, "mode");
    for (int c = 0; c < COLUMNS; c++)
        fprintf(out, ",%s", columns[c].name);
    fprintf(out, ",limit,error\r\n");
    json_array_foreach(json_object_get(result, "cases"), i, one) {
        put_quoted(out, text(one, "mode"));
        for (int c = 0; c < COLUMNS; c++) {
            double value = number(one, columns[c].inside, columns[c].key);
            fprintf(out, isnan(value) ? "," : ",%.9g", value);
        }
        fputc(',', out);
        put_quoted(out, text(one, "limit"));
        fputc(',', out);
        put_quoted(out, text(one, "error"));
        fprintf(out, "\r\n");
    }
}
