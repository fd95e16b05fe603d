/* SPDX-License-Identifier: Apache-2.0 */
#define STATE struct fixture *fixture

#include "worker/data/record_stream.h"

#include "tests/lib/test.h"

#include <unistd.h>

enum { FILES = 7, RECORDS = 611, BUFFER = 16 };

/* Files of 0 to 6 times 29 records; record i of all has the text "i". */
struct fixture {
    char folder[32], paths[FILES][64];
    const char *list[FILES];
    struct record_index *indices[FILES];
    unsigned headers;
};

static void write_text(const char *path, const char *text) {
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    assert_int_equal(fclose(file), 0);
}

static int setup(void **state) {
    struct fixture *fixture = calloc(1, sizeof *fixture);
    strcpy(fixture->folder, "/tmp/record_stream.XXXXXX");
    assert_non_null(mkdtemp(fixture->folder));
    unsigned next = 0;
    for (int f = 0; f < FILES; f++) {
        snprintf(fixture->paths[f], sizeof fixture->paths[f], "%s/%d",
                 fixture->folder, f);
        fixture->list[f] = fixture->paths[f];
        FILE *file = fopen(fixture->paths[f], "w");
        fputs("header\n", file);
        for (int i = 0; i < f * 29 + 2 * (f == 3); i++)
            fprintf(file, "%u\n", next++);
        fclose(file);
    }
    assert_int_equal(next, RECORDS);
    *state = fixture;
    return 0;
}

TEARDOWN(teardown) {
    for (int f = 0; f < FILES; f++) {
        record_index_close(&fixture->indices[f]);
        unlink(fixture->paths[f]);
    }
    rmdir(fixture->folder);
    free(fixture);
}

FIXTURE(setup, teardown);

static enum status take_header(void *context, const struct record *record,
                               struct failure *why) {
    struct fixture *fixture = context;
    fixture->headers++;
    if (record->size == 6 && !memcmp(record->bytes, "header", 6))
        return STATUS_OK;
    return status_fail(why, FAILURE_DATA_MISMATCH, "another header");
}

static struct record_stream_options options_of(struct fixture *fixture,
                                               uint32_t rank, uint32_t ranks) {
    return (struct record_stream_options){.paths = fixture->list,
                                          .num_paths = FILES,
                                          .reader = &line_reader,
                                          .rank = rank,
                                          .num_ranks = ranks,
                                          .buffer = BUFFER,
                                          .shuffle = true,
                                          .seed = 5,
                                          .header = take_header,
                                          .context = fixture,
                                          .indices = fixture->indices,
                                          .indices_kept_in = "/dev/null"};
}

static void next_window(struct record_stream *stream,
                        struct record_window *window) {
    assert_ok(record_stream_next(stream, window, &failure));
}

/* The number that is WINDOW's record I. */
static unsigned number_at(const struct record_window *window, uint32_t i) {
    const char *path;
    struct record record = record_window_get(window, i, &path);
    const char *text = textf("%.*s", (int)record.size, record.bytes);
    assert_int_equal(record.line, record.number + 1);
    return (unsigned)atoi(text);
}

/* Reads one epoch of RANK into SEEN (how often each record was), and into ORDER
 * what was read one after the other; returns how many. */
static unsigned read_epoch(struct record_stream *stream, uint64_t epoch,
                           unsigned *seen, unsigned *order) {
    struct record_window window = {0};
    unsigned count = 0;
    for (uint64_t number = 0;; number++) {
        next_window(stream, &window);
        assert_int_equal(window.epoch, epoch);
        assert_int_equal(window.number, number);
        if (!window.count)
            break;
        for (uint32_t i = 0; i < window.count; i++) {
            order[count] = number_at(&window, i);
            seen[order[count++]]++;
        }
    }
    record_window_free(&window);
    return count;
}

/* With 1 to 3 trainers by file, with 4 and more by record. */
TEST(each_record_is_read_once_an_epoch_by_one_trainer) {
    unsigned orders[2][RECORDS];
    for (uint32_t ranks = 1; ranks <= 6; ranks++)
        for (uint64_t epoch = 0; epoch < 2; epoch++) {
            unsigned seen[RECORDS] = {0}, most = 0;
            for (uint32_t rank = 0; rank < ranks; rank++) {
                struct record_stream_options options =
                    options_of(fixture, rank, ranks);
                struct record_stream *stream;
                unsigned order[RECORDS];
                uint64_t expected;
                assert_ok(record_stream_open(&stream, &options, &failure));
                assert_ok(record_stream_count(stream, &expected, &failure));
                for (uint64_t e = 0; e <= epoch; e++) {
                    unsigned of_epoch[RECORDS] = {0};
                    unsigned count = read_epoch(stream, e, of_epoch, order);
                    assert_int_equal(count, expected);
                    most = count > most ? count : most;
                    for (int i = 0; e == epoch && i < RECORDS; i++)
                        seen[i] += of_epoch[i];
                }
                if (ranks == 1)
                    memcpy(orders[epoch], order, sizeof order);
                record_stream_close(&stream);
            }
            for (int i = 0; i < RECORDS; i++)
                assert_int_equal(seen[i], 1);
            if (ranks > 3)
                assert_int_equal(most, (RECORDS + ranks - 1) / ranks);
        }
    assert_memory_not_equal(orders[0], orders[1], sizeof orders[0]);
    for (int i = 0; i < RECORDS; i++)
        assert_int_equal(orders[0][i] / BUFFER, i / BUFFER);
}

TEST(without_shuffling_records_come_in_order) {
    struct record_stream_options options = options_of(fixture, 0, 1);
    struct record_stream *stream;
    unsigned seen[RECORDS] = {0}, order[RECORDS];
    options.shuffle = false;
    assert_ok(record_stream_open(&stream, &options, &failure));
    read_epoch(stream, 0, seen, order);
    for (unsigned i = 0; i < RECORDS; i++)
        assert_int_equal(order[i], i);
    assert_int_equal(fixture->headers, FILES);
    record_stream_close(&stream);
}

static void count_all(struct fixture *fixture) {
    struct record_stream_options options = options_of(fixture, 0, 1);
    struct record_stream *stream;
    uint64_t count;
    assert_ok(record_stream_open(&stream, &options, &failure));
    assert_ok(record_stream_count(stream, &count, &failure));
    assert_int_equal(count, RECORDS);
    record_stream_close(&stream);
}

/* By reading what is before it, and by the indices of files that were
 * counted. */
TEST(a_place_is_found_again) {
    for (unsigned i = 0; i < 4; i++) {
        uint32_t ranks = i % 2 ? 5 : 1;
        struct record_stream_options options =
            options_of(fixture, ranks / 2, ranks);
        if (i == 2)
            count_all(fixture);
        struct record_stream *on, *sought;
        struct record_window expected = {0}, found = {0};
        assert_ok(record_stream_open(&on, &options, &failure));
        assert_ok(record_stream_open(&sought, &options, &failure));
        for (int w = 0; w < 90; w++) {
            next_window(on, &expected);
            if (!expected.count)
                continue;
            assert_ok(record_stream_seek(sought, expected.epoch,
                                         expected.number, &failure));
            next_window(sought, &found);
            assert_int_equal(found.epoch, expected.epoch);
            assert_int_equal(found.number, expected.number);
            assert_int_equal(found.count, expected.count);
            for (uint32_t r = 0; r < found.count; r++)
                assert_int_equal(number_at(&found, r), number_at(&expected, r));
        }
        record_window_free(&expected);
        record_window_free(&found);
        record_stream_close(&on);
        record_stream_close(&sought);
    }
}

TEST(a_wrong_header_and_a_missing_file_are_named) {
    struct record_stream_options options = options_of(fixture, 0, 1);
    struct record_stream *stream;
    uint64_t count;
    write_text(fixture->paths[2], "\nother\n5\n");
    assert_ok(record_stream_open(&stream, &options, &failure));
    assert_error(record_stream_count(stream, &count, &failure),
                 FAILURE_DATA_MISMATCH);
    assert_contains(failure.text, fixture->paths[2]);
    assert_contains(failure.text, ":2: another header");
    write_text(fixture->paths[2], "");
    assert_error(record_stream_count(stream, &count, &failure),
                 FAILURE_DATA_DAMAGED);
    unlink(fixture->paths[2]);
    assert_error(record_stream_count(stream, &count, &failure),
                 FAILURE_DATA_UNREADABLE);
    assert_contains(failure.text, fixture->paths[2]);
    record_stream_close(&stream);
}
