/* SPDX-License-Identifier: Apache-2.0 */
/* The training loop, on a thread of its own: reads the data, declares the
 * model, then takes step after step and evaluates. The communication thread
 * gives it a plan and a partner and collects its reports. */
#ifndef CAPSTAN_TRAINER_H
#define CAPSTAN_TRAINER_H

#include "proto/base/log.h"
#include "proto/base/status.h"
#include "proto/config/job/job.h"
#include "proto/net/shm/buffer.h"
#include "proto/tensor/layout.h"
#include "proto/tensor/plan.h"
#include "proto/tensor/rule.h"
#include "worker/collective/collective.h"
#include "worker/exchange/exchange.h"
#include "worker/ops/ops.h"

#include <stdbool.h>
#include <stdint.h>

/* All borrowed. JOB's batch is solved by trainer_begin. */
struct trainer_settings {
    const struct log *log;
    const struct job *job;
    uint32_t rank, num_ranks;
    uint32_t local_rank, local_trainers; /* as in device.h: as the cluster
                                            lists hosts, or the rank was told */
    bool reported;                       /* the rank was */
    bool requests_assignment;            /* who sees its devices tells better:
                                            trainer_assign_device */
    const struct ops *cuda;              /* likewise, or NULL */
    const struct collective_ops *nccl;   /* as in local_group.h, or NULL */
    const struct rule_loops *loops;      /* NULL: the best of this processor */
};

struct trainer_progress {
    uint64_t clock, samples, correct, global_step;
    double loss_sum, last_loss;
    double first_loss; /* mean of the first step; 0: none yet */
    double input_s, compute_s, wire_s, training_s;
    double loss_scale; /* fp16: of the present step */
    uint64_t skipped;  /* steps whose gradients overflowed, of the whole run */
};

/* The steps from the point before it on (run_schedule.h) to this one. */
struct trainer_point {
    uint64_t step, samples;
    double loss_sum;
    double training_s; /* since the trainer began */
};

enum trainer_event {
    TRAINER_DEVICES_LISTED, /* ids of devices; with any it waits for
                               trainer_assign_device */
    TRAINER_DECLARED,  /* the data is read: layout and the counts are here */
    TRAINER_EVALUATED, /* its part of the test set */
    TRAINER_LEFT,      /* out of the loop; stays for evaluations */
    TRAINER_FAILED,    /* `why` */
};

/* A device with memory of its own, its name, and as it tells. */
struct trainer_device {
    uint64_t free; /* bytes */
    char name[192], id[DEVICE_ID];
};

struct trainer_report {
    enum trainer_event event;
    uint64_t train_samples, test_samples;
    uint64_t id, step; /* EVALUATED: snapshot (0: own weights) and step */
    uint32_t part;
    double loss_sum;
    uint64_t correct, count;
    struct trainer_progress progress; /* EVALUATED: at that step */
    uint64_t clock;                   /* LEFT */
    uint32_t replicas, num_devices;   /* DECLARES; SEES: if it is alone */
    bool adds_on_host;                /* DECLARES: as in local_group.h */
    struct trainer_device devices[JOB_MAX_DEVICES];
    struct failure why;
    bool diverged; /* FAILED: the loss is no number any more */
};

struct trainer;

/* Starts the thread. */
enum status trainer_open(struct trainer **out,
                         const struct trainer_settings *settings,
                         struct failure *why) MUST_CHECK;

/* Cancels what it waits for and joins it. */
void trainer_close(struct trainer **trainer);

/* After SEES: it is the PLACE-th of so many TRAINERS (1 or more) who see one of
 * its devices. */
void trainer_assign_device(struct trainer *trainer, uint32_t place,
                           uint32_t trainers);

/* Polls readable when trainer_next_report has something. */
int trainer_descriptor(const struct trainer *trainer);

/* Takes the oldest report; false: there is none. */
bool trainer_next_report(struct trainer *trainer,
                         struct trainer_report *report);

/* Its numbers as of the last step. */
void trainer_progress(struct trainer *trainer,
                      struct trainer_progress *progress);

/* Takes the oldest point that is complete; false: there is none. The trainer
 * waits where thousands are not taken. */
bool trainer_next_point(struct trainer *trainer, struct trainer_point *point);

/* After DECLARES; views. */
const struct layout *trainer_layout(const struct trainer *trainer);

/* After DECLARES, once the chief has planned: memory for weights and gradients,
 * parameters APART as in arena.h. Does nothing when it is there. */
enum status trainer_allocate(struct trainer *trainer, bool padded,
                             struct failure *why) MUST_CHECK;

/* The arenas of trainer_layout's parameters, parameter p at float offsets[p];
 * views. After trainer_allocate. */
void trainer_arenas(struct trainer *trainer, struct buffer **weights,
                    struct buffer **gradients, const uint64_t **offsets);

/* Begins training through PARTNER with push FROM. It and PLAN stay until the
 * trainer is closed. */
void trainer_begin(struct trainer *trainer, struct exchange exchange,
                   const struct plan *plan, uint64_t from);

/* Snapshot ID, taken at STEP, on part PART (< PARTS) of the test set, in file
 * order, in equal parts. */
struct trainer_evaluation_request {
    uint64_t id, step;
    uint32_t part, parts;
};

/* Orders an evaluation; the last must have been reported. */
void trainer_request_evaluation(
    struct trainer *trainer, const struct trainer_evaluation_request *request);

/* Its partner is to be served (reducer.h), once it is out of the loop. */
void trainer_request_serve(struct trainer *trainer);

/* After DECLARES: does it compute in memory of a device's own? */
bool trainer_has_device_memory(const struct trainer *trainer);

/* Then: the first of those, among what this process sees. */
uint32_t trainer_device_index(const struct trainer *trainer);

/* Leave the loop after this step. */
void trainer_leave(struct trainer *trainer);

#endif
