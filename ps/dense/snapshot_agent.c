/* SPDX-License-Identifier: Apache-2.0 */
/* A snapshot has an id: the round, if the plan schedules it; a number from 2^63
 * on, if the chief requests it. A snapshot begins with the first block that the
 * update core delivers and is complete with the last. A planned one is written
 * at once and reported when its file is complete. A requested one is first
 * reported as held and written if and when the chief orders it: with staleness,
 * its step is known only then. */
#include "ps/dense/snapshot_agent.h"

#include "proto/base/free_memory.h"
#include "proto/net/messages/message.h"
#include "proto/store/checkpoint.h"
#include "proto/store/dir_lock.h"
#include "proto/store/snapshot_report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PATH_BYTES = 4096 };

/* The agent answers the chief's commands; the chief counts the answers
 * (snapshot_round.h). Its only decision of its own is to skip a planned
 * snapshot. */
struct snapshot_agent {
    struct snapshot_agent_settings settings;
    struct server *server;
    struct snapshots *snapshots;
    uint64_t requested_id, requested_round; /* synchronous, being taken */
    bool requested_retain, requested_write;
    uint64_t skipped; /* planned round that found the writer busy, or failed */
    bool warned_full;
    char host[256];
    bool shares_folder;
    struct dir_lock *dir_lock; /* NULL: no checkpoint directory */
};

/* Without a checkpoint directory there is nothing to lock. */
static enum status lock_folder(struct snapshot_agent *snapshot_agent,
                               struct failure *why) {
    const struct snapshot_agent_settings *settings = &snapshot_agent->settings;
    const char *dir = settings->plan->checkpoint_dir;
    char owner[32];
    snapshot_agent->shares_folder = true;
    if (!dir)
        return STATUS_OK;
    snprintf(owner, sizeof owner, "ps %u", settings->index);
    struct dir_lock_settings dir_lock = {.dir = dir,
                                         .run = settings->process->run,
                                         .owner = owner,
                                         .log = settings->process->log};
    return dir_lock_join(&snapshot_agent->dir_lock,
                         &snapshot_agent->shares_folder, &dir_lock, why);
}

enum status snapshot_agent_open(struct snapshot_agent **out,
                                const struct snapshot_agent_settings *settings,
                                struct failure *why) {
    struct snapshot_agent *snapshot_agent = calloc(1, sizeof *snapshot_agent);
    if (!snapshot_agent)
        return status_fail(why, FAILURE_NO_MEMORY, "no memory for checkpoints");
    snapshot_agent->settings = *settings;
    if (!snapshot_agent->settings.copy_bytes)
        snapshot_agent->settings.copy_bytes = free_memory_half();
    gethostname(snapshot_agent->host, sizeof snapshot_agent->host - 1);
    enum status status = lock_folder(snapshot_agent, why);
    if (status)
        snapshot_agent_close(&snapshot_agent);
    *out = snapshot_agent;
    return status;
}

enum status snapshot_agent_attach(struct snapshot_agent *snapshot_agent,
                                  struct server *server, struct failure *why) {
    snapshot_agent->server = server;
    enum status status =
        snapshots_open(&snapshot_agent->snapshots, server_shard(server),
                       server_update_core(server), why);
    if (!status)
        server_set_snapshots(server, snapshot_agent->snapshots);
    return status;
}

void snapshot_agent_close(struct snapshot_agent **where) {
    if (!*where)
        return;
    snapshots_close(&(*where)->snapshots);
    dir_lock_release(&(*where)->dir_lock);
    free(*where);
    *where = NULL;
}

bool snapshot_agent_shares_folder(const struct snapshot_agent *snapshot_agent) {
    return snapshot_agent->shares_folder;
}

static void send_report(struct snapshot_agent *snapshot_agent,
                        Capstan__SnapshotReport report) {
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    control.body_case = CAPSTAN__CONTROL__BODY_SNAPSHOT_REPORT;
    control.snapshot_report = &report;
    control_client_send_reliable(snapshot_agent->settings.control_client,
                                 &control);
}

static void send_failed(struct snapshot_agent *snapshot_agent, uint64_t id,
                        const char *text) {
    send_report(snapshot_agent, snapshot_report_not_written(id, text));
}

static bool has_first_block(const struct snapshot_agent *snapshot_agent) {
    return snapshot_agent->settings.plan->block_ps[0] ==
           snapshot_agent->settings.index;
}

/* Reports that the snapshot is held. STEP, the version of its first block, is
 * reported by the ps that has the plan's first block. */
static void send_held(struct snapshot_agent *snapshot_agent, uint64_t id,
                      uint64_t step) {
    send_report(snapshot_agent, snapshot_report_held(
                                    id, has_first_block(snapshot_agent), step));
}

static void start_write(struct snapshot_agent *snapshot_agent,
                        struct snapshot *snapshot, uint64_t step) {
    char folder[PATH_BYTES], name[128];
    const struct plan *plan = snapshot_agent->settings.plan;
    checkpoint_folder(plan->checkpoint_dir, step, folder, sizeof folder);
    checkpoint_shard_name(snapshot_agent->settings.index, plan->num_ps,
                          snapshot_agent->settings.process->run, name,
                          sizeof name);
    snapshot_write(snapshot, snapshot_agent->dir_lock, folder, name);
}

/* A checkpoint due while one is being written is skipped, except the last one
 * of the run. */
static struct snapshot *begin_planned(struct snapshot_agent *snapshot_agent,
                                      uint64_t round) {
    if (snapshot_agent->skipped == round)
        return NULL;
    if (snapshots_busy(snapshot_agent->snapshots) &&
        round != snapshot_agent->settings.plan->run_schedule.total) {
        snapshot_agent->skipped = round;
        log_warning(snapshot_agent->settings.process->log, "checkpoint_skipped",
                    "the checkpoint of step %llu is left out: an earlier one "
                    "is still being written",
                    (unsigned long long)round);
        send_failed(snapshot_agent, round,
                    "an earlier one was still being written");
        return NULL;
    }
    struct snapshot *snapshot =
        snapshots_begin(snapshot_agent->snapshots, round);
    if (snapshot)
        start_write(snapshot_agent, snapshot, round);
    return snapshot;
}

/* The first block has closed the requested round. */
static struct snapshot *begin_requested(struct snapshot_agent *snapshot_agent) {
    struct snapshot *snapshot = snapshots_begin(snapshot_agent->snapshots,
                                                snapshot_agent->requested_id);
    if (snapshot && snapshot_agent->requested_retain)
        snapshot_retain(snapshot);
    if (snapshot && snapshot_agent->requested_write)
        start_write(snapshot_agent, snapshot, snapshot_agent->requested_round);
    return snapshot;
}

void snapshot_agent_add_block(void *context, uint32_t block, uint64_t version) {
    struct snapshot_agent *snapshot_agent = context;
    bool is_requested = version == snapshot_agent->requested_round;
    uint64_t id = is_requested ? snapshot_agent->requested_id : version;
    struct snapshot *snapshot = snapshots_find(snapshot_agent->snapshots, id);
    if (!snapshot)
        snapshot = is_requested ? begin_requested(snapshot_agent)
                                : begin_planned(snapshot_agent, version);
    if (!snapshot)
        return;
    snapshot_add(snapshot, block, version);
    /* VERSION, as the update core may already have closed the next round. */
    if (is_requested && snapshot_complete(snapshot))
        send_held(snapshot_agent, id, version);
}

void snapshot_agent_send_square_sums(void *context, uint64_t round,
                                     const double *sums) {
    struct snapshot_agent *snapshot_agent = context;
    Capstan__SquareSums message = CAPSTAN__SQUARE_SUMS__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    message.round = round;
    message.n_sums = shard_blocks(server_shard(snapshot_agent->server));
    message.sums = (double *)sums;
    control.body_case = CAPSTAN__CONTROL__BODY_SQUARE_SUMS;
    control.square_sums = &message;
    control_client_send_reliable(snapshot_agent->settings.control_client,
                                 &control);
}

/* From now on no block closes a round above the reported one plus one. */
enum status snapshot_agent_prepare(struct snapshot_agent *snapshot_agent,
                                   const Capstan__SnapshotPrepare *command) {
    if (!shard_blocks(server_shard(snapshot_agent->server)))
        return STATUS_OK; /* the chief knows that this ps has no blocks */
    Capstan__SnapshotPrepared prepared = CAPSTAN__SNAPSHOT_PREPARED__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    prepared.id = command->id;
    prepared.highest =
        update_core_freeze(server_update_core(snapshot_agent->server));
    control.body_case = CAPSTAN__CONTROL__BODY_SNAPSHOT_PREPARED;
    control.snapshot_prepared = &prepared;
    control_client_send_reliable(snapshot_agent->settings.control_client,
                                 &control);
    return STATUS_OK;
}

/* With staleness the snapshot is taken when the command arrives, after
 * server_drain: the weights then include all that the ledger rows count. */
static enum status snapshot_agent_snapshot_now(
    struct snapshot_agent *snapshot_agent, const Capstan__Snapshot *command,
    struct failure *why) {
    enum status status = server_drain(snapshot_agent->server, why);
    if (status)
        return status;
    struct snapshot *snapshot =
        snapshots_begin(snapshot_agent->snapshots, command->id);
    if (!snapshot)
        return status_fail(why, FAILURE_NO_MEMORY, "no memory for a snapshot");
    if (command->retain)
        snapshot_retain(snapshot);
    struct update_core *update_core =
        server_update_core(snapshot_agent->server);
    uint32_t count = shard_blocks(server_shard(snapshot_agent->server));
    for (uint32_t b = 0; b < count; b++)
        snapshot_add(snapshot, b, update_core_version(update_core, b));
    send_held(snapshot_agent, command->id, update_core_version(update_core, 0));
    return STATUS_OK;
}

/* An id below MESSAGE_REQUESTED_SNAPSHOT means that no requested snapshot is
 * needed: the plan schedules one at that round, or the freeze only served
 * joiners. The command then only lifts the freeze. */
enum status snapshot_agent_snapshot(struct snapshot_agent *snapshot_agent,
                                    const Capstan__Snapshot *command,
                                    struct failure *why) {
    if (!shard_blocks(server_shard(snapshot_agent->server)))
        return STATUS_OK; /* this ps has no blocks */
    struct snapshot *held =
        snapshots_find(snapshot_agent->snapshots, command->id);
    if (held && command->write) {
        start_write(snapshot_agent, held, command->step);
        return STATUS_OK;
    }
    if (held && command->id >= MESSAGE_REQUESTED_SNAPSHOT)
        return STATUS_OK;
    if (command->id >= MESSAGE_REQUESTED_SNAPSHOT && !command->round)
        return snapshot_agent_snapshot_now(snapshot_agent, command, why);
    snapshot_agent->requested_id = command->id;
    snapshot_agent->requested_round = command->round;
    snapshot_agent->requested_retain = command->retain;
    snapshot_agent->requested_write = command->write;
    update_core_set_snapshot_round(server_update_core(snapshot_agent->server),
                                   command->round);
    return server_run_actions(snapshot_agent->server, why);
}

enum status snapshot_agent_release(struct snapshot_agent *snapshot_agent,
                                   const Capstan__SnapshotRelease *command) {
    struct snapshot *snapshot =
        snapshots_find(snapshot_agent->snapshots, command->id);
    if (snapshot)
        snapshot_release(snapshot);
    return STATUS_OK;
}

/* Removes what the chief cannot reach, as the folder is not shared. */
enum status snapshot_agent_retain(struct snapshot_agent *snapshot_agent,
                                  const Capstan__Retain *command) {
    const char *dir = snapshot_agent->settings.plan->checkpoint_dir;
    struct failure why;
    if (snapshot_agent->shares_folder || !dir ||
        !dir_lock_is_held(snapshot_agent->dir_lock))
        return STATUS_OK;
    if (checkpoint_retain(dir, command->steps, command->n_steps, &why))
        log_warning(snapshot_agent->settings.process->log,
                    "checkpoint_removal_failed",
                    "old checkpoints were not removed: %s", why.text);
    return STATUS_OK;
}

int snapshot_agent_descriptor(const struct snapshot_agent *snapshot_agent) {
    return snapshot_agent->snapshots
               ? snapshots_descriptor(snapshot_agent->snapshots)
               : -1;
}

static void snapshot_agent_send_written(struct snapshot_agent *snapshot_agent,
                                        const struct snapshot_result *result) {
    const char *host =
        snapshot_agent->shares_folder ? "" : snapshot_agent->host;
    Capstan__SnapshotReport report = snapshot_report_written(
        result->id, &result->info, host, result->seconds);
    Capstan__LossScaler scaler = plan_scaler_message(&result->scaler);
    if (has_first_block(snapshot_agent))
        report.scaler = &scaler;
    send_report(snapshot_agent, report);
}

enum status snapshot_agent_step(struct snapshot_agent *snapshot_agent,
                                struct failure *why) {
    struct snapshot_result result;
    (void)why;
    while (snapshot_agent->snapshots &&
           snapshots_done(snapshot_agent->snapshots, &result)) {
        snapshot_agent->warned_full = false;
        if (result.written) {
            snapshot_agent_send_written(snapshot_agent, &result);
            continue;
        }
        log_error(snapshot_agent->settings.process->log, "shard_write_failed",
                  "a checkpoint was not written: %s", result.why.text);
        snapshot_agent->skipped =
            result.id; /* its later blocks must not begin it again */
        send_failed(snapshot_agent, result.id, result.why.text);
    }
    return STATUS_OK;
}

bool snapshot_agent_is_full(struct snapshot_agent *snapshot_agent) {
    if (!snapshot_agent->snapshots ||
        !snapshots_busy(snapshot_agent->snapshots) ||
        shard_copied_bytes(server_shard(snapshot_agent->server)) <
            snapshot_agent->settings.copy_bytes)
        return false;
    if (!snapshot_agent->warned_full)
        log_warning(
            snapshot_agent->settings.process->log, "updates_paused",
            "copies for the checkpoint have reached %llu MB "
            "(checkpoint.copy_mb): updates wait for the disk",
            (unsigned long long)(snapshot_agent->settings.copy_bytes >> 20));
    snapshot_agent->warned_full = true;
    return true;
}
