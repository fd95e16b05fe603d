/* SPDX-License-Identifier: Apache-2.0 */
/* The pictures of `capstan compare --plot`, drawn by gnuplot. */
#ifndef CAPSTAN_COMPARE_PLOT_H
#define CAPSTAN_COMPARE_PLOT_H

#include "proto/base/status.h"

#include <jansson.h>
#include <stdio.h>

/* Before anything is measured: is gnuplot in PATH? STATUS_CONFIG says how to
 * get it. */
enum status compare_plot_check_gnuplot(struct failure *why) MUST_CHECK;

/* Writes for gnuplot how to draw RESULT, the JSON object of docs/compare.md,
 * into PATH (.svg or .png): throughput bars with their intervals and bounds,
 * and throughput against the number of ps. */
void compare_plot_script(FILE *out, const json_t *result, const char *path);

/* Draws it: STATUS_FAILED tells what gnuplot said. From the main thread of a
 * process without children. */
enum status compare_plot_draw(const json_t *result, const char *path,
                              struct failure *why) MUST_CHECK;

#endif
