/* SPDX-License-Identifier: Apache-2.0 */
/* The known word that is most like a mistyped one. */
#ifndef CAPSTAN_DIAGNOSTICS_NEAREST_H
#define CAPSTAN_DIAGNOSTICS_NEAREST_H

#include <stddef.h>

/* Insertions, deletions, replacements and swaps of neighbours that turn A into
 * B, case ignored (optimal string alignment distance). Words over 63 bytes are
 * as far as their length. */
unsigned diagnostics_nearest_distance(const char *a, const char *b);

/* The largest distance at which WORD still counts as a slip of another. */
unsigned diagnostics_nearest_limit(const char *word);

#endif
