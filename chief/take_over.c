/* SPDX-License-Identifier: Apache-2.0 */
#include "chief/take_over.h"

#include "chief/rewind.h"
#include "chief/run.h"
#include "core/base/time.h"
#include "core/store/manifest.h"

#include <stdio.h>

/* A member that lives has joined again by then, or asked again. */
static const int64_t HEARD_WITHIN = 5 * TIME_S;

/* Can each ps read all of the newest checkpoint? Without one it begins anew,
 * for which a caller's model has no values any more. */
static bool is_for_all(const struct run *run) {
    struct manifest newest = {0};
    struct failure why;
    bool found = false, shared = true;
    if (run_newest_checkpoint(run, &newest, &found, &why))
        return false;
    for (uint32_t i = 0; found && i < newest.num_files; i++)
        shared &= !newest.files[i].host[0];
    manifest_clear(&newest);
    return found ? shared : run->job->model.type != JOB_EXTERNAL;
}

void take_over_name_hosts(struct run *run, char *text, size_t size) {
    struct manifest newest = {0};
    struct failure why;
    bool found = false;
    size_t used = 0;
    text[0] = 0;
    if (!run->lineage || !run->lineage->count || !run->job->checkpoint.dir ||
        run_newest_checkpoint(run, &newest, &found, &why))
        return;
    bool alike = found && newest.num_files == run->roster.num_ps;
    for (uint32_t p = 0; alike && p < newest.num_files && used < size; p++) {
        const struct roster_slot *slot = roster_ps(&run->roster, p);
        if (slot->state != ROSTER_HELD && newest.files[p].host[0])
            used += (size_t)snprintf(
                text + used, size - used, "%sthe shard of ps %u is on host %s",
                used ? ", " : "", slot->index, newest.files[p].host);
    }
    manifest_clear(&newest);
}

bool take_over_may_begin(const struct run *run) {
    uint32_t all = run->roster.num_ps + run->roster.left_out;
    return all > 1 && all <= REWIND_MAX_PS && !run->allreduce &&
           (run->job->checkpoint.dir || run->job->replicas);
}

/* Can the ps that RUN has take over the weights of those that it lacks? */
static bool can_take_over(const struct run *run, bool have_copies) {
    return roster_count(&run->roster, CLUSTER_PS, ROSTER_HELD) &&
           take_over_may_begin(run) && !run->lineage->needs_all &&
           (have_copies || (run->job->checkpoint.dir && is_for_all(run)));
}

/* Is the ps of SLOT lost? */
static bool is_ps_lost(const struct run *run, const struct roster_slot *slot) {
    return slot->state == ROSTER_VACATED ||
           run->lineage->ps[slot->index].is_lost;
}

static bool is_not_restarted(const struct run *run,
                             const struct roster_slot *slot) {
    return slot->role == CLUSTER_PS && slot->index < REWIND_MAX_PS &&
           (run->lineage->ps[slot->index].is_last ||
            (run->starts_once && is_ps_lost(run, slot)));
}

bool take_over_is_in_vain(const struct run *run,
                          const struct roster_slot *slot) {
    return is_not_restarted(run, slot) &&
           !can_take_over(run, run->lineage->copy.manifest);
}

bool take_over_may_follow(const struct run *run) {
    bool waits = run->phase == RUN_JOINING && run->lineage &&
                 run->lineage->count && !run->lineage->needs_all &&
                 take_over_may_begin(run) && run->roster.num_ps > 1;
    return run->roster.left_out || waits;
}

void take_over_leave_out(struct run *run) {
    for (uint32_t i = 0; run->lineage && i < REWIND_MAX_PS; i++)
        if (run->lineage->ps[i].is_left_out)
            roster_leave_out(&run->roster, i);
}

bool take_over_waits(struct run *run, const Capstan__Join *join) {
    uint32_t index = join->index;
    if (!run->lineage || join->role != CLUSTER_PS || index >= REWIND_MAX_PS ||
        !run->lineage->ps[index].is_left_out)
        return false;
    if (!run->lineage->ps[index].asked)
        log_info(run->log, "ps_waits",
                 "ps %u on host %s (pid %u) is back: it waits, and has its "
                 "place when the run goes back the next time",
                 index, join->host, join->pid);
    run->lineage->ps[index].asked = time_now();
    return true;
}

/* One that is there asks again soon. */
static bool is_waiting(const struct rewind_lineage *lineage, uint32_t index) {
    return lineage->ps[index].asked &&
           time_now() - lineage->ps[index].asked < HEARD_WITHIN;
}

bool take_over_has_waiting(const struct run *run) {
    uint32_t i = 0;
    while (run->lineage && i < REWIND_MAX_PS && !is_waiting(run->lineage, i))
        i++;
    return run->lineage && i < REWIND_MAX_PS;
}

void take_over_note_lost(struct run *run) {
    struct rewind_lineage *lineage = run->lineage;
    for (uint32_t p = 0; p < run->roster.num_ps; p++) {
        const struct roster_slot *slot = roster_ps(&run->roster, p);
        if (slot->index < REWIND_MAX_PS)
            lineage->ps[slot->index].is_lost = slot->state != ROSTER_HELD;
    }
}

void take_over_note_last(struct run *run, const struct roster_slot *slot) {
    if (run->lineage && slot->role == CLUSTER_PS && slot->index < REWIND_MAX_PS)
        run->lineage->ps[slot->index].is_last = true;
}

/* Another run follows, of other ps. */
static void regroup(struct run *run, const char *text) {
    run->is_rewinding = run->regroups = true;
    run_stop(run, FAILURE_PEER_LOST, "%s", text);
}

bool take_over_await_all(struct run *run, const char *text) {
    if (!run->roster.left_out)
        return false;
    log_warning(run->log, "ps_awaited",
                "the run waits up to %g s (timeouts.recover) for the ps that "
                "it lacks: %s",
                run->job->timeouts.recover, text);
    run->lineage->needs_all = true;
    regroup(run, text);
    return true;
}

struct missing {
    bool are_lost; /* as is known */
    bool are_last; /* not started again */
    char names[256];
};

/* The ps that have not joined. */
static struct missing missing_ps(struct run *run) {
    struct missing missing = {.are_lost = true, .are_last = true};
    size_t used = 0;
    for (uint32_t p = 0; p < run->roster.num_ps; p++) {
        const struct roster_slot *slot = roster_ps(&run->roster, p);
        if (slot->state == ROSTER_HELD)
            continue;
        if (used < sizeof missing.names)
            used += (size_t)snprintf(missing.names + used,
                                     sizeof missing.names - used, "%sps %u",
                                     used ? ", " : "", slot->index);
        missing.are_lost &= is_ps_lost(run, slot);
        missing.are_last &= is_not_restarted(run, slot);
    }
    return missing;
}

/* A launcher of this machine starts it after that time at the latest. */
static const int64_t LONGEST_RESTART = 10 * TIME_S;

/* Others than those that are lost need some time to join again. */
static int64_t longest_wait(const struct run *run,
                            const struct missing *missing) {
    int64_t spare = time_from_seconds(run->job->timeouts.spare);
    if (missing->are_last)
        return 0;
    if (spare && run->together && !run->starts_once)
        spare += LONGEST_RESTART;
    return missing->are_lost || spare > HEARD_WITHIN ? spare : HEARD_WITHIN;
}

static void leave_out(struct run *run, const struct missing *missing) {
    uint32_t here = roster_count(&run->roster, CLUSTER_PS, ROSTER_HELD);
    char text[512];
    for (uint32_t p = 0; p < run->roster.num_ps; p++) {
        const struct roster_slot *slot = roster_ps(&run->roster, p);
        run->lineage->ps[slot->index].is_left_out |= slot->state != ROSTER_HELD;
    }
    snprintf(
        text, sizeof text,
        "%s: not back %s, so that the run goes on with %u ps", missing->names,
        missing->are_last ? "and not started again" : "within timeouts.spare",
        here);
    log_warning(run->log, "ps_left_out",
                "%s; one that comes later waits until the run goes back the "
                "next time",
                text);
    regroup(run, text);
}

/* Nobody starts what MISSING names, and RUN cannot do without. */
static void stop_without_ps_of(struct run *run, const struct missing *missing) {
    run_stop(run, FAILURE_PEER_LOST,
             "%s: the launcher does not start it again, and no other ps can "
             "take over its weights",
             missing->names);
}

/* For how long have as many ps been here as now? While it is not decided
 * whether another run is adopted, nobody is late. */
static int64_t here_for(struct run *run, uint32_t here, int64_t now) {
    if (here != run->ps_here || !run->ps_here_since || run->is_adopting)
        run->ps_here_since = now;
    run->ps_here = here;
    return now - run->ps_here_since;
}

/* The ps that are here take over what the others have not come back for. */
void take_over_step(struct run *run,
                    bool (*have_copies)(const struct run *run)) {
    uint32_t here = roster_count(&run->roster, CLUSTER_PS, ROSTER_HELD);
    struct rewind_lineage *lineage = run->lineage;
    if (run->phase != RUN_JOINING || !lineage || !lineage->count)
        return;
    int64_t waited = here_for(run, here, time_now());
    if (run->is_adopting || run->last_export || here == run->roster.num_ps ||
        run->roster.num_ps + run->roster.left_out > REWIND_MAX_PS)
        return;
    struct missing missing = missing_ps(run);
    bool needs_more = lineage->needs_all || (here && here == run->ps_too_few);
    if (needs_more && missing.are_last)
        stop_without_ps_of(run, &missing);
    if (needs_more || waited < longest_wait(run, &missing) ||
        (!here && !missing.are_last))
        return;
    if (can_take_over(run, have_copies(run)))
        leave_out(run, &missing);
    else if (missing.are_last)
        stop_without_ps_of(run, &missing);
    run->ps_too_few = here;
}

void take_over_begin_next(struct run *run) {
    struct rewind_lineage *lineage = run->lineage;
    for (uint32_t i = 0; i < REWIND_MAX_PS; i++) {
        if (lineage->needs_all || (!run->regroups && is_waiting(lineage, i)))
            lineage->ps[i].is_left_out = false;
        lineage->ps[i].asked = 0;
    }
}

void take_over_end(struct run *run) {
    struct rewind_lineage *lineage = run->lineage;
    lineage->needs_all = false;
    for (uint32_t i = 0; i < REWIND_MAX_PS; i++)
        lineage->ps[i].is_lost = lineage->ps[i].is_last = false;
}
