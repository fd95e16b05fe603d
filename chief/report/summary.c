/* SPDX-License-Identifier: Apache-2.0 */
#include "chief/report/summary.h"

#include "chief/plan/bandwidth_probe.h"
#include "chief/plan/device_replicas.h"
#include "chief/plan/table_memory.h"
#include "chief/report/metrics.h"
#include "chief/rewind.h"
#include "chief/run.h"
#include "core/base/byte_size.h"
#include "core/base/time.h"
#include "core/tensor/schedule.h"
#include "proto/plan/encoding.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void summary_set_real(json_t *object, const char *key, double value) {
    json_object_set_new(object, key,
                        isfinite(value) ? json_real(value) : json_null());
}

/* Does the caller of the library compute the gradients? Then only it knows its
 * batches, and how long it waits for them. */
static bool time_breakdown_is_external(const struct run *run) {
    return run->job->model.type == JOB_EXTERNAL;
}

/* Seconds per step of one trainer and of one ps. Steps are those of each
 * trainer, even if the run's step counts the steps of all. */
static json_t *seconds_per_step(const struct run *run) {
    struct run_facts facts = metrics_facts(run, run->end_step);
    double trainers = run_count_trainers(run);
    double steps = (double)(run->end_step - run->plan.schedule.start);
    double each = run_synchronous(run) ? steps : steps / trainers;
    double trainer_steps = trainers * each;
    double update = run->allreduce
                        ? facts.seconds.rule / trainer_steps
                        : facts.seconds.updates / run_holder_count(run) / each;
    json_t *object = json_object();
    summary_set_real(object, "input",
                     time_breakdown_is_external(run)
                         ? NAN
                         : facts.seconds.input / trainer_steps);
    summary_set_real(object, "compute", facts.seconds.compute / trainer_steps);
    summary_set_real(object, "waiting_for_weights",
                     run->allreduce ? 0
                                    : facts.seconds.waiting / trainer_steps);
    summary_set_real(object, "waiting_for_gradients",
                     run->allreduce ? facts.seconds.waiting / trainer_steps
                                    : 0);
    summary_set_real(object, "update", update);
    return object;
}

/* Counts each byte once: gradients one way and weights back, with the rows of
 * tables (as many back as there, at most), or the messages of a ring. */
static double bytes_per_step(const struct run *run, double wire_bytes) {
    double trainers = run_count_trainers(run);
    if (run->allreduce)
        return 2 * (trainers - 1) * wire_bytes + trainers * run_row_bytes(run);
    if (run->ps_inproc && trainers == 1)
        return 0;
    return 2 * (wire_bytes + run_row_bytes(run)) *
           (run_synchronous(run) ? trainers : 1);
}

static void time_breakdown_set_count(json_t *object, const char *key,
                                     uint32_t count) {
    json_object_set_new(object, key, count ? json_integer(count) : json_null());
}

static void add_batch(json_t *object, const struct run *run) {
    const struct job *job = run->job;
    bool known =
        run->plan.num_replicas && job && !time_breakdown_is_external(run);
    time_breakdown_set_count(object, "replicas", run->plan.num_replicas);
    time_breakdown_set_count(object, "devices", device_replicas_devices(run));
    time_breakdown_set_count(object, "micro_batch",
                             known ? job->micro_batch : 0);
    time_breakdown_set_count(object, "accumulation",
                             known ? job->accumulation : 0);
}

void time_breakdown_add(json_t *object, const struct run *run) {
    bool planned = run->plan.layout && run->job;
    double bytes = planned ? (double)encoding_bytes(run->job->wire,
                                                    run->plan.layout->elements)
                           : NAN;
    json_object_set_new(
        object, "parameters",
        planned ? json_integer((json_int_t)run->plan.layout->elements)
                : json_null());
    add_batch(object, run);
    summary_set_real(object, "wire_bytes", bytes);
    summary_set_real(object, "bytes_per_step",
                     planned ? bytes_per_step(run, bytes) : NAN);
    json_object_set_new(object, "seconds_per_step",
                        planned && run->end_step > run->plan.schedule.start
                            ? seconds_per_step(run)
                            : json_null());
}

static const double MIN_REPORTED_SHARE = 0.1; /* of the trainers' time */

struct time_share {
    char cause[128];
    double seconds;
    char key[160]; /* the key to change; "": none helps */
};

/* One trainer and its ps are in this process. */
static bool is_single_process(const struct run *run) {
    return run->ps_inproc && !run->allreduce && run->roster.num_ranks == 1;
}

/* A larger batch has fewer rounds to wait for. With staleness a trainer does
 * not wait for others, but each push is an update of its own. */
static struct time_share weights_wait(const struct run *run) {
    struct time_share share = {0};
    snprintf(share.cause, sizeof share.cause, "%s",
             run->allreduce ? "waiting for other trainers (all-reduce)"
             : is_single_process(run)
                 ? "waiting for weights (the ps of this process)"
                 : "waiting for weights (wire, ps and other "
                   "trainers)");
    bool staleness =
        run_synchronous(run) && !run->allreduce && run->roster.num_ranks > 1;
    snprintf(share.key, sizeof share.key, "%s (larger)%s", run->job->batch_key,
             staleness ? ", or strategy.staleness with a smaller rate" : "");
    return share;
}

/* No key helps against a silent peer. */
static struct time_share silence_wait(const struct run *run, double waited) {
    const struct run_wait_loss *wait_loss = &run->stall.lost;
    struct time_share share = {.seconds = fmin(wait_loss->seconds, waited)};
    snprintf(share.cause, sizeof share.cause,
             "waiting for %s, which was silent for %.1f s", wait_loss->peer,
             wait_loss->longest);
    return share;
}

/* Finds the largest cause of lost time, and the one key to change, if any. */
static struct time_share largest_loss(const struct run *run,
                                      const struct run_facts *facts) {
    struct time_share input = {.cause = "input",
                               .seconds = facts->seconds.input,
                               .key = "data.num_workers (larger)"};
    struct time_share weights = weights_wait(run);
    weights.seconds = facts->seconds.waiting;
    struct time_share silent = silence_wait(run, weights.seconds);
    weights.seconds -= silent.seconds;
    if (silent.seconds > weights.seconds && silent.seconds > input.seconds)
        return silent;
    double ps = run->allreduce || is_single_process(run)
                    ? 0
                    : facts->seconds.updates / run_holder_count(run) *
                          (double)run_count_trainers(run);
    if (ps > weights.seconds / 2 && weights.seconds > input.seconds)
        return (struct time_share){.cause = "ps arithmetic",
                                   .seconds = ps,
                                   .key = "more ps in the cluster"};
    return weights.seconds > input.seconds ? weights : input;
}

static void summary_add_table_memory(json_t *object, const struct run *run) {
    struct table_memory memory = table_memory_of(run);
    uint64_t there = table_memory_free(run, true);
    json_object_set_new(
        object, "tables",
        json_pack("{s:I, s:I, s:I, s:I, s:I, s:o}", "rows",
                  (json_int_t)memory.rows, "unbounded",
                  (json_int_t)memory.unbounded, "bytes",
                  (json_int_t)memory.bytes, "dense_bytes",
                  (json_int_t)memory.dense, "replicated_bytes",
                  (json_int_t)memory.replicated, "trainer_free_bytes",
                  there ? json_integer((json_int_t)there) : json_null()));
}

/* KEY: COUNT of each table. */
static void add_counts(json_t *object, const struct run *run, const char *key,
                       enum run_table_count count) {
    const struct layout *layout = run->plan.layout;
    json_t *counts = json_object();
    for (uint32_t t = 0; t < layout->num_tables; t++)
        json_object_set_new(
            counts, layout->tables[t].name,
            json_integer((json_int_t)run_table_count(run, count, t)));
    json_object_set_new(object, key, counts);
}

/* Of tables: rows in all, bytes of a trainer's step, and what `capstan compare`
 * says of all-reduce. */
static void summary_add_rows(json_t *object, const struct run *run) {
    const struct layout *layout = run->plan.layout;
    json_t *tables = json_object();
    for (uint32_t t = 0; layout && t < layout->num_tables; t++)
        json_object_set_new(tables, layout->tables[t].name,
                            json_integer((json_int_t)run_table_rows(run, t)));
    if (json_object_size(tables)) {
        json_object_set(object, "table_rows", tables);
        add_counts(object, run, "table_admitted", RUN_TABLE_ADMITTED);
        add_counts(object, run, "table_expired", RUN_TABLE_EXPIRED);
        summary_set_real(object, "row_bytes_per_step", run_row_bytes(run));
        summary_add_table_memory(object, run);
    }
    json_decref(tables);
}

static void untrained_add(json_t *object, const struct run *run) {
    json_t *list = json_array();
    uint64_t samples = 0;
    bool unknown = false;
    for (uint32_t r = 0; r < run->roster.num_ranks; r++) {
        const struct roster_slot *slot = &run->roster.slots[r];
        struct run_untrained untrained =
            run_untrained_by(run, r, run->end_step);
        if (!untrained.steps)
            continue;
        samples += untrained.samples;
        unknown |= time_breakdown_is_external(run);
        json_array_append_new(
            list, json_pack("{s:s, s:i, s:i, s:I, s:I, s:o}", "role",
                            cluster_role_name(slot->role), "index",
                            (int)slot->index, "rank", (int)r, "since_step",
                            (json_int_t)run->trainers[r].absence.first, "steps",
                            (json_int_t)untrained.steps, "samples",
                            time_breakdown_is_external(run)
                                ? json_null()
                                : json_integer((json_int_t)untrained.samples)));
    }
    json_object_set_new(object, "untrained_samples",
                        unknown ? json_null()
                                : json_integer((json_int_t)samples));
    json_object_set_new(object, "untrained", list);
}

static void untrained_log(const struct run *run) {
    uint64_t start = run->plan.schedule.start, steps = run->end_step - start;
    for (uint32_t r = 0; r < run->roster.num_ranks; r++) {
        struct run_untrained untrained =
            run_untrained_by(run, r, run->end_step);
        char name[64], samples[96] = "";
        if (!untrained.steps)
            continue;
        roster_name(&run->roster.slots[r], name, sizeof name);
        uint64_t all =
            run_samples(run, run->end_step) - run_samples(run, start);
        if (!time_breakdown_is_external(run))
            snprintf(samples, sizeof samples,
                     ", %" PRIu64 " samples, %.0f %% of what the run would "
                     "have trained",
                     untrained.samples,
                     100 * (double)untrained.samples / (double)all);
        log_warning(run->log, "untrained_summarized",
                    "not all of the data was trained: %s was not there for "
                    "%" PRIu64 " of %" PRIu64 " steps, first after step "
                    "%" PRIu64 ", and its share of them%s is missing",
                    name, untrained.steps, steps,
                    run->trainers[r].absence.first, samples);
    }
}

/* With backup workers: of each trainer how many of its contributions were late,
 * and how many rounds it has left out for that. */
static void late_add(json_t *object, const struct run *run) {
    json_t *list = json_array();
    for (uint32_t r = 0; r < run->roster.num_ranks; r++) {
        const struct roster_slot *slot = &run->roster.slots[r];
        struct run_counts counts = run_counts(run, r);
        json_array_append_new(list,
                              json_pack("{s:s, s:i, s:i, s:I, s:I}", "role",
                                        cluster_role_name(slot->role), "index",
                                        (int)slot->index, "rank", (int)r,
                                        "late", (json_int_t)counts.late,
                                        "missed", (json_int_t)counts.missed));
    }
    json_object_set_new(object, "late", list);
}

static void late_log(const struct run *run) {
    for (uint32_t r = 0; r < run->roster.num_ranks; r++) {
        struct run_counts counts = run_counts(run, r);
        char name[64];
        roster_name(&run->roster.slots[r], name, sizeof name);
        if (counts.late || counts.missed)
            log_info(run->log, "late_summarized",
                     "%s: %" PRIu64 " of its contributions came after their "
                     "rounds had closed, and it left out %" PRIu64
                     " of %" PRIu64 " rounds (strategy.backup_workers)",
                     name, counts.late, counts.missed,
                     run->end_step - run->plan.schedule.start);
    }
}

static void log_rows(const struct run *run, const struct run_facts *facts) {
    const struct layout *layout = run->plan.layout;
    uint64_t rows = facts->rows;
    char bytes[16];
    byte_size_text((uint64_t)facts->row_bytes, bytes, sizeof bytes);
    if (rows)
        log_info(run->log, "rows_summarized",
                 "%" PRIu64
                 " row%s in %u table%s; a trainer sends %s of rows a "
                 "step",
                 rows, log_plural(rows), layout->num_tables,
                 log_plural(layout->num_tables), bytes);
    for (uint32_t t = 0; rows && !run->code && t < layout->num_tables; t++)
        if (!run_table_rows(run, t) &&
            !run_table_count(run, RUN_TABLE_EXPIRED, t))
            log_warning(
                run->log, "table_without_rows",
                "table \"%s\" has no rows: nothing that was read has an "
                "id for it",
                layout->tables[t].name);
}

/* What the newest evaluation has found; scores are those of a click log. */
static void summary_add_evaluation(json_t *object, const struct run *run) {
    const struct run_evaluations *found = &run->evaluations;
    summary_set_real(object, "test_accuracy", found->accuracy);
    summary_set_real(object, "test_loss", found->test_loss);
    if (!found->has_scores)
        return;
    summary_set_real(object, "test_auc", found->auc);
    if (found->auc_error > 0)
        summary_set_real(object, "test_auc_error", found->auc_error);
    summary_set_real(object, "test_logloss", found->test_loss);
    summary_set_real(object, "test_calibration", found->calibration);
}

/* LINEAGE is NULL for a run that does not go back. */
static void lineage_add(json_t *object, const struct rewind_lineage *lineage) {
    json_int_t count = lineage ? (json_int_t)lineage->count : 0;
    json_int_t again = lineage ? (json_int_t)lineage->again : 0;
    json_int_t adoptions = lineage ? (json_int_t)lineage->adoptions : 0;
    json_object_set_new(object, "rewinds", json_integer(count));
    json_object_set_new(object, "steps_again", json_integer(again));
    json_object_set_new(object, "adoptions", json_integer(adoptions));
}

json_t *summary_object(const struct run *run) {
    uint64_t step = run->end_step;
    struct run_facts facts = metrics_facts(run, step);
    json_t *object = json_object();
    json_object_set_new(object, "exit",
                        json_integer(failure_code_status(run->code)));
    json_object_set_new(object, "steps", json_integer((json_int_t)step));
    json_object_set_new(object, "rounds",
                        run_synchronous(run) ? json_integer((json_int_t)step)
                                             : json_null());
    summary_set_real(object, "steps_per_second", facts.steps_per_second);
    summary_set_real(object, "examples_per_second", facts.examples_per_second);
    summary_set_real(object, "train_loss", facts.loss);
    summary_add_evaluation(object, run);
    summary_add_rows(object, run);
    if (run->job->data.skip_bad_lines) {
        json_object_set_new(object, "bad_lines",
                            json_integer((json_int_t)run_bad_lines(run)));
        json_object_set_new(
            object, "test_bad_lines",
            json_integer((json_int_t)run->evaluations.bad_lines));
    }
    untrained_add(object, run);
    if (run->job->backup_workers)
        late_add(object, run);
    if (run->num_beyond)
        json_object_set_new(object, "joined_workers",
                            json_integer((json_int_t)run_count_joined(run)));
    lineage_add(object, run->lineage);
    if (facts.checks_overflow) {
        summary_set_real(object, "loss_scale", facts.loss_scale);
        json_object_set_new(object, "skipped_steps",
                            json_integer((json_int_t)facts.skipped_steps));
    }
    summary_set_real(object, "link_gbits",
                     run->bandwidth.gbits > 0 ? run->bandwidth.gbits : NAN);
    if (run->series)
        summary_set_real(object, "ps_link_gbits",
                         bandwidth_probe_aggregate_gbits(run));
    summary_set_real(object, "bound_steps_per_second", facts.network_limit);
    summary_set_real(object, "share_of_bound",
                     facts.steps_per_second / facts.network_limit);
    time_breakdown_add(object, run);
    int64_t opened = rewind_is_second(run) ? run->lineage->opened : run->opened;
    /* The watchdog moves `opened` forward by each suspension. */
    summary_set_real(
        object, "wall_seconds",
        time_to_seconds(time_now() - opened + run->suspension.total));
    const char *folder = rewind_folder(run);
    json_object_set_new(object, "checkpoint",
                        *folder ? json_string(folder) : json_null());
    return object;
}

static void summary_write(const struct run *run, FILE *out) {
    json_t *object = summary_object(run);
    char *text = json_dumps(object, JSON_COMPACT | JSON_REAL_PRECISION(9));
    if (text)
        fprintf(out, "%s\n", text);
    free(text);
    json_decref(object);
}

void summary_save(const struct run *run, const char *path) {
    FILE *file = fopen(path, "we");
    if (file)
        summary_write(run, file);
    if (!file || fclose(file))
        log_warning(run->log, "summary_unwritten",
                    "the summary is not written to %s: %s", path,
                    strerror(errno));
}

/* Names a key only if the loss of time justifies a change and the key helps. In
 * a failed run trainers waited for what failed, so it names none. */
static void log_lost_time(const struct run *run,
                          const struct run_facts *facts) {
    double all = facts->seconds.training;
    if (run->code && !run->shutdown.interrupted)
        return;
    struct time_share share = largest_loss(run, facts);
    double part = all > 0 ? share.seconds / all : 0;
    if (part >= MIN_REPORTED_SHARE)
        log_info(run->log, "lost_time_attributed",
                 "largest cause of lost time: %s, %.0f %%%s%s", share.cause,
                 100 * part, share.key[0] ? "; key: " : "", share.key);
    else if (all > 0)
        log_info(run->log, "lost_time_attributed",
                 "no cause of lost time stands out: %s, %.0f %%", share.cause,
                 100 * part);
}

static void log_skipped(const struct run *run, const struct run_facts *facts) {
    char scale[48] = "";
    if (facts->loss_scale > 0)
        snprintf(scale, sizeof scale, "; loss scale %g", facts->loss_scale);
    log_info(run->log, "skipped_steps_counted",
             "steps skipped because of overflowed gradients: %" PRIu64 "%s",
             facts->skipped_steps, scale);
}

/* The loss of the first step, over the trainers that were there from the start:
 * before anything was learnt. NAN: unknown. */
static double first_loss(const struct run *run) {
    double sum = 0;
    uint32_t count = 0;
    for (uint32_t r = 0; r < run->roster.num_ranks; r++) {
        const struct run_trainer *trainer = &run->trainers[r];
        if (!(trainer->heartbeat.first_loss > 0) || trainer->past.samples)
            continue;
        sum += trainer->heartbeat.first_loss;
        count++;
    }
    return count && !run->plan.has_restored ? sum / count : NAN;
}

/* Has the loss risen for good? Looks at its mean over each tenth of the steps:
 * it rose above the loss of the first step and did not come down again by a
 * tenth of that, or it ends half as high again as it has been at its lowest.
 * TREND describes it. */
static bool has_risen(const struct run *run, char *trend, size_t size) {
    double first = first_loss(run), least = INFINITY, most = 0, last = NAN;
    for (int i = 0; i < RUN_DECILES; i++) {
        double mean =
            metrics_mean_loss((struct run_point){0}, run->metrics.deciles[i]);
        if (isnan(mean))
            continue;
        least = fmin(least, mean);
        most = fmax(most, mean);
        last = mean;
    }
    bool stays = most > 1.05 * first && last > 0.9 * first;
    snprintf(trend, size,
             "train loss %.4g %s, %.4g at its highest, %.4g at the end",
             stays ? first : least, stays ? "at first" : "at its lowest", most,
             last);
    return stays || last > 1.5 * least;
}

/* "optimizer.params.lr 0.05, which is 0.1 over 2" */
static void describe_lower_rate(const struct run *run, char *text,
                                size_t size) {
    const char *key;
    double rate = schedule_highest_rate(&run->job->schedule, &key);
    uint32_t trainers = run_count_trainers(run);
    bool grouped = false;
    for (int g = 0; g < JOB_GROUPS; g++)
        grouped = grouped || run->job->groups[g].given;
    if (grouped && !strcmp(key, SCHEDULE_LR))
        snprintf(text, size, "the rates of `optimizers` over %u", trainers);
    else
        snprintf(text, size, "%s %g, which is %g over %u", key, rate / trainers,
                 rate, trainers);
}

/* A learning rate that fits a synchronous run may be too large for pushes that
 * are not averaged; with one trainer there is no difference. */
static void log_diverged(const struct run *run) {
    uint32_t trainers = run_count_trainers(run);
    char trend[160], lower[128];
    bool risen = has_risen(run, trend, sizeof trend);
    if (run_synchronous(run) || trainers < 2 ||
        !(risen || run->metrics.diverged))
        return;
    describe_lower_rate(run, lower, sizeof lower);
    log_warning(
        run->log, "run_diverged",
        "the run has diverged: %s. With staleness each push of the %u "
        "trainers is an update of its own, while a synchronous run averages "
        "them: try %s",
        run->metrics.diverged ? "the loss is NaN" : trend, trainers, lower);
}

static void log_bad_lines(const struct run *run) {
    uint64_t train = run_bad_lines(run), test = run->evaluations.bad_lines;
    if (train || test)
        log_warning(run->log, "bad_lines",
                    "bad lines left out: %" PRIu64
                    " of the training data%s, %" PRIu64 " of the test set",
                    train, run_total(run).samples ? "" : ", which had no other",
                    test);
}

void summary_print(const struct run *run, bool json) {
    uint64_t step = run->end_step;
    struct run_facts facts = metrics_facts(run, step);
    double seconds = facts.total.seconds;
    char loss[32], figures[96] = ""; /* a caller may not tell its samples */
    progress_loss_text(loss, sizeof loss, facts.loss);
    if (facts.total.samples)
        snprintf(figures, sizeof figures, ", %.0f examples/s; train %s",
                 (double)facts.total.samples / seconds, loss);
    if (run->metrics.began && seconds > 0)
        log_info(run->log, "training_summarized",
                 "%" PRIu64 " step%s in %.1f s: %.1f steps/s%s%s",
                 step - run->plan.schedule.start,
                 log_plural(step - run->plan.schedule.start), seconds,
                 facts.steps_per_second, figures,
                 run->code ? "; not complete" : "");
    if (rewind_is_second(run))
        log_info(run->log, "rewinds_counted",
                 "the run went back %" PRIu32 " time%s: %" PRIu64
                 " step%s computed more than once",
                 run->lineage->count, log_plural(run->lineage->count),
                 run->lineage->again,
                 run->lineage->again == 1 ? " was" : "s were");
    if (run->metrics.began)
        log_diverged(run);
    if (run->metrics.began && facts.checks_overflow)
        log_skipped(run, &facts);
    log_bad_lines(run);
    if (run->metrics.began)
        untrained_log(run);
    late_log(run);
    if (run->metrics.began && seconds > 0 && facts.network_limit > 0)
        log_info(run->log, "network_use_summarized",
                 "%.0f %% of what the network allows: %.1f steps/s at %.3g "
                 "Gbit/s in each direction per host (%s)",
                 100 * facts.steps_per_second / facts.network_limit,
                 facts.network_limit, run->bandwidth.gbits,
                 run->bandwidth.measured ? "measured"
                 : run->together
                     ? "--link-gbits, as if each had a host of its own"
                     : "--link-gbits");
    if (run->metrics.began) {
        log_rows(run, &facts);
        log_lost_time(run, &facts);
    }
    if (*rewind_folder(run))
        log_info(run->log, "final_checkpoint", "checkpoint: %s",
                 rewind_folder(run));
    if (json) {
        summary_write(run, stdout);
        fflush(stdout);
    }
}
