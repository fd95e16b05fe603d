/* SPDX-License-Identifier: Apache-2.0 */
/* Assigns blocks to ps: greedy by size, the largest block first to the least
 * loaded ps; ties go to the lowest block and the lowest ps. A pure function of
 * the layout and the number of ps.
 *
 * The most loaded ps has at most one full block more than the mean, so at most
 * 1.05 times the mean if that is 20 full blocks or more (Graham, Bounds on
 * Multiprocessing Timing Anomalies, 1969). */
#ifndef CAPSTAN_PLACEMENT_H
#define CAPSTAN_PLACEMENT_H

#include "core/base/status.h"
#include "core/tensor/layout.h"

#include <stdint.h>

/* Fills PS_OF_BLOCK[layout->num_blocks] with numbers below NUM_PS (>= 1).
 * STATUS_FAILED: no memory. */
enum status placement_greedy(const struct layout *layout, uint32_t num_ps,
                             uint32_t *ps_of_block,
                             struct failure *why) MUST_CHECK;

#endif
