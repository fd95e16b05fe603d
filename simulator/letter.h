/* SPDX-License-Identifier: Apache-2.0 */
/* A message of a simulated run, and a queue of them. */
#ifndef CAPSTAN_LETTER_H
#define CAPSTAN_LETTER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum letter_kind { LETTER_PUSH, LETTER_WEIGHTS, LETTER_NORM };

/* FROM and TO are processes: workers by rank, then ps. */
struct letter {
    struct letter *next;
    enum letter_kind kind;
    uint32_t from, to;
    uint64_t clock, seq;
    uint64_t bytes; /* of its blocks */
    uint32_t count;
    uint32_t blocks[];
};

struct letters {
    struct letter *first, *last;
};

/* With room for COUNT blocks, those of BLOCKS; NULL: no memory. The caller's,
 * to be freed. */
struct letter *letter_write(const struct letter *head, const uint32_t *blocks,
                            uint32_t count);

/* Takes LETTER as the last. */
void letters_add(struct letters *letters, struct letter *letter);

/* Gives the first, NULL when there is none. */
struct letter *letters_take(struct letters *letters);

/* Frees those in it. */
void letters_drop(struct letters *letters);

#endif
