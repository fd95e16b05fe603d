/* SPDX-License-Identifier: Apache-2.0 */
/* build/bench/click_log writes a click log with a planted model
 * (tests/bench/click_log.h), and below it, to standard error, how well its own
 * probabilities predict it: no model's AUC is higher but by chance. */
#include "tests/bench/click_log.h"

#include "core/tensor/binary_scores.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "usage: click_log [--rows N] [--first ROW] [--seed S] [--libsvm]\n"
    "                 [--cardinality LIST] [--exponent LIST] [FILE]\n"
    "Writes rows ROW .. ROW + N - 1 (0, 100000) of the log with seed S (1) in\n"
    "Criteo's format, or in LIBSVM's, to FILE or to standard output.\n"
    "LIST: of the 26 fields with commas between them, or one for all; without it\n"
    "10 to 100000 categories, and 1.1.\n";

struct arguments {
    struct click_log_options log;
    uint64_t rows, first;
    bool libsvm;
    const char *path; /* NULL: standard output */
};

/* AUC and sum of the log losses of what was written. */
struct truth {
    struct binary_scores scores;
    double loss;
    uint64_t clicks;
};

static bool whole_number(const char *text, uint64_t *out) {
    char *end;
    errno = 0;
    *out = strtoull(text, &end, 10);
    return *text >= '0' && *text <= '9' && !*end && !errno;
}

/* VALUES [CLICK_LOG_FIELDS] of a list of so many, or of one. */
static bool number_list(const char *text, double *values) {
    int count = 0;
    char *end;
    do {
        values[count++] = strtod(text, &end);
        if (end == text || (*end && *end != ','))
            return false;
        text = end + 1;
    } while (*end && count < CLICK_LOG_FIELDS);
    for (int f = 1; count == 1 && f < CLICK_LOG_FIELDS; f++)
        values[f] = values[0];
    return !*end && (count == 1 || count == CLICK_LOG_FIELDS);
}

static bool cardinalities(const char *text, struct click_log_options *log) {
    double values[CLICK_LOG_FIELDS];
    if (!number_list(text, values))
        return false;
    for (int f = 0; f < CLICK_LOG_FIELDS; f++) {
        if (!(values[f] >= 1 && values[f] <= CLICK_LOG_MAX_CARDINALITY))
            return false;
        log->cardinality[f] = (uint32_t)values[f];
    }
    return true;
}

static bool read_arguments(int count, char **words, struct arguments *out) {
    static const struct option flags[] = {
        {"rows", required_argument, NULL, 'r'},
        {"first", required_argument, NULL, 'f'},
        {"seed", required_argument, NULL, 's'},
        {"libsvm", no_argument, NULL, 'l'},
        {"cardinality", required_argument, NULL, 'c'},
        {"exponent", required_argument, NULL, 'e'},
        {0}};
    bool right = true;
    int flag;
    *out = (struct arguments){.log = click_log_defaults(), .rows = 100000};
    while (right && (flag = getopt_long(count, words, "", flags, NULL)) != -1)
        right = flag == 'r'   ? whole_number(optarg, &out->rows)
                : flag == 'f' ? whole_number(optarg, &out->first)
                : flag == 's' ? whole_number(optarg, &out->log.seed)
                : flag == 'c' ? cardinalities(optarg, &out->log)
                : flag == 'e' ? number_list(optarg, out->log.exponent)
                : flag == 'l' ? (out->libsvm = true)
                              : false;
    out->path = optind < count ? words[optind++] : NULL;
    return right && optind == count && out->first <= INT64_MAX &&
           out->rows <= INT64_MAX - out->first;
}

static bool add_truth(struct truth *truth, const struct click_row *row,
                      uint64_t rows) {
    float target = row->clicked;
    double logit = row->logit;
    truth->loss += log1p(exp(row->clicked ? -logit : logit));
    truth->clicks += row->clicked;
    return binary_scores_add(&truth->scores, &row->logit, &target, 1, rows);
}

static enum status write_rows(const struct click_log *log,
                              const struct arguments *arguments, FILE *file,
                              struct truth *truth, struct failure *why) {
    const char *path = arguments->path ? arguments->path : "standard output";
    char text[CLICK_LOG_ROW_BYTES];
    for (uint64_t i = 0; i < arguments->rows; i++) {
        struct click_row row;
        click_log_row(log, arguments->first + i, &row);
        size_t size = arguments->libsvm ? click_log_libsvm(log, &row, text)
                                        : click_log_criteo(log, &row, text);
        if (fwrite(text, 1, size, file) != size)
            return status_errno(why, FAILURE_OUTPUT_UNUSABLE, errno, "%s",
                                path);
        if (!add_truth(truth, &row, arguments->rows))
            return status_fail(why, FAILURE_NO_MEMORY,
                               "no memory for the scores");
    }
    if (fflush(file))
        return status_errno(why, FAILURE_OUTPUT_UNUSABLE, errno, "%s", path);
    return STATUS_OK;
}

static void put_truth(const struct arguments *arguments, struct truth *truth) {
    double rows = (double)arguments->rows, error;
    double auc = binary_scores_auc(&truth->scores, arguments->rows, &error);
    fprintf(stderr,
            "click_log: rows %" PRIu64 " to %" PRIu64 ", seed %" PRIu64
            ": clicks %.4f, AUC %.5f (+- %.1g), logloss %.5f of the true "
            "probabilities\n",
            arguments->first, arguments->first + arguments->rows,
            arguments->log.seed, (double)truth->clicks / rows, auc, error,
            truth->loss / rows);
}

static enum status write_log(const struct arguments *arguments,
                             struct failure *why) {
    struct click_log *log;
    struct truth truth = {0};
    FILE *file = stdout;
    enum status status = click_log_open(&log, &arguments->log, why);
    if (status)
        return status;
    if (arguments->path && !(file = fopen(arguments->path, "w")))
        status = status_errno(why, FAILURE_OUTPUT_UNUSABLE, errno, "%s",
                              arguments->path);
    if (!status)
        status = write_rows(log, arguments, file, &truth, why);
    if (!status)
        put_truth(arguments, &truth);
    if (file && file != stdout)
        fclose(file);
    binary_scores_clear(&truth.scores);
    click_log_close(&log);
    return status;
}

int main(int count, char **words) {
    struct arguments arguments;
    struct failure why;
    if (!read_arguments(count, words, &arguments)) {
        fputs(usage, stderr);
        return STATUS_CONFIG;
    }
    enum status status = write_log(&arguments, &why);
    if (status)
        fprintf(stderr, "click_log: %s\n", why.text);
    return (int)status;
}
