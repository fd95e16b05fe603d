/* SPDX-License-Identifier: Apache-2.0 */
/* A chief that coordinates and is started in the place of one that has died
 * adopts the run, which goes on meanwhile: nothing is computed twice. Where it
 * cannot, the run goes back to its newest checkpoint (rewind.h). */
#ifndef CAPSTAN_ADOPT_H
#define CAPSTAN_ADOPT_H

#include "chief/control/control_server.h"

#include <stdbool.h>
#include <stdint.h>

struct run;
struct adopt;

/* INCOMING is a join. With a Rejoin it is of a member of a run whose chief is
 * gone: it is adopted, refused, or gets no answer yet and asks again; so does a
 * new process, while that is not decided or such a member may still come.
 * False: it joins as any process. */
bool adopt_receive(struct run *run, const struct control_message *incoming,
                   int64_t now);

/* Each turn of the chief's loop. */
void adopt_step(struct run *run, int64_t now);

/* Frees what adopt_receive has kept. */
void adopt_close(struct run *run);

#endif
