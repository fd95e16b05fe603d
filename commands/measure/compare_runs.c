/* SPDX-License-Identifier: Apache-2.0 */
#include "commands/measure/compare_runs.h"

#include "chief/plan/table_memory.h"
#include "chief/run.h"
#include "commands/measure/ranking.h"
#include "core/base/byte_size.h"
#include "core/base/limits.h"
#include "core/base/machine.h"
#include "core/base/time.h"
#include "core/base/version.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_CASES = JOB_MAX_COUNTS * (2 * JOB_MAX_COUNTS + 1) };

/* The purpose of a run. */
enum run_purpose {
    REPEATED,   /* measures throughput */
    EQUAL_TIME, /* measures what the case learns in the time that the others had
                 */
    FIRST_STEP, /* one step: gives the loss of the initial weights */
};

/* The loss of the initial weights is measured over at least so many samples of
 * a replica, which bounds its error. */
enum { FIRST_SAMPLES = 1024 };
/* Above the loss of the initial weights, as a part of it. That of a caller's
 * model is of a single step's samples. */
static const double LOSS_TOLERANCE = 0.01, EXTERNAL_LOSS_TOLERANCE = 0.5;

struct compare_case {
    struct aggregate_runs_case spec;
    json_t *runs;   /* objects of the finished runs */
    json_t *equal;  /* object of the equal-time run, or NULL */
    json_t *tables; /* why all-reduce was not run, in figures, or NULL */
    int code;       /* exit code of the failed run */
    char problem[512];
};

struct comparison {
    const struct compare_runs_settings *options;
    struct compare_batch batch;
    struct compare_case cases[MAX_CASES];
    unsigned count, runs_done, runs_total;
    unsigned runs_repeated; /* of runs_total, those that measure throughput */
    int64_t began;
    bool external; /* a caller of the library has the model */
    bool finished, has_samples, has_loss; /* a run has; what one has told */
    bool ends_itself;                     /* before --steps */
};

static double compare_runs_number(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

static void compare_runs_describe(const struct compare_case *one, char *text,
                                  size_t size) {
    const struct aggregate_runs_case *spec = &one->spec;
    int used = snprintf(text, size, "%u worker%s, ", spec->workers,
                        spec->workers == 1 ? "" : "s");
    if (spec->mode == COST_MODEL_RING)
        snprintf(text + used, size - (size_t)used, "all-reduce");
    else
        snprintf(text + used, size - (size_t)used, "%u ps, %s", spec->ps,
                 spec->mode == COST_MODEL_PS ? "synchronous" : "asynchronous");
}

static void add_case(struct comparison *comparison, enum cost_model_mode mode,
                     unsigned workers, unsigned ps) {
    const struct options *flags = comparison->options->flags;
    const struct job *job = comparison->options->job;
    struct compare_case *one = &comparison->cases[comparison->count++];
    one->runs = json_array();
    one->spec = (struct aggregate_runs_case){
        .mode = mode,
        .workers = workers,
        .ps = ps,
        .local = comparison->options->local,
        .link_gbits = flags->link_gbits,
        .latency = 1e-6 * flags->latency_us,
        .clip = job->gradient_clipping > 0,
    };
}

static void list_cases(struct comparison *comparison) {
    const struct options *flags = comparison->options->flags;
    for (unsigned w = 0; w < flags->workers.count; w++) {
        unsigned workers = flags->workers.values[w];
        add_case(comparison, COST_MODEL_RING, workers, 0);
        for (unsigned p = 0; p < flags->ps.count; p++) {
            add_case(comparison, COST_MODEL_PS, workers, flags->ps.values[p]);
            add_case(comparison, COST_MODEL_PS_ASYNC, workers,
                     flags->ps.values[p]);
        }
    }
}

/* Converts ROUNDS of each worker to the run's own step count. */
static uint64_t steps_of(const struct aggregate_runs_case *spec,
                         uint64_t rounds) {
    return spec->mode == COST_MODEL_PS_ASYNC ? rounds * spec->workers : rounds;
}

/* Rounds of each worker; 0: the job's epochs. */
static uint64_t rounds_of(const struct comparison *comparison) {
    const struct options *flags = comparison->options->flags;
    const struct job *job = comparison->options->job;
    unsigned most = flags->workers.values[flags->workers.count - 1];
    if (flags->steps || !job->has_steps)
        return flags->steps;
    return job->staleness ? (job->steps + most - 1) / most : job->steps;
}

/* Do other runs follow? A case that has not failed has more runs, and the last
 * run of one step may still be due. */
static bool has_other_cases(const struct comparison *comparison,
                            const struct compare_case *one) {
    for (unsigned c = 0; c < comparison->count; c++) {
        const struct compare_case *other = &comparison->cases[c];
        if (!other->problem[0] && other != one)
            return true;
    }
    return false;
}

/* Is the loss compared? A caller's model may tell none. */
static bool compares_loss(const struct comparison *comparison) {
    return !comparison->external || !comparison->finished ||
           comparison->has_loss;
}

/* What the rates count. */
static const char *unit_of(const struct comparison *comparison) {
    return comparison->external && comparison->finished &&
                   !comparison->has_samples
               ? "steps"
               : "examples";
}

/* The runs to make: those that measure throughput, and for the loss one of each
 * case that has not failed and one of a step. */
static void count_runs(struct comparison *comparison) {
    unsigned cases = 0;
    for (unsigned c = 0; c < comparison->count; c++)
        cases += !comparison->cases[c].problem[0];
    comparison->runs_total = comparison->runs_repeated;
    if (cases && compares_loss(comparison))
        comparison->runs_total += cases + 1;
}

/* A caller may end before it is told to. */
static void check_end(struct comparison *comparison, uint64_t steps,
                      const json_t *run) {
    double found = compare_runs_number(run, "steps");
    if (comparison->ends_itself || found >= (double)steps)
        return;
    comparison->ends_itself = true;
    log_warning(comparison->options->log, "command_ended_early",
                "the command has ended by itself after %.0f of %" PRIu64
                " steps: its own end counts",
                found, steps);
}

/* Completes the object of a caller's RUN: `samples_per_step` of a replica. If
 * the caller tells no samples, each of its steps counts as one, and a loss of 0
 * is none. False: it has no step. */
static bool read_external(struct comparison *comparison,
                          const struct aggregate_runs_case *spec, json_t *run) {
    double steps = compare_runs_number(run, "steps_per_second");
    double examples = compare_runs_number(run, "examples_per_second");
    double loss = compare_runs_number(run, "train_loss");
    if (!(steps > 0))
        return false;
    if (spec->mode != COST_MODEL_PS_ASYNC)
        steps *= compare_runs_number(run, "replicas");
    comparison->finished = true;
    comparison->has_samples |= examples > 0;
    comparison->has_loss |= isfinite(loss) && loss != 0;
    if (!(examples > 0))
        json_object_set_new(run, "examples_per_second", json_real(steps));
    if (loss == 0)
        json_object_set_new(run, "train_loss", json_null());
    json_object_set_new(run, "samples_per_step",
                        json_real(examples > 0 ? examples / steps : 1));
    return true;
}
/* Increases the accumulation until a replica's step has at least SAMPLES, if
 * the batch is known. */
static void grow_batch(struct compare_batch *batch, uint32_t samples) {
    uint32_t least =
        batch->micro ? (samples + batch->micro - 1) / batch->micro : 0;
    if (batch->accumulation < least)
        batch->accumulation = least;
}

/* Returns the run's object, owned by the caller. NULL: it failed, with the
 * reason in ONE, or the comparison must end, with the reason in STATUS. */
static json_t *compare_runs_run_once(struct comparison *comparison,
                                     struct compare_case *one, uint64_t steps,
                                     enum run_purpose run_purpose,
                                     enum status *status, struct failure *why) {
    const struct compare_runs_runner *runner = comparison->options->runner;
    struct compare_arguments_request request = {.spec = one->spec,
                                                .batch = comparison->batch,
                                                .steps = steps,
                                                .tests =
                                                    run_purpose == EQUAL_TIME};
    struct compare_runs_outcome outcome = {0};
    if (run_purpose == FIRST_STEP)
        grow_batch(&request.batch, FIRST_SAMPLES);
    request.continues[false] =
        run_purpose != FIRST_STEP && has_other_cases(comparison, one);
    request.continues[true] = run_purpose != FIRST_STEP;
    *status = runner->run(runner->context, &request, &outcome, why);
    if (!*status && outcome.object)
        compare_batch_update(&comparison->batch, outcome.object);
    if (outcome.object && comparison->external &&
        !read_external(comparison, &one->spec, outcome.object)) {
        json_decref(outcome.object);
        outcome = (struct compare_runs_outcome){
            .problem = "it ended before its first step"};
    }
    if (outcome.object && comparison->external && run_purpose == REPEATED)
        check_end(comparison, steps, outcome.object);
    if (*status || outcome.object)
        return outcome.object;
    one->code = outcome.code ? outcome.code : STATUS_FAILED;
    memcpy(one->problem, outcome.problem, sizeof one->problem);
    return NULL;
}

/* "; about 50 s left", estimated from the runs so far; "" after the last run.
 */
static void time_left(const struct comparison *comparison, char *text,
                      size_t size) {
    double each = time_to_seconds(time_now() - comparison->began) /
                  (double)comparison->runs_done;
    unsigned runs_left = comparison->runs_total - comparison->runs_done;
    snprintf(text, size, runs_left ? "; about %.0f s left" : "",
             each * runs_left);
}

/* Logs one line per run. */
static void log_run(struct comparison *comparison,
                    const struct compare_case *one, const json_t *object) {
    const struct log *log = comparison->options->log;
    char name[96], remaining[48];
    compare_runs_describe(one, name, sizeof name);
    comparison->runs_done++;
    time_left(comparison, remaining, sizeof remaining);
    if (object)
        log_info(log, "comparison_run_finished",
                 "run %u of %u: %s: %.0f %s/s%s", comparison->runs_done,
                 comparison->runs_total, name,
                 compare_runs_number(object, "examples_per_second"),
                 unit_of(comparison), remaining);
    else
        log_warning(log, "comparison_run_failed", "run %u of %u: %s: %s",
                    comparison->runs_done, comparison->runs_total, name,
                    one->problem);
}

/* Finds impossible cases before anything runs. */
static void check_cases(struct comparison *comparison) {
    const struct compare_runs_runner *runner = comparison->options->runner;
    for (unsigned c = 0; runner->check && c < comparison->count; c++) {
        struct compare_case *one = &comparison->cases[c];
        struct compare_arguments_request request = {
            .spec = one->spec, .batch = comparison->batch, .steps = 1};
        struct failure why;
        enum status status = runner->check(runner->context, &request, &why);
        if (!status)
            continue;
        one->code = (int)status;
        snprintf(one->problem, sizeof one->problem, "%.500s", why.text);
        comparison->runs_repeated -=
            (unsigned)comparison->options->flags->repeats;
    }
}

/* Alternates between the cases, so that other load on the machine affects all
 * of them. */
static enum status compare_runs_measure(struct comparison *comparison,
                                        struct failure *why) {
    uint64_t rounds = rounds_of(comparison);
    uint64_t repeats = comparison->options->flags->repeats;
    enum status status = STATUS_OK;
    for (uint64_t r = 0; r < repeats; r++)
        for (unsigned c = 0; c < comparison->count; c++) {
            struct compare_case *one = &comparison->cases[c];
            if (status || one->problem[0])
                continue;
            json_t *object = compare_runs_run_once(comparison, one,
                                                   steps_of(&one->spec, rounds),
                                                   REPEATED, &status, why);
            if (object)
                json_array_append_new(one->runs, object);
            else if (!status) /* its other runs are skipped */
                comparison->runs_repeated -= (unsigned)(repeats - r - 1);
            count_runs(comparison);
            if (!status)
                log_run(comparison, one, object);
        }
    return status;
}

static double mean_steps_per_second(const struct compare_case *one) {
    double sum = 0;
    size_t i, count = json_array_size(one->runs);
    const json_t *run;
    json_array_foreach(one->runs, i, run) sum +=
        compare_runs_number(run, "steps_per_second");
    return count ? sum / (double)count : NAN;
}

/* The shortest training time of a case. */
static double equal_seconds(const struct comparison *comparison) {
    double seconds = NAN;
    for (unsigned c = 0; c < comparison->count; c++) {
        const struct compare_case *one = &comparison->cases[c];
        double took =
            compare_runs_number(json_array_get(one->runs, 0), "steps") /
            mean_steps_per_second(one);
        if (took > 0)
            seconds = fmin(seconds, took);
    }
    return seconds;
}

/* Runs each case for as many steps as fit into SECONDS and records its loss and
 * accuracy. */
static enum status measure_equal(struct comparison *comparison, double seconds,
                                 struct failure *why) {
    enum status status = STATUS_OK;
    for (unsigned c = 0; c < comparison->count; c++) {
        struct compare_case *one = &comparison->cases[c];
        double steps = floor(mean_steps_per_second(one) * seconds);
        if (status || one->problem[0])
            continue;
        one->equal = compare_runs_run_once(comparison, one,
                                           steps >= 1 ? (uint64_t)steps : 1,
                                           EQUAL_TIME, &status, why);
        if (!status)
            log_run(comparison, one, one->equal);
    }
    return status;
}

/* All cases start from the same initial weights and loss, except for the
 * samples of a step. If this run fails, the loss is unknown. */
static enum status measure_first(struct comparison *comparison, double *loss,
                                 struct failure *why) {
    enum status status = STATUS_OK;
    unsigned c = 0;
    while (c < comparison->count && comparison->cases[c].problem[0])
        c++;
    if (c == comparison->count)
        return STATUS_OK;
    struct compare_case one = {.spec = comparison->cases[c].spec};
    json_t *object =
        compare_runs_run_once(comparison, &one, 1, FIRST_STEP, &status, why);
    if (!status)
        log_run(comparison, &one, object);
    *loss = compare_runs_number(object, "train_loss");
    json_decref(object);
    return status;
}

/* A NaN loss ends a run, or leaves no loss to report. */
static json_t *diverged(const struct compare_case *one, double first,
                        double tolerance) {
    double loss = compare_runs_number(one->equal, "train_loss");
    if (strstr(one->problem, "the loss is "))
        return json_true();
    if (!one->equal)
        return json_null();
    return json_boolean(isnan(loss) || loss > first + tolerance * fabs(first));
}

static void copy_key(json_t *to, const json_t *from, const char *key) {
    json_t *value = json_object_get(from, key);
    json_object_set(to, key, value ? value : json_null());
}

/* The median at KEY over all runs with the same WORKERS that measured the same:
 * between two workers for all-reduce, between a worker and a ps otherwise, with
 * any number of ps. 0: there is none. */
static double median_rate(const struct comparison *comparison, unsigned workers,
                          bool ring, const char *key) {
    json_t *all = json_array();
    for (unsigned c = 0; c < comparison->count; c++) {
        const struct compare_case *one = &comparison->cases[c];
        if (one->spec.workers != workers ||
            (one->spec.mode == COST_MODEL_RING) != ring)
            continue;
        json_array_extend(all, one->runs);
        if (one->equal)
            json_array_append(all, one->equal);
    }
    double median = aggregate_runs_median(all, key);
    json_decref(all);
    return isfinite(median) ? median : 0;
}

static void set_rates(const struct comparison *comparison,
                      struct aggregate_runs_case *spec) {
    unsigned workers = spec->workers;
    spec->worker_gbits = median_rate(comparison, workers, true, "link_gbits");
    spec->pair_gbits = median_rate(comparison, workers, false, "link_gbits");
    spec->all_gbits = median_rate(comparison, workers, false, "ps_link_gbits");
}

/* Sets VALUE, or null if it is 0. */
static void compare_runs_set_count(json_t *object, const char *key,
                                   double value) {
    json_object_set_new(
        object, key, value > 0 ? json_integer((json_int_t)value) : json_null());
}

static void compare_runs_set_real(json_t *object, const char *key,
                                  double value) {
    json_object_set_new(object, key,
                        value > 0 ? json_real(value) : json_null());
}

/* The words of the command with spaces between, or null. */
static json_t *command_text(char *const *command) {
    char *text = NULL;
    size_t size;
    FILE *out = command ? open_memstream(&text, &size) : NULL;
    if (!out)
        return json_null();
    for (char *const *word = command; *word; word++)
        fprintf(out, "%s%s", word > command ? " " : "", *word);
    fclose(out);
    json_t *object = json_string(text); /* NULL: not UTF-8 */
    free(text);
    return object ? object : json_null();
}

/* Samples of a replica's step in ONE's runs; NAN: none has finished. */
static double compare_runs_samples_of(const struct comparison *comparison,
                                      const struct compare_case *one) {
    return comparison->external
               ? aggregate_runs_median(one->runs, "samples_per_step")
               : compare_batch_samples(&comparison->batch);
}

/* The samples of all cases; null: a caller's differ, or are unknown. */
static json_t *common_samples(const struct comparison *comparison) {
    double samples = NAN;
    for (unsigned c = 0; c < comparison->count; c++) {
        double found =
            round(compare_runs_samples_of(comparison, &comparison->cases[c]));
        if (found != samples && !isnan(found) && !isnan(samples))
            return json_null();
        samples = isnan(found) ? samples : found;
    }
    return strcmp(unit_of(comparison), "examples") || isnan(samples)
               ? json_null()
               : json_integer((json_int_t)samples);
}

/* The machine of this process, which is that of all of them if they share one.
 */
static json_t *machine_object(void) {
    struct machine machine;
    machine_describe(&machine);
    return json_pack("{s:s, s:I, s:I, s:s}", "processor", machine.processor,
                     "cores", (json_int_t)machine.cores, "memory_bytes",
                     (json_int_t)machine.memory, "kernel", machine.kernel);
}

/* Adds on what, and by which release, it was measured. */
static void add_origin(json_t *object, const struct job *job) {
    json_object_set_new(object, "job_text",
                        job->text ? json_string(job->text) : json_null());
    json_object_set_new(object, "machine", machine_object());
    json_object_set_new(object, "version", json_string(VERSION_TEXT));
    json_object_set_new(object, "commit", json_string(version_commit));
}

/* Adds how it was measured. */
static void add_settings(json_t *object, const struct comparison *comparison) {
    const struct compare_runs_settings *options = comparison->options;
    const struct options *flags = options->flags;
    time_t seconds = (time_t)time_calendar();
    struct tm now;
    char date[32]; /* ISO 8601 */
    gmtime_r(&seconds, &now);
    strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", &now);
    json_object_set_new(object, "job",
                        options->flags->job ? json_string(options->flags->job)
                                            : json_null());
    json_object_set_new(object, "command",
                        command_text(options->flags->command));
    json_object_set_new(object, "date", json_string(date));
    compare_runs_set_count(
        object, "rounds",
        comparison->ends_itself ? 0 : (double)rounds_of(comparison));
    compare_runs_set_count(object, "repeats", (double)flags->repeats);
    json_object_set_new(object, "unit", json_string(unit_of(comparison)));
    json_object_set_new(object, "samples_per_step", common_samples(comparison));
    compare_runs_set_count(object, "cores", options->local ? cores_count() : 0);
    compare_runs_set_count(object, "members", options->members);
    compare_runs_set_real(object, "assumed_link_gbits",
                          options->local ? flags->link_gbits : 0);
    add_origin(object, options->job);
}

static struct aggregate aggregate_one(const struct comparison *comparison,
                                      struct compare_case *one,
                                      double first_loss) {
    set_rates(comparison, &one->spec);
    one->spec.samples = compare_runs_samples_of(comparison, one);
    struct aggregate aggregate = aggregate_runs(&one->spec, one->runs);
    json_object_set_new(aggregate.object, "error",
                        one->problem[0] ? json_string(one->problem)
                                        : json_null());
    if (one->tables)
        json_object_set(aggregate.object, "tables", one->tables);
    copy_key(aggregate.object, one->equal, "train_loss");
    copy_key(aggregate.object, one->equal, "test_accuracy");
    copy_key(aggregate.object, one->equal, "test_auc");
    copy_key(aggregate.object, one->equal, "test_logloss");
    json_object_set_new(aggregate.object, "diverged",
                        diverged(one, first_loss,
                                 comparison->external ? EXTERNAL_LOSS_TOLERANCE
                                                      : LOSS_TOLERANCE));
    return aggregate;
}

static json_t *build_result(struct comparison *comparison, double seconds,
                            double first_loss) {
    struct aggregate *aggregates =
        calloc(comparison->count, sizeof *aggregates);
    json_t *object = json_object(), *cases = json_array();
    add_settings(object, comparison);
    compare_runs_set_real(object, "equal_seconds", seconds);
    json_object_set_new(object, "first_loss",
                        isfinite(first_loss) ? json_real(first_loss)
                                             : json_null());
    for (unsigned c = 0; aggregates && c < comparison->count; c++) {
        aggregates[c] =
            aggregate_one(comparison, &comparison->cases[c], first_loss);
        json_array_append_new(cases, aggregates[c].object);
    }
    json_object_set_new(object, "cases", cases);
    if (aggregates) {
        aggregate_runs_add_scaling(aggregates, comparison->count);
        json_object_set_new(object, "crossover",
                            ranking_compute(aggregates, comparison->count,
                                            unit_of(comparison)));
    }
    free(aggregates);
    return object;
}

/* Fails if nothing was measured. */
static enum status all_failed(const struct comparison *comparison,
                              struct failure *why) {
    enum failure_code code = FAILURE_COMPARE_IMPOSSIBLE;
    for (unsigned c = 0; c < comparison->count; c++) {
        if (json_array_size(comparison->cases[c].runs))
            return STATUS_OK;
        if (comparison->cases[c].code != STATUS_CONFIG)
            code = FAILURE_COMPARE_FAILED;
    }
    return status_fail(why, code, "no case could be run; the first: %s",
                       comparison->cases[0].problem);
}

/* The first run with tables of a case with WORKERS; NULL: there is none. */
static const json_t *run_with_tables(const struct comparison *comparison,
                                     unsigned workers) {
    for (unsigned c = 0; c < comparison->count; c++) {
        const struct compare_case *one = &comparison->cases[c];
        const json_t *run = json_array_get(one->runs, 0);
        if (one->spec.workers == workers && json_object_get(run, "tables"))
            return run;
    }
    return NULL;
}

/* What all-reduce would take in place of the ps of RUN: of a trainer's memory,
 * and in bytes that it sends and receives in a step. */
static json_t *describe_tables(const json_t *run, unsigned workers) {
    json_t *tables = json_copy(json_object_get(run, "tables"));
    double dense = compare_runs_number(tables, "dense_bytes");
    json_object_set_new(tables, "dense_bytes_per_step",
                        json_real(4 * (workers - 1.0) / workers * dense));
    copy_key(tables, run, "row_bytes_per_step");
    return tables;
}

static void bytes_at(const json_t *tables, const char *key, double times,
                     char *text, size_t size) {
    double bytes = times * compare_runs_number(tables, key);
    if (isnan(bytes))
        snprintf(text, size, "unknown");
    else
        byte_size_text((uint64_t)bytes, text, size);
}

/* Replaces the refusal of all-reduce by its reason, with figures of the runs by
 * ps. */
static void explain_tables(const struct comparison *comparison,
                           struct compare_case *one) {
    char held[16], there[16], touched[16];
    const json_t *run = run_with_tables(comparison, one->spec.workers);
    if (one->spec.mode != COST_MODEL_RING ||
        !strstr(one->problem, TABLE_MEMORY_TOO_LARGE) || !run)
        return;
    one->tables = describe_tables(run, one->spec.workers);
    bytes_at(one->tables, "bytes", 1, held, sizeof held);
    bytes_at(one->tables, "trainer_free_bytes", 1, there, sizeof there);
    bytes_at(one->tables, "row_bytes_per_step", 2, touched, sizeof touched);
    snprintf(one->problem, sizeof one->problem,
             "not run, as the tables do not fit a worker: each would hold all "
             "%.0f rows%s, %s with optimizer state, of %s free; by ps it "
             "exchanges %s of those that it touches in a step",
             compare_runs_number(one->tables, "rows"),
             compare_runs_number(one->tables, "unbounded") > 0
                 ? " (so far: not all tables have a bound)"
                 : "",
             held, there, touched);
}

static void free_comparison(struct comparison *comparison) {
    for (unsigned c = 0; c < comparison->count; c++) {
        json_decref(comparison->cases[c].runs);
        json_decref(comparison->cases[c].equal);
        json_decref(comparison->cases[c].tables);
    }
    free(comparison);
}

enum status compare_runs(json_t **result,
                         const struct compare_runs_settings *options,
                         struct failure *why) {
    struct comparison *comparison = calloc(1, sizeof *comparison);
    double seconds = NAN, first_loss = NAN;
    *result = NULL;
    if (!comparison)
        return status_fail(why, FAILURE_NO_MEMORY,
                           "no memory for a comparison");
    comparison->options = options;
    comparison->batch = options->batch;
    comparison->external = options->job->model.type == JOB_EXTERNAL;
    list_cases(comparison);
    comparison->runs_repeated =
        comparison->count * (unsigned)options->flags->repeats;
    check_cases(comparison);
    count_runs(comparison);
    log_info(options->log, "comparison_started",
             "%u case%s, %u run%s (%" PRIu64
             " of each and one for equal time, and one of a step for the loss "
             "at the start%s); each run may take %g s",
             comparison->count, log_plural(comparison->count),
             comparison->runs_total, log_plural(comparison->runs_total),
             options->flags->repeats,
             comparison->external ? ", if the command reports losses" : "",
             options->flags->limit);
    comparison->began = time_now();
    enum status status = compare_runs_measure(comparison, why);
    if (!status && compares_loss(comparison)) {
        seconds = equal_seconds(comparison);
        status = measure_equal(comparison, seconds, why);
    }
    if (!status && compares_loss(comparison))
        status = measure_first(comparison, &first_loss, why);
    if (status && failure_code_is_signal(why->code))
        status = status_fail(why, why->code,
                             "ended by signal %d after %u of %u "
                             "runs",
                             (int)status - 128, comparison->runs_done,
                             comparison->runs_total);
    if (!status)
        status = all_failed(comparison, why);
    for (unsigned c = 0; !status && c < comparison->count; c++)
        explain_tables(comparison, &comparison->cases[c]);
    if (!status)
        *result = build_result(comparison, seconds, first_loss);
    free_comparison(comparison);
    return status;
}

enum { LAST_LINES = 30 };
static const double EXTRA_GRACE =
    5; /* seconds in addition to a run's own deadlines */

static void compare_local_record_failure(struct compare_runs_outcome *outcome,
                                         const struct subprocess_result *result,
                                         double limit) {
    char reason[400];
    subprocess_error_line(result->errors, reason, sizeof reason);
    outcome->code = result->code;
    if (result->timed_out)
        snprintf(outcome->problem, sizeof outcome->problem,
                 "not over after %g s (--limit)%s%s", limit,
                 reason[0] ? ": " : "", reason);
    else
        snprintf(outcome->problem, sizeof outcome->problem, "%s (exit code %d)",
                 reason[0] ? reason : "it printed nothing", result->code);
}

/* Returns where the last LAST_LINES lines of TEXT begin that are no information
 * of a log. */
static const char *last_lines(const char *text) {
    const char *starts[LAST_LINES];
    size_t count = 0;
    for (const char *line = text; *line; line += strspn(line, "\n")) {
        size_t length = strcspn(line, "\n");
        if (!log_is_info(line, length))
            starts[count++ % LAST_LINES] = line;
        line += length;
    }
    return count > LAST_LINES ? starts[count % LAST_LINES]
           : count            ? starts[0]
                              : "";
}

/* Logs what a script has printed last, which is not shown otherwise: the reason
 * is one line, and may be another process's. */
static void log_last_lines(const struct log *log, const char *text) {
    for (const char *line = last_lines(text); *line;) {
        size_t length = strcspn(line, "\n");
        if (!log_is_info(line, length))
            log_info(log, "command_output", "| %.*s", (int)length, line);
        line += length;
        line += strspn(line, "\n");
    }
}

static enum status compare_local_run(
    void *context, const struct compare_arguments_request *request,
    struct compare_runs_outcome *outcome, struct failure *why) {
    struct compare_local *local = context;
    const struct job_timeouts *timeouts = &local->job->timeouts;
    struct compare_arguments command;
    struct subprocess_result result;
    compare_arguments_build(&command, local->flags, request);
    struct subprocess_options child = {
        .program = local->program,
        .arguments = command.argv,
        .limit = local->flags->limit,
        .kill_after = timeouts->grace + timeouts->stop + EXTRA_GRACE};
    enum status status = subprocess_run(&local->signals, &child, &result, why);
    compare_arguments_free(&command);
    if (status)
        return status;
    bool fine = !result.code && !result.timed_out;
    outcome->object = fine ? json_loads(result.output, 0, NULL) : NULL;
    int caught = local->signals.caught;
    if (!outcome->object)
        compare_local_record_failure(outcome, &result, child.limit);
    if (!outcome->object && !caught && local->flags->command)
        log_last_lines(local->log, result.errors);
    subprocess_free_result(&result);
    return caught ? status_fail(why, failure_code_of_signal(caught),
                                "ended by signal %d", caught)
                  : STATUS_OK;
}

struct compare_runs_runner compare_local_runner(struct compare_local *local) {
    return (struct compare_runs_runner){.run = compare_local_run,
                                        .context = local};
}
