/* SPDX-License-Identifier: Apache-2.0 */
/* What trainers declare: the model that they train, the data that they read,
 * the devices that they compute on. Rank 0's word counts, and the others agree
 * with it or the run ends; who joins later agrees, or ends alone. */
#ifndef CAPSTAN_DECLARATION_H
#define CAPSTAN_DECLARATION_H

#include "chief/run.h"

#include <stdbool.h>

/* The trainer in SLOT declares. */
void declaration_take(struct run *run, struct roster_slot *slot,
                      const Capstan__Declaration *declaration);

/* Are all here, and have all trainers declared? */
bool declaration_whole(const struct run *run);

#endif
