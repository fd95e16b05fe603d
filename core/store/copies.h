/* SPDX-License-Identifier: Apache-2.0 */
/* The copies in memory that a ps's process has, from which a run goes on after
 * another ps has died: shard files (shard_file.h) without a name, of its own
 * part and of another ps's. They outlive the run in which they were made. One
 * thread. */
#ifndef CAPSTAN_COPIES_H
#define CAPSTAN_COPIES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    COPIES_WAITING = 3, /* of a part, that are neither complete nor ordered */
    COPIES_MOST = 4 * COPIES_WAITING,
};

struct copy {
    uint64_t step;
    uint32_t ps; /* whose part */
    int fd;      /* of the file */
    uint64_t size;
};

struct copies {
    struct copy list[COPIES_MOST]; /* by age */
    uint32_t count;
    uint64_t lineage;  /* of the run's checkpoints */
    uint64_t complete; /* the newest step that all ps have; 0: none */
    uint64_t ordered;  /* the one that ps fetch from each other; 0: none */
};

/* A run of LINEAGE goes on after step START: closes the copies of other
 * lineages, and those of steps that it computes again. */
void copies_begin(struct copies *copies, uint64_t lineage, uint64_t start);

/* Takes COPY, its file too, in place of one of the same part and step. Of those
 * of the part that wait COPIES_WAITING stay. */
void copies_put(struct copies *copies, struct copy copy);

/* The part of PS of STEP, a view until the next change; NULL: it has none. */
const struct copy *copies_find(const struct copies *copies, uint64_t step,
                               uint32_t ps);

/* All ps have STEP: closes the older ones. */
void copies_complete(struct copies *copies, uint64_t step);

/* Closes all. */
void copies_close(struct copies *copies);

#endif
