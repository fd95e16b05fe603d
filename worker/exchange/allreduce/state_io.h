/* SPDX-License-Identifier: Apache-2.0 */
/* First weights and state, and saving them: all ranks together, through rank
 * 0's keeper, a block at a time, so that no rank ever needs the memory of all
 * state at once. */
#ifndef CAPSTAN_STATE_IO_H
#define CAPSTAN_STATE_IO_H

#include "worker/exchange/allreduce/reduction.h"

struct state_io {
    struct reduction *reduction;  /* borrowed */
    float *weights;               /* the host's, in arena order */
    float *block[RULE_MAX_SLOTS]; /* the host's: state of a block */
    float *
        device_block[RULE_MAX_SLOTS]; /* the same on the device, to be spread */
    float *bucket[RULE_MAX_SLOTS];    /* the device's: state of a bucket */
};

/* STATUS_RETRY: no memory. */
enum status state_io_open(struct state_io *state_io,
                          struct reduction *reduction,
                          struct failure *why) MUST_CHECK;

/* Frees what it has, also where state_io_open has failed; before the reduction
 * is closed. */
void state_io_close(struct state_io *state_io);

/* First weights: rank 0's keeper's, or by the seed. State is at its start and
 * becomes the keeper's. */
enum status state_io_load(struct state_io *state_io,
                          struct failure *why) MUST_CHECK;

/* Rank 0's keeper gets all blocks as the last round has left them. */
enum status state_io_save(struct state_io *state_io,
                          struct failure *why) MUST_CHECK;

/* The host's weights are those of the last round, on rank 0 alone. All that was
 * given to the device is done. */
enum status state_io_download_weights(struct state_io *state_io,
                                      struct failure *why) MUST_CHECK;

#endif
