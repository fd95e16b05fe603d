/* SPDX-License-Identifier: Apache-2.0 */
/* The copies in memory that a process has, from which a run goes on after a ps
 * has died: files without a name. A ps has shard files (shard_file.h), of its
 * own part and of another ps's; a trainer has what it keeps (kept_file.h). They
 * outlive the run in which they were made. Any thread may call. */
#ifndef CAPSTAN_COPIES_H
#define CAPSTAN_COPIES_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    COPIES_WAITING = 3, /* of a part, of which nothing else is known */
    COPIES_MOST = 4 * COPIES_WAITING,
};

struct copy {
    uint64_t step;
    uint32_t part; /* of the ps, or the trainer of the rank, with that number */
    int fd;        /* of the file */
    uint64_t size;
    uint64_t id; /* of the snapshot; of another ps's part 0 */
};

/* All 0 before the first call. */
struct copies {
    pthread_mutex_t mutex;         /* for what follows */
    struct copy list[COPIES_MOST]; /* by age */
    uint32_t count;
    uint64_t complete;   /* the newest step that all have; 0: none, */
    uint64_t base;       /* and the one that it is a delta of; 0: of none */
    uint64_t ordered;    /* the one that ps fetch from each other; 0: none */
    char *manifest;      /* owned: of a complete step; NULL: there is none, */
    char *base_manifest; /* owned: its base's; NULL: it has none, */
    uint64_t described;  /* and that step */
};

/* A run goes on from its copy of step START (0: from none), a delta of that of
 * BASE (0: of none): closes all others. */
void copies_begin(struct copies *copies, uint64_t start, uint64_t base);

/* Takes COPY, its file too, in place of one of the same part and step. Of those
 * of the part that wait COPIES_WAITING stay. */
void copies_put(struct copies *copies, struct copy copy);

/* *OUT (may be NULL) is the copy of PART of STEP, its file a view until the
 * next change; false: there is none. */
bool copies_find(struct copies *copies, uint64_t step, uint32_t part,
                 struct copy *out);

/* Closes that copy, if it is there. */
void copies_drop(struct copies *copies, uint64_t step, uint32_t part);

/* As copies_find, with a file that the caller closes. */
bool copies_open(struct copies *copies, uint64_t step, uint32_t part,
                 struct copy *out);

/* Writes all of them, without their files; returns how many. */
uint32_t copies_list(struct copies *copies, struct copy list[COPIES_MOST]);

/* Ps fetch STEP from each other (0: none), and all have COMPLETE, a delta of
 * BASE (0: of none): closes older ones. */
void copies_order(struct copies *copies, uint64_t step, uint64_t complete,
                  uint64_t base);

/* Copies MANIFEST, that of STEP, which is complete, and its base's (NULL: it
 * has none). */
void copies_describe(struct copies *copies, uint64_t step, const char *manifest,
                     const char *base);

/* The manifest of the newest step that is complete and its base's (*BASE, NULL:
 * it has none), for the caller to free; NULL: none is, or there is no memory.
 */
char *copies_manifest(struct copies *copies, char **base);

/* Closes all. */
void copies_close(struct copies *copies);

#endif
