/* SPDX-License-Identifier: Apache-2.0 */
/* Queries on a run that all parts of the chief share, and the decision to stop
 * it. Only the first stop counts. */
#include "chief/run.h"

#include "chief/rewind.h"
#include "core/base/time.h"
#include "core/store/checkpoint_reader.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

bool run_synchronous(const struct run *run) {
    return run->job->staleness == 0;
}

bool run_tests_own_weights(const struct run *run) {
    return run_synchronous(run) && !run->job->backup_workers;
}

bool run_is_endless(const struct run *run) {
    return run->plan.schedule.total == RUN_SCHEDULE_ENDLESS;
}

bool run_tests_at_end(const struct run *run) {
    return run->plan.test_samples &&
           (!run_tests_own_weights(run) || !run->evaluations.evaluated ||
            run_evaluations_missing(run));
}

bool run_tests_again(const struct run *run) {
    return run->metrics.points.start >= run->plan.schedule.total &&
           run_tests_at_end(run);
}

static bool in_rounds(const struct run *run, uint32_t rank) {
    const struct run_trainer *trainer = &run->trainers[rank];
    return run->roster.slots[rank].state == ROSTER_HELD && trainer->in_view &&
           !trainer->ended_early;
}

uint32_t run_spare(const struct run *run) {
    uint32_t needed = run->roster.num_ranks - run->job->backup_workers;
    uint32_t count = 0;
    for (uint32_t r = 0; r < run->roster.num_ranks; r++)
        count += in_rounds(run, r);
    return count > needed ? count - needed : 0;
}

/* The lowest clock of a trainer from LEAST on, and how many have it. */
static uint64_t lowest_clock(const struct run *run, uint64_t least,
                             uint32_t *count) {
    uint64_t lowest = UINT64_MAX;
    for (uint32_t r = 0; r < run->roster.num_ranks; r++) {
        uint64_t clock = run->trainers[r].heartbeat.clock;
        if (!in_rounds(run, r) || clock < least || clock > lowest)
            continue;
        *count = clock == lowest ? *count + 1 : 1;
        lowest = clock;
    }
    return lowest;
}

static uint64_t slowest_clock(const struct run *run) {
    uint32_t spare = run_spare(run), count = 0;
    uint64_t step = lowest_clock(run, 0, &count);
    while (step < UINT64_MAX && spare >= count) {
        spare -= count;
        step = lowest_clock(run, step + 1, &count);
    }
    return step;
}

/* Synchronous: the last round that the live trainers which rounds await have
 * finished. With
 * staleness: the highest global step that any trainer has read from the ps that
 * counts it. */
uint64_t run_step(const struct run *run) {
    uint64_t step = run->metrics.reported;
    if (run_synchronous(run)) {
        step = slowest_clock(run);
        if (step == UINT64_MAX)
            step = run->metrics.reached;
    } else {
        for (uint32_t r = 0; r < run->roster.num_ranks; r++)
            if (run->trainers[r].heartbeat.global_step > step)
                step = run->trainers[r].heartbeat.global_step;
    }
    return step > run->plan.schedule.start ? step : run->plan.schedule.start;
}

/* The step of a run that fails. The other trainers may have reported nothing
 * for half a second; in a synchronous run they have contributed to every round
 * but the last one that any trainer has finished. */
static uint64_t failed_step(const struct run *run) {
    bool ending = run->phase >= RUN_STOPPING; /* and they leave one by one */
    uint64_t step = ending ? run->end_step : run_step(run);
    for (uint32_t r = 0; run_synchronous(run) && r < run->roster.num_ranks;
         r++) {
        uint64_t clock = run->trainers[r].heartbeat.clock;
        if (run->trainers[r].in_view && clock > step + 1)
            step = clock - 1;
    }
    return step;
}

void run_find_end_step(struct run *run) {
    bool failed = run->code && !run->shutdown.interrupted;
    if (run->phase >= RUN_STOPPING && !failed)
        return; /* what was done while all were ending is not counted */
    uint64_t step = failed ? failed_step(run) : run_step(run);
    if (run->checkpoints.has_saved && run->checkpoints.saved > step)
        step = run->checkpoints.saved;
    if (run->buddies.complete > step)
        step = run->buddies.complete;
    if (step > run->end_step)
        run->end_step = step;
}

bool run_trainers_keep_weights(const struct run *run) {
    return run->job->optimizer.type == OPTIMIZER_NONE && !run->allreduce;
}

uint32_t run_num_shares(const struct run *run) {
    return run->roster.num_ranks - run->num_beyond;
}

bool run_is_beyond(const struct run *run, uint32_t rank) {
    return rank >= run_num_shares(run);
}

uint32_t run_count_joined(const struct run *run) {
    uint32_t joined = 0;
    for (uint32_t r = run_num_shares(run); r < run->roster.num_ranks; r++)
        joined += run->trainers[r].from || run_counts(run, r).samples;
    return joined;
}

uint32_t run_count_trainers(const struct run *run) {
    return run_num_shares(run) + run_count_joined(run);
}

bool run_is_live(const struct run *run, uint32_t rank) {
    return run->roster.slots[rank].state == ROSTER_HELD &&
           run->trainers[rank].from && !run->trainers[rank].finished;
}

uint32_t run_count_live(const struct run *run) {
    uint32_t live = 0;
    for (uint32_t r = 0; r < run->roster.num_ranks; r++)
        live += run_is_live(run, r);
    return live;
}

void run_enter_phase(struct run *run, enum run_phase phase) {
    static const char *const names[] = {
        [RUN_JOINING] = "joining",   [RUN_READYING] = "readying",
        [RUN_TRAINING] = "training", [RUN_FINISHING] = "finishing",
        [RUN_STOPPING] = "stopping", [RUN_OVER] = "its end",
    };
    run->phase = phase;
    run->phase_since = time_now();
    if (phase == RUN_TRAINING)
        run->training_since = run->phase_since;
    health_note(run->health, EVENT_PHASE, 0, names[phase], EVENT_NO_INDEX);
}

enum failure_code run_code_of_members(enum failure_code code) {
    return failure_code_is_signal(code) ? FAILURE_RUN_INTERRUPTED : code;
}

const char *run_consequence_of_loss(const struct run *run) {
    return run->allreduce ? ", and all-reduce cannot go on without it"
                          : ", and its weights with it";
}

static void stop(struct run *run, enum failure_code code, bool resumable,
                 const char *format, va_list arguments) {
    if (run->phase >= RUN_STOPPING)
        return;
    vsnprintf(run->text, sizeof run->text, format, arguments);
    run->resumable = resumable;
    run->code = code;
    run_find_end_step(run);
    run->training_stopped = run->phase == RUN_TRAINING;
    run_enter_phase(run, RUN_STOPPING);
}

void run_stop(struct run *run, enum failure_code code, const char *format,
              ...) {
    va_list arguments;
    va_start(arguments, format);
    stop(run, code, false, format, arguments);
    va_end(arguments);
}

void run_stop_resumable(struct run *run, enum failure_code code,
                        const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    stop(run, code, true, format, arguments);
    va_end(arguments);
}

void run_stop_unexported(struct run *run, bool saved) {
    run_stop(run, FAILURE_EXPORT_NOT_WRITTEN,
             "the weights were not exported to %s: %s%s%s",
             run->job->export_path, run->export_problem,
             saved ? "; `capstan ckpt export` writes them from " : "",
             saved ? run->job->checkpoint.dir : "");
}

double run_holder_count(const struct run *run) {
    return run->plan.num_holders ? run->plan.num_holders : run->roster.num_ps;
}

bool run_is_holder(const struct run *run, const struct roster_slot *slot) {
    if (run->allreduce)
        return slot->rank < run->plan.num_holders;
    return slot->role == CLUSTER_PS &&
           roster_place(&run->roster, slot) < run->plan.num_holders;
}

struct roster_slot *run_holder(struct run *run, uint32_t index) {
    return run->allreduce ? &run->roster.slots[0]
                          : roster_ps(&run->roster, index);
}

void run_holder_address(struct run *run, uint32_t index, char *text,
                        size_t size) {
    const char *address = run_holder(run, index)->address;
    const char *colon = strrchr(address, ':');
    if (run->allreduce && colon)
        snprintf(text, size, "%.*s:%u", (int)(colon - address), address,
                 run_allreduce_holder(run)->port);
    else
        snprintf(text, size, "%s", address);
}

struct run_ps *run_ps_of(struct run *run, const struct roster_slot *slot) {
    return &run->ps[roster_place(&run->roster, slot)];
}

struct run_ps *run_allreduce_holder(struct run *run) {
    return &run->ps[run->roster.num_ps];
}

void run_send_to_holders(struct run *run, Capstan__Control *control) {
    if (run->allreduce)
        control_server_send(run->control_server, run_holder(run, 0), control);
    else
        control_server_broadcast(run->control_server, CLUSTER_PS, control);
}

uint32_t run_step_replicas(const struct run *run) {
    return run_synchronous(run) ? run->plan.num_replicas
                                : run->trainers[0].replicas;
}

uint64_t run_share_samples(const struct run *run, uint64_t batch,
                           uint64_t batches) {
    uint64_t all = run->plan.share_samples, read = 0;
    if (batch >= batches)
        return all;
    if (!run_synchronous(run))
        return batch * (all / batches) + batch * (all % batches) / batches;
    for (uint32_t r = 0; r < run->roster.num_ranks; r++) {
        const struct run_trainer *trainer = &run->trainers[r];
        uint64_t full = batch * run->job->micro_batch * trainer->replicas;
        read += full < trainer->share_samples ? full : trainer->share_samples;
    }
    return read;
}

/* Those of a caller's model are counted by the trainers: up to now, not up to
 * STEP. Counts whole epochs, then micro batches of the next one. The count is
 * exact for this number of replicas and this batch size, so that a resumed run
 * continues at the same sample. With staleness nobody knows which trainer
 * pushed: each batch of an epoch then counts as much as the others. With
 * steps_per_epoch an epoch does not end at a sample boundary: every sample read
 * counts. */
uint64_t run_samples(const struct run *run, uint64_t step) {
    const struct run_schedule *run_schedule = &run->plan.schedule;
    if (run->job->model.type == JOB_EXTERNAL)
        return (run->plan.has_restored ? run->plan.restored.samples : 0) +
               run_total(run).samples + run->checkpoints.uncounted;
    uint64_t batches =
        (step - run_schedule->start + run_schedule->start_batch) *
        run_schedule->accumulation;
    uint64_t each = (uint64_t)run->job->micro_batch * run_step_replicas(run);
    uint64_t into = batches % run_schedule->epoch_batches * each;
    if (run->plan.share_samples && !run->job->steps_per_epoch)
        return batches / run_schedule->epoch_batches * run->plan.share_samples +
               run_share_samples(run, batches % run_schedule->epoch_batches,
                                 run_schedule->epoch_batches);
    if (run->job->steps_per_epoch || !run->plan.train_samples)
        return batches * each;
    return batches / run_schedule->epoch_batches * run->plan.train_samples +
           (into < run->plan.train_samples ? into : run->plan.train_samples);
}

uint64_t run_table_count(const struct run *run, enum run_table_count count,
                         uint32_t table) {
    uint32_t holders = run->roster.num_ps + run->allreduce; /* and rank 0 */
    uint64_t sum = 0;
    for (uint32_t i = 0; i < holders; i++)
        if (run->ps[i].table_counts)
            sum +=
                run->ps[i]
                    .table_counts[count * run->plan.layout->num_tables + table];
    return sum;
}

uint64_t run_table_rows(const struct run *run, uint32_t table) {
    return run_table_count(run, RUN_TABLE_ROWS, table);
}

double run_row_bytes(const struct run *run) {
    uint64_t bytes = 0, steps = 0;
    for (uint32_t r = 0; r < run->roster.num_ranks; r++) {
        const struct run_trainer *trainer = &run->trainers[r];
        if (trainer->heartbeat.clock < trainer->from ||
            !trainer->heartbeat.row_bytes)
            continue; /* it has not told */
        bytes += trainer->heartbeat.row_bytes;
        steps += trainer->heartbeat.clock - trainer->from + 1;
    }
    return steps ? (double)bytes / (double)steps : 0;
}

const struct optimizer *run_table_optimizer(const struct run *run,
                                            const struct table *table) {
    return table->optimizer
               ? &run->plan.table_groups[table->optimizer - 1].optimizer
               : &run->job->optimizer;
}

struct run_point run_total(const struct run *run) {
    struct run_point point = {0};
    for (uint32_t r = 0; r < run->roster.num_ranks; r++) {
        struct run_counts counts = run_counts(run, r);
        double seconds = run->trainers[r].heartbeat.training_s;
        point.loss += counts.loss;
        point.samples += counts.samples;
        if (seconds > point.seconds)
            point.seconds = seconds;
    }
    return point;
}

struct run_counts run_counts(const struct run *run, uint32_t rank) {
    const struct run_counts *past = &run->trainers[rank].past;
    const Capstan__Heartbeat *own = &run->trainers[rank].heartbeat;
    return (struct run_counts){.loss = past->loss + own->loss_sum,
                               .samples = past->samples + own->samples,
                               .bad_lines = past->bad_lines + own->bad_lines,
                               .late = past->late + own->late,
                               .missed = past->missed + own->missed};
}

uint64_t run_bad_lines(const struct run *run) {
    uint64_t sum = 0;
    for (uint32_t r = 0; r < run->roster.num_ranks; r++)
        sum += run_counts(run, r).bad_lines;
    return sum;
}

bool run_all_bad_lines(const struct run *run) {
    return !run->plan.schedule.start && run_bad_lines(run) &&
           !run_total(run).samples;
}

bool run_evaluations_pending(const struct run *run) {
    for (uint32_t i = 0; i < run->evaluations.count; i++)
        if (run->evaluations.items[i].open)
            return true;
    return false;
}

bool run_evaluations_missing(const struct run *run) {
    return run->evaluations.incomplete > run->evaluations.evaluated;
}

bool run_awaits_devices(const struct run *run, uint32_t rank) {
    const struct visible_devices *visible_devices =
        &run->trainers[rank].visible_devices;
    return visible_devices->reported && !visible_devices->answered &&
           visible_devices->count;
}

void run_absence_end(struct run *run, uint32_t rank) {
    struct run_absence *absence = &run->trainers[rank].absence;
    uint64_t step =
        run_synchronous(run) ? run->trainers[rank].from - 1 : run_step(run);
    if (absence->is_gone && step > absence->since)
        absence->steps += step - absence->since;
    absence->is_gone = false;
}

/* The share follows from the replicas, as in the samplers. */
static uint64_t share_of(const struct run *run, uint32_t rank,
                         uint64_t samples) {
    return samples * run->trainers[rank].replicas / run->plan.num_replicas;
}

struct run_untrained run_untrained_by(const struct run *run, uint32_t rank,
                                      uint64_t step) {
    const struct run_absence *absence = &run->trainers[rank].absence;
    struct run_untrained untrained = {.steps = absence->steps};
    uint64_t start = run->plan.schedule.start;
    if (absence->is_gone && step > absence->since)
        untrained.steps += step - absence->since;
    if (untrained.steps && run->job->model.type != JOB_EXTERNAL)
        untrained.samples = share_of(run, rank,
                                     run_samples(run, start + untrained.steps) -
                                         run_samples(run, start));
    return untrained;
}

/* Does a ps itself find its shard damaged, and is started again then? */
static bool is_read_by_ps(const struct run *run) {
    const struct rewind_lineage *lineage = run->lineage;
    if (!lineage || !lineage->count || lineage->in_vain ||
        lineage->lost == REWIND_CHIEF || run->allreduce || run->starts_once)
        return false;
    for (uint32_t i = 0; i < REWIND_MAX_PS; i++)
        if (lineage->ps[i].is_last)
            return false;
    return true;
}

enum status run_newest_checkpoint(const struct run *run, struct manifest *out,
                                  bool *found, struct failure *why) {
    const char *dir = run->job->checkpoint.dir;
    const struct rewind_lineage *lineage = run->lineage;
    if (is_read_by_ps(run)) {
        enum status status =
            checkpoint_reader_newest_sized(dir, out, found, run->log, why);
        bool drops_copy = !status && *found && lineage->copy.manifest &&
                          lineage->copy.step <= out->step;
        if (!drops_copy)
            return status;
        manifest_clear(out);
    }
    return checkpoint_reader_newest(dir, CHECKPOINT_READER_ANY, out, found,
                                    run->log, why);
}
