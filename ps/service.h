/* SPDX-License-Identifier: Apache-2.0 */
/* The data side of a ps: takes pushes and reads from trainers, applies what
 * the exchange decides to the shard, answers, and takes snapshots. */
#ifndef CAPSTAN_SERVICE_H
#define CAPSTAN_SERVICE_H

#include "proto/base/log.h"
#include "proto/base/status.h"
#include "proto/config/job/job.h"
#include "proto/net/link/link.h"
#include "proto/net/messages/message.h"
#include "proto/tensor/layout.h"
#include "proto/tensor/rounds.h"
#include "ps/consistency/exchange.h"
#include "ps/dense/shard.h"
#include "ps/dense/snapshot.h"

#include <stdint.h>

/* All pointers are borrowed. */
struct service_settings {
    struct link *link;
    const struct log *log;
    uint64_t run, incarnation;
    uint64_t chief; /* its incarnation: reads snapshots, and assigns weights
                       before the first view */
    const struct job *job;
    const struct rule_loops *loops; /* NULL: the best of this processor */
    const struct layout *layout;
    const uint32_t *ids; /* my blocks, in the plan's order */
    uint32_t num_blocks, num_ranks;
    const uint32_t *replicas; /* of each rank, whose gradients its push is the
                                 sum of; NULL: 1 each */
    uint32_t all_replicas;    /* of all ranks; 0: num_ranks */
    uint32_t threads; /* that work on blocks beside the caller's; 0: none */
    struct rounds rounds;
    struct loss_scaler scaler; /* as saved; all 0: none was */
    /* A block was snapshot for planned or asked round VERSION. */
    void (*snapshot)(void *context, uint32_t block, uint64_t version);
    /* All blocks' square sums of ROUND, one a block. */
    void (*summed)(void *context, uint64_t round, const double *sums);
    void *context;
};

struct service;

/* Allocates; weights are then set through service_shard. */
enum status service_open(struct service **out,
                         const struct service_settings *settings,
                         struct failure *why) MUST_CHECK;

/* Lets all contributions go and clears *SERVICE. */
void service_close(struct service **service);

/* Its blocks; view. While threads may be at work on them their bytes are read
 * after service_finish only. */
struct shard *service_shard(struct service *service);

/* Its core; view. After an event given to it: service_settle. */
struct exchange *service_exchange(struct service *service);

/* Snapshots that readers may pull. */
void service_snapshots(struct service *service, struct snapshots *snapshots);

/* Handles one message. FRAME's payload may be kept; the frame is released.
 * Receipts may be kept back for service_flush, to go together. An error is the
 * run's (no memory), not the sender's. */
enum status service_handle(struct service *service, struct link_frame *frame,
                           const Capstan__DataHeader *header,
                           struct failure *why) MUST_CHECK;

/* Carries out what the exchange decided on, or has the threads do it: after a
 * view, a cut, a norm. */
enum status service_settle(struct service *service,
                           struct failure *why) MUST_CHECK;

/* Sends the receipts kept back; due when no message is left to be handled. */
void service_flush(struct service *service);

/* Sends what the threads have done by now; due when service_descriptor is
 * readable. */
enum status service_collect(struct service *service,
                            struct failure *why) MUST_CHECK;

/* Waits until the threads have done all there was to do, and sends it. */
enum status service_finish(struct service *service,
                           struct failure *why) MUST_CHECK;

/* For zmq_poll; -1 when there are no threads. */
int service_descriptor(const struct service *service);

/* The global norm of ROUND is NORM: gradients above the job's limit shrink. */
enum status service_norm(struct service *service, uint64_t round, double norm,
                         struct failure *why) MUST_CHECK;

/* Tells the sender why its message was not taken. */
void service_refuse(struct service *service, uint32_t peer,
                    const Capstan__DataHeader *header, const char *text);

/* Seconds spent in updates since the start. */
double service_update_seconds(const struct service *service);

#endif
