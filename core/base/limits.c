/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base/limits.h"

#include "core/base/cgroup.h"
#include "core/base/time.h"

#include <dirent.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

/* The soft limit that servers set, so that unknown peers' connections do not
 * use it up. */
enum { FALLBACK_COUNT = 16, DEFAULT_SOFT_LIMIT = 65536 };
/* As many as a file of a checkpoint takes, or a thread. */
enum { AWAITED_DESCRIPTORS = 8 };
static const int64_t AWAITED_LIMIT = 2 * TIME_S;

static bool is_socket(DIR *folder, const char *name) {
    static const char prefix[] = "socket:";
    char target[sizeof prefix - 1];
    return readlinkat(dirfd(folder), name, target, sizeof target) ==
               (ssize_t)sizeof target &&
           !memcmp(target, prefix, sizeof target);
}

/* Those that unknown peers cannot open: sockets are left out. */
static uint64_t open_descriptors(void) {
    DIR *folder = opendir("/proc/self/fd");
    uint64_t count = 0;
    if (!folder)
        return FALLBACK_COUNT;
    for (const struct dirent *entry; (entry = readdir(folder));)
        count += !is_socket(folder, entry->d_name);
    closedir(folder);
    return count; /* ".", ".." and the opened folder roughly offset what is
                     missed */
}

enum status limits_descriptors(uint64_t more, const char *consumer,
                               struct failure *why) {
    uint64_t needed = open_descriptors() + LIMITS_OWN_DESCRIPTORS + more;
    uint64_t wanted = needed < DEFAULT_SOFT_LIMIT ? DEFAULT_SOFT_LIMIT : needed;
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_cur >= wanted)
        return STATUS_OK;
    if (limit.rlim_max < needed)
        return status_fail(
            why, FAILURE_LIMIT_TOO_LOW,
            "this process may have %llu open files, and%s%s needs %llu: raise "
            "the limit (ulimit -n %llu; LimitNOFILE of systemd, nofile in "
            "/etc/security/limits.conf)",
            (unsigned long long)limit.rlim_max, consumer ? " with " : "",
            consumer ? consumer : "", (unsigned long long)needed,
            (unsigned long long)needed);
    limit.rlim_cur = limit.rlim_max < wanted ? limit.rlim_max : wanted;
    setrlimit(RLIMIT_NOFILE, &limit);
    return STATUS_OK;
}

static bool has_free_descriptors(void) {
    int opened[AWAITED_DESCRIPTORS], count = 0;
    while (count < AWAITED_DESCRIPTORS &&
           (opened[count] = eventfd(0, EFD_CLOEXEC)) >= 0)
        count++;
    for (int i = 0; i < count; i++)
        close(opened[i]);
    return count == AWAITED_DESCRIPTORS;
}

void limits_await_descriptors(void) {
    static const struct timespec again = {.tv_nsec = 5000000};
    int64_t until = time_now() + AWAITED_LIMIT;
    while (!has_free_descriptors() && time_now() < until)
        nanosleep(&again, NULL);
}

/* Processor time that may be used in each period, in microseconds; a group
 * without a limit has "max" or -1. */
struct cpu_quota {
    long long quota, period;
};

/* The numbers of up to two FILES of GROUP, in their order. */
static bool read_quota(const struct cgroup *group, const char *const files[2],
                       struct cpu_quota *out) {
    long long *to[] = {&out->quota, &out->period};
    int read = 0;
    for (int f = 0; f < 2 && files[f]; f++) {
        char path[4096];
        snprintf(path, sizeof path, "%s%s/%s", group->root, group->folder,
                 files[f]);
        FILE *file = fopen(path, "re");
        while (file && read < 2 && fscanf(file, "%lld", to[read]) == 1)
            read++;
        if (file)
            fclose(file);
    }
    return read == 2 && out->quota > 0 && out->period > 0;
}

static void limit_cores(void *context, const struct cgroup *group) {
    static const char *const v2[2] = {"cpu.max", NULL},
                             *const v1[2] = {"cpu.cfs_quota_us",
                                             "cpu.cfs_period_us"};
    uint32_t *cores = context;
    struct cpu_quota quota;
    if (!read_quota(group, group->v2 ? v2 : v1, &quota))
        return;
    long long whole = (quota.quota - 1) / quota.period + 1;
    *cores = whole < *cores ? (uint32_t)whole : *cores;
}

uint32_t cores_limited(const char *root, uint32_t cores) {
    cgroup_visit(root, "cpu", limit_cores, &cores);
    return cores;
}

uint32_t cores_count(void) {
    cpu_set_t set;
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    uint32_t cores = online > 0 ? (uint32_t)online : 1;
    if (!sched_getaffinity(0, sizeof set, &set))
        cores = (uint32_t)CPU_COUNT(&set);
    return cores_limited("", cores);
}
