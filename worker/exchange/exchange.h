/* SPDX-License-Identifier: Apache-2.0 */
/* What a trainer exchanges gradients for weights with: the ps, through a
 * client, or the other trainers, through a reducer. The same verbs for both;
 * their contracts are in client.h and reducer.h. */
#ifndef CAPSTAN_EXCHANGE_H
#define CAPSTAN_EXCHANGE_H

#include "worker/exchange/allreduce/reducer.h"
#include "worker/exchange/client/client.h"

#include <stdbool.h>
#include <stdint.h>

struct exchange_vtable;

/* A view: the client or the reducer outlives it. */
struct exchange {
    const struct exchange_vtable *vtable; /* NULL: none yet */
    void *context;
    bool provides_first_weights; /* first weights come without a pull */
    bool resident; /* gradients and weights stay on the device: reducer.h */
};

/* The ps, through CLIENT. */
struct exchange exchange_client(struct client *client);

/* The other ranks, through REDUCER. */
struct exchange exchange_reducer(struct reducer *reducer);

/* To read all parameters anew. A reducer's are always the newest. */
void exchange_pull(struct exchange exchange, uint64_t clock, uint64_t snapshot);

/* Gradients of step CLOCK of COUNT parameters from FIRST on are complete, last
 * parameters first, each once a step; their bytes stay until exchange_wait. */
void exchange_announce(struct exchange exchange, uint32_t first, uint32_t count,
                       uint64_t clock, enum contribution contribution_kind);

/* Waits for PARAMETER's weights after what was announced, or pulled, last.
 * False: none come any more. */
bool exchange_wait(struct exchange exchange, uint32_t parameter);

/* Steps behind the run, as far as this trainer has read. */
uint64_t exchange_global_step(struct exchange exchange);

/* Is every byte that leaves early time won? */
bool exchange_over_network(struct exchange exchange);

/* Seconds the compute thread has waited for weights. */
double exchange_waited(struct exchange exchange);

/* The scale of the next step, and the steps skipped so far; read while the
 * weights of the last parameter are here. */
struct loss_scaler exchange_scaler(struct exchange exchange);

/* Those of reducer.h by these names, for one that is resident; for others they
 * do nothing and succeed: compute thread. */
enum status exchange_begin(struct exchange exchange,
                           const struct reducer_device_arena *device_arena,
                           struct failure *why) MUST_CHECK;
enum status exchange_unscale(struct exchange exchange, float by, bool *finite,
                             struct failure *why) MUST_CHECK;
enum status exchange_download_weights(struct exchange exchange,
                                      struct failure *why) MUST_CHECK;
void exchange_serve(struct exchange exchange);
bool exchange_peer_lost(struct exchange exchange, struct failure *why);
void exchange_end(struct exchange exchange);

/* Ends every wait. */
void exchange_cancel(struct exchange exchange);

#endif
