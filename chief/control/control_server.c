/* SPDX-License-Identifier: Apache-2.0 */
/* Messages of known senders go through a channel, which drops duplicates and
 * requests nothing that is missing: the sender resends what is not
 * acknowledged. A sender is identified by its incarnation and the connection
 * that it joined by; on a new connection it joins again before its messages are
 * accepted. A process that is not known gets one reply to each message
 * (control_server_reply), which contains no id of the run, and has no channel.
 */
#include "chief/control/control_server.h"

#include "core/base/time.h"
#include "proto/messages/channel.h"

#include <stdlib.h>

static const int64_t RESEND_AFTER = 2 * TIME_S;

/* Belongs to a slot, not to a connection: when the member joins again by a new
 * connection, the channel continues. A new member gets an empty channel
 * (control_server_bind_peer). */
struct member_channel {
    struct channel channel;
    uint32_t peer; /* connection of the member */
    int64_t heartbeat_sent;
    int64_t echo, echo_taken; /* as in Heartbeat; 0: none */
};

struct control_server {
    struct link *link;
    struct roster *roster;
    const struct log *log;
    uint64_t run, incarnation;
    struct member_channel *members; /* [roster.count] */
    Capstan__Control *incoming;
    bool has_dropped; /* a message, for want of memory */
};

struct control_server *control_server_open(struct link *link,
                                           struct roster *roster,
                                           const struct log *log, uint64_t run,
                                           uint64_t incarnation) {
    struct control_server *server = calloc(1, sizeof *server);
    if (!server)
        return NULL;
    *server = (struct control_server){.link = link,
                                      .roster = roster,
                                      .log = log,
                                      .run = run,
                                      .incarnation = incarnation};
    server->members = calloc(roster->count + 1, sizeof *server->members);
    if (!server->members)
        control_server_close(&server);
    return server;
}

void control_server_close(struct control_server **where) {
    struct control_server *server = *where;
    *where = NULL;
    if (!server)
        return;
    for (uint32_t i = 0; server->members && i < server->roster->count; i++)
        channel_close(&server->members[i].channel);
    message_free_control(&server->incoming);
    free(server->members);
    free(server);
}

void control_server_set_run(struct control_server *server, uint64_t run) {
    server->run = run;
}

static struct member_channel *member_of(struct control_server *server,
                                        const struct roster_slot *slot) {
    return &server->members[slot - server->roster->slots];
}

static void fill_header(const struct control_server *server,
                        Capstan__Control *control) {
    control->version = MESSAGE_VERSION;
    control->run = server->run;
    control->incarnation = server->incarnation;
}

static void rebind(struct control_server *server, struct roster_slot *slot,
                   uint32_t peer) {
    struct member_channel *member = member_of(server, slot);
    member->peer = peer;
    roster_mark_returned(slot);
    channel_resend_all(&member->channel);
    link_admit(server->link, peer);
}

/* The ids of a run are not secret, so they do not prove that a sender has
 * ended: that takes the key which only its launcher has. The launcher leaves
 * once it is answered. */
static bool confirm_exit(struct control_server *server, uint32_t peer,
                         const struct control_message *incoming) {
    const Capstan__Control *control = incoming->control;
    uint64_t key = incoming->slot->end_key;
    Capstan__Goodbye goodbye = CAPSTAN__GOODBYE__INIT;
    Capstan__Control reply = CAPSTAN__CONTROL__INIT;
    if (control->run != server->run || !key || control->exit_report->key != key)
        return false;
    link_admit(server->link, peer);
    reply.body_case = CAPSTAN__CONTROL__BODY_GOODBYE;
    reply.goodbye = &goodbye;
    control_server_reply(server, peer, &reply);
    return true;
}

/* The answer, which is due at once, tells the member how its clock differs from
 * this one. */
static void take_times(struct member_channel *member,
                       const Capstan__Control *control) {
    if (control->body_case != CAPSTAN__CONTROL__BODY_HEARTBEAT ||
        !control->heartbeat->sent_at)
        return;
    member->echo = control->heartbeat->sent_at;
    member->echo_taken = time_now();
    member->heartbeat_sent = 0;
}

/* Where its key tells who a sender is, it says nothing as another one. A
 * launcher reports the death of any of its processes by that one's own key. */
static bool may_say(struct control_server *server, struct link_frame *frame,
                    const struct control_message *incoming) {
    const Capstan__Control *control = incoming->control;
    const struct roster_slot *slot = incoming->slot;
    if (control->body_case == CAPSTAN__CONTROL__BODY_EXIT_REPORT)
        return true;
    if (control->body_case == CAPSTAN__CONTROL__BODY_JOIN &&
        control->join->role < CLUSTER_ROLES &&
        !link_is_from(server->link, frame,
                      cluster_party(control->join->role, control->join->index)))
        return false;
    return !slot || link_is_from(server->link, frame,
                                 cluster_party(slot->role, slot->index));
}

/* Finds the sender's slot and whether the message is new; records the
 * acknowledgement of a known sender either way. Only a join moves a channel to
 * another connection, because the ids of a run are not secret. */
static bool classify(struct control_server *server, struct link_frame *frame,
                     int64_t now, struct control_message *incoming) {
    const Capstan__Control *control = server->incoming;
    incoming->control = control;
    incoming->peer = frame->peer;
    incoming->from[0] = 0;
    incoming->slot = roster_find_member(server->roster, control->incarnation);
    bool joins = control->body_case == CAPSTAN__CONTROL__BODY_JOIN;
    if (joins)
        link_peer_host(frame, incoming->from, sizeof incoming->from);
    if (!may_say(server, frame, incoming)) {
        if (link_may_log(server->link, "as another"))
            log_warning(server->log, "message_refused",
                        "a peer sent a message as another process than its "
                        "key's; its connection is not read any more");
        link_ban(server->link, frame->peer);
        return false;
    }
    if (!incoming->slot)
        return true;
    struct member_channel *member = member_of(server, incoming->slot);
    if (joins) { /* joins again: by a new connection, or before its welcome
                    arrives */
        if (member->peer != frame->peer)
            rebind(server, incoming->slot, frame->peer);
        return true;
    }
    if (control->body_case == CAPSTAN__CONTROL__BODY_EXIT_REPORT)
        return confirm_exit(server, frame->peer, incoming);
    if (control->run != server->run || member->peer != frame->peer)
        return false;
    roster_mark_alive(incoming->slot, now);
    take_times(member, control);
    channel_acknowledge(&member->channel, control->ack);
    return !control->seq || channel_accept(&member->channel, control->seq);
}

/* A process of another release reads at least this message's version. */
static void answer_version(struct control_server *server, uint32_t peer) {
    Capstan__Refusal refusal = CAPSTAN__REFUSAL__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    refusal.code = FAILURE_VERSION_MISMATCH;
    refusal.text = "the chief is of another release of capstan";
    control.body_case = CAPSTAN__CONTROL__BODY_REFUSAL;
    control.refusal = &refusal;
    control_server_reply(server, peer, &control);
}

bool control_server_receive(struct control_server *control_server, int64_t now,
                            struct control_message *incoming) {
    struct link_frame frame;
    message_free_control(&control_server->incoming);
    while (link_view(control_server->link, &frame)) {
        struct failure bad;
        bool read =
            !message_read_control(&control_server->incoming, frame.header.data,
                                  frame.header.size, &bad);
        bool wanted = read && classify(control_server, &frame, now, incoming);
        if (!read) {
            if (link_may_log(control_server->link, bad.text))
                log_warning(
                    control_server->log, "malformed_message_rejected",
                    "a peer sent %s; its connection is not read any more",
                    bad.text);
            if (bad.code == FAILURE_VERSION_MISMATCH)
                answer_version(control_server, frame.peer);
            link_ban(control_server->link, frame.peer);
        }
        link_release(&frame);
        if (wanted)
            return true;
        message_free_control(&control_server->incoming);
    }
    return false;
}

void control_server_bind_peer(struct control_server *server,
                              struct roster_slot *slot, uint32_t peer) {
    struct member_channel *member = member_of(server, slot);
    channel_close(&member->channel);
    *member = (struct member_channel){.peer = peer};
    link_admit(server->link, peer);
}

static void control_server_send_pending(struct control_server *server,
                                        struct member_channel *member,
                                        int64_t now) {
    const struct channel_entry *entry;
    while ((entry = channel_next(&member->channel, now, RESEND_AFTER)))
        if (!link_commit(server->link, member->peer, entry->bytes, entry->size,
                         NULL)) {
            channel_unsent(entry); /* it is sent first after a reconnect */
            return;
        }
}

void control_server_send(struct control_server *server,
                         struct roster_slot *slot, Capstan__Control *control) {
    struct member_channel *member = member_of(server, slot);
    if (slot->state != ROSTER_HELD)
        return;
    fill_header(server, control);
    control->ack = member->channel.received;
    if (!channel_put(&member->channel, control)) {
        server->has_dropped = true;
        log_error(server->log, "message_dropped", "no memory for a message");
    }
    control_server_send_pending(server, member, time_now());
}

static bool is_addressed(const struct roster_slot *slot,
                         enum cluster_role role) {
    if (role == CLUSTER_ROLES)
        return true;
    return (slot->role == CLUSTER_PS) == (role == CLUSTER_PS);
}

void control_server_broadcast(struct control_server *server,
                              enum cluster_role role,
                              Capstan__Control *control) {
    for (uint32_t i = 0; i < server->roster->count; i++)
        if (is_addressed(&server->roster->slots[i], role))
            control_server_send(server, &server->roster->slots[i], control);
}

void control_server_reply(struct control_server *server, uint32_t peer,
                          Capstan__Control *control) {
    control->version = MESSAGE_VERSION;
    control->incarnation = server->incarnation;
    size_t size = capstan__control__get_packed_size(control);
    uint8_t *bytes = malloc(size ? size : 1);
    if (!bytes)
        return;
    capstan__control__pack(control, bytes);
    link_reply(server->link, peer, bytes, size);
    free(bytes);
}

static void control_server_send_heartbeat(struct control_server *server,
                                          struct member_channel *member) {
    Capstan__Heartbeat heartbeat = CAPSTAN__HEARTBEAT__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    uint8_t bytes[128]; /* fixed-size fields only */
    control.body_case = CAPSTAN__CONTROL__BODY_HEARTBEAT;
    control.heartbeat = &heartbeat;
    control.ack = member->channel.received;
    heartbeat.echo = member->echo;
    heartbeat.echo_taken = member->echo_taken;
    heartbeat.sent_at = member->echo ? time_now() : 0;
    fill_header(server, &control);
    size_t size = capstan__control__pack(&control, bytes);
    link_commit(server->link, member->peer, bytes, size, NULL);
}

static void take_closed(struct control_server *server, int64_t now) {
    uint32_t peer;
    while (link_next_closed(server->link, &peer))
        for (uint32_t i = 0; i < server->roster->count; i++)
            if (server->roster->slots[i].state == ROSTER_HELD &&
                server->members[i].peer == peer)
                roster_mark_closed(&server->roster->slots[i], now);
}

/* Heartbeats are sent even when no other message is: they carry
 * acknowledgements, which free the peer's retained messages, and show that the
 * chief is alive. */
bool control_server_step(struct control_server *server, int64_t now,
                         int64_t heartbeat_interval) {
    take_closed(server, now);
    for (uint32_t i = 0; i < server->roster->count; i++) {
        struct member_channel *member = &server->members[i];
        if (server->roster->slots[i].state != ROSTER_HELD)
            continue;
        control_server_send_pending(server, member, now);
        if (now - member->heartbeat_sent >= heartbeat_interval) {
            member->heartbeat_sent = now;
            control_server_send_heartbeat(server, member);
        }
    }
    return !server->has_dropped;
}

bool control_server_is_drained(struct control_server *control_server,
                               const struct roster_slot *slot) {
    return channel_empty(&member_of(control_server, slot)->channel);
}
