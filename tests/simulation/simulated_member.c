/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/simulation/simulated_member.h"

#include "tests/simulation/simulated_net.h"

#include <string.h>

static const int64_t JOIN_EVERY = TIME_S / 5;
static const int64_t RESEND_AFTER = 2 * TIME_S;
static const int64_t ORPHAN_LIMIT = 30 * TIME_S;

void simulated_member_open(struct simulated *s, struct simulated_member *member,
                           uint32_t process) {
    *member =
        (struct simulated_member){.opened = s->now, .join_sent = -JOIN_EVERY};
    simulated_net_wake(s, process, s->now);
}

void simulated_member_close(struct simulated_member *member) {
    channel_close(&member->channel);
}

/* The message is the tail of the channel's bytes: what is tested of a channel
 * is order, loss and repetition. */
void simulated_member_enqueue(struct simulated *s, struct channel *channel,
                              enum simulated_kind kind,
                              const struct simulated_control *control_message) {
    struct simulated_message message = {.kind = kind,
                                        .control_message = *control_message};
    Capstan__Plan body = CAPSTAN__PLAN__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    message.control_message.ack = channel->received;
    body.block_ps.len = sizeof message;
    body.block_ps.data = (uint8_t *)&message;
    control.body_case = CAPSTAN__CONTROL__BODY_PLAN;
    control.plan = &body;
    if (!channel_put(channel, &control))
        simulated_fail(s, "no memory");
}

bool simulated_member_due(struct simulated *s, struct channel *channel,
                          struct simulated_message *message,
                          const struct channel_entry **entry) {
    *entry = channel_next(channel, s->now, RESEND_AFTER);
    if (!*entry)
        return false;
    memcpy(message, (*entry)->bytes + (*entry)->size - sizeof *message,
           sizeof *message);
    message->control_message.seq = (*entry)->seq;
    return true;
}

static void sign(const struct simulated *s,
                 const struct simulated_member *member, uint32_t process,
                 struct simulated_message *message) {
    message->run = member->run;
    message->incarnation = s->processes[process].incarnation;
    message->control_message.term = member->term;
}

static void send_kept(struct simulated *s, struct simulated_member *member,
                      uint32_t process) {
    struct simulated_message message;
    const struct channel_entry *entry;
    uint32_t line = simulated_net_control(process);
    while (simulated_member_due(s, &member->channel, &message, &entry)) {
        sign(s, member, process, &message);
        if (simulated_net_up(s, line, process, 0, &message))
            continue;
        channel_unsent(entry);
        return;
    }
}

void simulated_member_send_reliable(
    struct simulated *s, struct simulated_member *member, uint32_t process,
    enum simulated_kind kind, const struct simulated_control *control_message) {
    simulated_member_enqueue(s, &member->channel, kind, control_message);
    send_kept(s, member, process);
}

void simulated_member_send_once(
    struct simulated *s, struct simulated_member *member, uint32_t process,
    enum simulated_kind kind, const struct simulated_control *control_message) {
    struct simulated_message message = {.kind = kind,
                                        .control_message = *control_message};
    message.control_message.seq = 0;
    message.control_message.ack = member->channel.received;
    sign(s, member, process, &message);
    simulated_net_up(s, simulated_net_control(process), process, 0, &message);
}

/* One that has been in a run joins the next one. */
static void leave(struct simulated *s, const struct simulated_member *member,
                  uint32_t process) {
    if (member->joined)
        simulated_go_back(s, process);
    else
        simulated_end(s, process, false);
}

/* It has a run that another chief can adopt, whose message this is. */
static bool is_of_another(const struct simulated_member *member,
                          const struct simulated_message *message) {
    return member->joined && member->trains &&
           message->incarnation != member->chief;
}

/* From before its chief has had the run: a connection would not bring it. */
static bool is_outdated(const struct simulated_member *member,
                        const struct simulated_message *refusal) {
    return refusal->incarnation < member->chief ||
           (refusal->incarnation == member->chief &&
            refusal->control_message.term < member->term);
}

static void become_orphan(struct simulated *s, struct simulated_member *member,
                          uint32_t process, bool rejoins) {
    if (!member->orphaned_at) {
        simulated_trace(s, "process %u goes on without its chief", process);
        member->orphaned_at = s->now;
    }
    if (rejoins && !member->rejoins)
        simulated_net_wake(s, process, s->now);
    member->rejoins |= rejoins;
}

/* As rejoin_begin_channel; who calls tells again what is not known. */
static void take_adoption(struct simulated_member *member,
                          const struct simulated_message *adopted) {
    member->chief = adopted->incarnation;
    member->term = adopted->control_message.term;
    member->rejoins = false;
    channel_close(&member->channel);
    member->channel = (struct channel){0};
}

bool simulated_member_receive(struct simulated *s,
                              struct simulated_member *member, uint32_t process,
                              const struct simulated_message *message) {
    if (message->kind == SIMULATED_REFUSAL) {
        if (is_outdated(member, message))
            return false;
        if (message->control_message.back || !is_of_another(member, message))
            leave(s, member, process);
        else
            become_orphan(s, member, process, true);
        return false;
    }
    if (!member->joined && message->kind == SIMULATED_WELCOME) {
        member->joined = true;
        member->run = message->run;
        member->chief = message->incarnation;
        member->heartbeat_sent = s->now;
    }
    if (!member->joined || message->run != member->run)
        return false;
    if (message->kind == SIMULATED_ADOPTED && member->rejoins &&
        message->control_message.term > member->term)
        take_adoption(member, message);
    if ((message->incarnation != member->chief || member->rejoins) &&
        !simulated_has_fault(s, SIMULATION_OLD_CHIEF_OBEYED))
        return false;
    member->heard = s->now;
    member->orphaned_at = 0;
    channel_acknowledge(&member->channel, message->control_message.ack);
    if (!message->control_message.seq)
        return false;
    return channel_accept(&member->channel, message->control_message.seq) ||
           simulated_has_fault(s, SIMULATION_COMMANDS_TWICE);
}

static void rejoin(struct simulated *s, struct simulated_member *member,
                   uint32_t process, const struct simulated_control *own) {
    if (s->now - member->join_sent >= JOIN_EVERY) {
        member->join_sent = s->now;
        simulated_member_send_once(s, member, process, SIMULATED_REJOIN, own);
    }
    simulated_net_wake(s, process, member->join_sent + JOIN_EVERY);
}

void simulated_member_step(struct simulated *s, struct simulated_member *member,
                           uint32_t process,
                           const struct simulated_control *heartbeat) {
    if (!member->joined) {
        if (s->now - member->join_sent >= JOIN_EVERY) {
            member->join_sent = s->now;
            simulated_member_send_once(s, member, process, SIMULATED_JOIN,
                                       heartbeat);
        }
        simulated_net_wake(s, process, member->join_sent + JOIN_EVERY);
        return;
    }
    if (!member->rejoins && s->now - member->heard > SIMULATED_PEER_LIMIT &&
        member->trains)
        become_orphan(s, member, process, false);
    if (member->orphaned_at ? s->now - member->orphaned_at > ORPHAN_LIMIT
                            : s->now - member->heard > SIMULATED_PEER_LIMIT) {
        simulated_trace(s, "process %u: the chief is silent", process);
        leave(s, member, process);
        return;
    }
    if (member->rejoins) {
        rejoin(s, member, process, heartbeat);
        return;
    }
    send_kept(s, member, process);
    if (s->now - member->heartbeat_sent >= SIMULATED_HEARTBEAT_INTERVAL) {
        member->heartbeat_sent = s->now;
        simulated_member_send_once(s, member, process, SIMULATED_HEARTBEAT,
                                   heartbeat);
    }
    simulated_net_wake(s, process,
                       member->heartbeat_sent + SIMULATED_HEARTBEAT_INTERVAL);
}
