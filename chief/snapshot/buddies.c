/* SPDX-License-Identifier: Apache-2.0 */
#include "chief/snapshot/buddies.h"

#include "chief/rewind.h"
#include "chief/run.h"
#include "chief/snapshot/checkpoint_commit.h"
#include "chief/snapshot/checkpoint_policy.h"
#include "core/base/time.h"
#include "core/store/checkpoint.h"
#include "core/tensor/rule.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
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
    if (!run->job->replicas || num_ps > 1 || rewind_is_second(run))
        return STATUS_OK;
    return status_fail(why, FAILURE_JOB_UNFIT,
                       "strategy.replicas: found 1 in a run of %u ps; allowed "
                       "there: 0, as a ps keeps its copy in the memory of "
                       "another one",
                       num_ps);
}

static void clear_set(struct buddies_set *set) {
    free(set->snapshot.files);
    free(set->parts);
    free(set->kept);
    *set = (struct buddies_set){0};
}

static void clear_base(struct buddies_base *base) {
    free(base->manifest);
    free(base->files);
    *base = (struct buddies_base){0};
}

void buddies_close(struct run *run) {
    for (int i = 0; i < BUDDIES_SETS; i++)
        clear_set(&run->buddies.sets[i]);
    clear_base(&run->buddies.base);
    run->buddies.ordered = 0;
}

struct buddies_set *buddies_find(struct run_buddies *buddies, uint64_t step) {
    assert(step);
    for (int i = 0; i < BUDDIES_SETS; i++)
        if (buddies->sets[i].step == step)
            return &buddies->sets[i];
    return NULL;
}

/* NULL: all are newer than STEP. */
static struct buddies_set *find_set_place(struct run_buddies *buddies,
                                          uint64_t step) {
    struct buddies_set *place = NULL;
    for (int i = 0; i < BUDDIES_SETS; i++) {
        struct buddies_set *set = &buddies->sets[i];
        if (!set->step)
            return set;
        if (set->step != buddies->ordered && set->step < step &&
            (!place || set->step < place->step))
            place = set;
    }
    return place;
}

struct buddies_set *buddies_begin(struct run_buddies *buddies, uint64_t step,
                                  uint32_t num_ps, uint32_t num_ranks,
                                  int64_t now) {
    struct buddies_set *place = find_set_place(buddies, step);
    struct buddies_part *parts = calloc(num_ps, sizeof *parts);
    bool *kept = calloc(num_ranks, sizeof *kept);
    if (!place || !parts || !kept) {
        free(parts);
        free(kept);
        return NULL;
    }
    clear_set(place);
    if (step > buddies->newest)
        buddies->newest = step;
    *place = (struct buddies_set){.step = step,
                                  .since = now,
                                  .num_ps = num_ps,
                                  .parts = parts,
                                  .kept = kept};
    return place;
}

static bool is_written(const struct buddies_set *set) {
    for (uint32_t i = 0; i < set->num_ps; i++)
        if (!set->parts[i].written)
            return false;
    return true;
}

bool buddies_is_due(struct run_buddies *buddies, uint64_t every,
                    uint64_t step) {
    if (step / every <= buddies->every_seen || step <= buddies->newest)
        return false;
    buddies->every_seen = step / every;
    return true;
}

bool buddies_is_on_two(const struct buddies_set *set) {
    for (uint32_t i = 0; i < set->num_ps; i++)
        if (!set->parts[i].fetched)
            return false;
    return true;
}

bool buddies_take_base(const struct run_buddies *buddies,
                       struct buddies_set *set, uint64_t base) {
    if (base)
        set->base = base;
    return !set->base || set->base == buddies->base.step;
}

/* A newer base has come since their parts were written. */
static void forget_without_base(struct run_buddies *buddies) {
    for (int i = 0; i < BUDDIES_SETS; i++)
        if (buddies->sets[i].base &&
            buddies->sets[i].base != buddies->base.step)
            buddies_forget(buddies, &buddies->sets[i]);
}

struct buddies_set *buddies_order(struct run_buddies *buddies, int64_t now) {
    struct buddies_set *newest = NULL;
    forget_without_base(buddies);
    for (int i = 0; i < BUDDIES_SETS && !buddies->ordered; i++) {
        struct buddies_set *set = &buddies->sets[i];
        if (set->step && is_written(set) &&
            (!newest || set->step > newest->step))
            newest = set;
    }
    if (!newest)
        return NULL;
    for (int i = 0; i < BUDDIES_SETS; i++)
        if (buddies->sets[i].step < newest->step)
            clear_set(&buddies->sets[i]);
    buddies->ordered = newest->step;
    newest->since = now;
    return newest;
}

void buddies_forget(struct run_buddies *buddies, struct buddies_set *set) {
    if (buddies->ordered == set->step)
        buddies->ordered = 0;
    clear_set(set);
}

bool buddies_are_chosen(uint64_t copy, uint32_t in_vain, bool has_saved,
                        uint64_t saved) {
    return !has_saved || (saved < copy && in_vain < TRIES);
}

/* Are the blocks and partitions of MANIFEST where the plan has them? */
static bool is_placed_so(const struct run *run,
                         const struct manifest *manifest) {
    uint32_t b = 0, count = layout_units(run->plan.layout);
    while (b < count && manifest->block_file[b] == run->plan.ps_of_block[b])
        b++;
    return b == count && manifest->num_files == run->plan.num_holders;
}

static void forget_copy(struct rewind_copy *copy) {
    free(copy->manifest);
    free(copy->base);
    copy->manifest = copy->base = NULL;
    copy->step = copy->base_step = 0;
}

/* Reads the manifest of COPY, and that of its base; the caller clears *OUT. */
static enum status read_copy(const struct rewind_copy *copy,
                             struct manifest *out, struct failure *why) {
    enum status status = manifest_parse(out, copy->manifest, why);
    if (!status && copy->base)
        status = manifest_parse_base(out, copy->base, why);
    if (!status && (out->is_delta != !!out->base ||
                    (out->base && out->base->num_files != out->num_files)))
        status = status_fail(why, FAILURE_BAD_MESSAGE,
                             "it is a delta, and its base is not known");
    return status;
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

/* The first part of the copy of MANIFEST that no ps has; the number of its
 * files: there is none. */
static uint32_t find_lost_part(const struct run *run,
                               const struct manifest *manifest) {
    uint32_t part = 0;
    while (part < manifest->num_files &&
           membership_find_copy(run, manifest, part) != UINT32_MAX)
        part++;
    return part;
}

static bool has_same_blocks(const struct run *run,
                            const struct manifest *manifest) {
    if (manifest->layout->num_blocks == run->plan.layout->num_blocks)
        return true;
    log_warning(run->log, "copy_lost",
                "the copy in memory of step %" PRIu64
                " is of no use: it is of other blocks",
                manifest->step);
    return false;
}

static bool is_whole(const struct run *run, const struct manifest *manifest) {
    uint32_t part = find_lost_part(run, manifest);
    if (part < manifest->num_files)
        log_warning(run->log, "copy_lost",
                    "the copy in memory of step %" PRIu64
                    " is not whole: no ps has the part of ps %u any more",
                    manifest->step, part);
    return part == manifest->num_files && has_same_blocks(run, manifest) &&
           is_kept_whole(run, manifest->step);
}

bool buddies_can_take_over(const struct run *run) {
    struct manifest manifest;
    struct failure why;
    if (!run->lineage || !run->lineage->copy.manifest)
        return false;
    bool is_there = !read_copy(&run->lineage->copy, &manifest, &why) &&
                    find_lost_part(run, &manifest) == manifest.num_files;
    manifest_clear(&manifest);
    return is_there;
}

/* A chief that returns has it from members, who keep the texts of others. */
static bool is_of_job(const struct run *run, const struct manifest *manifest) {
    struct failure why;
    if (!run->job->checkpoint.dir ||
        !checkpoint_policy_check(run, manifest, &why))
        return true;
    log_warning(run->log, "copy_lost",
                "the copy in memory of step %" PRIu64 " is of no use: %s",
                manifest->step, why.text);
    return false;
}

/* Can each ps read the checkpoint that the plan is to restore? Of the ps that
 * are left out the folder may be on another host. */
static bool can_be_read(const struct run *run) {
    const struct manifest *manifest = &run->plan.restored;
    uint32_t f = 0;
    while (f < manifest->num_files && !manifest->files[f].host[0])
        f++;
    return f == manifest->num_files || !run->roster.left_out;
}

enum status buddies_find_start(struct run *run, struct failure *why) {
    struct rewind_copy *copy = run->lineage ? &run->lineage->copy : NULL;
    struct manifest manifest;
    if (!copy || !copy->manifest)
        return STATUS_OK;
    if (!buddies_are_chosen(copy->step, run->lineage->in_vain,
                            run->plan.has_restored && can_be_read(run),
                            run->plan.restored.step)) {
        if (run->plan.restored.step < copy->step)
            log_warning(run->log, "copy_lost",
                        "the run has gone back to the copy in memory of step "
                        "%" PRIu64 " %d times without coming further",
                        copy->step, TRIES);
        forget_copy(copy);
        return STATUS_OK;
    }
    bool is_read = !read_copy(copy, &manifest, why);
    if (!is_read)
        log_warning(run->log, "copy_lost",
                    "the copy in memory of step %" PRIu64 " is of no use: %s",
                    copy->step, why->text);
    if (!is_read || !is_whole(run, &manifest) || !is_of_job(run, &manifest)) {
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

/* Fills in what ORDER says of copies that are complete. */
static void fill_complete(const struct run *run, Capstan__BuddyOrder *order) {
    const struct buddies_base *base = &run->buddies.base;
    order->complete = run->lineage->copy.step;
    order->complete_base = run->lineage->copy.base_step;
    order->whole = !base->step || base->is_old;
}

static void send_order(struct run *run, uint32_t ps,
                       Capstan__BuddyOrder *order) {
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    fill_complete(run, order);
    control.body_case = CAPSTAN__CONTROL__BODY_BUDDY_ORDER;
    control.buddy_order = order;
    control_server_send(run->control_server, roster_ps(&run->roster, ps),
                        &control);
}

static void order_base(const struct buddies_base *base, uint32_t part,
                       Capstan__BuddyOrder *order) {
    order->base_step = base->step;
    order->base_size = base->files[part].size;
    order->base_hash_low = base->files[part].hash[0];
    order->base_hash_high = base->files[part].hash[1];
}

/* Each ps is to fetch the part of another one. */
static void order_next(struct run *run) {
    const struct buddies_set *set = buddies_order(&run->buddies, time_now());
    uint32_t count = run->plan.num_holders, d = set ? distance(run) : 0;
    for (uint32_t i = 0; set && i < count; i++) {
        uint32_t part = (i + count - d) % count;
        const struct shard_info *file = &set->snapshot.files[part];
        Capstan__BuddyOrder message = CAPSTAN__BUDDY_ORDER__INIT;
        message.step = set->step;
        message.ps = part;
        message.size = file->size;
        message.hash_low = file->hash[0];
        message.hash_high = file->hash[1];
        if (set->base)
            order_base(&run->buddies.base, part, &message);
        send_order(run, i, &message);
    }
}

static struct buddies_set *begin_set(struct run *run, uint64_t step) {
    uint32_t holders = run->plan.num_holders;
    size_t bytes =
        holders * sizeof(struct shard_info) +
        run->plan.layout->num_tables * sizeof(struct shard_rows_count);
    struct shard_info *files = calloc(1, bytes);
    struct buddies_set *set =
        files ? buddies_begin(&run->buddies, step, holders,
                              run->roster.num_ranks, time_now())
              : NULL;
    if (!set) {
        free(files);
        return NULL;
    }
    set->snapshot = (struct run_snapshot){
        .id = step,
        .step = step,
        .files = files,
        .counts = (struct shard_rows_count *)(files + holders)};
    return set;
}

/* That of STEP, which may begin. NULL: it is of no use. */
static struct buddies_set *set_of(struct run *run, uint64_t step) {
    struct buddies_set *set = buddies_find(&run->buddies, step);
    return set ? set : begin_set(run, step);
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
    warn_of(run, set->step, problem);
    buddies_forget(&run->buddies, set);
    order_next(run);
}

static void give_up_by(struct run *run, struct buddies_set *set,
                       const struct roster_slot *slot, const char *error) {
    char name[64], problem[600];
    roster_name(slot, name, sizeof name);
    snprintf(problem, sizeof problem, "%s: %s", name, error);
    give_set_up(run, set, problem);
}

static void tell_complete(struct run *run) {
    Capstan__BuddyOrder order = CAPSTAN__BUDDY_ORDER__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    fill_complete(run, &order);
    control.body_case = CAPSTAN__CONTROL__BODY_BUDDY_ORDER;
    control.buddy_order = &order;
    kept_states_send(run, &control);
    order.manifest = run->lineage->copy.manifest;
    if (run->lineage->copy.base)
        order.base_manifest = run->lineage->copy.base;
    run_send_to_holders(run, &control);
}

/* Parameters, with their state, are in each copy. */
static uint64_t size_of_parameters(const struct run *run) {
    return run->plan.layout->elements * sizeof(float) *
           (1 + rule_slots(&run->job->optimizer));
}

/* What of a copy's FILES [COUNT] are rows of tables. */
static uint64_t size_of_rows(const struct run *run,
                             const struct shard_info *files, uint32_t count) {
    uint64_t bytes = 0, parameters = size_of_parameters(run);
    for (uint32_t f = 0; f < count; f++)
        bytes += files[f].size;
    return bytes > parameters ? bytes - parameters : 0;
}

/* Without memory there is none, and copies are whole. */
static void keep_base(struct run *run, uint64_t step,
                      const struct shard_info *files, uint32_t count,
                      const char *manifest) {
    struct buddies_base *base = &run->buddies.base;
    clear_base(base);
    base->manifest = strdup(manifest);
    base->files = malloc(count * sizeof *files);
    if (!base->manifest || !base->files) {
        clear_base(base);
        return;
    }
    memcpy(base->files, files, count * sizeof *files);
    base->row_bytes = size_of_rows(run, files, count);
    base->step = step;
}

/* SET is complete, with MANIFEST. Tables are not copied whole again until what
 * has changed is half as much; where they are less than the parameters a base
 * would not be worth its memory. */
static void choose_base(struct run *run, const struct buddies_set *set,
                        const char *manifest) {
    struct buddies_base *base = &run->buddies.base;
    const struct shard_info *files = set->snapshot.files;
    uint64_t rows = size_of_rows(run, files, set->num_ps);
    if (set->base)
        base->is_old |= 2 * rows > base->row_bytes;
    else if (run->plan.layout->num_tables && rows >= size_of_parameters(run))
        keep_base(run, set->step, files, set->num_ps, manifest);
    else
        clear_base(base);
}

/* Keeps SET, which is on all ps, as the copy that a run goes back to. False:
 * there is no memory for its manifest. */
static bool keep_copied(struct run *run, const struct buddies_set *set) {
    const struct buddies_base *base = &run->buddies.base;
    struct manifest_name name = {.step = set->base};
    if (set->base)
        name.hash = manifest_text_hash(base->manifest);
    char *text =
        checkpoint_commit_text(run, &set->snapshot, set->base ? &name : NULL);
    char *base_text = text && set->base ? strdup(base->manifest) : NULL;
    if (!text || (set->base && !base_text)) {
        free(text);
        return false;
    }
    rewind_keep_copy(run, set->step, text, set->base, base_text, set->kept);
    choose_base(run, set, text);
    return true;
}

/* One that is on all ps already was restored, with its counts. The manifest is
 * made now, as trainers have told of their epochs by then. */
static void end_copy(struct run *run, struct buddies_set *set) {
    uint64_t step = set->step, base = set->base;
    char since[64] = "";
    if (run->lineage->copy.step != step && !keep_copied(run, set)) {
        give_set_up(run, set, "no memory for a manifest");
        return;
    }
    if (base)
        snprintf(since, sizeof since, ": what has changed since step %" PRIu64,
                 base);
    buddies_forget(&run->buddies, set);
    run->buddies.is_warned = false;
    run->buddies.complete = step;
    run->buddies.complete_at = time_now();
    log_detail(run->log, "copy_complete",
               "the copy of step %" PRIu64 " is in the memory of two ps each%s",
               step, since);
    tell_complete(run);
    order_next(run);
}

/* Has RANK, if it takes part in the step, in memory what it keeps with it? */
static bool is_kept_by(const struct run *run, const struct buddies_set *set,
                       uint32_t rank) {
    const struct run_trainer *trainer = &run->trainers[rank];
    return !trainer->keeps || run->roster.slots[rank].state != ROSTER_HELD ||
           !trainer->from || trainer->from > set->step ||
           trainer->ended_early || set->kept[rank];
}

/* Has each trainer that takes part in the step in memory what it keeps? Those
 * that have gone back to it have. */
static bool is_kept_by_all(const struct run *run,
                           const struct buddies_set *set) {
    if (set->step == run->lineage->copy.step)
        return true;
    for (uint32_t r = 0; r < run->roster.num_ranks; r++)
        if (!is_kept_by(run, set, r))
            return false;
    return set->has_lead || !run->checkpoints.kept.needs_lead;
}

void buddies_receive_kept(struct run *run, const struct roster_slot *slot,
                          const Capstan__Kept *kept) {
    if (!run->plan.schedule.buddy_steps || run->phase != RUN_TRAINING ||
        kept->step <= run->lineage->copy.step)
        return;
    struct buddies_set *set = set_of(run, kept->step);
    if (!set)
        return;
    if (*kept->error) {
        give_up_by(run, set, slot, kept->error);
        return;
    }
    set->kept[slot->rank] = true;
    set->has_lead |= kept->lead;
}

static void take_written(struct run *run, const struct roster_slot *slot,
                         const Capstan__BuddyReport *report) {
    const Capstan__SnapshotReport *part = report->part;
    struct buddies_set *set = set_of(run, report->step);
    if (!set || set->parts[roster_place(&run->roster, slot)].written)
        return;
    if (part->outcome != CAPSTAN__SNAPSHOT_REPORT__OUTCOME__WRITTEN) {
        give_up_by(run, set, slot, part->error);
        return;
    }
    snapshot_coordinator_record_file(run, &set->snapshot, slot, part);
    if (set->snapshot.failed) {
        give_set_up(run, set, set->snapshot.problem);
        return;
    }
    if (!buddies_take_base(&run->buddies, set, report->base_step)) {
        give_set_up(run, set, "its base is not the newest one");
        send_order(run, roster_place(&run->roster, slot),
                   &(Capstan__BuddyOrder)CAPSTAN__BUDDY_ORDER__INIT);
        return;
    }
    set->parts[roster_place(&run->roster, slot)].written = true;
    order_next(run);
}

void buddies_receive(struct run *run, const struct roster_slot *slot,
                     const Capstan__BuddyReport *report) {
    if (!run->plan.schedule.buddy_steps || run->phase != RUN_TRAINING ||
        !run_is_holder(run, slot) || !report->step)
        return;
    if (!report->fetched) {
        if (report->part && report->step > run->lineage->copy.step)
            take_written(run, slot, report);
        return;
    }
    struct buddies_set *set = buddies_find(&run->buddies, report->step);
    if (!set || report->step != run->buddies.ordered)
        return;
    if (*report->error)
        give_up_by(run, set, slot, report->error);
    else
        set->parts[roster_place(&run->roster, slot)].fetched = true;
}

/* With staleness, where the ps count no rounds. */
static bool is_copy_due(struct run *run) {
    uint64_t every = run->plan.schedule.buddy_steps, step = run_step(run);
    return every && !run_synchronous(run) && run->metrics.began &&
           run->membership.view_sent && !run->shutdown.interrupted &&
           !run->buddies.ordered && !snapshot_coordinator_is_requesting(run) &&
           step < run->plan.schedule.total &&
           buddies_is_due(&run->buddies, every, step);
}

static void warn_without_copies(struct run *run) {
    const struct run_schedule *schedule = &run->plan.schedule;
    uint64_t every = schedule->buddy_steps;
    if (run->job->replicas && run->plan.num_holders < 2)
        log_warning(run->log, "copies_off",
                    "all weights are on one ps: no other one has a copy of "
                    "them in its memory (strategy.replicas)");
    else if (every && schedule->checkpoints && schedule->every_steps &&
             every % schedule->every_steps == 0)
        log_warning(run->log, "copies_off",
                    "each copy in memory (strategy.buddy_steps: %" PRIu64
                    ") would be of a step that has a checkpoint "
                    "(checkpoint.every_steps: %" PRIu64
                    "), which takes its place: no ps has a part of another one",
                    every, schedule->every_steps);
}

/* Training has begun: what it was restored from is to be on two ps again. */
static void begin_copies(struct run *run) {
    const struct manifest *manifest = &run->plan.restored;
    uint64_t every = run->plan.schedule.buddy_steps;
    run->buddies.has_begun = true;
    run->buddies.complete_at = time_now();
    warn_without_copies(run);
    if (!every && run->lineage)
        forget_copy(&run->lineage->copy); /* the ps have closed it */
    if (!every)
        return;
    run->buddies.every_seen = run->plan.schedule.start / every;
    if (!run->plan.from_memory || !is_placed_so(run, manifest))
        return; /* else its parts are of other ps */
    struct buddies_set *set = begin_set(run, manifest->step);
    if (!set)
        return;
    memcpy(set->snapshot.files, manifest->files,
           manifest->num_files * sizeof *manifest->files);
    if (manifest->base) {
        keep_base(run, manifest->base->step, manifest->base->files, set->num_ps,
                  run->lineage->copy.base);
        set->base = run->buddies.base.step;
        run->buddies.base.is_old = true; /* the ps do not know it any more */
    }
    if (manifest->base && !set->base) { /* no memory */
        buddies_forget(&run->buddies, set);
        return;
    }
    for (uint32_t i = 0; i < set->num_ps; i++)
        set->parts[i].written = true;
    order_next(run);
}

/* The first member without which SET is not whole; NULL: a trainer that has
 * what is alike on all ranks. */
static const struct roster_slot *find_lacking(struct run *run,
                                              const struct buddies_set *set) {
    bool ordered = set->step == run->buddies.ordered;
    for (uint32_t i = 0; i < set->num_ps; i++)
        if (!set->parts[i].written || (ordered && !set->parts[i].fetched))
            return roster_ps(&run->roster, i);
    for (uint32_t r = 0; r < run->roster.num_ranks; r++)
        if (!is_kept_by(run, set, r))
            return &run->roster.slots[r];
    return NULL;
}

/* Ps give a fetch up by themselves; a trainer may take long for a step. */
static void end_late_sets(struct run *run, int64_t now) {
    const struct job_timeouts *timeouts = &run->job->timeouts;
    double limit = timeouts->step + timeouts->peer;
    char name[64] = "the trainer that has what is alike on all ranks",
         problem[256];
    for (int i = 0; i < BUDDIES_SETS; i++) {
        struct buddies_set *set = &run->buddies.sets[i];
        if (!set->step || now - set->since <= time_from_seconds(limit))
            continue;
        const struct roster_slot *slot = find_lacking(run, set);
        if (!slot && set->step != run->buddies.ordered)
            continue; /* it waits for the one that is ordered */
        if (slot)
            roster_name(slot, name, sizeof name);
        snprintf(problem, sizeof problem,
                 "%s has not told within %g s (timeouts.step and "
                 "timeouts.peer) that it has its part",
                 name, limit);
        give_set_up(run, set, problem);
    }
}

/* Waits for the metrics of all steps before it, as a checkpoint does, for at
 * most a second. */
static void check_ordered(struct run *run, int64_t now,
                          bool (*write_metrics)(struct run *, uint64_t)) {
    struct buddies_set *set =
        run->buddies.ordered ? buddies_find(&run->buddies, run->buddies.ordered)
                             : NULL;
    if (!set || !buddies_is_on_two(set) || !is_kept_by_all(run, set))
        return;
    set->whole_at = set->whole_at ? set->whole_at : now;
    if (write_metrics(run, set->step) || now - set->whole_at > TIME_S)
        end_copy(run, set);
}

void buddies_step(struct run *run,
                  bool (*write_metrics)(struct run *, uint64_t)) {
    int64_t now = time_now();
    if (run->phase != RUN_TRAINING)
        return;
    check_ordered(run, now, write_metrics);
    end_late_sets(run, now);
    if (!run->buddies.has_begun)
        begin_copies(run);
    if (is_copy_due(run))
        snapshot_coordinator_request(
            run, (struct snapshot_reason){.copy = true}, false);
}
