/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of tables in a trainer's pass: from the ids of a batch to its columns of
 * rows, and from the gradients of those columns to the rows' gradients. Lookups
 * can be sent ahead of the pass. Ids and rows are in host memory. */
#ifndef CAPSTAN_EMBEDDING_H
#define CAPSTAN_EMBEDDING_H

#include "core/base/status.h"
#include "core/tensor/layout.h"
#include "worker/data/batch.h"
#include "worker/exchange/client/row_batch.h"
#include "worker/exchange/exchange.h"
#include "worker/ops/local_device.h"

#include <stdbool.h>
#include <stdint.h>

struct embedding;

/* Where rows come from and gradients go: a trainer's exchange, or a checkpoint.
 * LOOKUP borrows ROWS until WAIT returns, PUSH until SETTLE or the second PUSH
 * after it, for which PUSH may wait; that no answer comes any more shows in the
 * next WAIT or SETTLE.
 * WAIT and SETTLE return false if no answer comes any more. */
struct embedding_source {
    void *context;
    void (*lookup)(void *context, uint64_t clock, bool early, uint64_t snapshot,
                   struct row_batch *rows);
    bool (*wait)(void *context);
    void (*push)(void *context, uint64_t clock, enum contribution kind,
                 struct row_batch *rows); /* NULL: no training */
    bool (*settle)(void *context);
};

/* All borrowed. */
struct embedding_settings {
    const struct layout *layout; /* the plan's */
    const struct batch_spec *spec;
    const struct local_device *device;
    uint32_t max_batch;
    uint32_t micro_batches; /* of a step; 0: no training */
    struct embedding_source source;
};

/* FAILURE_NO_MEMORY, FAILURE_DEVICE_MEMORY. */
enum status embedding_open(struct embedding **out,
                           const struct embedding_settings *settings,
                           struct failure *why) MUST_CHECK;

/* Frees *EMBEDDING (may be NULL) and clears it. */
void embedding_close(struct embedding **embedding);

/* Requests the rows of BATCH, the micro batch after the last that was
 * requested, whose rows are here, for a reader that has pushed CLOCK; EARLY: is
 * about to. */
enum status embedding_request(struct embedding *embedding,
                              const struct batch *batch, uint64_t clock,
                              bool early, struct failure *why) MUST_CHECK;

/* Is a request ahead of the passes? */
bool embedding_is_ahead(const struct embedding *embedding);

/* Waits for the oldest request's rows and fills the columns of rows of BATCH,
 * which it was for; points its gradients to memory. False: they do not come. */
bool embedding_forward(struct embedding *embedding, struct batch *batch);

/* Adds the gradients of BATCH's columns, just passed, to those of its rows.
 * Fails as ops.event_sync. */
enum status embedding_backward(struct embedding *embedding,
                               const struct batch *batch,
                               struct failure *why) MUST_CHECK;

/* The sums of the step's gradients over its micro batches; a view until
 * embedding_push. NULL: there were none. */
enum status embedding_gradients(struct embedding *embedding,
                                struct row_batch **out,
                                struct failure *why) MUST_CHECK;

/* Pushes the gradients of step CLOCK, once a step, and ends it. */
enum status embedding_push(struct embedding *embedding, uint64_t clock,
                           enum contribution kind,
                           struct failure *why) MUST_CHECK;

/* Waits until the last push is taken; false: it will not be. */
bool embedding_settle(struct embedding *embedding);

/* Fills the columns of rows of BATCH as they are in SNAPSHOT or, if that is 0,
 * as a lookup of CLOCK finds them. *READY is false if they do not come. */
enum status embedding_evaluate(struct embedding *embedding, struct batch *batch,
                               uint64_t clock, uint64_t snapshot, bool *ready,
                               struct failure *why) MUST_CHECK;

#endif
