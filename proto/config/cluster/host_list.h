/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of hosts and of counts as Slurm writes them, in their short form:
 * "n[001-003,7],m[1-2,4]x" is n001, n002, n003, n7, m1x, m2x, m4x;
 * "2(x3),1" is 2, 2, 2, 1. */
#ifndef CAPSTAN_HOST_LIST_H
#define CAPSTAN_HOST_LIST_H

#include "proto/base/status.h"

#include <stdint.h>

enum { HOST_LIST_MAX = 65536 };

struct host_list {
    uint32_t count;
    char **hosts; /* [count], in order */
};

/* Spells out TEXT, found at PLACE ("SLURM_STEP_NODELIST"). Of several brackets
 * in one entry the last counts fastest; numbers keep the zeros in front of the
 * first of their range. On success the caller ends *OUT with host_list_free.
 * Error: bad_node_list. */
enum status host_list_parse(struct host_list *out, const char *text,
                            const char *location,
                            struct failure *why) MUST_CHECK;

/* Frees what is in LIST and empties it. */
void host_list_free(struct host_list *list);

/* How many counts TEXT has and their *SUM. Error: bad_task_counts. */
enum status host_list_counts(const char *text, const char *location,
                             uint64_t *count, uint64_t *sum,
                             struct failure *why) MUST_CHECK;

#endif
