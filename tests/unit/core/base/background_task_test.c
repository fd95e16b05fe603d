/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base/background_task.h"

#include "tests/lib/test.h"

#include <poll.h>

enum { LIMIT_MS = 60000 };

/* Fails with the text of CONTEXT; without one it succeeds. */
static enum status work(void *context, int cancel, struct failure *why) {
    (void)cancel;
    return context ? status_fail(why, FAILURE_BAD_MESSAGE, "%s",
                                 (const char *)context)
                   : STATUS_OK;
}

static enum status run(void *context, struct failure *why) {
    struct background_task *task;
    enum status status = STATUS_OK;
    assert_int_equal(background_task_open(&task, work, context, why),
                     STATUS_OK);
    struct pollfd item = {background_task_descriptor(task), POLLIN, 0};
    assert_int_equal(poll(&item, 1, LIMIT_MS), 1);
    assert_true(background_task_poll(task, &status, why));
    background_task_close(&task);
    assert_null(task);
    return status;
}

TEST(the_result_is_ready_when_the_descriptor_is) {
    assert_ok(run(NULL, &failure));
    assert_int_equal(run("no such block", &failure), STATUS_FAILED);
    assert_string_equal(failure.text, "no such block");
}

/* Returns when it is cancelled and no sooner. */
static enum status wait_for_cancel(void *context, int cancel,
                                   struct failure *why) {
    struct pollfd item = {cancel, POLLIN, 0};
    (void)why;
    *(bool *)context = poll(&item, 1, LIMIT_MS) == 1;
    return STATUS_OK;
}

TEST(closing_cancels_the_work_and_waits_for_its_end) {
    struct background_task *task;
    enum status status;
    bool cancelled = false;
    assert_ok(
        background_task_open(&task, wait_for_cancel, &cancelled, &failure));
    assert_false(background_task_poll(task, &status, &failure));
    background_task_close(&task);
    assert_true(cancelled);
    background_task_close(&task);
}
