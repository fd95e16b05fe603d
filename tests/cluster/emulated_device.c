/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/cluster/emulated_device.h"

#include "core/base/plugin.h"
#include "tests/lib/assert_fails.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Writes where FILE is that the plugin is made of. */
static void find(const char *file, char path[PATH_MAX]) {
    const char *program = getenv("CAPSTAN");
    snprintf(path, PATH_MAX - 64, "%s", program ? program : "build/capstan");
    char *slash = strrchr(path, '/');
    char *end = slash ? slash + 1 : path;
    snprintf(end, (size_t)(path + PATH_MAX - end), "emulated/%s", file);
}

const struct device_ops *emulated_device_ops(void) {
    char path[PATH_MAX];
    const void *table = NULL;
    find("capstan-cuda.so", path);
    if (access(path, R_OK))
        return NULL;
    if (plugin_load(&table, path, DEVICE_SYMBOL, DEVICE_ABI, &failure)) {
        fprintf(stderr, "%s: %s\n", path, failure.text);
        abort();
    }
    return table;
}

struct cuda_streams_counts emulated_device_counts(void) {
    char path[PATH_MAX];
    struct cuda_streams_counts counts = {0};
    find("libcuda_on_cpu.so", path);
    void *library = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
    void (*count)(struct cuda_streams_counts * counts) = NULL;
    if (library)
        *(void **)&count = dlsym(library, "cuda_streams_count");
    if (!count)
        abort();
    count(&counts);
    dlclose(library);
    return counts;
}
