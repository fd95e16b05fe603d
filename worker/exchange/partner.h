/* SPDX-License-Identifier: Apache-2.0 */
/* What a trainer exchanges gradients for weights with: the ps, through a
 * client, or the other trainers, through a reducer. The same verbs for both;
 * their contracts are in client.h and reducer.h. */
#ifndef CAPSTAN_PARTNER_H
#define CAPSTAN_PARTNER_H

#include "worker/exchange/allreduce/reducer.h"
#include "worker/exchange/client/client.h"

#include <stdbool.h>
#include <stdint.h>

struct partner_verbs;

/* A view: the client or the reducer outlives it. */
struct partner {
    const struct partner_verbs *verbs; /* NULL: none yet */
    void *context;
    bool sets_first; /* first weights come without a pull */
    bool resident;   /* gradients and weights stay on the device: reducer.h */
};

/* The ps, through CLIENT. */
struct partner partner_client(struct client *client);

/* The other ranks, through REDUCER. */
struct partner partner_reducer(struct reducer *reducer);

/* To read all parameters anew. A reducer's are always the newest. */
void partner_pull(struct partner partner, uint64_t clock, uint64_t snapshot);

/* Gradients of step CLOCK of COUNT parameters from FIRST on are complete, last
 * parameters first, each once a step; their bytes stay until partner_wait. */
void partner_announce(struct partner partner, uint32_t first, uint32_t count,
                      uint64_t clock, enum contribution what);

/* Waits for PARAMETER's weights after what was announced, or pulled, last.
 * False: none come any more. */
bool partner_wait(struct partner partner, uint32_t parameter);

/* Steps behind the run, as far as this trainer has read. */
uint64_t partner_global_step(struct partner partner);

/* Is every byte that leaves early time won? */
bool partner_over_network(struct partner partner);

/* Seconds the compute thread has waited for weights. */
double partner_waited(struct partner partner);

/* The scale of the next step, and the steps skipped so far; read while the
 * weights of the last parameter are here. */
struct loss_scaler partner_scaler(struct partner partner);

/* Those of reducer.h by these names, for one that is resident; for others they
 * do nothing and succeed: compute thread. */
enum status partner_begin(struct partner partner,
                          const struct reducer_place *place,
                          struct failure *why) MUST_CHECK;
enum status partner_undo(struct partner partner, float by, bool *finite,
                         struct failure *why) MUST_CHECK;
enum status partner_show(struct partner partner,
                         struct failure *why) MUST_CHECK;
void partner_serve(struct partner partner);
bool partner_lost(struct partner partner, struct failure *why);
void partner_end(struct partner partner);

/* Ends every wait. */
void partner_cancel(struct partner partner);

#endif
