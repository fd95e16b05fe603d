/* SPDX-License-Identifier: Apache-2.0 */
/* A trainer's connection to the ps: announce complete gradients, wait for
 * needed weights. Two threads meet here: the communication thread moves bytes
 * (client_step and the poll functions); the compute thread announces and waits.
 * Needs core/ and proto/ only. */
#ifndef CAPSTAN_CLIENT_H
#define CAPSTAN_CLIENT_H

#include "core/base/status.h"
#include "core/base/time.h"
#include "core/net/shm/buffer.h"
#include "core/tensor/loss_scaler.h"
#include "proto/messages/member.h"
#include "proto/plan/plan.h"
#include "worker/exchange/client/contribution.h"
#include "worker/exchange/client/row_batch.h"

#include <stdbool.h>
#include <stdint.h>
#include <zmq.h>

/* Parameter p's weights are at weight_of[p]. MEAN_OF (NULL: pushes are answered
 * by weights) has the memory of the means that answer pushes from clock FROM
 * on; NULL for a parameter that gets weights. GRADIENTS hold those of all
 * parameters, p's at float offsets[p]; NULL: client_set_gradient names the
 * memory of each. WEIGHTS (NULL: the memory outlives the client) and GRADIENTS
 * are retained until the last message has left. */
struct client_settings {
    const struct process *process; /* borrowed */
    const struct plan *plan;       /* borrowed */
    uint32_t rank;
    const char *inproc; /* the ps's link in this process, or NULL */
    struct buffer *weights, *gradients;
    float *const *weight_of, *const *mean_of;
    uint64_t from;
    const uint64_t *offsets;
    enum job_wire wire; /* of pushes, and of weights except snapshots */
    uint64_t credit;    /* bytes in flight; 0: the default */
    double link_gbits;  /* of the network; 0: unknown (link_limit_rate) */
    double step_timeout, peer_timeout; /* seconds */
    struct loss_scaler scaler;         /* before the first answer */
};

struct client;

/* Opens a link to each ps of the plan; each connection follows when its ps can
 * be reached. STATUS_RETRY: no memory or descriptors. */
enum status client_open(struct client **out,
                        const struct client_settings *settings,
                        struct failure *why) MUST_CHECK;

/* Closes the links and clears *CLIENT; the compute thread must not use it any
 * more. */
void client_close(struct client **client);

/* Compute thread. */

/* Requests all parameters; client_wait returns when they are here. CLOCK: the
 * reader's number of completed pushes. SNAPSHOT: 0, or a snapshot's id. */
void client_pull(struct client *client, uint64_t clock, uint64_t snapshot);

/* The updates that the rule of the parameter had counted whose state was read
 * last. */
uint64_t client_rule_step(struct client *client);

/* Requests state SLOT of PARAMETER's optimizer, at TO when client_wait returns.
 * CLOCK: as there; the weights of that push are here. */
void client_pull_state(struct client *client, uint32_t parameter,
                       uint64_t clock, unsigned slot, float *to);

/* PARAMETER's next gradient is at the begin of BUFFER, which is retained until
 * the last message with it has left; before client_announce. Only if the
 * settings have no `gradients`. */
void client_set_gradient(struct client *client, uint32_t parameter,
                         struct buffer *buffer);

/* Sets GROUP of the plan's optimizer to VALUES [OPTIMIZER_VALUES], copied, from
 * push CLOCK on; before its first announcement. */
void client_set_values(struct client *client, uint64_t clock, uint32_t group,
                       const double *values);

/* Sends rank 0's initial weights of all parameters, as they are in `weight_of`,
 * in place of client_pull. CLOCK: as there. */
void client_assign(struct client *client, uint64_t clock);

/* No push follows: the weights of the last one's clock are in `weight_of`, for
 * a ps that wants them. With means, each push says that for the clock before.
 */
void client_settle(struct client *client);

/* The gradients of push CLOCK for COUNT parameters from FIRST on are complete,
 * and their weights are not read before client_wait. The bytes stay unchanged
 * until then. An overflowed push is announced in one piece, with all
 * parameters, once the weights of the last one are here. */
void client_announce(struct client *client, uint32_t first, uint32_t count,
                     uint64_t clock, enum contribution contribution_kind);

/* Reads ROWS of tables, which is borrowed until client_wait_rows, for a reader
 * whose last push has CLOCK; that push may still be to come, and is waited for
 * unless the lookup is EARLY and the run has staleness. SNAPSHOT: 0, or a
 * snapshot's id. The last lookup has been answered. */
void client_lookup(struct client *client, uint64_t clock, bool early,
                   uint64_t snapshot, struct row_batch *rows);

/* Waits until the last lookup's weights are here; as client_wait. */
bool client_wait_rows(struct client *client, int64_t until);

/* Push CLOCK of all partitions of tables: the gradients in ROWS, which is
 * borrowed until client_wait_pushed, or until the push after the next one;
 * NULL unless CONTRIBUTION_FULL. It leaves once the push before is taken; waits
 * until the one before that is. False: none will be, as of client_wait. */
bool client_push_rows(struct client *client, uint64_t clock,
                      enum contribution contribution_kind,
                      struct row_batch *rows);

/* Waits until the last push of rows is taken; as client_wait. */
bool client_wait_pushed(struct client *client, int64_t until);

/* Waits until PARAMETER has the weights of its last push or pull, at most until
 * time UNTIL. False if they are not there by then, or the run has ended. */
bool client_wait(struct client *client, uint32_t parameter, int64_t until);

/* The update number of the plan's first block, as last read. */
uint64_t client_global_step(struct client *client);

/* Synchronous, after client_wait: the last round that is known to be snapshot
 * without being planned, 0: none; and the lowest live rank. */
uint64_t client_due(struct client *client, uint32_t *lead);

/* Epoch NUMBER begins after push FIRST. */
void client_set_epoch(struct client *client, uint64_t number, uint64_t first);

/* Until then: the epoch that the lowest live rank was in when it pushed for the
 * weights that were last read; false: it has named none. */
bool client_epoch(struct client *client, uint64_t *number, uint64_t *first);

/* The loss scale of the next step and the steps skipped so far, as received
 * with the weights of the last parameter; no other fields are set. */
struct loss_scaler client_scaler(struct client *client);

/* True if the network's bandwidth is known, so that the wire is the
 * bottleneck. */
bool client_over_network(const struct client *client);

/* Seconds the compute thread has waited for weights. */
double client_waited(struct client *client);

/* Communication thread. */

/* Fills at most CAPACITY ITEMS for zmq_poll; returns how many. */
int client_poll_items(struct client *client, zmq_pollitem_t *items,
                      int capacity);

/* The time of the next due client_step if no event occurs. */
int64_t client_deadline(const struct client *client);

/* Does all work due at NOW. STATUS_RETRY: a ps has not answered within the step
 * timeout; WHY names it. */
enum status client_step(struct client *client, int64_t now,
                        struct failure *why) MUST_CHECK;

/* Ends current and future waits of the compute thread. */
void client_cancel(struct client *client);

/* The ps that has been out of reach, or has not answered, for longest; `until`
 * TIME_NEVER: none. */
struct deadline client_silent(const struct client *client);

/* Fills in HEARTBEAT's list of the ps that are out of reach; views. */
void client_report_lost(const struct client *client, int64_t now,
                        Capstan__Heartbeat *heartbeat);

#endif
