/* SPDX-License-Identifier: Apache-2.0 */
/* The page that shows a run: page.html, one file with its style and script. It
 * asks the process that serves it for /status and /points; a report has the
 * data of /points in itself, with the run's summary. */
#ifndef CAPSTAN_PAGE_H
#define CAPSTAN_PAGE_H

#include "core/base/status.h"

#include <jansson.h>

/* The page; and the policy (Content-Security-Policy) by which only its own
 * style and script count, with "frame-ancestors", which a page cannot say of
 * itself. */
extern const char *const page_html;
extern const char *const page_policy;

/* The page with DATA in it, of which no text can end the element that has it.
 * The caller frees it; NULL: no memory. */
char *page_with_data(const json_t *data);

/* Refuses PATH, that FLAG names, for a page: it takes the place of a file,
 * never of anything else, nor of the open file SOURCE that it is made of (-1:
 * none).
 */
enum status page_check_path(const char *flag, const char *path, int source,
                            struct failure *why) MUST_CHECK;

#endif
