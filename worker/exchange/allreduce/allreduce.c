/* SPDX-License-Identifier: Apache-2.0 */
/* Order of opening: rank 0's snapshot agent, which finds the checkpoint
 * directory and tells the chief that it is ready; the reducer once a view
 * starts training. Order of closing: everything that waits is cancelled, the
 * caller's rendezvous too; then the reducer is closed before the snapshot
 * agent, which it calls. */
#include "worker/exchange/allreduce/allreduce.h"

#include "core/base/time.h"
#include "proto/messages/ps_links.h"
#include "worker/collective/group.h"

#include <stdlib.h>

struct allreduce {
    struct allreduce_settings settings;
    struct rank0_snapshot_agent *rank0_snapshot_agent; /* rank 0 only */
    struct row_reducer *rows; /* NULL: there are no tables */
    struct reducer *reducer;
    bool failed; /* the failure was reported */
};

static void send_to_chief(void *control_client, Capstan__Control *control) {
    control_client_send_reliable(control_client, control);
}

static enum status open_snapshot_agent(struct allreduce *allreduce,
                                       struct failure *why) {
    const struct allreduce_settings *settings = &allreduce->settings;
    struct rank0_snapshot_agent_settings rank0_snapshot_agent = {
        .process = settings->process,
        .send_message = send_to_chief,
        .context = settings->control_client,
        .job = settings->job,
        .plan = settings->plan,
        .chief = settings->chief,
        .inproc = settings->inproc,
        .weights = settings->weights,
        .offsets = settings->offsets,
    };
    return rank0_snapshot_agent_open(&allreduce->rank0_snapshot_agent,
                                     &rank0_snapshot_agent, why);
}

enum status allreduce_open(struct allreduce **out,
                           const struct allreduce_settings *settings,
                           struct failure *why) {
    struct allreduce *allreduce = calloc(1, sizeof *allreduce);
    *out = allreduce;
    if (!allreduce)
        return status_fail(why, FAILURE_NO_MEMORY, "no memory for all-reduce");
    allreduce->settings = *settings;
    return settings->rank == 0 ? open_snapshot_agent(allreduce, why)
                               : STATUS_OK; /* the caller closes */
}

void allreduce_cancel(struct allreduce *allreduce) {
    if (allreduce->rank0_snapshot_agent)
        rank0_snapshot_agent_cancel(allreduce->rank0_snapshot_agent);
}

void allreduce_close(struct allreduce **where) {
    struct allreduce *allreduce = *where;
    *where = NULL;
    if (!allreduce)
        return;
    reducer_close(&allreduce->reducer);
    row_reducer_close(&allreduce->rows);
    rank0_snapshot_agent_close(&allreduce->rank0_snapshot_agent);
    free(allreduce);
}

static uint64_t round_of(void *reducer) {
    struct exchange *exchange = reducer_exchange(reducer);
    return exchange->global_step(exchange);
}

static void allreduce_save(void *reducer, uint64_t round) {
    reducer_save(reducer, round);
}

static void save_now(void *reducer) {
    reducer_save_now(reducer);
}

static enum status open_rows(struct allreduce *allreduce, struct failure *why) {
    const struct allreduce_settings *settings = &allreduce->settings;
    struct row_reducer_settings rows = {.job = settings->job,
                                        .plan = settings->plan,
                                        .loops = settings->process->loops,
                                        .rank = settings->rank,
                                        .num_ranks = settings->num_ranks};
    return settings->plan->layout->num_tables
               ? row_reducer_open(&allreduce->rows, &rows, why)
               : STATUS_OK;
}

/* The other ranks connect to the host under which the cluster lists this
 * rank. */
static struct collective_settings group_settings_of(
    const struct allreduce_settings *settings) {
    const struct job *job = settings->job;
    return (struct collective_settings){
        .rank = settings->rank,
        .size = settings->num_ranks,
        .host = settings->host,
        .address = settings->process->address,
        .store = settings->store,
        .algorithm = job->algorithm == JOB_RING ? COLLECTIVE_RING
                                                : COLLECTIVE_HALVING_DOUBLING,
        .timeout = job->timeouts.step,
        .silence = time_to_seconds(
            ps_links_lost_limit(time_from_seconds(job->timeouts.peer))),
        .shm = settings->process->shm,
        .proof = link_keys_proof(settings->process->keys),
        .reject = group_log_rejected,
        .reject_context = settings->process->log,
        .device = settings->device};
}

/* Finds what adds up gradients: a single rank needs nothing. */
static enum status choose_backend(const struct allreduce_settings *settings,
                                  const struct collective_ops **ops,
                                  struct failure *why) {
    enum status status = STATUS_OK;
    if (settings->num_ranks > 1)
        status = group_find_backend(ops, settings->plan->backend, why);
    if (status || !settings->plan->resident)
        return status;
    if (settings->has_device_memory && (!*ops || (*ops)->supports_stream))
        return STATUS_OK;
    return status_fail(why, FAILURE_DEVICE_UNUSABLE,
                       "the plan keeps gradients on this trainer's device, "
                       "which does not support it: do all hosts run the same "
                       "release of capstan?");
}

enum status allreduce_begin(struct allreduce *allreduce, struct failure *why) {
    const struct allreduce_settings *settings = &allreduce->settings;
    struct reducer_settings reducer = {
        .log = settings->process->log,
        .job = settings->job,
        .layout = settings->plan->layout,
        .run_schedule = &settings->plan->run_schedule,
        .group = group_settings_of(settings),
        .weights = settings->weights,
        .gradients = settings->gradients,
        .offsets = settings->offsets,
        .loops = settings->process->loops,
        .rank0_snapshot_agent =
            allreduce->rank0_snapshot_agent
                ? rank0_snapshot_agent_storage(allreduce->rank0_snapshot_agent)
                : NULL,
        .broadcasts_first_weights = settings->plan->pull_first ||
                                    settings->job->model.type == JOB_EXTERNAL,
        .external = settings->job->model.type == JOB_EXTERNAL,
        .groups = settings->plan->groups,
        .num_groups = settings->plan->num_groups,
        .scaler = settings->plan->scaler,
        .trace = settings->process->trace,
        .histograms = settings->process->histograms,
        .wake = settings->wake,
        .context = settings->context,
        .collect = settings->collect,
        .collect_context = settings->collect_context,
        .replicas = plan_replicas(settings->plan, settings->rank),
        .all_replicas = plan_all_replicas(settings->plan),
        .resident = settings->plan->resident,
    };
    enum status status = choose_backend(settings, &reducer.ops, why);
    if (settings->process->stays_here && reducer.ops &&
        !reducer.ops->supports_proof)
        reducer.group.proof = NULL;
    reducer.large_buckets = reducer.resident && reducer.ops;
    if (!status)
        status = open_rows(allreduce, why);
    reducer.rows = allreduce->rows;
    if (allreduce->rows && allreduce->rank0_snapshot_agent)
        reducer.row_storage =
            rank0_snapshot_agent_rows(allreduce->rank0_snapshot_agent);
    if (!status)
        status = reducer_open(&allreduce->reducer, &reducer, why);
    struct rank0_snapshot_agent_callbacks callbacks = {
        allreduce->reducer, round_of, allreduce_save, save_now,
        allreduce->rows};
    if (!status && allreduce->rank0_snapshot_agent)
        rank0_snapshot_agent_attach(allreduce->rank0_snapshot_agent,
                                    &callbacks);
    return status;
}

void allreduce_report_rows(const struct allreduce *allreduce, uint64_t *counts,
                           Capstan__Heartbeat *heartbeat) {
    if (allreduce->rows)
        row_reducer_report(allreduce->rows, counts, heartbeat);
}

struct reducer *allreduce_reducer(const struct allreduce *allreduce) {
    return allreduce->reducer;
}

/* After training has ended every rank takes part in a save; rank 0's snapshot
 * agent handles its own part. */
enum status allreduce_handle(struct allreduce *allreduce,
                             const Capstan__Control *command,
                             struct failure *why) {
    if (allreduce->rank0_snapshot_agent)
        return rank0_snapshot_agent_handle(allreduce->rank0_snapshot_agent,
                                           command, why);
    if (command->body_case == CAPSTAN__CONTROL__BODY_SNAPSHOT &&
        allreduce->reducer && command->snapshot->write &&
        !command->snapshot->round)
        reducer_save_now(allreduce->reducer);
    return STATUS_OK;
}

int allreduce_poll_items(struct allreduce *allreduce, zmq_pollitem_t *items) {
    int count = 0;
    if (allreduce->reducer && !allreduce->failed)
        items[count++] = (zmq_pollitem_t){
            NULL, reducer_descriptor(allreduce->reducer), ZMQ_POLLIN, 0};
    if (!allreduce->rank0_snapshot_agent)
        return count;
    rank0_snapshot_agent_poll_items(allreduce->rank0_snapshot_agent,
                                    items + count);
    return count + RANK0_SNAPSHOT_AGENT_POLL_ITEMS;
}

bool allreduce_step(struct allreduce *allreduce, struct failure *why) {
    if (allreduce->rank0_snapshot_agent)
        rank0_snapshot_agent_step(allreduce->rank0_snapshot_agent);
    if (!allreduce->reducer || allreduce->failed ||
        !reducer_failed(allreduce->reducer, why))
        return false;
    allreduce->failed = true;
    return true;
}
