/* SPDX-License-Identifier: Apache-2.0 */
#include "core/tensor/schedule.h"

#include <math.h>
#include <stddef.h>

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

static double base_rate(const struct schedule *schedule) {
    return schedule->initial_lr > 0 ? schedule->initial_lr : schedule->lr;
}

/* How many periods have passed. */
static double periods(const struct schedule *schedule, double iteration) {
    double passed = iteration / (double)schedule->period;
    return schedule->staircase ? floor(passed) : passed;
}

/* Half a wave from 1 to 0. */
static double wave(double progress) {
    return (1 + cos(M_PI * progress)) / 2;
}

static double polynomial(const struct schedule *schedule, double iteration,
                         double end) {
    double passed = iteration / (double)schedule->period;
    double cycles = schedule->cycle ? fmax(1, ceil(passed)) : 1;
    double left = 1 - fmin(1, passed / cycles);
    return interpolate(end, base_rate(schedule), pow(left, schedule->power));
}

/* The number of the period of ITERATION, the first of `period` steps, each
 * t_mul times as long as the one before; *PROGRESS in it, from 0 to 1. */
static double restarts(const struct schedule *schedule, double iteration,
                       double *progress) {
    double passed = iteration / (double)schedule->period;
    double growth = schedule->t_mul, begin, number;
    if (growth <= 1) {
        number = floor(passed);
        *progress = passed - number;
        return number;
    }
    /* n periods take (growth^n - 1) / (growth - 1) times the first one; the
     * logarithm may be a little off. */
    number = floor(log1p(passed * (growth - 1)) / log(growth)) + 1;
    do {
        number--;
        begin = (pow(growth, number) - 1) / (growth - 1);
    } while (number > 0 && begin > passed);
    while (begin + pow(growth, number) <= passed) {
        begin += pow(growth, number);
        number++;
    }
    *progress = (passed - begin) / pow(growth, number);
    return number;
}

static double cosine_restarts(const struct schedule *schedule,
                              double iteration) {
    double progress, number = restarts(schedule, iteration, &progress);
    double share = pow(schedule->m_mul, number) * wave(progress);
    return base_rate(schedule) * interpolate(schedule->alpha, 1, share);
}

static double warm_restarts(const struct schedule *schedule, double iteration) {
    double progress;
    (void)restarts(schedule, iteration, &progress);
    return interpolate(schedule->end_rate, schedule->lr, wave(progress));
}

/* Of ascending bounds. */
static uint32_t bounds_below(const struct schedule *schedule, double iteration,
                             bool or_at) {
    uint32_t below = 0;
    while (below < schedule->bounds.count &&
           (schedule->bounds.items[below] < iteration ||
            (or_at && schedule->bounds.items[below] <= iteration)))
        below++;
    return below;
}

double schedule_rate(const struct schedule *schedule, uint64_t step) {
    double iteration = (double)step - 1, gamma = schedule->decay_rate;
    switch (schedule->type) {
    case SCHEDULE_CONSTANT:
        return schedule->lr;
    case SCHEDULE_WARMUP:
        return warmup(schedule, iteration);
    case SCHEDULE_WARMUP_DECAY:
        return warmup_decay(schedule, iteration);
    case SCHEDULE_WARMUP_COSINE:
        return warmup_cosine(schedule, iteration);
    case SCHEDULE_EXPONENTIAL:
        return base_rate(schedule) * pow(gamma, periods(schedule, iteration));
    case SCHEDULE_EXPONENTIAL_LR:
        return schedule->lr * pow(gamma, iteration);
    case SCHEDULE_STEP_LR:
        return schedule->lr * pow(gamma, floor(periods(schedule, iteration)));
    case SCHEDULE_PIECEWISE:
        return schedule->values.items[bounds_below(schedule, iteration, false)];
    case SCHEDULE_MULTI_STEP_LR:
        return schedule->lr *
               pow(gamma, bounds_below(schedule, iteration, true));
    case SCHEDULE_POLYNOMIAL:
        return polynomial(schedule, iteration, schedule->end_rate);
    case SCHEDULE_POLYNOMIAL_LR:
        return polynomial(schedule, iteration, 0);
    case SCHEDULE_INVERSE_TIME:
        return base_rate(schedule) / (1 + gamma * periods(schedule, iteration));
    case SCHEDULE_COSINE:
        return base_rate(schedule) *
               interpolate(schedule->alpha, 1,
                           wave(fmin(1, periods(schedule, iteration))));
    case SCHEDULE_COSINE_ANNEALING_LR:
        return interpolate(schedule->end_rate, schedule->lr,
                           wave(periods(schedule, iteration)));
    case SCHEDULE_COSINE_RESTARTS:
        return cosine_restarts(schedule, iteration);
    case SCHEDULE_COSINE_WARM_RESTARTS:
        return warm_restarts(schedule, iteration);
    }
    return schedule->lr;
}

uint64_t schedule_end(const struct schedule *schedule, const char **key) {
    switch (schedule->type) {
    case SCHEDULE_WARMUP_DECAY:
    case SCHEDULE_WARMUP_COSINE:
        *key = "total_num_steps";
        return schedule->total_num_steps;
    case SCHEDULE_POLYNOMIAL:
    case SCHEDULE_COSINE:
        *key = "decay_steps";
        return schedule->cycle ? 0 : schedule->period;
    case SCHEDULE_POLYNOMIAL_LR:
        *key = "total_iters";
        return schedule->period;
    default:
        *key = NULL;
        return 0;
    }
}

double schedule_highest_rate(const struct schedule *schedule,
                             const char **key) {
    double highest = 0;
    switch (schedule->type) {
    case SCHEDULE_WARMUP:
    case SCHEDULE_WARMUP_DECAY:
        *key = "scheduler.params.warmup_max_lr";
        return schedule->warmup_max_lr;
    case SCHEDULE_PIECEWISE:
        *key = "scheduler.params.values";
        for (uint32_t i = 0; i < schedule->values.count; i++)
            if (schedule->values.items[i] > highest)
                highest = schedule->values.items[i];
        return highest;
    default:
        *key = schedule->initial_lr > 0
                   ? "scheduler.params.initial_learning_rate"
                   : SCHEDULE_LR;
        return schedule->initial_lr > 0 ? schedule->initial_lr : schedule->lr;
    }
}

bool schedule_ends_before(const struct schedule *schedule, uint64_t last) {
    const char *key;
    uint64_t end = schedule_end(schedule, &key);
    return end && end < last &&
           schedule_rate(schedule, last) <=
               schedule_highest_rate(schedule, &key) / 1000;
}

void schedule_scale(struct schedule *schedule, double factor) {
    schedule->lr *= factor;
    schedule->initial_lr *= factor;
    schedule->warmup_max_lr *= factor;
    for (uint32_t i = 0; i < schedule->values.count; i++)
        schedule->values.items[i] *= factor;
}

/* A rate of 0 of the job's own optimizer does not stop the groups. */
double schedule_factor(const struct schedule *schedule, uint64_t step) {
    struct schedule any = *schedule;
    const char *key;
    if (any.lr == 0)
        any.lr = 1;
    double highest = schedule_highest_rate(&any, &key);
    return schedule_rate(&any, step) / (highest > 0 ? highest : 1);
}
