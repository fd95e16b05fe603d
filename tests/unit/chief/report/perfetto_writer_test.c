/* SPDX-License-Identifier: Apache-2.0 */
#include "chief/report/perfetto_writer.h"

#include "chief/report/perfetto.pb-c.h"
#include "tests/lib/assert_fails.h"
#include "tests/lib/file_bytes.h"
#include "tests/lib/test.h"

#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { SLICE_BEGIN = 1, SLICE_END };

static Perfetto__Trace *written(struct trace_record *records, size_t count,
                                double *cpu_seconds) {
    char path[] = "/tmp/perfetto-XXXXXX";
    close(mkstemp(path));
    struct perfetto_process process = {
        .name = "ps 0", .host = "h", .records = records, .count = count};
    struct perfetto_trace trace = {7, 1, 2, &process, 1};
    clock_t begun = clock();
    assert_ok(perfetto_write(path, &trace, &failure));
    *cpu_seconds = (double)(clock() - begun) / CLOCKS_PER_SEC;
    size_t size;
    void *bytes = file_bytes_read(path, &size);
    unlink(path);
    Perfetto__Trace *read = perfetto__trace__unpack(NULL, size, bytes);
    free(bytes);
    assert_non_null(read);
    return read;
}

/* Slices of each track of READ nest, in order; returns how many tracks have
 * one. COUNT of slices are begun and ended. */
static size_t expect_nested(const Perfetto__Trace *read, size_t count) {
    uint64_t *last = calloc(read->n_packet + 1, sizeof *last);
    unsigned *open = calloc(read->n_packet + 1, sizeof *open);
    size_t tracks = 0, begins = 0, ends = 0;
    assert_true(last && open);
    for (size_t i = 0; i < read->n_packet; i++) {
        const Perfetto__TracePacket *packet = read->packet[i];
        const Perfetto__TrackEvent *event = packet->track_event;
        if (packet->data_case != PERFETTO__TRACE_PACKET__DATA_TRACK_EVENT ||
            (event->type != SLICE_BEGIN && event->type != SLICE_END))
            continue;
        uint64_t track = event->track_uuid;
        assert_in_range(track, 1, read->n_packet);
        assert_true(packet->timestamp >= last[track]);
        tracks += !last[track];
        last[track] = packet->timestamp;
        begins += event->type == SLICE_BEGIN;
        ends += event->type == SLICE_END;
        open[track] += event->type == SLICE_BEGIN;
        assert_true(open[track]);
        open[track] -= event->type == SLICE_END;
    }
    free(last);
    free(open);
    assert_int_equal(begins, count);
    assert_int_equal(ends, count);
    return tracks;
}

static struct trace_record slice(int64_t start, int64_t duration,
                                 enum trace_kind kind) {
    return (struct trace_record){
        .start = start, .duration = duration, .step = 1, .kind = (uint8_t)kind};
}

/* CPU time of a trace of COUNT slices, each of which ends after the one before:
 * none lies within another. */
static double overlapping(unsigned count) {
    struct trace_record *records = calloc(count, sizeof *records);
    double seconds;
    assert_non_null(records);
    for (unsigned i = 0; i < count; i++)
        records[i] = slice(TIME_S + i, TIME_S, TRACE_QUEUE);
    Perfetto__Trace *read = written(records, count, &seconds);
    assert_int_equal(expect_nested(read, count), count);
    perfetto__trace__free_unpacked(read, NULL);
    free(records);
    return seconds;
}

/* 16 times as many cost less than 64 times as much; a square costs 256. */
TEST(slices_that_all_overlap_cost_no_square_of_their_number) {
    assert_true(overlapping(96000) < 64 * overlapping(6000));
}

/* A lane is taken again as soon as it is free, and by what lies within. */
TEST(lanes_are_no_more_than_slices_that_overlap) {
    enum { COUNT = 3000 };
    static struct trace_record records[COUNT];
    double seconds;
    for (unsigned i = 0; i < COUNT; i++)
        records[i] = slice(TIME_S + 10 * (int)i, 25, TRACE_QUEUE);
    Perfetto__Trace *read = written(records, COUNT, &seconds);
    assert_int_equal(expect_nested(read, COUNT), 3);
    perfetto__trace__free_unpacked(read, NULL);
    for (unsigned i = 0; i < COUNT; i++)
        records[i] = slice(TIME_S + 100 * (int)(i / 3) + (int)(i % 3),
                           90 - 2 * (int)(i % 3), TRACE_QUEUE);
    read = written(records, COUNT, &seconds);
    assert_int_equal(expect_nested(read, COUNT), 1);
    perfetto__trace__free_unpacked(read, NULL);
    for (unsigned i = 0; i < COUNT; i++) /* 16 within another at most */
        records[i] = slice(TIME_S + (int)i, 2 * (COUNT - (int)i), TRACE_QUEUE);
    read = written(records, COUNT, &seconds);
    assert_int_equal(expect_nested(read, COUNT), (COUNT + 15) / 16);
    perfetto__trace__free_unpacked(read, NULL);
}

TEST(a_trace_without_slices_has_no_track_of_them) {
    double seconds;
    Perfetto__Trace *read = written(NULL, 0, &seconds);
    assert_int_equal(expect_nested(read, 0), 0);
    perfetto__trace__free_unpacked(read, NULL);
}
