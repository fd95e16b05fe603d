/* SPDX-License-Identifier: Apache-2.0 */
#include "chief/control/untrained.h"

#include "chief/run.h"

#include <inttypes.h>
#include <stdio.h>

/* What RANK has not trained: SAMPLES are not known of a caller's model. */
struct untrained {
    uint64_t steps, samples;
};

/* The last step that is known of RANK, which is gone, perhaps for long. A
 * trainer begins a round once all have pushed for the one before. */
static uint64_t last_step(const struct run *run, uint32_t rank) {
    uint64_t step = run->plan.schedule.start;
    if (!run_synchronous(run) &&
        run->trainers[rank].heartbeat.global_step > step)
        return run->trainers[rank].heartbeat.global_step;
    for (uint32_t r = 0; run_synchronous(run) && r < run->roster.num_ranks;
         r++) {
        uint64_t clock = run->trainers[r].heartbeat.clock;
        clock -= r != rank && clock > 0;
        if (run->trainers[r].in_view && clock > step)
            step = clock;
    }
    return step;
}

static bool is_external(const struct run *run) {
    return run->job->model.type == JOB_EXTERNAL;
}

/* The share follows from the replicas, as in the samplers. */
static uint64_t share_of(const struct run *run, uint32_t rank,
                         uint64_t samples) {
    return samples * run->trainers[rank].replicas / run->plan.num_replicas;
}

static struct untrained untrained_by(const struct run *run, uint32_t rank) {
    const struct run_absence *absence = &run->trainers[rank].absence;
    struct untrained untrained = {.steps = absence->steps};
    uint64_t start = run->plan.schedule.start;
    if (absence->is_gone && run->end_step > absence->since)
        untrained.steps += run->end_step - absence->since;
    if (!is_external(run) && untrained.steps)
        untrained.samples = share_of(run, rank,
                                     run_samples(run, start + untrained.steps) -
                                         run_samples(run, start));
    return untrained;
}

void untrained_leave(struct run *run, const struct roster_slot *slot) {
    struct run_absence *absence = &run->trainers[slot->rank].absence;
    char name[64];
    if (run->phase != RUN_TRAINING || run->shutdown.interrupted)
        return; /* it has ended its part, or all do */
    absence->is_gone = true;
    absence->since = last_step(run, slot->rank);
    if (!absence->steps)
        absence->first = absence->since;
    if (!run_count_live(run))
        return; /* nothing is trained any more */
    roster_name(slot, name, sizeof name);
    log_warning(
        run->log, "share_untrained",
        "after step %" PRIu64 " nothing of %s's share of the data, 1 of %u, "
        "is trained%s: %s",
        absence->since, name, run->roster.num_ranks,
        run->no_restart ? " any more, though the run may end with 0" : "",
        run->no_restart
            ? "to train it, end this run (SIGINT writes a checkpoint, if "
              "there is checkpoint.dir) and start the same command again"
            : "start this process again, by the same command, to train it "
              "from then on");
}

void untrained_return(struct run *run, uint32_t rank) {
    struct run_absence *absence = &run->trainers[rank].absence;
    uint64_t step =
        run_synchronous(run) ? run->trainers[rank].from - 1 : run_step(run);
    if (absence->is_gone && step > absence->since)
        absence->steps += step - absence->since;
    absence->is_gone = false;
}

void untrained_add(json_t *object, const struct run *run) {
    json_t *list = json_array();
    uint64_t samples = 0;
    bool unknown = false;
    for (uint32_t r = 0; r < run->roster.num_ranks; r++) {
        const struct roster_slot *slot = &run->roster.slots[r];
        struct untrained untrained = untrained_by(run, r);
        if (!untrained.steps)
            continue;
        samples += untrained.samples;
        unknown |= is_external(run);
        json_array_append_new(
            list, json_pack("{s:s, s:i, s:i, s:I, s:I, s:o}", "role",
                            cluster_role_name(slot->role), "index",
                            (int)slot->index, "rank", (int)r, "since_step",
                            (json_int_t)run->trainers[r].absence.first, "steps",
                            (json_int_t)untrained.steps, "samples",
                            is_external(run)
                                ? json_null()
                                : json_integer((json_int_t)untrained.samples)));
    }
    json_object_set_new(object, "untrained_samples",
                        unknown ? json_null()
                                : json_integer((json_int_t)samples));
    json_object_set_new(object, "untrained", list);
}

void untrained_log(const struct run *run) {
    uint64_t start = run->plan.schedule.start, steps = run->end_step - start;
    for (uint32_t r = 0; r < run->roster.num_ranks; r++) {
        struct untrained untrained = untrained_by(run, r);
        char name[64], samples[96] = "";
        if (!untrained.steps)
            continue;
        roster_name(&run->roster.slots[r], name, sizeof name);
        uint64_t all =
            run_samples(run, run->end_step) - run_samples(run, start);
        if (!is_external(run))
            snprintf(samples, sizeof samples,
                     ", %" PRIu64 " samples, %.0f %% of what the run would "
                     "have trained",
                     untrained.samples,
                     100 * (double)untrained.samples / (double)all);
        log_warning(run->log, "untrained_summarized",
                    "not all of the data was trained: %s was not there for "
                    "%" PRIu64 " of %" PRIu64 " steps, first after step "
                    "%" PRIu64 ", and its share of them%s is missing",
                    name, untrained.steps, steps,
                    run->trainers[r].absence.first, samples);
    }
}
