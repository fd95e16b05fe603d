/* SPDX-License-Identifier: Apache-2.0 */
#include "chief/snapshot/buddies.h"

#include "chief/rewind.h"
#include "chief/run.h"
#include "chief/snapshot/checkpoint_commit.h"
#include "core/base/time.h"
#include "core/tensor/rule.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Where the job names no steps: copies are a TRAFFICth of what trainers send,
 * and at least each MOST_STEPS. */
enum { TRAFFIC = 20, LEAST_STEPS = 100, MOST_STEPS = 1000 };

static const int64_t LONG_WITHOUT = 10 * TIME_S;

enum status buddies_check(const struct run *run, struct failure *why) {
    uint32_t num_ps = run->roster.num_ps;
    if (!run->job->replicas || num_ps > 1)
        return STATUS_OK;
    return status_fail(why, FAILURE_JOB_UNFIT,
                       "strategy.replicas: found 1 in a run of %u ps; allowed "
                       "there: 0, as a ps keeps its copy in the memory of "
                       "another one",
                       num_ps);
}

static void clear_set(struct buddies_set *set) {
    free(set->snapshot.files);
    free(set->manifest);
    *set = (struct buddies_set){0};
}

void buddies_close(struct run *run) {
    for (int i = 0; i < BUDDIES_SETS; i++)
        clear_set(&run->buddies.sets[i]);
    run->buddies.ordered = 0;
}

void buddies_take_held(struct run *run, const struct roster_slot *slot,
                       const Capstan__Join *join) {
    struct buddies_held *held = &run->ps[slot->index].held;
    held->count = 0;
    for (size_t i = 0; i < join->n_copies && held->count < COPIES_MOST; i++) {
        held->list[held->count].step = join->copies[i]->step;
        held->list[held->count++].ps = join->copies[i]->ps;
    }
}

static bool has_part(const struct run *run, uint32_t ps, uint64_t step,
                     uint32_t part) {
    const struct buddies_held *held = &run->ps[ps].held;
    for (uint32_t i = 0; i < held->count; i++)
        if (held->list[i].step == step && held->list[i].ps == part)
            return true;
    return false;
}

/* The ps that has PART of STEP: that part's own, if it can. UINT32_MAX: none
 * has. */
static uint32_t find_part(const struct run *run, uint64_t step, uint32_t part) {
    if (has_part(run, part, step, part))
        return part;
    for (uint32_t i = 0; i < run->roster.num_ps; i++)
        if (has_part(run, i, step, part))
            return i;
    return UINT32_MAX;
}

uint32_t buddies_source(const struct run *run, uint32_t ps) {
    return find_part(run, run->plan.restored.step, ps);
}

/* Are the blocks of MANIFEST where the plan has them? */
static bool is_placed_so(const struct run *run,
                         const struct manifest *manifest) {
    if (manifest->num_files != run->plan.num_holders ||
        manifest->layout->num_blocks != run->plan.layout->num_blocks)
        return false;
    for (uint32_t b = 0; b < run->plan.layout->num_blocks; b++)
        if (manifest->block_file[b] != run->plan.ps_of_block[b])
            return false;
    return true;
}

static void forget_copy(struct rewind_copy *copy) {
    free(copy->manifest);
    copy->manifest = NULL;
    copy->step = 0;
}

enum status buddies_find_start(struct run *run, struct failure *why) {
    struct rewind_copy *copy = run->lineage ? &run->lineage->copy : NULL;
    struct manifest manifest;
    if (!copy || !copy->manifest)
        return STATUS_OK;
    if (run->plan.has_restored && run->plan.restored.step >= copy->step) {
        forget_copy(copy);
        return STATUS_OK;
    }
    enum status status = manifest_parse(&manifest, copy->manifest, why);
    if (status)
        return status_context(why, "the copy in memory");
    uint32_t lost = UINT32_MAX;
    for (uint32_t i = 0; i < manifest.num_files && lost == UINT32_MAX; i++)
        if (find_part(run, copy->step, i) == UINT32_MAX)
            lost = i;
    if (lost != UINT32_MAX || !is_placed_so(run, &manifest)) {
        log_warning(run->log, "copy_lost",
                    "the copy in memory of step %" PRIu64
                    " is not whole: no ps has the part of ps %u any more",
                    copy->step, lost);
        manifest_clear(&manifest);
        forget_copy(copy);
        return STATUS_OK;
    }
    manifest_clear(&run->plan.restored);
    run->plan.restored = manifest;
    run->plan.has_restored = run->plan.from_memory = true;
    run->plan.restore_folder[0] = 0;
    run->plan.layout->num_partitions = manifest.layout->num_partitions;
    run->checkpoints.has_base = false;
    log_info(run->log, "run_resumed",
             "resuming from the copy of step %" PRIu64
             " in the memory of the ps, epoch %" PRIu64,
             copy->step, manifest.epoch + 1);
    return STATUS_OK;
}

/* A copy is of weights and state; a trainer sends and receives as much as the
 * weights take in each step. */
uint64_t buddies_steps(const struct run *run) {
    const struct job *job = run->job;
    uint32_t tensors = 1 + rule_slots(&job->optimizer);
    uint64_t steps = (uint64_t)TRAFFIC * tensors / run->roster.num_ranks;
    if (!job->replicas || !run->lineage || run->plan.num_holders < 2)
        return 0;
    if (job->buddy_steps)
        return job->buddy_steps;
    return steps < LEAST_STEPS  ? LEAST_STEPS
           : steps > MOST_STEPS ? MOST_STEPS
                                : steps;
}

/* The number of ps from a ps to the one that has its part too: as many of them
 * as can be are on another host. */
static uint32_t distance(struct run *run) {
    uint32_t count = run->plan.num_holders, best = 1, most = 0;
    for (uint32_t d = 1; d < count; d++) {
        uint32_t apart = 0;
        for (uint32_t i = 0; i < count; i++)
            apart +=
                strcmp(roster_ps(&run->roster, i)->host,
                       roster_ps(&run->roster, (i + d) % count)->host) != 0;
        if (apart > most) {
            most = apart;
            best = d;
        }
    }
    return best;
}

static void send_order(struct run *run, uint32_t ps,
                       Capstan__BuddyOrder *order) {
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    order->complete = run->lineage->copy.step;
    control.body_case = CAPSTAN__CONTROL__BODY_BUDDY_ORDER;
    control.buddy_order = order;
    control_server_send(run->control_server, roster_ps(&run->roster, ps),
                        &control);
}

/* Each ps is to fetch the part of another one. Older sets are of no use. */
static void order(struct run *run, struct buddies_set *set) {
    uint32_t count = run->plan.num_holders, d = distance(run);
    for (int i = 0; i < BUDDIES_SETS; i++)
        if (run->buddies.sets[i].step < set->step)
            clear_set(&run->buddies.sets[i]);
    run->buddies.ordered = set->step;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t part = (i + count - d) % count;
        const struct shard_info *file = &set->snapshot.files[part];
        Capstan__BuddyOrder message = CAPSTAN__BUDDY_ORDER__INIT;
        message.step = set->step;
        message.ps = part;
        message.size = file->size;
        message.hash_low = file->hash[0];
        message.hash_high = file->hash[1];
        send_order(run, i, &message);
    }
}

/* The newest set that all ps have written. */
static void order_next(struct run *run) {
    struct buddies_set *newest = NULL;
    run->buddies.ordered = 0;
    for (int i = 0; i < BUDDIES_SETS; i++) {
        struct buddies_set *set = &run->buddies.sets[i];
        if (set->manifest && (!newest || set->step > newest->step))
            newest = set;
    }
    if (newest)
        order(run, newest);
}

static struct buddies_set *find_set(struct run *run, uint64_t step) {
    for (int i = 0; i < BUDDIES_SETS; i++)
        if (run->buddies.sets[i].step == step)
            return &run->buddies.sets[i];
    return NULL;
}

/* In the place of none, or of the oldest that is not ordered. NULL: STEP is
 * older than all, or there is no memory. */
static struct buddies_set *begin_set(struct run *run, uint64_t step) {
    struct buddies_set *place = NULL;
    uint32_t holders = run->plan.num_holders;
    size_t bytes =
        holders * sizeof(struct shard_info) +
        run->plan.layout->num_tables * sizeof(struct shard_rows_count);
    for (int i = 0; i < BUDDIES_SETS; i++) {
        struct buddies_set *set = &run->buddies.sets[i];
        if (set->step != run->buddies.ordered &&
            (!place || set->step < place->step))
            place = set;
        if (!set->step)
            place = set;
    }
    struct shard_info *files = calloc(1, bytes);
    if (!place || place->step > step || !files) {
        free(files);
        return NULL;
    }
    clear_set(place);
    place->step = step;
    place->snapshot = (struct run_snapshot){
        .id = step,
        .step = step,
        .files = files,
        .counts = (struct shard_rows_count *)(files + holders)};
    return place;
}

/* One that newer ones have overtaken is no loss. */
static void warn_of(struct run *run, uint64_t step, const char *problem) {
    if (run->buddies.is_warned ||
        time_now() - run->buddies.complete_at < LONG_WITHOUT)
        return;
    log_warning(run->log, "copy_failed",
                "there is no copy in memory of step %" PRIu64 ": %s", step,
                problem);
    run->buddies.is_warned = true;
}

static void drop_set(struct run *run, struct buddies_set *set,
                     const char *problem) {
    bool was_ordered = run->buddies.ordered == set->step;
    warn_of(run, set->step, problem);
    clear_set(set);
    if (was_ordered)
        order_next(run);
}

/* One that is on all ps already was restored, with its counts. */
static void complete(struct run *run, struct buddies_set *set) {
    struct rewind_copy *copy = &run->lineage->copy;
    uint64_t step = set->step;
    if (copy->step != step)
        rewind_keep_copy(run, step, set->manifest);
    else
        free(set->manifest);
    set->manifest = NULL;
    clear_set(set);
    run->buddies.is_warned = false;
    run->buddies.complete = step;
    run->buddies.complete_at = time_now();
    log_detail(run->log, "copy_complete",
               "the copy of step %" PRIu64 " is in the memory of two ps each",
               step);
    for (uint32_t i = 0; i < run->plan.num_holders; i++) {
        Capstan__BuddyOrder message = CAPSTAN__BUDDY_ORDER__INIT;
        send_order(run, i, &message);
    }
    order_next(run);
}

static void take_written(struct run *run, const struct roster_slot *slot,
                         const Capstan__SnapshotReport *part, uint64_t step) {
    struct buddies_set *set = find_set(run, step);
    if (!set && !(set = begin_set(run, step)))
        return;
    if (part->outcome != CAPSTAN__SNAPSHOT_REPORT__OUTCOME__WRITTEN) {
        drop_set(run, set, part->error);
        return;
    }
    snapshot_coordinator_record_file(run, &set->snapshot, slot, part);
    if (set->snapshot.failed) {
        drop_set(run, set, set->snapshot.problem);
        return;
    }
    if (++set->written < run->plan.num_holders)
        return;
    set->manifest = checkpoint_commit_text(run, &set->snapshot);
    if (!set->manifest)
        drop_set(run, set, "no memory for a manifest");
    else if (!run->buddies.ordered)
        order(run, set);
}

void buddies_receive(struct run *run, const struct roster_slot *slot,
                     const Capstan__BuddyReport *report) {
    if (!run->plan.schedule.buddy_steps || run->phase != RUN_TRAINING ||
        !run_is_holder(run, slot) || !report->step)
        return;
    if (!report->fetched) {
        if (report->part && report->step > run->lineage->copy.step)
            take_written(run, slot, report->part, report->step);
        return;
    }
    struct buddies_set *set = find_set(run, report->step);
    if (!set || report->step != run->buddies.ordered)
        return;
    if (*report->error)
        drop_set(run, set, report->error);
    else if (++set->fetched == run->plan.num_holders)
        complete(run, set);
}

bool buddies_due(struct run *run) {
    uint64_t every = run->plan.schedule.buddy_steps, step = run_step(run);
    if (!every || run_synchronous(run) || run->buddies.ordered ||
        step / every <= run->buddies.every_seen)
        return false;
    run->buddies.every_seen = step / every;
    return true;
}

void buddies_begin(struct run *run) {
    const struct manifest *manifest = &run->plan.restored;
    uint64_t every = run->plan.schedule.buddy_steps;
    run->buddies.complete_at = time_now();
    if (run->job->replicas && run->plan.num_holders < 2)
        log_warning(run->log, "copies_off",
                    "all weights are on one ps: no other one has a copy of "
                    "them in its memory (strategy.replicas)");
    if (!every)
        return;
    run->buddies.every_seen = run->plan.schedule.start / every;
    if (!run->plan.from_memory)
        return;
    struct buddies_set *set = begin_set(run, manifest->step);
    if (!set)
        return;
    memcpy(set->snapshot.files, manifest->files,
           manifest->num_files * sizeof *manifest->files);
    set->manifest = strdup(run->lineage->copy.manifest);
    if (set->manifest)
        order(run, set);
    else
        clear_set(set);
}
