/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base/plugin.h"

#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static atomic_uint threads_left;
static const char *_Atomic left_in;

/* The program's own file, or that of the library in another's program. */
static void own_file(char *path) {
    Dl_info info;
    struct link_map *map = NULL;
    if (dladdr1((void *)plugin_path, &info, (void **)&map, RTLD_DL_LINKMAP) &&
        map->l_name[0] && realpath(map->l_name, path))
        return;
    ssize_t length = readlink("/proc/self/exe", path, PATH_MAX - 1);
    path[length > 0 ? length : 0] = 0;
}

void plugin_path(const char *name, char *path, size_t size) {
    char folder[PATH_MAX];
    own_file(folder);
    char *slash = strrchr(folder, '/');
    if (slash)
        *slash = 0;
    snprintf(path, size, "%s/capstan-%s.so", folder, name);
}

enum status plugin_load(const void **table, const char *path,
                        const char *symbol, uint32_t abi, struct failure *why) {
    *table = NULL;
    if (access(path, R_OK))
        return status_fail(why, FAILURE_PLUGIN_MISSING,
                           "not in this build: there is no %s", path);
    void *object = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!object)
        return status_fail(why, FAILURE_PLUGIN_MISSING, "cannot be opened: %s",
                           dlerror());
    const struct plugin_head *head = dlsym(object, symbol);
    if (!head)
        return status_fail(why, FAILURE_PLUGIN_MISSING,
                           "%s is not a plugin of capstan", path);
    if (head->abi != abi)
        return status_fail(why, FAILURE_PLUGIN_MISSING,
                           "%s speaks version %u, this program %u: install "
                           "one release",
                           path, head->abi, abi);
    *table = head;
    return STATUS_OK;
}

enum status plugin_find(const void **table, const char *name,
                        const char *symbol, uint32_t abi, struct failure *why) {
    char path[PATH_MAX + 64];
    struct failure missing;
    plugin_path(name, path, sizeof path);
    enum status status = plugin_load(table, path, symbol, abi, why);
    if (status)
        return status;
    const struct plugin_head *head = *table;
    if (!head->check(&missing))
        return STATUS_OK;
    *table = NULL;
    return status_fail(why, FAILURE_PLUGIN_MISSING, "cannot work here: %s",
                       missing.text);
}

void plugin_leave_thread(const char *name) {
    atomic_store(&left_in, name);
    atomic_fetch_add(&threads_left, 1);
}

unsigned plugin_threads_left(const char **name) {
    unsigned count = atomic_load(&threads_left);
    if (name)
        *name = atomic_load(&left_in);
    return count;
}
