/* SPDX-License-Identifier: Apache-2.0 */
/* A run at its end: how fast it was, what it has learnt, where the time went,
 * and which key would change that. */
#ifndef CAPSTAN_SUMMARY_H
#define CAPSTAN_SUMMARY_H

#include "chief/run.h"

#include <jansson.h>

/* All that is known of the run at its end, as docs/running.md has it; the
 * caller's. */
json_t *summary_object(const struct run *run);

/* The last lines for people, and with JSON the object on standard output. */
void summary_print(const struct run *run, bool json);

#endif
