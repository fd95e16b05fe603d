/* SPDX-License-Identifier: Apache-2.0 */
/* Losses in double, from their definitions. */
#ifndef CAPSTAN_LOSS_ORACLE_H
#define CAPSTAN_LOSS_ORACLE_H

#include "proto/job/job.h"

#include <stdint.h>

/* The loss of a sample of OUT logits Z, and its gradient DZ. */
double loss_oracle(enum job_loss kind, const float *z, uint32_t label,
                   double *dz, uint32_t out);

/* The target of output J: with one output LABEL has its bits. */
double loss_oracle_target(uint32_t label, uint32_t j, uint32_t out);

#endif
