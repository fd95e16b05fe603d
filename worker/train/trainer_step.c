/* SPDX-License-Identifier: Apache-2.0 */
/* One step: the forward pass waits for weights layer by layer, the backward
 * pass announces gradients layer by layer, the last first.
 *
 * Gradients are announced as soon as they are complete, unless all must be
 * known first: whether any has overflowed (a loss scale), or their norm
 * (clipping with staleness). Every parameter of a step is announced exactly
 * once, whatever happens: full, empty (a non-finite loss that is skipped, or a
 * share of the data that is over before its epoch), or overflowed (which makes
 * the round change nothing); else the other trainers would wait forever. */
#include "worker/train/trainer_internal.h"

#include "core/base/time.h"
#include "core/base/trace.h"
#include "worker/exchange/client/window.h"

#include <math.h>
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

/* The factor of its gradients: the inverse of the loss factor, exact for powers
 * of two. */
static float grad_scaler_inverse(const struct grad_scaler *scaler) {
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

/* Logs that STEP is skipped. */
static void grad_scaler_log_skipped(const struct grad_scaler *scaler,
                                    uint64_t step) {
    char at[64] = "";
    if (scaler->job->fp16.enabled)
        snprintf(at, sizeof at, " at loss scale %g", scaler->scaler.scale);
    log_warning(scaler->log, "step_skipped",
                "step %llu is skipped: its gradients overflow%s",
                (unsigned long long)step, at);
}

bool trainer_wait_weights(struct trainer *trainer, uint32_t parameter) {
    struct trace *trace = trainer->exchange->trace;
    int64_t start = trace_begin(trace, trainer->clock);
    if (!trainer->exchange->wait(trainer->exchange, parameter, TIME_NEVER))
        trainer->aborted = true;
    trace_end(trace, start, TRACE_WAIT, trainer->clock, parameter);
    return !trainer->aborted;
}

bool trainer_wait_all_weights(struct trainer *trainer) {
    for (uint32_t p = 0; p < trainer->layout->num_parameters; p++)
        if (!trainer_wait_weights(trainer, p))
            return false;
    return true;
}

static bool trainer_step_need(void *context, uint32_t parameter) {
    return trainer_wait_weights(context, parameter);
}

static bool trainer_step_should_continue(void *context) {
    struct trainer *trainer = context;
    return !trainer->aborted && !trainer_is_cancelled(trainer);
}

/* SUM plus the squares of a block's gradient, piece by piece. */
static double clipping_add_squares(double sum, const struct rule_loops *loops,
                                   const float *gradient, uint32_t elements) {
    double pieces[(1 << 20) / sizeof(float) / RULE_PIECE]; /* 1 MiB at most */
    const void *floats = gradient;
    struct rule_update update = {.gradients = &floats,
                                 .num_gradients = 1,
                                 .scale = 1,
                                 .elements = elements};
    rule_square_sums(loops, &update, pieces);
    for (uint32_t i = 0; i < (elements + RULE_PIECE - 1) / RULE_PIECE; i++)
        sum += pieces[i];
    return sum;
}

void clipping_apply(const struct layout *layout, float *const *gradients,
                    struct row_batch *rows, double limit,
                    const struct rule_loops *loops) {
    size_t variants;
    double sum = 0;
    if (!loops)
        loops = rule_variants(&variants)[0];
    for (uint32_t b = 0; b < layout->num_blocks; b++) {
        const struct block *block = &layout->blocks[b];
        sum = clipping_add_squares(sum, loops,
                                   gradients[block->parameter] + block->offset,
                                   block->elements);
    }
    for (size_t i = 0; rows && i < rows->floats; i++)
        sum += (double)rows->gradients[i] * (double)rows->gradients[i];
    double factor = limit / (sqrt(sum) + 1e-6);
    for (uint32_t p = 0; factor < 1 && p < layout->num_parameters; p++)
        for (uint64_t i = 0; i < layout->parameters[p].elements; i++)
            gradients[p][i] *= (float)factor;
    for (size_t i = 0; factor < 1 && rows && i < rows->floats; i++)
        rows->gradients[i] *= (float)factor;
}

/* Small gradients are announced with the larger one that follows: a message and
 * two wake-ups cost more than the delay, except on a network link. */
static void trainer_step_announce(struct trainer *trainer, uint32_t parameter) {
    trainer->unannounced++;
    trainer->unannounced_elements +=
        trainer->layout->parameters[parameter].elements;
    if (trainer->unannounced_elements < WINDOW_MIN_FLOATS && parameter > 0 &&
        !trainer->exchange->over_network(trainer->exchange))
        return;
    trainer->exchange->announce(trainer->exchange, parameter,
                                trainer->unannounced, trainer->clock,
                                CONTRIBUTION_FULL);
    trainer->unannounced = 0;
    trainer->unannounced_elements = 0;
}

static void trainer_step_done(void *context, uint32_t parameter) {
    trainer_step_announce(context, parameter);
}

bool trainer_push_rows(struct trainer *trainer, uint64_t clock,
                       enum contribution kind, struct row_batch *rows) {
    if (kind == CONTRIBUTION_FULL && !rows)
        kind = CONTRIBUTION_ZERO;
    if (!trainer->exchange->push_rows(trainer->exchange, clock, kind, rows))
        return false;
    trainer->has_pushed_rows = true;
    if (!rows)
        return true;
    waiter_enter(&trainer->waiter);
    trainer->progress.rows += rows->num_rows;
    trainer->progress.row_bytes +=
        trainer->exchange->row_bytes(trainer->exchange, rows);
    waiter_leave(&trainer->waiter);
    return true;
}

bool trainer_settle_rows(const struct trainer *trainer, int64_t until) {
    return !trainer->has_pushed_rows ||
           trainer->exchange->wait_pushed(trainer->exchange, until);
}

/* KIND's contribution to the partitions of tables. */
static enum status announce_rows(struct trainer *trainer,
                                 enum contribution kind, struct failure *why) {
    return trainer->embedding && !trainer->aborted
               ? embedding_push(trainer->embedding, trainer->clock, kind, why)
               : STATUS_OK;
}

static enum status announce_all(struct trainer *trainer,
                                enum contribution contribution_kind,
                                struct failure *why) {
    trainer->exchange->announce(trainer->exchange, 0,
                                trainer->layout->num_parameters, trainer->clock,
                                contribution_kind);
    return announce_rows(trainer, contribution_kind, why);
}

static void report_scale(struct trainer *trainer,
                         const struct loss_scaler *scaler) {
    waiter_enter(&trainer->waiter);
    if (trainer->settings.job->fp16.enabled)
        trainer->progress.loss_scale = scaler->scale;
    trainer->progress.skipped = scaler->skipped;
    waiter_leave(&trainer->waiter);
}

bool trainer_step_scale(struct trainer *trainer, struct loss_scaler *scaler) {
    if (!trainer_wait_weights(trainer, trainer->layout->num_parameters - 1))
        return false;
    *scaler = trainer->exchange->scaler(trainer->exchange);
    report_scale(trainer, scaler);
    return true;
}

void trainer_step_count(struct trainer *trainer, uint64_t step) {
    struct trainer_point *open = &trainer->point;
    const struct run_schedule *schedule = &trainer->plan->run_schedule;
    uint64_t point = run_schedule_next_multiple(
        schedule,
        run_schedule_point_steps(schedule,
                                 trainer->settings.job->steps_per_print),
        step);
    if (open->step && open->step < point) {
        event_queue_push(&trainer->points, open);
        *open = (struct trainer_point){0};
    }
    open->step = point;
    open->loss_sum += trainer->uncounted_loss;
    open->samples += trainer->uncounted_samples;
    open->training_s = trainer->progress.training_s;
    trainer->uncounted_loss = 0;
    trainer->uncounted_samples = 0;
    if (step < point)
        return;
    event_queue_push(&trainer->points, open);
    *open = (struct trainer_point){0};
}

void trainer_step_add(struct trainer *trainer,
                      const struct device_replica_result *result) {
    struct trainer_progress *progress = &trainer->progress;
    double waited =
        trainer->exchange->waited(trainer->exchange) - trainer->waited;
    uint64_t global_step = trainer->exchange->global_step(trainer->exchange);
    waiter_enter(&trainer->waiter);
    progress->loss_sum += result->finite_loss_sum;
    progress->bad_lines += result->bad_lines;
    if (result->last_samples)
        progress->last_loss = result->last_loss / (double)result->last_samples;
    if (!progress->samples && result->samples)
        progress->first_loss =
            result->finite_loss_sum / (double)result->samples;
    progress->samples += result->samples;
    progress->correct += result->correct;
    progress->clock = trainer->clock;
    progress->global_step = global_step;
    progress->input_s = time_to_seconds(trainer->input);
    progress->wire_s = waited;
    progress->training_s =
        time_to_seconds(time_now() - trainer->started_at - trainer->evaluating);
    progress->compute_s =
        progress->training_s - progress->input_s - progress->wire_s;
    waiter_leave(&trainer->waiter);
    trainer->uncounted_loss = result->finite_loss_sum;
    trainer->uncounted_samples = result->samples;
    if (trainer_is_synchronous(trainer))
        trainer_step_count(trainer, trainer->clock);
}

void trainer_progress(struct trainer *trainer,
                      struct trainer_progress *progress) {
    waiter_enter(&trainer->waiter);
    *progress = trainer->progress;
    waiter_leave(&trainer->waiter);
}

static bool clips_locally(const struct trainer *trainer) {
    return trainer->settings.job->gradient_clipping > 0 &&
           !trainer_is_synchronous(trainer);
}

/* True if a gradient is announced as soon as it is complete. */
static bool announces_early(const struct trainer *trainer) {
    return !clips_locally(trainer) &&
           !grad_scaler_checks_gradients(trainer->settings.job);
}

static enum status skip_overflow(struct trainer *trainer, struct failure *why) {
    grad_scaler_log_skipped(&trainer->grad_scaler, trainer->clock);
    return announce_all(trainer, CONTRIBUTION_OVERFLOWED, why);
}

/* The step's loss is not finite. With a dynamic scale it counts as an overflow,
 * as in DeepSpeed: the scale falls, and at its minimum the run ends. */
static enum status skip_nonfinite(struct trainer *trainer,
                                  struct failure *why) {
    const struct job *job = trainer->settings.job;
    if (grad_scaler_is_dynamic(job))
        return skip_overflow(trainer, why);
    if (!job->nan_skip)
        return status_fail(why, FAILURE_LOSS_NOT_FINITE,
                           "the loss is %g at step %llu: try a smaller rate, "
                           "or gradient_clipping, or \"on_nan\": \"skip\"",
                           fabs(trainer->step_loss),
                           (unsigned long long)trainer->clock);
    log_warning(trainer->settings.log, "step_skipped",
                "step %llu is skipped: its loss is not finite",
                (unsigned long long)trainer->clock);
    return announce_all(trainer, CONTRIBUTION_EMPTY, why);
}

/* The round's mean is over the trainers that have samples. */
static enum status skip_empty(struct trainer *trainer, struct failure *why) {
    return trainer_wait_all_weights(trainer)
               ? announce_all(trainer, CONTRIBUTION_EMPTY, why)
               : STATUS_OK;
}

/* Divides the gradients by the loss scale, in place. *FINITE is false if they
 * have overflowed. */
static enum status unscale(struct trainer *trainer, struct row_batch *rows,
                           bool *finite, struct failure *why) {
    const struct grad_scaler *scaler = &trainer->grad_scaler;
    if (trainer->exchange->resident)
        return trainer->exchange->unscale(
            trainer->exchange, grad_scaler_inverse(scaler), finite, why);
    *finite = grad_scaler_unscale(scaler, trainer->layout,
                                  trainer->arena.gradient_of, rows);
    return STATUS_OK;
}

/* Announces gradients that were not announced during the backward pass. */
static enum status finish_gradients(struct trainer *trainer,
                                    struct failure *why) {
    const struct job *job = trainer->settings.job;
    float *const *gradients = trainer->arena.gradient_of;
    struct row_batch *rows = NULL;
    bool finite = true;
    enum status status = STATUS_OK;
    if (trainer->embedding)
        status = embedding_gradients(trainer->embedding, &rows, why);
    if (!status && grad_scaler_checks_gradients(job))
        status = unscale(trainer, rows, &finite, why);
    if (status)
        return status;
    if (!finite)
        return skip_overflow(trainer, why);
    if (clips_locally(trainer)) /* the limit is for the mean: scale it to the
                                   sum over the replicas */
        clipping_apply(trainer->layout, gradients, rows,
                       job->gradient_clipping * trainer->local_group.count,
                       trainer->settings.loops);
    return announce_all(trainer, CONTRIBUTION_FULL, why);
}

static enum status trainer_step_begin_step(struct trainer *trainer,
                                           struct failure *why) {
    struct loss_scaler scaler;
    if (!grad_scaler_checks_gradients(trainer->settings.job) ||
        !trainer_step_scale(trainer, &scaler))
        return STATUS_OK;
    return grad_scaler_begin(&trainer->grad_scaler, &scaler, trainer->clock,
                             why);
}

/* Computes all replicas' samples. */
static enum status trainer_step_compute(struct trainer *trainer,
                                        struct device_replica_result *result,
                                        struct failure *why) {
    struct device_replica_step step = {
        .job = trainer->settings.job,
        .factor = grad_scaler_factor(&trainer->grad_scaler),
        .early = announces_early(trainer),
        .embedding = trainer->embedding,
        .clock = trainer->clock - 1,
        .early_rows = !trainer_is_synchronous(trainer),
        .trace = trainer->exchange->trace,
        .context = trainer,
        .need = trainer_step_need,
        .done = trainer_step_done,
        .should_continue = trainer_step_should_continue,
    };
    enum status status =
        local_group_compute(&trainer->local_group, &step, result, why);
    trainer->input += result->input;
    trainer->step_loss = result->loss;
    if (!status && !trainer->aborted)
        trainer_step_add(trainer, result);
    return status;
}

/* Requests the next step's rows. */
static void look_ahead(struct trainer *trainer) {
    struct device_replica_step step = {.embedding = trainer->embedding,
                                       .clock = trainer->clock,
                                       .trace = trainer->exchange->trace};
    bool last = trainer_is_synchronous(trainer) &&
                trainer->clock == trainer->plan->run_schedule.total;
    if (!last && !trainer->aborted)
        device_replica_look_ahead(
            &trainer->local_group.members[0].device_replica, &step);
}

/* A trainer announces the sum of its replicas' gradients; the division happens
 * after the sum over all trainers. */
enum status trainer_step_run(struct trainer *trainer, struct failure *why) {
    struct device_replica_result result;
    struct failure ignored;
    enum status status = trainer_step_begin_step(trainer, why);
    if (status || trainer->aborted)
        return status;
    status = trainer_step_compute(trainer, &result, why);
    bool none = result.nonfinite || result.empty;
    if (status || !trainer_step_should_continue(trainer) || none) {
        enum status left = local_group_gather(&trainer->local_group, false,
                                              NULL, NULL, &ignored);
        (void)left; /* local_group_compute has reported its failure already */
        if (status || !trainer_step_should_continue(trainer))
            return status;
        return result.empty ? skip_empty(trainer, why)
                            : skip_nonfinite(trainer, why);
    }
    bool early = announces_early(trainer);
    status = local_group_gather(&trainer->local_group, true,
                                early ? trainer_step_done : NULL, trainer, why);
    if (!status && early)
        status = announce_rows(trainer, CONTRIBUTION_FULL, why);
    else if (!status)
        status = finish_gradients(trainer, why);
    if (!status)
        look_ahead(trainer);
    return status;
}
