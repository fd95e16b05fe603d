/* SPDX-License-Identifier: Apache-2.0 */
/* A ps's file of a checkpoint: what was put comes back, and a file that is cut,
 * of other bits or not to be written at all is refused by name. */

#define STATE struct checkpoint_fixture_file *place

#include "core/store/shard_file.h"
#include "tests/lib/checkpoint_fixture.h"
#include "tests/lib/skip.h"
#include "tests/lib/test.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    NUM_KEYS = 40,
    BYTES = 70000,
    SKIPPED = 77, /* exit status of a child that may not do what it is for */
};

static int setup(void **state) {
    return checkpoint_fixture_setup(state, "shard.mdb");
}

FIXTURE(setup, checkpoint_fixture_teardown);

/* Key I of NUM_KEYS, ascending; every fifth is a short row. */
static struct shard_key key_of(uint32_t i) {
    return (struct shard_key){.parameter = i / 10,
                              .offset = i % 10 / 5 * 70000,
                              .slot = i % 5 == 4 ? SHARD_ROW : i % 5};
}

static size_t bytes_of(uint32_t i) {
    return i % 5 == 4 ? 3 + i : BYTES - 4 * i;
}

static const void *value_of(uint32_t i) {
    static unsigned char bytes[BYTES + NUM_KEYS];
    for (size_t k = 0; !bytes[1] && k < sizeof bytes; k++)
        bytes[k] = (unsigned char)(k * 7 + k / 256);
    return bytes + i;
}

static void put_all(struct shard_writer *writer, const uint32_t *order) {
    for (uint32_t i = 0; i < NUM_KEYS; i++)
        assert_ok(shard_writer_put(writer, key_of(order[i]), value_of(order[i]),
                                   bytes_of(order[i]), &failure));
}

static void fill_order(uint32_t *order, unsigned seed) {
    for (uint32_t i = 0; i < NUM_KEYS; i++)
        order[i] = i;
    for (uint32_t i = NUM_KEYS - 1; seed && i > 0; i--) {
        uint32_t j = (uint32_t)rand_r(&seed) % (i + 1), kept = order[i];
        order[i] = order[j];
        order[j] = kept;
    }
}

/* Writes the shard, built in FOLDER, its keys shuffled by SEED unless 0. */
static void write_shard(const struct checkpoint_fixture_file *place,
                        const char *folder, unsigned seed,
                        struct shard_info *info) {
    struct shard_writer *writer;
    uint32_t order[NUM_KEYS];
    fill_order(order, seed);
    assert_ok(shard_writer_open_in(&writer, folder, place->path,
                                   NUM_KEYS * BYTES, NUM_KEYS, &failure));
    put_all(writer, order);
    assert_ok(shard_writer_finish(&writer, info, &failure));
    assert_null(writer);
    assert_string_equal(info->name, "shard.mdb");
    assert_string_equal(info->host, "");
}

static void assert_all_there(struct shard_reader *reader) {
    const void *value;
    size_t bytes;
    for (uint32_t i = 0; i < NUM_KEYS; i++) {
        assert_ok(
            shard_reader_get(reader, key_of(i), &value, &bytes, &failure));
        assert_int_equal(bytes, bytes_of(i));
        assert_memory_equal(value, value_of(i), bytes);
    }
}

TEST(values_put_in_any_order_read_back) {
    struct shard_info info;
    struct shard_reader *reader;
    for (unsigned seed = 0; seed < 4; seed++) {
        write_shard(place, place->folder, seed, &info);
        assert_ok(shard_reader_open(&reader, place->folder, &info, &failure));
        assert_all_there(reader);
        shard_reader_close(&reader);
        assert_int_equal(checkpoint_fixture_entries(place->folder), 1);
    }
}

TEST_WITH(NULL, NULL, keys_sort_by_parameter_then_offset_then_slot) {
    static const struct shard_key ascending[] = {
        {.parameter = 0, .offset = 0, .slot = 0},
        {.parameter = 0, .offset = 0, .slot = SHARD_ROW},
        {.parameter = 0, .offset = 1, .slot = 0},
        {.parameter = 0, .offset = UINT64_C(1) << 40, .slot = 0},
        {.parameter = 1, .offset = 0, .slot = 0},
        {.parameter = 256, .offset = 0, .slot = 0},
    };
    unsigned char last[SHARD_FILE_KEY_BYTES], bytes[SHARD_FILE_KEY_BYTES];
    shard_file_key(ascending[0], last);
    for (size_t i = 1; i < sizeof ascending / sizeof ascending[0]; i++) {
        shard_file_key(ascending[i], bytes);
        assert_true(memcmp(last, bytes, sizeof bytes) < 0);
        memcpy(last, bytes, sizeof bytes);
    }
}

TEST(values_beyond_one_commit_read_back) {
    enum { VALUE = 1 << 20, COUNT = 70 };
    struct shard_writer *writer;
    struct shard_reader *reader;
    struct shard_info info;
    const void *found;
    size_t bytes;
    uint32_t *value = calloc(1, VALUE);
    assert_ok(shard_writer_open(&writer, place->path, COUNT * VALUE, COUNT,
                                &failure));
    for (uint32_t i = 0; i < COUNT; i++) {
        struct shard_key key = {.parameter = COUNT - i};
        value[0] = value[VALUE / 4 - 1] = i;
        assert_ok(shard_writer_put(writer, key, value, VALUE, &failure));
    }
    assert_ok(shard_writer_finish(&writer, &info, &failure));
    assert_true(info.size < COUNT * (VALUE + 3 * 4096) + 64 * 4096);
    assert_ok(shard_reader_open(&reader, place->folder, &info, &failure));
    for (uint32_t i = 0; i < COUNT; i++) {
        struct shard_key key = {.parameter = COUNT - i};
        value[0] = value[VALUE / 4 - 1] = i;
        assert_ok(shard_reader_get(reader, key, &found, &bytes, &failure));
        assert_memory_equal(found, value, VALUE);
    }
    shard_reader_close(&reader);
    free(value);
}

TEST(a_key_put_twice_is_refused) {
    struct shard_writer *writer;
    assert_ok(shard_writer_open(&writer, place->path, 100, 2, &failure));
    assert_ok(shard_writer_put(writer, key_of(1), "x", 1, &failure));
    assert_error(shard_writer_put(writer, key_of(1), "y", 1, &failure),
                 FAILURE_FILE_UNWRITABLE);
    shard_writer_abort(&writer);
    assert_null(writer);
    assert_int_equal(checkpoint_fixture_entries(place->folder), 0);
}

TEST(a_missing_key_is_named) {
    struct shard_info info;
    struct shard_reader *reader;
    const void *value;
    size_t bytes;
    struct shard_key key = {.parameter = 99, .offset = 12345, .slot = 1};
    write_shard(place, place->folder, 0, &info);
    assert_ok(shard_reader_open(&reader, place->folder, &info, &failure));
    assert_error(shard_reader_get(reader, key, &value, &bytes, &failure),
                 FAILURE_CHECKPOINT_DAMAGED);
    assert_contains(failure.text, "parameter 99, element 12345, slot 1");
    shard_reader_close(&reader);
}

static void assert_refused(const struct checkpoint_fixture_file *place,
                           const struct shard_info *info,
                           enum failure_code code, const char *text) {
    struct shard_reader *reader;
    assert_error(shard_reader_open(&reader, place->folder, info, &failure),
                 code);
    assert_null(reader);
    assert_contains(failure.text, text);
}

TEST(a_truncated_file_is_refused) {
    struct shard_info info;
    write_shard(place, place->folder, 0, &info);
    for (off_t size = (off_t)info.size - 1; size > 0; size /= 3) {
        assert_int_equal(truncate(place->path, size), 0);
        assert_refused(place, &info, FAILURE_CHECKPOINT_DAMAGED,
                       "bytes, its manifest says");
    }
}

TEST(any_flipped_bit_is_refused) {
    struct shard_info info;
    write_shard(place, place->folder, 0, &info);
    int fd = open(place->path, O_RDWR);
    unsigned seed = 7;
    for (int i = 0; i < 50; i++) {
        off_t at = rand_r(&seed) % (off_t)info.size;
        unsigned char byte, kept;
        assert_int_equal(pread(fd, &kept, 1, at), 1);
        byte = kept ^ (unsigned char)(1 << (i % 8));
        assert_int_equal(pwrite(fd, &byte, 1, at), 1);
        assert_refused(place, &info, FAILURE_CHECKPOINT_DAMAGED, "is damaged");
        assert_int_equal(pwrite(fd, &kept, 1, at), 1);
    }
    close(fd);
}

TEST(an_invalid_file_is_refused) {
    struct shard_info info = {.name = "shard.mdb"};
    assert_refused(place, &info, FAILURE_FILE_UNREADABLE, "No such file");
    assert_int_equal(mkdir(place->path, 0777), 0);
    assert_refused(place, &info, FAILURE_CHECKPOINT_DAMAGED, "is not a file");
    assert_int_equal(rmdir(place->path), 0);
    assert_int_equal(mkfifo(place->path, 0666), 0);
    assert_refused(place, &info, FAILURE_CHECKPOINT_DAMAGED, "is not a file");
}

TEST(a_file_with_the_right_hash_that_is_no_database_is_refused) {
    struct shard_info info = {.name = "shard.mdb"};
    int fd = open(place->path, O_RDWR | O_CREAT, 0666);
    assert_int_equal(write(fd, value_of(0), BYTES), BYTES);
    assert_ok(shard_file_hash(fd, "it", &info, NULL, &failure));
    assert_int_equal(info.size, BYTES);
    close(fd);
    assert_refused(place, &info, FAILURE_CHECKPOINT_DAMAGED,
                   "is not a shard file");
}

/* As when a ps wrote what it had wrongly in memory: the file's hash is right.
 */
TEST(a_value_that_does_not_match_its_hash_is_refused) {
    struct shard_info info;
    struct shard_reader *reader;
    const void *value;
    size_t bytes, damaged = 0;
    write_shard(place, place->folder, 0, &info);
    int fd = open(place->path, O_RDWR);
    /* The middle of the file is in one of the long values. */
    assert_int_equal(pwrite(fd, "....", 4, (off_t)info.size / 2), 4);
    assert_ok(shard_file_hash(fd, "it", &info, NULL, &failure));
    close(fd);
    assert_ok(shard_reader_open(&reader, place->folder, &info, &failure));
    for (uint32_t i = 0; i < NUM_KEYS; i++)
        if (shard_reader_get(reader, key_of(i), &value, &bytes, &failure)) {
            assert_contains(failure.text, "its value is damaged");
            damaged++;
        }
    assert_int_equal(damaged, 1);
    shard_reader_close(&reader);
}

TEST(a_file_built_in_another_folder_is_identical) {
    struct shard_info here, copied;
    struct shard_reader *reader;
    char local[PATH_MAX];
    checkpoint_fixture_folder(local);
    write_shard(place, place->folder, 3, &here);
    write_shard(place, local, 3, &copied);
    assert_int_equal(here.size, copied.size);
    assert_int_equal(checkpoint_fixture_entries(local), 0);
    assert_int_equal(checkpoint_fixture_entries(place->folder), 1);
    assert_ok(
        shard_reader_open_in(&reader, local, place->folder, &copied, &failure));
    assert_int_equal(checkpoint_fixture_entries(local), 0);
    assert_int_equal(truncate(place->path, 0), 0); /* the copy is read */
    assert_all_there(reader);
    shard_reader_close(&reader);
    checkpoint_fixture_remove(local);
}

TEST(too_little_space_is_reported_before_writing) {
    struct shard_writer *writer;
    assert_error(
        shard_writer_open(&writer, place->path, UINT64_C(1) << 60, 1, &failure),
        FAILURE_DISK_FULL);
    assert_null(writer);
    assert_contains(failure.text, place->path);
    assert_contains(failure.text, "1152921504606846976 bytes wanted");
    assert_int_equal(checkpoint_fixture_entries(place->folder), 0);
}

/* Puts 1 MiB values until one fails or COUNT are in, and finishes. */
static enum status write_megabytes(const char *path, uint32_t count,
                                   struct failure *why) {
    struct shard_writer *writer;
    struct shard_info info;
    char *value = calloc(1, 1 << 20);
    enum status status = shard_writer_open(&writer, path, 1 << 20, 1, why);
    for (uint32_t i = 0; i < count && !status; i++)
        status = shard_writer_put(writer, (struct shard_key){.parameter = i},
                                  value, 1 << 20, why);
    if (status)
        shard_writer_abort(&writer);
    else
        status = shard_writer_finish(&writer, &info, why);
    free(value);
    return status;
}

/* Exit status of a child that found all as it should be: 0. */
static int in_child(int (*body)(const struct checkpoint_fixture_file *),
                    const struct checkpoint_fixture_file *place) {
    fflush(NULL);
    pid_t child = fork();
    if (!child)
        _exit(body(place));
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static int fill_small_mount(const struct checkpoint_fixture_file *place) {
    if (unshare(CLONE_NEWNS) && unshare(CLONE_NEWNS | CLONE_NEWUSER))
        return SKIPPED;
    if (mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
        mount("tmpfs", place->folder, "tmpfs", 0, "size=8m"))
        return SKIPPED;
    const char *kept = textf("%s/kept.mdb", place->folder);
    if (write_megabytes(kept, 2, &failure))
        return 1;
    /* Full at a commit between, and at the last. */
    for (uint32_t count = 40; count >= 20; count -= 20) {
        if (!write_megabytes(place->path, count, &failure) ||
            failure.code != FAILURE_DISK_FULL)
            return 2;
        if (!strstr(failure.text, place->path) ||
            !strstr(failure.text, "bytes wanted") ||
            !strstr(failure.text, "free in"))
            return 3;
        if (checkpoint_fixture_entries(place->folder) != 1)
            return 4;
    }
    return write_megabytes(place->path, 2, &failure) ? 5 : 0;
}

TEST(a_full_disk_is_reported_and_nothing_remains) {
    int found = in_child(fill_small_mount, place);
    if (found == SKIPPED)
        skip_test("a small disk cannot be mounted: that needs root");
    assert_int_equal(found, 0);
}

static int reach_the_size_limit(const struct checkpoint_fixture_file *place) {
    struct rlimit limit = {4 << 20, 4 << 20};
    signal(SIGXFSZ, SIG_IGN);
    if (setrlimit(RLIMIT_FSIZE, &limit))
        return 1;
    if (!write_megabytes(place->path, 40, &failure) ||
        failure.code != FAILURE_FILE_UNWRITABLE)
        return 2;
    if (!strstr(failure.text, place->path))
        return 3;
    return checkpoint_fixture_entries(place->folder) ? 4 : 0;
}

TEST(a_file_size_limit_is_reported_and_nothing_remains) {
    assert_int_equal(in_child(reach_the_size_limit, place), 0);
}

TEST(a_missing_folder_is_reported) {
    struct shard_writer *writer;
    checkpoint_fixture_remove(place->folder);
    assert_error(shard_writer_open(&writer, place->path, 1, 1, &failure),
                 FAILURE_FILE_UNWRITABLE);
    assert_contains(failure.text, place->path);
}

/* More than the map that the writer was opened with has room for. */
TEST(values_announced_later_read_back) {
    enum { MIB = 1 << 20, VALUES = 80 };
    struct shard_writer *writer;
    struct shard_reader *reader;
    struct shard_info info;
    unsigned char *bytes = calloc(1, MIB);
    assert_ok(shard_writer_open(&writer, place->path, 0, 0, &failure));
    for (uint32_t i = 0; i < VALUES; i++) {
        bytes[0] = (unsigned char)i;
        assert_ok(shard_writer_expect(writer, MIB, 1, &failure));
        assert_ok(shard_writer_put(writer, (struct shard_key){.offset = i},
                                   bytes, MIB, &failure));
    }
    assert_ok(shard_writer_finish(&writer, &info, &failure));
    assert_ok(shard_reader_open(&reader, place->folder, &info, &failure));
    for (uint32_t i = 0; i < VALUES; i++) {
        const void *value;
        size_t size;
        assert_ok(shard_reader_get(reader, (struct shard_key){.offset = i},
                                   &value, &size, &failure));
        assert_int_equal(size, MIB);
        assert_int_equal(*(const unsigned char *)value, i);
    }
    shard_reader_close(&reader);
    free(bytes);
}
