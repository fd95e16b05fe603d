/* SPDX-License-Identifier: Apache-2.0 */
/* Prints the results of `capstan bench` for people. */
#ifndef CAPSTAN_BENCH_TABLE_H
#define CAPSTAN_BENCH_TABLE_H

#include <stdio.h>

/* Prints RESULT, the JSON object of docs/bench.md, as a table. A missing figure
 * is a dash. */
void bench_table_print(FILE *out, const char *result);

#endif
