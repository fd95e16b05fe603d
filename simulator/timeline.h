/* SPDX-License-Identifier: Apache-2.0 */
/* The events of a simulated run, ordered by time; events at the same time keep
 * the order in which they were added. Pure. */
#ifndef CAPSTAN_TIMELINE_H
#define CAPSTAN_TIMELINE_H

#include <stdbool.h>
#include <stdint.h>

struct timeline;

/* NULL: no memory. Time starts at 0. */
struct timeline *timeline_open(void);

/* Frees *TIMELINE (may be NULL) and clears it. */
void timeline_close(struct timeline **timeline);

/* Nanoseconds since the start. */
int64_t timeline_now(const struct timeline *timeline);

/* Calls CALLBACK(CONTEXT, NUMBER) in DELAY (>= 0) ns. */
void timeline_add(struct timeline *timeline, int64_t delay,
                  void (*callback)(void *context, uint64_t number),
                  void *context, uint64_t number);

/* Runs the next event. False if there is none or memory was short for one. */
bool timeline_step(struct timeline *timeline);

#endif
