/* SPDX-License-Identifier: Apache-2.0 */
/* A planned round needs no command: its snapshot begins with the first block
 * that asks, is written at once and reported when its file is complete. A
 * requested one is agreed on first: Prepare freezes the rounds and is answered
 * with the highest one; Snapshot names a round above it, or none when the
 * blocks are to be held as they are now. It is reported as held and written if
 * and when the chief orders it: with staleness, its step is known only then.
 *
 * Blocks may come on another thread than the chief's commands: the request is
 * under the mutex, and reports wait in the snapshots for snapshot_agent_step.
 * The agent's only decision of its own is to skip a planned snapshot. */
#include "proto/holder/snapshot_agent.h"

#include "core/store/checkpoint.h"
#include "core/store/dir_lock.h"
#include "proto/messages/message.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

enum { PATH_BYTES = 4096, MOST_STRIDE = 64 };

struct request {
    uint64_t id; /* 0: none yet */
    uint64_t round;
    bool retain, write, released;
    Capstan__Snapshot__Form form;
};

struct snapshot_agent {
    struct snapshot_agent_settings settings;
    struct snapshots *snapshots;
    char host[256];
    bool shares_folder;
    struct dir_lock *dir_lock; /* NULL: no checkpoint directory */
    pthread_mutex_t mutex;
    struct request request;     /* the latest one for a round */
    uint64_t frozen;            /* for which the rounds are frozen; 0: none */
    uint64_t void_id;           /* the last that is void; 0: none */
    atomic_uint_least64_t last; /* an interrupted run ends with it; 0: none */
    bool has_base; /* there is a full checkpoint that deltas can be against */
    uint64_t copy_stride; /* of the copies in memory that are due every so many
                             are made */
};

/* Without a checkpoint directory there is nothing to lock. */
static enum status lock_folder(struct snapshot_agent *agent,
                               struct failure *why) {
    const struct snapshot_agent_settings *settings = &agent->settings;
    struct dir_lock_settings dir_lock = {.dir = settings->plan->checkpoint_dir,
                                         .run = settings->run,
                                         .owner = settings->owner,
                                         .log = settings->log};
    agent->shares_folder = true;
    return dir_lock.dir ? dir_lock_join(&agent->dir_lock, &agent->shares_folder,
                                        &dir_lock, why)
                        : STATUS_OK;
}

enum status snapshot_agent_open(struct snapshot_agent **out,
                                const struct snapshot_agent_settings *settings,
                                struct failure *why) {
    struct snapshot_agent *agent = calloc(1, sizeof *agent);
    *out = NULL;
    if (!agent)
        return status_fail(why, FAILURE_NO_MEMORY, "no memory for checkpoints");
    agent->settings = *settings;
    agent->has_base = settings->plan->restore_folder;
    agent->copy_stride = 1;
    pthread_mutex_init(&agent->mutex, NULL);
    gethostname(agent->host, sizeof agent->host - 1);
    enum status status = lock_folder(agent, why);
    if (!status)
        status = snapshots_open(&agent->snapshots, &settings->blocks, why);
    if (status)
        snapshot_agent_close(&agent);
    *out = agent;
    return status;
}

void snapshot_agent_close(struct snapshot_agent **where) {
    struct snapshot_agent *agent = *where;
    *where = NULL;
    if (!agent)
        return;
    snapshots_close(&agent->snapshots);
    dir_lock_release(&agent->dir_lock);
    pthread_mutex_destroy(&agent->mutex);
    free(agent);
}

bool snapshot_agent_shares_folder(const struct snapshot_agent *snapshot_agent) {
    return snapshot_agent->shares_folder;
}

struct snapshots *snapshot_agent_snapshots(const struct snapshot_agent *agent) {
    return agent->snapshots;
}

int snapshot_agent_descriptor(const struct snapshot_agent *agent) {
    return snapshots_descriptor(agent->snapshots);
}

static void order_write(struct snapshot_agent *agent, uint64_t id,
                        uint64_t step) {
    const struct snapshot_agent_settings *settings = &agent->settings;
    char folder[PATH_BYTES], name[128];
    Capstan__Snapshot__Form form = snapshots_form(agent->snapshots, id);
    checkpoint_shard_name(settings->index, settings->count, settings->run,
                          form == CAPSTAN__SNAPSHOT__FORM__DELTA, name,
                          sizeof name);
    if (form == CAPSTAN__SNAPSHOT__FORM__COPY) {
        snapshots_write(agent->snapshots, id, step, NULL, NULL, name);
        return;
    }
    checkpoint_folder(settings->plan->checkpoint_dir, step, folder,
                      sizeof folder);
    snapshots_write(agent->snapshots, id, step, agent->dir_lock, folder, name);
}

/* The first delta is written whole, if there is nothing that it could be
 * against. */
static bool begin(struct snapshot_agent *agent, uint64_t id, bool retain,
                  Capstan__Snapshot__Form form) {
    pthread_mutex_lock(&agent->mutex);
    if (form == CAPSTAN__SNAPSHOT__FORM__DELTA && !agent->has_base)
        form = CAPSTAN__SNAPSHOT__FORM__FULL;
    pthread_mutex_unlock(&agent->mutex);
    return snapshots_begin(agent->snapshots, id,
                           retain && agent->settings.can_retain, form);
}

/* The mutex is held. */
static void widen_stride(struct snapshot_agent *agent) {
    agent->copy_stride *= agent->copy_stride < MOST_STRIDE ? 2 : 1;
}

/* A copy in memory is left out while something is being written. All holders
 * are to have those of the same rounds: where copies take longer than the
 * rounds between them, one in 2, 4 ... of them is made. */
static bool leaves_out_copy(struct snapshot_agent *agent, uint64_t round) {
    uint64_t number = round / agent->settings.plan->run_schedule.buddy_steps;
    pthread_mutex_lock(&agent->mutex);
    bool left_out = number % agent->copy_stride;
    if (!left_out && snapshots_unwritten(agent->snapshots, true)) {
        widen_stride(agent);
        left_out = true;
    }
    pthread_mutex_unlock(&agent->mutex);
    return left_out || snapshots_unwritten(agent->snapshots, false);
}

void snapshot_agent_slow_down(struct snapshot_agent *agent) {
    pthread_mutex_lock(&agent->mutex);
    widen_stride(agent);
    pthread_mutex_unlock(&agent->mutex);
}

static Capstan__Snapshot__Form planned_form(const struct run_schedule *schedule,
                                            uint64_t round) {
    if (run_schedule_copies(schedule, round))
        return CAPSTAN__SNAPSHOT__FORM__COPY;
    return run_schedule_saves_delta(schedule, round)
               ? CAPSTAN__SNAPSHOT__FORM__DELTA
               : CAPSTAN__SNAPSHOT__FORM__FULL;
}

/* A checkpoint due while one is being written is skipped, except the last one
 * of the run. */
static void begin_planned(struct snapshot_agent *agent, uint64_t round) {
    const struct run_schedule *schedule = &agent->settings.plan->run_schedule;
    Capstan__Snapshot__Form form = planned_form(schedule, round);
    if (form == CAPSTAN__SNAPSHOT__FORM__COPY
            ? leaves_out_copy(agent, round)
            : round != schedule->total &&
                  snapshots_unwritten(agent->snapshots, false)) {
        snapshots_skip(agent->snapshots, round, form,
                       "an earlier one was still being written");
        return;
    }
    begin(agent, round, false, form);
    order_write(agent, round, round);
}

uint64_t snapshot_agent_last(const struct snapshot_agent *agent) {
    return atomic_load(&agent->last);
}

bool snapshot_agent_due(struct snapshot_agent *snapshot_agent, uint64_t version,
                        uint64_t *id) {
    struct snapshots *snapshots = snapshot_agent->snapshots;
    pthread_mutex_lock(&snapshot_agent->mutex);
    struct request request = snapshot_agent->request;
    pthread_mutex_unlock(&snapshot_agent->mutex);
    bool is_requested = request.id && version == request.round;
    *id = is_requested ? request.id : version;
    if (!snapshots_has(snapshots, *id) && !is_requested) {
        begin_planned(snapshot_agent, version);
    } else if (!snapshots_has(snapshots, *id) && !request.released) {
        begin(snapshot_agent, *id, request.retain, request.form);
        if (request.write)
            order_write(snapshot_agent, *id, version);
    }
    return snapshots_accepts(snapshots, *id);
}

static void agent_send(struct snapshot_agent *agent,
                       Capstan__Control *control) {
    agent->settings.send(agent->settings.send_context, control);
}

static void prepare(struct snapshot_agent *agent,
                    const Capstan__SnapshotPrepare *command) {
    const struct snapshot_agent_source *source = &agent->settings.source;
    Capstan__SnapshotPrepared prepared = CAPSTAN__SNAPSHOT_PREPARED__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    agent->frozen = command->id;
    prepared.id = command->id;
    prepared.highest = source->freeze(source->context);
    control.body_case = CAPSTAN__CONTROL__BODY_SNAPSHOT_PREPARED;
    control.snapshot_prepared = &prepared;
    agent_send(agent, &control);
}

static void set_request(struct snapshot_agent *agent,
                        const Capstan__Snapshot *command, uint64_t round) {
    pthread_mutex_lock(&agent->mutex);
    agent->request = (struct request){.id = command->id,
                                      .round = round,
                                      .retain = command->retain,
                                      .write = command->write,
                                      .form = command->form};
    pthread_mutex_unlock(&agent->mutex);
}

static void answer_void(struct snapshot_agent *agent, uint64_t id) {
    Capstan__SnapshotReport report = CAPSTAN__SNAPSHOT_REPORT__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    report.id = id;
    report.outcome = CAPSTAN__SNAPSHOT_REPORT__OUTCOME__NOT_HELD;
    report.error = "the chief was silent while it was agreed on";
    control.body_case = CAPSTAN__CONTROL__BODY_SNAPSHOT_REPORT;
    control.snapshot_report = &report;
    agent_send(agent, &control);
}

/* The id of a planned round means that no requested snapshot is needed: it is
 * the last one, or the freeze only served joiners. The command then only lifts
 * the freeze. */
static enum status take_snapshot(struct snapshot_agent *agent,
                                 const Capstan__Snapshot *command,
                                 struct failure *why) {
    const struct snapshot_agent_source *source = &agent->settings.source;
    agent->frozen = 0;
    if (command->id == agent->void_id) {
        answer_void(agent, command->id);
        return STATUS_OK;
    }
    if (command->last)
        atomic_store(&agent->last, command->id);
    if (command->id < MESSAGE_REQUESTED_SNAPSHOT)
        return source->hold_at(source->context, 0, false, why);
    if (snapshots_has(agent->snapshots, command->id)) {
        if (!command->write)
            return STATUS_OK;
        order_write(agent, command->id, command->step);
        if (source->hand_over) {
            set_request(agent, command, command->step);
            source->hand_over(source->context);
        }
        return STATUS_OK;
    }
    if (!command->round) {
        if (!begin(agent, command->id, command->retain, command->form))
            return status_fail(why, FAILURE_NO_MEMORY,
                               "no memory for a snapshot");
        return source->hold_now(source->context, command->id, why);
    }
    set_request(agent, command, command->round);
    return source->hold_at(source->context, command->round, command->write,
                           why);
}

/* A request that is released before its round is not begun any more. */
static void release(struct snapshot_agent *agent, uint64_t id) {
    pthread_mutex_lock(&agent->mutex);
    agent->request.released |= id == agent->request.id;
    pthread_mutex_unlock(&agent->mutex);
    snapshots_release(agent->snapshots, id);
}

enum status snapshot_agent_lift(struct snapshot_agent *agent,
                                struct failure *why) {
    const struct snapshot_agent_source *source = &agent->settings.source;
    if (!agent->frozen)
        return STATUS_OK;
    agent->void_id = agent->frozen;
    agent->frozen = 0;
    return source->hold_at(source->context, 0, false, why);
}

/* A planned round that a request was to replace is planned again. If blocks of
 * the request are held already, this holder lacks the checkpoint of that round,
 * whose other parts the chief may have. */
enum status snapshot_agent_forget(struct snapshot_agent *agent, uint64_t saved,
                                  struct failure *why) {
    const struct snapshot_agent_source *source = &agent->settings.source;
    const struct run_schedule *schedule = &agent->settings.plan->run_schedule;
    pthread_mutex_lock(&agent->mutex);
    uint64_t round = agent->request.round;
    bool has_begun =
        agent->request.id && snapshots_has(agent->snapshots, agent->request.id);
    if (has_begun)
        agent->request.released = true;
    else
        agent->request = (struct request){0};
    pthread_mutex_unlock(&agent->mutex);
    snapshots_release_requested(agent->snapshots);
    if (has_begun && round > saved && run_schedule_saves(schedule, round))
        snapshots_skip(agent->snapshots, round, planned_form(schedule, round),
                       "the chief died when it had replaced it");
    agent->frozen = agent->void_id = 0;
    atomic_store(&agent->last, 0);
    return source->hold_at(source->context, 0, false, why);
}

/* Removes what the chief cannot reach, as the folder is not shared. */
static void snapshot_agent_prune(struct snapshot_agent *agent,
                                 const Capstan__Retain *command) {
    const char *dir = agent->settings.plan->checkpoint_dir;
    struct failure why;
    if (!agent->shares_folder && dir && dir_lock_is_held(agent->dir_lock) &&
        checkpoint_retain(dir, command->steps, command->n_steps, &why))
        log_warning(agent->settings.log, "checkpoint_removal_failed",
                    "old checkpoints were not removed: %s", why.text);
}

static void set_base(struct snapshot_agent *agent, uint64_t id) {
    const struct snapshot_agent_source *source = &agent->settings.source;
    if (!id || !source->set_base)
        return;
    pthread_mutex_lock(&agent->mutex);
    agent->has_base = true;
    pthread_mutex_unlock(&agent->mutex);
    source->set_base(source->context, id);
}

/* The chief knows which holders have no blocks. */
enum status snapshot_agent_handle(struct snapshot_agent *agent,
                                  const Capstan__Control *command,
                                  struct failure *why) {
    bool has_blocks = agent->settings.blocks.num_units;
    switch (command->body_case) {
    case CAPSTAN__CONTROL__BODY_SNAPSHOT_PREPARE:
        if (has_blocks)
            prepare(agent, command->snapshot_prepare);
        return STATUS_OK;
    case CAPSTAN__CONTROL__BODY_SNAPSHOT:
        return has_blocks ? take_snapshot(agent, command->snapshot, why)
                          : STATUS_OK;
    case CAPSTAN__CONTROL__BODY_SNAPSHOT_RELEASE:
        release(agent, command->snapshot_release->id);
        return STATUS_OK;
    case CAPSTAN__CONTROL__BODY_RETAIN:
        snapshot_agent_prune(agent, command->retain);
        set_base(agent, command->retain->base_snapshot);
        return STATUS_OK;
    default:
        return STATUS_OK;
    }
}

static void log_failed(const struct snapshot_agent *agent,
                       const struct snapshots_report *report) {
    const struct log *log = agent->settings.log;
    if (report->skipped && report->form == CAPSTAN__SNAPSHOT__FORM__COPY)
        return; /* the next one is as good */
    if (report->skipped)
        log_warning(log, "checkpoint_skipped",
                    "the checkpoint of step %llu is left out: %s",
                    (unsigned long long)report->ordered, report->why.text);
    else if (report->outcome == CAPSTAN__SNAPSHOT_REPORT__OUTCOME__NOT_HELD)
        log_warning(log, "snapshot_failed", "a snapshot was not taken: %s",
                    report->why.text);
    else if (report->form == CAPSTAN__SNAPSHOT__FORM__COPY)
        log_warning(log, "copy_failed",
                    "there is no copy in memory of step %llu of this process's "
                    "part: %s",
                    (unsigned long long)report->ordered, report->why.text);
    else
        log_error(log, "shard_write_failed",
                  "this process's part of the checkpoint of step %llu was not "
                  "written: %s",
                  (unsigned long long)report->ordered, report->why.text);
}

/* The step and the loss scaler are those of the plan's first block. */
static void send_report(struct snapshot_agent *agent,
                        const struct snapshots_report *report) {
    Capstan__SnapshotReport message = CAPSTAN__SNAPSHOT_REPORT__INIT;
    Capstan__LossScaler scaler = plan_scaler_message(&report->scaler);
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    bool has_first_block = agent->settings.has_first_block;
    message.id = report->id;
    message.outcome = report->outcome;
    switch (report->outcome) {
    case CAPSTAN__SNAPSHOT_REPORT__OUTCOME__HELD:
        message.has_step = has_first_block;
        message.step = has_first_block ? report->step : 0;
        break;
    case CAPSTAN__SNAPSHOT_REPORT__OUTCOME__WRITTEN:
        message.name = (char *)report->info.name;
        message.size = report->info.size;
        message.hash_low = report->info.hash[0];
        message.hash_high = report->info.hash[1];
        message.host = agent->shares_folder ? "" : agent->host;
        message.seconds = report->seconds;
        message.scaler = has_first_block ? &scaler : NULL;
        message.delta = report->form == CAPSTAN__SNAPSHOT__FORM__DELTA;
        message.n_rows =
            report->counts ? 2 * agent->settings.blocks.layout->num_tables : 0;
        message.rows = (uint64_t *)report->counts;
        break;
    default:
        message.error = (char *)report->why.text;
        message.skipped = report->skipped;
        log_failed(agent, report);
        break;
    }
    if (report->form == CAPSTAN__SNAPSHOT__FORM__COPY &&
        report->outcome != CAPSTAN__SNAPSHOT_REPORT__OUTCOME__NOT_HELD) {
        agent->settings.source.copied(agent->settings.source.context, report,
                                      &message);
        return;
    }
    control.body_case = CAPSTAN__CONTROL__BODY_SNAPSHOT_REPORT;
    control.snapshot_report = &message;
    agent_send(agent, &control);
}

void snapshot_agent_step(struct snapshot_agent *agent) {
    struct snapshots_report report;
    while (snapshots_next(agent->snapshots, &report)) {
        send_report(agent, &report);
        free(report.counts);
    }
}
