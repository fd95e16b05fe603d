/* SPDX-License-Identifier: Apache-2.0 */
/* Weights on their way to the device that computes with them, and gradients on
 * their way back, parameter by parameter, each kind on a stream of its own
 * beside the computing. Where the device's memory is the host's, the host's
 * arrays are computed with and nothing is copied. */
#ifndef CAPSTAN_FERRY_H
#define CAPSTAN_FERRY_H

#include "proto/base/status.h"
#include "proto/tensor/layout.h"
#include "worker/exchange/allreduce/reducer.h"
#include "worker/ops/device.h"
#include "worker/train/arena.h"

#include <stdbool.h>
#include <stdint.h>

struct ferry {
    const struct device *device;
    const struct layout *layout;
    struct arena *arena;
    float **weights, **gradients; /* of the device, a pointer a parameter */
    float *memory;                /* both, or NULL: the arena's are used */
    bool resident;                /* they stay: nothing is brought or taken */
    bool *current;                /* a parameter's weights are there */
    struct ops_event *brought, *computed;
    bool bringing;            /* weights that no computing follows yet */
    struct ops_event **taken; /* a parameter */
};

/* Borrows all; what buffers ARENA has of its own are pinned. Without GRADIENTS
 * there is no place for them. STATUS_FAILED tells how much memory the device
 * does not have. */
enum status ferry_open(struct ferry *ferry, const struct device *device,
                       const struct layout *layout, struct arena *arena,
                       bool gradients, struct failure *why) MUST_CHECK;

/* The same for weights and gradients that stay on DEVICE, which has memory of
 * its own, and lie there as in the arena; others see to them (ferry_place). */
enum status ferry_open_resident(struct ferry *ferry,
                                const struct device *device,
                                const struct layout *layout,
                                struct arena *arena,
                                struct failure *why) MUST_CHECK;

/* Where those are; a view. */
struct reducer_place ferry_place(const struct ferry *ferry);

/* Nothing is on its way; FERRY may be all zero. */
void ferry_close(struct ferry *ferry);

/* The weights in the arena are others than those brought before. */
void ferry_renew(struct ferry *ferry);

/* PARAMETER's weights set out from the arena, where they stay as they are until
 * what needs them is computed. Resident ones are there already. */
void ferry_bring(struct ferry *ferry, uint32_t parameter);

/* What is computed from now on has the weights that were brought so far. */
void ferry_land(struct ferry *ferry);

/* PARAMETER's gradient is complete by what has been computed so far, and stays
 * on the device. */
void ferry_note(struct ferry *ferry, uint32_t parameter);

/* As it is on the device after ferry_note, it sets out for the arena. */
void ferry_fetch(struct ferry *ferry, uint32_t parameter);

/* PARAMETER's gradient is complete by what has been computed so far: it sets
 * out for the arena, or, resident, that moment is recorded. */
void ferry_take(struct ferry *ferry, uint32_t parameter);

/* Waits until it is there: complete, or in the arena; or, resident, does not
 * wait. As ops.await. */
enum status ferry_await(struct ferry *ferry, uint32_t parameter,
                        struct failure *why) MUST_CHECK;

#endif
