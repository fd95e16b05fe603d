/* SPDX-License-Identifier: Apache-2.0 */
/* How much memory a process may still take, and what limits it: its machine,
 * its control groups, its own limits. */
#ifndef CAPSTAN_FREE_MEMORY_H
#define CAPSTAN_FREE_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

enum { FREE_MEMORY_LIMITS = 8, FREE_MEMORY_KEY = 96, FREE_MEMORY_NAME = 160 };

/* Processes whose limits have the same KEY share it: together they may take
 * what is free. NAME is for people: "free memory", "left by control group /job,
 * memory.max". */
struct free_memory_limit {
    uint64_t free; /* bytes, memory that can be swapped out included */
    uint64_t held; /* bytes, not in `free`, that a trainer holds already of what
                      its run's plan counts: free_memory_held() */
    uint64_t most; /* bytes if no other process took any; equal to `free` for a
                      process's own limit */
    bool addresses; /* of address space, which mapped files take too */
    char key[FREE_MEMORY_KEY], name[FREE_MEMORY_NAME];
};

/* Fills LIMITS with those of this process and returns how many. Unreadable ones
 * are left out. Reads proc and sys below ROOT: "", but for tests. */
unsigned free_memory_limits(
    const char *root,
    struct free_memory_limit limits[static FREE_MEMORY_LIMITS]);

/* The same without what can be swapped out. */
unsigned free_memory_unswapped(
    struct free_memory_limit limits[static FREE_MEMORY_LIMITS]);

/* BYTES more (less, if negative) of this process are held for its next run,
 * whose plan counts them as needed. By any thread. */
void free_memory_hold(int64_t bytes);

/* Their sum. */
uint64_t free_memory_held(void);

/* Half of the smallest limit's free bytes, without swap; 0 if there is no
 * limit. */
uint64_t free_memory_half(void);

#endif
