/* SPDX-License-Identifier: Apache-2.0 */
/* Charts of `capstan compare --plot`, drawn by gnuplot. */
#ifndef CAPSTAN_COMPARE_PLOT_H
#define CAPSTAN_COMPARE_PLOT_H

#include "core/base/status.h"

#include <jansson.h>
#include <stdio.h>

/* Checks that gnuplot is in PATH before anything is measured. STATUS_CONFIG: it
 * is not; WHY says how to install it. */
enum status compare_plot_check_gnuplot(struct failure *why) MUST_CHECK;

/* Writes to OUT the gnuplot script that draws RESULT, the JSON object of
 * docs/compare.md, into PATH (.svg or .png): throughput bars with intervals and
 * bounds, and throughput against the number of ps. */
void compare_plot_script(FILE *out, const json_t *result, const char *path);

/* Draws RESULT into PATH. STATUS_FAILED: WHY has gnuplot's output. Call it on
 * the main thread of a process without children. */
enum status compare_plot_draw(const json_t *result, const char *path,
                              struct failure *why) MUST_CHECK;

#endif
