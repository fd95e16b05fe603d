/* SPDX-License-Identifier: Apache-2.0 */
/* Problems found in a configuration, collected so that one run reports all. */
#ifndef CAPSTAN_DIAGNOSTICS_H
#define CAPSTAN_DIAGNOSTICS_H

#include "proto/base/status.h"

#include <jansson.h>
#include <stdbool.h>

enum { DIAGNOSTICS_SHOWN = 10 };

struct diagnostics {
    const char *where; /* names of the files read, borrowed */
    unsigned count, shown;
    char text[1800];
};

/* Adds "PATH: " and the text. After DIAGNOSTICS_SHOWN problems, or when the
 * buffer is full, it only counts. PATH may be any text that a user typed. */
void diagnostics_add(struct diagnostics *diagnostics, const char *path,
                     const char *format, ...) PRINTF_LIKE(3, 4);

/* Adds "found VALUE (its type); allowed: ALLOWED". */
void diagnostics_value(struct diagnostics *diagnostics, const char *path,
                       const json_t *value, const char *allowed);

/* STATUS_OK if there are no problems; else STATUS_CONFIG with all of them in
 * WHY. */
enum status diagnostics_status(const struct diagnostics *diagnostics,
                               struct failure *why) MUST_CHECK;

#endif
