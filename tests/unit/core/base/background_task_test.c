/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base/background_task.h"

#include "tests/lib/test.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

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

/* Two eventfds: what the work waits for, however it is cancelled, and what its
 * context's release tells. */
struct held {
    int goes_on, released;
};

static enum status wait_for_event(void *context, int cancel,
                                  struct failure *why) {
    struct pollfd item = {((struct held *)context)->goes_on, POLLIN, 0};
    (void)cancel, (void)why;
    return poll(&item, 1, LIMIT_MS) == 1 ? STATUS_OK : STATUS_FAILED;
}

static void release(void *context) {
    eventfd_write(((struct held *)context)->released, 1);
}

/* Also if the work is over. */
TEST(who_abandons_the_work_does_not_wait_and_it_is_released_once) {
    for (unsigned over = 0; over < 2; over++) {
        struct held held = {eventfd(over, 0), eventfd(0, EFD_NONBLOCK)};
        struct background_task *task;
        struct pollfd item = {held.released, POLLIN, 0};
        eventfd_t count;
        assert_ok(background_task_open(&task, wait_for_event, &held, &failure));
        struct pollfd done = {background_task_descriptor(task), POLLIN, 0};
        if (over)
            assert_int_equal(poll(&done, 1, LIMIT_MS), 1);
        background_task_abandon(&task, release);
        assert_null(task);
        if (!over) {
            assert_int_equal(eventfd_read(held.released, &count), -1);
            eventfd_write(held.goes_on, 1);
        }
        assert_int_equal(poll(&item, 1, LIMIT_MS), 1);
        assert_int_equal(eventfd_read(held.released, &count), 0);
        assert_int_equal(count, 1);
        close(held.goes_on);
        close(held.released);
    }
}
