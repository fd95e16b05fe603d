/* SPDX-License-Identifier: Apache-2.0 */
/* Completion of command lines by bash: verbs, flags, their words and files,
 * keys of the job behind --set. */
#ifndef CAPSTAN_BASH_COMPLETION_H
#define CAPSTAN_BASH_COMPLETION_H

#include "proto/config/job/job_schema.h"

#include <stdio.h>

/* Prints the script, with the job's keys of MODELS. It needs bash 4.4, and
 * nothing of the package bash-completion. */
void bash_completion_show(FILE *out, const struct job_models *models);

#endif
