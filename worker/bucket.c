#include "worker/bucket.h"

#include <stdlib.h>

enum { ALIGN_FLOATS = 16 };

struct cutter {
    const struct layout *layout;
    const uint64_t *offsets;
    uint64_t most;
};

/* Where the parameter ends that is number WHICH (from 0) of the arena. */
static uint64_t end_of(const struct cutter *cutter, uint32_t which) {
    uint32_t p = cutter->layout->num_parameters - 1 - which;
    return cutter->offsets[p] + cutter->layout->parameters[p].elements;
}

static uint64_t smaller(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

/* Where a piece ends that begins at FROM in a parameter too large for it. */
static uint64_t cut_within(const struct cutter *cutter, uint64_t from,
                           uint64_t end) {
    uint64_t cut = (from + cutter->most) / ALIGN_FLOATS * ALIGN_FLOATS;
    if (cut <= from)
        cut = (from / ALIGN_FLOATS + 1) * ALIGN_FLOATS;
    return smaller(cut, end);
}

/* The bucket that begins at FROM, WHOLE parameters ending before it. */
static struct bucket next_bucket(const struct cutter *cutter, uint64_t from,
                                 uint32_t whole) {
    uint32_t count = cutter->layout->num_parameters;
    struct bucket bucket = {from, from, whole, whole};
    while (bucket.whole < count &&
           end_of(cutter, bucket.whole) - from <= cutter->most)
        bucket.end = end_of(cutter, bucket.whole++);
    bucket.touched = bucket.whole;
    if (bucket.end > from)
        return bucket;
    uint64_t end = end_of(cutter, whole);
    bucket.end = cut_within(cutter, from, end);
    bucket.whole += bucket.end == end;
    bucket.touched = whole + 1;
    return bucket;
}

/* Into BUCKETS, or only counted when it is NULL. */
static uint64_t cut(const struct cutter *cutter, struct bucket *buckets) {
    uint32_t count = cutter->layout->num_parameters;
    struct bucket bucket = {.end = cutter->offsets[count - 1]};
    uint64_t made = 0;
    for (; bucket.whole < count; made++) {
        bucket = next_bucket(cutter, bucket.end, bucket.whole);
        if (buckets)
            buckets[made] = bucket;
    }
    return made;
}

enum status bucket_cut(struct bucket **out, uint32_t *count,
                       const struct layout *layout, const uint64_t *offsets,
                       uint64_t most, struct failure *why) {
    struct cutter cutter = {layout, offsets,
                            smaller(most, LAYOUT_MAX_ELEMENTS)};
    uint64_t made = cut(&cutter, NULL);
    *out = made <= UINT32_MAX ? calloc(made, sizeof **out) : NULL;
    *count = (uint32_t)made;
    if (!*out)
        return status_fail(why, STATUS_RETRY,
                           "no memory for a list of %llu buckets: "
                           "zero_optimization.reduce_bucket_size is %llu",
                           (unsigned long long)made, (unsigned long long)most);
    cut(&cutter, *out);
    (*out)[0].first = 0;
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
