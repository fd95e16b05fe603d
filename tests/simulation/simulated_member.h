/* SPDX-License-Identifier: Apache-2.0 */
/* A simulated ps's or worker's membership: it joins the chief, keeps in touch
 * and hands on orders, as proto/messages/control_client.c does over a real
 * link. */
#ifndef CAPSTAN_SIMULATED_MEMBER_H
#define CAPSTAN_SIMULATED_MEMBER_H

#include "tests/simulation/simulated.h"

/* PROCESS begins to look for the chief; what it keeps is freed by close. */
void simulated_member_open(struct simulated *s, struct simulated_member *member,
                           uint32_t process);
void simulated_member_close(struct simulated_member *member);

/* Tells the chief, surely. */
void simulated_member_send_reliable(
    struct simulated *s, struct simulated_member *member, uint32_t process,
    enum simulated_kind kind, const struct simulated_control *control_message);
/* Once, as it may be. */
void simulated_member_send_once(
    struct simulated *s, struct simulated_member *member, uint32_t process,
    enum simulated_kind kind, const struct simulated_control *control_message);

/* Is MESSAGE an order, the next in sequence? A refusal ends PROCESS. */
bool simulated_member_receive(struct simulated *s,
                              struct simulated_member *member, uint32_t process,
                              const struct simulated_message *message);

/* Joins and beats with HEARTBEAT, sends again. A chief silent for too long ends
 * PROCESS, or takes it back. */
void simulated_member_step(struct simulated *s, struct simulated_member *member,
                           uint32_t process,
                           const struct simulated_control *heartbeat);

/* Numbers and keeps a message in CHANNEL; sends by the two below. */
void simulated_member_enqueue(struct simulated *s, struct channel *channel,
                              enum simulated_kind kind,
                              const struct simulated_control *control_message);
/* The next kept message that is due; false: none. */
bool simulated_member_due(struct simulated *s, struct channel *channel,
                          struct simulated_message *message,
                          const struct channel_entry **entry);
#endif
