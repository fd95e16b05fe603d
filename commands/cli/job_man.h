/* SPDX-License-Identifier: Apache-2.0 */
/* capstan-job(5), the manual's page about the job file, from the tables that
 * check it. */
#ifndef CAPSTAN_JOB_MAN_H
#define CAPSTAN_JOB_MAN_H

#include "proto/job/job_schema.h"

#include <stdio.h>

/* Prints the page as roff, with the keys of MODELS. */
void job_man_show(FILE *out, const struct job_models *models);

#endif
