/* SPDX-License-Identifier: Apache-2.0 */
/* What a trainer has set the groups of the optimizer to, for the headers of its
 * pushes. At most three clocks are in flight, so three are kept: of a push of
 * rows that is sent, of one that waits, and of the step's own. */
#ifndef CAPSTAN_PUSH_VALUES_H
#define CAPSTAN_PUSH_VALUES_H

#include "proto/messages/data.pb-c.h"

#include <stddef.h>
#include <stdint.h>

struct push_values;

/* NULL: no memory. */
struct push_values *push_values_open(uint32_t num_groups);

/* Clears *PUSH_VALUES (may be NULL). */
void push_values_close(struct push_values **push_values);

/* From push CLOCK on, which is not below an earlier one, GROUP has VALUES
 * [OPTIMIZER_VALUES]; copied. */
void push_values_set(struct push_values *push_values, uint64_t clock,
                     uint32_t group, const double *values);

/* Lists for a header of push CLOCK: begin; add the group of each block, also
 * more than once; list. *OUT views those groups that were set until the next
 * begin. */
void push_values_begin(struct push_values *push_values, uint64_t clock);
void push_values_add(struct push_values *push_values, uint32_t group);
size_t push_values_list(struct push_values *push_values,
                        Capstan__GroupValues ***out);

#endif
