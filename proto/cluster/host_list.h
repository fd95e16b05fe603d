/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of hosts and of counts in Slurm's short form: "n[001-003,7],m[1-2,4]x"
 * is n001, n002, n003, n7, m1x, m2x, m4x; "2(x3),1" is 2, 2, 2, 1. */
#ifndef CAPSTAN_HOST_LIST_H
#define CAPSTAN_HOST_LIST_H

#include "core/base/status.h"

#include <stdint.h>

enum { HOST_LIST_MAX = 65536 };

struct host_list {
    uint32_t count;
    char **hosts; /* [count], in order */
};

/* Expands TEXT, found at LOCATION ("SLURM_STEP_NODELIST"). If an entry has
 * several brackets, the last varies fastest. Numbers keep the leading zeros of
 * the first in their range. On success the caller frees *OUT with
 * host_list_free. Error: bad_node_list. */
enum status host_list_parse(struct host_list *out, const char *text,
                            const char *location,
                            struct failure *why) MUST_CHECK;

/* Frees the hosts of LIST and empties it. */
void host_list_free(struct host_list *list);

/* The number of counts in TEXT and their *SUM. Error: bad_task_counts. */
enum status host_list_counts(const char *text, const char *location,
                             uint64_t *count, uint64_t *sum,
                             struct failure *why) MUST_CHECK;

#endif
