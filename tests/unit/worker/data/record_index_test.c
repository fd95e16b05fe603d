/* SPDX-License-Identifier: Apache-2.0 */
/* Indices of large files: what is counted, what is kept for others, and that a
 * stream goes to any place without reading all that is before it. */
#define STATE struct fixture *fixture

#include "worker/data/record_index.h"

#include "tests/lib/test.h"
#include "worker/data/record_stream.h"

#include <fcntl.h>
#include <glob.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

enum { RECORDS = 150000, BUFFER = 1000 };

/* Two plain files of RECORDS lines and a header, and the first compressed. */
struct fixture {
    char folder[40], paths[2][64], packed[64], kept[64];
    const char *list[2];
    struct record_index *indices[2];
};

static unsigned lines_read;

static enum status counting_next(struct record_file *file,
                                 struct record *record, struct failure *why) {
    lines_read++;
    return line_reader.next(file, record, why);
}

static struct record_reader counting;

static int setup(void **state) {
    struct fixture *fixture = calloc(1, sizeof *fixture);
    *state = fixture;
    counting = line_reader;
    counting.next = counting_next;
    strcpy(fixture->folder, "/tmp/record_index.XXXXXX");
    assert_non_null(mkdtemp(fixture->folder));
    snprintf(fixture->packed, sizeof fixture->packed, "%s/gz", fixture->folder);
    snprintf(fixture->kept, sizeof fixture->kept, "%s/a/kept", fixture->folder);
    gzFile packed = gzopen(fixture->packed, "wb1");
    for (int f = 0; f < 2; f++) {
        fixture->list[f] = fixture->paths[f];
        snprintf(fixture->paths[f], sizeof fixture->paths[f], "%s/%d",
                 fixture->folder, f);
        FILE *file = fopen(fixture->paths[f], "w");
        fputs("header\n", file);
        gzputs(packed, f ? "" : "header\n");
        for (unsigned i = 0; i < RECORDS; i++) {
            fprintf(file, "%u\n", f * RECORDS + i);
            if (!f)
                gzprintf(packed, "%u\n", i);
        }
        assert_int_equal(fclose(file), 0);
    }
    assert_int_equal(gzclose(packed), Z_OK);
    return 0;
}

TEARDOWN(teardown) {
    for (int f = 0; f < 2; f++)
        record_index_close(&fixture->indices[f]);
    assert_int_equal(system(textf("rm -r %s", fixture->folder)), 0);
    free(fixture);
}

FIXTURE(setup, teardown);

/* Opens the index of PATH; returns how many lines that read. */
static unsigned open_index(struct fixture *fixture, const char *path,
                           uint64_t marks) {
    struct record_index_options options = {
        .path = path, .reader = &counting, .kept_in = fixture->kept};
    struct record_index *index;
    lines_read = 0;
    assert_ok(record_index_open(&index, &options, &failure));
    assert_int_equal(index->records, RECORDS + 1);
    assert_int_equal(index->num_marks, marks);
    record_index_close(&index);
    return lines_read;
}

/* The file that keeps the only index. */
static void kept_file(const struct fixture *fixture, char *path) {
    glob_t found;
    assert_int_equal(glob(textf("%s/*.idx", fixture->kept), 0, NULL, &found),
                     0);
    assert_int_equal(found.gl_pathc, 1);
    strcpy(path, found.gl_pathv[0]);
    globfree(&found);
}

TEST(a_file_is_read_once_while_it_stays_the_same) {
    const char *path = fixture->paths[0];
    assert_int_equal(open_index(fixture, path, 3), RECORDS + 2);
    assert_int_equal(open_index(fixture, path, 3), 0);
    struct timespec times[2] = {{.tv_sec = 1}, {.tv_sec = 1}};
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
    assert_int_equal(open_index(fixture, path, 3), RECORDS + 2);
    assert_int_equal(open_index(fixture, path, 3), 0);
}

TEST(a_damaged_or_shorter_index_is_made_again) {
    char kept[128], byte;
    struct stat about;
    open_index(fixture, fixture->paths[0], 3);
    kept_file(fixture, kept);
    assert_int_equal(stat(kept, &about), 0);
    for (off_t at = 0; at < about.st_size; at += 23) {
        int file = open(kept, O_RDWR);
        assert_int_equal(pread(file, &byte, 1, at), 1);
        byte ^= 1;
        assert_int_equal(pwrite(file, &byte, 1, at), 1);
        if (at % 2)
            assert_int_equal(ftruncate(file, at), 0);
        close(file);
        assert_int_equal(open_index(fixture, fixture->paths[0], 3),
                         RECORDS + 2);
    }
}

TEST(a_compressed_file_has_no_marks) {
    assert_int_equal(open_index(fixture, fixture->packed, 0), RECORDS + 2);
    assert_int_equal(open_index(fixture, fixture->packed, 0), 0);
}

TEST(a_folder_that_cannot_be_written_keeps_nothing) {
    strcpy(fixture->kept, "/dev/null/kept");
    assert_int_equal(open_index(fixture, fixture->paths[0], 3), RECORDS + 2);
    assert_int_equal(open_index(fixture, fixture->paths[0], 3), RECORDS + 2);
}

static bool always(void *context) {
    (void)context;
    return true;
}

/* Here a process that does not end its work. */
TEST(another_process_is_waited_for) {
    struct record_index_options options = {.path = fixture->paths[0],
                                           .reader = &counting,
                                           .kept_in = fixture->kept,
                                           .is_cancelled = always};
    struct record_index *index;
    char kept[128];
    open_index(fixture, fixture->paths[0], 3);
    kept_file(fixture, kept);
    int file = open(kept, O_RDONLY);
    assert_int_equal(flock(file, LOCK_EX), 0);
    assert_error(record_index_open(&index, &options, &failure),
                 FAILURE_TERMINATED);
    assert_null(index);
    close(file);
}

static enum status take_header(void *context, const struct record *record,
                               struct failure *why) {
    (void)context;
    return !memcmp(record->bytes, "header", 6)
               ? STATUS_OK
               : status_fail(why, FAILURE_DATA_MISMATCH, "no header");
}

/* By file, and by record among three; the window at a mark, and those beside
 * it; and one behind the end. */
TEST(a_stream_reads_no_more_than_from_the_last_mark) {
    for (uint32_t ranks = 1; ranks <= 3; ranks += 2) {
        struct record_stream_options options = {.paths = fixture->list,
                                                .num_paths = 2,
                                                .reader = &counting,
                                                .rank = ranks - 1,
                                                .num_ranks = ranks,
                                                .buffer = BUFFER,
                                                .header = take_header,
                                                .indices = fixture->indices,
                                                .indices_kept_in =
                                                    fixture->kept};
        struct record_window window = {0};
        struct record_stream *stream;
        uint64_t count;
        assert_ok(record_stream_open(&stream, &options, &failure));
        assert_ok(record_stream_count(stream, &count, &failure));
        assert_int_equal(count, 2 * RECORDS / ranks);
        for (uint64_t number = 0; number <= count / BUFFER; number += 5) {
            const char *path;
            lines_read = 0;
            assert_ok(record_stream_seek(stream, 1, number, &failure));
            assert_true(lines_read <= RECORD_INDEX_STEP + 1);
            assert_ok(record_stream_next(stream, &window, &failure));
            uint64_t left = count - number * BUFFER;
            assert_int_equal(window.count, left < BUFFER ? left : BUFFER);
            for (uint32_t i = 0; i < window.count; i++) {
                struct record record = record_window_get(&window, i, &path);
                uint64_t wanted = (number * BUFFER + i) * ranks + options.rank;
                assert_int_equal(
                    atoi(textf("%.*s", (int)record.size, record.bytes)),
                    wanted);
                assert_int_equal(record.line, wanted % RECORDS + 2);
                assert_int_equal(record.number, wanted % RECORDS + 1);
            }
        }
        record_window_free(&window);
        record_stream_close(&stream);
    }
}
