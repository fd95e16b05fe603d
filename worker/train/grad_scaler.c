/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/train/grad_scaler.h"

#include <stdio.h>
#include <string.h>

bool grad_scaler_checks_gradients(const struct job *job) {
    return job->fp16.enabled || (job->bf16.enabled && job->bf16.check_overflow);
}

bool grad_scaler_is_dynamic(const struct job *job) {
    return job->fp16.enabled && job->fp16.loss_scale == 0;
}

enum status grad_scaler_begin(struct grad_scaler *scaler,
                              const struct loss_scaler *now, uint64_t step,
                              struct failure *why) {
    const struct job_fp16 *fp16 = &scaler->job->fp16;
    bool changed = now->scale != scaler->scaler.scale;
    scaler->scaler = *now;
    if (!fp16->enabled)
        return STATUS_OK;
    if (!(now->scale > 0))
        return status_fail(why, FAILURE_LOSS_SCALE_TOO_LOW,
                           "gradients overflow at the least loss scale "
                           "(fp16.min_loss_scale, %g) before step %llu: "
                           "bf16.enabled instead has float32's range, a "
                           "smaller rate may do too",
                           fp16->min_loss_scale, (unsigned long long)step);
    if (changed && scaler->logs_changes)
        log_info(scaler->log, "loss_scale_changed",
                 "loss scale %g from step %llu on; skipped so far: %llu",
                 now->scale, (unsigned long long)step,
                 (unsigned long long)now->skipped);
    return STATUS_OK;
}

float grad_scaler_factor(const struct grad_scaler *scaler) {
    return scaler->job->fp16.enabled ? (float)scaler->scaler.scale : 1.0f;
}

float grad_scaler_inverse(const struct grad_scaler *scaler) {
    return scaler->job->fp16.enabled ? (float)(1 / scaler->scaler.scale) : 1;
}

/* Tests the exponent, which is all ones only in infinities and NaN: a loop
 * without branches. */
static bool are_finite(const float *floats, uint64_t count) {
    const uint32_t exponent = 0x7f800000;
    uint32_t found = 0;
    for (uint64_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &floats[i], sizeof bits);
        found |= (bits & exponent) == exponent;
    }
    return !found;
}

static bool unscale_floats(float *restrict floats, uint64_t count,
                           float inverse) {
    if (!are_finite(floats, count))
        return false;
    for (uint64_t i = 0; inverse != 1 && i < count; i++)
        floats[i] *= inverse;
    return true;
}

bool grad_scaler_unscale(const struct grad_scaler *grad_scaler,
                         const struct layout *layout, float *const *gradients,
                         struct row_batch *rows) {
    float inverse = grad_scaler_inverse(grad_scaler);
    for (uint32_t p = 0; p < layout->num_parameters; p++)
        if (!unscale_floats(gradients[p], layout->parameters[p].elements,
                            inverse))
            return false;
    return !rows || unscale_floats(rows->gradients, rows->floats, inverse);
}

void grad_scaler_log_skipped(const struct grad_scaler *scaler, uint64_t step) {
    char at[64] = "";
    if (scaler->job->fp16.enabled)
        snprintf(at, sizeof at, " at loss scale %g", scaler->scaler.scale);
    log_warning(scaler->log, "step_skipped",
                "step %llu is skipped: its gradients overflow%s",
                (unsigned long long)step, at);
}
