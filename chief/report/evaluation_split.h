/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of a test set in one evaluation: who has which, what has come. A
 * holder is an incarnation, 0 nobody: who died and came back is another one.
 * Pure: the living and their reports in, the next order out. */
#ifndef CAPSTAN_EVALUATION_SPLIT_H
#define CAPSTAN_EVALUATION_SPLIT_H

#include <stdbool.h>
#include <stdint.h>

struct evaluation_split_result {
    double loss_sum;
    uint64_t correct, count; /* samples: right ones, and all it looked at */
};

struct evaluation_split_part {
    uint64_t holder;
    bool done;
    struct evaluation_split_result result;
};

struct evaluation_split {
    uint32_t count;
    struct evaluation_split_part *part; /* [count] */
};

/* COUNT (> 0) parts that nobody has. False: no memory. */
bool evaluation_split_open(struct evaluation_split *parts, uint32_t count);

/* Frees the parts, not the struct. */
void evaluation_split_close(struct evaluation_split *parts);

/* Hands a part that is not done, and whose holder is not among LIVING, to one
 * of them that has none under way: it holds *PART from now on and is to be
 * told; its place in LIVING is *TO. False: nothing is to be handed now. */
bool evaluation_split_assign(struct evaluation_split *parts,
                             const uint64_t *living, uint32_t num_living,
                             uint32_t *part, uint32_t *to);

/* HOLDER reports PART; false when it does not hold it, or has reported. */
bool evaluation_split_receive(struct evaluation_split *parts, uint32_t part,
                              uint64_t holder,
                              const struct evaluation_split_result *result);

/* Is a part awaited from one of LIVING? */
bool evaluation_split_is_pending(const struct evaluation_split *parts,
                                 const uint64_t *living, uint32_t num_living);

/* Are all parts done? */
bool evaluation_split_is_complete(const struct evaluation_split *parts);

/* Of the parts that are done, summed in their order: the same whoever came
 * first. */
struct evaluation_split_result evaluation_split_sum(
    const struct evaluation_split *parts);

#endif
