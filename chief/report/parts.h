/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of a test set in one evaluation: who has which, what has come. A
 * holder is an incarnation, 0 nobody: who died and came back is another one.
 * Pure: the living and their reports in, the next order out. */
#ifndef CAPSTAN_PARTS_H
#define CAPSTAN_PARTS_H

#include <stdbool.h>
#include <stdint.h>

struct part_result {
    double loss_sum;
    uint64_t correct, count; /* samples: right ones, and all it looked at */
};

struct part {
    uint64_t holder;
    bool done;
    struct part_result result;
};

struct parts {
    uint32_t count;
    struct part *part; /* [count] */
};

/* COUNT (> 0) parts that nobody has. False: no memory. */
bool parts_open(struct parts *parts, uint32_t count);

/* Frees the parts, not the struct. */
void parts_close(struct parts *parts);

/* Hands a part that is not done, and whose holder is not among LIVING, to one
 * of them that has none under way: it holds *PART from now on and is to be
 * told; its place in LIVING is *TO. False: nothing is to be handed now. */
bool parts_hand(struct parts *parts, const uint64_t *living,
                uint32_t num_living, uint32_t *part, uint32_t *to);

/* HOLDER reports PART; false when it does not hold it, or has reported. */
bool parts_take(struct parts *parts, uint32_t part, uint64_t holder,
                const struct part_result *result);

/* Is a part awaited from one of LIVING? */
bool parts_awaited(const struct parts *parts, const uint64_t *living,
                   uint32_t num_living);

/* Are all parts done? */
bool parts_whole(const struct parts *parts);

/* Of the parts that are done, summed in their order: the same whoever came
 * first. */
struct part_result parts_sum(const struct parts *parts);

#endif
