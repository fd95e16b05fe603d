/* SPDX-License-Identifier: Apache-2.0 */
/* What a trainer is made of: for trainer.c, its life, and its parts by the
 * course of a run: trainer_prepare.c, what it declares; trainer_device.c, what
 * it computes on; trainer_step.c, a step; trainer_evaluation.c, the test set.
 * All run on the training thread. */
#ifndef CAPSTAN_TRAINER_INTERNAL_H
#define CAPSTAN_TRAINER_INTERNAL_H

#include "worker/data/dataset.h"
#include "worker/event_queue.h"
#include "worker/train/arena.h"
#include "worker/train/grad_scaler.h"
#include "worker/train/local_group.h"
#include "worker/train/trainer.h"

#include <pthread.h>

enum { TRAINER_REPORTS = 8, TRAINER_POINTS = 8192 };

struct trainer {
    struct trainer_settings settings;
    pthread_t thread;

    /* The training thread's own. */
    struct dataset *train, *test;
    struct local_group local_group;
    bool devices_reported; /* devices that it has told the ids of */
    struct layout *layout;
    struct arena arena;
    uint64_t clock;
    bool aborted;         /* no more weights come */
    uint32_t unannounced; /* parameters done and not announced */
    uint64_t unannounced_elements;
    double step_loss;
    bool diverged;              /* it is no number, and the run ends for it */
    struct trainer_point point; /* of the steps since the last one; step 0:
                                   there is none */
    double uncounted_loss;      /* of the last step, as is the next: until it
                                   is known which step of the run that was */
    uint64_t uncounted_samples;
    struct grad_scaler grad_scaler;
    int64_t started_at, evaluating, input; /* ns */
    double waited;                         /* seconds, before it began */

    pthread_mutex_t mutex;
    pthread_cond_t changed;
    struct trainer_progress progress;
    struct exchange exchange;
    const struct plan *plan;
    uint64_t from;
    bool evaluation_requested, leaving, cancelled, serve_requested;
    uint32_t sharer_index,
        device_sharers; /* trainer_assign_device's; 0: it has not been called */
    struct trainer_evaluation_request request;

    struct event_queue event_queue;
    struct trainer_report report_slots[TRAINER_REPORTS];
    struct event_queue points;
    struct trainer_point point_slots[TRAINER_POINTS];
};

static inline bool trainer_is_synchronous(const struct trainer *trainer) {
    return trainer->settings.job->staleness == 0;
}

/* From any thread: is the trainer being closed? */
bool trainer_is_cancelled(struct trainer *trainer);

/* Reports which devices it sees, if they are to be shared by that. */
void trainer_device_report(struct trainer *trainer);

/* Takes its devices, once it is known who shares them; none where it was
 * cancelled before. */
enum status trainer_device_find(struct trainer *trainer,
                                struct failure *why) MUST_CHECK;

/* Fills of DECLARATION what tells of them. */
void trainer_device_declare(const struct trainer *trainer,
                            struct trainer_report *model_spec);

/* The first that it computes on, and the model there. */
const struct executor *trainer_device_first(const struct trainer *trainer);

/* Reads the data, lays the parameters out, finds the devices and declares all
 * that. STATUS_CONFIG names what is wrong with job, data or device. */
enum status trainer_prepare(struct trainer *trainer,
                            struct failure *why) MUST_CHECK;

/* Waits for PARAMETER's weights in the arena. Where it is false a step has no
 * meaning any more. */
bool trainer_wait_weights(struct trainer *trainer, uint32_t parameter);

/* Waits for the weights of all parameters; false likewise. */
bool trainer_wait_all_weights(struct trainer *trainer);

/* The run's scale for the next step, which is here with the last parameter;
 * false as trainer_wait_weights. */
bool trainer_step_scale(struct trainer *trainer, struct loss_scaler *now);

/* The last step taken was STEP of the run: its loss counts to that point. */
void trainer_step_count(struct trainer *trainer, uint64_t step);

/* Takes step `clock`: samples in, gradients announced, or nothing where there
 * is no meaning in it any more. */
enum status trainer_step_run(struct trainer *trainer,
                             struct failure *why) MUST_CHECK;

/* Evaluates this rank's part of the test set on the weights in the arena, which
 * must be those of round `clock`, and reports it. */
enum status trainer_evaluate_own(struct trainer *trainer,
                                 struct failure *why) MUST_CHECK;

/* If there is an order: reads its snapshot into the arena, evaluates the part
 * that it names, reports that, and reads the present weights again. */
enum status trainer_evaluate_requested(struct trainer *trainer,
                                       struct failure *why) MUST_CHECK;

/* Out of the loop, until it is cancelled: obeys orders, and serves where the
 * weights lie with this rank. */
enum status trainer_serve_requests(struct trainer *trainer,
                                   struct failure *why) MUST_CHECK;

#endif
