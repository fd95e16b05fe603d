/* SPDX-License-Identifier: Apache-2.0 */
/* What gpu_use.c calls of libnvidia-ml, for tests: a GPU that is busy for 37 %
 * of the time. */
#include <stddef.h>

enum { BUSY = 37 };

#define EXPORTED __attribute__((visibility("default")))

struct utilization {
    unsigned gpu, memory;
};

EXPORTED int nvmlInit_v2(void);
EXPORTED int nvmlShutdown(void);
EXPORTED int nvmlDeviceGetHandleByUUID(const char *uuid, void **device);
EXPORTED int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device);
EXPORTED int nvmlDeviceGetUtilizationRates(void *device,
                                           struct utilization *out);

int nvmlInit_v2(void) {
    return 0;
}

int nvmlShutdown(void) {
    return 0;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
    (void)uuid, (void)device;
    return 6; /* NVML_ERROR_NOT_FOUND */
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    static char only;
    *device = &only;
    return index == 0 ? 0 : 6;
}

int nvmlDeviceGetUtilizationRates(void *device, struct utilization *out) {
    *out = (struct utilization){BUSY, 0};
    return device ? 0 : 1;
}
