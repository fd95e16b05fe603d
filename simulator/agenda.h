/* SPDX-License-Identifier: Apache-2.0 */
/* What happens when: the events of a simulated run, by time, of equal times in
 * the order in which they were added. Pure. */
#ifndef CAPSTAN_AGENDA_H
#define CAPSTAN_AGENDA_H

#include <stdbool.h>
#include <stdint.h>

struct agenda;

/* NULL: no memory. Time starts at 0. */
struct agenda *agenda_open(void);

/* Frees *AGENDA (may be NULL) and clears it. */
void agenda_close(struct agenda **agenda);

/* Nanoseconds since the start. */
int64_t agenda_now(const struct agenda *agenda);

/* HAPPEN(CONTEXT, NUMBER) is due in DELAY (>= 0) ns. */
void agenda_add(struct agenda *agenda, int64_t delay,
                void (*happen)(void *context, uint64_t number), void *context,
                uint64_t number);

/* Lets the next event happen. False when there is none, or memory was short
 * for one. */
bool agenda_step(struct agenda *agenda);

/* Was memory short for an event? */
bool agenda_failed(const struct agenda *agenda);

#endif
