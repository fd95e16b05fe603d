/* SPDX-License-Identifier: Apache-2.0 */
/* Weights on their way to the device that computes with them, and gradients on
 * their way back, parameter by parameter, each kind on a stream of its own
 * beside the computing. Where the device's memory is the host's, the host's
 * arrays are computed with and nothing is copied. */
#ifndef CAPSTAN_DEVICE_TRANSFER_H
#define CAPSTAN_DEVICE_TRANSFER_H

#include "proto/base/status.h"
#include "proto/tensor/layout.h"
#include "worker/exchange/allreduce/reducer.h"
#include "worker/ops/device.h"
#include "worker/train/arena.h"

#include <stdbool.h>
#include <stdint.h>

struct device_transfer {
    const struct device *device;
    const struct layout *layout;
    struct arena *arena;
    float **weights, **gradients; /* of the device, a pointer a parameter */
    float *memory;                /* both, or NULL: the arena's are used */
    bool resident;                /* they stay: nothing is brought or taken */
    bool *current;                /* a parameter's weights are there */
    struct ops_event *uploaded, *computed;
    bool upload_pending;           /* weights that no computing follows yet */
    struct ops_event **downloaded; /* a parameter */
};

/* Borrows all; what buffers ARENA has of its own are pinned. Without GRADIENTS
 * there is no place for them. STATUS_FAILED tells how much memory the device
 * does not have. */
enum status device_transfer_open(struct device_transfer *device_transfer,
                                 const struct device *device,
                                 const struct layout *layout,
                                 struct arena *arena, bool gradients,
                                 struct failure *why) MUST_CHECK;

/* The same for weights and gradients that stay on DEVICE, which has memory of
 * its own, and lie there as in the arena; others see to them
 * (device_transfer_arena). */
enum status device_transfer_open_resident(
    struct device_transfer *device_transfer, const struct device *device,
    const struct layout *layout, struct arena *arena,
    struct failure *why) MUST_CHECK;

/* Where those are; a view. */
struct reducer_device_arena device_transfer_arena(
    const struct device_transfer *device_transfer);

/* Nothing is on its way; FERRY may be all zero. */
void device_transfer_close(struct device_transfer *device_transfer);

/* The weights in the arena are others than those brought before. */
void device_transfer_invalidate(struct device_transfer *device_transfer);

/* PARAMETER's weights set out from the arena, where they stay as they are until
 * what needs them is computed. Resident ones are there already. */
void device_transfer_upload(struct device_transfer *device_transfer,
                            uint32_t parameter);

/* What is computed from now on has the weights that were brought so far. */
void device_transfer_wait(struct device_transfer *device_transfer);

/* PARAMETER's gradient is complete by what has been computed so far, and stays
 * on the device. */
void device_transfer_record(struct device_transfer *device_transfer,
                            uint32_t parameter);

/* As it is on the device after device_transfer_record, it sets out for the
 * arena. */
void device_transfer_download_recorded(struct device_transfer *device_transfer,
                                       uint32_t parameter);

/* PARAMETER's gradient is complete by what has been computed so far: it sets
 * out for the arena, or, resident, that moment is recorded. */
void device_transfer_download(struct device_transfer *device_transfer,
                              uint32_t parameter);

/* Waits until it is there: complete, or in the arena; or, resident, does not
 * wait. As ops.await. */
enum status device_transfer_sync(struct device_transfer *device_transfer,
                                 uint32_t parameter,
                                 struct failure *why) MUST_CHECK;

#endif
