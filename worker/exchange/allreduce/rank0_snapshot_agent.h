/* SPDX-License-Identifier: Apache-2.0 */
/* Rank 0's care for the weights in all-reduce: it answers the chief's orders as
 * a ps does. It agrees on rounds to save, hands what the reducer gives it to
 * the saver, reads a checkpoint to start from, and lets the chief read and set
 * weights. Functions are the communication thread's;
 * rank0_snapshot_agent_storage is for the reducer's. */
#ifndef CAPSTAN_RANK0_SNAPSHOT_AGENT_H
#define CAPSTAN_RANK0_SNAPSHOT_AGENT_H

#include "proto/base/log.h"
#include "proto/base/status.h"
#include "proto/config/job/job.h"
#include "proto/net/messages/control.pb-c.h"
#include "proto/net/shm/buffer.h"
#include "proto/tensor/plan.h"
#include "worker/exchange/allreduce/reducer.h"

#include <zmq.h>

/* Tells the chief CONTROL: control_client_send_reliable, or a test's. */
typedef void rank0_snapshot_agent_send(void *context,
                                       Capstan__Control *control);

/* All borrowed. WEIGHTS: parameter p at float offsets[p]. */
struct rank0_snapshot_agent_settings {
    void *zmq;
    const struct log *log;
    rank0_snapshot_agent_send *send_message;
    void *context;
    uint64_t run, incarnation;
    const struct job *job;
    const struct plan *plan;
    uint64_t chief;     /* its incarnation */
    const char *inproc; /* the chief is in this process: the lender's link */
    struct buffer *weights;
    const uint64_t *offsets;
};

struct rank0_snapshot_agent;

/* Looks for the chief's mark in the checkpoint directory (one of this host's
 * own is claimed, as by a ps), and tells the chief that it is ready. */
enum status rank0_snapshot_agent_open(
    struct rank0_snapshot_agent **out,
    const struct rank0_snapshot_agent_settings *settings,
    struct failure *why) MUST_CHECK;

/* Ends its threads and clears *KEEPER (may be NULL): the reducer, which may
 * wait in it, is closed before, after rank0_snapshot_agent_cancel. */
void rank0_snapshot_agent_close(
    struct rank0_snapshot_agent **rank0_snapshot_agent);

/* Ends every wait of the reducer's thread in it. */
void rank0_snapshot_agent_cancel(
    struct rank0_snapshot_agent *rank0_snapshot_agent);

/* For reducer_settings; a view. */
const struct reducer_storage *rank0_snapshot_agent_storage(
    const struct rank0_snapshot_agent *rank0_snapshot_agent);

/* What it has of the reducer: its verbs of these names, or a test's. */
struct rank0_snapshot_agent_callbacks {
    void *context;
    uint64_t (*round)(void *context);
    void (*save)(void *context, uint64_t round);
    void (*save_now)(void *context);
};

/* The rounds that it keeps; before, orders are left alone. Copied. */
void rank0_snapshot_agent_attach(
    struct rank0_snapshot_agent *rank0_snapshot_agent,
    const struct rank0_snapshot_agent_callbacks *callbacks);

/* Orders of the chief; others are left alone. */
void rank0_snapshot_agent_handle(
    struct rank0_snapshot_agent *rank0_snapshot_agent,
    const Capstan__Control *command);

/* Items for zmq_poll, RANK0_SNAPSHOT_AGENT_POLL_ITEMS of them. */
enum { RANK0_SNAPSHOT_AGENT_POLL_ITEMS = 3 };
void rank0_snapshot_agent_poll_items(
    struct rank0_snapshot_agent *rank0_snapshot_agent, zmq_pollitem_t *items);

/* Answers what has come and reports what has been saved. */
void rank0_snapshot_agent_step(
    struct rank0_snapshot_agent *rank0_snapshot_agent);

#endif
