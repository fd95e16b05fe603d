/* SPDX-License-Identifier: Apache-2.0 */
/* Whole clusters simulated from a seed: property tests of the cores together.
 * Messages are dropped, doubled, delayed and overtaken, connections break,
 * processes pause, die and come back; then all heals, and the run must end
 * well in bounded virtual time. */
#ifndef CAPSTAN_SIMULATION_H
#define CAPSTAN_SIMULATION_H

#include <stdbool.h>
#include <stdint.h>

/* Mistakes that are planted to see them found. */
enum simulation_fault {
    SIMULATION_NO_FAULT,
    SIMULATION_LEDGER_FORGETS,
    SIMULATION_ROW_SAVED_LATE,
    SIMULATION_NO_RUN_CHECK,
    SIMULATION_SHARED_CREDIT,
    SIMULATION_OTHER_ORDER,
    SIMULATION_RESEND_AS_NEW,
    SIMULATION_EARLY_REPLY,
    SIMULATION_WAITS_FOR_DEAD,
    SIMULATION_VIEW_NOT_APPLIED,
    SIMULATION_STALE_INCARNATION,
    SIMULATION_JOINER_TOO_EARLY,
    SIMULATION_JOINER_TOO_LATE,
    SIMULATION_CUT_AT_HIGHEST,
    SIMULATION_FREEZE_IGNORED,
    SIMULATION_QUERY_IGNORED,
    SIMULATION_WAITS_FOR_FINISHED,
    SIMULATION_REPLY_APPLIED_TWICE,
    SIMULATION_OTHER_NORM,
    SIMULATION_CREDIT_IGNORED,
    SIMULATION_COMMANDS_TWICE,
    SIMULATION_SAME_INCARNATION,
    SIMULATION_TOO_STALE,
    SIMULATION_NEVER_QUERIES,
    SIMULATION_VIEW_SENT_EARLY,
    SIMULATION_OVERFLOW_AS_EMPTY,
    SIMULATION_ZERO_AS_EMPTY,
    SIMULATION_ROWS_APPLIED_TWICE,
    SIMULATION_ROWS_HELD_LATE,
    SIMULATION_ROWS_ON_TWO_PS,
    SIMULATION_EARLY_ROWS,
    SIMULATION_OLD_ROWS,
    SIMULATION_ROWS_OVERTAKEN,
    SIMULATION_LATE_APPLIED,
    SIMULATION_STRAGGLER_AWAITED,
    SIMULATION_LATE_UNANSWERED,
    SIMULATION_STRAGGLER_GOES_ON,
    SIMULATION_STRAGGLER_TOO_FAR,
    SIMULATION_LEDGER_KEPT,
    SIMULATION_ROWS_KEPT,
    SIMULATION_CUTS_KEPT,
    SIMULATION_COPY_ON_ONE_PS,
    SIMULATION_COPY_UNDONE,
    SIMULATION_COPY_DROPPED,
    SIMULATION_COPY_BASE_DROPPED,
    SIMULATION_COPY_BASE_ON_ONE_PS,
    SIMULATION_OLDER_START,
    SIMULATION_OLD_BASE,
    SIMULATION_OLD_VIEW_ADOPTED,
    SIMULATION_FREEZE_STAYS,
    SIMULATION_OLD_CHIEF_OBEYED,
    SIMULATION_REPORTS_LOST,
    SIMULATION_FAULTS
};

struct simulation_result {
    bool found;
    char text[512]; /* what, when */
    uint64_t steps; /* events handled */
    uint64_t hash;  /* of all that happened: the same for the same seed */
    /* Kinds of histories seen, so that a test can tell that they are. */
    uint32_t runs, deaths, joiners, cuts, late;
    uint32_t copied, returns; /* copies in memory; runs that began from one */
    uint32_t adoptions;
};

/* Plays SEED with FAULT planted; TRACE prints every event. */
void simulation_run(uint64_t seed, enum simulation_fault fault, bool trace,
                    struct simulation_result *result);

const char *simulation_fault_name(enum simulation_fault fault);

#endif
