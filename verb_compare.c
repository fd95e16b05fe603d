#include "verb_compare.h"

#include "chief/comparison.h"
#include "chief/comparison_plot.h"
#include "chief/comparison_table.h"
#include "chief/launch.h"
#include "chief/prediction.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

static enum status load(struct job **job, const struct options *options,
                        struct failure *why) {
    const struct compare_counts *workers = &options->compare.workers;
    struct job_source source = {.path = options->job,
                                .deepspeed = options->deepspeed,
                                .overrides = options->sets,
                                .num_overrides = options->num_sets};
    enum status status = job_load(job, &source, NULL, why);
    return status ? status
                  : job_solve_batch(*job, workers->values[workers->count - 1],
                                    why);
}

static enum status write_csv(const json_t *result, const char *path,
                             struct failure *why) {
    FILE *file = fopen(path, "w");
    if (!file)
        return status_errno(why, STATUS_FAILED, errno, "--csv %s", path);
    comparison_table_csv(file, result);
    return fclose(file)
               ? status_errno(why, STATUS_FAILED, errno, "--csv %s", path)
               : STATUS_OK;
}

static enum status show(const struct options *options, const json_t *result,
                        struct failure *why) {
    const struct compare_options *flags = &options->compare;
    enum status status = STATUS_OK;
    if (options->json) {
        char *text = json_dumps(result, JSON_COMPACT | JSON_REAL_PRECISION(9));
        puts(text ? text : "");
        free(text);
    } else {
        comparison_table_print(stdout, result);
    }
    fflush(stdout);
    if (flags->csv)
        status = write_csv(result, flags->csv, why);
    if (!status && flags->plot)
        status = comparison_plot_draw(result, flags->plot, why);
    return status;
}

/* Before runs of hours end at a file that cannot be written. */
static enum status check_file(const char *flag, const char *path,
                              struct failure *why) {
    FILE *file = path ? fopen(path, "a") : NULL;
    if (path && !file)
        return status_errno(why, STATUS_CONFIG, errno, "%s %s", flag, path);
    if (file)
        fclose(file);
    return STATUS_OK;
}

static enum status measure(const struct options *options, struct failure *why) {
    struct log log;
    char program[4096];
    json_t *result = NULL;
    struct job *job = NULL;
    enum status status = STATUS_OK;
    log_open(&log, "compare", -1);
    launch_program(program, sizeof program);
    if (options->compare.plot)
        status = comparison_plot_ready(why);
    if (!status)
        status = load(&job, options, why);
    if (!status)
        status = check_file("--csv", options->compare.csv, why);
    if (!status)
        status = check_file("--plot", options->compare.plot, why);
    struct comparison_options given = {
        .flags = options, .job = job, .program = program, .log = &log};
    if (!status)
        status = comparison_run(&result, &given, why);
    if (!status)
        status = show(options, result, why);
    json_decref(result);
    job_free(&job);
    return status;
}

enum status verb_compare(const struct options *options, struct failure *why) {
    if (options->compare.predict)
        return prediction_print(stdout, &options->compare, options->json, why);
    return measure(options, why);
}
