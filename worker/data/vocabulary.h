/* SPDX-License-Identifier: Apache-2.0 */
/* Words, each with its place in the order in which they were given. */
#ifndef CAPSTAN_VOCABULARY_H
#define CAPSTAN_VOCABULARY_H

#include "core/base/status.h"
#include "worker/data/record.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

struct vocabulary;

/* The words of the file PATH, one a line, or, without PATH, of LIST; of none if
 * LIST is no array of strings of one line each. Fails as data_file_open. */
enum status vocabulary_open(struct vocabulary **out, const char *path,
                            const json_t *list, struct failure *why) MUST_CHECK;

/* Frees *VOCABULARY (may be NULL) and clears it. */
void vocabulary_close(struct vocabulary **vocabulary);

uint32_t vocabulary_count(const struct vocabulary *vocabulary);

/* Equal for the same words in the same order; another with SEED. */
uint64_t vocabulary_digest(const struct vocabulary *vocabulary, uint64_t seed);

/* A word that is there twice, a view, and the LINES of the file that have it,
 * or its places in the list, both from 1; false: there is none. */
bool vocabulary_twin(const struct vocabulary *vocabulary,
                     struct record_text *twin, uint64_t lines[2]);

/* The place of WORD; false: it is not in VOCABULARY. */
bool vocabulary_find(const struct vocabulary *vocabulary,
                     const struct record_text *word, uint32_t *place);

#endif
