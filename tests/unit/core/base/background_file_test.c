/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base/background_file.h"

#include "core/base/time.h"
#include "tests/lib/assert_fails.h"
#include "tests/lib/test.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const int64_t LIMIT = 60 * TIME_S;

static struct background_file *opened(int descriptor,
                                      background_file_prepare *prepare) {
    struct background_file *file;
    assert_true(descriptor >= 0);
    assert_false(background_file_open(&file, descriptor, "the-file", prepare,
                                      42, &failure));
    return file;
}

static enum status says_value(int descriptor, const char *path, uint64_t value,
                              struct failure *why) {
    (void)path, (void)why;
    return dprintf(descriptor, "%d ", (int)value) > 0 ? STATUS_OK
                                                      : STATUS_FAILED;
}

TEST(bytes_follow_what_readies_the_file) {
    char path[] = "/tmp/background-file-XXXXXX", text[16] = "";
    int descriptor = mkstemp(path);
    struct background_file *file = opened(dup(descriptor), says_value);
    assert_false(background_file_append(file, "a\n", 2, &failure));
    assert_false(background_file_append(file, "b\n", 2, &failure));
    assert_false(background_file_close(&file, time_now() + LIMIT, &failure));
    assert_int_equal(pread(descriptor, text, sizeof text - 1, 0), 7);
    assert_string_equal(text, "42 a\nb\n");
    close(descriptor);
    unlink(path);
}

TEST(a_full_disk_is_named) {
    struct background_file *file = opened(open("/dev/full", O_WRONLY), NULL);
    assert_false(background_file_append(file, "a", 1, &failure));
    assert_int_equal(background_file_close(&file, time_now() + LIMIT, &failure),
                     STATUS_FAILED);
    assert_contains(failure.text, "writing the-file: No space left");
}

/* A pipe that nobody reads is a disk that hangs. */
TEST(a_disk_that_hangs_holds_nobody_up) {
    static char bytes[1 << 20];
    int ends[2], count = 0;
    assert_false(pipe(ends));
    struct background_file *file = opened(ends[1], NULL);
    while (!background_file_append(file, bytes, sizeof bytes, &failure))
        assert_true(count++ < 100);
    assert_contains(failure.text, "its disk is too slow, or hangs: 16 MiB");
    assert_true(count >= 16);
    int64_t begun = time_now();
    assert_true(background_file_close(&file, begun + TIME_MS, &failure));
    assert_null(file);
    close(ends[0]); /* the thread ends by EPIPE: SIGPIPE is blocked there */
}

static enum status waits_forever(int descriptor, const char *path,
                                 uint64_t value, struct failure *why) {
    char byte;
    (void)path, (void)value, (void)why;
    return read(descriptor, &byte, 1) == 1 ? STATUS_OK : STATUS_FAILED;
}

TEST(bytes_that_a_hanging_disk_did_not_take_are_lost_by_name) {
    int ends[2];
    assert_false(pipe(ends));
    struct background_file *file = opened(ends[0], waits_forever);
    assert_false(background_file_append(file, "a", 1, &failure));
    assert_true(background_file_close(&file, time_now() + TIME_MS, &failure));
    assert_contains(failure.text, "did not take the last bytes in time");
    close(ends[1]);
}

TEST(there_need_be_no_file) {
    struct background_file *file = NULL;
    assert_false(background_file_close(&file, 0, &failure));
}
