/* SPDX-License-Identifier: Apache-2.0 */
/* What a process may still take of memory, and what sets the limit: its
 * machine, the control groups that it is in, its own limits. */
#ifndef CAPSTAN_FREE_MEMORY_H
#define CAPSTAN_FREE_MEMORY_H

#include <stdint.h>

enum { FREE_MEMORY_LIMITS = 8, FREE_MEMORY_KEY = 96, FREE_MEMORY_NAME = 160 };

/* Processes whose limits have one KEY share what it leaves: the sum of what
 * they take may not pass it. NAME says to people what it is: "free memory",
 * "left by control group /job, memory.max". */
struct free_memory_limit {
    uint64_t free; /* bytes, what can be moved to swap counted in */
    uint64_t most; /* bytes that there would be if nobody else took any; as
                      much as `free` where nobody else can */
    char key[FREE_MEMORY_KEY], name[FREE_MEMORY_NAME];
};

/* Fills LIMITS with those that there are for this process; returns how many.
 * What cannot be read sets no limit. */
unsigned free_memory_limits(
    struct free_memory_limit limits[static FREE_MEMORY_LIMITS]);

/* The same where ROOT stands for "/": the files below its proc and sys. */
unsigned free_memory_limits_in(
    const char *root,
    struct free_memory_limit limits[static FREE_MEMORY_LIMITS]);

/* Bytes: half of the least of them, without swap. */
uint64_t free_memory_half(void);

#endif
