/* SPDX-License-Identifier: Apache-2.0 */
/* What the table of a device's plugin begins with: enough to tell which devices
 * there are. The whole table is worker/ops/ops.h's. */
#ifndef CAPSTAN_DEVICE_HEAD_H
#define CAPSTAN_DEVICE_HEAD_H

#include "proto/base/status.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { DEVICE_ABI = 3, DEVICE_ID = 40 };
#define DEVICE_SYMBOL "capstan_device"

struct device_description {
    char name[128];        /* "NVIDIA H200" */
    char id[DEVICE_ID];    /* one for all who see it, and no other's; "" */
    uint32_t major, minor; /* compute capability */
    uint64_t total, free;  /* bytes of memory, now */
    bool usable;           /* this build has code for it */
    char reason[256];      /* else: why not, and which build to take */
};

/* Begins as every plugin's does (proto/base/plugin.h). */
struct device_head {
    uint32_t abi;        /* DEVICE_ABI */
    const char *name;    /* "cuda" */
    const char *version; /* of the library behind it */
    enum status (*check)(struct failure *why);

    /* Devices that this process sees. */
    uint32_t (*count)(void);

    /* Describes device INDEX; STATUS_RETRY when it does not answer. */
    enum status (*describe)(uint32_t index, struct device_description *out,
                            struct failure *why);

    /* The same without `free`, which stays 0; nothing of the device is taken
     * for it, where describing one takes what its runtime needs there. */
    enum status (*identify)(uint32_t index, struct device_description *out,
                            struct failure *why);
};

#ifdef __cplusplus
}
#endif

#endif
