/* SPDX-License-Identifier: Apache-2.0 */
/* Longest processing time first (Graham 1969): blocks are sorted once by size,
 * and a heap yields the least loaded ps. Ties go by number, so that the same
 * layout always gets the same placement. */
#include "chief/plan/placement.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>

/* Heap entry: a ps and the elements placed on it, lightest first. */
struct load {
    uint64_t elements;
    uint32_t ps;
};

static bool lighter(struct load a, struct load b) {
    return a.elements != b.elements ? a.elements < b.elements : a.ps < b.ps;
}

/* Moves the first entry down until no lighter entry is below it. */
static void sift_down(struct load *heap, uint32_t count) {
    uint64_t at = 0;
    struct load moving = heap[0];
    for (;;) {
        uint64_t child = 2 * at + 1;
        if (child + 1 < count && lighter(heap[child + 1], heap[child]))
            child++;
        if (child >= count || !lighter(heap[child], moving))
            break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = moving;
}

static int compare_keys(const void *a, const void *b) {
    uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;
    return (left > right) - (left < right);
}

/* Keys sort from the largest block to the smallest, then by block number, which
 * is their low half. */
static void sort_blocks(const struct layout *layout, uint64_t *keys) {
    for (uint32_t b = 0; b < layout->num_blocks; b++)
        keys[b] = (uint64_t)(UINT32_MAX - layout->blocks[b].elements) << 32 | b;
    qsort(keys, layout->num_blocks, sizeof *keys, compare_keys);
}

enum status placement_greedy(const struct layout *layout, uint32_t num_ps,
                             uint32_t *ps_of_block, struct failure *why) {
    uint64_t *keys = malloc(layout->num_blocks * sizeof *keys);
    struct load *heap = malloc(num_ps * sizeof *heap);
    enum status status = STATUS_OK;
    if (!keys || !heap) {
        status = status_errno(why, FAILURE_NO_MEMORY, ENOMEM,
                              "placing %u blocks on %u ps", layout->num_blocks,
                              num_ps);
        goto done;
    }
    for (uint32_t ps = 0; ps < num_ps; ps++)
        heap[ps] = (struct load){0, ps};
    sort_blocks(layout, keys);
    for (uint32_t i = 0; i < layout->num_blocks; i++) {
        uint32_t b = (uint32_t)keys[i];
        ps_of_block[b] = heap[0].ps;
        heap[0].elements += layout->blocks[b].elements;
        sift_down(heap, num_ps);
    }
done:
    free(keys);
    free(heap);
    return status;
}
