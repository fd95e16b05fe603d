/* SPDX-License-Identifier: Apache-2.0 */
/* Everything follows from the number of micro batches read after a step: an
 * epoch ends with the step that reaches or passes a multiple of the epoch's
 * micro batches. A process that knows the plan and a step number needs no
 * message about what is due. */
#include "proto/plan/run_schedule.h"

uint64_t run_schedule_share_samples(uint64_t samples, uint64_t replicas) {
    return (samples + replicas - 1) / replicas;
}

uint64_t run_schedule_share_batches(uint64_t samples, uint64_t replicas,
                                    uint64_t micro, bool drop_last) {
    uint64_t share = run_schedule_share_samples(samples, replicas);
    return (share + (drop_last ? 0 : micro - 1)) / micro;
}

/* Micro batches read after STEP. An accumulation group may cross the end of
 * an epoch. */
static uint64_t batches_read(const struct run_schedule *run_schedule,
                             uint64_t step) {
    return (step - run_schedule->start + run_schedule->start_batch) *
           run_schedule->accumulation;
}

uint64_t run_schedule_epochs(const struct run_schedule *run_schedule,
                             uint64_t step) {
    return batches_read(run_schedule, step) / run_schedule->epoch_batches;
}

bool run_schedule_ends_epoch(const struct run_schedule *run_schedule,
                             uint64_t step) {
    return step > run_schedule->start &&
           run_schedule_epochs(run_schedule, step) >
               run_schedule_epochs(run_schedule, step - 1);
}

uint64_t run_schedule_total(const struct run_schedule *run_schedule,
                            uint64_t epochs) {
    uint64_t wanted = epochs * run_schedule->epoch_batches;
    uint64_t steps =
        (wanted + run_schedule->accumulation - 1) / run_schedule->accumulation;
    uint64_t before_start = run_schedule->start_batch;
    return run_schedule->start +
           (steps > before_start ? steps - before_start : 0);
}

bool run_schedule_evaluates(const struct run_schedule *run_schedule,
                            uint64_t step) {
    return step == run_schedule->total ||
           run_schedule_ends_epoch(run_schedule, step);
}

uint64_t run_schedule_point_steps(const struct run_schedule *run_schedule,
                                  uint64_t given) {
    enum { POINTS = 50, WITHOUT_END = 100 };
    uint64_t most = run_schedule->total / POINTS, steps = 1;
    if (given)
        return given;
    if (run_schedule->total == RUN_SCHEDULE_ENDLESS)
        return WITHOUT_END;
    while (steps <= most / 10)
        steps *= 10;
    return steps <= most / 5   ? 5 * steps
           : steps <= most / 2 ? 2 * steps
                               : steps;
}

uint64_t run_schedule_next_multiple(const struct run_schedule *run_schedule,
                                    uint64_t every, uint64_t step) {
    uint64_t past = step % every;
    uint64_t point = past ? step - past + every : step;
    return point < run_schedule->total ? point : run_schedule->total;
}

uint64_t run_schedule_copy_steps(uint64_t copied, uint64_t sent) {
    enum { LEAST = 100, MOST = 1000, SHARE = 20 };
    uint64_t steps = sent ? (copied + sent - 1) / sent : MOST;
    return steps > MOST / SHARE    ? MOST
           : steps < LEAST / SHARE ? LEAST
                                   : SHARE * steps;
}

static bool crosses_multiple(uint64_t every, uint64_t before, uint64_t now) {
    return every && now / every > before / every;
}

bool run_schedule_crosses_boundary(const struct run_schedule *run_schedule,
                                   uint64_t before, uint64_t now) {
    return crosses_multiple(run_schedule->every_steps, before, now) ||
           crosses_multiple(run_schedule->delta_every_steps, before, now) ||
           crosses_multiple(run_schedule->buddy_steps, before, now) ||
           run_schedule_epochs(run_schedule, now) >
               run_schedule_epochs(run_schedule, before);
}

static bool ends_saved_epoch(const struct run_schedule *run_schedule,
                             uint64_t step) {
    return run_schedule->every_epochs &&
           run_schedule_ends_epoch(run_schedule, step) &&
           run_schedule_epochs(run_schedule, step) /
                   run_schedule->every_epochs >
               run_schedule_epochs(run_schedule, step - 1) /
                   run_schedule->every_epochs;
}

static bool is_multiple(uint64_t every, uint64_t step) {
    return every && step % every == 0;
}

static bool saves_all(const struct run_schedule *run_schedule, uint64_t step) {
    return step == run_schedule->total ||
           is_multiple(run_schedule->every_steps, step) ||
           ends_saved_epoch(run_schedule, step);
}

bool run_schedule_saves(const struct run_schedule *run_schedule,
                        uint64_t step) {
    return run_schedule->checkpoints &&
           (saves_all(run_schedule, step) ||
            is_multiple(run_schedule->delta_every_steps, step));
}

bool run_schedule_copies(const struct run_schedule *run_schedule,
                         uint64_t step) {
    return is_multiple(run_schedule->buddy_steps, step) &&
           step < run_schedule->total &&
           !run_schedule_saves(run_schedule, step);
}

bool run_schedule_saves_delta(const struct run_schedule *run_schedule,
                              uint64_t step) {
    return run_schedule_saves(run_schedule, step) &&
           !saves_all(run_schedule, step);
}
