/* SPDX-License-Identifier: Apache-2.0 */
/* The blocks of one ps in memory: weights and optimizer state in
 * reference-counted buffers. An update writes in place if the shard alone holds
 * the buffer, else into one from a pool. So replies, snapshots and evaluations
 * read without copying.
 *
 * With optimizer None an update leaves the weights of a trained parameter as
 * they are: its result is the mean of the gradients. */
#ifndef CAPSTAN_SHARD_H
#define CAPSTAN_SHARD_H

#include "core/base/status.h"
#include "core/net/shm/buffer.h"
#include "core/store/checkpoint_reader.h"
#include "core/tensor/layout.h"
#include "core/tensor/optimizer.h"
#include "core/tensor/rule.h"
#include "proto/plan/optimizer_group.h"

#include <stdint.h>

enum { SHARD_MAX_TENSORS = 1 + RULE_MAX_SLOTS };

struct shard;

struct shard_settings {
    const struct layout *layout; /* borrowed */
    const uint32_t *ids;         /* [count], in the plan's order */
    uint32_t count;
    const struct optimizer *optimizer;
    const struct optimizer_group *groups; /* borrowed: by parameter, in place
                                             of OPTIMIZER; NULL: none */
};

/* Opens the blocks of SETTINGS. Their memory is allocated but not set. If
 * memory is short, STATUS_RETRY with the bytes needed. */
enum status shard_open(struct shard **out,
                       const struct shard_settings *settings,
                       struct failure *why) MUST_CHECK;

/* Sets the loops of later updates; without it the best of this processor are
 * used. */
void shard_set_loops(struct shard *shard, const struct rule_loops *loops);

/* Clears *SHARD and drops its references; buffers that others hold stay. */
void shard_close(struct shard **shard);

/* Sets the weights by SEED and the state to its start value: block B, or all.
 */
void shard_initialise_block(struct shard *shard, uint32_t b, uint64_t seed);
void shard_initialise(struct shard *shard, uint64_t seed);

/* Weights and state of block B from a checkpoint of the same layout and
 * optimiser. */
enum status shard_restore(struct shard *shard, uint32_t b,
                          struct checkpoint_reader *reader,
                          struct failure *why) MUST_CHECK;

/* Sets block B's weights from FLOATS (any alignment). False: no memory for a
 * copy; the block is then unchanged. */
bool shard_assign(struct shard *shard, uint32_t b, const void *floats);

/* The gradients of one round for a block, in rank order. */
struct shard_round {
    const void *const *gradients;
    unsigned num_gradients;
    enum job_wire wire;       /* encoding of the gradients */
    uint64_t step, rule_step; /* the update's numbers (update_core.h) */
    const struct optimizer *optimizer; /* with the slots of the block's; NULL:
                                          that one */
    double rate; /* AVERAGED: the share by which values move */
    float scale;
    bool checked; /* a sum of gradients that is not finite is a failure */
};

/* Applies to block B the rule of its parameter's kind. STATUS_RETRY if there is
 * no memory for a copy; the block is then unchanged. STATUS_FAILED: the
 * gradient is NaN or infinite, and so are the new weights. */
enum status shard_update(struct shard *shard, uint32_t b,
                         const struct shard_round *round,
                         struct failure *why) MUST_CHECK;

/* Square sum of ROUND's scaled gradient sum for block B, added in a fixed
 * order. */
double shard_square_sum(const struct shard *shard, uint32_t b,
                        const struct shard_round *round);

/* Tensor 0 is the weights, 1.. the state; views. */
struct buffer *shard_tensor(const struct shard *shard, uint32_t b,
                            unsigned tensor);

/* Does an update of block B give the mean of the gradients? */
bool shard_means(const struct shard *shard, uint32_t b);

/* The mean of block B's last round; view. NULL: nobody brought bytes. */
struct buffer *shard_mean(const struct shard *shard, uint32_t b);

/* 1 + the number of block B's state slots. */
unsigned shard_tensors(const struct shard *shard, uint32_t b);

/* The number of blocks. */
uint32_t shard_blocks(const struct shard *shard);

/* The parameter of block B; view. */
const struct parameter *shard_parameter(const struct shard *shard, uint32_t b);

/* Where block B lies in its parameter; view. */
const struct block *shard_block(const struct shard *shard, uint32_t b);

/* The format of block B in messages of format WIRE. */
enum job_wire shard_wire(const struct shard *shard, uint32_t b,
                         enum job_wire wire);

/* Bytes of one tensor of block B. */
size_t shard_block_bytes(const struct shard *shard, uint32_t b);

/* Bytes of buffers in use beyond the shard's own tensors. */
size_t shard_copied_bytes(const struct shard *shard);

#endif
