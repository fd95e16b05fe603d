/* SPDX-License-Identifier: Apache-2.0 */
/* Which ps keeps which block: greedy, largest block first to the least loaded
 * ps, by bytes; of equals the lowest block and the lowest ps. A pure function
 * of the layout and the number of ps.
 *
 * The most loaded ps has at most one full block more than the mean: from a
 * mean of 20 full blocks on, at most 1.05 of it (Graham, Bounds on
 * Multiprocessing Timing Anomalies, 1969). */
#ifndef CAPSTAN_PLACEMENT_H
#define CAPSTAN_PLACEMENT_H

#include "proto/base/status.h"
#include "proto/tensor/layout.h"

#include <stdint.h>

/* Fills PS_OF_BLOCK[layout->num_blocks] with numbers below NUM_PS (>= 1).
 * STATUS_FAILED when there is no memory for it. */
enum status placement_greedy(const struct layout *layout, uint32_t num_ps,
                             uint32_t *ps_of_block,
                             struct failure *why) MUST_CHECK;

#endif
