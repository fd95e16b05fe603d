/* SPDX-License-Identifier: Apache-2.0 */
/* Runs one blocking function on its own thread, so that the caller's loop is
 * not blocked. A descriptor signals completion. */
#ifndef CAPSTAN_BACKGROUND_TASK_H
#define CAPSTAN_BACKGROUND_TASK_H

#include "core/base/status.h"

#include <stdbool.h>

struct background_task;

/* Work that waits also polls CANCEL and returns early when it is readable; the
 * status is then ignored. */
typedef enum status background_task_function(void *context, int cancel,
                                             struct failure *why);

/* Starts WORK with CONTEXT. WORK may use CONTEXT until background_task_close
 * returns. */
enum status background_task_open(struct background_task **out,
                                 background_task_function *work, void *context,
                                 struct failure *why) MUST_CHECK;

/* Requests an early return. */
void background_task_cancel(struct background_task *task);

/* Cancels the task, joins its thread and clears *TASK (may be NULL).
 */
void background_task_close(struct background_task **task);

/* Cancels the task and clears *TASK without waiting for its thread: RELEASE is
 * called with CONTEXT, once, when the thread no longer uses it. */
void background_task_abandon(struct background_task **task,
                             void (*release)(void *context));

/* Becomes readable when the work is done. */
int background_task_descriptor(const struct background_task *task);

/* True when the work is done: *STATUS, and *WHY unless OK, are its result. */
bool background_task_poll(struct background_task *task, enum status *status,
                          struct failure *why);

#endif
