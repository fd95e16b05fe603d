#include "worker/trainer_parts.h"

#include "proto/base/time.h"
#include "worker/clipping.h"
#include "worker/window.h"

#include <math.h>

static void need(void *context, uint32_t parameter) {
    struct trainer *trainer = context;
    if (trainer_await(trainer, parameter)) /* else the loop looks again */
        ferry_bring(&trainer->engine.ferry, parameter);
}

static bool take_loss(void *context, double loss) {
    struct trainer *trainer = context;
    trainer->step_loss += loss;
    if (!isfinite(loss))
        trainer->poisoned = true;
    return !trainer->poisoned && !trainer->forsaken &&
           !trainer_is_cancelled(trainer);
}

/* Small gradients leave with the larger one that follows: a message and two
 * wake-ups cost more than they do, but on a wire that stands idle. */
static void announce(struct trainer *trainer, uint32_t parameter) {
    trainer->unsaid++;
    trainer->unsaid_elements += trainer->layout->parameters[parameter].elements;
    if (trainer->unsaid_elements < WINDOW_ALONE_FLOATS && parameter > 0 &&
        !partner_over_network(trainer->partner))
        return;
    partner_announce(trainer->partner, parameter, trainer->unsaid,
                     trainer->clock, CONTRIBUTION_WHOLE);
    trainer->unsaid = 0;
    trainer->unsaid_elements = 0;
}

/* Does a gradient still have to come from the device? */
static bool is_remote(const struct trainer *trainer) {
    return trainer->engine.device.ops->later;
}

static void done(void *context, uint32_t parameter) {
    struct trainer *trainer = context;
    ferry_take(&trainer->engine.ferry, parameter);
    if (!is_remote(trainer))
        announce(trainer, parameter);
}

static void announce_all(struct trainer *trainer, enum contribution what) {
    partner_announce(trainer->partner, 0, trainer->layout->num_parameters,
                     trainer->clock, what);
}

static void report_scale(struct trainer *trainer,
                         const struct loss_scaler *now) {
    pthread_mutex_lock(&trainer->mutex);
    if (trainer->settings.job->fp16.enabled)
        trainer->progress.loss_scale = now->scale;
    trainer->progress.skipped = now->skipped;
    pthread_mutex_unlock(&trainer->mutex);
}

bool trainer_step_scale(struct trainer *trainer, struct loss_scaler *now) {
    if (!trainer_await(trainer, trainer->layout->num_parameters - 1))
        return false;
    *now = partner_scaler(trainer->partner);
    report_scale(trainer, now);
    return true;
}

static void add_progress(struct trainer *trainer,
                         const struct mlp_result *result) {
    struct trainer_progress *progress = &trainer->progress;
    double waited = partner_waited(trainer->partner) - trainer->waited;
    uint64_t global_step = partner_global_step(trainer->partner);
    pthread_mutex_lock(&trainer->mutex);
    if (isfinite(result->loss)) {
        progress->loss_sum += result->loss;
        progress->last_loss = result->loss / result->count;
        progress->samples += result->count;
        progress->correct += result->correct;
    }
    progress->clock = trainer->clock;
    progress->global_step = global_step;
    progress->input_s = time_to_seconds(trainer->input);
    progress->wire_s = waited;
    progress->training_s =
        time_to_seconds(time_now() - trainer->began - trainer->evaluating);
    progress->compute_s =
        progress->training_s - progress->input_s - progress->wire_s;
    pthread_mutex_unlock(&trainer->mutex);
}

static bool clips(const struct trainer *trainer) {
    return trainer->settings.job->gradient_clipping > 0 &&
           !trainer_is_synchronous(trainer);
}

/* Does a gradient leave as soon as it is complete? */
static bool leaves_early(const struct trainer *trainer) {
    return !clips(trainer) && !scaling_checks(trainer->settings.job);
}

/* The next batch of the loader sets out; the view of the one before ends. */
static enum status feed(struct trainer *trainer, struct failure *why) {
    struct intake *intake = &trainer->engine.intake;
    int64_t start = time_now();
    enum status status = intake_await(intake, why);
    if (!status)
        intake_put(intake, loader_next(trainer->loader));
    trainer->input += time_now() - start;
    return status;
}

/* By this the loss of BATCH is multiplied: the step's gradient is the mean of
 * the accumulated micro batches' mean gradients, times the loss scale. */
static float scale_of(const struct trainer *trainer,
                      const struct loader_batch *batch) {
    const struct job *job = trainer->settings.job;
    return 1.0f / ((float)batch->count * (float)job->accumulation) *
           scaling_factor(&trainer->scaling);
}

/* Forward and backward over one micro batch, of which the first brings the
 * weights. Where the device goes on by itself, the next batch sets out
 * meanwhile. */
static enum status take_batch(struct trainer *trainer, uint32_t k,
                              struct failure *why) {
    const struct job *job = trainer->settings.job;
    struct engine *engine = &trainer->engine;
    bool remote = is_remote(trainer);
    bool last = k + 1 == job->accumulation && !trainer->poisoned;
    struct mlp_hooks hooks = {trainer, k == 0 ? need : NULL, take_loss,
                              last && (remote || leaves_early(trainer)) ? done
                                                                        : NULL};
    struct mlp_result result;
    enum status status = STATUS_OK;
    if (!intake_ready(&engine->intake))
        status = feed(trainer, why);
    if (status)
        return status;
    const struct loader_batch *batch = intake_take(&engine->intake);
    mlp_gradient(engine->mlp, batch, engine->ferry.weights,
                 engine->ferry.gradients, scale_of(trainer, batch), k > 0,
                 &hooks, &result);
    intake_done(&engine->intake);
    if (remote) {
        status = feed(trainer, why);
        if (!status)
            status = mlp_settle(engine->mlp, &result, why);
        if (!status)
            (void)take_loss(trainer, result.loss); /* looked at below */
    }
    if (!status && !trainer->forsaken)
        add_progress(trainer, &result);
    return status;
}

/* Gradients that come from the device are announced as they are here. */
static enum status take_gradients(struct trainer *trainer,
                                  struct failure *why) {
    enum status status = STATUS_OK;
    if (!is_remote(trainer))
        return STATUS_OK;
    for (uint32_t p = trainer->layout->num_parameters; !status && p-- > 0;) {
        status = ferry_await(&trainer->engine.ferry, p, why);
        if (!status && leaves_early(trainer))
            announce(trainer, p);
    }
    return status;
}

static void skip_overflow(struct trainer *trainer) {
    scaling_say_skipped(&trainer->scaling, trainer->clock);
    announce_all(trainer, CONTRIBUTION_VOID);
}

/* The step's loss is not finite. With a dynamic scale that is an overflow as
 * any other, as DeepSpeed has it: the scale falls, to an end if it has to. */
static enum status leave_out(struct trainer *trainer, struct failure *why) {
    const struct job *job = trainer->settings.job;
    if (scaling_is_dynamic(job)) {
        skip_overflow(trainer);
        return STATUS_OK;
    }
    if (!job->nan_skip)
        return status_fail(why, STATUS_FAILED,
                           "the loss is %g at step %llu: try a smaller rate, "
                           "or gradient_clipping, or \"on_nan\": \"skip\"",
                           fabs(trainer->step_loss),
                           (unsigned long long)trainer->clock);
    log_warning(trainer->settings.log,
                "step %llu is skipped: its loss is not finite",
                (unsigned long long)trainer->clock);
    announce_all(trainer, CONTRIBUTION_EMPTY);
    return STATUS_OK;
}

/* Takes the loss scale out of the gradients, where they are; not *FINITE: they
 * have overflowed. */
static enum status undo_scale(struct trainer *trainer, bool *finite,
                              struct failure *why) {
    const struct scaling *scaling = &trainer->scaling;
    if (trainer->partner.resident)
        return partner_undo(trainer->partner, scaling_inverse(scaling), finite,
                            why);
    *finite =
        scaling_undo(scaling, trainer->layout, trainer->arena.gradient_of);
    return STATUS_OK;
}

/* Gradients that did not leave while they were computed do now. */
static enum status finish_gradients(struct trainer *trainer,
                                    struct failure *why) {
    const struct job *job = trainer->settings.job;
    float *const *gradients = trainer->arena.gradient_of;
    bool finite = true;
    enum status status = STATUS_OK;
    if (scaling_checks(job))
        status = undo_scale(trainer, &finite, why);
    if (status)
        return status;
    if (!finite) {
        skip_overflow(trainer);
        return STATUS_OK;
    }
    if (clips(trainer))
        clipping_apply(trainer->layout, gradients, job->gradient_clipping,
                       trainer->settings.loops);
    announce_all(trainer, CONTRIBUTION_WHOLE);
    return STATUS_OK;
}

static enum status begin_step(struct trainer *trainer, struct failure *why) {
    struct loss_scaler now;
    trainer->poisoned = false;
    trainer->step_loss = 0;
    ferry_renew(&trainer->engine.ferry);
    if (!scaling_checks(trainer->settings.job) ||
        !trainer_step_scale(trainer, &now))
        return STATUS_OK;
    return scaling_begin(&trainer->scaling, &now, trainer->clock, why);
}

enum status trainer_step_take(struct trainer *trainer, struct failure *why) {
    enum status status = begin_step(trainer, why);
    for (uint32_t k = 0; !status && k < trainer->settings.job->accumulation;
         k++) {
        if (trainer->forsaken)
            return STATUS_OK;
        status = take_batch(trainer, k, why);
    }
    if (status || trainer->forsaken || trainer_is_cancelled(trainer))
        return status;
    if (trainer->poisoned)
        return leave_out(trainer, why);
    status = take_gradients(trainer, why);
    if (!status && !leaves_early(trainer))
        status = finish_gradients(trainer, why);
    return status;
}
