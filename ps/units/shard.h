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
#include "core/tensor/histogram.h"
#include "core/tensor/layout.h"
#include "core/tensor/optimizer.h"
#include "core/tensor/rule.h"
#include "proto/holder/unit.h"
#include "proto/plan/optimizer_group.h"

#include <stdint.h>

enum { SHARD_MAX_TENSORS = 1 + RULE_MAX_SLOTS };

struct shard;

struct shard_settings {
    const struct layout *layout; /* borrowed */
    const uint32_t *ids;         /* [count]: units in the plan's order, the */
    uint32_t count;              /* first of which are the shard's blocks */
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

/* A block's. After a failed update it is unchanged if memory lacked; if the
 * gradient is not finite, neither are the new weights. */
extern const struct unit_table shard_units;

/* Sets block B's weights from FLOATS (any alignment). False: no memory for a
 * copy; the block is then unchanged. */
bool shard_assign(struct shard *shard, uint32_t b, const void *floats);

/* Tensor 0 is the weights, 1.. the state; views. */
struct buffer *shard_tensor(const struct shard *shard, uint32_t b,
                            unsigned tensor);

/* Block B is assigned, and its last round has left it as it was. */
bool shard_is_left(const struct shard *shard, uint32_t b);

/* Does an update of block B give the mean of the gradients? */
bool shard_means(const struct shard *shard, uint32_t b);

/* The mean of block B's last round; view. NULL: nobody brought bytes. */
struct buffer *shard_mean(const struct shard *shard, uint32_t b);

/* Of block B's weights; false: trainers keep them (optimizer None). */
bool shard_weights_histogram(const struct shard *shard, uint32_t b,
                             struct histogram *histogram);

/* Of the gradient that ROUND, which block B has just had, gave to its rule: the
 * mean, after clipping. False: there was none. */
bool shard_gradient_histogram(const struct shard *shard, uint32_t b,
                              const struct unit_round *round,
                              struct histogram *histogram);

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
