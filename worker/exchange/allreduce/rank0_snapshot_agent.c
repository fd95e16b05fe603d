/* SPDX-License-Identifier: Apache-2.0 */
/* Two threads meet here: the reducer's thread loads, saves and pauses
 * (rank0_snapshot_agent_storage); the communication thread handles the chief's
 * messages and reports the results.
 *
 * A planned round is saved without negotiation, with its round number as id. A
 * round that the chief requests is agreed on first: the prepare message blocks
 * rounds above the highest one that may be running, and the agent answers with
 * that round; the chief names a round from there on; the agent passes it to the
 * reducer and releases the block. A save is reported as held once the reducer
 * has handed it over, and as written once the shard writer has its file. After
 * training no round needs agreement: the current state is held at once, and all
 * ranks hand it over when it is to be written. */
#include "worker/exchange/allreduce/rank0_snapshot_agent.h"

#include "proto/base/free_memory.h"
#include "proto/net/messages/message.h"
#include "proto/store/checkpoint.h"
#include "proto/store/snapshot_report.h"
#include "worker/exchange/allreduce/rank0_snapshot_agent_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

static void send_message(struct rank0_snapshot_agent *rank0_snapshot_agent,
                         Capstan__Control *control) {
    rank0_snapshot_agent->settings.send_message(
        rank0_snapshot_agent->settings.context, control);
}

/* Without a checkpoint directory there is nothing to find. */
static enum status find_directory(
    struct rank0_snapshot_agent *rank0_snapshot_agent, struct failure *why) {
    const struct rank0_snapshot_agent_settings *settings =
        &rank0_snapshot_agent->settings;
    struct dir_lock_settings dir_lock = {.dir = settings->plan->checkpoint_dir,
                                         .run = settings->run,
                                         .owner = "rank 0",
                                         .log = settings->log};
    rank0_snapshot_agent->shares_folder = true;
    return dir_lock.dir ? dir_lock_join(&rank0_snapshot_agent->dir_lock,
                                        &rank0_snapshot_agent->shares_folder,
                                        &dir_lock, why)
                        : STATUS_OK;
}

static void rank0_snapshot_agent_send_ready(
    struct rank0_snapshot_agent *rank0_snapshot_agent) {
    Capstan__Ready ready = CAPSTAN__READY__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    ready.shares_folder = rank0_snapshot_agent->shares_folder;
    ready.port = weights_server_port(rank0_snapshot_agent->weights_server);
    control.body_case = CAPSTAN__CONTROL__BODY_READY;
    control.ready = &ready;
    send_message(rank0_snapshot_agent, &control);
}

static enum status open_writer_and_server(
    struct rank0_snapshot_agent *rank0_snapshot_agent, struct failure *why) {
    const struct rank0_snapshot_agent_settings *settings =
        &rank0_snapshot_agent->settings;
    const struct job *job = settings->job;
    struct async_shard_writer_settings async_shard_writer = {
        .layout = settings->plan->layout,
        .num_tensors = 1 + rule_slots(&job->optimizer),
        .checkpoint_dir = settings->plan->checkpoint_dir,
        .dir_lock = rank0_snapshot_agent->dir_lock,
        .run = settings->run,
        .copy_bytes = job->checkpoint.copy_mb ? job->checkpoint.copy_mb << 20
                                              : free_memory_half(),
    };
    struct weights_server_settings weights_server = {
        .zmq = settings->zmq,
        .log = settings->log,
        .inproc = settings->inproc,
        .run = settings->run,
        .incarnation = settings->incarnation,
        .chief = settings->chief,
        .layout = settings->plan->layout,
        .weights = (float *)buffer_data(settings->weights),
        .offsets = settings->offsets,
    };
    enum status status = async_shard_writer_open(
        &rank0_snapshot_agent->async_shard_writer, &async_shard_writer, why);
    return status ? status
                  : weights_server_open(&rank0_snapshot_agent->weights_server,
                                        &weights_server, why);
}

enum status rank0_snapshot_agent_open(
    struct rank0_snapshot_agent **out,
    const struct rank0_snapshot_agent_settings *settings, struct failure *why) {
    struct rank0_snapshot_agent *rank0_snapshot_agent =
        calloc(1, sizeof *rank0_snapshot_agent);
    *out = NULL;
    if (!rank0_snapshot_agent)
        return status_fail(why, FAILURE_NO_MEMORY, "no memory for checkpoints");
    rank0_snapshot_agent->settings = *settings;
    rank0_snapshot_agent->storage =
        rank0_snapshot_storage_functions(rank0_snapshot_agent);
    rank0_snapshot_agent->entered = settings->plan->run_schedule.start + 1;
    rank0_snapshot_agent->limit = UINT64_MAX;
    gethostname(rank0_snapshot_agent->host,
                sizeof rank0_snapshot_agent->host - 1);
    pthread_mutex_init(&rank0_snapshot_agent->mutex, NULL);
    pthread_cond_init(&rank0_snapshot_agent->changed, NULL);
    rank0_snapshot_agent->descriptor = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    enum status status = rank0_snapshot_agent->descriptor < 0
                             ? status_errno(why, FAILURE_SYSTEM_REFUSED, errno,
                                            "cannot open an eventfd")
                             : find_directory(rank0_snapshot_agent, why);
    if (!status)
        status = open_writer_and_server(rank0_snapshot_agent, why);
    if (status) {
        rank0_snapshot_agent_close(&rank0_snapshot_agent);
        return status;
    }
    rank0_snapshot_agent_send_ready(rank0_snapshot_agent);
    *out = rank0_snapshot_agent;
    return STATUS_OK;
}

void rank0_snapshot_agent_cancel(
    struct rank0_snapshot_agent *rank0_snapshot_agent) {
    pthread_mutex_lock(&rank0_snapshot_agent->mutex);
    rank0_snapshot_agent->cancelled = true;
    pthread_cond_broadcast(&rank0_snapshot_agent->changed);
    pthread_mutex_unlock(&rank0_snapshot_agent->mutex);
    async_shard_writer_cancel(rank0_snapshot_agent->async_shard_writer);
}

void rank0_snapshot_agent_close(struct rank0_snapshot_agent **where) {
    struct rank0_snapshot_agent *rank0_snapshot_agent = *where;
    *where = NULL;
    if (!rank0_snapshot_agent)
        return;
    async_shard_writer_close(&rank0_snapshot_agent->async_shard_writer);
    weights_server_close(&rank0_snapshot_agent->weights_server);
    checkpoint_reader_close(&rank0_snapshot_agent->reader);
    manifest_clear(&rank0_snapshot_agent->manifest);
    dir_lock_release(&rank0_snapshot_agent->dir_lock);
    if (rank0_snapshot_agent->descriptor >= 0)
        close(rank0_snapshot_agent->descriptor);
    pthread_mutex_destroy(&rank0_snapshot_agent->mutex);
    pthread_cond_destroy(&rank0_snapshot_agent->changed);
    free(rank0_snapshot_agent);
}

const struct reducer_storage *rank0_snapshot_agent_storage(
    const struct rank0_snapshot_agent *rank0_snapshot_agent) {
    return &rank0_snapshot_agent->storage;
}

void rank0_snapshot_agent_attach(
    struct rank0_snapshot_agent *rank0_snapshot_agent,
    const struct rank0_snapshot_agent_callbacks *callbacks) {
    rank0_snapshot_agent->callbacks = *callbacks;
    weights_server_freeze(rank0_snapshot_agent->weights_server);
}

static void send_snapshot_report(
    struct rank0_snapshot_agent *rank0_snapshot_agent,
    Capstan__SnapshotReport report) {
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    control.body_case = CAPSTAN__CONTROL__BODY_SNAPSHOT_REPORT;
    control.snapshot_report = &report;
    send_message(rank0_snapshot_agent, &control);
}

/* The running round's header may already have reached the other ranks: only the
 * next round can still be saved. */
static void rank0_snapshot_agent_prepare(
    struct rank0_snapshot_agent *rank0_snapshot_agent,
    const Capstan__SnapshotPrepare *command) {
    Capstan__SnapshotPrepared mark = CAPSTAN__SNAPSHOT_PREPARED__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    uint64_t total = rank0_snapshot_agent->settings.plan->run_schedule.total;
    pthread_mutex_lock(&rank0_snapshot_agent->mutex);
    rank0_snapshot_agent->limit = rank0_snapshot_agent->entered;
    mark.highest = rank0_snapshot_agent->entered < total
                       ? rank0_snapshot_agent->entered
                       : total;
    pthread_mutex_unlock(&rank0_snapshot_agent->mutex);
    mark.id = command->id;
    control.body_case = CAPSTAN__CONTROL__BODY_SNAPSHOT_PREPARED;
    control.snapshot_prepared = &mark;
    send_message(rank0_snapshot_agent, &control);
}

/* No rank trains any more: reads are answered from the current weights, and all
 * ranks hand over the state to be written now. */
static void rank0_snapshot_agent_snapshot_now(
    struct rank0_snapshot_agent *rank0_snapshot_agent,
    const Capstan__Snapshot *command) {
    weights_server_serve(rank0_snapshot_agent->weights_server, command->id);
    if (!command->write) {
        send_snapshot_report(
            rank0_snapshot_agent,
            snapshot_report_held(command->id, true,
                                 rank0_snapshot_agent->callbacks.round(
                                     rank0_snapshot_agent->callbacks.context)));
        return;
    }
    pthread_mutex_lock(&rank0_snapshot_agent->mutex);
    rank0_snapshot_agent->requested_id = command->id;
    rank0_snapshot_agent->requested_round =
        rank0_snapshot_agent->callbacks.round(
            rank0_snapshot_agent->callbacks.context);
    rank0_snapshot_agent->requested_held_sent = true;
    rank0_snapshot_agent->limit = UINT64_MAX;
    pthread_cond_broadcast(&rank0_snapshot_agent->changed);
    pthread_mutex_unlock(&rank0_snapshot_agent->mutex);
    rank0_snapshot_agent->callbacks.save_now(
        rank0_snapshot_agent->callbacks.context);
}

/* The id of a planned round means that the requested snapshot falls on it: the
 * agent only releases the block. */
static void rank0_snapshot_agent_snapshot(
    struct rank0_snapshot_agent *rank0_snapshot_agent,
    const Capstan__Snapshot *command) {
    if (command->id >= MESSAGE_REQUESTED_SNAPSHOT && !command->round) {
        rank0_snapshot_agent_snapshot_now(rank0_snapshot_agent, command);
        return;
    }
    if (command->id >= MESSAGE_REQUESTED_SNAPSHOT && command->write)
        rank0_snapshot_agent->callbacks.save(
            rank0_snapshot_agent->callbacks.context, command->round);
    pthread_mutex_lock(&rank0_snapshot_agent->mutex);
    if (command->id >= MESSAGE_REQUESTED_SNAPSHOT) {
        rank0_snapshot_agent->requested_id = command->id;
        rank0_snapshot_agent->requested_round = command->round;
        rank0_snapshot_agent->requested_held_sent = false;
    }
    rank0_snapshot_agent->limit = UINT64_MAX;
    pthread_cond_broadcast(&rank0_snapshot_agent->changed);
    pthread_mutex_unlock(&rank0_snapshot_agent->mutex);
}

/* Removes old checkpoints that the chief cannot reach because the directory is
 * not shared. */
static void retain(struct rank0_snapshot_agent *rank0_snapshot_agent,
                   const Capstan__Retain *command) {
    const char *dir = rank0_snapshot_agent->settings.plan->checkpoint_dir;
    struct failure why;
    if (!rank0_snapshot_agent->shares_folder && dir &&
        dir_lock_is_held(rank0_snapshot_agent->dir_lock) &&
        checkpoint_retain(dir, command->steps, command->n_steps, &why))
        log_warning(rank0_snapshot_agent->settings.log,
                    "checkpoint_removal_failed",
                    "old checkpoints were not removed: %s", why.text);
}

void rank0_snapshot_agent_handle(
    struct rank0_snapshot_agent *rank0_snapshot_agent,
    const Capstan__Control *command) {
    if (command->body_case == CAPSTAN__CONTROL__BODY_RETAIN)
        retain(rank0_snapshot_agent, command->retain);
    if (!rank0_snapshot_agent->callbacks.round)
        return;
    if (command->body_case == CAPSTAN__CONTROL__BODY_SNAPSHOT_PREPARE)
        rank0_snapshot_agent_prepare(rank0_snapshot_agent,
                                     command->snapshot_prepare);
    else if (command->body_case == CAPSTAN__CONTROL__BODY_SNAPSHOT)
        rank0_snapshot_agent_snapshot(rank0_snapshot_agent, command->snapshot);
    else if (command->body_case == CAPSTAN__CONTROL__BODY_SNAPSHOT_RELEASE)
        weights_server_serve(rank0_snapshot_agent->weights_server, 0);
}

void rank0_snapshot_agent_poll_items(
    struct rank0_snapshot_agent *rank0_snapshot_agent, zmq_pollitem_t *items) {
    items[0] = weights_server_poll_item(rank0_snapshot_agent->weights_server);
    items[1] =
        (zmq_pollitem_t){NULL, rank0_snapshot_agent->descriptor, ZMQ_POLLIN, 0};
    items[2] = (zmq_pollitem_t){
        NULL,
        async_shard_writer_descriptor(rank0_snapshot_agent->async_shard_writer),
        ZMQ_POLLIN, 0};
}

static void rank0_snapshot_agent_send_written(
    struct rank0_snapshot_agent *rank0_snapshot_agent,
    const struct async_shard_writer_result *result) {
    const char *host =
        rank0_snapshot_agent->shares_folder ? "" : rank0_snapshot_agent->host;
    Capstan__SnapshotReport report = snapshot_report_written(
        result->id, &result->info, host, result->seconds);
    Capstan__LossScaler scaler = plan_scaler_message(&result->scaler);
    report.scaler = &scaler;
    send_snapshot_report(rank0_snapshot_agent, report);
}

/* A round is reported as held before it is reported as written. */
static void send_handed_over(
    struct rank0_snapshot_agent *rank0_snapshot_agent) {
    eventfd_t count;
    eventfd_read(rank0_snapshot_agent->descriptor, &count);
    pthread_mutex_lock(&rank0_snapshot_agent->mutex);
    uint64_t held = rank0_snapshot_agent->held,
             skipped = rank0_snapshot_agent->skipped;
    uint64_t round = rank0_snapshot_agent
                         ->requested_round; /* the next request follows this */
    rank0_snapshot_agent->held = rank0_snapshot_agent->skipped = 0;
    pthread_mutex_unlock(&rank0_snapshot_agent->mutex);
    if (held)
        send_snapshot_report(rank0_snapshot_agent,
                             snapshot_report_held(held, true, round));
    if (skipped)
        send_snapshot_report(
            rank0_snapshot_agent,
            snapshot_report_not_written(
                skipped, "an earlier one was still being written"));
}

void rank0_snapshot_agent_step(
    struct rank0_snapshot_agent *rank0_snapshot_agent) {
    struct async_shard_writer_result result;
    weights_server_step(rank0_snapshot_agent->weights_server);
    send_handed_over(rank0_snapshot_agent);
    if (!async_shard_writer_done(rank0_snapshot_agent->async_shard_writer,
                                 &result))
        return;
    if (result.written) {
        rank0_snapshot_agent_send_written(rank0_snapshot_agent, &result);
        return;
    }
    log_error(rank0_snapshot_agent->settings.log, "shard_write_failed",
              "a checkpoint was not written: %s", result.why.text);
    send_snapshot_report(rank0_snapshot_agent, snapshot_report_not_written(
                                                   result.id, result.why.text));
}
