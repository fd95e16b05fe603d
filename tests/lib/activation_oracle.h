/* SPDX-License-Identifier: Apache-2.0 */
/* Activations in double, from their definitions. */
#ifndef CAPSTAN_ACTIVATION_ORACLE_H
#define CAPSTAN_ACTIVATION_ORACLE_H

#include "proto/job/job.h"

/* A NaN stays one. */
double activation_oracle(enum job_activation activation, double x);

#endif
