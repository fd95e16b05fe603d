/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/ops/nvml.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

/* As nvml.h of NVIDIA has them. */
struct nvml_utilization {
    unsigned gpu, memory; /* percent */
};
struct nvml_memory {
    unsigned long long total, free, used;
};

static void *function_of(const struct nvml_device *device, const char *name) {
    return device->library ? dlsym(device->library, name) : NULL;
}

/* "GPU-8-4-4-4-12" of 32 hexadecimal digits; else ID as it is. */
static void write_uuid(const char *id, char uuid[64]) {
    if (strlen(id) == 32)
        snprintf(uuid, 64, "GPU-%.8s-%.4s-%.4s-%.4s-%.12s", id, id + 8, id + 12,
                 id + 16, id + 20);
    else
        snprintf(uuid, 64, "%s", id);
}

bool nvml_open(struct nvml_device *device, const char *id) {
    char uuid[64];
    *device = (struct nvml_device){
        .library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL)};
    int (*init)(void) = function_of(device, "nvmlInit_v2");
    int (*find)(const char *, void **) =
        function_of(device, "nvmlDeviceGetHandleByUUID");
    write_uuid(id, uuid);
    if (!device->library)
        snprintf(device->reason, sizeof device->reason,
                 "there is no libnvidia-ml.so.1");
    else if (!init || !find)
        snprintf(device->reason, sizeof device->reason,
                 "libnvidia-ml lacks functions");
    else if (init() || find(uuid, &device->handle))
        snprintf(device->reason, sizeof device->reason,
                 "libnvidia-ml does not find the device");
    if (device->reason[0])
        device->handle = NULL;
    return device->handle != NULL;
}

void nvml_close(struct nvml_device *device) {
    int (*end)(void) = function_of(device, "nvmlShutdown");
    if (end)
        end();
    if (device->library)
        dlclose(device->library);
    device->library = device->handle = NULL;
}

bool nvml_ask(const struct nvml_device *device, struct nvml_use *out) {
    struct nvml_utilization rates;
    struct nvml_memory memory;
    int (*ask_rates)(void *, struct nvml_utilization *) =
        function_of(device, "nvmlDeviceGetUtilizationRates");
    int (*ask_memory)(void *, struct nvml_memory *) =
        function_of(device, "nvmlDeviceGetMemoryInfo");
    if (!device->handle || !ask_rates || !ask_memory ||
        ask_rates(device->handle, &rates) || rates.gpu > 100 ||
        ask_memory(device->handle, &memory))
        return false;
    *out = (struct nvml_use){rates.gpu, memory.used};
    return true;
}
