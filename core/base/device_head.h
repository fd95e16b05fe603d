/* SPDX-License-Identifier: Apache-2.0 */
/* The head of a device plugin's table: enough to list devices.
 * worker/ops/device.h has the whole table. */
#ifndef CAPSTAN_DEVICE_HEAD_H
#define CAPSTAN_DEVICE_HEAD_H

#include "core/base/status.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { DEVICE_ID = 40 };
#define DEVICE_SYMBOL "capstan_device"

struct device_description {
    char name[128];     /* "NVIDIA H200" */
    char id[DEVICE_ID]; /* the same in every process that sees the device, and
                           unique; "": unknown */
    uint32_t major, minor; /* compute capability */
    uint64_t total, free;  /* bytes of memory; free: at this moment */
    bool usable;           /* this build has code for it */
    char reason[256];      /* if not: why, and which build has it */
};

/* Begins like every plugin's table (core/base/plugin.h). */
struct device_head {
    uint32_t abi;        /* DEVICE_ABI of worker/ops/device.h */
    const char *name;    /* "cuda" */
    const char *version; /* of the library that it uses */
    enum status (*check)(struct failure *why);

    /* The number of devices that this process sees. */
    uint32_t (*count)(void);

    /* Describes device INDEX. STATUS_RETRY if it does not answer. */
    enum status (*describe)(uint32_t index, struct device_description *out,
                            struct failure *why);

    /* Like describe, but leaves `free` 0 and takes no memory of the device,
     * where describe starts the device's runtime. */
    enum status (*identify)(uint32_t index, struct device_description *out,
                            struct failure *why);
};

#ifdef __cplusplus
}
#endif

#endif
