/* SPDX-License-Identifier: Apache-2.0 */
/* The training loop on its own thread: reads the data, reports the model, then
 * takes steps and evaluates. The communication thread gives it a plan and an
 * exchange and collects its reports. */
#ifndef CAPSTAN_TRAINER_H
#define CAPSTAN_TRAINER_H

#include "core/base/log.h"
#include "core/base/status.h"
#include "core/net/shm/buffer.h"
#include "core/store/kept_file.h"
#include "core/tensor/layout.h"
#include "core/tensor/rule.h"
#include "proto/job/job.h"
#include "proto/plan/plan.h"
#include "worker/collective/collective.h"
#include "worker/exchange/exchange.h"
#include "worker/ops/device.h"

#include <stdbool.h>
#include <stdint.h>

/* All borrowed. JOB's batch is resolved by trainer_begin. */
struct trainer_settings {
    const struct log *log;
    const struct job *job;
    uint64_t run;
    uint32_t rank, num_ranks;
    uint32_t num_beyond; /* the last ranks: each reads the share of another */
    uint32_t local_rank, local_trainers; /* see device.h: from the cluster
                                            description or the launcher */
    bool reported;                       /* the launcher gave the rank */
    bool joins_late;                     /* others take steps already */
    bool requests_assignment; /* waits for trainer_assign_device, which knows
                                 the device's users */
    const struct device_ops *cuda;     /* see device.h, or NULL */
    const struct collective_ops *nccl; /* see local_group.h, or NULL */
    bool has_secret;                   /* as well */
    const struct rule_loops *loops;    /* NULL: the best for this CPU */
    struct external *external; /* computes in place of the trainer's thread;
                                  NULL: the job's model is built in */
    struct copies *copies;     /* in memory, of what that keeps; NULL: none */
    struct arena_kept *kept;   /* of the process's run before; NULL: none */
};

struct trainer_progress {
    uint64_t clock, samples, correct, global_step;
    uint64_t pushing; /* external: the step that is pushed, or the last */
    double loss_sum, last_loss;
    double first_loss; /* mean of the first step; 0: none yet */
    double input_s, compute_s, wire_s, training_s;
    double loss_scale;        /* fp16: of this step */
    uint64_t skipped;         /* steps of the whole run skipped for overflow */
    uint64_t bad_lines;       /* of the training data, left out so far */
    uint64_t late, missed;    /* with backup workers: steps whose round closed
                                 without this trainer, and those that it has
                                 left out for that */
    uint64_t rows, row_bytes; /* of tables: pushed, and of messages with rows
                                 in the direction that has more, which is
                                 towards the ps */
};

/* The steps after the previous point (run_schedule.h) up to this one. */
struct trainer_point {
    uint64_t step, samples;
    double loss_sum;
    double training_s; /* since the trainer began */
};

enum trainer_event {
    TRAINER_DEVICES_LISTED, /* device ids; if there are any, it waits for
                               trainer_assign_device */
    TRAINER_DECLARED,       /* the data is read; layout and counts are set */
    TRAINER_EPOCH,          /* external: epoch `id` begins after `step`, or is
                               `under_way` since then */
    TRAINER_KEPT, /* external: `kept` with step `step`; 0: a first time
                     is to come */
    TRAINER_SAVE_REQUESTED, /* external: at `step` */
    TRAINER_EVALUATED,      /* its part of the test set is evaluated */
    TRAINER_FINISHED,       /* left the loop; stays for evaluations */
    TRAINER_FAILED,         /* `why` */
};

/* A device with its own memory: name and properties. */
struct trainer_device {
    uint64_t free; /* bytes */
    char name[192], id[DEVICE_ID];
};

/* The files of what the caller keeps, or (failed) the report's `why`. */
struct kept_report {
    struct shard_info files[KEPT_FILE_KEYS];
    uint32_t count;
    bool copy; /* in memory, without files */
    bool lead, failed;
};

struct trainer_report {
    enum trainer_event event;
    uint64_t train_samples, test_samples;
    uint64_t share_samples;               /* of records: this trainer's */
    uint64_t features, features_unplaced; /* features_digest; 0: none */
    bool uncounted;    /* records of which it does not know how many */
    uint64_t id, step; /* EVALUATED: snapshot (0: own weights) and step */
    bool under_way;    /* EPOCH */
    uint32_t part;
    double loss_sum;
    uint64_t correct, count, bad_lines;
    bool regression;                  /* batch.h: `correct` has no meaning */
    double predicted_sum, target_sum; /* binary_scores.h, as are */
    unsigned char *scores;            /* packed, which who takes it frees, or
                                         NULL */
    size_t scores_bytes;
    struct trainer_progress progress; /* EVALUATED: as of that step */
    uint64_t clock;                   /* FINISHED */
    bool early;                       /* FINISHED: others go on without it */
    bool leaves;                      /* FINISHED: by a signal */
    uint32_t replicas,
        num_devices;   /* DECLARED; DEVICES_LISTED: the number if it is alone */
    bool adds_on_host; /* DECLARED: see local_group.h */
    struct trainer_device devices[JOB_MAX_DEVICES];
    struct kept_report kept;
    struct failure why;
};

struct external;
struct trainer;

/* Starts the thread; with an external model it only attaches that. */
enum status trainer_open(struct trainer **out,
                         const struct trainer_settings *settings,
                         struct failure *why) MUST_CHECK;

/* Ends its waits, joins the thread and clears *TRAINER. */
void trainer_close(struct trainer **trainer);

/* As trainer_close, if another run follows: the memory of weights and gradients
 * goes to KEPT (empty), for that run's trainer_settings. */
void trainer_close_and_keep(struct trainer **trainer, struct arena_kept *kept);

/* After DEVICES_LISTED: this trainer has index PLACE among TRAINERS (1 or more)
 * that see one of its devices. */
void trainer_assign_device(struct trainer *trainer, uint32_t place,
                           uint32_t trainers);

/* Polls readable when trainer_next_report has a report. */
int trainer_descriptor(const struct trainer *trainer);

/* Removes the oldest report; false: there is none. */
bool trainer_next_report(struct trainer *trainer,
                         struct trainer_report *report);

/* Its progress as of the last step. */
void trainer_progress(struct trainer *trainer,
                      struct trainer_progress *progress);

/* Removes the oldest complete point; false: there is none. The trainer blocks
 * if thousands are not removed. */
bool trainer_next_point(struct trainer *trainer, struct trainer_point *point);

/* After DECLARED; a view. */
const struct layout *trainer_layout(const struct trainer *trainer);

/* After DECLARED, once the chief has planned: allocates memory for weights and
 * gradients, PADDED as in arena.h. Does nothing the second time. */
enum status trainer_allocate(struct trainer *trainer, bool padded,
                             struct failure *why) MUST_CHECK;

/* The arenas of trainer_layout's parameters, parameter p at float offsets[p];
 * views. After trainer_allocate. */
void trainer_arenas(struct trainer *trainer, struct buffer **weights,
                    struct buffer **gradients, const uint64_t **offsets);

/* Where each parameter's weights are; view. After trainer_allocate. */
float *const *trainer_weights(const struct trainer *trainer);

/* Begins training through EXCHANGE with push FROM. EXCHANGE and PLAN stay until
 * the trainer is closed. */
void trainer_begin(struct trainer *trainer, struct exchange *exchange,
                   const struct plan *plan, uint64_t from);

/* Evaluate snapshot ID, taken at STEP, on part PART (< PARTS) of the test set;
 * parts are equal, in file order. */
struct trainer_evaluation_request {
    uint64_t id, step;
    uint32_t part, parts;
};

/* Requests an evaluation; the previous one must have been reported. */
void trainer_request_evaluation(
    struct trainer *trainer, const struct trainer_evaluation_request *request);

/* Requests a call of the exchange's `serve` once the trainer has left the loop.
 */
void trainer_request_serve(struct trainer *trainer);

/* After DECLARED: true if it computes in a device's own memory. */
bool trainer_has_device_memory(const struct trainer *trainer);

/* Then: the first of its devices, among those that this process sees. */
uint32_t trainer_device_index(const struct trainer *trainer);

/* Makes it leave the loop after this step. */
void trainer_leave(struct trainer *trainer);

#endif
