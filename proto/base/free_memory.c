#include "proto/base/free_memory.h"

#include <stdio.h>
#include <unistd.h>

uint64_t free_memory_half(void) {
    uint64_t bytes =
        (uint64_t)sysconf(_SC_AVPHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    unsigned long long limit, used;
    FILE *max = fopen("/sys/fs/cgroup/memory.max", "re");
    FILE *now = fopen("/sys/fs/cgroup/memory.current", "re");
    if (max && now && fscanf(max, "%llu", &limit) == 1 &&
        fscanf(now, "%llu", &used) == 1 && limit > used && limit - used < bytes)
        bytes = limit - used;
    if (max)
        fclose(max);
    if (now)
        fclose(now);
    return bytes / 2;
}
