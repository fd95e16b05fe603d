/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/tensor/schedule.h"

#include <math.h>

/* Fewer than two steps of warm-up would divide by log(1). */
static double warmup_steps(const struct schedule *schedule) {
    return fmax(2, (double)schedule->warmup_num_steps);
}

/* Progress of the warm-up at ITERATION < warmup_steps, from 0 to 1. */
static double warmup_fraction(const struct schedule *schedule,
                              double iteration) {
    double steps = warmup_steps(schedule);
    if (schedule->warmup_linear)
        return iteration / steps;
    return log(iteration + 1) / log(steps);
}

static double interpolate(double low, double high, double share) {
    return low + (high - low) * share;
}

static double warmup(const struct schedule *schedule, double iteration) {
    double share = 1;
    if (iteration < warmup_steps(schedule))
        share = warmup_fraction(schedule, iteration);
    return interpolate(schedule->warmup_min_lr, schedule->warmup_max_lr, share);
}

static double warmup_decay(const struct schedule *schedule, double iteration) {
    double steps = warmup_steps(schedule);
    if (iteration < steps)
        return warmup(schedule, iteration);
    double total = (double)schedule->total_num_steps;
    double share = fmax(0, (total - iteration) / fmax(1, total - steps));
    return interpolate(schedule->warmup_min_lr, schedule->warmup_max_lr, share);
}

static double warmup_cosine(const struct schedule *schedule, double iteration) {
    double steps = warmup_steps(schedule);
    if (iteration < steps)
        return schedule->lr * interpolate(schedule->warmup_min_ratio, 1,
                                          warmup_fraction(schedule, iteration));
    double span = fmax(1, (double)schedule->total_num_steps - steps);
    double progress = fmin(1, (iteration - steps + 1) / span);
    double share = (1 + cos(M_PI * progress)) / 2;
    return schedule->lr *
           fmax(0, interpolate(schedule->cos_min_ratio, 1, share));
}

double schedule_rate(const struct schedule *schedule, uint64_t step) {
    double iteration = (double)step - 1;
    switch (schedule->type) {
    case SCHEDULE_CONSTANT:
        return schedule->lr;
    case SCHEDULE_WARMUP:
        return warmup(schedule, iteration);
    case SCHEDULE_WARMUP_DECAY:
        return warmup_decay(schedule, iteration);
    case SCHEDULE_WARMUP_COSINE:
        return warmup_cosine(schedule, iteration);
    }
    return schedule->lr;
}

bool schedule_ends_before(const struct schedule *schedule, uint64_t last) {
    bool cosine = schedule->type == SCHEDULE_WARMUP_COSINE;
    double top = cosine ? schedule->lr : schedule->warmup_max_lr;
    return (cosine || schedule->type == SCHEDULE_WARMUP_DECAY) &&
           schedule->total_num_steps < last &&
           schedule_rate(schedule, last) <= top / 1000;
}

void schedule_scale(struct schedule *schedule, double factor) {
    schedule->lr *= factor;
    schedule->warmup_max_lr *= factor;
}

static double top_rate(const struct schedule *schedule) {
    bool own = schedule->type == SCHEDULE_WARMUP ||
               schedule->type == SCHEDULE_WARMUP_DECAY;
    double top = own ? schedule->warmup_max_lr : schedule->lr;
    return top > 0 ? top : 1;
}

/* A rate of 0 of the job's own optimizer does not stop the groups. */
double schedule_factor(const struct schedule *schedule, uint64_t step) {
    struct schedule any = *schedule;
    if (any.lr == 0)
        any.lr = 1;
    return schedule_rate(&any, step) / top_rate(&any);
}
