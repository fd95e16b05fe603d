/* SPDX-License-Identifier: Apache-2.0 */
#include "chief/rewind.h"

#include "chief/run.h"

#include <inttypes.h>

/* Why RUN cannot go back, or NULL. */
static const char *obstacle(const struct run *run) {
    const struct job *job = run->job;
    if (run->allreduce)
        return "all-reduce ends when a rank dies";
    if (job->model.type == JOB_EXTERNAL)
        return "the trainers of an external model are started again by their "
               "launcher";
    if (run->series)
        return "a run of a comparison is not to be measured then";
    if (!run->lineage)
        return "the launcher starts no process again";
    return NULL;
}

enum status rewind_check(const struct run *run, struct failure *why) {
    const char *text = obstacle(run);
    if (run->job->recovery != JOB_REWIND || !text)
        return STATUS_OK;
    return status_fail(why, FAILURE_JOB_UNFIT,
                       "strategy.recovery: found \"rewind\"; allowed here: "
                       "\"end\", as %s",
                       text);
}

/* A ps that dies at each start, such as for want of memory, would keep the
 * others for ever. */
static bool is_in_vain(const struct run *run) {
    enum { MOST = 10 };
    return run->lineage->in_vain >= MOST &&
           run_step(run) <= run->lineage->furthest;
}

/* A directory without a checkpoint will do: the run's start is then the same
 * as it was. */
static bool may_go_back(const struct run *run) {
    const struct job *job = run->job;
    return !obstacle(run) && job->checkpoint.dir && !is_in_vain(run) &&
           job->recovery != JOB_END && !run->shutdown.interrupted;
}

bool rewind_begin(struct run *run, const char *departed) {
    bool saved = run->checkpoints.has_saved;
    if (!may_go_back(run))
        return false;
    run->is_rewinding = true;
    run_stop(run, FAILURE_PEER_LOST, "%s, and its weights with it", departed);
    log_warning(run->log, "run_rewinds",
                "after step %" PRIu64 " the run goes back to %s%s, and waits "
                "up to %g s (timeouts.recover) for all of its processes",
                run->end_step, saved ? "its checkpoint " : "its start",
                saved ? run->checkpoints.folder : "",
                run->job->timeouts.recover);
    return true;
}

bool rewind_end(struct run *run) {
    struct rewind_lineage *lineage = run->lineage;
    if (!lineage || !run->is_rewinding)
        return false;
    lineage->follows = true;
    lineage->id = run->plan.lineage ? run->plan.lineage : lineage->id;
    lineage->count++;
    lineage->within = run->job->timeouts.recover;
    if (!lineage->opened)
        lineage->opened = run->opened;
    lineage->in_vain =
        run->end_step > lineage->furthest ? 0 : lineage->in_vain + 1;
    if (run->end_step > lineage->furthest)
        lineage->furthest = run->end_step;
    if (run->end_step > lineage->reached)
        lineage->reached = run->end_step;
    return true;
}

bool rewind_is_second(const struct run *run) {
    return run->lineage && run->lineage->count;
}

void rewind_tell(const struct run *run) {
    uint64_t start = run->plan.schedule.start;
    if (!rewind_is_second(run))
        return;
    uint64_t reached = run->lineage->reached;
    uint64_t again = reached > start ? reached - start : 0;
    run->lineage->again += again;
    run->lineage->reached = start;
    log_info(run->log, "run_rewound",
             "the run goes on after step %" PRIu64 ": %" PRIu64
             " step%s computed again",
             start, again, again == 1 ? " is" : "s are");
}
