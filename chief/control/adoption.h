/* SPDX-License-Identifier: Apache-2.0 */
/* Decides whether a chief adopts a run that goes on without the chief that led
 * it, by what the members of that run tell. Pure: answers and times in, a
 * verdict out. */
#ifndef CAPSTAN_ADOPTION_H
#define CAPSTAN_ADOPTION_H

#include <stdbool.h>
#include <stdint.h>

enum adoption_verdict {
    ADOPTION_WAIT,   /* nobody has answered, or not all */
    ADOPTION_ADOPT,  /* of those that have answered */
    ADOPTION_REWIND, /* the members join anew, and go back to a checkpoint */
};

/* What a member tells. */
struct adoption_answer {
    uint64_t run, incarnation, term;
    uint64_t share; /* a trainer's: samples of records; 0: it reads none */
    bool has_begun; /* a ps's: it has more than the values of the start */
};

/* A rank as the newest view has it. */
struct adoption_rank {
    uint64_t incarnation; /* 0: nobody trains in its place */
    uint64_t from;        /* clock of its first contribution */
    bool live;            /* it has not left the loop */
};

struct adoption_place {
    uint64_t answered; /* the incarnation that has; 0: none */
    int64_t claimed;   /* when a new process has asked for it; 0: none has */
    uint64_t share;    /* of the answer */
};

struct adoption {
    uint32_t num_ranks, num_ps;
    uint32_t num_shares; /* of the ranks, the first ones share the data */
    int64_t limit;       /* ns from the first answer until all others are
                            taken for dead */
    int64_t since;       /* time of the first answer; 0: none has come */
    uint64_t run;        /* of that answer */
    uint64_t term, view; /* the highest */
    bool has_begun;      /* a ps has */
    struct adoption_place *places; /* [num_ranks + num_ps] */
    struct adoption_rank *ranks;   /* [num_ranks], of that view */
    char why[160];                 /* it cannot be adopted; "": it can */
};

/* False: no memory. */
bool adoption_open(struct adoption *adoption, uint32_t num_ranks,
                   uint32_t num_ps, int64_t limit);

/* Frees what ADOPTION has, not the struct. */
void adoption_close(struct adoption *adoption);

/* The member of PLACE (ranks, then ps) has answered. */
void adoption_receive(struct adoption *adoption, uint32_t place,
                      const struct adoption_answer *answer, int64_t now);

/* A new process asks for PLACE: if the one that had it does not answer soon, it
 * is dead. */
void adoption_claim(struct adoption *adoption, uint32_t place, int64_t now);

/* A ps has VIEW, with RANKS [num_ranks]. */
void adoption_receive_view(struct adoption *adoption, uint64_t view,
                           const struct adoption_rank *ranks);

/* The run cannot be adopted; the first WHY counts, the rest of a sentence. */
void adoption_refuse(struct adoption *adoption, const char *why);

/* Has PLACE the member that the newest view has there, as it says? */
bool adoption_has(const struct adoption *adoption, uint32_t place);

/* Sets `why` with ADOPTION_REWIND. */
enum adoption_verdict adoption_decide(struct adoption *adoption, int64_t now);

#endif
