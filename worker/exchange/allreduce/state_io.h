/* SPDX-License-Identifier: Apache-2.0 */
/* Loads initial weights and state and saves them: all ranks together, through
 * rank 0's snapshot agent, one block at a time, so that no rank ever needs
 * memory for all state at once. */
#ifndef CAPSTAN_STATE_IO_H
#define CAPSTAN_STATE_IO_H

#include "worker/exchange/allreduce/reduction.h"

struct state_io {
    struct reduction *reduction;         /* borrowed */
    float *weights;                      /* the host's, in arena order */
    float *block[RULE_MAX_SLOTS];        /* host memory: state of a block */
    float *device_block[RULE_MAX_SLOTS]; /* the same on the device, for the
                                            broadcast */
    float *bucket[RULE_MAX_SLOTS];       /* device memory: state of a bucket */
};

/* STATUS_RETRY: no memory. */
enum status state_io_open(struct state_io *state_io,
                          struct reduction *reduction,
                          struct failure *why) MUST_CHECK;

/* Frees everything, also after a failed state_io_open; call before
 * reduction_close. */
void state_io_close(struct state_io *state_io);

/* Sets initial weights from rank 0's snapshot agent or from the seed, and state
 * from the agent or to its initial values. */
enum status state_io_load(struct state_io *state_io,
                          struct failure *why) MUST_CHECK;

/* Rank 0's snapshot agent gets all blocks as they are after the last round. */
enum status state_io_save(struct state_io *state_io,
                          struct failure *why) MUST_CHECK;

/* Copies the last round's weights to the host, on rank 0 only. Requires that
 * all enqueued device work is done. */
enum status state_io_download_weights(struct state_io *state_io,
                                      struct failure *why) MUST_CHECK;

#endif
