/* SPDX-License-Identifier: Apache-2.0 */
/* The page that shows a run: page.html, one file with its style and script. It
 * asks the process that serves it for /status and /points; a report has the
 * data of /points in itself, with the run's summary. */
#ifndef CAPSTAN_PAGE_H
#define CAPSTAN_PAGE_H

#include <jansson.h>
#include <stddef.h>

/* A page draws so many points at most; what a run evaluates has its own. */
enum { PAGE_POINTS = 1500, PAGE_EVALUATIONS = 500 };

/* The page; and the policy (Content-Security-Policy) by which only its own
 * style and script count, with "frame-ancestors", which a page cannot say of
 * itself. */
extern const char *const page_html;
extern const char *const page_policy;

/* The page with DATA in it, of which no text can end the element that has it.
 * The caller frees it; NULL: no memory. */
char *page_with_data(const json_t *data);

/* Adds the numbers of ROW, an object, as element INDEX of COLUMNS, an object of
 * arrays: {"step": [1, 2], "train_loss": [null, 0.5]}. */
void page_add_row(json_t *columns, size_t index, const json_t *row);

#endif
