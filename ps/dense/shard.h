/* SPDX-License-Identifier: Apache-2.0 */
/* The blocks of one ps in memory: weights and state in counted buffers. An
 * update writes in place when nobody else holds the buffer, else into one from
 * a pool, so that replies, snapshots and evaluations read without copying. */
#ifndef CAPSTAN_SHARD_H
#define CAPSTAN_SHARD_H

#include "proto/base/status.h"
#include "proto/config/job/optimizer.h"
#include "proto/net/shm/buffer.h"
#include "proto/store/checkpoint_reader.h"
#include "proto/tensor/layout.h"
#include "proto/tensor/rule.h"

#include <stdint.h>

enum { SHARD_MAX_TENSORS = 1 + RULE_MAX_SLOTS };

struct shard;

/* Blocks IDS[0..count) of LAYOUT (borrowed), in the plan's order; their memory
 * is allocated, not yet set. STATUS_RETRY names the bytes when there is no
 * memory. */
enum status shard_open(struct shard **out, const struct layout *layout,
                       const uint32_t *ids, uint32_t count,
                       const struct optimizer *optimizer,
                       struct failure *why) MUST_CHECK;

/* Updates by LOOPS from here on; else by the best of this processor. */
void shard_set_loops(struct shard *shard, const struct rule_loops *loops);

/* Lets the blocks go, which others may still hold, and clears *SHARD. */
void shard_close(struct shard **shard);

/* First weights by SEED; state at its start. Of block B, or of all. */
void shard_initialise_block(struct shard *shard, uint32_t b, uint64_t seed);
void shard_initialise(struct shard *shard, uint64_t seed);

/* Weights and state of block B from a checkpoint of the same layout and
 * optimiser. */
enum status shard_restore(struct shard *shard, uint32_t b,
                          struct checkpoint_reader *reader,
                          struct failure *why) MUST_CHECK;

/* Sets block B's weights from FLOATS (any alignment). */
void shard_assign(struct shard *shard, uint32_t b, const void *floats);

/* What a round brought for a block. Pointers in rank order. */
struct shard_round {
    const void *const *gradients;
    unsigned num_gradients;
    enum job_wire wire; /* what they are in */
    uint64_t step;      /* the block's update number */
    double rate;
    float scale;
};

/* Applies the rule to block B. STATUS_RETRY when a copy needs memory that is
 * not there. */
enum status shard_update(struct shard *shard, uint32_t b,
                         const struct shard_round *round,
                         struct failure *why) MUST_CHECK;

/* Square sums of ROUND's scaled gradient sum for block B, added in a fixed
 * order. */
double shard_square_sum(const struct shard *shard, uint32_t b,
                        const struct shard_round *round);

/* Tensor 0 is the weights, 1.. the state; views. */
struct buffer *shard_tensor(const struct shard *shard, uint32_t b,
                            unsigned tensor);

/* 1 + the number of state slots. */
unsigned shard_tensors(const struct shard *shard);

/* How many blocks it holds. */
uint32_t shard_blocks(const struct shard *shard);

/* Where block B lies in its parameter; view. */
const struct block *shard_block(const struct shard *shard, uint32_t b);

/* Bytes of one tensor of block B. */
size_t shard_block_bytes(const struct shard *shard, uint32_t b);

/* Bytes in copies beyond the shard's own. */
size_t shard_copied_bytes(const struct shard *shard);

#endif
