/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/exchange/allreduce/bucket.h"

#include <stdlib.h>

/* The first bucket: the last layers of a usual model, and small beside all; or
 * a model that is not worth a second. */
enum { ALIGN_FLOATS = 16, MOST_FIRST = 1 << 14, MOST_ALONE = 1 << 16 };

struct cutter {
    const struct layout *layout;
    const uint64_t *offsets;
    uint64_t most; /* a multiple of ALIGN_FLOATS */
};

static uint64_t smaller(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

/* Parameter number WHICH (from 0) of the arena. */
static uint32_t parameter(const struct cutter *cutter, uint32_t which) {
    return cutter->layout->num_parameters - 1 - which;
}

static uint64_t first_of(const struct cutter *cutter, uint32_t which) {
    return cutter->offsets[parameter(cutter, which)];
}

/* With what is between it and the next. */
static uint64_t end_of(const struct cutter *cutter, uint32_t which) {
    uint32_t p = parameter(cutter, which);
    return p > 0 ? cutter->offsets[p - 1]
                 : cutter->offsets[0] + cutter->layout->parameters[0].elements;
}

/* The bucket that follows BEFORE and goes to END. */
static struct bucket bucket_to(const struct cutter *cutter,
                               const struct bucket *before, uint64_t end) {
    uint32_t count = cutter->layout->num_parameters;
    struct bucket next = {before->end, end, before->touched, before->whole};
    while (next.touched < count && first_of(cutter, next.touched) < end)
        next.touched++;
    while (next.whole < count && end_of(cutter, next.whole) <= end)
        next.whole++;
    return next;
}

/* Where the first bucket ends: with a parameter, where one ends in time. */
static uint64_t first_end(const struct cutter *cutter) {
    uint32_t count = cutter->layout->num_parameters;
    uint64_t most = smaller(cutter->most, MOST_FIRST);
    uint64_t begin = first_of(cutter, 0), end = begin;
    if (end_of(cutter, count - 1) - begin <= smaller(cutter->most, MOST_ALONE))
        return end_of(cutter, count - 1);
    for (uint32_t i = 0; i < count && end_of(cutter, i) - begin <= most; i++)
        end = end_of(cutter, i);
    return end > begin ? end : (begin + most) / ALIGN_FLOATS * ALIGN_FLOATS;
}

/* What follows FROM, in units of floats that no cut divides. */
struct rest {
    uint64_t from, units, count; /* COUNT buckets */
};

static struct rest rest_after(const struct cutter *cutter, uint64_t from) {
    uint64_t end = end_of(cutter, cutter->layout->num_parameters - 1);
    struct rest rest = {.from = from / ALIGN_FLOATS * ALIGN_FLOATS};
    uint64_t each = cutter->most / ALIGN_FLOATS;
    if (end > from)
        rest.units = (end - rest.from + ALIGN_FLOATS - 1) / ALIGN_FLOATS;
    rest.count = (rest.units + each - 1) / each;
    return rest;
}

/* Where bucket I of the rest ends, all as long as each other. */
static uint64_t end_in(const struct cutter *cutter, const struct rest *rest,
                       uint64_t i) {
    uint64_t whole = rest->units / rest->count,
             more = rest->units % rest->count;
    uint64_t units = whole * (i + 1) + more * (i + 1) / rest->count;
    return smaller(rest->from + units * ALIGN_FLOATS,
                   end_of(cutter, cutter->layout->num_parameters - 1));
}

static void cut(const struct cutter *cutter, const struct rest *rest,
                uint64_t first, struct bucket *buckets) {
    struct bucket none = {.end = 0};
    buckets[0] = bucket_to(cutter, &none, first);
    for (uint64_t i = 0; i < rest->count; i++)
        buckets[i + 1] =
            bucket_to(cutter, &buckets[i], end_in(cutter, rest, i));
}

enum status bucket_cut(struct bucket **out, uint32_t *count,
                       const struct layout *layout, const uint64_t *offsets,
                       uint64_t most, struct failure *why) {
    uint64_t units = smaller(most, LAYOUT_MAX_ELEMENTS) / ALIGN_FLOATS;
    struct cutter cutter = {layout, offsets,
                            (units > 0 ? units : 1) * ALIGN_FLOATS};
    uint64_t first = first_end(&cutter);
    struct rest rest = rest_after(&cutter, first);
    *out =
        rest.count < UINT32_MAX ? calloc(rest.count + 1, sizeof **out) : NULL;
    *count = (uint32_t)rest.count + 1;
    if (!*out)
        return status_fail(why, STATUS_RETRY,
                           "no memory for a list of %llu buckets: "
                           "zero_optimization.reduce_bucket_size is %llu",
                           (unsigned long long)rest.count + 1,
                           (unsigned long long)most);
    cut(&cutter, &rest, first, *out);
    return STATUS_OK;
}

uint32_t bucket_at(const struct bucket *buckets, uint32_t count, uint64_t at) {
    uint32_t low = 0, high = count - 1;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (buckets[middle].end > at)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}
