/* SPDX-License-Identifier: Apache-2.0 */
/* The result of `capstan compare` as one page for people: compare_page.html
 * with the figures, the machine and the job in it, without a script. */
#ifndef CAPSTAN_COMPARE_REPORT_H
#define CAPSTAN_COMPARE_REPORT_H

#include "core/base/status.h"

#include <jansson.h>

/* The decimals of a number in the object that --json prints. */
enum { COMPARE_REPORT_PRECISION = 9 };

/* The page of RESULT, the JSON object of docs/compare.md, with the numbers that
 * --json prints of it: the page of that text is the same. The caller frees it;
 * NULL: no memory. */
char *compare_report_page(const json_t *result);

/* Writes the page to PATH, whole or not at all. */
enum status compare_report_write(const json_t *result, const char *path,
                                 struct failure *why) MUST_CHECK;

#endif
