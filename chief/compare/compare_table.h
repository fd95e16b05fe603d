/* SPDX-License-Identifier: Apache-2.0 */
/* What `capstan compare` measured, for people and for spreadsheets. */
#ifndef CAPSTAN_COMPARE_TABLE_H
#define CAPSTAN_COMPARE_TABLE_H

#include <jansson.h>
#include <stdio.h>

/* Writes RESULT, the JSON object of docs/compare.md, as a table. A figure that
 * is not there is a dash. */
void compare_table_print(FILE *out, const json_t *result);

/* The cases of RESULT as CSV (RFC 4180) with a heading; what is not there is
 * empty. */
void compare_table_csv(FILE *out, const json_t *result);

#endif
