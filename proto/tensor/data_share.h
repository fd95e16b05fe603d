/* SPDX-License-Identifier: Apache-2.0 */
/* What each replica reads of an epoch, as torch's DistributedSampler deals it
 * out: all as much, the last samples wrapped around. Pure. */
#ifndef CAPSTAN_DATA_SHARE_H
#define CAPSTAN_DATA_SHARE_H

#include <stdbool.h>
#include <stdint.h>

/* Samples of one of REPLICAS (>= 1). */
uint64_t data_share_samples(uint64_t samples, uint64_t replicas);

/* They make so many micro batches of MICRO (>= 1), a short last one kept or
 * dropped; 0: nothing is left. */
uint64_t data_share_batches(uint64_t samples, uint64_t replicas, uint64_t micro,
                            bool drop_last);

#endif
