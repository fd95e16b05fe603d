/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers in data files, in the C locale whatever the process's is. */
#ifndef CAPSTAN_NUMBER_TEXT_H
#define CAPSTAN_NUMBER_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The same for 0 to 2^64 - 1, without a sign. */
bool number_text_unsigned(const char *text, size_t size, uint64_t *out);

/* All SIZE bytes as a decimal number, such as -1.5e3, rounded to the nearest
 * float32 of the nearest float64; false if they are none, or it is not
 * finite. */
bool number_text_float(const char *text, size_t size, float *out);

/* What a field of a table has as a number: that, with a comma in place of the
 * point if DECIMAL_COMMA, or true or false, in any of three ways to write them,
 * as 1 or 0. */
bool number_text_field(const char *text, size_t size, bool decimal_comma,
                       float *out);

/* The decimal number without an exponent and of at most 15 digits that TEXT
 * begins with, rounded in the same way, once (Clinger 1990, "How to read
 * floating point numbers accurately", section 3); returns its end, or NULL:
 * there is none before END. */
const char *number_text_plain(const char *text, const char *end, float *out);

#endif
