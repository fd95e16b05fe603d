/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base/cgroup.h"

#include <stdio.h>
#include <string.h>

enum { PATH_BYTES = 4096 };

struct cgroup_walk {
    const char *root;
    void (*visit)(void *context, const struct cgroup *group);
    void *context;
};

/* GROUP of the controllers that are mounted on MOUNT, and its ancestors. */
static void visit_all(const struct cgroup_walk *walk, const char *mount,
                      const char *group, bool v2) {
    char folder[PATH_BYTES];
    int length = snprintf(folder, sizeof folder, "%s%s", mount, group);
    size_t end = strlen(mount);
    const struct cgroup visited = {walk->root, folder, folder + end, v2};
    if (length >= (int)sizeof folder)
        return;
    while (strlen(folder) > end) {
        char *slash = strrchr(folder, '/');
        if (slash[1])
            walk->visit(walk->context, &visited);
        *slash = 0;
    }
    folder[end] = 0;
    walk->visit(walk->context, &visited);
}

/* Is NAME in LIST, "cpu,cpuacct"? */
static bool lists_controller(const char *list, const char *name) {
    size_t length = strlen(name);
    for (; *list; list += *list == ',') {
        size_t item = strcspn(list, ",");
        if (item == length && !strncmp(list, name, length))
            return true;
        list += item;
    }
    return false;
}

/* A line of /proc/self/cgroup is "number:controllers:/group". */
void cgroup_visit(const char *root, const char *controller,
                  void (*visit)(void *context, const struct cgroup *group),
                  void *context) {
    const struct cgroup_walk walk = {root, visit, context};
    char line[PATH_BYTES], path[PATH_BYTES], mount[64];
    int length = snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    FILE *file = length < (int)sizeof path ? fopen(path, "re") : NULL;
    snprintf(mount, sizeof mount, "/sys/fs/cgroup/%s", controller);
    while (file && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        char *controllers = strchr(line, ':');
        char *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group)
            continue;
        *group++ = 0;
        if (!controllers[1])
            visit_all(&walk, "/sys/fs/cgroup", group, true);
        else if (lists_controller(controllers + 1, controller))
            visit_all(&walk, mount, group, false);
    }
    if (file)
        fclose(file);
}
