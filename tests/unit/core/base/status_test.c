/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base/status.h"

#include "tests/lib/test.h"

#include <errno.h>
#include <unistd.h>

TEST(a_failure_carries_its_code_and_text) {
    assert_int_equal(
        status_fail(&failure, FAILURE_JOB_INVALID, "%s: %d", "port", 7),
        STATUS_CONFIG);
    assert_int_equal(failure.code, FAILURE_JOB_INVALID);
    assert_string_equal(failure.text, "port: 7");
}

TEST(the_failure_argument_is_optional) {
    assert_int_equal(status_fail(NULL, FAILURE_NO_MEMORY, "x"), STATUS_RETRY);
    assert_int_equal(status_errno(NULL, FAILURE_IO_ERROR, ENOENT, "x"),
                     STATUS_RETRY);
    assert_int_equal(status_context(NULL, "x"), STATUS_FAILED);
}

TEST(an_errno_is_described_in_words) {
    assert_int_equal(status_errno(&failure, FAILURE_IO_ERROR, ENOSPC,
                                  "cannot write %s", "f"),
                     STATUS_RETRY);
    assert_string_equal(failure.text,
                        "cannot write f: No space left on device");
}

TEST(a_refusal_says_what_to_change) {
    (void)status_errno(&failure, FAILURE_FILE_UNWRITABLE, EACCES,
                       "cannot write f");
    assert_string_equal(
        failure.text,
        textf("cannot write f: Permission denied to user %u, group %u",
              (unsigned)geteuid(), (unsigned)getegid()));
    (void)status_errno(&failure, FAILURE_FILE_UNWRITABLE, EROFS,
                       "cannot write f");
    assert_string_equal(failure.text,
                        "cannot write f: Read-only file system; choose a folder"
                        " on a disk or volume that can be written");
    (void)status_errno(&failure, FAILURE_SYSTEM_REFUSED, EAGAIN, "a thread");
    assert_contains(failure.text, "ulimit -u, or pids.max");
    (void)status_errno(&failure, FAILURE_FILE_UNWRITABLE, EAGAIN, "a lock");
    assert_string_equal(failure.text,
                        "a lock: Resource temporarily unavailable");
}

/* A supervisor tries again on 138, and stops on 1 and 2. */
TEST(resource_errors_are_retryable_and_refusals_are_not) {
    static const int passing[] = {EMFILE, ENFILE, ENOMEM, EAGAIN,
                                  EINTR,  EIO,    ESTALE, ENOBUFS};
    static const int lasting[] = {ENOENT, EACCES, EISDIR,       ENOTDIR,
                                  EPERM,  ENOSYS, EAFNOSUPPORT, 0};
    for (size_t i = 0; i < sizeof passing / sizeof *passing; i++) {
        assert_int_equal(
            status_errno(&failure, FAILURE_JOB_UNREADABLE, passing[i], "f"),
            STATUS_RETRY);
        assert_int_equal(failure_code_status(failure.code), STATUS_RETRY);
    }
    for (size_t i = 0; i < sizeof lasting / sizeof *lasting; i++) {
        assert_int_equal(
            failure_code_of_errno(lasting[i], FAILURE_JOB_UNREADABLE),
            FAILURE_JOB_UNREADABLE);
        assert_int_equal(
            failure_code_of_errno(lasting[i], FAILURE_FILE_UNREADABLE),
            FAILURE_FILE_UNREADABLE);
    }
}

TEST(an_errno_that_names_the_cause_gives_the_code) {
    (void)status_errno(&failure, FAILURE_FILE_UNWRITABLE, ENOSPC, "f");
    assert_int_equal(failure.code, FAILURE_DISK_FULL);
    (void)status_errno(&failure, FAILURE_CANNOT_LISTEN, EADDRINUSE, "f");
    assert_int_equal(failure.code, FAILURE_PORT_IN_USE);
    /* A full disk is no fault of the configuration, but its status is kept. */
    assert_int_equal(
        status_errno(&failure, FAILURE_OUTPUT_UNUSABLE, ENOSPC, "f"),
        STATUS_CONFIG);
    assert_int_equal(failure.code, FAILURE_OUTPUT_UNUSABLE);
}

TEST(a_code_has_one_number_name_and_status) {
    unsigned known = 0, listed = 0;
    for (uint32_t number = 0; number < 1000; number++)
        known += failure_code_is_known(number);
#define FAILURE_CODE(number, name, status, meaning)                            \
    listed++;                                                                  \
    assert_int_equal(FAILURE_##name, number);                                  \
    assert_int_equal(failure_code_status(FAILURE_##name), STATUS_##status);    \
    assert_string_equal(failure_code_name(FAILURE_##name), #name);
    FAILURE_CODES(FAILURE_CODE)
#undef FAILURE_CODE
    assert_int_equal(known, listed);
    assert_false(failure_code_is_known(FAILURE_NONE));
    assert_false(failure_code_is_known(UINT32_MAX));
}

TEST(each_code_is_in_the_documentation) {
    static char page[64 << 10];
    char row[256];
    FILE *file = fopen("docs/running.md", "r");
    assert_non_null(file);
    page[fread(page, 1, sizeof page - 1, file)] = 0;
    fclose(file);
#define FAILURE_CODE(number, name, status, meaning)                            \
    snprintf(row, sizeof row, "\n| %s | %d | %s |\n", #name,                   \
             (int)STATUS_##status, meaning);                                   \
    if (!strstr(page, row))                                                    \
        fail_msg("docs/running.md does not have %s", row + 1);
    FAILURE_CODES(FAILURE_CODE)
#undef FAILURE_CODE
}

TEST(context_goes_before_the_text_and_keeps_the_code) {
    (void)status_fail(&failure, FAILURE_INTERRUPTED, "inner");
    assert_int_equal(status_context(&failure, "outer %d", 1),
                     STATUS_INTERRUPTED);
    assert_int_equal(failure.code, FAILURE_INTERRUPTED);
    assert_string_equal(failure.text, "outer 1: inner");
}

TEST(texts_that_are_too_long_are_truncated) {
    char text[3000];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = 0;
    (void)status_fail(&failure, FAILURE_BAD_MESSAGE, "%s", text);
    assert_int_equal(strlen(failure.text), sizeof failure.text - 1);
    (void)status_errno(&failure, FAILURE_FILE_UNREADABLE, ENOENT, "%s", text);
    assert_int_equal(strlen(failure.text), sizeof failure.text - 1);
    (void)status_context(&failure, "%s", text);
    assert_int_equal(strlen(failure.text), sizeof failure.text - 1);
    (void)status_fail(&failure, FAILURE_BAD_MESSAGE, "%s", text + 1000);
    (void)status_context(&failure, "before");
    assert_int_equal(strncmp(failure.text, "before: xxx", 11), 0);
}

TEST(a_reported_failure_is_marked_until_the_next) {
    (void)status_fail(&failure, FAILURE_PEER_LOST, "another's words");
    assert_false(failure.reported);
    assert_int_equal(status_mark_reported(&failure), STATUS_RETRY);
    assert_true(failure.reported);
    (void)status_fail(&failure, FAILURE_JOB_INVALID, "own words");
    assert_false(failure.reported);
    assert_int_equal(status_mark_reported(NULL), STATUS_FAILED);
}

TEST(names_that_do_not_fit_are_counted) {
    char *names[] = {"one", "t\to", "three hundred and sixty-five"};
    char list[40];
    status_list_names(list, sizeof list, names, 3);
    assert_string_equal(list, "one, t?o, three hundred and sixty-five");
    status_list_names(list, sizeof list - 2, names, 3);
    assert_string_equal(list, "one, t?o, ... (3 in all)");
    status_list_names(list, sizeof list, names, 0);
    assert_string_equal(list, "");
}
