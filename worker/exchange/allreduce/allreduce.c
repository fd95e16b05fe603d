/* SPDX-License-Identifier: Apache-2.0 */
/* What all-reduce adds to a worker, and in which order it is opened and ended:
 * the meeting first, as words of other ranks may come at any time; rank 0's
 * keeper, which finds the checkpoint folder and tells the chief that it is
 * ready; the reducer once there is a view to begin with. Ended, everything that
 * waits is cancelled first; then the reducer is closed before the keeper and
 * the meeting, which it calls. */
#include "worker/exchange/allreduce/allreduce.h"

#include "worker/collective/collectives.h"
#include "worker/exchange/allreduce/meeting.h"

#include <stdlib.h>

struct allreduce {
    struct allreduce_settings settings;
    struct meeting *meeting;
    struct keeper *keeper; /* rank 0's */
    struct reducer *reducer;
    bool failed; /* and told so */
};

static void tell_chief(void *member, Capstan__Control *control) {
    member_tell(member, control);
}

static enum status open_keeper(struct allreduce *allreduce,
                               struct failure *why) {
    const struct allreduce_settings *settings = &allreduce->settings;
    struct keeper_settings keeper = {
        .zmq = settings->zmq,
        .log = settings->log,
        .tell = tell_chief,
        .context = settings->member,
        .run = member_run(settings->member),
        .incarnation = member_incarnation(settings->member),
        .job = settings->job,
        .plan = settings->plan,
        .chief = settings->chief,
        .inside = settings->inside,
        .weights = settings->weights,
        .offsets = settings->offsets,
    };
    return keeper_open(&allreduce->keeper, &keeper, why);
}

enum status allreduce_open(struct allreduce **out,
                           const struct allreduce_settings *settings,
                           struct failure *why) {
    struct allreduce *allreduce = calloc(1, sizeof *allreduce);
    *out = allreduce;
    if (!allreduce)
        return status_fail(why, STATUS_RETRY, "no memory for all-reduce");
    allreduce->settings = *settings;
    enum status status =
        meeting_open(&allreduce->meeting, tell_chief, settings->member, why);
    if (!status && settings->rank == 0)
        status = open_keeper(allreduce, why);
    return status; /* the caller closes what there is */
}

void allreduce_cancel(struct allreduce *allreduce) {
    if (allreduce->keeper)
        keeper_cancel(allreduce->keeper);
    if (allreduce->meeting)
        meeting_cancel(allreduce->meeting);
}

void allreduce_close(struct allreduce **where) {
    struct allreduce *allreduce = *where;
    *where = NULL;
    if (!allreduce)
        return;
    reducer_close(&allreduce->reducer);
    keeper_close(&allreduce->keeper);
    meeting_close(&allreduce->meeting);
    free(allreduce);
}

static uint64_t round_of(void *reducer) {
    return reducer_round(reducer);
}

static void save(void *reducer, uint64_t round) {
    reducer_save(reducer, round);
}

static void save_now(void *reducer) {
    reducer_save_now(reducer);
}

/* The others reach this rank where the cluster lists it. */
enum status allreduce_begin(struct allreduce *allreduce, struct failure *why) {
    const struct allreduce_settings *settings = &allreduce->settings;
    struct reducer_settings reducer = {
        .log = settings->log,
        .job = settings->job,
        .layout = settings->plan->layout,
        .rounds = &settings->plan->rounds,
        .group = {.rank = settings->rank,
                  .size = settings->num_ranks,
                  .host = settings->host,
                  .store = meeting_store(allreduce->meeting),
                  .algorithm = settings->job->algorithm == JOB_RING
                                   ? COLLECTIVE_RING
                                   : COLLECTIVE_HALVING_DOUBLING,
                  .timeout = settings->job->timeouts.step,
                  .lanes = settings->lanes,
                  .device = settings->device},
        .weights = settings->weights,
        .gradients = settings->gradients,
        .offsets = settings->offsets,
        .loops = settings->loops,
        .keeper = allreduce->keeper ? keeper_calls(allreduce->keeper) : NULL,
        .loads = settings->plan->pull_first,
        .scaler = settings->plan->scaler,
        .wake = settings->wake,
        .context = settings->context,
        .replicas = plan_replicas(settings->plan, settings->rank),
        .all_replicas = plan_all_replicas(settings->plan),
    };
    enum status status = STATUS_OK;
    if (settings->num_ranks > 1) /* who is alone meets nobody */
        status = collectives_find(&reducer.ops, settings->plan->backend, why);
    reducer.resident = settings->plan->resident;
    reducer.wide = reducer.resident && reducer.ops;
    if (!status && reducer.resident &&
        (!settings->remote || (reducer.ops && !reducer.ops->joins)))
        status = status_fail(why, STATUS_CONFIG,
                             "the plan has gradients stay on this trainer's "
                             "device, which it cannot: is it the same release "
                             "of capstan everywhere?");
    if (!status)
        status = reducer_open(&allreduce->reducer, &reducer, why);
    struct keeper_callbacks callbacks = {allreduce->reducer, round_of, save,
                                   save_now};
    if (!status && allreduce->keeper)
        keeper_attach(allreduce->keeper, &callbacks);
    return status;
}

struct reducer *allreduce_reducer(const struct allreduce *allreduce) {
    return allreduce->reducer;
}

/* What is saved when nobody trains any more all ranks hand over; rank 0's
 * keeper sees to its own part. */
enum status allreduce_obey(struct allreduce *allreduce,
                           const Capstan__Control *order, struct failure *why) {
    if (order->body_case == CAPSTAN__CONTROL__BODY_MEETING)
        return meeting_take(allreduce->meeting, order->meeting, why);
    if (allreduce->keeper)
        keeper_obey(allreduce->keeper, order);
    else if (order->body_case == CAPSTAN__CONTROL__BODY_CUT &&
             allreduce->reducer && order->cut->write && !order->cut->round)
        reducer_save_now(allreduce->reducer);
    return STATUS_OK;
}

int allreduce_poll_items(struct allreduce *allreduce, zmq_pollitem_t *items) {
    int count = 0;
    items[count++] = (zmq_pollitem_t){
        NULL, meeting_descriptor(allreduce->meeting), ZMQ_POLLIN, 0};
    if (allreduce->reducer && !allreduce->failed)
        items[count++] = (zmq_pollitem_t){
            NULL, reducer_descriptor(allreduce->reducer), ZMQ_POLLIN, 0};
    if (!allreduce->keeper)
        return count;
    keeper_poll_items(allreduce->keeper, items + count);
    return count + KEEPER_POLL_ITEMS;
}

bool allreduce_step(struct allreduce *allreduce, struct failure *why) {
    meeting_step(allreduce->meeting);
    if (allreduce->keeper)
        keeper_step(allreduce->keeper);
    if (!allreduce->reducer || allreduce->failed ||
        !reducer_failed(allreduce->reducer, why))
        return false;
    allreduce->failed = true;
    return true;
}
