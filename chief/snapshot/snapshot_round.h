/* SPDX-License-Identifier: Apache-2.0 */
/* The course of one cut: what is awaited from the ps before their next order,
 * and which round it is at. Pure: answers in, decisions out. Each ps gives
 * each answer once and in this order: marked, held, done; a cut that stands in
 * the plan hears only the last. */
#ifndef CAPSTAN_SNAPSHOT_ROUND_H
#define CAPSTAN_SNAPSHOT_ROUND_H

#include <stdbool.h>
#include <stdint.h>

enum snapshot_round_stage {
    SNAPSHOT_ROUND_IDLE,
    SNAPSHOT_ROUND_QUERYING, /* synchronous: each ps names its highest round */
    SNAPSHOT_ROUND_TAKING,   /* snapshots are being taken */
    SNAPSHOT_ROUND_HELD,     /* all hold it */
};

struct snapshot_round {
    enum snapshot_round_stage stage;
    uint32_t num_ps; /* that answer */
    uint32_t marked, held, done;
    uint64_t highest; /* round that any ps has closed */
    uint64_t round;   /* agreed on; 0: the moment each ps hears of it */
};

/* Each of NUM_PS is asked for its highest round, and closes nothing above one
 * more until the round is told. */
void snapshot_round_query(struct snapshot_round *snapshot, uint32_t num_ps);

/* Snapshots are taken at once, or at a planned round: no question. */
void snapshot_round_start(struct snapshot_round *snapshot, uint32_t num_ps);

/* A ps has closed up to HIGHEST. True when all have said so: the cut is at
 * `round`, the first that none of them can have passed; or at the LAST of the
 * run, which has none after it. */
bool snapshot_round_receive_highest(struct snapshot_round *snapshot,
                                    uint64_t highest, uint64_t last);

/* A ps holds its snapshot; true when all do. */
bool snapshot_round_receive_held(struct snapshot_round *snapshot);

/* A ps has written its snapshot, or has failed to; true when all have. */
bool snapshot_round_receive_written(struct snapshot_round *snapshot);

#endif
