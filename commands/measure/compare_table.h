/* SPDX-License-Identifier: Apache-2.0 */
/* Prints the result of `capstan compare` as a table or as CSV. */
#ifndef CAPSTAN_COMPARE_TABLE_H
#define CAPSTAN_COMPARE_TABLE_H

#include <jansson.h>
#include <stdbool.h>
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

/* "synchronous", "asynchronous" or "all-reduce". */
const char *compare_table_mode(const json_t *one);

/* Has no run of ONE finished? And what its error is: "failed", "diverged" or
 * "tables", which do not fit. */
bool compare_table_failed(const json_t *one);
const char *compare_table_failure(const json_t *one);

/* The figure of the test set that the table has: its key and its name. */
const char *compare_table_quality_key(const json_t *result);
const char *compare_table_quality_name(const json_t *result);

/* '!': ONE has diverged; '*': its figure of the test set is far from those of
 * the others; else ' '. */
char compare_table_mark(const json_t *result, const json_t *one);

/* What was run, how often, and where, in a line. */
enum { COMPARE_TABLE_TITLE = 4400 };
void compare_table_title(char line[COMPARE_TABLE_TITLE], const json_t *result);

/* The lines below the tables: a line that begins with four spaces continues the
 * one before. */
void compare_table_print_notes(FILE *out, const json_t *result);

/* Writes RESULT, the JSON object of docs/compare.md, as a table. A missing
 * figure is a dash. */
void compare_table_print(FILE *out, const json_t *result);

/* Writes the cases of RESULT as CSV (RFC 4180) with a heading; a missing figure
 * is empty. */
void compare_table_csv(FILE *out, const json_t *result);

#endif
