/* SPDX-License-Identifier: Apache-2.0 */
/* Samples on their way to the device, one batch ahead of the computing, on a
 * stream of their own. Where the device's memory is the host's, batches are
 * computed with where they lie. */
#ifndef CAPSTAN_INTAKE_H
#define CAPSTAN_INTAKE_H

#include "proto/base/status.h"
#include "worker/data/loader.h"
#include "worker/ops/device.h"

#include <stdbool.h>
#include <stdint.h>

enum { INTAKE_PLACES = 2 };

struct intake_place {
    struct loader_batch batch; /* as the device sees it */
    float *inputs;             /* [max_batch, features], or NULL */
    uint32_t *labels;          /* [max_batch], or NULL */
    struct ops_event *here, *free;
};

struct intake {
    const struct device *device;
    uint32_t features;
    uint64_t put, taken; /* batches */
    struct intake_place places[INTAKE_PLACES];
};

/* For batches of up to MAX_BATCH samples. Borrows DEVICE. STATUS_FAILED tells
 * how much memory it does not have. */
enum status intake_open(struct intake *intake, const struct device *device,
                        uint32_t max_batch, uint32_t features,
                        struct failure *why) MUST_CHECK;

/* Nothing is on its way; INTAKE may be all zero. */
void intake_close(struct intake *intake);

/* Is there a batch to take? */
bool intake_ready(const struct intake *intake);

/* BATCH sets out; at most one is ahead of the one taken. Its memory stays as it
 * is until intake_await, on a device without ops.later until what it is taken
 * for is computed. */
void intake_put(struct intake *intake, const struct loader_batch *batch);

/* The oldest batch that is ready, as the device sees it: what is computed from
 * now on may read it, until the second intake_put from now. */
const struct loader_batch *intake_take(struct intake *intake);

/* What has been computed so far was the last to read the batch taken. */
void intake_done(struct intake *intake);

/* Waits until the memory of the batches put may change; as ops.await. */
enum status intake_await(struct intake *intake, struct failure *why) MUST_CHECK;

#endif
