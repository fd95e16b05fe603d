/* SPDX-License-Identifier: Apache-2.0 */
/* The memory of a model's parameters and gradients: two reference-counted
 * buffers in the plan's order, so that messages are sent in place. */
#ifndef CAPSTAN_ARENA_H
#define CAPSTAN_ARENA_H

#include "core/base/status.h"
#include "core/net/shm/buffer.h"
#include "core/tensor/layout.h"

#include <stdbool.h>
#include <stdint.h>

/* Parameter p lies at float offsets[p] of both, after p + 1 and before p - 1.
 * Either neighbours are adjacent, so that one message carries several; or, with
 * padding, each begins on a 64-byte boundary with zeros between, and both
 * buffers rather than the gradients alone can be registered with ranks on the
 * same host. Both layouts end on such a boundary. Parameters whose size is a
 * multiple of 64 bytes begin on one either way. At least REDUCER_HEADER_FLOATS
 * floats of zero precede the last parameter, the first in memory: room for the
 * round's header (reducer.h). */
struct arena {
    struct buffer *weights, *gradients;
    uint64_t *offsets;
    float **weight_of, **gradient_of; /* one pointer per parameter */
};

/* The memory of an arena, for that of the process's next run: new memory costs
 * a page fault for each page. All 0: none. */
struct arena_kept {
    struct buffer *weights, *gradients;
    uint64_t held; /* bytes, counted by free_memory_hold */
};

/* The parameters and gradients are not cleared. STATUS_RETRY if there is no
 * memory; WHY names the bytes. */
enum status arena_open(struct arena *arena, const struct layout *layout,
                       bool padded, struct failure *why) MUST_CHECK;

/* As arena_open, without padding in the memory of KEPT where that has its size;
 * KEPT is empty then. Call it once each ps of this run has left the one before:
 * no other may use what it reads there meanwhile. */
enum status arena_open_kept(struct arena *arena, const struct layout *layout,
                            bool padded, struct arena_kept *kept,
                            struct failure *why) MUST_CHECK;

/* Shares the weights of OF, which outlives it. With GRADIENTS it has its own
 * gradient buffer; without, gradient_of has no pointers. */
enum status arena_open_replica(struct arena *arena, const struct arena *of,
                               const struct layout *layout, bool gradients,
                               struct failure *why) MUST_CHECK;

/* Releases both buffers; messages in flight keep them alive. */
void arena_close(struct arena *arena);

/* As arena_close, but the memory goes to KEPT, which is empty. */
void arena_keep(struct arena *arena, struct arena_kept *kept);

/* Frees its memory. */
void arena_kept_close(struct arena_kept *kept);

#endif
