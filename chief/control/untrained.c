/* SPDX-License-Identifier: Apache-2.0 */
#include "chief/control/untrained.h"

#include "chief/run.h"

#include <inttypes.h>
#include <stdio.h>

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
