/* SPDX-License-Identifier: Apache-2.0 */
/* Asks once a second, on a thread of its own, how busy the GPUs of a trainer
 * are: the driver may take its time or not answer. */
#ifndef CAPSTAN_GPU_WATCH_H
#define CAPSTAN_GPU_WATCH_H

#include "core/base/device_head.h"

#include <stdint.h>

struct gpu_watch;

struct gpu_watch_use {
    double utilization; /* percent of the time in which a kernel ran, mean */
    double memory;      /* bytes in use, of all */
};

/* Watches the COUNT devices of IDS (at most JOB_MAX_DEVICES). NULL if there
 * are none, or no thread for it. */
struct gpu_watch *gpu_watch_open(const char *const *ids, uint32_t count);

/* Waits for the call in progress, frees *WATCH (may be NULL) and clears it. */
void gpu_watch_close(struct gpu_watch **watch);

/* The number of GPUs that *OUT is of. 0 leaves it: WATCH is NULL, or one of
 * them does not tell. */
uint32_t gpu_watch_read(struct gpu_watch *watch, struct gpu_watch_use *out);

#endif
