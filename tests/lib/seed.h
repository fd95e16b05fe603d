/* SPDX-License-Identifier: Apache-2.0 */
/* Seeds of random histories: another one in each run, printed, so that a
 * failing history can be played again with SEED=... */
#ifndef CAPSTAN_SEED_H
#define CAPSTAN_SEED_H

#include "core/tensor/philox.h"

/* Opens a sequence by SEED of the environment, else by a random number. */
void seed_open(struct philox_sequence *sequence);

#endif
