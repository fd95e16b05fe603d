/* SPDX-License-Identifier: Apache-2.0 */
/* The summary at the end of a run: speed, loss and accuracy, where the time
 * went, and which job key would help. */
#ifndef CAPSTAN_SUMMARY_H
#define CAPSTAN_SUMMARY_H

#include "chief/run.h"

#include <jansson.h>

/* The summary as an object, described in docs/running.md; the caller owns it.
 */
json_t *summary_object(const struct run *run);

/* Logs the last lines for people; with JSON also prints the object on standard
 * output. */
void summary_print(const struct run *run, bool json);

/* Writes the object to the file at PATH; logs a warning if that fails. */
void summary_save(const struct run *run, const char *path);

#endif
