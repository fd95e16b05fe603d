/* SPDX-License-Identifier: Apache-2.0 */
/* Rank 0's care for the weights in all-reduce: it answers the chief's orders as
 * a ps does. It agrees on rounds to save, hands what the reducer gives it to
 * the saver, reads a checkpoint to start from, and lets the chief read and set
 * weights. Functions are the communication thread's; keeper_calls is for the
 * reducer's. */
#ifndef CAPSTAN_KEEPER_H
#define CAPSTAN_KEEPER_H

#include "proto/base/log.h"
#include "proto/base/status.h"
#include "proto/config/job/job.h"
#include "proto/net/messages/control.pb-c.h"
#include "proto/net/shm/buffer.h"
#include "proto/tensor/plan.h"
#include "worker/exchange/allreduce/reducer.h"

#include <zmq.h>

/* Tells the chief CONTROL: member_tell, or a test's. */
typedef void keeper_tell(void *context, Capstan__Control *control);

/* All borrowed. WEIGHTS: parameter p at float offsets[p]. */
struct keeper_settings {
    void *zmq;
    const struct log *log;
    keeper_tell *tell;
    void *context;
    uint64_t run, incarnation;
    const struct job *job;
    const struct plan *plan;
    uint64_t chief;     /* its incarnation */
    const char *inside; /* the chief is in this process: the lender's link */
    struct buffer *weights;
    const uint64_t *offsets;
};

struct keeper;

/* Looks for the chief's mark in the checkpoint directory (one of this host's
 * own is claimed, as by a ps), and tells the chief that it is ready. */
enum status keeper_open(struct keeper **out,
                        const struct keeper_settings *settings,
                        struct failure *why) MUST_CHECK;

/* Ends its threads and clears *KEEPER (may be NULL): the reducer, which may
 * wait in it, is closed before, after keeper_cancel. */
void keeper_close(struct keeper **keeper);

/* Ends every wait of the reducer's thread in it. */
void keeper_cancel(struct keeper *keeper);

/* For reducer_settings; a view. */
const struct reducer_keeper *keeper_calls(const struct keeper *keeper);

/* What it has of the reducer: its verbs of these names, or a test's. */
struct keeper_callbacks {
    void *context;
    uint64_t (*round)(void *context);
    void (*save)(void *context, uint64_t round);
    void (*save_now)(void *context);
};

/* The rounds that it keeps; before, orders are left alone. Copied. */
void keeper_attach(struct keeper *keeper, const struct keeper_callbacks *callbacks);

/* Orders of the chief; others are left alone. */
void keeper_obey(struct keeper *keeper, const Capstan__Control *order);

/* Items for zmq_poll, KEEPER_POLL_ITEMS of them. */
enum { KEEPER_POLL_ITEMS = 3 };
void keeper_poll_items(struct keeper *keeper, zmq_pollitem_t *items);

/* Answers what has come and reports what has been saved. */
void keeper_step(struct keeper *keeper);

#endif
