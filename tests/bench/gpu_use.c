/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/bench/gpu_use.h"

#include "core/base/time.h"

#include <math.h>

void gpu_use_sample(struct gpu_use *use) {
    struct nvml_use now;
    if (nvml_ask(&use->device, &now))
        use->samples[use->count++ % GPU_USE_MAX_SAMPLES] =
            (struct gpu_use_sample){time_now(), now.percent};
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
