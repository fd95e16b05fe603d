/* SPDX-License-Identifier: Apache-2.0 */
/* What a check of memory is made of: for fitting.c and fitting_remedies.c. */
#ifndef CAPSTAN_FITTING_PARTS_H
#define CAPSTAN_FITTING_PARTS_H

#include "chief/plan/fitting.h"

#include <stddef.h>

struct fitting {
    const struct fitting_member *members;
    uint32_t count;
    const struct footprint_case *given;
};

/* What all that share a limit take, and what it leaves them. */
struct fitting_sum {
    const struct free_memory_limit *limit;
    uint64_t need, free, most;
};

struct fitting_words {
    char *bytes;
    size_t size, length;
};

/* The limit of KEY that MEMBER has told of, or NULL. */
const struct free_memory_limit *fitting_find(
    const struct fitting_member *member, const char *key);

/* What MEMBER takes of what LIMIT, which it has told of, leaves. */
struct footprint fitting_take(const struct fitting_member *member,
                              const struct free_memory_limit *limit,
                              const struct footprint_case *given);

/* What all members that share LIMIT take together of GIVEN. */
struct fitting_sum fitting_add_up(const struct fitting *fitting,
                                  const struct footprint_case *given,
                                  const struct free_memory_limit *limit);

/* Is it more than there is, for certain? */
bool fitting_is_too_much(const struct fitting_sum *sum);

/* Appends as printf does; what finds no room is cut off. */
void fitting_append(struct fitting_words *words, const char *format, ...)
    PRINTF_LIKE(2, 3);

/* Appends what of the job's keys and of the cluster needs less than SUM, or
 * that nothing does. */
void fitting_remedies(struct fitting_words *text, const struct fitting *fitting,
                      const struct fitting_sum *sum);

#endif
