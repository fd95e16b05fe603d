/* First weights and state, and saving them: all ranks together, through rank
 * 0's keeper, a block at a time, so that no rank ever needs the memory of all
 * state at once. */
#ifndef CAPSTAN_KEEPING_H
#define CAPSTAN_KEEPING_H

#include "worker/reduction.h"

struct keeping {
    struct reduction *reduction;   /* borrowed */
    float *block[RULE_MAX_SLOTS];  /* state of a block */
    float *bucket[RULE_MAX_SLOTS]; /* state of a bucket */
};

/* STATUS_RETRY: no memory. */
enum status keeping_open(struct keeping *keeping, struct reduction *reduction,
                         struct failure *why) MUST_CHECK;

/* Frees what it has, also where keeping_open has failed. */
void keeping_close(struct keeping *keeping);

/* First weights: rank 0's keeper's, or by the seed. State is at its start and
 * becomes the keeper's. */
enum status keeping_load(struct keeping *keeping,
                         struct failure *why) MUST_CHECK;

/* Rank 0's keeper gets all blocks as the last round has left them. */
enum status keeping_save(struct keeping *keeping,
                         struct failure *why) MUST_CHECK;

#endif
