/* SPDX-License-Identifier: Apache-2.0 */
/* The chief puts the histograms of a parameter's pieces together, from all that
 * update one, and passes them to the outlets once none is missing. */
#ifndef CAPSTAN_HISTOGRAM_BOARD_H
#define CAPSTAN_HISTOGRAM_BOARD_H

#include "core/tensor/histogram.h"
#include "proto/messages/control.pb-c.h"

#include <stdint.h>

struct run;
struct roster_slot;
struct histogram_board;

/* Of a whole parameter. */
struct histogram_sum {
    uint64_t counts[HISTOGRAM_BINS]; /* by histogram_place */
    uint64_t finite, nonfinite;
    double sum, squares, least, most; /* of the finite ones */
};

/* SLOT's member has sent MESSAGE. What cannot be of this run's plan is left
 * out. */
void histogram_board_receive(struct run *run, const struct roster_slot *slot,
                             const Capstan__Histograms *message);

/* Frees what is incomplete, which the log tells of. */
void histogram_board_close(struct run *run);

#endif
