/* SPDX-License-Identifier: Apache-2.0 */
/* Letters of known senders go through a channel, which drops what came before
 * and asks for nothing that is missing: the other side sends again what is not
 * acknowledged. A sender is known by its incarnation and the connection that it
 * has joined by; by a new one it joins again before it is heard there. Who is
 * not known gets an answer to one letter (post_answer), which tells no number
 * of the run, and has no channel. */
#include "chief/control/post.h"

#include "proto/base/time.h"
#include "proto/net/messages/channel.h"

#include <stdlib.h>

static const int64_t RESEND_AFTER = 2 * TIME_S;

/* A slot's, not a connection's: its holder may join again by a new connection,
 * and the channel goes on. A new holder gets an empty one (post_meet). */
struct mailbox {
    struct channel channel;
    uint32_t peer; /* connection of the holder */
    int64_t beat_sent;
};

struct post {
    struct link *link;
    struct roster *roster;
    const struct log *log;
    uint64_t run, incarnation;
    struct mailbox *boxes; /* a slot each */
    Capstan__Control *letter;
};

struct post *post_open(struct link *link, struct roster *roster,
                       const struct log *log, uint64_t run,
                       uint64_t incarnation) {
    struct post *post = calloc(1, sizeof *post);
    if (!post)
        return NULL;
    *post = (struct post){.link = link,
                          .roster = roster,
                          .log = log,
                          .run = run,
                          .incarnation = incarnation};
    post->boxes = calloc(roster->count + 1, sizeof *post->boxes);
    if (!post->boxes)
        post_close(&post);
    return post;
}

void post_close(struct post **where) {
    struct post *post = *where;
    *where = NULL;
    if (!post)
        return;
    for (uint32_t i = 0; post->boxes && i < post->roster->count; i++)
        channel_close(&post->boxes[i].channel);
    message_free_control(&post->letter);
    free(post->boxes);
    free(post);
}

static struct mailbox *box_of(struct post *post,
                              const struct roster_slot *slot) {
    return &post->boxes[slot - post->roster->slots];
}

static void stamp(const struct post *post, Capstan__Control *control) {
    control->version = MESSAGE_VERSION;
    control->run = post->run;
    control->incarnation = post->incarnation;
}

static void move(struct post *post, struct mailbox *box, uint32_t peer) {
    box->peer = peer;
    channel_again(&box->channel);
    link_admit(post->link, peer);
}

/* Numbers that somebody has picked up do not say that a sender has ended: that
 * takes the key which its launcher has. That one leaves once it is answered. */
static bool ends(struct post *post, uint32_t peer,
                 const struct post_letter *letter) {
    const Capstan__Control *control = letter->control;
    uint64_t key = letter->slot->end_key;
    Capstan__Bye bye = CAPSTAN__BYE__INIT;
    Capstan__Control heard = CAPSTAN__CONTROL__INIT;
    if (control->run != post->run || !key || control->ended->key != key)
        return false;
    link_admit(post->link, peer);
    heard.body_case = CAPSTAN__CONTROL__BODY_BYE;
    heard.bye = &bye;
    post_answer(post, peer, &heard);
    return true;
}

/* Whose letter it is, and whether it is new; a known sender's acknowledgement
 * is noted either way. Only a join moves its mailbox to another connection:
 * numbers that somebody has picked up are not enough. */
static bool sort(struct post *post, struct link_frame *frame, int64_t now,
                 struct post_letter *letter) {
    const Capstan__Control *control = post->letter;
    letter->control = control;
    letter->peer = frame->peer;
    letter->from[0] = 0;
    letter->slot = roster_holder(post->roster, control->incarnation);
    bool joins = control->body_case == CAPSTAN__CONTROL__BODY_JOIN;
    if (joins)
        link_peer_host(frame, letter->from, sizeof letter->from);
    if (!letter->slot)
        return true;
    struct mailbox *box = box_of(post, letter->slot);
    if (joins) { /* again: by a new connection, or its welcome is on the way */
        if (box->peer != frame->peer)
            move(post, box, frame->peer);
        return true;
    }
    if (control->body_case == CAPSTAN__CONTROL__BODY_ENDED)
        return ends(post, frame->peer, letter);
    if (control->run != post->run || box->peer != frame->peer)
        return false;
    roster_heard(letter->slot, now);
    channel_acknowledged(&box->channel, control->ack);
    return !control->seq || channel_take(&box->channel, control->seq);
}

bool post_receive(struct post *post, int64_t now, struct post_letter *letter) {
    struct link_frame frame;
    message_free_control(&post->letter);
    while (link_view(post->link, &frame)) {
        struct failure bad;
        bool read = !message_read_control(&post->letter, frame.header.data,
                                          frame.header.size, &bad);
        bool wanted = read && sort(post, &frame, now, letter);
        if (!read) {
            if (link_may_say(post->link, bad.text))
                log_warning(
                    post->log,
                    "a peer sent %s; its connection is not read any more",
                    bad.text);
            link_ban(post->link, frame.peer);
        }
        link_release(&frame);
        if (wanted)
            return true;
        message_free_control(&post->letter);
    }
    return false;
}

void post_meet(struct post *post, struct roster_slot *slot, uint32_t peer) {
    struct mailbox *box = box_of(post, slot);
    channel_close(&box->channel);
    *box = (struct mailbox){.peer = peer};
    link_admit(post->link, peer);
}

static void send_kept(struct post *post, struct mailbox *box, int64_t now) {
    const struct channel_entry *entry;
    while ((entry = channel_next(&box->channel, now, RESEND_AFTER)))
        if (!link_commit(post->link, box->peer, entry->bytes, entry->size,
                         NULL)) {
            channel_unsent(entry); /* first when it is connected again */
            return;
        }
}

void post_tell(struct post *post, struct roster_slot *slot,
               Capstan__Control *control) {
    struct mailbox *box = box_of(post, slot);
    if (slot->state != ROSTER_HELD)
        return;
    stamp(post, control);
    control->ack = box->channel.received;
    if (!channel_put(&box->channel, control))
        log_error(post->log, "no memory for a message");
    send_kept(post, box, time_now());
}

static bool is_meant(const struct roster_slot *slot, enum cluster_role role) {
    if (role == CLUSTER_ROLES)
        return true;
    return (slot->role == CLUSTER_PS) == (role == CLUSTER_PS);
}

void post_tell_all(struct post *post, enum cluster_role role,
                   Capstan__Control *control) {
    for (uint32_t i = 0; i < post->roster->count; i++)
        if (is_meant(&post->roster->slots[i], role))
            post_tell(post, &post->roster->slots[i], control);
}

void post_answer(struct post *post, uint32_t peer, Capstan__Control *control) {
    control->version = MESSAGE_VERSION;
    size_t size = capstan__control__get_packed_size(control);
    uint8_t *bytes = malloc(size ? size : 1);
    if (!bytes)
        return;
    capstan__control__pack(control, bytes);
    link_answer(post->link, peer, bytes, size);
    free(bytes);
}

static void send_beat(struct post *post, struct mailbox *box) {
    Capstan__Beat beat = CAPSTAN__BEAT__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    uint8_t bytes[128]; /* numbers alone */
    control.body_case = CAPSTAN__CONTROL__BODY_BEAT;
    control.beat = &beat;
    control.ack = box->channel.received;
    stamp(post, &control);
    size_t size = capstan__control__pack(&control, bytes);
    link_commit(post->link, box->peer, bytes, size, NULL);
}

/* A beat also when nothing else goes: it carries what was received, which frees
 * the other side's kept messages, and is the chief's sign of life. */
void post_step(struct post *post, int64_t now, int64_t beat_every) {
    for (uint32_t i = 0; i < post->roster->count; i++) {
        struct mailbox *box = &post->boxes[i];
        if (post->roster->slots[i].state != ROSTER_HELD)
            continue;
        send_kept(post, box, now);
        if (now - box->beat_sent >= beat_every) {
            box->beat_sent = now;
            send_beat(post, box);
        }
    }
}

bool post_settled(struct post *post, const struct roster_slot *slot) {
    return channel_empty(&box_of(post, slot)->channel);
}
