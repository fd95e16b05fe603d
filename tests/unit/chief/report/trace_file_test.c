/* SPDX-License-Identifier: Apache-2.0 */
#define STATE struct metrics_fixture *measured

#include "chief/report/trace_file.h"

#include "chief/report/perfetto.pb-c.h"
#include "tests/lib/assert_fails.h"
#include "tests/lib/metrics_fixture.h"
#include "tests/lib/test.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char earlier[] = "an earlier process of it ended before";

FIXTURE(metrics_fixture_setup, metrics_fixture_teardown);

/* Reads the file at PATH into BYTES[SIZE], and removes it. */
static size_t take_file(const char *path, char *bytes, size_t size) {
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    size_t length = fread(bytes, 1, size, file);
    fclose(file);
    unlink(path);
    assert_in_range(length, 1, size - 1);
    return length;
}

static void hold_slots(struct run *run) {
    run->roster.count = run->roster.num_ranks = 2;
    for (uint32_t r = 0; r < 2; r++)
        run->roster.slots[r] = (struct roster_slot){.role = CLUSTER_WORKER,
                                                    .index = r,
                                                    .rank = r,
                                                    .state = ROSTER_HELD,
                                                    .incarnation = 7 + r};
}

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
    hold_slots(run);
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
    size_t size = take_file(path, bytes, sizeof bytes);
    return memmem(bytes, size, earlier, sizeof earlier - 1);
}

TEST(records_of_a_process_that_was_replaced_are_lost) {
    assert_true(says_lost(measured, 5, false));
    assert_false(says_lost(measured, 4, false)); /* it was not in the steps */
    assert_false(says_lost(measured, 5, true));
}

/* COUNT records of one slice each of SECOND, in one piece. */
static void send_records(struct run *run, uint32_t rank, size_t count,
                         int64_t second) {
    struct trace_record records[64];
    Capstan__Trace piece = CAPSTAN__TRACE__INIT;
    assert_in_range(count, 1, sizeof records / sizeof *records);
    for (size_t i = 0; i < count; i++)
        records[i] = (struct trace_record){.start = second * TIME_S + (int)i,
                                           .duration = 1,
                                           .step = 5,
                                           .block = (uint32_t)rank,
                                           .kind = TRACE_FORWARD};
    piece.records.data = (uint8_t *)records;
    piece.records.len = count * sizeof *records;
    trace_file_receive(run, &run->roster.slots[rank], &piece);
}

static size_t count_slices(const char *bytes, size_t size) {
    enum { SLICE_BEGIN = 1 };
    size_t count = 0;
    Perfetto__Trace *trace =
        perfetto__trace__unpack(NULL, size, (const uint8_t *)bytes);
    assert_non_null(trace);
    for (size_t i = 0; i < trace->n_packet; i++)
        count += trace->packet[i]->data_case ==
                     PERFETTO__TRACE_PACKET__DATA_TRACK_EVENT &&
                 trace->packet[i]->track_event->type == SLICE_BEGIN;
    perfetto__trace__free_unpacked(trace, NULL);
    return count;
}

/* The first has more than its part of 40: the second still has its own, also if
 * a process of it was replaced. */
TEST(a_process_takes_no_more_than_its_part_of_the_records) {
    static const char refused[] = "it sent more than its part";
    static const struct log log = {.silent = true};
    static char bytes[1 << 16];
    struct run *run = &measured->run;
    char path[64];
    snprintf(path, sizeof path, "/tmp/trace-%d.pftrace", (int)getpid());
    const struct trace_steps steps = {5, 6, path};
    run->log = &log;
    hold_slots(run);
    assert_ok(trace_file_open(run, &steps, &failure));
    run->trace.room = 40;
    for (unsigned i = 0; i < 10; i++)
        send_records(run, 0, 20, i);
    send_records(run, 1, 20, 1);
    run->roster.slots[1].incarnation = 9;
    send_records(run, 1, 20, 2);
    send_last(run, 0);
    send_last(run, 1);
    trace_file_finish(run);
    trace_file_close(run);
    size_t size = take_file(path, bytes, sizeof bytes);
    assert_int_equal(count_slices(bytes, size), 80);
    const char *said = memmem(bytes, size, refused, sizeof refused - 1);
    assert_non_null(said);
    said++;
    assert_null(memmem(said, size - (size_t)(said - bytes), refused,
                       sizeof refused - 1));
}
