/* SPDX-License-Identifier: Apache-2.0 */
/* What a rank of an external model brings to a round beside the summed
 * gradients: for each parameter whether it counts in the mean and has bytes,
 * the values of the optimizer's groups, and the values of assigned parameters.
 * A rank knows all this only once its last gradient is there, so it follows the
 * last bucket. All ranks get the same: sums, and rank 0's values. */
#ifndef CAPSTAN_ROUND_TRAILER_H
#define CAPSTAN_ROUND_TRAILER_H

#include "core/base/status.h"
#include "core/tensor/layout.h"
#include "proto/plan/optimizer_group.h"
#include "worker/collective/group.h"
#include "worker/exchange/exchange.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct round_trailer;

/* LAYOUT and GROUPS [num_groups] (NULL: none) are borrowed. NULL: no memory. */
struct round_trailer *round_trailer_open(const struct layout *layout,
                                         const struct optimizer_group *groups,
                                         uint32_t num_groups);

/* Clears *TRAILER (may be NULL). */
void round_trailer_close(struct round_trailer **trailer);

/* The compute thread, before it announces the last parameter of ROUND. */

/* The contribution of KIND to PARAMETER. An assigned parameter has its bytes at
 * VALUES, which are copied; others have theirs in the arena. */
void round_trailer_contribute(struct round_trailer *trailer, uint64_t round,
                              uint32_t parameter, enum contribution kind,
                              const void *values);

/* GROUP has VALUES [OPTIMIZER_VALUES] from ROUND on. */
void round_trailer_set(struct round_trailer *trailer, uint64_t round,
                       uint32_t group, const double *values);

/* The reducer's thread. */

/* Sums the trailers of ROUND over RANKS. REQUEST_SAVE (rank 0): the round is to
 * be saved. What follows is of that round, the same on all ranks. */
enum status round_trailer_sum(struct round_trailer *trailer,
                              struct group *ranks, uint64_t round,
                              bool request_save,
                              struct failure *why) MUST_CHECK;

bool round_trailer_is_saved(const struct round_trailer *trailer);
bool round_trailer_overflowed(const struct round_trailer *trailer);

/* Has any rank brought bytes for PARAMETER? */
bool round_trailer_has_bytes(const struct round_trailer *trailer,
                             uint32_t parameter);

/* 1 / the ranks that count in PARAMETER's mean. */
float round_trailer_scale(const struct round_trailer *trailer,
                          uint32_t parameter);

/* Rank 0's values of PARAMETER, which is assigned; view. */
const float *round_trailer_values(const struct round_trailer *trailer,
                                  uint32_t parameter);

/* The first group with rank 0's values; NULL: the job's optimizer. */
const struct optimizer_group *round_trailer_first_group(
    const struct round_trailer *trailer);

/* PARAMETER's group with rank 0's values; NULL: the job's optimizer. */
const struct optimizer_group *round_trailer_group(
    const struct round_trailer *trailer, uint32_t parameter);

#endif
