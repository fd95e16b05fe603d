/* SPDX-License-Identifier: Apache-2.0 */
/* Uploads samples to the device on a separate stream, one batch ahead of the
 * computation. If the device's memory is the host's, batches are used in
 * place. */
#ifndef CAPSTAN_BATCH_PREFETCH_H
#define CAPSTAN_BATCH_PREFETCH_H

#include "core/base/status.h"
#include "worker/data/batch.h"
#include "worker/ops/local_device.h"

#include <stdbool.h>
#include <stdint.h>

enum { BATCH_PREFETCH_SLOTS = 2 };

struct batch_prefetch_slot {
    struct batch batch;               /* columns on the device; ids are not */
    void *columns[BATCH_MAX_COLUMNS]; /* of MAX_BATCH samples, or NULL */
    uint64_t *number;                 /* on the device; or NULL */
    struct device_event *uploaded, *consumed;
};

struct batch_prefetch {
    const struct local_device *device;
    struct batch_spec spec;
    uint64_t pushed, popped;            /* batches */
    uint8_t *pixels[BATCH_MAX_COLUMNS]; /* on the device, until they are floats
                                           in a slot; or NULL */
    uint64_t *numbers; /* of the slots' batches, a page of pinned host memory;
                          NULL: none is uploaded */
    struct batch_prefetch_slot slots[BATCH_PREFETCH_SLOTS];
};

/* For batches of up to MAX_BATCH samples with SPEC's columns. Borrows DEVICE.
 * STATUS_FAILED: not enough device memory; WHY says how much. */
enum status batch_prefetch_open(struct batch_prefetch *prefetch,
                                const struct local_device *device,
                                uint32_t max_batch,
                                const struct batch_spec *spec,
                                struct failure *why) MUST_CHECK;

/* No upload may be in flight; PREFETCH may be all zero. */
void batch_prefetch_close(struct batch_prefetch *prefetch);

/* True if a batch can be popped. */
bool batch_prefetch_ready(const struct batch_prefetch *prefetch);

/* Starts the upload of BATCH, without its columns of rows; at most one batch is
 * ahead of the popped one, and the uploads of the one before that are done. Its
 * memory must not change until batch_prefetch_sync, or, on a device without
 * ops.async, until the computation that uses it is done. */
void batch_prefetch_push(struct batch_prefetch *prefetch,
                         const struct batch *batch);

/* The oldest pushed batch, which is not popped yet; view. */
const struct batch *batch_prefetch_peek(const struct batch_prefetch *prefetch);

/* The oldest pushed batch, its columns on the device: computation enqueued from
 * now on may read it, until the second batch_prefetch_push from now. Its ids
 * are the pushed batch's own, a view as long as that one's. */
const struct batch *batch_prefetch_pop(struct batch_prefetch *prefetch);

/* Marks the computation enqueued so far as the last that reads the popped
 * batch. */
void batch_prefetch_release(struct batch_prefetch *prefetch);

/* Waits until the memory of the pushed batches may change; as
 * ops.event_sync. */
enum status batch_prefetch_sync(struct batch_prefetch *prefetch,
                                struct failure *why) MUST_CHECK;

#endif
