/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/bench/gpu_use.h"

#include "core/base/time.h"

#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* As nvml.h has it. */
struct utilization {
    unsigned gpu, memory; /* percent */
};

static void *function_of(struct gpu_use *use, const char *name) {
    void *function = use->library ? dlsym(use->library, name) : NULL;
    if (use->library && !function && !use->reason[0])
        snprintf(use->reason, sizeof use->reason, "libnvidia-ml has no %s",
                 name);
    return function;
}

/* "GPU-8-4-4-4-12" of 32 hexadecimal digits; false: ID is something else. */
static bool write_uuid(const char *id, char uuid[64]) {
    if (strlen(id) != 32)
        return false;
    snprintf(uuid, 64, "GPU-%.8s-%.4s-%.4s-%.4s-%.12s", id, id + 8, id + 12,
             id + 16, id + 20);
    return true;
}

static bool find_device(struct gpu_use *use, const char *id) {
    char uuid[64];
    int (*init)(void) = function_of(use, "nvmlInit_v2");
    int (*by_uuid)(const char *, void **) =
        function_of(use, "nvmlDeviceGetHandleByUUID");
    int (*by_index)(unsigned, void **) =
        function_of(use, "nvmlDeviceGetHandleByIndex_v2");
    if (!init || !by_uuid || !by_index || init())
        return false;
    return write_uuid(id, uuid) ? by_uuid(uuid, &use->device) == 0
                                : by_index(0, &use->device) == 0;
}

void gpu_use_open(struct gpu_use *use, const char *id) {
    use->count = 0;
    use->device = NULL;
    use->reason[0] = 0;
    use->library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!use->library)
        snprintf(use->reason, sizeof use->reason,
                 "there is no libnvidia-ml.so.1");
    else if (!find_device(use, id) && !use->reason[0])
        snprintf(use->reason, sizeof use->reason,
                 "libnvidia-ml does not find the device");
}

void gpu_use_close(struct gpu_use *use) {
    int (*shutdown)(void) = function_of(use, "nvmlShutdown");
    if (shutdown)
        shutdown();
    if (use->library)
        dlclose(use->library);
    use->library = use->device = NULL;
}

void gpu_use_sample(struct gpu_use *use) {
    struct utilization now;
    if (!use->device)
        return;
    int (*ask)(void *, struct utilization *) =
        function_of(use, "nvmlDeviceGetUtilizationRates");
    if (!ask || ask(use->device, &now))
        return;
    use->samples[use->count++ % GPU_USE_MAX_SAMPLES] =
        (struct gpu_use_sample){time_now(), now.gpu};
}

double gpu_use_mean(const struct gpu_use *use, int64_t start, int64_t end) {
    size_t kept =
        use->count < GPU_USE_MAX_SAMPLES ? use->count : GPU_USE_MAX_SAMPLES;
    double sum = 0, count = 0;
    for (size_t i = 0; i < kept; i++) {
        const struct gpu_use_sample *sample = &use->samples[i];
        if (sample->time < start || sample->time > end)
            continue;
        sum += sample->percent;
        count++;
    }
    return count > 0 ? sum / count : NAN;
}
