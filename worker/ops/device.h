/* SPDX-License-Identifier: Apache-2.0 */
/* The device a trainer computes on: which it is, opened, and what is said when
 * it cannot be had or has no memory left. */
#ifndef CAPSTAN_DEVICE_H
#define CAPSTAN_DEVICE_H

#include "proto/base/log.h"
#include "proto/base/status.h"
#include "proto/config/job/job.h"
#include "worker/ops/ops.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct device {
    const struct ops *ops;
    struct ops_device *handle;
    const struct log *log; /* borrowed */
    uint32_t index;        /* among those of its kind on this host */
    char name[192];        /* "cpu", "cuda 1 (NVIDIA H200)" */
};

struct device_request {
    enum job_device kind;
    uint32_t threads;        /* of the CPU */
    uint32_t local_rank;     /* place among the trainers of this host */
    uint32_t local_trainers; /* how many those are; 0: not known */
    const struct ops *cuda;  /* NULL: capstan-cuda.so, where it can work */
    double timeout;          /* seconds that a wait for it may take */
    bool (*is_cancelled)(void *context); /* as in ops_settings, or NULL */
    void *context;
};

/* Takes the device that WISH means: GPU local_rank, modulo how many there are,
 * or the CPU; LOG hears which, and why it is no GPU where one would do.
 * STATUS_CONFIG says what a wished GPU lacks. */
enum status device_open(struct device *device,
                        const struct device_request *request,
                        const struct log *log, struct failure *why) MUST_CHECK;

/* Fills IDS, room for MOST, with those of the devices that WISH chooses among,
 * in their order, and *USABLE with how many of them there is code for; nothing
 * of a device is taken. Returns how many ids; 0: it is the processor that is
 * computed on, or a device does not tell its id. */
uint32_t device_list_ids(const struct device_request *request,
                         char (*ids)[DEVICE_ID], uint32_t capacity,
                         uint32_t *usable);

/* Waits for what is under way, and lets it go; DEVICE may be all zero. */
void device_close(struct device *device);

/* Host MEMORY of BYTES that is copied from or to while the host goes on. Where
 * it cannot be pinned a warning says that copies are slower. */
void device_pin(const struct device *device, void *memory, size_t bytes);
void device_unpin(const struct device *device, void *memory);

/* Bytes that are FREE on a device with memory of its own, and its ID as in
 * device_head.h; false: it has none, or does not tell. */
bool device_query_memory(const struct device *device, uint64_t *free,
                         char id[static DEVICE_ID]);

/* Adds to WHY, which tells of memory that DEVICE does not have, what is free
 * there and which keys of JOB need less. Returns its status. */
enum status device_add_memory_hint(const struct device *device,
                                   const struct job *job, struct failure *why);

#endif
