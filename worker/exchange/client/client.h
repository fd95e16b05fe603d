/* SPDX-License-Identifier: Apache-2.0 */
/* A trainer's connection to the ps: declare what is ready, wait for what is
 * needed. Two threads meet here: the communication thread moves bytes
 * (client_step and what polls), the compute thread announces gradients and
 * waits for weights. Needs proto/ only. */
#ifndef CAPSTAN_CLIENT_H
#define CAPSTAN_CLIENT_H

#include "proto/base/deadline.h"
#include "proto/base/log.h"
#include "proto/base/status.h"
#include "proto/net/shm/buffer.h"
#include "proto/tensor/loss_scaler.h"
#include "proto/tensor/plan.h"
#include "worker/exchange/client/contribution.h"

#include <stdbool.h>
#include <stdint.h>
#include <zmq.h>

/* WEIGHTS and GRADIENTS hold all parameters, parameter p at float
 * offsets[p]; both are kept until the last message has left. */
struct client_settings {
    void *zmq;
    const struct log *log;
    const struct plan *plan; /* borrowed */
    uint64_t run, incarnation;
    uint32_t rank;
    const char *inproc; /* the ps's link in this process, or NULL */
    bool shm;           /* shared memory first with a ps on this host */
    struct buffer *weights, *gradients;
    const uint64_t *offsets;
    const struct rule_loops *loops; /* to convert by; NULL: the best */
    enum job_wire wire;  /* of pushes and of weights but those of snapshots */
    uint64_t credit;     /* bytes on the wire; 0: the default */
    double link_gbits;   /* of the network; 0: not known (link_pace) */
    double step_timeout; /* seconds */
    struct loss_scaler scaler; /* before the first answer */
};

struct client;

/* Opens a link to each ps of the plan; connections follow, each when its ps can
 * be reached. STATUS_RETRY: no memory or descriptors. */
enum status client_open(struct client **out,
                        const struct client_settings *settings,
                        struct failure *why) MUST_CHECK;

/* Closes the links and clears *CLIENT; the compute thread is done with it. */
void client_close(struct client **client);

/* Compute thread. */

/* All parameters are to be read; WAIT tells when they are here. CLOCK: pushes
 * behind this reader. SNAPSHOT: 0, or the id of one. */
void client_pull(struct client *client, uint64_t clock, uint64_t snapshot);

/* The gradients of push CLOCK of COUNT parameters from FIRST on are complete
 * and their weights are not read any more before client_wait. Their bytes stay
 * as they are until then. A void push is announced in one piece, with all
 * parameters, once the weights of the last one are here. */
void client_announce(struct client *client, uint32_t first, uint32_t count,
                     uint64_t clock, enum contribution contribution_kind);

/* Waits until PARAMETER's weights are those of its last push or pull. False
 * when the run has ended meanwhile. */
bool client_wait(struct client *client, uint32_t parameter);

/* The update number of the plan's first block, as last read. */
uint64_t client_global_step(struct client *client);

/* The scale of the next step and the steps skipped so far, as they came with
 * the weights of the last parameter; no more than those two. */
struct loss_scaler client_scaler(struct client *client);

/* Is the rate of the network known, and the wire then what is waited for? */
bool client_over_network(const struct client *client);

/* Seconds the compute thread has waited for weights. */
double client_waited(struct client *client);

/* Communication thread. */

/* Items for zmq_poll, at most ROOM; returns how many. */
int client_poll_items(struct client *client, zmq_pollitem_t *items,
                      int capacity);

/* When client_step is due next without an event. */
int64_t client_deadline(const struct client *client);

/* Moves what can be moved at NOW. STATUS_RETRY names a ps that has not
 * answered for the step timeout. */
enum status client_step(struct client *client, int64_t now,
                        struct failure *why) MUST_CHECK;

/* Ends every wait of the compute thread. */
void client_cancel(struct client *client);

/* The ps waited for longest; `until` TIME_NEVER: none. */
struct deadline client_silent(const struct client *client);

#endif
