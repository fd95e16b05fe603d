/* SPDX-License-Identifier: Apache-2.0 */
#include "chief/series.h"

#include "chief/run.h"
#include "proto/base/time.h"

#include <stdio.h>

double series_again(const struct run *run, enum status status) {
    if (!run->series || (status && status != STATUS_FAILED) ||
        !run->series->more[status == STATUS_OK])
        return 0;
    return run->job->timeouts.peer + run->job->timeouts.stop;
}

bool series_needs(const struct run *run) {
    return run->series && (!run->series->first || run->phase > RUN_JOINING);
}

static void list_absent(const struct run *run, char *text, size_t size) {
    size_t used = 0;
    text[0] = 0;
    for (uint32_t i = 0; i < run->roster.count && used < size; i++) {
        char name[64];
        if (run->roster.slots[i].state == ROSTER_HELD)
            continue;
        roster_name(&run->roster.slots[i], name, sizeof name);
        used += (size_t)snprintf(text + used, size - used, "%s%s",
                                 used ? ", " : "", name);
    }
}

/* They were here a moment ago, and have only had to take their part down. */
static void await_back(struct run *run, int64_t now) {
    char absent[512];
    double within = run->job->timeouts.peer;
    if (now - run->opened < time_from_seconds(within))
        return;
    list_absent(run, absent, sizeof absent);
    if (absent[0])
        run_stop(run, STATUS_RETRY,
                 "did not come back for the next run within %.0f s "
                 "(timeouts.peer): %s",
                 within, absent);
}

void series_step(struct run *run, int64_t now) {
    struct series *series = run->series;
    if (!series || run->phase >= RUN_STOPPING)
        return;
    if (run->phase == RUN_JOINING) {
        if (!series->first)
            await_back(run, now);
        return;
    }
    if (!series->began)
        series->began = now;
    if (now - series->began > time_from_seconds(series->limit))
        run_stop(run, STATUS_FAILED, "not over after %g s (compare.limit)",
                 series->limit);
}
