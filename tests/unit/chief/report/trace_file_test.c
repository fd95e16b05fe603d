/* SPDX-License-Identifier: Apache-2.0 */
#define STATE struct metrics_fixture *measured

#include "chief/report/trace_file.h"

#include "tests/lib/assert_fails.h"
#include "tests/lib/metrics_fixture.h"
#include "tests/lib/test.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char earlier[] = "an earlier process of it ended before";

FIXTURE(metrics_fixture_setup, metrics_fixture_teardown);

static void send_last(struct run *run, uint32_t rank) {
    Capstan__Trace piece = CAPSTAN__TRACE__INIT;
    piece.last = true;
    trace_file_receive(run, &run->roster.slots[rank], &piece);
}

/* Of two trainers the second is gone at step CLOCK of a trace of steps 5 to 6,
 * after it has sent what it had if SENDS, and another takes its place. Does the
 * file say that records are lost? */
static bool says_lost(struct metrics_fixture *measured, uint64_t clock,
                      bool sends) {
    struct run *run = &measured->run;
    static const struct log log = {.silent = true};
    char path[64], bytes[4096] = "";
    snprintf(path, sizeof path, "/tmp/trace-%d.pftrace", (int)getpid());
    const struct trace_steps steps = {5, 6, path};
    run->log = &log;
    run->roster.count = run->roster.num_ranks = 2;
    for (uint32_t r = 0; r < 2; r++)
        run->roster.slots[r] = (struct roster_slot){.role = CLUSTER_WORKER,
                                                    .index = r,
                                                    .rank = r,
                                                    .state = ROSTER_HELD,
                                                    .incarnation = 7 + r};
    assert_ok(trace_file_open(run, &steps, &failure));
    measured->trainers[1].heartbeat.clock = clock;
    if (sends)
        send_last(run, 1);
    roster_remove(&run->roster.slots[1]);
    trace_file_step(run, time_now());
    run->roster.slots[1].state = ROSTER_HELD;
    run->roster.slots[1].incarnation = 9;
    trace_file_step(run, time_now());
    send_last(run, 0);
    send_last(run, 1);
    trace_file_finish(run);
    trace_file_close(run);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    size_t size = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    unlink(path);
    assert_in_range(size, 1, sizeof bytes - 1);
    return memmem(bytes, size, earlier, sizeof earlier - 1);
}

TEST(records_of_a_process_that_was_replaced_are_lost) {
    assert_true(says_lost(measured, 5, false));
    assert_false(says_lost(measured, 4, false)); /* it was not in the steps */
    assert_false(says_lost(measured, 5, true));
}
