/* SPDX-License-Identifier: Apache-2.0 */
#include "chief/report/trace_file.h"

#include "chief/report/perfetto_writer.h"
#include "chief/rewind.h"
#include "chief/run.h"
#include "core/base/background_task.h"
#include "core/base/health.h"
#include "core/store/file_lock.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_PATH = 4096, SLICE_MS = 100 };
static const int64_t MOST_WAIT = 10 * TIME_S;

/* Of one slot, or the chief's own behind them. */
struct member {
    struct trace_record *records; /* in the chief's time */
    size_t count, capacity;
    uint64_t dropped;                  /* by those that held the slot before, */
    uint64_t incarnation, dropped_now; /* and by the last one, */
    uint64_t sent;                     /* which has sent so many */
    bool exceeded;    /* one of them sent more than the part of a process */
    bool ended;       /* it has sent all */
    uint64_t removed; /* who held the slot and was noticed to be gone last */
    bool lost;        /* one of these had not, and was in the steps */
    uint64_t asked;   /* who held the slot at the request */
    bool has_offset;
    int64_t offset;
    uint64_t bound;
};

struct trace_file {
    struct trace_steps steps;
    char path[MAX_PATH];
    char lock_path[MAX_PATH + 8];
    int lock; /* while the run may write PATH; -1: PATH is its own by name */
    uint32_t num_members; /* slots, and the chief */
    size_t count;         /* records in all */
    uint64_t saved;       /* the last checkpoint that was looked at */
    uint64_t looked,
        due;            /* the last round that was looked at, and that saves */
    int64_t past_since; /* trainers are past the last step; 0: they are not */
    uint64_t before;    /* the trainers' first step less 1 */
    bool began, requested, written;
    struct member *members;
    struct perfetto_trace trace;
    struct background_task *task; /* it writes; or NULL */
};

static enum status check_folder(const char *path, struct failure *why) {
    const char *slash = strrchr(path, '/');
    char folder[MAX_PATH] = ".";
    if (slash)
        snprintf(folder, sizeof folder, "%.*s",
                 slash == path ? 1 : (int)(slash - path), path);
    if (!access(folder, W_OK | X_OK))
        return STATUS_OK;
    return status_errno(why, FAILURE_OUTPUT_UNUSABLE, errno,
                        "--trace-file: cannot write %s into %s", path, folder);
}

static bool is_lock_current(const struct trace_file *file) {
    struct stat own, found;
    return !fstat(file->lock, &own) && !stat(file->lock_path, &found) &&
           own.st_ino == found.st_ino && own.st_dev == found.st_dev;
}

/* The file itself is replaced when it is written: its lock is a file beside it,
 * which who has held it removes. */
static enum status lock_trace(struct trace_file *file, const struct log *log,
                              struct failure *why) {
    const int flags = O_CREAT | O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
    enum status status = STATUS_OK;
    snprintf(file->lock_path, sizeof file->lock_path, "%s.lock", file->path);
    for (bool locked = false; !status && !locked;) {
        file->lock = open(file->lock_path, flags, 0600);
        if (file->lock < 0)
            return status_errno(why, FAILURE_OUTPUT_UNUSABLE, errno,
                                "--trace-file: cannot write %s",
                                file->lock_path);
        status = file_lock_take(file->lock, file->path, log, why);
        locked = !status && is_lock_current(file);
        if (!locked)
            file_lock_close(&file->lock);
    }
    if (status)
        status_context(why, "--trace-file");
    return status;
}

enum status trace_file_open(struct run *run, const struct trace_steps *steps,
                            struct failure *why) {
    if (!steps->last || (run->lineage && run->lineage->traced))
        return STATUS_OK;
    struct trace_file *file = calloc(1, sizeof *file);
    uint32_t count = run->roster.count + 1;
    run->trace.file = file;
    if (file) {
        file->members = calloc(count, sizeof *file->members);
        file->trace.processes = calloc(count, sizeof *file->trace.processes);
    }
    if (file)
        file->lock = -1;
    if (!file || !file->members || !file->trace.processes)
        return status_fail(why, FAILURE_NO_MEMORY, "no memory for a trace");
    file->steps = *steps;
    file->num_members = count;
    run->trace.first = steps->first;
    run->trace.last = steps->last;
    run->trace.room =
        (uint32_t)(TRACE_BYTES / sizeof(struct trace_record) / count);
    snprintf(file->path, sizeof file->path, "capstan-%016llx.pftrace",
             (unsigned long long)run->id);
    if (steps->path)
        snprintf(file->path, sizeof file->path, "%s", steps->path);
    enum status status = check_folder(file->path, why);
    return status || !steps->path ? status : lock_trace(file, run->log, why);
}

static void free_file(void *context) {
    struct trace_file *file = context;
    if (file->lock >= 0)
        unlink(file->lock_path);
    file_lock_close(&file->lock);
    for (uint32_t i = 0; file->members && i < file->num_members; i++)
        free(file->members[i].records);
    free(file->members);
    free(file->trace.processes);
    free(file);
}

void trace_file_close(struct run *run) {
    struct trace_file *file = run->trace.file;
    run->trace.file = NULL;
    if (!file)
        return;
    background_task_close(&file->task);
    free_file(file);
}

/* NULL: MEMBER has its part of the records of the run, which is ROOM, however
 * many processes were it. */
static struct trace_record *room_for(struct member *member, size_t count,
                                     size_t room) {
    size_t needed = member->count + count;
    if (count > room || needed > room)
        return NULL;
    if (needed > member->capacity) {
        size_t capacity =
            needed + needed / 2 < room ? needed + needed / 2 : room;
        struct trace_record *records =
            realloc(member->records, capacity * sizeof *records);
        if (!records)
            return NULL;
        member->records = records;
        member->capacity = capacity;
    }
    return member->records + member->count;
}

static void take_records(struct run *run, struct member *member,
                         const Capstan__Trace *piece) {
    size_t count = piece->records.len / sizeof(struct trace_record);
    struct trace_record *to = room_for(member, count, run->trace.room);
    member->sent += count;
    member->exceeded |= member->sent > run->trace.room;
    if (!to) {
        member->dropped += count;
        return;
    }
    if (count)
        memcpy(to, piece->records.data, piece->records.len);
    for (size_t i = 0; i < count; i++) {
        int64_t start = to[i].start + piece->offset;
        to[i].start = start > 0 ? start : 0; /* the file has no other times */
    }
    member->count += count;
    run->trace.file->count += count;
}

void trace_file_receive(struct run *run, const struct roster_slot *slot,
                        const Capstan__Trace *piece) {
    struct trace_file *file = run->trace.file;
    if (!file || file->task || file->written)
        return;
    struct member *member = &file->members[slot - run->roster.slots];
    if (member->incarnation != slot->incarnation) {
        member->incarnation = slot->incarnation;
        member->dropped += member->dropped_now;
        member->sent = 0;
        member->ended = false;
    }
    member->dropped_now = piece->dropped;
    member->ended |= piece->last;
    member->has_offset = piece->has_offset;
    member->offset = piece->offset;
    member->bound = piece->bound;
    take_records(run, member, piece);
}

/* For a checkpoint of a traced step the chief has a record of its own. */
static void add_checkpoint(struct run *run) {
    struct trace_file *file = run->trace.file;
    const struct run_checkpoints *checkpoints = &run->checkpoints;
    struct member *own = &file->members[file->num_members - 1];
    int64_t duration = time_from_seconds(checkpoints->saved_seconds);
    uint64_t step = checkpoints->saved;
    struct trace_record *to;
    if (!checkpoints->has_saved || step == file->saved)
        return;
    file->saved = step;
    if (step < file->steps.first || step > file->steps.last ||
        !(to = room_for(own, 1, run->trace.room)))
        return;
    *to = (struct trace_record){.start = time_now() - duration,
                                .duration = duration,
                                .step = step,
                                .kind = TRACE_CHECKPOINT};
    own->count++;
    file->count++;
}

/* Why SLOT's process has no records, or lacks some; NULL: it does not. */
static const char *missing(const struct member *member,
                           const struct roster_slot *slot) {
    if (member->exceeded)
        return "it sent more than its part, and what was more is refused";
    if (member->ended && member->lost)
        return "an earlier process of it ended before it had sent all";
    if (member->ended)
        return NULL;
    if (slot->state == ROSTER_ABSENT)
        return "it has not joined";
    return member->count ? "it ended before it had sent all"
                         : "it ended before it sent any";
}

static void describe_slot(const struct run *run, uint32_t i,
                          struct perfetto_process *process) {
    const struct roster_slot *slot = &run->roster.slots[i];
    const struct member *member = &run->trace.file->members[i];
    if (slot->role == CLUSTER_CHIEF)
        snprintf(process->name, sizeof process->name, "the chief's trainer");
    else
        snprintf(process->name, sizeof process->name, "%s %u",
                 cluster_role_name(slot->role), slot->index);
    snprintf(process->host, sizeof process->host, "%s", slot->host);
    process->pid = slot->pid;
    process->trainer = slot->rank != ROSTER_NO_RANK;
    process->rank = slot->rank;
    process->missing = missing(member, slot);
}

/* What the file has of each process. */
static void describe_processes(struct run *run) {
    struct trace_file *file = run->trace.file;
    uint32_t own = file->num_members - 1;
    for (uint32_t i = 0; i < file->num_members; i++) {
        const struct member *member = &file->members[i];
        struct perfetto_process *process = &file->trace.processes[i];
        *process = (struct perfetto_process){
            .name = "chief",
            .records = member->records,
            .count = member->count,
            .dropped = member->dropped + member->dropped_now,
            .has_offset = i == own || member->has_offset,
            .offset = member->offset,
            .bound = member->bound};
        if (i < own)
            describe_slot(run, i, process);
    }
    gethostname(file->trace.processes[own].host,
                sizeof file->trace.processes[own].host - 1);
    file->trace.processes[own].pid = (uint32_t)getpid();
    file->trace.num_processes = file->num_members;
    file->trace.run = run->id;
    file->trace.first = file->steps.first;
    file->trace.last = file->steps.last;
}

static enum status write_trace(void *context, int cancel, struct failure *why) {
    const struct trace_file *file = context;
    (void)cancel;
    return perfetto_write(file->path, &file->trace, why);
}

/* The step with which the trainers ended. */
static uint64_t last_traced_step(const struct run *run) {
    uint64_t step = 0;
    if (run_synchronous(run))
        return run->end_step;
    for (uint32_t r = 0; r < run->roster.num_ranks; r++)
        if (run->trainers[r].heartbeat.clock > step)
            step = run->trainers[r].heartbeat.clock;
    return step;
}

static void log_lacks(const struct run *run) {
    const struct trace_file *file = run->trace.file;
    uint64_t end = last_traced_step(run);
    for (uint32_t i = 0; i < file->num_members; i++) {
        const struct perfetto_process *process = &file->trace.processes[i];
        if (process->missing)
            log_warning(run->log, "trace_incomplete",
                        "%s lacks records of %s: %s", file->path, process->name,
                        process->missing);
        if (process->dropped)
            log_warning(run->log, "trace_incomplete",
                        "%s lacks %llu records of %s, for which there was no "
                        "room: trace fewer steps",
                        file->path, (unsigned long long)process->dropped,
                        process->name);
    }
    if (file->before >= file->steps.first)
        log_warning(run->log, "trace_incomplete",
                    "%s %s: the run began after step %llu", file->path,
                    file->count ? "lacks steps" : "has no step",
                    (unsigned long long)file->before);
    if (!file->requested && end < file->steps.last)
        log_warning(
            run->log, "trace_incomplete", "%s %s: the run ended %s step %llu",
            file->path, file->count ? "lacks steps" : "has no step",
            file->count ? "with" : "before",
            (unsigned long long)(file->count ? end : file->steps.first));
}

static void end_writing(struct run *run, enum status status,
                        const struct failure *why) {
    struct trace_file *file = run->trace.file;
    file->written = true;
    if (status) {
        log_error(run->log, "trace_not_written", "%s", why->text);
        return;
    }
    log_info(run->log, "trace_written",
             "the timeline of steps %llu to %llu: %s, for ui.perfetto.dev",
             (unsigned long long)file->steps.first,
             (unsigned long long)file->steps.last, file->path);
    log_lacks(run);
}

/* Is every trainer in the loop past step LAST, and is there one? */
static bool are_past(const struct run *run, uint64_t last) {
    uint32_t past = 0;
    for (uint32_t r = 0; r < run->roster.num_ranks; r++) {
        const struct run_trainer *trainer = &run->trainers[r];
        if (!trainer->in_view || trainer->finished ||
            run->roster.slots[r].state != ROSTER_HELD)
            continue;
        if (trainer->heartbeat.clock <= last)
            return false;
        past++;
    }
    return past > 0;
}

/* With staleness the run's step is the number of an update, and a trainer's its
 * push. */
static void look_at_begin(struct run *run) {
    struct trace_file *file = run->trace.file;
    uint64_t first = UINT64_MAX;
    for (uint32_t r = 0; r < run->roster.num_ranks; r++)
        if (run->trainers[r].from && run->trainers[r].from < first)
            first = run->trainers[r].from;
    if (file->began || first == UINT64_MAX)
        return;
    file->began = true;
    file->before = run_synchronous(run) ? run->plan.schedule.start : first - 1;
}

/* What a trainer that is gone has not sent is lost. Its last heartbeat is old;
 * in a synchronous run the others are as far as it was. */
static void look_at_removed(struct run *run) {
    struct trace_file *file = run->trace.file;
    uint64_t step = run_synchronous(run) ? run_step(run) : 0;
    for (uint32_t r = 0; r < run->roster.num_ranks; r++) {
        struct member *member = &file->members[r];
        uint64_t removed = run->roster.slots[r].removed;
        uint64_t clock = run->trainers[r].heartbeat.clock;
        bool sent = member->ended && member->incarnation == removed;
        if (removed != member->removed && !sent)
            member->lost |= (clock > step ? clock : step) >= file->steps.first;
        member->removed = removed;
    }
}

/* Of planned checkpoints nothing is heard before they are written. */
static void look_at_rounds(struct run *run) {
    struct trace_file *file = run->trace.file;
    uint64_t step = run_step(run);
    uint64_t end = step < file->steps.last ? step : file->steps.last;
    if (file->looked < file->steps.first)
        file->looked = file->steps.first - 1;
    while (run_synchronous(run) && file->looked < end)
        if (run_schedule_saves(&run->plan.schedule, ++file->looked))
            file->due = file->looked;
}

/* Are all steps over, and the checkpoints of them, whose records are to be in
 * the file? One that is skipped is not waited for long. */
static bool are_over(struct run *run, int64_t now) {
    struct trace_file *file = run->trace.file;
    const struct run_checkpoints *checkpoints = &run->checkpoints;
    if (!are_past(run, file->steps.last))
        return false;
    if (!file->past_since)
        file->past_since = now;
    bool saved = checkpoints->has_saved && checkpoints->saved >= file->due;
    return !snapshot_coordinator_is_saving(run) &&
           (!file->due || saved || now - file->past_since > MOST_WAIT);
}

static void request(struct run *run) {
    struct trace_file *file = run->trace.file;
    Capstan__TraceRequest request = CAPSTAN__TRACE_REQUEST__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    control.body_case = CAPSTAN__CONTROL__BODY_TRACE_REQUEST;
    control.trace_request = &request;
    file->requested = true;
    for (uint32_t i = 0; i < run->roster.count; i++)
        file->members[i].asked = run->roster.slots[i].incarnation;
    control_server_broadcast(run->control_server, CLUSTER_ROLES, &control);
}

/* Has every process sent what it has? One that joined after the request is past
 * the last step. */
static bool are_here(const struct run *run) {
    for (uint32_t i = 0; i < run->roster.count; i++) {
        const struct roster_slot *slot = &run->roster.slots[i];
        const struct member *member = &run->trace.file->members[i];
        bool ended = member->ended && member->incarnation == slot->incarnation;
        if (slot->state == ROSTER_HELD && slot->incarnation == member->asked &&
            !ended)
            return false;
    }
    return true;
}

static void begin_writing(struct run *run) {
    struct trace_file *file = run->trace.file;
    struct failure why;
    describe_processes(run);
    if (background_task_open(&file->task, write_trace, file, &why))
        end_writing(run, failure_code_status(why.code), &why);
}

/* True if it has ended. */
static bool poll_writing(struct run *run) {
    struct trace_file *file = run->trace.file;
    struct failure why;
    enum status status;
    if (!background_task_poll(file->task, &status, &why))
        return false;
    background_task_close(&file->task);
    end_writing(run, status, &why);
    return true;
}

void trace_file_step(struct run *run, int64_t now) {
    struct trace_file *file = run->trace.file;
    if (!file || file->written || run->phase < RUN_TRAINING)
        return;
    look_at_begin(run);
    look_at_removed(run);
    look_at_rounds(run);
    if (!file->task)
        add_checkpoint(run);
    if (file->task)
        poll_writing(run);
    else if (!file->requested && run->phase == RUN_TRAINING &&
             are_over(run, now))
        request(run);
    else if (file->requested && are_here(run))
        begin_writing(run);
}

static void report_writing(const struct run *run) {
    struct health_report *report = health_begin(run->health, time_now());
    if (!report)
        return;
    report->state = HEALTH_ENDING;
    report->run = run->id;
    snprintf(report->waiting_for, sizeof report->waiting_for,
             "the disk to take %.400s", run->trace.file->path);
    health_end(run->health);
}

static int64_t stop_limit(const struct run *run) {
    int64_t limit = time_from_seconds(run->job->timeouts.stop);
    return limit > MOST_WAIT ? limit : MOST_WAIT;
}

/* Time for which this process, or its whole machine, stands still is not the
 * disk's. */
static bool await_writing(struct run *run) {
    struct pollfd over = {background_task_descriptor(run->trace.file->task),
                          POLLIN, 0};
    for (int64_t left = stop_limit(run); left > 0; left -= SLICE_MS * TIME_MS) {
        report_writing(run);
        poll(&over, 1, SLICE_MS);
        if (poll_writing(run))
            return true;
    }
    return false;
}

/* The thread frees the file when its disk lets it go on. */
static void abandon_writing(struct run *run) {
    struct trace_file *file = run->trace.file;
    run->trace.file = NULL;
    log_error(run->log, "trace_not_written",
              "%s: its disk has not taken it within %lld s (timeouts.stop, at "
              "least 10); the run ends without it: give --trace-file a place "
              "on another disk, or trace fewer steps",
              file->path, (long long)(stop_limit(run) / TIME_S));
    background_task_abandon(&file->task, free_file);
}

bool trace_file_is_written(const struct run *run) {
    return run->trace.file && run->trace.file->written;
}

void trace_file_finish(struct run *run) {
    struct trace_file *file = run->trace.file;
    if (!file || file->written)
        return;
    if (!file->task) {
        if (!run->metrics.began)
            return;
        add_checkpoint(run);
        begin_writing(run);
    }
    if (file->task && !await_writing(run))
        abandon_writing(run);
    health_leave_loop(run->health, HEALTH_ENDING);
}
