/* SPDX-License-Identifier: Apache-2.0 */
/* The state of one snapshot: which answers of the holders are missing, and its
 * round. Pure: it takes answers and returns decisions. Each holder gives each
 * answer once and in this order: highest, held, written; for a planned snapshot
 * only the last. */
#ifndef CAPSTAN_SNAPSHOT_ROUND_H
#define CAPSTAN_SNAPSHOT_ROUND_H

#include <stdbool.h>
#include <stdint.h>

enum snapshot_round_stage {
    SNAPSHOT_ROUND_IDLE,
    SNAPSHOT_ROUND_QUERYING, /* synchronous: each holder reports its highest
                                round */
    SNAPSHOT_ROUND_TAKING,   /* holders are taking it */
    SNAPSHOT_ROUND_HELD,     /* all holders have it */
};

struct snapshot_round {
    enum snapshot_round_stage stage;
    uint32_t num_holders;             /* that answer */
    uint32_t answered, held, written; /* holders that have reported so */
    uint64_t highest; /* highest round that any holder has closed */
    uint64_t round;   /* the agreed round; 0: when the order arrives */
};

/* Asks each of NUM_HOLDERS holders for its highest round. Until the round is
 * agreed, a holder closes at most one more round. */
void snapshot_round_query(struct snapshot_round *snapshot,
                          uint32_t num_holders);

/* Snapshots are taken at once or at a planned round; no query is needed. */
void snapshot_round_start(struct snapshot_round *snapshot,
                          uint32_t num_holders);

/* A holder has closed rounds up to HIGHEST. True when all have answered:
 * `round` is then the first that none of them can have passed, or LAST, the
 * run's last round. */
bool snapshot_round_receive_highest(struct snapshot_round *snapshot,
                                    uint64_t highest, uint64_t last);

/* A holder has its snapshot; true when all have. */
bool snapshot_round_receive_held(struct snapshot_round *snapshot);

/* A holder has written its snapshot, or has failed to; true when all have. */
bool snapshot_round_receive_written(struct snapshot_round *snapshot);

#endif
