/* SPDX-License-Identifier: Apache-2.0 */
/* The data plane of a ps: receives pushes and pulls, applies the update core's
 * decisions to the shard, replies, and takes snapshots. */
#ifndef CAPSTAN_SERVER_H
#define CAPSTAN_SERVER_H

#include "core/base/status.h"
#include "core/net/link/link.h"
#include "core/tensor/layout.h"
#include "proto/holder/snapshots.h"
#include "proto/job/job.h"
#include "proto/messages/member.h"
#include "proto/messages/message.h"
#include "proto/plan/optimizer_group.h"
#include "proto/plan/run_schedule.h"
#include "ps/consistency/update_core.h"
#include "ps/units/units.h"

#include <stdint.h>

/* All pointers are borrowed. */
struct server_settings {
    struct link *link;
    const struct process *process;
    uint64_t chief; /* chief's incarnation: may read snapshots, and assign
                       weights before the first view */
    const struct job *job;
    const struct layout *layout;
    const uint32_t *ids; /* local blocks, in the plan's order, */
    uint32_t num_blocks; /* of which the last are partitions of tables */
    uint32_t num_ranks;
    const struct link_party *parties; /* [num_ranks]: who has the rank, as of
                                         the last view; NULL: the chief */
    const uint32_t *replicas; /* [num_ranks]: device replicas whose gradients
                                 one push of the rank sums; NULL: 1 each */
    uint32_t all_replicas;    /* sum over all ranks; 0: num_ranks */
    const struct optimizer_group *groups; /* [num_groups], by parameter; NULL:
                                             the job's optimizer */
    uint32_t num_groups;
    const struct optimizer_group *table_groups; /* which tables name */
    uint32_t threads;   /* worker threads for block operations; 0: none, the
                           caller does the work */
    bool awaits_values; /* blocks of parameters with `values`, and partitions
                           if a table has `assigned`, wait for rank 0's */
    struct run_schedule run_schedule;
    struct loss_scaler scaler; /* restored loss scaler; all 0: none was saved */
    /* BLOCK has reached VERSION, a planned or requested snapshot round. */
    void (*snapshot)(void *context, uint32_t block, uint64_t version);
    /* Square sums of ROUND are complete: SUMS[num_blocks]. */
    void (*on_square_sums)(void *context, uint64_t round, const double *sums);
    void *context;
};

struct server;

/* Allocates the blocks. The caller sets the weights through server_shard. */
enum status server_open(struct server **out,
                        const struct server_settings *settings,
                        struct failure *why) MUST_CHECK;

/* Releases all pending contributions and clears *SERVER. */
void server_close(struct server **server);

/* The blocks; view. While worker threads are running, read their bytes only
 * after server_drain. */
struct shard *server_shard(struct server *server);

/* The most that the trainers have looked up for one round: bytes that its rows
 * take if all are new, and of their floats, which lookups bring to trainers and
 * pushes back. */
struct server_round {
    uint64_t rows, floats;
};
struct server_round server_largest_round(const struct server *server);

/* These and the partitions; a view in the same way. */
const struct units *server_units(const struct server *server);

/* The update core; view. Call server_run_actions after each event given to it.
 */
struct update_core *server_update_core(struct server *server);

/* Sets the snapshots that peers may pull. */
void server_set_snapshots(struct server *server, struct snapshots *snapshots);

/* May FRAME, with HEADER, speak for its rank, as far as keys tell
 * (link_is_from)? Also the chief's key may: its process may have a trainer. */
bool server_may_speak(const struct server *server, struct link_frame *frame,
                      const Capstan__DataHeader *header);

/* Handles one message. Keeps FRAME's payload if needed and releases FRAME. May
 * hold acks back for server_flush, to batch them. Returns an error only for a
 * failure of this ps (no memory); a bad message is refused. */
enum status server_handle(struct server *server, struct link_frame *frame,
                          const Capstan__DataHeader *header,
                          struct failure *why) MUST_CHECK;

/* Carries out the update core's queued actions, or submits them to the threads:
 * after a view, a snapshot command or a norm. */
enum status server_run_actions(struct server *server,
                               struct failure *why) MUST_CHECK;

/* Asks again for weights that trainers keep, if none have come for 5 s. */
enum status server_repeat_wants(struct server *server, int64_t now,
                                struct failure *why) MUST_CHECK;

/* Sends acks held back. Call it when no message is left to handle. */
void server_flush(struct server *server);

/* Sends the results of the threads so far. Call it when server_descriptor is
 * readable. */
enum status server_collect(struct server *server,
                           struct failure *why) MUST_CHECK;

/* Waits until the threads are idle, then sends their results. */
enum status server_drain(struct server *server, struct failure *why) MUST_CHECK;

/* For zmq_poll; -1 without threads. */
int server_descriptor(const struct server *server);

/* The chief is another process now, with INCARNATION. */
void server_set_chief(struct server *server, uint64_t incarnation);

/* NORM is the global gradient norm of ROUND; larger gradients than the job's
 * limit are scaled down to it. */
enum status server_set_norm(struct server *server, uint64_t round, double norm,
                            struct failure *why) MUST_CHECK;

/* Seconds spent in updates since the start, summed over threads. */
double server_update_seconds(const struct server *server);

/* Sums, updates and replies that wait or are being done. */
uint32_t server_queue(const struct server *server);

#endif
