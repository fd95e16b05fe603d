/* SPDX-License-Identifier: Apache-2.0 */
/* Work that waits, on a thread of its own, so that the chief's loop keeps
 * turning: one function, whose end is told through a descriptor. */
#ifndef CAPSTAN_ERRAND_H
#define CAPSTAN_ERRAND_H

#include "proto/base/status.h"

#include <stdbool.h>

struct errand;

/* Whoever waits in it also polls CANCEL, and then returns; any status. */
typedef enum status errand_work(void *context, int cancel, struct failure *why);

/* Starts WORK with CONTEXT, which it may use until errand_close returns. */
enum status errand_open(struct errand **out, errand_work *work, void *context,
                        struct failure *why) MUST_CHECK;

/* Asks it to return early. */
void errand_cancel(struct errand *errand);

/* Cancels *ERRAND (may be NULL) and joins it. */
void errand_close(struct errand **errand);

/* Polls readable once the work is done. */
int errand_descriptor(const struct errand *errand);

/* Is it done? Then *STATUS, and WHY unless OK, are what it returned. */
bool errand_over(struct errand *errand, enum status *status,
                 struct failure *why);

#endif
