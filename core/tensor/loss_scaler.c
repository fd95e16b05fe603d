/* SPDX-License-Identifier: Apache-2.0 */
#include "core/tensor/loss_scaler.h"

static const double FACTOR = 2, LARGEST = 0x1p127;

static double loss_scaler_larger(double a, double b) {
    return a > b ? a : b;
}

struct loss_scaler loss_scaler_init(const struct job_fp16 *fp16) {
    struct loss_scaler scaler = {.scale = 1};
    if (!fp16->enabled)
        return scaler;
    scaler.scale = fp16->loss_scale;
    if (fp16->loss_scale > 0)
        return scaler;
    scaler.scale = 1;
    for (uint32_t i = 0; i < fp16->initial_scale_power; i++)
        scaler.scale *= FACTOR;
    scaler.hysteresis = fp16->hysteresis;
    return scaler;
}

/* A scale that the job fixes does not come from the checkpoint, nor does a
 * dynamic one if the checkpoint's was fixed (hysteresis 0 means fixed). */
struct loss_scaler loss_scaler_restore(const struct job_fp16 *fp16,
                                       const struct loss_scaler *saved) {
    struct loss_scaler scaler = loss_scaler_init(fp16);
    scaler.skipped = saved->skipped;
    if (!scaler.hysteresis || !saved->hysteresis || !(saved->scale > 0))
        return scaler;
    scaler.scale = saved->scale;
    scaler.good = saved->good % fp16->loss_scale_window;
    if (saved->hysteresis < scaler.hysteresis)
        scaler.hysteresis = saved->hysteresis;
    return scaler;
}

void loss_scaler_no_overflow(struct loss_scaler *scaler,
                             const struct job_fp16 *fp16) {
    if (!scaler->hysteresis || scaler->scale == 0)
        return;
    bool over = ++scaler->good == fp16->loss_scale_window;
    if (over || fp16->consecutive_hysteresis)
        scaler->hysteresis = fp16->hysteresis;
    if (!over)
        return;
    scaler->good = 0;
    if (scaler->scale <= LARGEST / FACTOR)
        scaler->scale *= FACTOR;
}

/* A used-up hysteresis is restored at the end of the next window. AT is the
 * scale of the overflow: a scale from before the last reduction says nothing
 * about the present one. */
void loss_scaler_overflow(struct loss_scaler *scaler,
                          const struct job_fp16 *fp16, double at) {
    scaler->skipped++;
    if (!scaler->hysteresis || at > scaler->scale)
        return;
    scaler->good = 0;
    if (scaler->hysteresis > 1)
        scaler->hysteresis--;
    else if (scaler->scale == fp16->min_loss_scale)
        scaler->scale = 0;
    else
        scaler->scale =
            loss_scaler_larger(scaler->scale / FACTOR, fp16->min_loss_scale);
}
