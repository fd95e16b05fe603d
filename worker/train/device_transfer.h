/* SPDX-License-Identifier: Apache-2.0 */
/* Host-to-device copies of weights and device-to-host copies of gradients, one
 * parameter at a time, each direction on its own stream beside the computation.
 * If the device's memory is the host's, the host's arrays are used and nothing
 * is copied. */
#ifndef CAPSTAN_DEVICE_TRANSFER_H
#define CAPSTAN_DEVICE_TRANSFER_H

#include "core/base/status.h"
#include "core/tensor/layout.h"
#include "worker/exchange/allreduce/reducer.h"
#include "worker/ops/local_device.h"
#include "worker/train/arena.h"

#include <stdbool.h>
#include <stdint.h>

struct device_transfer {
    const struct local_device *device;
    const struct layout *layout;
    struct arena *arena;
    float **weights, **gradients; /* device memory, one pointer per parameter */
    float *memory;                /* both; NULL: the arena's memory is used */
    bool resident; /* weights and gradients stay on the device: nothing is
                      copied */
    bool *current; /* per parameter: its weights are on the device */
    struct device_event *uploaded, *computed;
    bool upload_pending; /* uploads that no stream_wait has followed yet */
    struct device_event **downloaded; /* per parameter */
};

/* Borrows all; pins the buffers that ARENA owns. Without GRADIENTS no memory is
 * allocated for them. STATUS_FAILED: not enough device memory; WHY says how
 * much. */
enum status device_transfer_open(struct device_transfer *transfer,
                                 const struct local_device *device,
                                 const struct layout *layout,
                                 struct arena *arena, bool gradients,
                                 struct failure *why) MUST_CHECK;

/* The same for weights and gradients that stay on DEVICE, which has its own
 * memory, at the arena's offsets; the reducer maintains them
 * (device_transfer_arena). */
enum status device_transfer_open_resident(struct device_transfer *transfer,
                                          const struct local_device *device,
                                          const struct layout *layout,
                                          struct arena *arena,
                                          struct failure *why) MUST_CHECK;

/* The resident memory; a view. */
struct reducer_device_arena device_transfer_arena(
    const struct device_transfer *transfer);

/* No copy may be in flight; TRANSFER may be all zero. */
void device_transfer_close(struct device_transfer *transfer);

/* Call when the arena's weights have changed since the last upload. */
void device_transfer_invalidate(struct device_transfer *transfer);

/* Starts the upload of PARAMETER's weights from the arena, where they must not
 * change until the computation that needs them is done. No-op if resident. */
void device_transfer_upload(struct device_transfer *transfer,
                            uint32_t parameter);

/* Orders later computation behind the uploads so far. */
void device_transfer_wait(struct device_transfer *transfer);

/* Records PARAMETER's gradient as complete after the computation enqueued so
 * far; it stays on the device. */
void device_transfer_record(struct device_transfer *transfer,
                            uint32_t parameter);

/* Starts the download of a gradient after device_transfer_record. */
void device_transfer_download_recorded(struct device_transfer *transfer,
                                       uint32_t parameter);

/* PARAMETER's gradient is complete after the computation enqueued so far:
 * starts its download, or, if resident, records an event. */
void device_transfer_download(struct device_transfer *transfer,
                              uint32_t parameter);

/* Waits until the recorded gradient is complete or the downloaded one is in the
 * arena; returns at once if resident. As ops.event_sync. */
enum status device_transfer_sync(struct device_transfer *transfer,
                                 uint32_t parameter,
                                 struct failure *why) MUST_CHECK;

#endif
