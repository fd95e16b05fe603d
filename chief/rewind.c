/* SPDX-License-Identifier: Apache-2.0 */
#include "chief/rewind.h"

#include "chief/last_export.h"
#include "chief/run.h"
#include "chief/snapshot/kept_states.h"
#include "chief/take_over.h"
#include "core/base/time.h"
#include "core/store/checkpoint.h"
#include "core/store/checkpoint_reader.h"
#include "core/store/dir_lock.h"
#include "core/store/shard_file.h"
#include "core/store/tensor_file.h"
#include "proto/messages/launch_record.h"
#include "proto/plan/plan.h"

#include <assert.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A member that lives has joined again by then. */
static const int64_t REJOINS = 5 * TIME_S;

static_assert((int)REWIND_MAX_TRAINERS == (int)PLAN_MAX_TRAINERS,
              "a rank has no place in the lineage");

/* Why RUN cannot go back, or NULL. */
static const char *obstacle(const struct run *run) {
    if (run->series)
        return "a run of a comparison is not to be measured then";
    if (!run->lineage || (run->starts_once && !take_over_may_begin(run)))
        return "the launcher starts no process again";
    return NULL;
}

enum status rewind_check(const struct run *run, struct failure *why) {
    const char *text = obstacle(run);
    if (text && run->job->recovery == JOB_REWIND)
        return status_fail(why, FAILURE_JOB_UNFIT,
                           "strategy.recovery: found \"rewind\"; allowed here: "
                           "\"end\", as %s",
                           text);
    if (text && run->job->replicas)
        return status_fail(why, FAILURE_JOB_UNFIT,
                           "strategy.replicas: found 1; allowed here: 0, as %s",
                           text);
    return STATUS_OK;
}

/* A process that dies at each start, such as for want of memory, would keep the
 * others for ever. */
enum { REWINDS_IN_VAIN = 10 };

static bool is_in_vain(const struct run *run) {
    return run->lineage->in_vain >= REWINDS_IN_VAIN &&
           run_step(run) <= run->lineage->furthest;
}

/* Does the caller of RANK, which is here, not take steps again? One that begins
 * in a run that goes on, or joins it, has not told yet: it follows, or says
 * itself that it cannot. */
static bool is_fixed(const struct run *run, uint32_t rank) {
    const struct run_trainer *trainer = &run->trainers[rank];
    bool joins = run->phase >= RUN_TRAINING && !trainer->in_view;
    if (!trainer->heard && (joins || rewind_is_second(run)))
        return false;
    return run->roster.slots[rank].state == ROSTER_HELD &&
           !trainer->heartbeat.rewinds;
}

/* The first live trainer of an external model whose caller does not take steps
 * again, or NULL. */
static const struct roster_slot *find_fixed(const struct run *run) {
    if (run->job->model.type != JOB_EXTERNAL)
        return NULL;
    for (uint32_t r = 0; r < run->roster.num_ranks; r++)
        if (is_fixed(run, r))
            return &run->roster.slots[r];
    return NULL;
}

/* A directory without a checkpoint will do: the run's start is then the same
 * as it was. Not that of a caller's model, whose first values it has no more.
 */
static bool may_go_back(const struct run *run) {
    const struct job *job = run->job;
    if (obstacle(run))
        return false;
    if (job->model.type == JOB_EXTERNAL &&
        ((!run->checkpoints.has_saved && !run->lineage->copy.manifest) ||
         find_fixed(run)))
        return false;
    if (run->starts_once && run->roster.slots[0].state != ROSTER_HELD)
        return false; /* rank 0 is awaited, and nothing starts it again */
    return (job->checkpoint.dir || run->plan.schedule.buddy_steps) &&
           !is_in_vain(run) && job->recovery != JOB_END &&
           !run->shutdown.interrupted;
}

/* A process that holds the chief and a trainer is started anew, whatever its
 * caller does. */
static bool is_with_chief(const struct run *run,
                          const struct roster_slot *slot) {
    return slot->role == run->cluster->role &&
           slot->index == run->cluster->index;
}

double rewind_chief_within(const struct run *run) {
    const struct job *job = run->job;
    bool returns = !obstacle(run) && !run->starts_once && job->checkpoint.dir &&
                   job->recovery != JOB_END;
    return returns ? job->timeouts.chief : 0;
}

bool rewind_may_be_adopted(const struct run *run) {
    return rewind_chief_within(run) > 0 && !run->trains && !run->allreduce &&
           run->cluster->role == CLUSTER_CHIEF && !run->ps_inproc &&
           run->roster.num_ps;
}

/* Is nobody to take the chief's place if it dies now? The others have ended
 * then, or end. */
static bool ends_with_chief(const struct run *run) {
    bool ends = run->phase >= RUN_STOPPING && run->code && !run->is_rewinding;
    if (rewind_chief_within(run) <= 0 || run->shutdown.interrupted || ends)
        return true;
    bool goes_on = run->phase >= RUN_READYING && rewind_may_be_adopted(run);
    if (run->job->model.type != JOB_EXTERNAL || goes_on)
        return false;
    for (uint32_t r = 0; r < run->roster.num_ranks; r++)
        if (!is_with_chief(run, &run->roster.slots[r]) &&
            !run->trainers[r].heartbeat.rewinds)
            return true;
    return !run->checkpoints.has_saved;
}

/* A kill in the last two seconds, at the rate so far, may find a trainer past
 * its loop. */
static bool ends_soon(const struct run *run, uint64_t step) {
    const struct run_schedule *schedule = &run->plan.schedule;
    double seconds = time_to_seconds(time_now() - run->training_since);
    double rate = (double)(step - run->metrics.points.start) / seconds;
    return !run_is_endless(run) &&
           (double)schedule->total - (double)step < 2 * rate;
}

/* Those of which a drill makes some. */
static unsigned deaths_to_survive(const struct run *run) {
    const struct roster *roster = &run->roster;
    uint64_t step = run_step(run);
    unsigned back = run->allreduce ? LAUNCH_RECORD_WORKER : LAUNCH_RECORD_PS;
    if (run->phase != RUN_TRAINING || run->series ||
        roster_count(roster, CLUSTER_ROLES, ROSTER_HELD) != roster->count ||
        run_count_live(run) != roster->num_ranks ||
        step <= run->plan.schedule.start || ends_soon(run, step) ||
        (run->lineage && step <= run->lineage->furthest))
        return 0;
    return (may_go_back(run) ? back : 0) |
           (run->allreduce || run->no_restart ? 0 : LAUNCH_RECORD_WORKER) |
           (ends_with_chief(run) ? 0 : LAUNCH_RECORD_CHIEF);
}

unsigned rewind_deaths(const struct run *run) {
    return deaths_to_survive(run) |
           (take_over_may_follow(run) ? LAUNCH_RECORD_SPARE : 0) |
           (ends_with_chief(run) ? LAUNCH_RECORD_OWN : 0);
}

/* The lineage of RUN's checkpoints; 0: it is not decided yet. */
static uint64_t lineage_of(const struct run *run) {
    if (run->plan.lineage || !rewind_is_second(run))
        return run->plan.lineage;
    return run->lineage->id;
}

bool rewind_accepts(const struct run *run, const Capstan__Join *join,
                    char *text, size_t size) {
    const Capstan__Past *past = join->past;
    const char *remedy = "start it again, by the same command";
    uint64_t own = lineage_of(run);
    if (!past || run->series)
        return true;
    if (past->job != message_job_digest(run->job->text))
        snprintf(text, size,
                 "this process comes from run %016" PRIx64
                 ", whose chief is gone, and this chief has another job than "
                 "that one had: start the chief with the same job, or %s",
                 past->run, remedy);
    else if (rewind_chief_within(run) <= 0)
        snprintf(text, size,
                 "this process comes from run %016" PRIx64
                 ", whose chief is gone, and this chief goes on for no other: "
                 "%s",
                 past->run, remedy);
    else if (own && own != past->lineage)
        snprintf(text, size,
                 "this process comes from run %016" PRIx64
                 " of lineage %016" PRIx64
                 ", and this chief's run is of lineage %016" PRIx64 ": %s",
                 past->run, past->lineage, own, remedy);
    else
        return true;
    return false;
}

static void take_first_past(struct run *run, const Capstan__Past *past) {
    int64_t now = time_now();
    struct rewind_lineage *lineage = run->lineage;
    lineage->id = past->lineage;
    lineage->lost = REWIND_CHIEF;
    lineage->opened = run->opened;
    run->join_limit =
        now - run->opened + time_from_seconds(run->job->timeouts.recover);
    log_warning(run->log, "chief_returned",
                "members of run %016" PRIx64
                " wait for its chief, which is gone: this one goes on from "
                "their newest checkpoint, whatever checkpoint.resume says, "
                "and waits up to %g s (timeouts.recover) for all",
                past->run, run->job->timeouts.recover);
}

static uint64_t larger(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

void rewind_take_past(struct run *run, const Capstan__Join *join) {
    const Capstan__Past *past = join->past;
    struct rewind_lineage *lineage = run->lineage;
    if (!past || !lineage || run->phase != RUN_JOINING ||
        (rewind_is_second(run) && lineage->lost != REWIND_CHIEF))
        return;
    bool got_further = past->step > past->furthest;
    uint32_t in_vain = got_further ? 0 : past->in_vain + 1;
    bool is_first = !rewind_is_second(run);
    if (is_first)
        take_first_past(run, past);
    if (is_first || in_vain < lineage->in_vain)
        lineage->in_vain = in_vain;
    if (past->saved > lineage->saved)
        lineage->saved = past->saved;
    int64_t lost_at = time_now() - time_from_seconds(past->away);
    if (past->rewinds + 1 > lineage->count)
        lineage->count = past->rewinds + 1;
    if (past->steps_again > lineage->again)
        lineage->again = past->steps_again;
    if (past->step > lineage->reached)
        lineage->reached = past->step;
    lineage->furthest =
        larger(lineage->furthest, larger(past->step, past->furthest));
    if (!lineage->lost_at || lost_at < lineage->lost_at)
        lineage->lost_at = lost_at;
    rewind_take_copy(run, join);
}

/* Not of a caller's model: only the chief before knew which trainers keep
 * something with the copy. */
void rewind_take_copy(struct run *run, const Capstan__Join *join) {
    static const bool kept[REWIND_MAX_TRAINERS];
    const struct rewind_lineage *lineage = run->lineage;
    struct manifest newest;
    struct failure why;
    if (!*join->copy_manifest || run->job->model.type == JOB_EXTERNAL)
        return;
    enum status status = manifest_parse(&newest, join->copy_manifest, &why);
    if (!status && newest.is_delta)
        status = manifest_parse_base(&newest, join->copy_base, &why);
    if (!status && newest.base && newest.base->num_files != newest.num_files)
        status = status_fail(&why, FAILURE_BAD_MESSAGE,
                             "its base has %u parts, not %u",
                             newest.base->num_files, newest.num_files);
    bool is_newer = !status && newest.lineage == lineage->id &&
                    newest.step > lineage->copy.step;
    char *manifest = is_newer ? strdup(join->copy_manifest) : NULL;
    char *base = manifest && newest.is_delta ? strdup(join->copy_base) : NULL;
    if (manifest && newest.is_delta == !!base)
        rewind_keep_copy(run, newest.step, manifest,
                         base ? newest.base_name.step : 0, base, kept);
    else
        free(manifest);
    if (status)
        log_warning(run->log, "copy_lost",
                    "the copy in memory of which ps %u tells: %s", join->index,
                    why.text);
    manifest_clear(&newest);
}

/* Members know of a checkpoint that is not in this chief's directory, which may
 * not be mounted, or be another. A damaged one is there. */
static enum status check_directory(const struct run *run, struct failure *why) {
    const char *dir = run->job->checkpoint.dir;
    uint64_t *steps = NULL, newest = 0;
    size_t count = 0;
    enum status status = checkpoint_list(dir, &steps, &count, why);
    if (!status && count)
        newest = steps[count - 1];
    free(steps);
    if (!status && newest < run->lineage->saved)
        status = status_fail(
            why, FAILURE_PEER_LOST,
            "members wait for a run that has a checkpoint of step %" PRIu64
            ", and the newest in %s is of step %" PRIu64
            ": is it the run's directory, and mounted here? Then start the "
            "chief again",
            run->lineage->saved, dir, newest);
    return status;
}

enum status rewind_check_start(const struct run *run, struct failure *why) {
    const struct manifest *restored = &run->plan.restored;
    if (!rewind_is_second(run) || run->lineage->lost != REWIND_CHIEF)
        return STATUS_OK;
    if (run->lineage->in_vain >= REWINDS_IN_VAIN)
        return status_fail(why, FAILURE_PEER_LOST,
                           "the run has gone back %u times without coming "
                           "further than step %" PRIu64,
                           run->lineage->in_vain, run->lineage->furthest);
    if (check_directory(run, why))
        return failure_code_status(why->code);
    if (run->plan.has_restored && restored->lineage != run->lineage->id)
        return status_fail(why, FAILURE_PEER_LOST,
                           "members wait for a run of lineage %016" PRIx64
                           ", and the newest checkpoint in %s is of another "
                           "one, %016" PRIx64 ": start all again",
                           run->lineage->id, run->job->checkpoint.dir,
                           restored->lineage);
    if (!run->plan.has_restored && run->job->model.type == JOB_EXTERNAL)
        return status_fail(why, FAILURE_PEER_LOST,
                           "members wait for a run of which there is no "
                           "checkpoint in %s, and no longer have the values "
                           "of its start: start all again",
                           run->job->checkpoint.dir);
    return STATUS_OK;
}

static void rewind_note_loss(struct run *run, const struct roster_slot *slot) {
    struct rewind_lineage *lineage = run->lineage;
    lineage->lost = slot->role == CLUSTER_PS
                        ? run->roster.num_ranks + slot->index
                        : slot->rank;
    if (!lineage->lost_at)
        lineage->lost_at = time_now();
}

/* All-reduce goes on with all ranks only. Rank 0 has the parameters, and one
 * that was awaited and has died is awaited still. */
static void note_ranks(struct run *run) {
    for (uint32_t r = 0; r < run->roster.num_ranks; r++) {
        const struct run_trainer *trainer = &run->trainers[r];
        bool is_here = run->roster.slots[r].state == ROSTER_HELD;
        bool was_here = run->phase == RUN_READYING ? trainer->has_plan
                                                   : is_here && trainer->from;
        bool is_away = !was_here || (run->starts_once && !is_here);
        run->lineage->ranks[r].is_away = r > 0 && !run->allreduce && is_away;
        run->lineage->ranks[r].is_untrained = trainer->absence.is_gone;
        run->lineage->ranks[r].devices = trainer->replicas;
        run->lineage->ranks[r].share_samples = trainer->share_samples;
        run->lineage->ranks[r].visible_devices = trainer->visible_devices;
    }
}

/* Is what trainers kept gone with all of them? Then a trainer joins where a
 * checkpoint has it. */
static bool is_kept_state_lost(const struct run *run) {
    return run->phase == RUN_TRAINING && run_synchronous(run) &&
           !run->allreduce && run->checkpoints.kept.is_used &&
           !kept_states_any(run);
}

static bool is_any_joining(const struct run *run) {
    for (uint32_t r = 0; r < run->roster.num_ranks; r++)
        if (run->roster.slots[r].state == ROSTER_HELD &&
            !run->trainers[r].heard)
            return true;
    return false;
}

/* Can RUN not go on without the member of SLOT? All ranks take part in the last
 * checkpoint of all-reduce. */
static bool is_needed_member(const struct run *run,
                             const struct roster_slot *slot) {
    bool ps = slot->role == CLUSTER_PS;
    if (run->phase < RUN_READYING)
        return false;
    if (run->phase == RUN_READYING)
        return ps ||
               (rewind_is_second(run) && run->trainers[slot->rank].has_plan);
    if (!run->allreduce || ps)
        return !run->allreduce &&
               (ps || (is_kept_state_lost(run) && is_any_joining(run)));
    return run->phase == RUN_TRAINING || slot->rank == 0 ||
           !run->checkpoints.has_saved ||
           run->checkpoints.saved < run_step(run);
}

/* Where RUN goes back to, as far as it knows. */
static void target_text(const struct run *run, char *text, size_t size) {
    const struct rewind_copy *copy = &run->lineage->copy;
    bool saved = run->checkpoints.has_saved;
    if (copy->manifest && !(saved && run->checkpoints.saved >= copy->step))
        snprintf(text, size,
                 "the copy of step %" PRIu64 " in the memory of its ps",
                 copy->step);
    else
        snprintf(text, size, "%s%s", saved ? "its checkpoint " : "its start",
                 saved ? run->checkpoints.folder : "");
}

void rewind_note_death(struct run *run, const struct roster_slot *slot) {
    if (!run->is_rewinding)
        return;
    if (slot->role != CLUSTER_PS)
        run->lineage->ranks[slot->rank].is_away |=
            run->starts_once && slot->rank > 0;
    else if (slot->index < REWIND_MAX_PS)
        run->lineage->ps[slot->index].is_lost = true;
}

/* Where no process is started again, one that has not come back is not awaited
 * any longer than one that is silent. */
static void give_up_absent(struct run *run) {
    char name[64];
    if (!run->starts_once || run->phase != RUN_JOINING ||
        !rewind_is_second(run) ||
        time_now() - run->opened < time_from_seconds(run->job->timeouts.peer))
        return;
    take_over_note_lost(run);
    for (uint32_t r = 1; r < run->roster.num_ranks; r++)
        run->lineage->ranks[r].is_away |=
            run->roster.slots[r].state != ROSTER_HELD;
    if (run->roster.slots[0].state == ROSTER_HELD)
        return;
    roster_name(&run->roster.slots[0], name, sizeof name);
    run_stop(run, FAILURE_PEER_LOST,
             "%s has not joined again within %g s (timeouts.peer), and no "
             "process is started in its place",
             name, run->job->timeouts.peer);
}

static void stop_to_go_back(struct run *run, const struct roster_slot *slot,
                            const char *lost, const char *consequence) {
    char target[sizeof run->checkpoints.folder + 64];
    run->is_rewinding = true;
    rewind_note_loss(run, slot);
    take_over_note_lost(run);
    note_ranks(run);
    run_stop(run, FAILURE_PEER_LOST, "%s%s", lost, consequence);
    target_text(run, target, sizeof target);
    log_warning(run->log, "run_rewinds",
                "after step %" PRIu64 " the run goes back to %s, and waits "
                "up to %g s (timeouts.recover) for all of its processes",
                run->end_step, target, run->job->timeouts.recover);
}

static const char KEPT_STATE_LOST[] =
    ", and what the trainers kept with each checkpoint is gone with all of "
    "them";

bool rewind_begin(struct run *run, const struct roster_slot *slot,
                  const char *departed) {
    if (!is_needed_member(run, slot) || !may_go_back(run) ||
        take_over_is_in_vain(run, slot))
        return false;
    stop_to_go_back(run, slot, departed,
                    slot->role == CLUSTER_PS || run->allreduce
                        ? run_consequence_of_loss(run)
                        : KEPT_STATE_LOST);
    return true;
}

bool rewind_for_joiner(struct run *run, const struct roster_slot *slot) {
    char name[64], text[128];
    if (!is_kept_state_lost(run))
        return false;
    roster_name(slot, name, sizeof name);
    snprintf(text, sizeof text, "no trainer was left as %s joined", name);
    if (may_go_back(run))
        stop_to_go_back(run, slot, text, KEPT_STATE_LOST);
    else
        run_stop_resumable(run, FAILURE_NO_TRAINER, "%s%s", text,
                           KEPT_STATE_LOST);
    return true;
}

/* Is each live trainer past a second step? What its caller does is known then,
 * and what it has kept after the first. */
static bool all_have_begun(const struct run *run) {
    bool any = false;
    for (uint32_t r = 0; r < run->roster.num_ranks; r++) {
        const struct run_trainer *trainer = &run->trainers[r];
        if (run->roster.slots[r].state != ROSTER_HELD)
            continue;
        if (!trainer->from || trainer->heartbeat.clock <= trainer->from)
            return false;
        any = true;
    }
    return any;
}

static bool is_own_slot(const struct run *run, const struct roster_slot *slot) {
    return is_with_chief(run, slot) ||
           (slot->role == CLUSTER_PS && run->ps_inproc);
}

/* Has a process other than this one not joined? */
static bool is_any_member_away(const struct run *run) {
    for (uint32_t i = 0; i < run->roster.count; i++) {
        const struct roster_slot *slot = &run->roster.slots[i];
        bool is_beyond =
            slot->rank != ROSTER_NO_RANK && run_is_beyond(run, slot->rank);
        if (slot->state != ROSTER_HELD && !is_own_slot(run, slot) && !is_beyond)
            return true;
    }
    return false;
}

static bool is_own_job(const struct run *run, const struct manifest *manifest) {
    json_t *own = json_loads(run->job->text, 0, NULL);
    json_t *other = manifest->job ? json_loads(manifest->job, 0, NULL) : NULL;
    bool equal = own && other && json_equal(own, other);
    json_decref(own);
    json_decref(other);
    return equal;
}

bool rewind_was_over(struct run *run, uint64_t dead, uint64_t *step) {
    struct manifest last = {0};
    struct failure why;
    bool found = false;
    if (run->end_checked)
        return rewind_is_over(run) && last_export_is_done(run, step);
    run->end_checked = true;
    if (checkpoint_reader_newest(run->job->checkpoint.dir,
                                 CHECKPOINT_READER_ANY, &last, &found, run->log,
                                 &why) ||
        !found)
        return false;
    bool is_over = last.final && last.run == dead && is_own_job(run, &last);
    if (is_over)
        last_export_begin(run, &last);
    manifest_clear(&last);
    return is_over && last_export_is_done(run, step);
}

bool rewind_is_over(const struct run *run) {
    return run->last_export != NULL;
}

void rewind_stop_over(struct run *run, uint64_t dead, uint64_t step,
                      const char *members) {
    if (run->export_problem[0])
        run_stop_unexported(run, true);
    else
        run_stop(run, FAILURE_NONE,
                 "run %016" PRIx64
                 " was over: it has a last checkpoint, of step %" PRIu64
                 ", its chief died, and %s are gone",
                 dead, step, members);
}

/* Ends the run whose chief died before this one, if it was over: members that
 * have heard its end are gone, and others may wait. */
static void end_if_was_over(struct run *run) {
    uint64_t step = 0;
    uint64_t dead = dir_lock_dead_run(run->checkpoints.dir_lock);
    int64_t limit = time_from_seconds(run->job->timeouts.stop);
    if (run->phase != RUN_JOINING || !dead || run->adopt)
        return;
    if (!rewind_is_over(run) &&
        (run->end_checked || rewind_chief_within(run) <= 0 ||
         !is_any_member_away(run) ||
         time_now() - run->opened < (limit > REJOINS ? limit : REJOINS)))
        return;
    if (rewind_was_over(run, dead, &step))
        rewind_stop_over(run, dead, step, "members");
}

void rewind_step(struct run *run) {
    const struct job *job = run->job;
    char name[64];
    end_if_was_over(run);
    give_up_absent(run);
    if (run->rewind_checked || run->phase != RUN_TRAINING ||
        job->model.type != JOB_EXTERNAL ||
        !(job->checkpoint.dir || run->plan.schedule.buddy_steps) ||
        job->recovery == JOB_END || obstacle(run) || !all_have_begun(run))
        return;
    run->rewind_checked = true;
    const struct roster_slot *fixed = find_fixed(run);
    if (!fixed) { /* the values of its start are nowhere else */
        run->checkpoints.requested |=
            job->checkpoint.dir && !run->checkpoints.has_saved;
        return;
    }
    roster_name(fixed, name, sizeof name);
    log_info(run->log, "trainers_stay",
             "if a %s dies, the run ends with 138 and its launcher starts it "
             "again, as the program of %s does not go back in place: for that "
             "a script calls run.keep and its loop is run.steps, or run.epochs "
             "with run.shard (docs/running.md, Going back)",
             run->allreduce ? "rank" : "ps", name);
}

bool rewind_end(struct run *run) {
    struct rewind_lineage *lineage = run->lineage;
    if (!lineage || !run->is_rewinding)
        return false;
    lineage->follows = true;
    lineage->within = run->job->timeouts.recover;
    take_over_begin_next(run);
    if (run->regroups) {
        lineage->requested |= run->checkpoints.requested;
        return true;
    }
    lineage->id = run->plan.lineage ? run->plan.lineage : lineage->id;
    lineage->count++;
    lineage->requested = run->checkpoints.requested;
    snprintf(lineage->folder, sizeof lineage->folder, "%s", rewind_folder(run));
    if (!lineage->opened)
        lineage->opened = run->opened;
    lineage->in_vain =
        run->end_step > lineage->furthest ? 0 : lineage->in_vain + 1;
    /* A trainer reports the loss of a round that the lost ps has not closed. */
    lineage->furthest = larger(
        lineage->furthest, larger(run->end_step, run->metrics.points.max_step));
    if (run->end_step > lineage->reached)
        lineage->reached = run->end_step;
    return true;
}

const char *rewind_folder(const struct run *run) {
    if (run->checkpoints.has_saved)
        return run->checkpoints.folder;
    bool is_to_go_back = rewind_is_second(run) && !run->metrics.began;
    return is_to_go_back ? run->lineage->folder : "";
}

bool rewind_is_second(const struct run *run) {
    return run->lineage && run->lineage->count;
}

/* Of those that the trainer of RANK has reported some may be after STEP: they
 * count as if they were equally many in each step. */
static uint64_t bad_lines_until(const struct run *run, uint32_t rank,
                                uint64_t step) {
    const struct run_trainer *trainer = &run->trainers[rank];
    const Capstan__Heartbeat *heartbeat = &trainer->heartbeat;
    uint64_t first = trainer->from ? trainer->from - 1 : 0;
    if (!run_synchronous(run) || heartbeat->clock <= step)
        return heartbeat->bad_lines;
    return step <= first ? 0
                         : (uint64_t)((double)heartbeat->bad_lines *
                                      (double)(step - first) /
                                      (double)(heartbeat->clock - first));
}

static struct rewind_counts counts_of(const struct run *run, uint32_t r,
                                      uint64_t step) {
    const struct run_trainer *trainer = &run->trainers[r];
    return (struct rewind_counts){.first = trainer->absence.first,
                                  .steps = run_untrained_by(run, r, step).steps,
                                  .bad_lines = trainer->past.bad_lines +
                                               bad_lines_until(run, r, step)};
}

void rewind_keep_counts(struct run *run, uint64_t step) {
    for (uint32_t r = 0; run->lineage && r < run->roster.num_ranks; r++)
        run->lineage->ranks[r].counts = counts_of(run, r, step);
}

void rewind_keep_copy(struct run *run, uint64_t step, char *manifest,
                      uint64_t base_step, char *base, const bool *kept) {
    struct rewind_copy *copy = &run->lineage->copy;
    free(copy->manifest);
    free(copy->base);
    copy->manifest = manifest;
    copy->base = base;
    copy->base_step = base_step;
    copy->step = step;
    for (uint32_t r = 0; r < run->roster.num_ranks; r++) {
        copy->counts[r] = counts_of(run, r, step);
        copy->kept[r] = kept[r];
    }
}

/* A trainer may have come back while the checkpoint was being written: the
 * steps after that are computed again, by all. */
static void take_counts(struct run *run) {
    uint64_t start = run->plan.schedule.start;
    for (uint32_t r = 0; r < run->roster.num_ranks; r++) {
        const struct rewind_counts *counts =
            run->plan.from_memory ? &run->lineage->copy.counts[r]
                                  : &run->lineage->ranks[r].counts;
        uint64_t first = counts->first,
                 most = start > first ? start - first : 0;
        run->trainers[r].absence = (struct run_absence){
            .first = first,
            .steps = counts->steps < most ? counts->steps : most};
        run->trainers[r].past.bad_lines = counts->bad_lines;
    }
}

bool rewind_lacks(const struct run *run, uint32_t rank) {
    bool is_away = rewind_is_second(run) && run->lineage->ranks[rank].is_away;
    return (is_away || run_is_beyond(run, rank)) &&
           run->roster.slots[rank].state != ROSTER_HELD;
}

void rewind_fill_in(struct run *run) {
    for (uint32_t r = 0; r < run->roster.num_ranks; r++) {
        if (!rewind_lacks(run, r))
            continue;
        run->trainers[r].synthetic = true; /* it takes no memory */
        if (run_is_beyond(run, r))
            continue;
        run->roster.slots[r].state = ROSTER_VACATED;
        run->trainers[r].devices = run->lineage->ranks[r].devices;
        run->trainers[r].share_samples = run->lineage->ranks[r].share_samples;
    }
}

/* Their shares are untrained from here on. */
static void count_away(struct run *run) {
    for (uint32_t r = 0; r < run->roster.num_ranks; r++) {
        struct run_absence *absence = &run->trainers[r].absence;
        if (!rewind_lacks(run, r) || !run->lineage->ranks[r].is_untrained)
            continue;
        absence->is_gone = true;
        absence->since = run->plan.schedule.start;
        if (!absence->steps)
            absence->first = absence->since;
    }
}

/* The slot of what was lost; NULL: the chief, or a ps that is left out. */
static const struct roster_slot *rewind_find_lost(struct run *run) {
    uint32_t slot = run->lineage->lost, ranks = run->roster.num_ranks;
    if (slot == REWIND_CHIEF)
        return NULL;
    return slot < ranks ? &run->roster.slots[slot]
                        : roster_find(&run->roster, CLUSTER_PS, slot - ranks);
}

void rewind_go_on(struct run *run) {
    uint64_t start = run->plan.schedule.start;
    char name[64], lost[100];
    if (!rewind_is_second(run))
        return;
    uint64_t reached = run->lineage->reached;
    uint64_t again = reached > start ? reached - start : 0;
    run->lineage->again += again;
    run->lineage->reached = start;
    run->checkpoints.requested |= run->lineage->requested;
    take_counts(run);
    count_away(run);
    uint32_t slot = run->lineage->lost, ranks = run->roster.num_ranks;
    const struct roster_slot *taken = rewind_find_lost(run);
    if (slot == REWIND_CHIEF) {
        snprintf(lost, sizeof lost, "its chief, whose place pid %d has",
                 (int)getpid());
    } else if (taken) {
        roster_name(taken, name, sizeof name);
        snprintf(lost, sizeof lost, "%s, whose place pid %u has", name,
                 taken->pid);
    } else {
        snprintf(lost, sizeof lost, "ps %u, without it", slot - ranks);
    }
    log_info(run->log, "run_rewound",
             "the run goes on after step %" PRIu64
             ", %.2f s after the loss of %s: %" PRIu64 " step%s computed again",
             start, time_to_seconds(time_now() - run->lineage->lost_at), lost,
             again, again == 1 ? " is" : "s are");
    run->lineage->lost_at = 0;
    take_over_end(run);
}
