/* SPDX-License-Identifier: Apache-2.0 */
/* Selects and opens a trainer's device, and reports why a device cannot be used
 * or lacks memory. */
#ifndef CAPSTAN_LOCAL_DEVICE_H
#define CAPSTAN_LOCAL_DEVICE_H

#include "core/base/log.h"
#include "core/base/status.h"
#include "proto/job/job.h"
#include "worker/ops/device.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct local_device {
    const struct device_ops *ops;
    struct device *handle;
    const struct log *log; /* borrowed */
    uint32_t index;        /* among the devices of its kind on this host */
    char name[192];        /* "cpu", "cuda 1 (NVIDIA H200)" */
};

struct local_device_request {
    enum job_device kind;
    uint32_t threads;        /* of the CPU device */
    uint32_t local_rank;     /* rank among the trainers of this host */
    uint32_t local_trainers; /* number of trainers on this host; 0: unknown */
    const struct device_ops *cuda; /* NULL: capstan-cuda.so, if it works */
    double timeout; /* time limit of a wait for the device in seconds */
    bool tf32;      /* the job's */
    bool (*is_cancelled)(void *context); /* see device_settings, or NULL */
    void *context;
};

/* Opens the device that REQUEST selects: GPU local_rank modulo the number of
 * GPUs, or the CPU. LOG receives the choice, and why it is no GPU if one would
 * be used. STATUS_CONFIG if a requested GPU is unavailable; WHY has the
 * reason. */
enum status local_device_open(struct local_device *device,
                              const struct local_device_request *request,
                              const struct log *log,
                              struct failure *why) MUST_CHECK;

/* Fills IDS, room for CAPACITY, with the ids of the devices that REQUEST
 * chooses among, in their order, and *USABLE with the number of them that this
 * build has code for; opens no device. Returns the number of ids; 0 if the CPU
 * is used or a device has no id. */
uint32_t local_device_list_ids(const struct local_device_request *request,
                               char (*ids)[DEVICE_ID], uint32_t capacity,
                               uint32_t *usable);

/* Waits for enqueued work and closes the device; DEVICE may be all zero. */
void local_device_close(struct local_device *device);

/* Pins BYTES of host MEMORY for asynchronous copies. If that fails, logs a
 * warning that copies are slower. */
void local_device_pin(const struct local_device *device, void *memory,
                      size_t bytes);
void local_device_unpin(const struct local_device *device, void *memory);

/* The FREE bytes of a device with its own memory, and its ID as in
 * device_head.h; false if it has none or does not report them. */
bool local_device_query_memory(const struct local_device *device,
                               uint64_t *free, char id[static DEVICE_ID]);

/* Adds to WHY, which reports missing memory of DEVICE, how much is free and
 * which keys of JOB reduce the need. Returns its status. */
enum status local_device_add_memory_hint(const struct local_device *device,
                                         const struct job *job,
                                         struct failure *why);

#endif
