/* SPDX-License-Identifier: Apache-2.0 */
/* Work that waits, on a thread of its own, so that the chief's loop keeps
 * turning: one function, whose end is told through a descriptor. */
#ifndef CAPSTAN_BACKGROUND_TASK_H
#define CAPSTAN_BACKGROUND_TASK_H

#include "proto/base/status.h"

#include <stdbool.h>

struct background_task;

/* Whoever waits in it also polls CANCEL, and then returns; any status. */
typedef enum status background_task_function(void *context, int cancel,
                                             struct failure *why);

/* Starts WORK with CONTEXT, which it may use until background_task_close
 * returns. */
enum status background_task_open(struct background_task **out,
                                 background_task_function *work, void *context,
                                 struct failure *why) MUST_CHECK;

/* Asks it to return early. */
void background_task_cancel(struct background_task *background_task);

/* Cancels *ERRAND (may be NULL) and joins it. */
void background_task_close(struct background_task **background_task);

/* Polls readable once the work is done. */
int background_task_descriptor(const struct background_task *background_task);

/* Is it done? Then *STATUS, and WHY unless OK, are what it returned. */
bool background_task_poll(struct background_task *background_task,
                          enum status *status, struct failure *why);

#endif
