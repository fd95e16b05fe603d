/* SPDX-License-Identifier: Apache-2.0 */
/* What nvml.c calls of libnvidia-ml, for tests: fake GPU n
 * (tests/gpu/fake_device.h) is busy for 37 + 10 n percent of the time, and n +
 * 1 GiB of its memory are in use. */
#include <string.h>

enum { BUSY = 37, BUSIER = 10, DEVICES = 6, NOT_FOUND = 6 };

#define EXPORTED __attribute__((visibility("default")))

struct utilization {
    unsigned gpu, memory;
};
struct memory {
    unsigned long long total, free, used;
};

EXPORTED int nvmlInit_v2(void);
EXPORTED int nvmlShutdown(void);
EXPORTED int nvmlDeviceGetHandleByUUID(const char *uuid, void **device);
EXPORTED int nvmlDeviceGetUtilizationRates(void *device,
                                           struct utilization *out);
EXPORTED int nvmlDeviceGetMemoryInfo(void *device, struct memory *out);

static unsigned numbers[DEVICES] = {0, 1, 2, 3, 4, 5};

int nvmlInit_v2(void) {
    return 0;
}

int nvmlShutdown(void) {
    return 0;
}

/* "fake MACHINE.NUMBER" */
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
    const char *dot = strchr(uuid, '.');
    if (strncmp(uuid, "fake ", 5) != 0 || !dot || dot[1] < '0' ||
        dot[1] >= '0' + DEVICES)
        return NOT_FOUND;
    *device = &numbers[dot[1] - '0'];
    return 0;
}

int nvmlDeviceGetUtilizationRates(void *device, struct utilization *out) {
    const unsigned *number = device;
    *out = (struct utilization){BUSY + BUSIER * *number, 0};
    return 0;
}

int nvmlDeviceGetMemoryInfo(void *device, struct memory *out) {
    const unsigned *number = device;
    *out = (struct memory){.used = (*number + 1ULL) << 30};
    return 0;
}
