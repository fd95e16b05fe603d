/* SPDX-License-Identifier: Apache-2.0 */
/* Divides the test set of one evaluation into parts: which trainer evaluates
 * which part, and which parts are done. A trainer is an incarnation (0: none),
 * so a restarted process is a new trainer. Pure: it takes the live trainers and
 * their reports and returns the next order. */
#ifndef CAPSTAN_EVALUATION_SPLIT_H
#define CAPSTAN_EVALUATION_SPLIT_H

#include <stdbool.h>
#include <stdint.h>

struct evaluation_split_result {
    double loss_sum;
    uint64_t correct, count; /* samples: correct ones, and all evaluated */
    uint64_t bad_lines;      /* left out */
    double predicted_sum, target_sum; /* of two classes */
    bool regression;                  /* no sample is right or wrong */
};

struct evaluation_split_part {
    uint64_t trainer;
    bool done;
    struct evaluation_split_result result;
};

struct evaluation_split {
    uint32_t count;
    struct evaluation_split_part *part; /* [count] */
};

/* Creates COUNT (> 0) unassigned parts. False: no memory. */
bool evaluation_split_open(struct evaluation_split *parts, uint32_t count);

/* Frees the parts, not the struct. */
void evaluation_split_close(struct evaluation_split *parts);

/* Assigns a part that is not done, and whose trainer is not in LIVING, to an
 * idle trainer of LIVING: *PART is the part, *TO the trainer's index in LIVING,
 * and the caller sends the order. False: there is nothing to assign now. */
bool evaluation_split_assign(struct evaluation_split *parts,
                             const uint64_t *living, uint32_t num_living,
                             uint32_t *part, uint32_t *to);

/* HOLDER reports PART. False: it does not hold the part, or has reported it
 * before. */
bool evaluation_split_receive(struct evaluation_split *parts, uint32_t part,
                              uint64_t trainer,
                              const struct evaluation_split_result *result);

/* Does a trainer of LIVING still hold a part that is not done? */
bool evaluation_split_is_pending(const struct evaluation_split *parts,
                                 const uint64_t *living, uint32_t num_living);

/* Are all parts done? */
bool evaluation_split_is_complete(const struct evaluation_split *parts);

/* Sums the parts that are done in the order of the parts, so that the result
 * does not depend on who reported first. */
struct evaluation_split_result evaluation_split_sum(
    const struct evaluation_split *parts);

#endif
