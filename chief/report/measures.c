/* SPDX-License-Identifier: Apache-2.0 */
#include "chief/report/measures.h"

#include "chief/report/evaluations.h"
#include "chief/report/stall.h"
#include "chief/snapshot/cuts.h"
#include "proto/base/time.h"
#include "proto/tensor/schedule.h"

#include <math.h>

static const int64_t SHOW_EVERY = TIME_S;

static void note_reached(struct run *run) {
    uint64_t step = run_step(run);
    if (step > run->reached)
        run->reached = step;
}

void measures_beat(struct run *run, const struct roster_slot *slot,
                   const Capstan__Beat *beat, int64_t now) {
    struct run_trainer *trainer = &run->trainers[slot->rank];
    if (!trainer->viewed)
        return;
    if (beat->clock > trainer->beat.clock) {
        trainer->moved = now;
        run->began = true;
    }
    uint64_t clock = trainer->beat.clock;
    trainer->beat = *beat;
    trainer->beat.waiting_for = (char *)protobuf_c_empty_string;
    trainer->beat.n_memory = 0;
    if (!beat->clock)
        trainer->beat.clock = clock; /* it has not begun */
    note_reached(run);
}

void measures_step(struct run *run, uint64_t step) {
    if (run_synchronous(run) || step <= run->told || step <= run->rounds.start)
        return;
    run->told = step;
    run->began = true;
    note_reached(run);
}

struct run_point measures_total(const struct run *run) {
    struct run_point point = {0};
    for (uint32_t r = 0; r < run->roster.num_ranks; r++) {
        const struct run_trainer *trainer = &run->trainers[r];
        point.loss += trainer->past_loss + trainer->beat.loss_sum;
        point.samples += trainer->past_samples + trainer->beat.samples;
        if (trainer->beat.training_s > point.seconds)
            point.seconds = trainer->beat.training_s;
    }
    return point;
}

/* The same when each was at the step it evaluated: the same in every run of a
 * synchronous job. */
static struct run_point total_marked(const struct run *run) {
    struct run_point point = {0};
    for (uint32_t r = 0; r < run->roster.num_ranks; r++) {
        const struct run_trainer *trainer = &run->trainers[r];
        point.loss += trainer->mark.loss;
        point.samples += trainer->mark.samples;
        if (trainer->mark.seconds > point.seconds)
            point.seconds = trainer->mark.seconds;
    }
    return point;
}

double measures_mean_loss(struct run_point from, struct run_point to) {
    return to.samples > from.samples
               ? (to.loss - from.loss) / (double)(to.samples - from.samples)
               : NAN;
}

static double rate(struct run_point from, struct run_point to) {
    double seconds = to.seconds - from.seconds;
    return seconds > 0 ? (double)(to.samples - from.samples) / seconds : NAN;
}

static double seconds_left(const struct run *run, uint64_t step) {
    double seconds = measures_total(run).seconds;
    uint64_t taken = step - run->rounds.start;
    return taken && seconds > 0
               ? seconds / (double)taken * (double)(run->rounds.total - step)
               : NAN;
}

/* The epoch that STEP is of, from 1. */
static uint64_t epoch_of(const struct run *run, uint64_t step) {
    uint64_t before = step > run->rounds.start ? step - 1 : step;
    uint64_t epochs = run->job->has_steps ? 0 : run->job->epochs;
    uint64_t epoch = rounds_epochs(&run->rounds, before) + 1;
    return epochs && epoch > epochs ? epochs : epoch;
}

/* What comes after an epoch is shown after the epoch's own result, if that is
 * still to come. */
static uint64_t last_shown(const struct run *run) {
    bool evaluates = run_synchronous(run) || run->test_samples;
    bool comes = run->phase == RUN_TRAINING
                     ? evaluates
                     : evaluations_pending(run) || cuts_evaluating(run);
    if (!comes)
        return UINT64_MAX;
    return rounds_total(&run->rounds, run->epochs_ended + 1);
}

static struct progress_numbers numbers(const struct run *run, uint64_t step) {
    return (struct progress_numbers){
        .step = step,
        .total_steps = run->rounds.total,
        .epoch = epoch_of(run, step),
        .epochs = run->job->has_steps ? 0 : run->job->epochs,
        .loss = run->shown_loss,
        .accuracy = NAN,
        .examples_per_second = run->shown_rate,
        .seconds_left = seconds_left(run, step),
    };
}

static void scalar(struct run *run, const char *tag, uint64_t step,
                   double value) {
    struct failure why;
    if (!run->events || !isfinite(value))
        return;
    if (!events_scalar(run->events, tag, step, value, &why))
        return;
    log_warning(run->log, "no more TensorBoard events: %s", why.text);
    events_close(&run->events);
}

static uint64_t smaller(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

bool measures_checks_overflow(const struct run *run) {
    return run->job &&
           (run->job->fp16.enabled ||
            (run->job->bf16.enabled && run->job->bf16.check_overflow));
}

uint64_t measures_skipped(const struct run *run) {
    uint64_t most = 0;
    for (uint32_t r = 0; r < run->roster.num_ranks; r++)
        if (run->trainers[r].beat.skipped > most)
            most = run->trainers[r].beat.skipped;
    return most;
}

double measures_loss_scale(const struct run *run) {
    double scale = NAN;
    uint64_t furthest = 0;
    for (uint32_t r = 0; r < run->roster.num_ranks; r++) {
        const Capstan__Beat *beat = &run->trainers[r].beat;
        if (beat->loss_scale > 0 && beat->clock >= furthest) {
            furthest = beat->clock;
            scale = beat->loss_scale;
        }
    }
    return scale;
}

static double current_rate(const struct run *run, uint64_t step) {
    struct schedule schedule = run->job->schedule;
    if (run->job->scale_lr)
        schedule_scale(&schedule, run->num_replicas);
    step -= smaller(step, measures_skipped(run));
    return schedule_rate(&schedule, step ? step : 1);
}

/* Shares of the trainers' time since the start. */
static void write_shares(struct run *run, uint64_t step) {
    double input = 0, compute = 0, waiting = 0, all = 0;
    for (uint32_t r = 0; r < run->roster.num_ranks; r++) {
        const Capstan__Beat *beat = &run->trainers[r].beat;
        input += beat->input_s;
        compute += beat->compute_s;
        waiting += beat->wire_s;
        all += beat->training_s;
    }
    if (all <= 0)
        return;
    scalar(run, "time/input", step, input / all);
    scalar(run, "time/compute", step, compute / all);
    scalar(run, "time/waiting_for_weights", step, waiting / all);
}

static uint64_t point_step(const struct run *run, uint64_t number) {
    return smaller(number * run->job->steps_per_print, run->rounds.total);
}

/* Of the point at STEP, or after it. */
static uint64_t point_number(const struct run *run, uint64_t step) {
    return (step + run->job->steps_per_print - 1) / run->job->steps_per_print;
}

static struct run_point *point_sums(const struct run *run, uint64_t number) {
    return &run->points.sums[number % RUN_POINTS];
}

void measures_begin(struct run *run) {
    struct failure why;
    run->points.next = run->rounds.start / run->job->steps_per_print + 1;
    if (!run->has_restored || !run->events ||
        !events_restart(run->events, run->rounds.start + 1, &why))
        return;
    log_warning(run->log, "no more TensorBoard events: %s", why.text);
    events_close(&run->events);
}

/* The sums of point NUMBER. With staleness two pushes may be told the same
 * step, and none the one before: the next that are told count for both. NULL:
 * there are none. */
static const struct run_point *told_sums(const struct run *run,
                                         uint64_t number) {
    uint64_t end = point_number(run, run->points.furthest);
    for (; number <= end; number++)
        if (point_sums(run, number)->seconds > 0)
            return point_sums(run, number);
    return NULL;
}

/* Of the last second or more. */
static double point_rate(struct run_points *points,
                         const struct run_point *sums) {
    points->last.samples += sums->samples;
    points->last.seconds = fmax(points->last.seconds, sums->seconds);
    if (points->last.seconds - points->to.seconds >= 1) {
        points->from = points->to;
        points->to = points->last;
    }
    return rate(points->from, points->last);
}

static void add_tenth(struct run *run, uint64_t step,
                      const struct run_point *sums) {
    uint64_t start = run->rounds.start, steps = run->rounds.total - start;
    double share = (double)(step - start - 1) / (double)steps;
    struct run_point *tenth = &run->tenths[(int)(RUN_TENTHS * share)];
    tenth->loss += sums->loss;
    tenth->samples += sums->samples;
}

static void write_point(struct run *run) {
    uint64_t step = point_step(run, run->points.next);
    const struct run_point *told = told_sums(run, run->points.next);
    struct run_point *sums = point_sums(run, run->points.next++);
    struct progress_numbers point = numbers(run, step);
    if (!told)
        return;
    point.loss = measures_mean_loss((struct run_point){0}, *told);
    point.examples_per_second = point_rate(&run->points, sums);
    add_tenth(run, step, sums);
    scalar(run, "train/loss", step, point.loss);
    scalar(run, "train/examples_per_second", step, point.examples_per_second);
    scalar(run, "train/learning_rate", step, current_rate(run, step));
    scalar(run, "train/loss_scale", step, measures_loss_scale(run));
    if (measures_checks_overflow(run))
        scalar(run, "train/skipped_steps", step, (double)measures_skipped(run));
    write_shares(run, step);
    progress_point(&run->progress, &point);
    *sums = (struct run_point){0};
}

static void flush(struct run *run) {
    struct failure why;
    if (run->events && events_flush(run->events, &why))
        log_warning(run->log, "%s", why.text);
}

/* Makes room for point NUMBER: trainers that are so far behind the one who
 * tells of it are not awaited. */
static void make_room(struct run *run, uint64_t number) {
    struct run_points *open = &run->points;
    if (number < open->next + RUN_POINTS)
        return;
    while (number >= open->next + RUN_POINTS &&
           point_step(run, open->next) <= open->furthest)
        write_point(run);
    if (number >= open->next + RUN_POINTS)
        open->next = number;
    flush(run);
}

void measures_points(struct run *run, const struct roster_slot *slot,
                     const Capstan__Points *points) {
    struct run_trainer *trainer = &run->trainers[slot->rank];
    struct run_points *open = &run->points;
    for (size_t i = 0; i < points->n_step && open->next; i++) {
        uint64_t step = points->step[i], number = point_number(run, step);
        if (step <= run->rounds.start || step > run->rounds.total)
            continue;
        make_room(run, number);
        struct run_point *sums =
            point_sums(run, number > open->next ? number : open->next);
        sums->loss += points->loss_sum[i];
        sums->samples += points->samples[i];
        sums->seconds =
            fmax(sums->seconds, trainer->began + points->training_s[i]);
        if (step > open->furthest)
            open->furthest = step;
        trainer->point = step;
        measures_step(run, step);
    }
}

/* Is there a trainer who may still tell of STEP? What it tells later counts to
 * the next point. */
static bool point_awaited(const struct run *run, uint64_t step) {
    for (uint32_t r = 0; r < run->roster.num_ranks; r++) {
        const struct run_trainer *trainer = &run->trainers[r];
        bool takes_it = !run_synchronous(run) || trainer->from <= step;
        if (run->roster.slots[r].state == ROSTER_HELD && trainer->from &&
            !trainer->left && trainer->point < step && takes_it)
            return true;
    }
    return false;
}

/* The points up to step LAST that are complete. */
static void write_points(struct run *run, uint64_t last) {
    uint64_t first = run->points.next;
    last = smaller(last, run->points.furthest);
    while (run->points.next && point_step(run, run->points.next) <= last &&
           run->points.next <= point_number(run, run->rounds.total) &&
           !point_awaited(run, point_step(run, run->points.next)))
        write_point(run);
    if (run->points.next > first)
        flush(run);
}

bool measures_reach(struct run *run, uint64_t step) {
    if (run->interrupted)
        return true;
    write_points(run, step);
    return point_step(run, run->points.next) > step ||
           run->points.next > point_number(run, run->rounds.total);
}

void measures_end(struct run *run) {
    if (!run->interrupted)
        write_points(run, UINT64_MAX);
    else if (run->has_saved)
        write_points(run, run->saved);
}

void measures_show(struct run *run, int64_t now) {
    uint64_t last = last_shown(run), step = smaller(run_step(run), last);
    if (!run->interrupted && run->phase < RUN_STOPPING)
        write_points(run, last);
    if (run->phase != RUN_TRAINING || !run->began)
        return;
    struct run_point point = measures_total(run);
    bool turn = now - run->shown_at >= SHOW_EVERY;
    if (turn)
        run->shown_from = run->shown;
    if (point.samples > run->shown_from.samples) {
        run->shown_loss = measures_mean_loss(run->shown_from, point);
        run->shown_rate = rate(run->shown_from, point);
    }
    if (turn) {
        run->shown = point;
        run->shown_at = now;
    }
    struct progress_numbers shown =
        numbers(run, smaller(step, run->rounds.total));
    char cause[256];
    stall_note(run, now);
    shown.still = stall_seconds(run, now, cause, sizeof cause);
    shown.cause = cause[0] ? cause : NULL;
    progress_update(&run->progress, &shown, now);
}

void measures_epoch(struct run *run, uint64_t step,
                    const struct part_result *result) {
    struct run_point point = total_marked(run);
    struct progress_numbers shown = numbers(run, step);
    uint64_t epochs = rounds_epochs(&run->rounds, step);
    bool whole = epochs > run->epochs_ended;
    double loss = measures_mean_loss(run->epoch_start, point);
    if (!run->interrupted)
        write_points(run, smaller(step, last_shown(run)));
    run->evaluated = step;
    if (result->count) {
        run->accuracy = (double)result->correct / (double)result->count;
        run->test_loss = result->loss_sum / (double)result->count;
        scalar(run, "test/accuracy", step, run->accuracy);
        scalar(run, "test/loss", step, run->test_loss);
    }
    if (whole && isfinite(loss)) {
        run->epoch_loss = loss;
        shown.examples_per_second = rate(run->epoch_start, point);
        run->epoch_start = point;
    }
    run->epochs_ended = epochs;
    shown.epoch = epochs ? epochs : 1;
    if (shown.epochs &&
        shown.epoch > shown.epochs) /* of a job for fewer epochs */
        shown.epochs = shown.total_steps = 0;
    shown.loss = isfinite(loss) ? loss : run->shown_loss;
    shown.accuracy = result->count ? run->accuracy : NAN;
    shown.share = (double)result->count / (double)run->test_samples;
    progress_epoch(&run->progress, &shown);
}
