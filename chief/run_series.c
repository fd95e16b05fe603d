/* SPDX-License-Identifier: Apache-2.0 */
#include "chief/run_series.h"

#include "chief/run.h"
#include "core/base/time.h"

#include <stdio.h>

double run_series_next_within(const struct run *run, enum status status) {
    if (!run->series || (status && status != STATUS_FAILED) ||
        !run->series->continues[status == STATUS_OK])
        return 0;
    return run->job->timeouts.peer + run->job->timeouts.stop;
}

bool run_series_requires_all(const struct run *run) {
    return run->series && (!run->series->first || run->phase > RUN_JOINING);
}

static void run_series_list_absent(const struct run *run, char *text,
                                   size_t size) {
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

/* After the first run members only close their part and join again, so a short
 * deadline is enough. */
static void check_rejoined(struct run *run, int64_t now) {
    char absent[512];
    double within = run->job->timeouts.peer;
    if (now - run->opened < time_from_seconds(within))
        return;
    run_series_list_absent(run, absent, sizeof absent);
    if (absent[0])
        run_stop(run, FAILURE_MEMBER_ABSENT,
                 "did not come back for the next run within %.0f s "
                 "(timeouts.peer): %s",
                 within, absent);
}

void run_series_step(struct run *run, int64_t now) {
    struct run_series *series = run->series;
    if (!series || run->phase >= RUN_STOPPING)
        return;
    if (run->phase == RUN_JOINING) {
        if (!series->first)
            check_rejoined(run, now);
        return;
    }
    if (!series->began)
        series->began = now;
    if (now - series->began > time_from_seconds(series->limit))
        run_stop(run, FAILURE_TIME_LIMIT, "not over after %g s (compare.limit)",
                 series->limit);
}
