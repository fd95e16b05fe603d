/* SPDX-License-Identifier: Apache-2.0 */
#include "chief/report/parts.h"

#include <stdlib.h>

bool parts_open(struct parts *parts, uint32_t count) {
    parts->part = calloc(count, sizeof *parts->part);
    parts->count = parts->part ? count : 0;
    return parts->part;
}

void parts_close(struct parts *parts) {
    free(parts->part);
    *parts = (struct parts){0};
}

static bool is_under_way(const struct part *part, const uint64_t *living,
                         uint32_t num_living) {
    for (uint32_t i = 0; !part->done && i < num_living; i++)
        if (part->holder == living[i])
            return true;
    return false;
}

/* A trainer has room for one order at a time. */
static bool find_idle(const struct parts *parts, const uint64_t *living,
                      uint32_t num_living, uint32_t *to) {
    for (uint32_t i = 0; i < num_living; i++) {
        bool busy = false;
        for (uint32_t p = 0; p < parts->count; p++)
            busy |= is_under_way(&parts->part[p], &living[i], 1);
        *to = i;
        if (!busy)
            return true;
    }
    return false;
}

bool parts_hand(struct parts *parts, const uint64_t *living,
                uint32_t num_living, uint32_t *part, uint32_t *to) {
    uint32_t p = 0;
    while (p < parts->count &&
           (parts->part[p].done ||
            is_under_way(&parts->part[p], living, num_living)))
        p++;
    if (p == parts->count || !find_idle(parts, living, num_living, to))
        return false;
    parts->part[p].holder = living[*to];
    *part = p;
    return true;
}

bool parts_take(struct parts *parts, uint32_t part, uint64_t holder,
                const struct part_result *result) {
    if (part >= parts->count || parts->part[part].holder != holder ||
        parts->part[part].done)
        return false;
    parts->part[part].done = true;
    parts->part[part].result = *result;
    return true;
}

bool parts_awaited(const struct parts *parts, const uint64_t *living,
                   uint32_t num_living) {
    for (uint32_t p = 0; p < parts->count; p++)
        if (is_under_way(&parts->part[p], living, num_living))
            return true;
    return false;
}

bool parts_whole(const struct parts *parts) {
    for (uint32_t p = 0; p < parts->count; p++)
        if (!parts->part[p].done)
            return false;
    return true;
}

struct part_result parts_sum(const struct parts *parts) {
    struct part_result sum = {0};
    for (uint32_t p = 0; p < parts->count; p++) {
        const struct part *part = &parts->part[p];
        if (!part->done)
            continue;
        sum.loss_sum += part->result.loss_sum;
        sum.correct += part->result.correct;
        sum.count += part->result.count;
    }
    return sum;
}
