/* SPDX-License-Identifier: Apache-2.0 */
/* A trainer's gradient exchange: with the ps through a client, or with the
 * other trainers through a reducer. Both have the same functions; client.h and
 * reducer.h have their contracts. */
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

/* Exchanges with the ps through CLIENT. */
struct exchange exchange_client(struct client *client);

/* Exchanges with the other ranks through REDUCER. */
struct exchange exchange_reducer(struct reducer *reducer);

/* Requests all parameters. A reducer's weights are always current: no-op. */
void exchange_pull(struct exchange exchange, uint64_t clock, uint64_t snapshot);

/* Sends rank 0's initial weights, in place of a pull. A reducer broadcasts them
 * itself: no-op. */
void exchange_assign(struct exchange exchange, uint64_t clock);

/* Sets GROUP of the plan's optimizer to VALUES [OPTIMIZER_VALUES], copied, from
 * step CLOCK on; before its first announcement. */
void exchange_set_values(struct exchange exchange, uint64_t clock,
                         uint32_t group, const double *values);

/* No step follows: the trainer has the weights of the last one, if it keeps
 * them itself. */
void exchange_settle(struct exchange exchange);

/* The gradients of step CLOCK for COUNT parameters from FIRST on are complete.
 * The last parameters come first, each once a step; the bytes stay unchanged
 * until exchange_wait. */
void exchange_announce(struct exchange exchange, uint32_t first, uint32_t count,
                       uint64_t clock, enum contribution contribution_kind);

/* Waits for PARAMETER's weights after its last announcement or pull, at most
 * until time UNTIL. False: they are not there by then, or no more weights will
 * come. */
bool exchange_wait(struct exchange exchange, uint32_t parameter, int64_t until);

/* Synchronous, after exchange_wait: the last round that is known to be snapshot
 * without being planned, 0: none; and the lowest live rank. */
uint64_t exchange_due(struct exchange exchange, uint32_t *lead);

/* Reads state SLOT of PARAMETER's optimizer, as it is after step CLOCK, whose
 * weights are here: it is at TO [elements] when exchange_wait returns. False:
 * this rank has a part of it only (ZeRO), and nothing is read. */
bool exchange_read_state(struct exchange exchange, uint32_t parameter,
                         uint64_t clock, unsigned slot, float *to);

/* How many updates the rule has counted of PARAMETER, whose state was read
 * last: those to which some rank brought bytes. */
uint64_t exchange_rule_step(struct exchange exchange, uint32_t parameter);

/* The epochs of a caller's model, for a trainer that joins. A reducer's ranks
 * all begin together: no-op, and false. */
void exchange_set_epoch(struct exchange exchange, uint64_t number,
                        uint64_t first);
bool exchange_epoch(struct exchange exchange, uint64_t *number,
                    uint64_t *first);

/* After exchange_wait: has any rank brought bytes for PARAMETER of an external
 * model? Of a client always true, as it leaves the memory alone. */
bool exchange_has_bytes(struct exchange exchange, uint32_t parameter);

/* Rows of tables: client.h and row_reducer.h. */
void exchange_lookup(struct exchange exchange, uint64_t clock, bool early,
                     uint64_t snapshot, struct row_batch *rows);
bool exchange_wait_rows(struct exchange exchange, int64_t until);
bool exchange_push_rows(struct exchange exchange, uint64_t clock,
                        enum contribution contribution_kind,
                        struct row_batch *rows);
bool exchange_wait_pushed(struct exchange exchange, int64_t until);

/* Bytes that this trainer sends for ROWS: the lists to look them up and to push
 * them, and gradients; by a reducer lists and gradients to all other ranks. */
uint64_t exchange_row_bytes(struct exchange exchange,
                            const struct row_batch *rows);

/* Steps the run has completed, as of this trainer's last read. */
uint64_t exchange_global_step(struct exchange exchange);

/* True if gradients cross a network, so that each byte sent early saves
 * time. */
bool exchange_over_network(struct exchange exchange);

/* Seconds the compute thread has waited for weights. */
double exchange_waited(struct exchange exchange);

/* The loss scale of the next step and the steps skipped so far; read it after
 * exchange_wait for the last parameter and before the next announcement. */
struct loss_scaler exchange_scaler(struct exchange exchange);

/* The functions of the same names in reducer.h, for a resident exchange. For
 * any other they do nothing and succeed. Compute thread. */
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
