/* SPDX-License-Identifier: Apache-2.0 */
/* Evaluates accuracy on the test set: each trainer reports its part, and the
 * chief adds them up. In synchronous runs the parts go by rank, on the weights
 * that each trainer has after the round. Otherwise they are assigned on a
 * snapshot, and the part of a dead trainer goes to a live one. */
#ifndef CAPSTAN_EVALUATIONS_H
#define CAPSTAN_EVALUATIONS_H

#include "chief/control/roster.h"
#include "core/tensor/binary_scores.h"
#include "proto/messages/message.h"

#include <stdbool.h>
#include <stdint.h>

struct run;

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

/* Divides the test set of one evaluation into parts: which trainer evaluates
 * which part, and which parts are done. A trainer is an incarnation (0: none),
 * so a restarted process is a new trainer. Pure: it takes the live trainers and
 * their reports and returns the next order. */
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

struct run_evaluation {
    uint64_t id, step; /* id 0: on each trainer's own weights */
    bool open;
    struct evaluation_split parts; /* id 0: one part per rank */
    struct run_point *rank_points; /* id 0: progress of each rank */
    struct binary_scores scores;   /* of all parts that are done */
    bool scores_lost;              /* those of a part */
};

struct run_evaluations {
    struct run_evaluation *items; /* [count]: several if a trainer is ahead */
    uint32_t count;
    uint64_t evaluated;  /* last step with an accuracy */
    uint64_t incomplete; /* highest step whose evaluation lacks a part for
                            good */
    double accuracy, test_loss; /* NAN: none yet, as the next */
    bool has_scores;         /* of two classes: test_loss is the logloss, and */
    double auc, calibration; /* NAN: the loss is none, or all labels alike */
    uint64_t bad_lines;      /* that the last one has left out */
    double auc_error;        /* how far AUC can be off; 0: it is exact */
    uint64_t epochs_seen; /* staleness: epochs whose evaluation was requested */
};

/* A part is reported. */
void evaluations_receive_part(struct run *run, const struct roster_slot *slot,
                              const Capstan__Evaluated *report);

/* Assigns parts of the snapshots that all holders have, and of dead trainers;
 * ends the evaluations that wait for no trainer any more. */
void evaluations_step(struct run *run);

#endif
