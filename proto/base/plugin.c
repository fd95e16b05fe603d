/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/base/plugin.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

void plugin_path(const char *name, char *path, size_t size) {
    char folder[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", folder, sizeof folder - 1);
    folder[length > 0 ? length : 0] = 0;
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
