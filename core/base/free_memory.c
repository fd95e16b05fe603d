/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base/free_memory.h"

#include "core/base/cgroup.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH_BYTES = 4096 };

struct limit_list {
    const char *root;
    struct free_memory_limit *limits;
    bool swaps; /* memory that can be swapped out counts */
    unsigned count;
    char machine[48];          /* identifies this machine */
    uint64_t swap, total_swap; /* free and total; 0 unless `swaps` */
};

static FILE *open_below(const char *root, const char *path) {
    char whole[PATH_BYTES];
    int length = snprintf(whole, sizeof whole, "%s%s", root, path);
    return length < (int)sizeof whole ? fopen(whole, "re") : NULL;
}

/* The number after FIELD in a file of lines "field number"; the file's first
 * number if FIELD is empty. */
static bool free_memory_read_number(const char *root, const char *path,
                                    const char *field, uint64_t *number) {
    FILE *file = open_below(root, path);
    char line[256];
    size_t length = strlen(field);
    unsigned long long value;
    bool found = false;
    while (file && !found && fgets(line, sizeof line, file))
        found = !strncmp(line, field, length) &&
                sscanf(line + length, "%llu", &value) == 1;
    if (file)
        fclose(file);
    if (found)
        *number = value;
    return found;
}

static struct free_memory_limit *free_memory_add(struct limit_list *list,
                                                 uint64_t free, uint64_t most) {
    if (list->count == FREE_MEMORY_LIMITS)
        return NULL;
    struct free_memory_limit *limit = &list->limits[list->count++];
    *limit = (struct free_memory_limit){.free = free,
                                        .most = most > free ? most : free};
    return limit;
}

/* ZFS's file cache: reclaimable, but not counted as available. */
static uint64_t zfs_cached(const char *root) {
    FILE *file = open_below(root, "/proc/spl/kstat/zfs/arcstats");
    unsigned long long size = 0, least = 0;
    char line[256];
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "size %*u %llu", &size) != 1)
            (void)sscanf(line, "c_min %*u %llu", &least);
    if (file)
        fclose(file);
    return size > least ? size - least : 0;
}

static void add_machine(struct limit_list *list) {
    FILE *file = open_below(list->root, "/proc/sys/kernel/random/boot_id");
    uint64_t kib, most = 0;
    if (!file || fscanf(file, "%47s", list->machine) != 1)
        list->machine[0] = 0;
    if (file)
        fclose(file);
    if (list->swaps &&
        free_memory_read_number(list->root, "/proc/meminfo", "SwapFree:", &kib))
        list->swap = kib << 10;
    if (list->swaps && free_memory_read_number(list->root, "/proc/meminfo",
                                               "SwapTotal:", &kib))
        list->total_swap = kib << 10;
    if (free_memory_read_number(list->root, "/proc/meminfo", "MemTotal:", &kib))
        most = (kib << 10) + list->total_swap;
    if (!free_memory_read_number(list->root, "/proc/meminfo",
                                 "MemAvailable:", &kib))
        return;
    struct free_memory_limit *limit = free_memory_add(
        list, (kib << 10) + zfs_cached(list->root) + list->swap, most);
    if (!limit)
        return;
    snprintf(limit->key, sizeof limit->key, "%s", list->machine);
    snprintf(limit->name, sizeof limit->name, "free memory");
}

/* Control groups v1 and v2. The kernel reclaims memory in `cached` when the
 * group is full. */
struct cgroup_version {
    const char *limit, *used, *stat;
    const char *cached[3];
};

static const struct cgroup_version cgroup_v2 = {
    "memory.max",
    "memory.current",
    "memory.stat",
    {"inactive_file ", "active_file ", "slab_reclaimable "}};
static const struct cgroup_version cgroup_v1 = {
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    "memory.stat",
    {"total_inactive_file ", "total_active_file ", NULL}};

static bool number_of(const struct limit_list *list, const char *folder,
                      const char *file, const char *field, uint64_t *number) {
    char path[PATH_BYTES];
    int length = snprintf(path, sizeof path, "%s/%s", folder, file);
    return length < (int)sizeof path &&
           free_memory_read_number(list->root, path, field, number);
}

/* A group's path differs between containers; its inode number is the same in
 * all. */
static void name_group(const struct limit_list *list,
                       const struct cgroup_version *cgroup_version,
                       const struct cgroup *group,
                       struct free_memory_limit *limit) {
    char path[PATH_BYTES];
    struct stat about = {0};
    int length = snprintf(path, sizeof path, "%s%s", list->root, group->folder);
    if (length >= (int)sizeof path || stat(path, &about))
        about.st_ino = 0;
    snprintf(limit->key, sizeof limit->key, "%s group %llu", list->machine,
             (unsigned long long)about.st_ino);
    snprintf(limit->name, sizeof limit->name, "left by control group %.80s, %s",
             *group->name ? group->name : "/", cgroup_version->limit);
}

/* Without a limit the file holds a word, or a number larger than any machine's
 * memory. */
static void add_group(void *context, const struct cgroup *group) {
    struct limit_list *list = context;
    const struct cgroup_version *cgroup_version =
        group->v2 ? &cgroup_v2 : &cgroup_v1;
    const char *folder = group->folder;
    uint64_t most, used, cached;
    if (!number_of(list, folder, cgroup_version->limit, "", &most) ||
        !number_of(list, folder, cgroup_version->used, "", &used) ||
        most > UINT64_C(1) << 60)
        return;
    for (size_t i = 0; i < 3 && cgroup_version->cached[i]; i++)
        if (number_of(list, folder, cgroup_version->stat,
                      cgroup_version->cached[i], &cached))
            used -= cached < used ? cached : used;
    struct free_memory_limit *limit =
        free_memory_add(list, (most > used ? most - used : 0) + list->swap,
                        most + list->total_swap);
    if (limit)
        name_group(list, cgroup_version, group, limit);
}

static void add_own(struct limit_list *list, uint64_t most, const char *field,
                    const char *name) {
    uint64_t kib;
    if (most >= RLIM_INFINITY ||
        !free_memory_read_number(list->root, "/proc/self/status", field, &kib))
        return;
    struct free_memory_limit *limit =
        free_memory_add(list, most > kib << 10 ? most - (kib << 10) : 0, 0);
    if (!limit)
        return;
    limit->addresses = !strcmp(field, "VmSize:");
    snprintf(limit->key, sizeof limit->key, "%s pid %d %s", list->machine,
             (int)getpid(), field);
    snprintf(limit->name, sizeof limit->name, "left to the process by %s",
             name);
}

static void add_all(struct limit_list *list) {
    struct rlimit space, data;
    add_machine(list);
    if (!getrlimit(RLIMIT_AS, &space))
        add_own(list, space.rlim_cur, "VmSize:", "ulimit -v");
    if (!getrlimit(RLIMIT_DATA, &data))
        add_own(list, data.rlim_cur, "VmData:", "ulimit -d");
    cgroup_visit(list->root, "memory", add_group, list);
}

unsigned free_memory_limits(
    const char *root,
    struct free_memory_limit limits[static FREE_MEMORY_LIMITS]) {
    struct limit_list list = {.root = root, .limits = limits, .swaps = true};
    add_all(&list);
    return list.count;
}

unsigned free_memory_unswapped(
    struct free_memory_limit limits[static FREE_MEMORY_LIMITS]) {
    struct limit_list list = {.root = "", .limits = limits};
    add_all(&list);
    return list.count;
}

uint64_t free_memory_half(void) {
    struct free_memory_limit limits[FREE_MEMORY_LIMITS];
    unsigned count = free_memory_unswapped(limits);
    uint64_t least = UINT64_MAX;
    for (unsigned i = 0; i < count; i++)
        if (limits[i].free < least)
            least = limits[i].free;
    return count ? least / 2 : 0;
}

static _Atomic int64_t held;

void free_memory_hold(int64_t bytes) {
    atomic_fetch_add(&held, bytes);
}

uint64_t free_memory_held(void) {
    return (uint64_t)atomic_load(&held);
}
