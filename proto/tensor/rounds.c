/* SPDX-License-Identifier: Apache-2.0 */
/* All follows from how many micro batches have been read after a step: an epoch
 * ends with the step in whose course that passes a multiple of the epoch's. So
 * who knows the plan and a step number knows what is due, and nobody asks. */
#include "proto/tensor/rounds.h"

/* Micro batches read after STEP. An accumulation group may cross the end of
 * an epoch. */
static uint64_t batches(const struct rounds *rounds, uint64_t step) {
    return (step - rounds->start + rounds->start_batch) * rounds->accumulation;
}

uint64_t rounds_epochs(const struct rounds *rounds, uint64_t step) {
    return batches(rounds, step) / rounds->epoch_batches;
}

bool rounds_ends_epoch(const struct rounds *rounds, uint64_t step) {
    return step > rounds->start &&
           rounds_epochs(rounds, step) > rounds_epochs(rounds, step - 1);
}

uint64_t rounds_total(const struct rounds *rounds, uint64_t epochs) {
    uint64_t wanted = epochs * rounds->epoch_batches;
    uint64_t steps = (wanted + rounds->accumulation - 1) / rounds->accumulation;
    uint64_t behind = rounds->start_batch;
    return rounds->start + (steps > behind ? steps - behind : 0);
}

bool rounds_evaluates(const struct rounds *rounds, uint64_t step) {
    return step == rounds->total || rounds_ends_epoch(rounds, step);
}

uint64_t rounds_point(const struct rounds *rounds, uint64_t every,
                      uint64_t step) {
    uint64_t past = step % every;
    uint64_t point = past ? step - past + every : step;
    return point < rounds->total ? point : rounds->total;
}

bool rounds_passed(const struct rounds *rounds, uint64_t before, uint64_t now) {
    uint64_t every = rounds->every_steps;
    return (every && now / every > before / every) ||
           rounds_epochs(rounds, now) > rounds_epochs(rounds, before);
}

static bool ends_saved_epoch(const struct rounds *rounds, uint64_t step) {
    return rounds->every_epochs && rounds_ends_epoch(rounds, step) &&
           rounds_epochs(rounds, step) / rounds->every_epochs >
               rounds_epochs(rounds, step - 1) / rounds->every_epochs;
}

bool rounds_saves(const struct rounds *rounds, uint64_t step) {
    if (!rounds->checkpoints)
        return false;
    return step == rounds->total ||
           (rounds->every_steps && step % rounds->every_steps == 0) ||
           ends_saved_epoch(rounds, step);
}
