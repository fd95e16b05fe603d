/* SPDX-License-Identifier: Apache-2.0 */
#include "core/store/copies.h"

#include <unistd.h>

static void close_copy(struct copies *copies, uint32_t i) {
    close(copies->list[i].fd);
    copies->count--;
    for (; i < copies->count; i++)
        copies->list[i] = copies->list[i + 1];
}

void copies_begin(struct copies *copies, uint64_t lineage, uint64_t start) {
    if (copies->lineage != lineage)
        copies_close(copies);
    copies->lineage = lineage;
    for (uint32_t i = copies->count; i-- > 0;)
        if (copies->list[i].step > start)
            close_copy(copies, i);
    if (copies->complete > start)
        copies->complete = 0;
    copies->ordered = 0;
}

const struct copy *copies_find(const struct copies *copies, uint64_t step,
                               uint32_t ps) {
    for (uint32_t i = 0; i < copies->count; i++)
        if (copies->list[i].step == step && copies->list[i].ps == ps)
            return &copies->list[i];
    return NULL;
}

static bool waits(const struct copies *copies, uint32_t i, uint32_t ps) {
    const struct copy *copy = &copies->list[i];
    return copy->ps == ps && copy->step != copies->complete &&
           copy->step != copies->ordered;
}

/* The oldest of the part of PS that waits, where too many do. */
static void drop_waiting(struct copies *copies, uint32_t ps) {
    uint32_t count = 0, oldest = 0;
    for (uint32_t i = copies->count; i-- > 0;)
        if (waits(copies, i, ps)) {
            count++;
            oldest = i;
        }
    if (count >= COPIES_WAITING)
        close_copy(copies, oldest);
}

void copies_put(struct copies *copies, struct copy copy) {
    const struct copy *old = copies_find(copies, copy.step, copy.ps);
    if (old)
        close_copy(copies, (uint32_t)(old - copies->list));
    drop_waiting(copies, copy.ps);
    if (copies->count == COPIES_MOST)
        close_copy(copies, 0);
    copies->list[copies->count++] = copy;
}

void copies_complete(struct copies *copies, uint64_t step) {
    for (uint32_t i = copies->count; i-- > 0;)
        if (copies->list[i].step < step)
            close_copy(copies, i);
    copies->complete = step;
}

void copies_close(struct copies *copies) {
    while (copies->count)
        close_copy(copies, copies->count - 1);
    copies->complete = copies->ordered = 0;
}
