/* SPDX-License-Identifier: Apache-2.0 */
#include "chief/report/evaluation_split.h"

#include <stdlib.h>

bool evaluation_split_open(struct evaluation_split *parts, uint32_t count) {
    parts->part = calloc(count, sizeof *parts->part);
    parts->count = parts->part ? count : 0;
    return parts->part;
}

void evaluation_split_close(struct evaluation_split *parts) {
    free(parts->part);
    *parts = (struct evaluation_split){0};
}

static bool is_assigned(const struct evaluation_split_part *part,
                        const uint64_t *living, uint32_t num_living) {
    for (uint32_t i = 0; !part->done && i < num_living; i++)
        if (part->trainer == living[i])
            return true;
    return false;
}

/* A trainer gets one part at a time. */
static bool find_idle(const struct evaluation_split *parts,
                      const uint64_t *living, uint32_t num_living,
                      uint32_t *to) {
    for (uint32_t i = 0; i < num_living; i++) {
        bool busy = false;
        for (uint32_t p = 0; p < parts->count; p++)
            busy |= is_assigned(&parts->part[p], &living[i], 1);
        *to = i;
        if (!busy)
            return true;
    }
    return false;
}

bool evaluation_split_assign(struct evaluation_split *parts,
                             const uint64_t *living, uint32_t num_living,
                             uint32_t *part, uint32_t *to) {
    uint32_t p = 0;
    while (p < parts->count &&
           (parts->part[p].done ||
            is_assigned(&parts->part[p], living, num_living)))
        p++;
    if (p == parts->count || !find_idle(parts, living, num_living, to))
        return false;
    parts->part[p].trainer = living[*to];
    *part = p;
    return true;
}

bool evaluation_split_receive(struct evaluation_split *parts, uint32_t part,
                              uint64_t trainer,
                              const struct evaluation_split_result *result) {
    if (part >= parts->count || parts->part[part].trainer != trainer ||
        parts->part[part].done)
        return false;
    parts->part[part].done = true;
    parts->part[part].result = *result;
    return true;
}

bool evaluation_split_is_pending(const struct evaluation_split *parts,
                                 const uint64_t *living, uint32_t num_living) {
    for (uint32_t p = 0; p < parts->count; p++)
        if (is_assigned(&parts->part[p], living, num_living))
            return true;
    return false;
}

bool evaluation_split_is_complete(const struct evaluation_split *parts) {
    for (uint32_t p = 0; p < parts->count; p++)
        if (!parts->part[p].done)
            return false;
    return true;
}

struct evaluation_split_result evaluation_split_sum(
    const struct evaluation_split *parts) {
    struct evaluation_split_result sum = {0};
    for (uint32_t p = 0; p < parts->count; p++) {
        const struct evaluation_split_part *part = &parts->part[p];
        if (!part->done)
            continue;
        sum.loss_sum += part->result.loss_sum;
        sum.correct += part->result.correct;
        sum.count += part->result.count;
        sum.bad_lines += part->result.bad_lines;
        sum.regression |= part->result.regression;
        sum.predicted_sum += part->result.predicted_sum;
        sum.target_sum += part->result.target_sum;
    }
    return sum;
}
