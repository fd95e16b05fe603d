/* SPDX-License-Identifier: Apache-2.0 */
/* By which collectives a run reduces, and whether what is reduced stays on the
 * trainers' devices: settled at the plan, so that all ranks take the same. */
#ifndef CAPSTAN_COLLECTIVE_SELECT_H
#define CAPSTAN_COLLECTIVE_SELECT_H

#include "chief/run.h"

/* Keeps what TRAINER's declaration tells of where it computes. */
void collective_select_declare(struct run_trainer *trainer,
                               const Capstan__ModelSpec *model_spec);

/* All trainers have declared, and their replicas are settled: fills `backend`
 * and `resident`. False: it could not be, and the run ends. */
bool collective_select_resolve(struct run *run);

#endif
