/* SPDX-License-Identifier: Apache-2.0 */
#include "chief/snapshot/buddies.h"

#include "chief/rewind.h"
#include "chief/run.h"
#include "chief/snapshot/checkpoint_commit.h"
#include "core/base/time.h"
#include "core/store/checkpoint.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const int64_t LONG_WITHOUT = 10 * TIME_S;

enum { TRIES = 3 /* of going back to a copy, where there is a checkpoint */ };

enum status buddies_check(const struct run *run, struct failure *why) {
    uint32_t num_ps = run->roster.num_ps;
    bool external = run->job->model.type == JOB_EXTERNAL;
    if (run->job->replicas && external && run->job->staleness)
        return status_fail(why, FAILURE_JOB_UNFIT,
                           "strategy.replicas: found 1 with strategy.staleness "
                           "and a caller's model; allowed there: 0");
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
    free(set->kept);
    *set = (struct buddies_set){0};
}

void buddies_close(struct run *run) {
    for (int i = 0; i < BUDDIES_SETS; i++)
        clear_set(&run->buddies.sets[i]);
    run->buddies.ordered = 0;
}

/* Are the blocks of MANIFEST where the plan has them? Partitions follow from
 * the number of ps. */
static bool is_placed_so(const struct run *run,
                         const struct manifest *manifest) {
    uint32_t b = 0, count = run->plan.layout->num_blocks;
    if (manifest->layout->num_blocks == count)
        while (b < count && manifest->block_file[b] == run->plan.ps_of_block[b])
            b++;
    if (b == count)
        return true;
    log_warning(run->log, "copy_lost",
                "the copy in memory of step %" PRIu64
                " is of no use: the plan has its blocks on other ps",
                manifest->step);
    return false;
}

static void forget_copy(struct rewind_copy *copy) {
    free(copy->manifest);
    copy->manifest = NULL;
    copy->step = 0;
}

/* Has each rank that kept something with STEP it still? */
static bool is_kept_whole(const struct run *run, uint64_t step) {
    uint32_t r = 0;
    char name[64];
    while (r < run->roster.num_ranks &&
           (!run->lineage->copy.kept[r] || membership_has_kept(run, step, r)))
        r++;
    if (r == run->roster.num_ranks)
        return true;
    roster_name(&run->roster.slots[r], name, sizeof name);
    log_warning(run->log, "copy_lost",
                "the copy in memory of step %" PRIu64
                " is not whole: what %s kept with it is gone",
                step, name);
    return false;
}

/* Has each part of the copy of MANIFEST a place, where the plan can use it? */
static bool is_whole(const struct run *run, const struct manifest *manifest) {
    uint32_t part = 0;
    while (part < manifest->num_files &&
           membership_find_copy(run, manifest->step, part) != UINT32_MAX)
        part++;
    if (part < manifest->num_files)
        log_warning(run->log, "copy_lost",
                    "the copy in memory of step %" PRIu64
                    " is not whole: no ps has the part of ps %u any more",
                    manifest->step, part);
    return part == manifest->num_files && is_placed_so(run, manifest) &&
           is_kept_whole(run, manifest->step);
}

enum status buddies_find_start(struct run *run, struct failure *why) {
    struct rewind_copy *copy = run->lineage ? &run->lineage->copy : NULL;
    struct manifest manifest;
    if (!copy || !copy->manifest)
        return STATUS_OK;
    bool fails = run->lineage->in_vain >= TRIES && run->plan.has_restored;
    if (fails)
        log_warning(run->log, "copy_lost",
                    "the run has gone back to the copy in memory of step "
                    "%" PRIu64 " %d times without coming further",
                    copy->step, TRIES);
    if (fails ||
        (run->plan.has_restored && run->plan.restored.step >= copy->step)) {
        forget_copy(copy);
        return STATUS_OK;
    }
    enum status status = manifest_parse(&manifest, copy->manifest, why);
    if (status)
        return status_context(why, "the copy in memory");
    if (!is_whole(run, &manifest)) {
        manifest_clear(&manifest);
        forget_copy(copy);
        if (run->job->model.type == JOB_EXTERNAL && !run->plan.has_restored)
            return status_fail(why, FAILURE_PEER_LOST,
                               "there is neither a whole copy in memory nor a "
                               "checkpoint, and the trainers no longer have "
                               "the values of the start: start all again");
        return STATUS_OK;
    }
    manifest_clear(&run->plan.restored);
    run->plan.restored = manifest;
    run->plan.has_restored = run->plan.from_memory = true;
    run->plan.restore_folder[0] = 0;
    run->plan.layout->num_partitions = manifest.layout->num_partitions;
    run->checkpoints.has_base = false;
    size_t moved;
    return run->job->checkpoint.dir
               ? checkpoint_set_aside(run->job->checkpoint.dir, copy->step + 1,
                                      run->id, &moved, why)
               : STATUS_OK;
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
    run->buddies.ordered_at = time_now();
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
        if (set->step && set->written == run->plan.num_holders &&
            (!newest || set->step > newest->step))
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
    bool *kept = calloc(run->roster.num_ranks, sizeof *kept);
    if (!place || place->step > step || !files || !kept) {
        free(files);
        free(kept);
        return NULL;
    }
    clear_set(place);
    place->step = step;
    place->kept = kept;
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

static void give_set_up(struct run *run, struct buddies_set *set,
                        const char *problem) {
    bool was_ordered = run->buddies.ordered == set->step;
    warn_of(run, set->step, problem);
    clear_set(set);
    if (was_ordered)
        order_next(run);
}

static void tell_complete(struct run *run) {
    Capstan__BuddyOrder order = CAPSTAN__BUDDY_ORDER__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    order.complete = run->lineage->copy.step;
    control.body_case = CAPSTAN__CONTROL__BODY_BUDDY_ORDER;
    control.buddy_order = &order;
    run_send_to_holders(run, &control);
    kept_states_send(run, &control);
}

/* One that is on all ps already was restored, with its counts. The manifest is
 * made now, as trainers have told of their epochs by then. */
static void end_copy(struct run *run, struct buddies_set *set) {
    uint64_t step = set->step;
    if (run->lineage->copy.step != step) {
        char *manifest = checkpoint_commit_text(run, &set->snapshot);
        if (!manifest) {
            give_set_up(run, set, "no memory for a manifest");
            return;
        }
        rewind_keep_copy(run, step, manifest, set->kept);
    }
    clear_set(set);
    run->buddies.is_warned = false;
    run->buddies.complete = step;
    run->buddies.complete_at = time_now();
    log_detail(run->log, "copy_complete",
               "the copy of step %" PRIu64 " is in the memory of two ps each",
               step);
    tell_complete(run);
    order_next(run);
}

/* Has each trainer that takes part in the step in memory what it keeps? Those
 * that have gone back to it have. */
static bool is_kept_by_all(const struct run *run,
                           const struct buddies_set *set) {
    if (set->step == run->lineage->copy.step)
        return true;
    for (uint32_t r = 0; r < run->roster.num_ranks; r++) {
        const struct run_trainer *trainer = &run->trainers[r];
        if (trainer->keeps && run->roster.slots[r].state == ROSTER_HELD &&
            trainer->from && trainer->from <= set->step &&
            !trainer->ended_early && !set->kept[r])
            return false;
    }
    return set->has_lead || !run->checkpoints.kept.needs_lead;
}

void buddies_receive_kept(struct run *run, const struct roster_slot *slot,
                          const Capstan__Kept *kept) {
    if (!run->plan.schedule.buddy_steps || run->phase != RUN_TRAINING ||
        kept->step <= run->lineage->copy.step)
        return;
    struct buddies_set *set = find_set(run, kept->step);
    if (!set && !(set = begin_set(run, kept->step)))
        return;
    if (*kept->error) {
        give_set_up(run, set, kept->error);
        return;
    }
    set->kept[slot->rank] = true;
    set->has_lead |= kept->lead;
}

static void take_written(struct run *run, const struct roster_slot *slot,
                         const Capstan__SnapshotReport *part, uint64_t step) {
    struct buddies_set *set = find_set(run, step);
    if (!set && !(set = begin_set(run, step)))
        return;
    if (set->written == run->plan.num_holders)
        return; /* with staleness: it was taken twice */
    if (part->outcome != CAPSTAN__SNAPSHOT_REPORT__OUTCOME__WRITTEN) {
        give_set_up(run, set, part->error);
        return;
    }
    snapshot_coordinator_record_file(run, &set->snapshot, slot, part);
    if (set->snapshot.failed) {
        give_set_up(run, set, set->snapshot.problem);
        return;
    }
    if (++set->written == run->plan.num_holders && !run->buddies.ordered)
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
        give_set_up(run, set, report->error);
    else
        set->fetched++;
}

/* With staleness, where the ps count no rounds. */
static bool is_copy_due(struct run *run) {
    uint64_t every = run->plan.schedule.buddy_steps, step = run_step(run);
    if (!every || run_synchronous(run) || !run->metrics.began ||
        !run->membership.view_sent || run->shutdown.interrupted ||
        run->buddies.ordered || snapshot_coordinator_is_requesting(run) ||
        step / every <= run->buddies.every_seen ||
        step >= run->plan.schedule.total)
        return false;
    run->buddies.every_seen = step / every;
    return true;
}

/* Training has begun: what it was restored from is to be on two ps again. */
static void begin_copies(struct run *run) {
    const struct manifest *manifest = &run->plan.restored;
    uint64_t every = run->plan.schedule.buddy_steps;
    run->buddies.has_begun = true;
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
    set->written = run->plan.num_holders;
    order(run, set);
}

/* Waits for the metrics of all steps before it, as a checkpoint does, for at
 * most a second. Ps give a fetch up by themselves; a trainer may take long for
 * a step. */
static void check_ordered(struct run *run,
                          bool (*write_metrics)(struct run *, uint64_t)) {
    const struct job_timeouts *timeouts = &run->job->timeouts;
    struct buddies_set *set = find_set(run, run->buddies.ordered);
    int64_t now = time_now();
    if (!run->buddies.ordered || !set)
        return;
    if (set->fetched == run->plan.num_holders && is_kept_by_all(run, set)) {
        set->whole_at = set->whole_at ? set->whole_at : now;
        if (write_metrics(run, set->step) || now - set->whole_at > TIME_S)
            end_copy(run, set);
    } else if (now - run->buddies.ordered_at >
               time_from_seconds(timeouts->step + timeouts->peer))
        give_set_up(run, set,
                    "a ps or a trainer has not told within timeouts.step and "
                    "timeouts.peer that it has its part");
}

void buddies_step(struct run *run,
                  bool (*write_metrics)(struct run *, uint64_t)) {
    if (run->phase != RUN_TRAINING)
        return;
    check_ordered(run, write_metrics);
    if (!run->buddies.has_begun)
        begin_copies(run);
    if (is_copy_due(run))
        snapshot_coordinator_request(
            run, (struct snapshot_reason){.copy = true}, false);
}
