/* SPDX-License-Identifier: Apache-2.0 */
/* What is wrong with a configuration, gathered so that one run shows all. */
#ifndef CAPSTAN_DIAGNOSTICS_H
#define CAPSTAN_DIAGNOSTICS_H

#include "proto/base/status.h"

#include <jansson.h>
#include <stdbool.h>

enum { DIAGNOSTICS_SHOWN = 10 };

struct diagnostics {
    const char *where; /* the files at fault, borrowed */
    unsigned count, shown;
    char text[1800];
};

/* Adds "PATH: " and the text; only counts once DIAGNOSTICS_SHOWN are listed or
 * there is no room. PATH may hold anything a user can type. */
void diagnostics_add(struct diagnostics *diagnostics, const char *path,
                     const char *format, ...) PRINTF_LIKE(3, 4);

/* Adds "found VALUE (its type); allowed: ALLOWED". */
void diagnostics_value(struct diagnostics *diagnostics, const char *path,
                       const json_t *value, const char *allowed);

/* STATUS_OK without problems, else STATUS_CONFIG with all of them in WHY. */
enum status diagnostics_status(const struct diagnostics *diagnostics,
                               struct failure *why) MUST_CHECK;

#endif
