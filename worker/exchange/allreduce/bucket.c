/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/exchange/allreduce/bucket.h"

#include <stdlib.h>

/* The first bucket holds the last layers of a typical model and is small; a
 * model of up to MAX_SINGLE floats gets one bucket alone. */
enum { ALIGN_FLOATS = 16, MAX_FIRST = 1 << 14, MAX_SINGLE = 1 << 16 };

struct splitter {
    const struct layout *layout;
    const uint64_t *offsets;
    uint64_t max_elements; /* a multiple of ALIGN_FLOATS */
};

static uint64_t bucket_min_u64(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

/* Parameter NUMBER (from 0) in arena order. */
static uint32_t parameter(const struct splitter *splitter, uint32_t number) {
    return splitter->layout->num_parameters - 1 - number;
}

static uint64_t first_of(const struct splitter *splitter, uint32_t number) {
    return splitter->offsets[parameter(splitter, number)];
}

/* The end includes the padding before the next parameter. */
static uint64_t end_of(const struct splitter *splitter, uint32_t number) {
    uint32_t p = parameter(splitter, number);
    return p > 0 ? splitter->offsets[p - 1]
                 : splitter->offsets[0] +
                       splitter->layout->parameters[0].elements;
}

/* The bucket that follows BEFORE and ends at END. */
static struct bucket bucket_to(const struct splitter *splitter,
                               const struct bucket *before, uint64_t end) {
    uint32_t count = splitter->layout->num_parameters;
    struct bucket next = {before->end, end, before->started, before->completed};
    while (next.started < count && first_of(splitter, next.started) < end)
        next.started++;
    while (next.completed < count && end_of(splitter, next.completed) <= end)
        next.completed++;
    return next;
}

/* The end of the first bucket: a parameter's end, if one lies within the
 * limit. */
static uint64_t first_end(const struct splitter *splitter) {
    uint32_t count = splitter->layout->num_parameters;
    uint64_t max_elements = bucket_min_u64(splitter->max_elements, MAX_FIRST);
    uint64_t begin = first_of(splitter, 0), end = begin;
    if (end_of(splitter, count - 1) - begin <=
        bucket_min_u64(splitter->max_elements, MAX_SINGLE))
        return end_of(splitter, count - 1);
    for (uint32_t i = 0;
         i < count && end_of(splitter, i) - begin <= max_elements; i++)
        end = end_of(splitter, i);
    return end > begin ? end
                       : (begin + max_elements) / ALIGN_FLOATS * ALIGN_FLOATS;
}

/* The floats after FROM, in units that no bucket boundary divides. */
struct remainder {
    uint64_t from, units, count; /* number of buckets */
};

static struct remainder remainder_after(const struct splitter *splitter,
                                        uint64_t from) {
    uint64_t end = end_of(splitter, splitter->layout->num_parameters - 1);
    struct remainder remainder = {.from = from / ALIGN_FLOATS * ALIGN_FLOATS};
    uint64_t each = splitter->max_elements / ALIGN_FLOATS;
    if (end > from)
        remainder.units =
            (end - remainder.from + ALIGN_FLOATS - 1) / ALIGN_FLOATS;
    remainder.count = (remainder.units + each - 1) / each;
    return remainder;
}

/* The end of bucket I of the remainder; all are equally long. */
static uint64_t end_in(const struct splitter *splitter,
                       const struct remainder *remainder, uint64_t i) {
    uint64_t completed = remainder->units / remainder->count,
             more = remainder->units % remainder->count;
    uint64_t units = completed * (i + 1) + more * (i + 1) / remainder->count;
    return bucket_min_u64(
        remainder->from + units * ALIGN_FLOATS,
        end_of(splitter, splitter->layout->num_parameters - 1));
}

static void bucket_split_one(const struct splitter *splitter,
                             const struct remainder *remainder, uint64_t first,
                             struct bucket *buckets) {
    struct bucket none = {.end = 0};
    buckets[0] = bucket_to(splitter, &none, first);
    for (uint64_t i = 0; i < remainder->count; i++)
        buckets[i + 1] =
            bucket_to(splitter, &buckets[i], end_in(splitter, remainder, i));
}

enum status bucket_split(struct bucket **out, uint32_t *count,
                         const struct layout *layout, const uint64_t *offsets,
                         uint64_t max_elements, struct failure *why) {
    uint64_t units =
        bucket_min_u64(max_elements, LAYOUT_MAX_ELEMENTS) / ALIGN_FLOATS;
    struct splitter splitter = {layout, offsets,
                                (units > 0 ? units : 1) * ALIGN_FLOATS};
    uint64_t first = first_end(&splitter);
    struct remainder remainder = remainder_after(&splitter, first);
    *out = remainder.count < UINT32_MAX
               ? calloc(remainder.count + 1, sizeof **out)
               : NULL;
    *count = (uint32_t)remainder.count + 1;
    if (!*out)
        return status_fail(why, FAILURE_NO_MEMORY,
                           "no memory for a list of %llu buckets: "
                           "zero_optimization.reduce_bucket_size is %llu",
                           (unsigned long long)remainder.count + 1,
                           (unsigned long long)max_elements);
    bucket_split_one(&splitter, &remainder, first, *out);
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
