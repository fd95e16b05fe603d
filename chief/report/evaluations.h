/* SPDX-License-Identifier: Apache-2.0 */
/* Evaluates accuracy on the test set: each trainer reports its part, and the
 * chief adds them up. In synchronous runs the parts go by rank, on the weights
 * that each trainer has after the round. Otherwise they are assigned on a
 * snapshot, and the part of a dead trainer goes to a live one. */
#ifndef CAPSTAN_EVALUATIONS_H
#define CAPSTAN_EVALUATIONS_H

#include "chief/control/roster.h"
#include "chief/report/evaluation_split.h"
#include "core/tensor/binary_scores.h"
#include "proto/messages/message.h"

#include <stdbool.h>
#include <stdint.h>

struct run;

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
