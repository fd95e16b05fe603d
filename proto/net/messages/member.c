/* SPDX-License-Identifier: Apache-2.0 */
/* The chief may not run yet, and its name may move: it is looked up again and
 * again, and asked to let this process join until it answers. What is told from
 * then on is numbered and kept until it is acknowledged (channel.h), which any
 * of the chief's messages does; beats are not, as a later one says more. Any
 * message of the run is a sign of the chief's life. */
#include "proto/net/messages/member.h"

#include "proto/net/link/link.h"
#include "proto/net/messages/member_parts.h"
#include "proto/net/messages/member_record.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const int64_t RESEND_AFTER = 2 * TIME_S, REJOIN_AFTER = 2 * TIME_S;
static const int64_t READ_MEMORY_EVERY = TIME_S;
static const double FIRST_PEER_TIMEOUT = 30;

static void name_chief(struct member *member) {
    if (member->settings.chief_inside)
        snprintf(member->chief_name, sizeof member->chief_name,
                 "the chief in this process");
    else if (member->chief_host[0] && member->doors.count > 1)
        snprintf(member->chief_name, sizeof member->chief_name,
                 "the chief at %s, one of the ports %u to %u",
                 member->chief_host, member->chief_port,
                 member->chief_port + member->doors.count - 1);
    else if (member->chief_host[0])
        snprintf(member->chief_name, sizeof member->chief_name,
                 "the chief at %s:%u", member->chief_host, member->chief_port);
    else
        snprintf(member->chief_name, sizeof member->chief_name,
                 "a chief (this cluster description names none)");
}

void member_timeout(struct member *member, double peer) {
    member->peer_limit = time_from_seconds(peer);
    member->beat_every = member->peer_limit / 6;
    if (member->beat_every > TIME_S / 2)
        member->beat_every = TIME_S / 2;
}

/* The link stands for the process's life; whom it connects to is looked up
 * later, and again. */
enum status member_open(struct member **out,
                        const struct member_settings *settings,
                        struct failure *why) {
    struct member *member = calloc(1, sizeof *member);
    if (!member)
        return status_fail(why, STATUS_RETRY, "no memory to join");
    struct link_settings link = {.max_frame = MESSAGE_MAX_CONTROL,
                                 .receive_frames = 10000,
                                 .linger_ms = 1000};
    unsigned doors = settings->chief_inside ? 1 : settings->chief_ports;
    enum status status =
        doors_open(&member->doors, settings->zmq, &link, doors, why);
    if (!status && settings->chief_inside)
        status = link_connect_inside(member->doors.links[0],
                                     settings->chief_inside, why);
    if (status) {
        doors_close(&member->doors);
        free(member);
        return status;
    }
    member->settings = *settings;
    member->incarnation = message_random();
    member->end_key = settings->record ? message_random() : 0;
    member->opened = member->heard = member->said_waiting = time_now();
    member->join_sent = member->beat_sent = member->looked_up =
        member->opened - MEMBER_LOOK_UP_EVERY;
    member->join_limit = time_from_seconds(settings->join_timeout);
    member_timeout(member, FIRST_PEER_TIMEOUT);
    capstan__beat__init(&member->beat);
    gethostname(member->host, sizeof member->host - 1);
    if (settings->chief)
        member_meet(member, settings->chief->host, settings->chief->port);
    name_chief(member);
    *out = member;
    return STATUS_OK;
}

void member_close(struct member **where) {
    struct member *member = *where;
    *where = NULL;
    if (!member)
        return;
    message_free_control(&member->order);
    channel_close(&member->channel);
    resolve_end(&member->resolve);
    doors_close(&member->doors);
    free(member);
}

void member_meet(struct member *member, const char *host, uint16_t port) {
    if (member->settings.chief_inside || member->joined)
        return;
    snprintf(member->chief_host, sizeof member->chief_host, "%s", host);
    member->chief_port = port;
    name_chief(member);
}

void member_called(struct member *member, const char *address) {
    char host[256];
    uint16_t port;
    if (resolve_split(address, host, sizeof host, &port))
        member_meet(member, host, port);
}

bool member_chief_address(const struct member *member, char *text,
                          size_t size) {
    snprintf(text, size, strchr(member->chief_host, ':') ? "[%s]:%u" : "%s:%u",
             member->chief_host, member->chief_port);
    return member->chief_host[0];
}

bool member_send(struct member *member, Capstan__Control *control) {
    control->version = MESSAGE_VERSION;
    control->run = member->run;
    control->incarnation = member->incarnation;
    control->ack = member->channel.received;
    size_t size = capstan__control__get_packed_size(control);
    uint8_t small[4096], *bytes = size <= sizeof small ? small : malloc(size);
    if (!bytes)
        return false;
    capstan__control__pack(control, bytes);
    bool sent = doors_commit(&member->doors, bytes, size);
    if (bytes != small)
        free(bytes);
    return sent;
}

/* Its welcome, then its heartbeats. */
struct wait member_wait(const struct member *member) {
    return member->joined ? wait_for(member->chief_name, "timeouts.peer",
                                     member->heard, member->peer_limit)
                          : wait_for(member->chief_name,
                                     "timeouts.join, or --join-timeout",
                                     member->opened, member->join_limit);
}

/* Until there is a plan what is free is told again and again: the chief may
 * wait for it. */
static void send_beat(struct member *member) {
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    member->beat.n_memory =
        member->planned ? 0
                        : member_memory(member, time_now(), READ_MEMORY_EVERY,
                                        &member->beat.memory);
    control.body_case = CAPSTAN__CONTROL__BODY_BEAT;
    control.beat = &member->beat;
    member_send(member, &control);
}

/* What came meanwhile is not read yet, and a chief that lives has its turn to
 * say more: of the wait for it there is left what there was. */
static void note_standstill(struct member *member, int64_t now) {
    int64_t still = wait_stood_still(member->stepped, now);
    member->stepped = now;
    wait_move(&member->heard, still, now);
    wait_move(&member->silent, still, now);
    if (still < wait_silence(member->peer_limit) ||
        member->settings.chief_inside) /* which says it */
        return;
    member->still = still;
    member->stood = now;
    log_warning(member->settings.log,
                "this process itself stood still for %.0f s (stopped, starved, "
                "or at a slow disk): %s has that much longer (timeouts.peer), "
                "but may have given it up",
                time_to_seconds(still), member->chief_name);
}

static enum status fail_silent(const struct member *member,
                               const struct wait *wait, struct failure *why) {
    if (member->still && member->heard <= member->stood)
        return status_fail(
            why, STATUS_RETRY,
            "nothing was heard of %s for %.0f s (%s), since this process "
            "itself stood still for %.0f s, stopped or starved; start the same "
            "command again",
            wait->peer, time_to_seconds(member->peer_limit), wait->limit,
            time_to_seconds(member->still));
    return status_fail(
        why, STATUS_RETRY,
        "%s was silent for %.0f s (%s): it is gone, or the network is; "
        "start the same commands again",
        wait->peer, time_to_seconds(member->peer_limit), wait->limit);
}

static void tell_silence(struct member *member, const struct wait *wait,
                         int64_t now) {
    char text[512];
    if (member->silent && member->heard > member->silent) {
        log_info(member->settings.log, "%s is heard of again",
                 member->chief_name);
        member->silent = 0;
    }
    if (member->silent ||
        now - member->heard < wait_silence(member->peer_limit))
        return;
    member->silent = member->heard;
    wait_text(wait, now, text, sizeof text);
    log_warning(member->settings.log, "%s", text);
}

static void send_kept(struct member *member, int64_t now) {
    const struct channel_entry *entry;
    while ((entry = channel_next(&member->channel, now, RESEND_AFTER)))
        if (!doors_commit(&member->doors, entry->bytes, entry->size)) {
            channel_unsent(entry);
            return;
        }
}

/* The chief hears a member by the connection that it has joined by: a new one
 * begins with a join, and so does one by which nothing comes any more. */
static void join_again(struct member *member, int64_t now) {
    bool renewed = link_renewed(member->doors.links[0]);
    bool silent = now - member->heard >= REJOIN_AFTER &&
                  now - member->join_sent >= REJOIN_AFTER;
    if (!renewed && !silent)
        return;
    member->join_sent = now;
    if (member_send_join(member, now))
        channel_again(&member->channel);
}

enum status member_step(struct member *member, int64_t now,
                        struct failure *why) {
    if (!member->joined)
        return member_step_joining(member, now, why);
    note_standstill(member, now);
    struct wait wait = member_wait(member);
    if (wait_over(&wait, now))
        return fail_silent(member, &wait, why);
    tell_silence(member, &wait, now);
    if (now - member->heard > MEMBER_LOOK_UP_EVERY)
        member_look_up(member, now);
    join_again(member, now);
    send_kept(member, now);
    if (now - member->beat_sent >= member->beat_every) {
        member->beat_sent = now;
        send_beat(member);
    }
    return STATUS_OK;
}

int64_t member_deadline(const struct member *member) {
    if (!member->joined)
        return member->resolve || member->doors.count > 1
                   ? member->looked + MEMBER_LOOK_EVERY
                   : member->join_sent + MEMBER_JOIN_EVERY;
    return member->beat_sent + member->beat_every;
}

void *member_socket(struct member *member) {
    return link_socket(member->doors.links[0]);
}

/* My launcher may have to speak for me. */
static void write_record(const struct member *member) {
    struct member_record record = {.run = member->run,
                                   .incarnation = member->incarnation,
                                   .key = member->end_key};
    size_t size = sizeof record.chief;
    char endpoint[sizeof record.chief];
    if (!member->settings.chief_inside &&
        !zmq_getsockopt(link_socket(member->doors.links[0]), ZMQ_LAST_ENDPOINT,
                        endpoint, &size) &&
        !strncmp(endpoint, "tcp://", 6))
        snprintf(record.chief, sizeof record.chief, "%s", endpoint + 6);
    member_record_write(member->settings.record, &record);
}

static void welcome(struct member *member, const Capstan__Control *control,
                    unsigned which) {
    doors_choose(&member->doors, which);
    member->chief_port += (uint16_t)which;
    name_chief(member);
    member->joined = true;
    member->stepped = time_now();
    member->run = control->run;
    member->channel.received = 0;
    link_renewed(member->doors.links[0]); /* it joined by this one */
    write_record(member);
}

/* The chief of another job listens here: mine may take the port after it. */
static void note_stranger(struct member *member, unsigned which) {
    if (!member->said_stranger)
        log_warning(member->settings.log,
                    "another job's chief answers at %s:%u: waiting for mine",
                    member->chief_host, member->chief_port + which);
    member->said_stranger = true;
}

/* True when CONTROL is an order to hand on. */
static bool accept(struct member *member, const Capstan__Control *control,
                   unsigned which, int64_t now) {
    bool welcoming = control->body_case == CAPSTAN__CONTROL__BODY_WELCOME;
    if (control->body_case == CAPSTAN__CONTROL__BODY_REFUSAL &&
        control->refusal->stranger) {
        note_stranger(member, which);
        return false;
    }
    if (control->body_case == CAPSTAN__CONTROL__BODY_REFUSAL)
        return true;
    if (!member->joined && welcoming)
        welcome(member, control, which);
    if (!member->joined || control->run != member->run)
        return false;
    member->heard = now;
    channel_acknowledged(&member->channel, control->ack);
    member->planned |= control->body_case == CAPSTAN__CONTROL__BODY_PLAN;
    return control->seq && channel_take(&member->channel, control->seq);
}

enum status member_receive(struct member *member, int64_t now,
                           const Capstan__Control **order,
                           struct failure *why) {
    struct link_frame frame;
    unsigned which;
    *order = NULL;
    message_free_control(&member->order);
    while (doors_view(&member->doors, &frame, &which)) {
        struct failure bad;
        enum status status = message_read_control(
            &member->order, frame.header.data, frame.header.size, &bad);
        link_release(&frame);
        if (status) {
            log_warning(member->settings.log, "from %s: %s", member->chief_name,
                        bad.text);
            continue;
        }
        if (accept(member, member->order, which, now)) {
            *order = member->order;
            break;
        }
        message_free_control(&member->order);
    }
    if (!*order || (*order)->body_case != CAPSTAN__CONTROL__BODY_REFUSAL)
        return STATUS_OK;
    const Capstan__Refusal *refusal = (*order)->refusal;
    *order = NULL;
    status_fail(why, (enum status)refusal->status, "%s", refusal->text);
    return refusal->ended ? status_heard(why) : why->status;
}

void member_tell(struct member *member, Capstan__Control *body) {
    body->version = MESSAGE_VERSION;
    body->run = member->run;
    body->incarnation = member->incarnation;
    if (!channel_put(&member->channel, body))
        log_error(member->settings.log, "no memory to tell the chief");
    send_kept(member, time_now());
}

Capstan__Beat *member_beat(struct member *member) {
    return &member->beat;
}

void member_beat_now(struct member *member) {
    if (member->joined)
        send_beat(member);
}

void member_bye(struct member *member) {
    Capstan__Bye bye = CAPSTAN__BYE__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    control.body_case = CAPSTAN__CONTROL__BODY_BYE;
    control.bye = &bye;
    member_send(member, &control);
    member_record_write(member->settings.record, &(struct member_record){0});
}

enum status member_stop(struct member *member, const Capstan__Stop *stop,
                        double *again, struct failure *why) {
    const struct log *log = member->settings.log;
    member_bye(member);
    if (stop->again > 0) {
        log_info(log, "the run is over: %s; another follows", stop->text);
        if (again)
            *again = stop->again;
        return STATUS_OK;
    }
    if (stop->status) {
        status_fail(why, (enum status)stop->status,
                    "the chief ended the run: %s", stop->text);
        return status_heard(why);
    }
    log_info(log, "the run is over: %s", stop->text);
    return STATUS_OK;
}

bool member_joined(const struct member *member) {
    return member->joined;
}

bool member_settled(const struct member *member) {
    return channel_empty(&member->channel);
}

uint64_t member_incarnation(const struct member *member) {
    return member->incarnation;
}

uint64_t member_run(const struct member *member) {
    return member->run;
}

const char *member_chief_name(const struct member *member) {
    return member->chief_name;
}
