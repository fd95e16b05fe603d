/* SPDX-License-Identifier: Apache-2.0 */
/* A simulated chief: the real roster, views and cut rounds, and what
 * chief/control/membership.c, snapshot_coordinator.c, planning.c, watchdog.c
 * and shutdown.c do around them. What changes there changes here. */
#ifndef CAPSTAN_SIMULATED_CHIEF_H
#define CAPSTAN_SIMULATED_CHIEF_H

#include "tests/simulation/simulated.h"

/* A new run, from what the disk holds. */
void simulated_chief_open(struct simulated *s, bool keeps);

/* Forgets all but the disk: it has ended, or was killed. */
void simulated_chief_close(struct simulated *s);

/* MESSAGE of PROCESS has come by the connection FROM. */
void simulated_chief_receive(struct simulated *s,
                             const struct simulated_peer *from,
                             uint32_t process,
                             const struct simulated_message *message);

/* What is due now; says when it wants to be stepped next. */
void simulated_chief_step(struct simulated *s);

/* A signal: one checkpoint, then all end. */
void simulated_chief_interrupt(struct simulated *s);

/* For the parts of the chief: tells slot I's member, or all ps. */
void simulated_chief_send(struct simulated *s, uint32_t slot,
                          enum simulated_kind kind,
                          const struct simulated_control *control_message);
void simulated_chief_send_ps(struct simulated *s, enum simulated_kind kind,
                             const struct simulated_control *control_message);
/* A new view to all ps. */
void simulated_chief_view(struct simulated *s);

/* Ends the run for all: OK, or as worth a retry, for TEXT. */
void simulated_chief_stop(struct simulated *s, bool ok, const char *text);

/* The step that the run is at, as far as the chief has heard. */
uint64_t simulated_chief_step_reached(const struct simulated *s);

/* Whoever asks by the connection FROM, for slot I, leaves its run and joins the
 * one that goes on. */
void simulated_chief_send_back(struct simulated *s,
                               const struct simulated_peer *from, uint32_t i);

/* The chief leads the run that it has taken over, and tells members of it. */
void simulated_chief_lead_on(struct simulated *s,
                             const struct simulated_control *adopted);

#endif
