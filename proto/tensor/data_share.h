/* SPDX-License-Identifier: Apache-2.0 */
/* Each replica's part of an epoch, as torch's DistributedSampler cuts it: all
 * parts are equal, the last samples wrap around. Pure. */
#ifndef CAPSTAN_DATA_SHARE_H
#define CAPSTAN_DATA_SHARE_H

#include <stdbool.h>
#include <stdint.h>

/* Samples of one of REPLICAS (>= 1) replicas. */
uint64_t data_share_samples(uint64_t samples, uint64_t replicas);

/* Number of micro batches of MICRO (>= 1) samples in them, with a short last
 * one kept or dropped; 0 if none is left. */
uint64_t data_share_batches(uint64_t samples, uint64_t replicas, uint64_t micro,
                            bool drop_last);

#endif
