/* SPDX-License-Identifier: Apache-2.0 */
#include "chief/report/metrics.h"

#include "chief/plan/network_bound.h"
#include "chief/plan/table_memory.h"
#include "chief/report/stall.h"
#include "chief/run.h"
#include "chief/snapshot/snapshot_coordinator.h"
#include "core/base/time.h"
#include "core/tensor/schedule.h"
#include "proto/plan/encoding.h"

#include <math.h>
#include <string.h>

static const int64_t SHOW_INTERVAL = TIME_S;

static void update_reached(struct run *run) {
    uint64_t step = run_step(run);
    if (step > run->metrics.reached)
        run->metrics.reached = step;
}

void metrics_receive_heartbeat(struct run *run, const struct roster_slot *slot,
                               const Capstan__Heartbeat *heartbeat,
                               int64_t now) {
    struct run_trainer *trainer = &run->trainers[slot->rank];
    if (!trainer->in_view)
        return;
    if (heartbeat->clock > trainer->heartbeat.clock) {
        trainer->last_progress = now;
        run->metrics.began = true;
    }
    uint64_t clock = trainer->heartbeat.clock;
    trainer->heard = true;
    trainer->heartbeat = *heartbeat;
    trainer->heartbeat.n_memory = trainer->heartbeat.n_table_rows = 0;
    trainer->heartbeat.n_table_admitted = trainer->heartbeat.n_lost = 0;
    trainer->heartbeat.n_table_expired = 0;
    if (!heartbeat->clock)
        trainer->heartbeat.clock = clock; /* it has not started */
    update_reached(run);
}

void metrics_update_step(struct run *run, uint64_t step) {
    if (run_synchronous(run) || step <= run->metrics.reported ||
        step <= run->plan.schedule.start)
        return;
    run->metrics.reported = step;
    run->metrics.began = true;
    update_reached(run);
}

/* The total when each trainer was at the step that it evaluated; in a
 * synchronous job it is the same in every run. */
static struct run_point total_at_evaluation(const struct run *run) {
    struct run_point point = {0};
    for (uint32_t r = 0; r < run->roster.num_ranks; r++) {
        const struct run_trainer *trainer = &run->trainers[r];
        point.loss += trainer->at_evaluation.loss;
        point.samples += trainer->at_evaluation.samples;
        if (trainer->at_evaluation.seconds > point.seconds)
            point.seconds = trainer->at_evaluation.seconds;
    }
    return point;
}

double metrics_mean_loss(struct run_point from, struct run_point to) {
    return to.samples > from.samples
               ? (to.loss - from.loss) / (double)(to.samples - from.samples)
               : NAN;
}

static double metrics_rate(struct run_point from, struct run_point to) {
    double seconds = to.seconds - from.seconds;
    return seconds > 0 ? (double)(to.samples - from.samples) / seconds : NAN;
}

static double network_limit(const struct run *run) {
    if (!run->plan.layout || !(run->bandwidth.gbits > 0))
        return NAN;
    bool synchronous = run_synchronous(run);
    struct network_bound_case given = {
        .num_trainers = run_count_trainers(run),
        .num_ps = (uint32_t)run_holder_count(run),
        .bytes =
            (double)encoding_bytes(run->job->wire, run->plan.layout->elements),
        .row_bytes = run_row_bytes(run),
        .link_gbits = run->bandwidth.gbits,
        .synchronous = synchronous,
        .allreduce = run->allreduce,
        .two_phase =
            synchronous && !run->allreduce && run->job->gradient_clipping > 0,
    };
    return network_bound_steps_per_second(&given);
}

static void add_trainer_facts(struct run_facts *facts,
                              const Capstan__Heartbeat *heartbeat) {
    facts->seconds.input += heartbeat->input_s;
    facts->seconds.compute += heartbeat->compute_s;
    facts->seconds.waiting += heartbeat->wire_s;
    facts->seconds.rule += heartbeat->update_s;
    facts->seconds.training += heartbeat->training_s;
    if (heartbeat->skipped > facts->skipped_steps)
        facts->skipped_steps = heartbeat->skipped;
}

static double loss_scale(const struct run *run) {
    double scale = NAN;
    uint64_t max_step = 0;
    for (uint32_t r = 0; r < run->roster.num_ranks; r++) {
        const Capstan__Heartbeat *heartbeat = &run->trainers[r].heartbeat;
        if (heartbeat->loss_scale > 0 && heartbeat->clock >= max_step) {
            max_step = heartbeat->clock;
            scale = heartbeat->loss_scale;
        }
    }
    return scale;
}

struct run_facts metrics_facts(const struct run *run, uint64_t step) {
    const struct layout *layout = run->plan.layout;
    const struct job *job = run->job;
    struct run_point total = run_total(run);
    double steps = (double)(step - run->plan.schedule.start);
    struct run_facts facts = {
        .total = total,
        .loss = isfinite(run->metrics.epoch_loss)
                    ? run->metrics.epoch_loss
                    : metrics_mean_loss((struct run_point){0}, total),
        .steps_per_second = total.seconds > 0 ? steps / total.seconds : NAN,
        .examples_per_second = metrics_rate((struct run_point){0}, total),
        .checks_overflow =
            job && (job->fp16.enabled ||
                    (job->bf16.enabled && job->bf16.check_overflow)),
        .loss_scale = loss_scale(run),
        .row_bytes = run_row_bytes(run),
        .network_limit = network_limit(run),
    };
    for (uint32_t r = 0; r < run->roster.num_ranks; r++)
        add_trainer_facts(&facts, &run->trainers[r].heartbeat);
    for (uint32_t i = 0; i < run->roster.num_ps; i++)
        facts.seconds.updates += run->ps[i].update_s;
    for (uint32_t t = 0; layout && t < layout->num_tables; t++)
        facts.rows += run_table_rows(run, t);
    return facts;
}

/* Extrapolates the mean time of a step since the start. */
static double seconds_left(const struct run *run, double seconds,
                           uint64_t step) {
    uint64_t steps_done = step - run->plan.schedule.start;
    return steps_done && !run_is_endless(run) && seconds > 0
               ? seconds / (double)steps_done *
                     (double)(run->plan.schedule.total - step)
               : NAN;
}

/* 0: the run is not counted in epochs. */
static uint64_t epochs_of(const struct run *run) {
    return run->job->has_steps || run_is_endless(run) ? 0 : run->job->epochs;
}

/* The epoch that STEP belongs to, from 1. */
static uint64_t epoch_of(const struct run *run, uint64_t step) {
    uint64_t before = step > run->plan.schedule.start ? step - 1 : step;
    uint64_t epochs = epochs_of(run);
    uint64_t epoch = run_schedule_epochs(&run->plan.schedule, before) + 1;
    return epochs && epoch > epochs ? epochs : epoch;
}

/* Steps after an epoch are not shown before the epoch's own result. */
static uint64_t last_shown_step(const struct run *run) {
    bool evaluates = run_tests_own_weights(run) || run->plan.test_samples;
    bool comes = run->phase == RUN_TRAINING
                     ? evaluates
                     : run_evaluations_pending(run) ||
                           snapshot_coordinator_is_evaluating(run);
    if (!comes)
        return UINT64_MAX;
    return run_schedule_total(&run->plan.schedule,
                              run->metrics.epochs_ended + 1);
}

/* RATE, or NAN: a caller need not report samples. */
static double known_rate(const struct run *run, double rate) {
    return run->job->model.type == JOB_EXTERNAL && rate == 0 ? NAN : rate;
}

static struct progress_numbers progress_at(const struct run *run,
                                           const struct run_facts *facts,
                                           uint64_t step) {
    double limit = facts->network_limit;
    double samples = (double)run->job->micro_batch * run->job->accumulation *
                     run_step_replicas(run);
    double rate = known_rate(run, run->metrics.shown_rate);
    return (struct progress_numbers){
        .step = step,
        .total_steps = run_is_endless(run) ? 0 : run->plan.schedule.total,
        .epoch = epoch_of(run, step),
        .epochs = epochs_of(run),
        .loss = run->metrics.shown_loss,
        .accuracy = NAN,
        .auc = NAN,
        .test_loss = NAN,
        .examples_per_second = rate,
        .seconds_left = seconds_left(run, facts->total.seconds, step),
        .rows = facts->rows,
        .row_bytes = facts->row_bytes,
        .network_share =
            limit > 0 && samples > 0 && rate > 0 ? rate / samples / limit : 0,
    };
}

static uint64_t min_step(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

static double current_rate(const struct run *run, uint64_t skipped,
                           uint64_t step) {
    struct schedule schedule = run->job->schedule;
    if (run->job->scale_lr)
        schedule_scale(&schedule, run->plan.num_replicas);
    /* A skipped step does not advance the schedule of the learning rate. */
    step -= min_step(step, skipped);
    return schedule_rate(&schedule, step ? step : 1);
}

/* Fractions of the trainers' time since the start. */
static void add_shares(struct metric_point *point,
                       const struct run_facts *facts) {
    double all = facts->seconds.training;
    if (all <= 0)
        return;
    point->values[METRIC_INPUT_SHARE] = facts->seconds.input / all;
    point->values[METRIC_COMPUTE_SHARE] = facts->seconds.compute / all;
    point->values[METRIC_WAITING_SHARE] = facts->seconds.waiting / all;
}

/* What trainers that are gone have not trained so far. */
static void add_absences(const struct run *run, struct metric_point *point) {
    struct run_untrained all = {0};
    for (uint32_t r = 0; r < run->roster.num_ranks; r++) {
        struct run_untrained one = run_untrained_by(run, r, run_step(run));
        all.steps += one.steps;
        all.samples += one.samples;
    }
    point->values[METRIC_ROUNDS_WITHOUT_TRAINER] = (double)all.steps;
    if (run->job->model.type != JOB_EXTERNAL)
        point->values[METRIC_UNTRAINED_SAMPLES] = (double)all.samples;
}

/* Of the trainers in the loop that tell of their GPUs; NAN: none does. */
static void add_gpu_use(const struct run *run, struct metric_point *point) {
    double sum = 0, least = NAN;
    uint32_t count = 0;
    for (uint32_t r = 0; r < run->roster.num_ranks; r++) {
        const Capstan__Heartbeat *heartbeat = &run->trainers[r].heartbeat;
        if (!heartbeat->gpus || !run_is_live(run, r))
            continue;
        sum += heartbeat->gpu_utilization;
        least = fmin(least, heartbeat->gpu_utilization);
        count++;
    }
    point->values[METRIC_GPU_UTILIZATION] = count ? sum / count : NAN;
    point->values[METRIC_GPU_UTILIZATION_LEAST] = least;
}

/* What of a point is the same whenever it is asked; loss and rates are those of
 * the steps since another one. */
static void add_facts(const struct run *run, const struct run_facts *facts,
                      struct metric_point *point) {
    double *values = point->values;
    values[METRIC_LEARNING_RATE] =
        current_rate(run, facts->skipped_steps, point->step);
    values[METRIC_LOSS_SCALE] = facts->loss_scale;
    if (facts->checks_overflow)
        values[METRIC_SKIPPED_STEPS] = (double)facts->skipped_steps;
    add_shares(point, facts);
    values[METRIC_EXAMPLES] = (double)facts->total.samples;
    values[METRIC_EPOCH] = (double)epoch_of(run, point->step);
    values[METRIC_BOUND] = facts->network_limit;
    values[METRIC_TRAINERS] = run_count_live(run);
    add_absences(run, point);
    add_gpu_use(run, point);
    if (run->job->checkpoint.dir)
        values[METRIC_CHECKPOINTS] = (double)run->checkpoints.written;
    if (run->checkpoints.written)
        values[METRIC_CHECKPOINT_DURATION] = run->checkpoints.saved_seconds;
}

/* The rates of POINT, from FROM to TO. */
static void add_rates(const struct run *run, struct run_point from,
                      struct run_point to, struct metric_point *point) {
    double seconds = to.seconds - from.seconds, *values = point->values;
    values[METRIC_EXAMPLES_PER_SECOND] =
        known_rate(run, metrics_rate(from, to));
    if (seconds > 0)
        values[METRIC_STEPS_PER_SECOND] =
            (double)(to.step - from.step) / seconds;
    values[METRIC_NETWORK_SHARE] =
        values[METRIC_STEPS_PER_SECOND] / values[METRIC_BOUND];
}

static uint64_t steps_between_points(const struct run *run) {
    return run_schedule_point_steps(&run->plan.schedule,
                                    run->job->steps_per_print);
}

static uint64_t point_step(const struct run *run, uint64_t number) {
    return min_step(number * steps_between_points(run),
                    run->plan.schedule.total);
}

/* The first point at or after STEP. */
static uint64_t point_number(const struct run *run, uint64_t step) {
    return (step + steps_between_points(run) - 1) / steps_between_points(run);
}

static struct run_point *point_sums(const struct run *run, uint64_t number) {
    return &run->metrics.points.sums[number % RUN_POINTS];
}

void metrics_begin(struct run *run, uint64_t start) {
    struct run_points *points = &run->metrics.points;
    points->start = start;
    points->next = start / steps_between_points(run) + 1;
    points->last.step = start;
    points->last.seconds = run_total(run).seconds; /* 0 unless it is adopted */
    points->from = points->to = points->last;
    point_outlets_begin(&run->metrics.outlets, run);
}

/* The sums of point NUMBER; NULL: none are reported. With staleness two pushes
 * may report the same step and none the step before: then the next reported
 * sums count for both points. */
static const struct run_point *reported_sums(const struct run *run,
                                             uint64_t number) {
    uint64_t end = point_number(run, run->metrics.points.max_step);
    for (; number <= end; number++)
        if (point_sums(run, number)->seconds > 0)
            return point_sums(run, number);
    return NULL;
}

/* The rates over the last second or more. */
static void add_point_rates(struct run *run, const struct run_point *sums,
                            struct metric_point *point) {
    struct run_points *points = &run->metrics.points;
    points->last.step = point->step;
    points->last.samples += sums->samples;
    points->last.seconds = fmax(points->last.seconds, sums->seconds);
    if (points->last.seconds - points->to.seconds >= 1) {
        points->from = points->to;
        points->to = points->last;
    }
    add_rates(run, points->from, points->last, point);
}

static void add_decile(struct run *run, uint64_t step,
                       const struct run_point *sums) {
    uint64_t start = run->plan.schedule.start,
             steps = run->plan.schedule.total - start;
    double share = (double)(step - start - 1) / (double)steps;
    struct run_point *decile =
        &run->metrics.deciles[(int)(RUN_DECILES * share)];
    decile->loss += sums->loss;
    decile->samples += sums->samples;
}

static void write_table_rows(struct run *run, uint64_t step) {
    static const char *const tags[RUN_TABLE_COUNTS] = {
        [RUN_TABLE_ROWS] = "rows",
        [RUN_TABLE_ADMITTED] = "rows_admitted",
        [RUN_TABLE_EXPIRED] = "rows_expired"};
    struct point_outlets *outlets = &run->metrics.outlets;
    const struct layout *layout = run->plan.layout;
    char tag[LAYOUT_MAX_NAME + 16];
    for (uint32_t t = 0; layout && t < layout->num_tables; t++) {
        const struct table *table = &layout->tables[t];
        bool has[RUN_TABLE_COUNTS] = {true, table->admit, table->expire};
        for (int c = 0; c < RUN_TABLE_COUNTS; c++) {
            snprintf(tag, sizeof tag, "%s/%s", tags[c], table->name);
            if (has[c])
                point_outlets_write_tagged(outlets, tag, step,
                                           (double)run_table_count(run, c, t));
        }
        snprintf(tag, sizeof tag, "rows_bytes/%s", table->name);
        point_outlets_write_tagged(
            outlets, tag, step,
            (double)(run_table_rows(run, t) *
                     table_memory_row_bytes(run, table)));
    }
}

static bool has_tables(const struct run *run) {
    return run->plan.layout && run->plan.layout->num_tables;
}

static void add_row_figures(const struct run *run,
                            const struct run_facts *facts,
                            struct metric_point *point) {
    if (!has_tables(run))
        return;
    point->values[METRIC_ROWS] = (double)facts->rows;
    point->values[METRIC_ROW_BYTES] = facts->row_bytes;
}

/* Of steps whose losses were all none (on_nan: skip) it is told as the greatest
 * number, lest the one before them stays. */
static double latest_loss(const struct run *run,
                          const struct metric_point *point) {
    double loss = point->values[METRIC_TRAIN_LOSS];
    return isnan(loss) && run->job->model.type != JOB_EXTERNAL ? INFINITY
                                                               : loss;
}

static void take_point(struct run *run, const struct metric_point *point) {
    struct metric_point *latest = &run->metrics.latest;
    if (!latest->unix_ms)
        *latest = *point;
    for (int m = 0; m < METRIC_COUNT; m++)
        if (!isnan(point->values[m]))
            latest->values[m] = point->values[m];
    if (!isnan(point->values[METRIC_EXAMPLES])) /* a point of training */
        latest->values[METRIC_TRAIN_LOSS] = latest_loss(run, point);
    point_outlets_write(&run->metrics.outlets, point);
}

/* The last step's numbers of tables come when the ps leave. */
static void write_last_rows(struct run *run) {
    uint64_t step = run->plan.schedule.total;
    struct metric_point point = metric_point_start(step);
    struct run_facts facts = metrics_facts(run, step);
    write_table_rows(run, step);
    add_row_figures(run, &facts, &point);
    if (has_tables(run))
        take_point(run, &point);
}

static void write_point(struct run *run) {
    uint64_t step = point_step(run, run->metrics.points.next);
    const struct run_point *reported =
        reported_sums(run, run->metrics.points.next);
    struct run_point *sums = point_sums(run, run->metrics.points.next++);
    if (!reported)
        return;
    struct run_facts facts = metrics_facts(run, step);
    struct metric_point point = metric_point_start(step);
    struct progress_numbers shown = progress_at(run, &facts, step);
    add_facts(run, &facts, &point);
    add_point_rates(run, sums, &point);
    point.values[METRIC_TRAIN_LOSS] =
        metrics_mean_loss((struct run_point){0}, *reported);
    shown.loss = point.values[METRIC_TRAIN_LOSS];
    shown.examples_per_second = point.values[METRIC_EXAMPLES_PER_SECOND];
    add_decile(run, step, sums);
    if (step != run->plan.schedule.total) {
        add_row_figures(run, &facts, &point);
        write_table_rows(run, step);
    }
    take_point(run, &point);
    progress_point(&run->metrics.progress, &shown);
    *sums = (struct run_point){0};
}

/* Makes room for point NUMBER: trainers that are too far behind the one that
 * reports it are not awaited. */
static void evict_points(struct run *run, uint64_t number) {
    struct run_points *open = &run->metrics.points;
    if (number < open->next + RUN_POINTS)
        return;
    while (number >= open->next + RUN_POINTS &&
           point_step(run, open->next) <= open->max_step)
        write_point(run);
    if (number >= open->next + RUN_POINTS)
        open->next = number;
    point_outlets_flush(&run->metrics.outlets);
}

void metrics_receive_points(struct run *run, const struct roster_slot *slot,
                            const Capstan__Points *points) {
    struct run_trainer *trainer = &run->trainers[slot->rank];
    struct run_points *open = &run->metrics.points;
    for (size_t i = 0; i < points->n_step && open->next; i++) {
        uint64_t step = points->step[i], number = point_number(run, step);
        if (step <= open->start || step > run->plan.schedule.total)
            continue;
        evict_points(run, number);
        /* A late report counts to the first point that is not written. */
        struct run_point *sums =
            point_sums(run, number > open->next ? number : open->next);
        sums->loss += points->loss_sum[i];
        sums->samples += points->samples[i];
        sums->seconds =
            fmax(sums->seconds, trainer->began + points->training_s[i]);
        if (step > open->max_step)
            open->max_step = step;
        trainer->point = step;
        metrics_update_step(run, step);
    }
}

/* May a live trainer that rounds await still report STEP? What it reports after
 * the point is written counts to the next point. */
static bool is_point_pending(const struct run *run, uint64_t step) {
    uint32_t pending = 0;
    for (uint32_t r = 0; r < run->roster.num_ranks; r++) {
        const struct run_trainer *trainer = &run->trainers[r];
        bool contributes = !run_synchronous(run) || trainer->from <= step;
        if (run->roster.slots[r].state == ROSTER_HELD && trainer->from &&
            !trainer->finished && trainer->point < step && contributes)
            pending++;
    }
    return pending > run_spare(run);
}

/* Writes the complete points up to step LAST. */
static void write_points(struct run *run, uint64_t last) {
    uint64_t first = run->metrics.points.next;
    last = min_step(last, run->metrics.points.max_step);
    while (run->metrics.points.next &&
           point_step(run, run->metrics.points.next) <= last &&
           run->metrics.points.next <=
               point_number(run, run->plan.schedule.total) &&
           !is_point_pending(run, point_step(run, run->metrics.points.next)))
        write_point(run);
    if (run->metrics.points.next > first)
        point_outlets_flush(&run->metrics.outlets);
}

bool metrics_write_until(struct run *run, uint64_t step) {
    if (run->shutdown.interrupted)
        return true;
    write_points(run, step);
    return point_step(run, run->metrics.points.next) > step ||
           run->metrics.points.next >
               point_number(run, run->plan.schedule.total);
}

void metrics_end(struct run *run) {
    uint64_t total = run->plan.schedule.total, count;
    bool trained = total > run->plan.schedule.start; /* else it had them */
    if (!run->shutdown.interrupted)
        write_points(run, UINT64_MAX);
    else if (run->checkpoints.has_saved)
        write_points(run, run->checkpoints.saved);
    count = run->metrics.points.next;
    if (trained && count && point_step(run, count - 1) == total)
        write_last_rows(run);
}

void metrics_show(struct run *run, int64_t now) {
    uint64_t last = last_shown_step(run), step = min_step(run_step(run), last);
    if (!run->shutdown.interrupted && run->phase < RUN_STOPPING)
        write_points(run, last);
    if (run->phase != RUN_TRAINING || !run->metrics.began)
        return;
    struct run_facts facts = metrics_facts(run, step);
    struct run_point point = facts.total;
    bool turn = now - run->metrics.shown_at >= SHOW_INTERVAL;
    if (turn)
        run->metrics.shown_from = run->metrics.shown;
    if (point.samples > run->metrics.shown_from.samples) {
        run->metrics.shown_loss =
            metrics_mean_loss(run->metrics.shown_from, point);
        run->metrics.shown_rate = metrics_rate(run->metrics.shown_from, point);
    }
    if (turn) {
        run->metrics.shown = point;
        run->metrics.shown_at = now;
    }
    struct progress_numbers shown =
        progress_at(run, &facts, min_step(step, run->plan.schedule.total));
    char cause[256];
    stall_update(run, now);
    shown.stalled = stall_seconds(run, now, cause, sizeof cause);
    shown.cause = cause[0] ? cause : NULL;
    progress_update(&run->metrics.progress, &shown, now);
}

static void rate_scores(struct run *run, uint64_t step,
                        const struct evaluation_split_result *result,
                        struct binary_scores *scores,
                        struct metric_point *point) {
    double *error = &run->evaluations.auc_error;
    run->evaluations.auc = NAN;
    run->evaluations.has_scores = scores->count > 0;
    run->evaluations.calibration = NAN;
    if (!scores->count)
        return;
    double auc = binary_scores_auc(scores, run->plan.test_samples, error);
    run->evaluations.auc = isfinite(run->evaluations.test_loss) ? auc : NAN;
    run->evaluations.calibration = result->predicted_sum / result->target_sum;
    if (*error > 0)
        log_info(run->log, "auc_by_bins",
                 "step %llu: test AUC %.6f within %.1e: of more than %llu "
                 "samples scores are in bins",
                 (unsigned long long)step, run->evaluations.auc, *error,
                 (unsigned long long)BINARY_SCORES_MAX_EXACT);
    point->values[METRIC_TEST_AUC] = run->evaluations.auc;
    point->values[METRIC_TEST_LOGLOSS] = run->evaluations.test_loss;
    point->values[METRIC_TEST_CALIBRATION] = run->evaluations.calibration;
}

/* Stores what the evaluation has found, and tells it as a point of its own. */
static void take_evaluation(struct run *run, uint64_t step,
                            const struct evaluation_split_result *result,
                            struct binary_scores *scores) {
    struct metric_point point = metric_point_start(step);
    if (!result->count)
        return;
    run->evaluations.accuracy =
        result->regression ? NAN
                           : (double)result->correct / (double)result->count;
    run->evaluations.test_loss = result->loss_sum / (double)result->count;
    point.values[METRIC_TEST_ACCURACY] = run->evaluations.accuracy;
    point.values[METRIC_TEST_LOSS] = run->evaluations.test_loss;
    rate_scores(run, step, result, scores, &point);
    take_point(run, &point);
    point_outlets_flush(&run->metrics.outlets);
}

void metrics_report_evaluation(struct run *run, uint64_t step,
                               const struct evaluation_split_result *result,
                               struct binary_scores *scores) {
    struct run_point point = total_at_evaluation(run);
    struct run_facts facts = metrics_facts(run, step);
    struct progress_numbers shown = progress_at(run, &facts, step);
    uint64_t epochs = run_schedule_epochs(&run->plan.schedule, step);
    bool epoch_ended = epochs > run->metrics.epochs_ended;
    double loss = metrics_mean_loss(run->metrics.epoch_start, point);
    if (!run->shutdown.interrupted)
        write_points(run, min_step(step, last_shown_step(run)));
    run->evaluations.evaluated = step;
    run->evaluations.bad_lines = result->bad_lines;
    take_evaluation(run, step, result, scores);
    if (epoch_ended && isfinite(loss)) {
        run->metrics.epoch_loss = loss;
        shown.examples_per_second =
            metrics_rate(run->metrics.epoch_start, point);
        run->metrics.epoch_start = point;
    }
    run->metrics.epochs_ended = epochs;
    shown.epoch = epochs ? epochs : 1;
    if (shown.epochs &&
        shown.epoch > shown.epochs) /* the checkpoint has more epochs than the
                                       job asks for */
        shown.epochs = shown.total_steps = 0;
    shown.loss = isfinite(loss) ? loss : run->metrics.shown_loss;
    shown.accuracy = result->count ? run->evaluations.accuracy : NAN;
    shown.auc = result->count ? run->evaluations.auc : NAN;
    shown.has_scores = result->count && run->evaluations.has_scores;
    shown.test_loss = result->count ? run->evaluations.test_loss : NAN;
    shown.share = (double)(result->count + result->bad_lines) /
                  (double)run->plan.test_samples;
    progress_epoch(&run->metrics.progress, &shown);
}

static void add_trainer_samples(const struct run *run,
                                struct health_report *report, int64_t now) {
    for (uint32_t r = 0; r < run->roster.num_ranks; r++) {
        const struct roster_slot *slot = &run->roster.slots[r];
        if (!slot->incarnation)
            continue;
        health_add_sample(report, METRIC_TRAINER_STEP, r,
                          (double)run->trainers[r].heartbeat.clock);
        health_add_sample(report, METRIC_TRAINER_SILENCE, r,
                          time_to_seconds(now - slot->last_seen));
    }
}

/* What only the present has. */
static void add_present(const struct run *run, struct metric_point *point,
                        int64_t now) {
    const struct run_checkpoints *checkpoints = &run->checkpoints;
    int64_t since = checkpoints->complete_at ? checkpoints->complete_at
                                             : run->training_since;
    uint64_t total = run->plan.schedule.total;
    point->values[METRIC_STEPS] = (double)point->step;
    if (total && total != UINT64_MAX)
        point->values[METRIC_TOTAL_STEPS] = (double)total;
    if (!run->job->checkpoint.dir)
        return;
    if (checkpoints->has_saved)
        point->values[METRIC_CHECKPOINT_STEP] = (double)checkpoints->saved;
    if (since)
        point->values[METRIC_CHECKPOINT_AGE] = time_to_seconds(now - since);
}

/* Losses and rates are those of the latest points, so that every outlet has the
 * same at a step. */
void metrics_add_samples(const struct run *run, struct health_report *report,
                         int64_t now) {
    if (!run->plan.schedule.epoch_batches) /* there is no schedule yet */
        return;
    struct metric_point point = metric_point_start(run_step(run));
    struct run_facts facts = metrics_facts(run, point.step);
    if (run->metrics.latest.unix_ms)
        memcpy(point.values, run->metrics.latest.values, sizeof point.values);
    add_facts(run, &facts, &point);
    add_row_figures(run, &facts, &point);
    add_present(run, &point, now);
    for (enum metric m = 0; m < METRIC_COUNT; m++)
        health_add_sample(report, m, HEALTH_NONE, point.values[m]);
    add_trainer_samples(run, report, now);
}
