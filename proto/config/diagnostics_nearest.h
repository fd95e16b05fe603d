/* SPDX-License-Identifier: Apache-2.0 */
/* The known word nearest to a mistyped one. */
#ifndef CAPSTAN_DIAGNOSTICS_NEAREST_H
#define CAPSTAN_DIAGNOSTICS_NEAREST_H

#include <stddef.h>

/* Optimal string alignment distance of A and B, case ignored: insertions,
 * deletions, replacements and swaps of neighbours. For a word over 63 bytes the
 * distance is the longer length. */
unsigned diagnostics_nearest_distance(const char *a, const char *b);

/* The largest distance at which another word counts as a misspelling of
 * WORD. */
unsigned diagnostics_nearest_limit(const char *word);

#endif
