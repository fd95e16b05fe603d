/* SPDX-License-Identifier: Apache-2.0 */
/* Splits the gradient arena into buckets, one collective call each (as PyTorch
 * DDP does; Li et al. 2020). The first bucket is small: it carries the round's
 * header, leaves while most of the backward pass is still ahead, and is
 * all-reduced even where updates are sharded. The rest is split into as few
 * equal buckets as possible, regardless of parameter boundaries: each
 * collective has a fixed cost per call. A pure function of the shapes, equal on
 * every rank. */
#ifndef CAPSTAN_BUCKET_H
#define CAPSTAN_BUCKET_H

#include "core/base/status.h"
#include "core/tensor/layout.h"

#include <stdint.h>

/* Floats [first, end) of the arena. Parameters are counted in arena order,
 * which begins with the last parameter. */
struct bucket {
    uint64_t first, end;
    uint32_t started;   /* parameters that begin before `end` */
    uint32_t completed; /* parameters that end by `end` */
};

/* Splits the arena of LAYOUT, parameter p at OFFSETS[p] (arena.h), into buckets
 * of up to MAX_ELEMENTS (> 0) elements. The first bucket begins at float 0 and
 * includes the header before the parameters, which does not count. A bucket
 * ends where a parameter ends or at a multiple of 16 floats of the arena,
 * however small MAX_ELEMENTS is. The caller frees *OUT by free(3).
 * STATUS_RETRY: no memory. */
enum status bucket_split(struct bucket **out, uint32_t *count,
                         const struct layout *layout, const uint64_t *offsets,
                         uint64_t max_elements, struct failure *why) MUST_CHECK;

/* The index of the bucket that contains float AT of the arena. */
uint32_t bucket_at(const struct bucket *buckets, uint32_t count, uint64_t at);

#endif
