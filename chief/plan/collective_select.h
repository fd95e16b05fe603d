/* SPDX-License-Identifier: Apache-2.0 */
/* Selects the collective backend, and whether the reduced tensors stay on the
 * trainers' devices. The plan fixes both, so that all ranks agree. */
#ifndef CAPSTAN_COLLECTIVE_SELECT_H
#define CAPSTAN_COLLECTIVE_SELECT_H

#include "chief/run.h"

/* Stores in TRAINER from its model spec where it computes. */
void collective_select_declare(struct run_trainer *trainer,
                               const Capstan__ModelSpec *model_spec);

/* Fills `backend` and `resident` once all trainers have sent their model spec
 * and have their replicas. False: it failed, and the run is stopped. */
bool collective_select_resolve(struct run *run);

#endif
