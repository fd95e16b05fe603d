/* SPDX-License-Identifier: Apache-2.0 */
/* Learning rate by step number: WarmupLR, WarmupDecayLR, WarmupCosineLR with
 * DeepSpeed's formulas (deepspeed/runtime/lr_schedules.py), or constant.
 *
 * With i = step - 1, W = max(2, warmup_num_steps), T = total_num_steps, the
 * warm-up (i < W) rises by g = log(i + 1) / log(W), or i / W when linear:
 * WarmupLR:       min + (max - min) g, then max
 * WarmupDecayLR:  the same, then g = max(0, (T - i) / max(1, T - W))
 * WarmupCosineLR: lr (m + (1 - m) g), m = warmup_min_ratio, then
 *                 lr (c + (1 - c) (1 + cos(pi x)) / 2), c = cos_min_ratio,
 *                 x = min(1, (i - W + 1) / max(1, T - W)) */
#ifndef CAPSTAN_SCHEDULE_H
#define CAPSTAN_SCHEDULE_H

#include "proto/config/job/optimizer.h"

#include <stdbool.h>
#include <stdint.h>

/* The rate of update number STEP >= 1 (DeepSpeed's last_batch_iteration is
 * STEP - 1). */
double schedule_rate(const struct schedule *schedule, uint64_t step);

/* True if a decay ends before update LAST at a thousandth of its maximum or
 * less, so that the remaining updates change almost nothing. */
bool schedule_ends_before(const struct schedule *schedule, uint64_t last);

/* Multiplies the rate by FACTOR (scale_lr): lr and warmup_max_lr. */
void schedule_scale(struct schedule *schedule, double factor);

/* The rate of update number STEP as a share of the highest that it reaches, by
 * which groups with a rate of their own multiply it. */
double schedule_factor(const struct schedule *schedule, uint64_t step);

#endif
