/* SPDX-License-Identifier: Apache-2.0 */
/* The data side of a ps: takes pushes and reads from trainers, applies what
 * the exchange decides to the shard, answers, and takes snapshots. */
#ifndef CAPSTAN_SERVER_H
#define CAPSTAN_SERVER_H

#include "proto/base/log.h"
#include "proto/base/status.h"
#include "proto/config/job/job.h"
#include "proto/net/link/link.h"
#include "proto/net/messages/message.h"
#include "proto/tensor/layout.h"
#include "proto/tensor/run_schedule.h"
#include "ps/consistency/update_core.h"
#include "ps/dense/shard.h"
#include "ps/dense/snapshot.h"

#include <stdint.h>

/* All pointers are borrowed. */
struct server_settings {
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
    struct run_schedule run_schedule;
    struct loss_scaler scaler; /* as saved; all 0: none was */
    /* A block was snapshot for planned or asked round VERSION. */
    void (*snapshot)(void *context, uint32_t block, uint64_t version);
    /* All blocks' square sums of ROUND, one a block. */
    void (*on_square_sums)(void *context, uint64_t round, const double *sums);
    void *context;
};

struct server;

/* Allocates; weights are then set through server_shard. */
enum status server_open(struct server **out,
                        const struct server_settings *settings,
                        struct failure *why) MUST_CHECK;

/* Lets all contributions go and clears *SERVICE. */
void server_close(struct server **server);

/* Its blocks; view. While threads may be at work on them their bytes are read
 * after server_drain only. */
struct shard *server_shard(struct server *server);

/* Its core; view. After an event given to it: server_run_actions. */
struct update_core *server_update_core(struct server *server);

/* Snapshots that readers may pull. */
void server_set_snapshots(struct server *server, struct snapshots *snapshots);

/* Handles one message. FRAME's payload may be kept; the frame is released.
 * Receipts may be kept back for server_flush, to go together. An error is the
 * run's (no memory), not the sender's. */
enum status server_handle(struct server *server, struct link_frame *frame,
                          const Capstan__DataHeader *header,
                          struct failure *why) MUST_CHECK;

/* Carries out what the exchange decided on, or has the threads do it: after a
 * view, a cut, a norm. */
enum status server_run_actions(struct server *server,
                               struct failure *why) MUST_CHECK;

/* Sends the receipts kept back; due when no message is left to be handled. */
void server_flush(struct server *server);

/* Sends what the threads have done by now; due when server_descriptor is
 * readable. */
enum status server_collect(struct server *server,
                           struct failure *why) MUST_CHECK;

/* Waits until the threads have done all there was to do, and sends it. */
enum status server_drain(struct server *server, struct failure *why) MUST_CHECK;

/* For zmq_poll; -1 when there are no threads. */
int server_descriptor(const struct server *server);

/* The global norm of ROUND is NORM: gradients above the job's limit shrink. */
enum status server_set_norm(struct server *server, uint64_t round, double norm,
                            struct failure *why) MUST_CHECK;

/* Tells the sender why its message was not taken. */
void server_refuse(struct server *server, uint32_t peer,
                   const Capstan__DataHeader *header, const char *text);

/* Seconds spent in updates since the start. */
double server_update_seconds(const struct server *server);

#endif
