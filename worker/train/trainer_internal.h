/* SPDX-License-Identifier: Apache-2.0 */
/* The state of a trainer, for trainer.c, its life cycle, and trainer_step.c, a
 * step. Both run on the compute thread. */
#ifndef CAPSTAN_TRAINER_INTERNAL_H
#define CAPSTAN_TRAINER_INTERNAL_H

#include "core/base/log.h"
#include "core/tensor/loss_scaler.h"
#include "worker/data/dataset.h"
#include "worker/event_queue.h"
#include "worker/train/arena.h"
#include "worker/train/local_group.h"
#include "worker/train/trainer.h"

#include <pthread.h>

enum { TRAINER_REPORTS = 8, TRAINER_POINTS = 8192 };

/* Mixed precision in a trainer's step (docs/precision.md): the factor of the
 * loss, and the check and division of gradients before they are announced. Does
 * nothing unless fp16 or an overflow check is enabled. */
struct grad_scaler {
    const struct job *job; /* borrowed, as is LOG */
    const struct log *log;
    bool logs_changes; /* logs scale changes on behalf of all trainers */
    struct loss_scaler scaler; /* of this step */
};

/* True if all gradients are checked before any is announced. */
bool grad_scaler_checks_gradients(const struct job *job);

/* True if a non-finite loss lowers the scale, as an overflow does. */
bool grad_scaler_is_dynamic(const struct job *job);

/* Begins STEP with the run's scale NOW. STATUS_FAILED if the scale is below the
 * minimum. */
enum status grad_scaler_begin(struct grad_scaler *scaler,
                              const struct loss_scaler *now, uint64_t step,
                              struct failure *why) MUST_CHECK;

/* The factor of this step's loss; 1 unless fp16. */
float grad_scaler_factor(const struct grad_scaler *scaler);

/* Multiplies GRADIENTS (one pointer per parameter of LAYOUT) and those of ROWS
 * (of tables; NULL: none) by the inverse of the step's scale. If one is
 * infinite or NaN, returns false and leaves some unchanged. */
bool grad_scaler_unscale(const struct grad_scaler *scaler,
                         const struct layout *layout, float *const *gradients,
                         struct row_batch *rows);

struct trainer {
    struct trainer_settings settings;
    pthread_t thread;

    /* The compute thread only. */
    struct dataset *train, *test;
    struct local_group local_group;
    bool devices_reported; /* device ids were reported */
    struct layout *layout;
    struct embedding *embedding; /* NULL: the model has no tables */
    struct arena arena;
    uint64_t clock;
    bool aborted; /* no more weights come */
    bool has_pushed_rows;
    uint32_t unannounced; /* parameters complete but not announced */
    uint64_t unannounced_elements;
    double step_loss;
    struct trainer_point
        point;             /* the steps since the last point; step 0: none */
    double uncounted_loss; /* of the last step, as is the next: until its step
                              of the run is known */
    uint64_t uncounted_samples;
    struct grad_scaler grad_scaler;
    int64_t started_at, evaluating, input; /* ns */
    double waited;                         /* seconds, before this step */

    struct waiter waiter; /* cancelled: it is being closed */
    struct trainer_progress progress;
    struct exchange *exchange; /* NULL: none yet */
    const struct plan *plan;
    uint64_t from;
    bool evaluation_requested, leaving, serve_requested;
    uint32_t sharer_index,
        device_sharers; /* set by trainer_assign_device; 0: not called yet */
    struct trainer_evaluation_request request;

    struct event_queue event_queue;
    struct trainer_report report_slots[TRAINER_REPORTS];
    struct event_queue points;
    struct trainer_point point_slots[TRAINER_POINTS];
};

static inline bool trainer_is_synchronous(const struct trainer *trainer) {
    return trainer->settings.job->staleness == 0;
}

/* From any thread: true if the trainer is being closed. */
static inline bool trainer_is_cancelled(struct trainer *trainer) {
    return waiter_is_cancelled(&trainer->waiter);
}

/* From any thread: true if it is to leave the loop, or is being closed. */
static inline bool trainer_is_leaving(struct trainer *trainer) {
    waiter_enter(&trainer->waiter);
    bool leaving = trainer->leaving || trainer->waiter.cancelled;
    waiter_leave(&trainer->waiter);
    return leaving;
}

/* Waits for trainer_begin, at most until time UNTIL. False: it has not come, or
 * there will be no training. */
bool trainer_wait_exchange(struct trainer *trainer, int64_t until);

/* Waits for PARAMETER's weights in the arena. False: the step is aborted. */
bool trainer_wait_weights(struct trainer *trainer, uint32_t parameter);

/* Waits for the weights of all parameters; false likewise. */
bool trainer_wait_all_weights(struct trainer *trainer);

/* The run's loss scale of the next step, which arrives with the last parameter;
 * false as trainer_wait_weights. */
bool trainer_step_scale(struct trainer *trainer, struct loss_scaler *scaler);

/* Pushes ROWS, the sums of step CLOCK's gradients; NULL: there are none, and a
 * full contribution is zero. False: no answer comes any more. */
bool trainer_push_rows(struct trainer *trainer, uint64_t clock,
                       enum contribution kind, struct row_batch *rows);

/* Waits until the last such push is taken; false: not until UNTIL. */
bool trainer_settle_rows(const struct trainer *trainer, int64_t until);

/* Clips a trainer's own gradients, as with staleness no ps sees their sum: if
 * the 2-norm of GRADIENTS (one pointer per parameter of LAYOUT) and of ROWS
 * (of tables; NULL: none) is above LIMIT, scales them by LIMIT / (norm + 1e-6),
 * as torch.nn.utils.clip_grad_norm_ does. The norm is summed in double, block
 * by block in the plan's order. LOOPS: NULL for the best on this CPU. */
void clipping_apply(const struct layout *layout, float *const *gradients,
                    struct row_batch *rows, double limit,
                    const struct rule_loops *loops);

/* Adds RESULT of step `clock` to the progress. */
void trainer_step_add(struct trainer *trainer,
                      const struct device_replica_result *result);

/* With backup workers, once all weights are here: counts whether the last step
 * was late. Returns how many rounds after it closed without this trainer. */
uint64_t trainer_count_missed(struct trainer *trainer);

/* The last step was STEP of the run: adds its loss to that point. */
void trainer_step_count(struct trainer *trainer, uint64_t step);

/* Takes step `clock`: reads samples and announces gradients, or nothing if the
 * step is aborted. */
enum status trainer_step_run(struct trainer *trainer,
                             struct failure *why) MUST_CHECK;

#endif
