/* SPDX-License-Identifier: Apache-2.0 */
#define STATE struct folder *folder

#include "chief/report/tensorboard_writer.h"

#include "chief/report/event.pb-c.h"
#include "chief/report/histogram_board.h"
#include "tests/lib/assert_fails.h"
#include "tests/lib/skip.h"
#include "tests/lib/test.h"

#include <dirent.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

struct folder {
    char root[64], dir[128], file[512];
};

static int make_folder(void **state) {
    struct folder *folder = calloc(1, sizeof *folder);
    if (!folder)
        return -1;
    strcpy(folder->root, "/tmp/events-test-XXXXXX");
    if (!mkdtemp(folder->root))
        return -1;
    snprintf(folder->dir, sizeof folder->dir, "%s/run/events", folder->root);
    *state = folder;
    return 0;
}

static int remove_folder(void **state) {
    struct folder *folder = *state;
    int status = system(textf("rm -rf %s", folder->root));
    free(folder);
    return status;
}

FIXTURE(make_folder, remove_folder);

/* Counts the files in the folder and notes the last. */
static unsigned find_file(struct folder *folder) {
    DIR *dir = opendir(folder->dir);
    assert_non_null(dir);
    unsigned found = 0;
    for (struct dirent *entry; (entry = readdir(dir));) {
        if (entry->d_name[0] == '.')
            continue;
        snprintf(folder->file, sizeof folder->file, "%s/%s", folder->dir,
                 entry->d_name);
        found++;
    }
    closedir(dir);
    return found;
}

/* CRC32C bit by bit (RFC 3720, B.4): the oracle for ISA-L's. */
static uint32_t crc32c(const uint8_t *bytes, size_t size) {
    uint32_t crc = 0xffffffffu;
    for (size_t i = 0; i < size; i++) {
        crc ^= bytes[i];
        for (int bit = 0; bit < 8; bit++)
            crc = (crc >> 1) ^ (0x82f63b78u & -(crc & 1));
    }
    return ~crc;
}

static uint32_t unmask(uint32_t masked) {
    uint32_t rotated = masked - 0xa282ead8u;
    return (rotated >> 17) | (rotated << 15);
}

/* Reads the next record of FILE, checks both CRCs; NULL at its end. */
static Tensorboard__Event *read_event(FILE *file) {
    uint64_t length;
    uint32_t crc;
    uint8_t bytes[1024];
    if (fread(&length, sizeof length, 1, file) != 1) {
        assert_true(feof(file));
        return NULL;
    }
    assert_int_equal(fread(&crc, sizeof crc, 1, file), 1);
    assert_int_equal(unmask(crc), crc32c((uint8_t *)&length, sizeof length));
    assert_in_range(length, 1, sizeof bytes);
    assert_int_equal(fread(bytes, length, 1, file), 1);
    assert_int_equal(fread(&crc, sizeof crc, 1, file), 1);
    assert_int_equal(unmask(crc), crc32c(bytes, length));
    Tensorboard__Event *event = tensorboard__event__unpack(NULL, length, bytes);
    assert_non_null(event);
    return event;
}

static void expect_version(FILE *file) {
    Tensorboard__Event *event = read_event(file);
    assert_non_null(event);
    assert_int_equal(event->what_case, TENSORBOARD__EVENT__WHAT_FILE_VERSION);
    assert_string_equal(event->file_version, "brain.Event:2");
    assert_true(event->wall_time > 1e9);
    tensorboard__event__free_unpacked(event, NULL);
}

static void expect_scalar(FILE *file, const char *tag, int64_t step,
                          float value) {
    Tensorboard__Event *event = read_event(file);
    assert_non_null(event);
    assert_int_equal(event->what_case, TENSORBOARD__EVENT__WHAT_SUMMARY);
    assert_int_equal(event->step, step);
    assert_int_equal(event->summary->n_value, 1);
    Tensorboard__Summary__Value *scalar = event->summary->value[0];
    assert_string_equal(scalar->tag, tag);
    assert_int_equal(scalar->value_case,
                     TENSORBOARD__SUMMARY__VALUE__VALUE_SIMPLE_VALUE);
    assert_true(scalar->simple_value == value ||
                (isnan(scalar->simple_value) && isnan(value)));
    tensorboard__event__free_unpacked(event, NULL);
}

static struct tensorboard_writer *open_events(struct folder *folder) {
    struct tensorboard_writer *writer;
    struct failure why = {0};
    if (tensorboard_writer_open(&writer, folder->dir, &why))
        fail_msg("%s", why.text);
    return writer;
}

static void add(struct tensorboard_writer *writer, const char *tag,
                uint64_t step, double value) {
    struct failure why = {0};
    if (tensorboard_writer_add_scalar(writer, tag, step, value, &why))
        fail_msg("%s", why.text);
}

TEST_WITH(NULL, NULL, the_oracle_knows_the_published_check_value) {
    assert_int_equal(crc32c((const uint8_t *)"123456789", 9), 0xe3069283u);
}

TEST(every_record_is_framed_and_reads_back) {
    struct tensorboard_writer *writer = open_events(folder);
    add(writer, "train/loss", 1, 2.25);
    add(writer, "train/loss", 2, 0);
    add(writer, "test/accuracy", UINT64_C(5000000000), 0.875);
    add(writer, "train/loss", 3, NAN);
    tensorboard_writer_close(&writer);
    assert_null(writer);

    assert_int_equal(find_file(folder), 1);
    assert_contains(folder->file, "/events.out.tfevents.");
    FILE *file = fopen(folder->file, "rb");
    assert_non_null(file);
    expect_version(file);
    expect_scalar(file, "train/loss", 1, 2.25f);
    expect_scalar(file, "train/loss", 2, 0);
    expect_scalar(file, "test/accuracy", INT64_C(5000000000), 0.875f);
    expect_scalar(file, "train/loss", 3, NAN);
    assert_null(read_event(file));
    fclose(file);
}

/* -3 and -2.5 lie in bins of their own, far from 1 and from 1.2. */
TEST(a_histogram_has_its_bins_and_where_they_begin) {
    static const float values[] = {-3, -2.5f, 1, 1, 1.2f};
    static const double limits[] = {-3, -2.75, -2.5, 1, 1.125, 1.25};
    static const double counts[] = {1, 0, 1, 0, 2, 1};
    static struct histogram_sum sum = {
        .finite = 5, .sum = -2.3, .squares = 18.69, .least = -3, .most = 1.2};
    struct histogram histogram;
    struct failure why = {0};
    histogram_clear(&histogram);
    histogram_add(&histogram, values, 5);
    for (uint32_t bin = 0; bin < HISTOGRAM_BINS; bin++)
        sum.counts[histogram_place(bin)] += histogram.counts[bin];
    struct tensorboard_writer *writer = open_events(folder);
    assert_int_equal(
        tensorboard_writer_add_histogram(writer, "weights/w", 7, &sum, &why),
        STATUS_OK);
    tensorboard_writer_close(&writer);
    find_file(folder);
    FILE *file = fopen(folder->file, "rb");
    assert_non_null(file);
    expect_version(file);
    Tensorboard__Event *event = read_event(file);
    assert_int_equal(event->step, 7);
    Tensorboard__Summary__Value *value = event->summary->value[0];
    assert_string_equal(value->tag, "weights/w");
    Tensorboard__HistogramProto *proto = value->histo;
    assert_true(proto->num == 5 && proto->min == -3 && proto->sum == -2.3);
    size_t first = proto->bucket[0] ? 0 : 1; /* an empty one before all */
    assert_int_equal(proto->n_bucket, first + 6);
    assert_int_equal(proto->n_bucket_limit, first + 6);
    for (size_t i = 0; i < 6; i++) {
        assert_true(proto->bucket_limit[first + i] == limits[i]);
        assert_true(proto->bucket[first + i] == counts[i]);
    }
    tensorboard__event__free_unpacked(event, NULL);
    fclose(file);
}

TEST(a_resumed_run_records_the_step_it_restarts_before) {
    struct tensorboard_writer *writer = open_events(folder);
    struct failure why = {0};
    assert_int_equal(tensorboard_writer_restart(writer, 501, &why), STATUS_OK);
    find_file(folder);
    FILE *file = fopen(folder->file, "rb");
    assert_non_null(file);
    expect_version(file);
    Tensorboard__Event *event = read_event(file);
    assert_int_equal(event->what_case, TENSORBOARD__EVENT__WHAT_SESSION_LOG);
    assert_int_equal(event->session_log->status,
                     TENSORBOARD__SESSION_LOG__SESSION_STATUS__START);
    assert_int_equal(event->step, 501);
    tensorboard__event__free_unpacked(event, NULL);
    fclose(file);
    tensorboard_writer_close(&writer);
}

TEST(a_flush_makes_records_visible_to_readers) {
    struct tensorboard_writer *writer = open_events(folder);
    struct failure why = {0};
    add(writer, "train/loss", 7, 0.5);
    assert_int_equal(tensorboard_writer_flush(writer, &why), STATUS_OK);
    find_file(folder);
    FILE *file = fopen(folder->file, "rb");
    assert_non_null(file);
    expect_version(file);
    expect_scalar(file, "train/loss", 7, 0.5f);
    fclose(file);
    tensorboard_writer_close(&writer);
}

TEST(a_tag_beyond_the_limit_is_refused) {
    struct tensorboard_writer *writer = open_events(folder);
    struct failure why = {0};
    char tag[514];
    memset(tag, 'x', sizeof tag);
    tag[513] = '\0';
    assert_fails(tensorboard_writer_add_scalar(writer, tag, 1, 1, &why), &why,
                 FAILURE_NAME_TOO_LONG);
    tag[512] = '\0';
    add(writer, tag, INT64_MAX, 1);
    tensorboard_writer_close(&writer);
}

TEST(a_folder_that_cannot_be_created_is_named) {
    struct tensorboard_writer *writer;
    struct failure why = {0};
    char below[256];
    snprintf(below, sizeof below, "%s/file", folder->root);
    FILE *file = fopen(below, "w");
    assert_non_null(file);
    fclose(file);
    strcat(below, "/events");
    assert_fails(tensorboard_writer_open(&writer, below, &why), &why,
                 FAILURE_OUTPUT_UNUSABLE);
    assert_contains(why.text, below);
    assert_null(writer);
}

TEST(a_write_failure_names_the_file) {
    struct tensorboard_writer *writer = open_events(folder);
    struct failure why = {0};
    struct rlimit before, small = {.rlim_cur = 64};
    find_file(folder);
    getrlimit(RLIMIT_FSIZE, &before);
    small.rlim_max = before.rlim_max;
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &small);
    add(writer, "train/loss", 1, 0.5);
    enum status status = tensorboard_writer_flush(writer, &why);
    tensorboard_writer_close(&writer);
    setrlimit(RLIMIT_FSIZE, &before);
    assert_fails(status, &why, FAILURE_FILE_UNWRITABLE);
    assert_contains(why.text, folder->file);
}

/* What TensorBoard's own reader makes of the file, as "tag step value". */
static const char *const reader =
    "import sys\n"
    "try:\n"
    "    from tensorboard.backend.event_processing import event_accumulator\n"
    "except ImportError:\n"
    "    sys.exit(77)\n"
    "events = event_accumulator.EventAccumulator(sys.argv[1])\n"
    "events.Reload()\n"
    "for tag in sorted(events.Tags()['scalars']):\n"
    "    for e in events.Scalars(tag):\n"
    "        print(tag, e.step, e.value)\n";

TEST(tensorboard_reads_the_same_scalars) {
    struct tensorboard_writer *writer = open_events(folder);
    add(writer, "test/accuracy", 10, 0.875);
    add(writer, "train/loss", 1, 2.25);
    add(writer, "train/loss", 2, 0);
    tensorboard_writer_close(&writer);

    char command[2048], output[512] = "";
    snprintf(command, sizeof command, "python3 -c \"%s\" %s 2>/dev/null",
             reader, folder->dir);
    FILE *python = popen(command, "r");
    assert_non_null(python);
    size_t length = fread(output, 1, sizeof output - 1, python);
    output[length] = '\0';
    int code = WEXITSTATUS(pclose(python));
    if (code == 77 || code == 127)
        skip_test("no python3 with tensorboard: not read by it");
    assert_int_equal(code, 0);
    assert_string_equal(output, "test/accuracy 10 0.875\n"
                                "train/loss 1 2.25\n"
                                "train/loss 2 0.0\n");
}
