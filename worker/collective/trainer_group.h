/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives of a caller's model among the run's trainers, in any mode. The
 * group connects at the first call; a run without one opens no port. A thread
 * of the group does the work, so that a call can return early and be continued,
 * and a lost peer ends no other part of the process: calls fail until that rank
 * has joined the run again, and then the group connects anew. */
#ifndef CAPSTAN_TRAINER_GROUP_H
#define CAPSTAN_TRAINER_GROUP_H

#include "core/base/status.h"
#include "worker/collective/collective.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum trainer_call_kind {
    TRAINER_BARRIER,
    TRAINER_ALL_GATHER,
    TRAINER_BROADCAST,
    TRAINER_ALL_REDUCE,
};

/* The values of enum capstan_number and enum capstan_reduction. */
enum number {
    NUMBER_FLOAT32,
    NUMBER_FLOAT64,
    NUMBER_INT8,
    NUMBER_INT16,
    NUMBER_INT32,
    NUMBER_INT64,
    NUMBER_UINT8,
    NUMBERS
};
enum reduction {
    REDUCTION_SUM,
    REDUCTION_MEAN,
    REDUCTION_MIN,
    REDUCTION_MAX,
    REDUCTION_PRODUCT,
    REDUCTIONS
};

/* What all ranks say alike. BYTES: of one rank. */
struct trainer_call {
    uint64_t bytes;
    uint32_t kind;
    uint32_t number, reduction; /* of TRAINER_ALL_REDUCE, else 0 */
    uint32_t root;              /* of TRAINER_BROADCAST, else 0 */
};

enum trainer_call_result {
    TRAINER_CALL_DONE,
    TRAINER_CALL_LATE, /* not by UNTIL: call again with the same arguments */
    TRAINER_CALL_OVER, /* the run is */
    TRAINER_CALL_FAILED,
};

struct trainer_group;

/* Copies SETTINGS, whose pointers stay until the group is closed. NULL: no
 * memory. */
struct trainer_group *trainer_group_open(
    const struct collective_settings *settings);

/* Any thread: ends every call, without a failure of its own. The waits of the
 * store are to be ended after it. */
void trainer_group_cancel(struct trainer_group *group);

/* Clears *GROUP (may be NULL); no thread may be in a call. */
void trainer_group_close(struct trainer_group **group);

/* This rank, which has joined a run under way, waits for STEP of the others: it
 * STARTS, or STEP is its own first too. */
void trainer_group_awaits(struct trainer_group *group, uint64_t step,
                          bool starts);

/* The caller has ended STEP. */
void trainer_group_note_step(struct trainer_group *group, uint64_t step);

/* One thread calls, which has ended STEP (UINT64_MAX: it does not train yet, or
 * waits for no other's step).
 * DATA is written once it is done: TRAINER_ALL_GATHER takes
 * this rank's piece from the place of its rank among those of all ranks. */
enum trainer_call_result trainer_group_call(struct trainer_group *group,
                                            const struct trainer_call *call,
                                            void *data, uint64_t step,
                                            int64_t until, struct failure *why);

#endif
