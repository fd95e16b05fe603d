/* SPDX-License-Identifier: Apache-2.0 */
/* Prints the result of `capstan compare` as a table or as CSV. */
#ifndef CAPSTAN_COMPARE_TABLE_H
#define CAPSTAN_COMPARE_TABLE_H

#include <jansson.h>
#include <stdio.h>

/* Bytes of a number. */
enum { COMPARE_TABLE_DIGITS = 32 };

/* Writes VALUE (below 10^20) with DIGITS significant digits as "%.*g" does, but
 * never with an exponent, and with at most 6 decimals. */
void compare_table_digits(char text[COMPARE_TABLE_DIGITS], int digits,
                          double value);

/* A figure of a case: its name in CSV and TensorBoard, and where an object of
 * `cases` has it, as compare_table_number takes it. */
struct compare_table_column {
    const char *name, *inside, *key;
    const char *title; /* for people in TensorBoard; NULL: not there */
};
enum { COMPARE_TABLE_COLUMNS = 29 };
extern const struct compare_table_column
    compare_table_columns[COMPARE_TABLE_COLUMNS];

/* The number at KEY, or at KEY of the member INSIDE (NULL: none); NAN if
 * missing. True is 1, false 0. */
double compare_table_number(const json_t *object, const char *inside,
                            const char *key);

/* Writes RESULT, the JSON object of docs/compare.md, as a table. A missing
 * figure is a dash. */
void compare_table_print(FILE *out, const json_t *result);

/* Writes the cases of RESULT as CSV (RFC 4180) with a heading; a missing figure
 * is empty. */
void compare_table_csv(FILE *out, const json_t *result);

#endif
