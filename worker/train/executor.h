/* SPDX-License-Identifier: Apache-2.0 */
/* A model on its device: the model itself, and the transfers of weights,
 * samples and gradients. */
#ifndef CAPSTAN_EXECUTOR_H
#define CAPSTAN_EXECUTOR_H

#include "core/base/status.h"
#include "core/tensor/binary_scores.h"
#include "core/tensor/layout.h"
#include "proto/job/job.h"
#include "proto/plan/memory_footprint.h"
#include "worker/data/dataset.h"
#include "worker/models/model.h"
#include "worker/ops/local_device.h"
#include "worker/train/arena.h"
#include "worker/train/batch_prefetch.h"
#include "worker/train/device_transfer.h"
#include "worker/train/embedding.h"

#include <stdbool.h>
#include <stdint.h>

enum { EVALUATION_BATCH = MEMORY_FOOTPRINT_EVALUATION };

struct evaluation {
    double loss_sum;
    uint64_t correct, count;
    uint64_t bad_lines;          /* left out */
    struct binary_scores scores; /* none of other models */
};

/* Samples FIRST to END - 1 of a test set; borrowed. */
struct evaluation_range {
    const struct dataset *test;
    uint64_t first, end;
    struct embedding *embedding; /* NULL: the model has no tables */
    uint64_t clock, snapshot;    /* of the tables: as embedding_evaluate */

    /* NULL, or receives the outputs of the next COUNT samples, in host memory
     * until it returns; the evaluation then has no scores. */
    enum status (*take)(void *context, const struct model_outputs *outputs,
                        uint32_t count, struct failure *why);
    void *context;
};

struct executor {
    struct local_device device;
    const struct model *model;
    struct model_instance *instance; /* of MODEL */
    struct batch_spec spec;          /* of MODEL's batches */
    struct device_transfer device_transfer;
    struct batch_prefetch batch_prefetch;      /* of training samples */
    struct batch_prefetch evaluation_prefetch; /* of evaluation samples */
    struct device_event *taken; /* outputs of an evaluation, by the host; NULL:
                                   it does not evaluate */
};

/* What the model is used for. */
struct executor_options {
    uint32_t micro_batch; /* samples per training batch; 0: no training */
    const struct features *features; /* of the data; NULL: none */
    bool pixels;                     /* all of the data have them (dataset.h) */
    bool evaluates;
    bool resident; /* weights and gradients stay on the device:
                      device_transfer.h */
};

/* Opens the device that REQUEST selects; allocates none of its memory. */
enum status executor_select_device(struct executor *executor,
                                   const struct local_device_request *request,
                                   const struct log *log,
                                   struct failure *why) MUST_CHECK;

/* After executor_select_device: opens JOB's model for the weights in ARENA,
 * which is open. Borrows all. STATUS_FAILED: not enough device memory; WHY says
 * how much for what, and which job keys need less. */
enum status executor_open(struct executor *executor, const struct job *job,
                          const struct layout *layout, struct arena *arena,
                          const struct executor_options *use,
                          struct failure *why) MUST_CHECK;

/* Waits until enqueued work is done or has failed. */
void executor_synchronize(struct executor *executor);

/* The same, then closes it; call before the arena is closed. EXECUTOR may be
 * all zero. */
void executor_close(struct executor *executor);

/* Evaluates RANGE on the arena's current weights; the caller clears OUT's
 * scores. If rows of tables do not come any more it ends early. No evaluation
 * batch is pending. STATUS_RETRY if there is no memory for a batch; else as
 * ops.event_sync. */
enum status executor_evaluate(struct executor *executor,
                              const struct evaluation_range *range,
                              struct evaluation *out,
                              struct failure *why) MUST_CHECK;

#endif
