/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/base/status.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <string.h>

static void a_failure_carries_its_status_and_text(void **state) {
    (void)state;
    struct failure why;
    assert_int_equal(status_fail(&why, STATUS_CONFIG, "%s: %d", "port", 7),
                     STATUS_CONFIG);
    assert_int_equal(why.status, STATUS_CONFIG);
    assert_string_equal(why.text, "port: 7");
}

static void the_failure_argument_is_optional(void **state) {
    (void)state;
    assert_int_equal(status_fail(NULL, STATUS_RETRY, "x"), STATUS_RETRY);
    assert_int_equal(status_errno(NULL, STATUS_RETRY, ENOENT, "x"),
                     STATUS_RETRY);
    assert_int_equal(status_context(NULL, "x"), STATUS_FAILED);
}

static void an_errno_is_described_in_words(void **state) {
    (void)state;
    struct failure why;
    assert_int_equal(
        status_errno(&why, STATUS_RETRY, ENOSPC, "cannot write %s", "f"),
        STATUS_RETRY);
    assert_string_equal(why.text, "cannot write f: No space left on device");
}

/* A supervisor tries again on 138, and stops on 1 and 2. */
static void resource_errors_are_retryable_and_refusals_are_not(void **state) {
    static const int passing[] = {EMFILE, ENFILE, ENOMEM, EAGAIN,
                                  EINTR,  EIO,    ESTALE, ENOBUFS};
    static const int lasting[] = {ENOENT, EACCES, EISDIR,       ENOTDIR,
                                  EPERM,  ENOSYS, EAFNOSUPPORT, 0};
    struct failure why;
    (void)state;
    for (size_t i = 0; i < sizeof passing / sizeof *passing; i++) {
        assert_int_equal(status_errno(&why, STATUS_CONFIG, passing[i], "f"),
                         STATUS_RETRY);
        assert_int_equal(why.status, STATUS_RETRY);
    }
    for (size_t i = 0; i < sizeof lasting / sizeof *lasting; i++) {
        assert_int_equal(status_of_errno(lasting[i], STATUS_CONFIG),
                         STATUS_CONFIG);
        assert_int_equal(status_of_errno(lasting[i], STATUS_FAILED),
                         STATUS_FAILED);
    }
}

static void context_goes_before_the_text_and_keeps_the_status(void **state) {
    (void)state;
    struct failure why;
    (void)status_fail(&why, STATUS_INTERRUPTED, "inner");
    assert_int_equal(status_context(&why, "outer %d", 1), STATUS_INTERRUPTED);
    assert_string_equal(why.text, "outer 1: inner");
}

static void texts_that_are_too_long_are_truncated(void **state) {
    (void)state;
    struct failure why;
    char text[3000];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = 0;
    (void)status_fail(&why, STATUS_FAILED, "%s", text);
    assert_int_equal(strlen(why.text), sizeof why.text - 1);
    (void)status_errno(&why, STATUS_FAILED, ENOENT, "%s", text);
    assert_int_equal(strlen(why.text), sizeof why.text - 1);
    (void)status_context(&why, "%s", text);
    assert_int_equal(strlen(why.text), sizeof why.text - 1);
    (void)status_fail(&why, STATUS_FAILED, "%s", text + 1000);
    (void)status_context(&why, "before");
    assert_int_equal(strncmp(why.text, "before: xxx", 11), 0);
}

static void a_reported_failure_is_marked_until_the_next(void **state) {
    (void)state;
    struct failure why;
    (void)status_fail(&why, STATUS_RETRY, "another's words");
    assert_false(why.reported);
    assert_int_equal(status_mark_reported(&why), STATUS_RETRY);
    assert_true(why.reported);
    (void)status_fail(&why, STATUS_CONFIG, "own words");
    assert_false(why.reported);
    assert_int_equal(status_mark_reported(NULL), STATUS_FAILED);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_failure_carries_its_status_and_text),
        cmocka_unit_test(the_failure_argument_is_optional),
        cmocka_unit_test(an_errno_is_described_in_words),
        cmocka_unit_test(resource_errors_are_retryable_and_refusals_are_not),
        cmocka_unit_test(context_goes_before_the_text_and_keeps_the_status),
        cmocka_unit_test(texts_that_are_too_long_are_truncated),
        cmocka_unit_test(a_reported_failure_is_marked_until_the_next),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
