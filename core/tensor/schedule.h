/* SPDX-License-Identifier: Apache-2.0 */
/* Learning rate by step number: constant, or a schedule of DeepSpeed,
 * TensorFlow or torch by its name, with i = step - 1.
 *
 * DeepSpeed (deepspeed/runtime/lr_schedules.py): with W = max(2,
 * warmup_num_steps), T = total_num_steps, the warm-up (i < W) rises by
 * g = log(i + 1) / log(W), or i / W when linear:
 * WarmupLR:       min + (max - min) g, then max
 * WarmupDecayLR:  the same, then g = max(0, (T - i) / max(1, T - W))
 * WarmupCosineLR: lr (m + (1 - m) g), m = warmup_min_ratio, then
 *                 lr (c + (1 - c) (1 + cos(pi x)) / 2), c = cos_min_ratio,
 *                 x = min(1, (i - W + 1) / max(1, T - W))
 *
 * TensorFlow (tf.keras.optimizers.schedules; the same formulas as
 * tf.compat.v1.train.exponential_decay and the like): with lr the initial rate,
 * n = decay_steps, p = i / n, rounded down by staircase:
 * ExponentialDecay:       lr decay_rate^p
 * InverseTimeDecay:       lr / (1 + decay_rate p)
 * PolynomialDecay:        end + (lr - end) (1 - min(1, p))^power; with cycle n
 *                         is multiplied until i <= n
 * CosineDecay:            lr (a + (1 - a) (1 + cos(pi min(1, p))) / 2), a =
 * alpha CosineDecayRestarts:    the same with p from 0 to 1 in each period, the
 * cosine times m_mul^k in period k; periods grow by t_mul
 * PiecewiseConstantDecay: values[number of boundaries < i]
 *
 * torch (torch.optim.lr_scheduler), with one step of the scheduler an update:
 * ExponentialLR:               lr gamma^i
 * StepLR:                      lr gamma^floor(i / step_size)
 * MultiStepLR:                 lr gamma^(number of milestones <= i)
 * PolynomialLR:                lr (1 - min(1, i / total_iters))^power
 * CosineAnnealingLR:           eta_min + (lr - eta_min) (1 + cos(pi i / T_max))
 *                              / 2
 * CosineAnnealingWarmRestarts: the same with i / T_max from 0 to 1 in each
 *                              period; periods grow by T_mult */
#ifndef CAPSTAN_SCHEDULE_H
#define CAPSTAN_SCHEDULE_H

#include "core/tensor/optimizer.h"

#include <stdbool.h>
#include <stdint.h>

/* The rate of update number STEP >= 1 (DeepSpeed's last_batch_iteration is
 * STEP - 1). */
double schedule_rate(const struct schedule *schedule, uint64_t step);

/* The update after which the rate of a decay stays the same, and the KEY that
 * sets it; 0: it has no end. */
uint64_t schedule_end(const struct schedule *schedule, const char **key);

/* The job's key of a constant rate. */
#define SCHEDULE_LR "optimizer.params.lr"

/* The highest rate of SCHEDULE, or of one whose rate only falls its first, and
 * the key that sets it. */
double schedule_highest_rate(const struct schedule *schedule, const char **key);

/* True if a decay ends before update LAST at a thousandth of its maximum or
 * less, so that the remaining updates change almost nothing. */
bool schedule_ends_before(const struct schedule *schedule, uint64_t last);

/* Multiplies the rate by FACTOR (scale_lr): the highest rate, and each of a
 * piecewise constant one. */
void schedule_scale(struct schedule *schedule, double factor);

/* The rate of update number STEP as a share of the highest that it reaches, by
 * which groups with a rate of their own multiply it. */
double schedule_factor(const struct schedule *schedule, uint64_t step);

#endif
