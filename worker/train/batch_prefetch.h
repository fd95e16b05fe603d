/* SPDX-License-Identifier: Apache-2.0 */
/* Samples on their way to the device, one batch ahead of the computing, on a
 * stream of their own. Where the device's memory is the host's, batches are
 * computed with where they lie. */
#ifndef CAPSTAN_BATCH_PREFETCH_H
#define CAPSTAN_BATCH_PREFETCH_H

#include "proto/base/status.h"
#include "worker/data/loader.h"
#include "worker/ops/device.h"

#include <stdbool.h>
#include <stdint.h>

enum { BATCH_PREFETCH_SLOTS = 2 };

struct batch_prefetch_slot {
    struct loader_batch batch; /* as the device sees it */
    float *inputs;             /* [max_batch, features], or NULL */
    uint32_t *labels;          /* [max_batch], or NULL */
    struct ops_event *uploaded, *consumed;
};

struct batch_prefetch {
    const struct device *device;
    uint32_t features;
    uint64_t pushed, popped; /* batches */
    struct batch_prefetch_slot slots[BATCH_PREFETCH_SLOTS];
};

/* For batches of up to MAX_BATCH samples. Borrows DEVICE. STATUS_FAILED tells
 * how much memory it does not have. */
enum status batch_prefetch_open(struct batch_prefetch *batch_prefetch,
                                const struct device *device, uint32_t max_batch,
                                uint32_t features,
                                struct failure *why) MUST_CHECK;

/* Nothing is on its way; INTAKE may be all zero. */
void batch_prefetch_close(struct batch_prefetch *batch_prefetch);

/* Is there a batch to take? */
bool batch_prefetch_ready(const struct batch_prefetch *batch_prefetch);

/* BATCH sets out; at most one is ahead of the one taken. Its memory stays as it
 * is until batch_prefetch_sync, on a device without ops.later until what it is
 * taken for is computed. */
void batch_prefetch_push(struct batch_prefetch *batch_prefetch,
                         const struct loader_batch *batch);

/* The oldest batch that is ready, as the device sees it: what is computed from
 * now on may read it, until the second batch_prefetch_push from now. */
const struct loader_batch *batch_prefetch_pop(
    struct batch_prefetch *batch_prefetch);

/* What has been computed so far was the last to read the batch taken. */
void batch_prefetch_release(struct batch_prefetch *batch_prefetch);

/* Waits until the memory of the batches put may change; as ops.await. */
enum status batch_prefetch_sync(struct batch_prefetch *batch_prefetch,
                                struct failure *why) MUST_CHECK;

#endif
