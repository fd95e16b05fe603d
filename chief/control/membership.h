/* SPDX-License-Identifier: Apache-2.0 */
/* Who comes in and who goes: joins, claims, deaths, goodbyes. */
#ifndef CAPSTAN_MEMBERSHIP_H
#define CAPSTAN_MEMBERSHIP_H

#include "chief/run.h"

/* LETTER is a join: welcomed, refused, or told to wait by silence. */
void membership_join(struct run *run, const struct control_message *incoming,
                     int64_t now);

/* A message of somebody who holds no slot. */
void membership_reject_unknown(struct run *run, uint32_t peer,
                               const Capstan__Control *control);

/* Slots whose holders were silent for too long. */
void membership_check_deaths(struct run *run, int64_t now);

/* SLOT's holder is gone: by its own word (GOODBYE), or dead. */
void membership_remove(struct run *run, struct roster_slot *slot, bool exiting);

/* The joiner in SLOT does not fit this run, for the reason TEXT: it ends, with
 * STATUS, and the run goes on without it. */
void membership_dismiss(struct run *run, struct roster_slot *slot,
                        enum status status, const char *text);

/* Is SLOT's holder a trainer that came into a run under way and has not begun?
 */
bool membership_is_joining(const struct run *run,
                           const struct roster_slot *slot);

/* The launcher of SLOT's holder has seen it end. */
void membership_receive_exit(struct run *run, struct roster_slot *slot,
                             const Capstan__Ended *ended);

/* The holder of SLOT tells again what it may still take of memory, while there
 * is no plan yet. */
void membership_update_memory(struct run *run, const struct roster_slot *slot,
                              const Capstan__Heartbeat *heartbeat);

#endif
