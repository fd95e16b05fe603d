/* SPDX-License-Identifier: Apache-2.0 */
/* Which trainer reaches which ps, as the trainers report it, and who is at
 * fault where one does not: a trainer that cannot reach a ps which others
 * reach, or a ps that no trainer reaches. Pure. */
#ifndef CAPSTAN_REACHABILITY_H
#define CAPSTAN_REACHABILITY_H

#include "chief/control/roster.h"

#include <stdbool.h>
#include <stdint.h>

struct reachability {
    uint32_t num_ranks, num_ps;
    int64_t limit;     /* ns after which a lost connection counts */
    int64_t *lost;     /* [num_ranks, num_ps]: since when; 0: it is there */
    int64_t *reported; /* [num_ranks]: when last; 0: not yet */
};

enum reachability_fault {
    REACHABILITY_NONE,    /* or it cannot be told yet */
    REACHABILITY_TRAINER, /* others reach the ps */
    REACHABILITY_PS,      /* no trainer reaches it */
};

struct reachability_verdict {
    enum reachability_fault fault;
    uint32_t rank, ps; /* of the connection that was lost first */
    int64_t since;
};

/* False: no memory. */
bool reachability_open(struct reachability *reachability,
                       const struct roster *roster);

/* Frees the arrays, not the struct. */
void reachability_close(struct reachability *reachability);

/* RANK's trainer reports: it reaches every ps but those that follow. */
void reachability_report(struct reachability *reachability, uint32_t rank,
                         int64_t now);

/* RANK's trainer has had no connection to PS since SINCE. */
void reachability_lose(struct reachability *reachability, uint32_t rank,
                       uint32_t ps, int64_t since);

/* RANK's trainer is gone. */
void reachability_forget(struct reachability *reachability, uint32_t rank);

/* The chief itself stood still for STALL ns until NOW. */
void reachability_shift(struct reachability *reachability, int64_t stall,
                        int64_t now);

/* Who is at fault at NOW. Only trainers that have reported lately are believed
 * and judged, and only a ps that ROSTER has heard of lately: whether another
 * lives is the roster's matter first. */
struct reachability_verdict reachability_judge(
    const struct reachability *reachability, const struct roster *roster,
    int64_t now);

#endif
