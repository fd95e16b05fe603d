/* SPDX-License-Identifier: Apache-2.0 */
/* What `capstan bench` measured, for people. */
#ifndef CAPSTAN_BENCH_TABLE_H
#define CAPSTAN_BENCH_TABLE_H

#include <stdio.h>

/* Writes RESULT, the JSON object of docs/bench.md, as a table. A figure that is
 * not there is a dash. */
void bench_table_print(FILE *out, const char *result);

#endif
