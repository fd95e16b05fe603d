/* SPDX-License-Identifier: Apache-2.0 */
/* A trainer's connection to the ps. Two threads meet here: the communication
 * thread moves bytes (client_step and the poll functions); the compute thread
 * announces and waits by the exchange.
 * Needs core/ and proto/ only. */
#ifndef CAPSTAN_CLIENT_H
#define CAPSTAN_CLIENT_H

#include "core/base/status.h"
#include "core/base/time.h"
#include "core/net/shm/buffer.h"
#include "core/tensor/loss_scaler.h"
#include "proto/messages/member.h"
#include "proto/plan/plan.h"
#include "worker/exchange/client/row_batch.h"
#include "worker/exchange/exchange.h"

#include <stdbool.h>
#include <stdint.h>
#include <zmq.h>

/* Parameter p's weights are at weight_of[p]. MEAN_OF (NULL: pushes are answered
 * by weights) has the memory of the means that answer pushes from clock FROM
 * on; NULL for a parameter that gets weights. GRADIENTS hold those of all
 * parameters, p's at float offsets[p]; NULL: `contribute` names the memory of
 * each. WEIGHTS (NULL: the memory outlives the client) and GRADIENTS are
 * retained until the last message has left. */
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

/* What the compute thread does: announce complete gradients, wait for needed
 * weights. Their bytes are read from the settings' memory and written there; of
 * settings without `gradients` each is where `contribute` names it. View. */
struct exchange *client_exchange(struct client *client);

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

/* The ps that has been out of reach, or has not answered, for longest; `until`
 * TIME_NEVER: none. */
struct deadline client_silent(const struct client *client);

/* Fills in HEARTBEAT's list of the ps that are out of reach; views. */
void client_report_lost(const struct client *client, int64_t now,
                        Capstan__Heartbeat *heartbeat);

#endif
