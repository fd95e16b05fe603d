/* SPDX-License-Identifier: Apache-2.0 */
/* The course of one cut: what is awaited from the ps before their next order,
 * and which round it is at. Pure: answers in, decisions out. Each ps gives
 * each answer once and in this order: marked, held, done; a cut that stands in
 * the plan hears only the last. */
#ifndef CAPSTAN_CUT_ROUND_H
#define CAPSTAN_CUT_ROUND_H

#include <stdbool.h>
#include <stdint.h>

enum cut_stage {
    CUT_FREE,
    CUT_ASKING, /* synchronous: each ps names its highest round */
    CUT_TAKING, /* snapshots are being taken */
    CUT_HELD,   /* all hold it */
};

struct cut_round {
    enum cut_stage stage;
    uint32_t num_ps; /* that answer */
    uint32_t marked, held, done;
    uint64_t highest; /* round that any ps has closed */
    uint64_t round;   /* agreed on; 0: the moment each ps hears of it */
};

/* Each of NUM_PS is asked for its highest round, and closes nothing above one
 * more until the round is told. */
void cut_round_ask(struct cut_round *cut, uint32_t num_ps);

/* Snapshots are taken at once, or at a planned round: no question. */
void cut_round_take(struct cut_round *cut, uint32_t num_ps);

/* A ps has closed up to HIGHEST. True when all have said so: the cut is at
 * `round`, the first that none of them can have passed; or at the LAST of the
 * run, which has none after it. */
bool cut_round_marked(struct cut_round *cut, uint64_t highest, uint64_t last);

/* A ps holds its snapshot; true when all do. */
bool cut_round_held(struct cut_round *cut);

/* A ps has written its snapshot, or has failed to; true when all have. */
bool cut_round_done(struct cut_round *cut);

#endif
