/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/train/arena.h"

#include "core/base/byte_size.h"
#include "core/base/free_memory.h"
#include "worker/exchange/allreduce/reducer.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGN_FLOATS = 16 };
_Static_assert(REDUCER_HEADER_FLOATS % ALIGN_FLOATS == 0,
               "parameters stay aligned");

static uint64_t align(uint64_t floats) {
    return (floats + ALIGN_FLOATS - 1) / ALIGN_FLOATS * ALIGN_FLOATS;
}

/* Returns the number of floats needed. */
static uint64_t assign_offsets(struct arena *arena, const struct layout *layout,
                               bool padded) {
    uint64_t floats = 0;
    for (uint32_t p = 0; p < layout->num_parameters; p++) {
        uint64_t elements = layout->parameters[p].elements;
        floats += padded ? align(elements) : elements;
    }
    uint64_t total = REDUCER_HEADER_FLOATS + align(floats), end = total;
    for (uint32_t p = 0; p < layout->num_parameters; p++) {
        uint64_t elements = layout->parameters[p].elements;
        end -= padded ? align(elements) : elements;
        arena->offsets[p] = end;
    }
    return total;
}

/* Clears the padding before and between the parameters of FLOATS [total]. */
static void zero_gaps(const struct arena *arena, const struct layout *layout,
                      float *floats, uint64_t total) {
    uint64_t end = 0;
    for (uint32_t p = layout->num_parameters; p-- > 0;) {
        memset(floats + end, 0, (arena->offsets[p] - end) * sizeof *floats);
        end = arena->offsets[p] + layout->parameters[p].elements;
    }
    memset(floats + end, 0, (total - end) * sizeof *floats);
}

static enum status arena_fail(struct arena *arena, struct failure *why,
                              uint64_t floats) {
    char bytes[16];
    arena_close(arena);
    byte_size_text(2 * floats * sizeof(float), bytes, sizeof bytes);
    return status_fail(why, FAILURE_NO_MEMORY,
                       "no memory for %s of weights and gradients, which each "
                       "trainer has whole: list fewer trainers on this host, "
                       "or give it more memory",
                       bytes);
}

/* KEPT without its bytes; NULL: they are not BYTES, or a message still has
 * them. */
static struct buffer *reuse_kept(struct buffer **kept, size_t bytes) {
    struct buffer *buffer = *kept;
    if (!buffer || buffer_bytes(buffer) != bytes || !buffer_is_unique(buffer))
        return NULL;
    *kept = NULL;
    return buffer;
}

enum status arena_open_kept(struct arena *arena, const struct layout *layout,
                            bool padded, struct arena_kept *kept,
                            struct failure *why) {
    uint32_t count = layout->num_parameters;
    *arena = (struct arena){0};
    arena->offsets = calloc(count, sizeof *arena->offsets);
    arena->weight_of = calloc(count, sizeof *arena->weight_of);
    arena->gradient_of = calloc(count, sizeof *arena->gradient_of);
    if (!arena->offsets || !arena->weight_of || !arena->gradient_of)
        return arena_fail(arena, why, layout->elements);
    uint64_t total = assign_offsets(arena, layout, padded);
    size_t bytes = total * sizeof(float);
    if (!padded) {
        arena->weights = reuse_kept(&kept->weights, bytes);
        arena->gradients = reuse_kept(&kept->gradients, bytes);
    }
    arena_kept_close(kept);
    if (!arena->weights)
        arena->weights =
            padded ? buffer_open_shared(bytes) : buffer_open(bytes, NULL, NULL);
    if (!arena->gradients)
        arena->gradients = buffer_open_shared(bytes);
    if (!arena->weights || !arena->gradients)
        return arena_fail(arena, why, total);
    zero_gaps(arena, layout, buffer_data(arena->weights), total);
    zero_gaps(arena, layout, buffer_data(arena->gradients), total);
    for (uint32_t p = 0; p < count; p++) {
        arena->weight_of[p] =
            (float *)buffer_data(arena->weights) + arena->offsets[p];
        arena->gradient_of[p] =
            (float *)buffer_data(arena->gradients) + arena->offsets[p];
    }
    return STATUS_OK;
}

enum status arena_open(struct arena *arena, const struct layout *layout,
                       bool padded, struct failure *why) {
    struct arena_kept none = {0};
    return arena_open_kept(arena, layout, padded, &none, why);
}

enum status arena_open_replica(struct arena *arena, const struct arena *of,
                               const struct layout *layout, bool gradients,
                               struct failure *why) {
    uint32_t count = layout->num_parameters;
    size_t bytes = gradients ? buffer_bytes(of->gradients) : 0;
    *arena = (struct arena){0};
    arena->offsets = calloc(count, sizeof *arena->offsets);
    arena->weight_of = calloc(count, sizeof *arena->weight_of);
    arena->gradient_of = calloc(count, sizeof *arena->gradient_of);
    if (gradients)
        arena->gradients = buffer_open(bytes, NULL, NULL);
    if (!arena->offsets || !arena->weight_of || !arena->gradient_of ||
        (gradients && !arena->gradients)) {
        arena_close(arena);
        return status_fail(why, FAILURE_NO_MEMORY,
                           "no memory for %zu bytes of gradients of one more "
                           "device (\"devices\", docs/gpu.md)",
                           bytes);
    }
    for (uint32_t p = 0; p < count; p++) {
        arena->offsets[p] = of->offsets[p];
        arena->weight_of[p] = of->weight_of[p];
        if (gradients)
            arena->gradient_of[p] =
                (float *)buffer_data(arena->gradients) + of->offsets[p];
    }
    return STATUS_OK;
}

void arena_close(struct arena *arena) {
    buffer_release(&arena->weights);
    buffer_release(&arena->gradients);
    free(arena->offsets);
    free(arena->weight_of);
    free(arena->gradient_of);
    *arena = (struct arena){0};
}

void arena_keep(struct arena *arena, struct arena_kept *kept) {
    assert(!kept->weights && !kept->gradients);
    if (arena->weights && arena->gradients)
        kept->held =
            buffer_bytes(arena->weights) + buffer_bytes(arena->gradients);
    kept->weights = arena->weights;
    kept->gradients = arena->gradients;
    arena->weights = arena->gradients = NULL;
    free_memory_hold((int64_t)kept->held);
    arena_close(arena);
}

void arena_kept_close(struct arena_kept *kept) {
    free_memory_hold(-(int64_t)kept->held);
    buffer_release(&kept->weights);
    buffer_release(&kept->gradients);
    kept->held = 0;
}
