/* SPDX-License-Identifier: Apache-2.0 */
#include "simulator/letter.h"

#include <stdlib.h>
#include <string.h>

struct letter *letter_write(const struct letter *head, const uint32_t *blocks,
                            uint32_t count) {
    size_t bytes = count * sizeof *blocks;
    struct letter *letter = malloc(sizeof *letter + bytes);
    if (!letter)
        return NULL;
    memcpy(letter, head, sizeof *letter);
    letter->next = NULL;
    letter->count = count;
    if (count)
        memcpy(letter->blocks, blocks, bytes);
    return letter;
}

void letters_add(struct letters *letters, struct letter *letter) {
    letter->next = NULL;
    if (letters->first)
        letters->last->next = letter;
    else
        letters->first = letter;
    letters->last = letter;
}

struct letter *letters_take(struct letters *letters) {
    struct letter *letter = letters->first;
    if (letter)
        letters->first = letter->next;
    return letter;
}

void letters_drop(struct letters *letters) {
    struct letter *letter;
    while ((letter = letters_take(letters)))
        free(letter);
}
