/* SPDX-License-Identifier: Apache-2.0 */
/* How the arena of gradients is cut into what one collective carries. The first
 * bucket is small: it brings the word of the round, leaves while the backward
 * pass has most before it, and is summed for all whoever updates it. The rest
 * is cut into as few as may be, of one length, wherever parameters end: each
 * collective has turns that cost the same however little it carries. A pure
 * function of the shapes, the same on every rank. */
#ifndef CAPSTAN_BUCKET_H
#define CAPSTAN_BUCKET_H

#include "proto/base/status.h"
#include "proto/tensor/layout.h"

#include <stdint.h>

/* Floats [first, end) of the arena. Parameters are counted in arena order, the
 * last parameter being the first. */
struct bucket {
    uint64_t first, end;
    uint32_t started;   /* parameters begun before `end` */
    uint32_t completed; /* parameters that end by `end` */
};

/* Cuts the arena of LAYOUT, parameter p at OFFSETS[p] (arena.h), into buckets
 * of up to MOST (> 0) elements. The first begins at float 0, with the room
 * before the parameters, which does not count; cuts are where a parameter ends
 * or at multiples of 16 floats of the arena, however small MOST is. *OUT is the
 * caller's, freed by free(3). STATUS_RETRY: no memory. */
enum status bucket_split(struct bucket **out, uint32_t *count,
                         const struct layout *layout, const uint64_t *offsets,
                         uint64_t max_elements, struct failure *why) MUST_CHECK;

/* The number of the one of BUCKETS that float AT of the arena lies in. */
uint32_t bucket_at(const struct bucket *buckets, uint32_t count, uint64_t at);

#endif
