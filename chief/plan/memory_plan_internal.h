/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by memory_plan.c and memory_plan_advice.c. */
#ifndef CAPSTAN_MEMORY_PLAN_INTERNAL_H
#define CAPSTAN_MEMORY_PLAN_INTERNAL_H

#include "chief/plan/memory_plan.h"

#include <stddef.h>

struct memory_plan {
    const struct memory_plan_member *members;
    uint32_t count;
    const struct memory_footprint_case *given;
};

/* What all members that share a limit need, and what is free for them. */
struct memory_plan_usage {
    const struct free_memory_limit *limit;
    uint64_t need, free, most;
};

struct memory_plan_message {
    char *bytes;
    size_t size, length;
};

/* The limit KEY in MEMBER's report, or NULL. */
const struct free_memory_limit *memory_plan_find_limit(
    const struct memory_plan_member *member, const char *key);

/* What MEMBER needs of the memory behind LIMIT, one of its reported limits. */
struct memory_footprint memory_plan_member_footprint(
    const struct memory_plan_member *member,
    const struct free_memory_limit *limit,
    const struct memory_footprint_case *given);

/* What all members that share LIMIT need together for GIVEN. */
struct memory_plan_usage memory_plan_sum_usage(
    const struct memory_plan *memory_plan,
    const struct memory_footprint_case *given,
    const struct free_memory_limit *limit);

/* Is the need certainly more than there is? */
bool memory_plan_is_exceeded(const struct memory_plan_usage *sum);

/* Appends as printf does; truncates at the end of the buffer. */
void memory_plan_append(struct memory_plan_message *message, const char *format,
                        ...) PRINTF_LIKE(2, 3);

/* Appends the changes of job keys or cluster that need less than SUM, or that
 * there are none. */
void memory_plan_advice(struct memory_plan_message *text,
                        const struct memory_plan *memory_plan,
                        const struct memory_plan_usage *sum);

#endif
