/* SPDX-License-Identifier: Apache-2.0 */
/* The memory of a model's parameters and of their gradients: two counted
 * buffers in the plan's order, so that messages leave from where they lie. */
#ifndef CAPSTAN_ARENA_H
#define CAPSTAN_ARENA_H

#include "proto/base/status.h"
#include "proto/net/shm/buffer.h"
#include "proto/tensor/layout.h"

#include <stdbool.h>
#include <stdint.h>

/* Parameter p lies at float offsets[p] of both: p + 1 before it, p - 1 behind.
 * There is nothing between neighbours, as a message carries several; or they
 * are apart, each begins on a 64-byte boundary, zeros are between, and ranks on
 * one host can be shown both buffers, not the gradients alone. Both kinds end
 * on such a boundary, so parameters of whole 64 bytes begin on one either way.
 * Before the last parameter, the first in memory, stand at least
 * REDUCER_HEADER_FLOATS floats of zero: room for what travels with gradients
 * (reducer.h). */
struct arena {
    struct buffer *weights, *gradients;
    uint64_t *offsets;
    float **weight_of, **gradient_of; /* a pointer a parameter */
};

/* STATUS_RETRY names the bytes when there is no memory. */
enum status arena_open(struct arena *arena, const struct layout *layout,
                       bool padded, struct failure *why) MUST_CHECK;

/* The same weights as OF, which outlives it, and with GRADIENTS a place of its
 * own for gradients; without, gradient_of has no pointers. */
enum status arena_open_replica(struct arena *arena, const struct arena *of,
                               const struct layout *layout, bool gradients,
                               struct failure *why) MUST_CHECK;

/* Lets both buffers go; messages on their way keep them alive. */
void arena_close(struct arena *arena);

#endif
