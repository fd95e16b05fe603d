/* SPDX-License-Identifier: Apache-2.0 */
/* The chief may not be running yet, and its name may move: the client looks the
 * name up again and again, and repeats its join until the chief answers. Later
 * messages are numbered and kept until acknowledged (channel.h); any message of
 * the chief acknowledges. Heartbeats are not kept, as a later one replaces
 * them. Any message of the run counts as a heartbeat of the chief. */
#include "proto/messages/control_client.h"

#include "core/base/free_memory.h"
#include "core/base/time.h"
#include "core/net/link/link.h"
#include "core/net/link/resolve.h"
#include "core/store/copies.h"
#include "proto/job/job.h"
#include "proto/messages/channel.h"
#include "proto/messages/histograms.h"
#include "proto/messages/launch_record.h"
#include "proto/messages/process_report.h"
#include "proto/messages/rejoin.h"
#include "proto/messages/trace_sender.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const int64_t CONTROL_CLIENT_JOIN_INTERVAL = TIME_S / 2;
static const int64_t CONTROL_CLIENT_LOOKUP_INTERVAL = 5 * TIME_S;
static const int64_t CONTROL_CLIENT_POLL_INTERVAL =
    TIME_S / 20; /* of look-ups and connecting */

enum { MULTI_CONNECT_MAX = 16 };

/* Of messages that wait for a chief that is away. */
enum { KEPT_BYTES = 256 << 20 };

/* The links to a chief that listens on one of several consecutive ports: all of
 * them until it has answered on one. */
struct multi_connect {
    struct link *links[MULTI_CONNECT_MAX];
    unsigned count;
};

struct control_client {
    struct process *process;
    const struct member *member;
    uint16_t port;
    uint64_t shm_key;
    struct multi_connect multi_connect; /* one link, once joined */
    struct channel channel;
    struct resolve *resolve;
    uint64_t end_key;
    char chief_host[256], chief_name[320];
    char foreign_server[700]; /* what answers instead of the chief; "": nothing
                               */
    uint16_t chief_port;
    char host[256];
    bool joined, planned;
    bool rejoins;  /* by a new connection, which the chief has not answered */
    bool answered; /* by a chief that this process cannot join */
    /* The chief is gone: this is in place of its stop. */
    Capstan__Control loss;
    Capstan__Stop loss_stop;
    char loss_text[512]; /* "": it is there */
    double chief_within; /* these two of the welcome */
    bool may_adopt;
    bool has_dropped;                /* a message to it, for want of memory */
    struct member_past planned_past; /* from the first view on that of `member`;
                                        run 0: there is none */
    struct rejoin rejoin;
    uint64_t heard;      /* the step at which it has heard its chief, which has
                            all evaluations before it */
    uint64_t evaluated;  /* number of the last evaluation in `channel` */
    int64_t orphaned_at; /* since when it trains on without its chief; 0: not */
    bool is_rejoining;   /* another chief has its place */
    uint64_t chief_incarnation, job_digest;
    int64_t opened, last_received, last_join, last_heartbeat, last_wait_log;
    int64_t foreign_at, last_foreign_log; /* of foreign_server; 0: none */
    int64_t last_step;        /* time of the last control_client_step */
    int64_t stall, stall_end; /* the last standstill: its length and its end */
    int64_t silence_logged; /* last_received of the silence that was logged; 0:
                               none */
    int64_t lookup_started, last_poll; /* of the last look-up */
    int64_t join_limit, peer_limit, heartbeat_interval;
    Capstan__Heartbeat heartbeat;
    Capstan__Control *command;
    struct free_memory_limit limits[FREE_MEMORY_LIMITS];
    /* The limits as messages, and pointers to them. */
    Capstan__MemoryLimit limit_messages[FREE_MEMORY_LIMITS];
    Capstan__MemoryLimit *limit_pointers[FREE_MEMORY_LIMITS];
    unsigned num_limits;
    int64_t limits_read;
    struct trace_sender trace_sender;
};

/* Closes the open links. */
static void multi_connect_close(struct multi_connect *multi_connect) {
    while (multi_connect->count)
        link_close(&multi_connect->links[--multi_connect->count]);
}

/* Opens COUNT links (at least 1, at most MULTI_CONNECT_MAX) with SETTINGS, not
 * connected. On failure none stays open. */
static enum status multi_connect_open(struct multi_connect *multi_connect,
                                      void *zmq,
                                      const struct link_settings *settings,
                                      unsigned count, struct failure *why) {
    *multi_connect = (struct multi_connect){0};
    count = count < 1                   ? 1
            : count > MULTI_CONNECT_MAX ? MULTI_CONNECT_MAX
                                        : count;
    enum status status = STATUS_OK;
    for (; !status && multi_connect->count < count;
         multi_connect->count += !status)
        status = link_open(&multi_connect->links[multi_connect->count], zmq,
                           LINK_CLIENT, settings, why);
    if (status)
        multi_connect_close(multi_connect);
    return status;
}

/* Connects the first link to the numeric ADDRESS ("10.0.0.1:2222") and the
 * others to the ports above it. */
static enum status multi_connect_connect(struct multi_connect *multi_connect,
                                         const char *address,
                                         struct failure *why) {
    char text[300];
    const char *colon = strrchr(address, ':');
    unsigned long port = colon ? strtoul(colon + 1, NULL, 10) : 0;
    enum status status = link_connect(multi_connect->links[0], address, why);
    for (unsigned i = 1; !status && i < multi_connect->count; i++) {
        snprintf(text, sizeof text, "%.*s:%lu", (int)(colon - address), address,
                 port + i);
        status = link_connect(multi_connect->links[i], text, why);
    }
    return status;
}

/* Sends BYTES on each link; false if none could take them. */
static bool multi_connect_commit(struct multi_connect *multi_connect,
                                 const void *bytes, size_t size) {
    bool sent = false;
    for (unsigned i = 0; i < multi_connect->count; i++)
        sent |= link_commit(multi_connect->links[i], 0, bytes, size, NULL);
    return sent;
}

/* Views the next received frame and sets INDEX to its link. The caller releases
 * it before the next view. */
static bool multi_connect_view(struct multi_connect *multi_connect,
                               struct link_frame *frame, unsigned *index) {
    for (*index = 0; *index < multi_connect->count; ++*index)
        if (link_view(multi_connect->links[*index], frame))
            return true;
    return false;
}

/* The server is behind link INDEX: keeps only that one, as link 0. */
static void multi_connect_choose(struct multi_connect *multi_connect,
                                 unsigned index) {
    struct link *chosen = multi_connect->links[index];
    multi_connect->links[index] = NULL;
    multi_connect_close(multi_connect);
    multi_connect->links[0] = chosen;
    multi_connect->count = 1;
}

static const char *join_key(const struct member *member) {
    const char *key = member->past ? member->past->join_key : NULL;
    return key ? key : "timeouts.join, or --join-timeout";
}

/* Before the join: its welcome. After: its heartbeats. */
static struct deadline control_client_chief_deadline(
    const struct control_client *client) {
    return client->joined
               ? deadline_start(client->chief_name, "timeouts.peer",
                                client->last_received, client->peer_limit)
               : deadline_start(client->chief_name, join_key(client->member),
                                client->opened, client->join_limit);
}

/* Sends CONTROL once, without a number. False: no connection or no memory. */
static bool control_client_send_unreliable(
    struct control_client *control_client, Capstan__Control *control) {
    control->version = MESSAGE_VERSION;
    control->run = control_client->process->run;
    control->incarnation = control_client->process->incarnation;
    control->ack = control_client->channel.received;
    size_t size = capstan__control__get_packed_size(control);
    uint8_t small[4096], *bytes = size <= sizeof small ? small : malloc(size);
    if (!bytes)
        return false;
    capstan__control__pack(control, bytes);
    bool sent =
        multi_connect_commit(&control_client->multi_connect, bytes, size);
    if (bytes != small)
        free(bytes);
    return sent;
}

static const int64_t WAIT_LOG_INTERVAL = 30 * TIME_S;
/* What has not answered for this long is there no more. */
static const int64_t FOREIGN_AGE = 5 * TIME_S;
/* A chief answers a join at once, unless its machine stands still. */
static const int64_t WELCOME_LIMIT = 5 * TIME_S;
#define NOT_AS_CHIEF "answers, but not as a Capstan chief; it "

/* Starts a look-up (a thread of its own, resolve.h) or handles its result. Each
 * look-up takes the name's present address: a name can move, and a name server
 * can be late. */
static void control_client_look_up(struct control_client *client, int64_t now) {
    char text[300];
    if (!client->chief_host[0])
        return;
    if (!client->resolve) {
        if (now - client->lookup_started < CONTROL_CLIENT_LOOKUP_INTERVAL)
            return;
        client->lookup_started = client->last_poll = now;
        client->resolve = resolve_start(client->chief_host, client->chief_port);
        return;
    }
    client->last_poll = now;
    enum resolve_state state = resolve_poll(client->resolve, text, sizeof text);
    if (state == RESOLVE_WAITING)
        return;
    struct failure why = {0};
    if (state == RESOLVE_FAILED) {
        snprintf(client->foreign_server, sizeof client->foreign_server,
                 "cannot find host %s: %s", client->chief_host, text);
        client->foreign_at = now + CONTROL_CLIENT_LOOKUP_INTERVAL;
        log_warning(client->process->log, "host_not_found", "%s",
                    client->foreign_server);
    } else if (multi_connect_connect(&client->multi_connect, text, &why))
        log_warning(client->process->log, "connect_failed", "%s", why.text);
    resolve_end(&client->resolve);
}

/* Heartbeats are more frequent than these files are worth reading. */
static unsigned control_client_memory(struct control_client *client,
                                      int64_t now, int64_t every,
                                      Capstan__MemoryLimit ***limits) {
    *limits = client->limit_pointers;
    if (client->num_limits && now - client->limits_read < every)
        return client->num_limits;
    client->limits_read = now;
    client->num_limits = free_memory_limits("", client->limits);
    for (unsigned i = 0; i < client->num_limits; i++) {
        Capstan__MemoryLimit *message = client->limit_pointers[i] =
            &client->limit_messages[i];
        capstan__memory_limit__init(message);
        message->key = client->limits[i].key;
        message->name = client->limits[i].name;
        message->free = client->limits[i].free;
        if (client->member->role != CLUSTER_PS)
            message->held = free_memory_held();
        message->most = client->limits[i].most;
    }
    return client->num_limits;
}

/* Is it in a run that a chief can adopt while it trains? A trainer that has no
 * view yet is not: perhaps not all ps have the one with its first round, and
 * those that lack it close that round without it. */
static bool can_rejoin(const struct control_client *client) {
    const struct rejoin *rejoin = &client->rejoin;
    return client->may_adopt && client->chief_within > 0 &&
           (client->member->role == CLUSTER_PS
                ? rejoin->plan && rejoin->view
                : rejoin->model_spec && client->heartbeat.view);
}

static bool fill_past(const struct member_past *past, int64_t now,
                      Capstan__Past *message) {
    capstan__past__init(message);
    if (!past || !past->run)
        return false;
    message->run = past->run;
    message->lineage = past->lineage;
    message->job = past->job;
    message->step = past->step;
    message->rewinds = past->rewinds;
    message->steps_again = past->steps_again;
    message->furthest = past->furthest;
    message->in_vain = past->in_vain;
    message->saved = past->saved;
    message->away = time_to_seconds(now - past->heard_at);
    return true;
}

/* Fills LIST with COPIES (NULL: none), and LISTED with their addresses. */
static size_t list_copies(struct copies *copies, Capstan__HeldCopy *list,
                          Capstan__HeldCopy **listed) {
    struct copy held[COPIES_MOST];
    uint32_t count = copies ? copies_list(copies, held) : 0;
    for (uint32_t i = 0; i < count; i++) {
        listed[i] = &list[i];
        capstan__held_copy__init(&list[i]);
        list[i].step = held[i].step;
        list[i].part = held[i].part;
    }
    return count;
}

/* A chief that returns knows of no copy in memory. Sets the manifests in JOIN,
 * which the caller frees (NULL: there is none, or JOIN would be too long). */
static void tell_copies(const struct control_client *client,
                        Capstan__Join *join, char *manifests[2]) {
    manifests[0] = manifests[1] = NULL;
    if ((join->rejoin || join->past) && client->member->copies)
        manifests[0] = copies_manifest(client->member->copies, &manifests[1]);
    size_t bytes = manifests[0] ? strlen(manifests[0]) : 0;
    bytes += manifests[1] ? strlen(manifests[1]) : 0;
    if (!bytes ||
        capstan__join__get_packed_size(join) + bytes > MESSAGE_MAX_REJOIN)
        return;
    join->copy_manifest = manifests[0];
    if (manifests[1])
        join->copy_base = manifests[1];
}

/* As of `heard`, where evaluations are never all read at once: the step before
 * the first that is not. */
static uint64_t heard_by_chief(const struct control_client *client) {
    const struct channel_entry *entry = client->channel.first;
    uint64_t step = 0;
    for (; !step && entry && entry->seq <= client->evaluated;
         entry = entry->next) {
        Capstan__Control *control =
            capstan__control__unpack(NULL, entry->size, entry->bytes);
        if (control && control->body_case == CAPSTAN__CONTROL__BODY_EVALUATED &&
            !control->evaluated->id)
            step = control->evaluated->step;
        message_free_control(&control);
    }
    return step > client->heard ? step - 1 : client->heard;
}

/* Without a number: repeated until a welcome arrives. */
static bool control_client_send_join(struct control_client *control_client,
                                     int64_t now) {
    Capstan__Join join = CAPSTAN__JOIN__INIT;
    join.role = control_client->member->role;
    join.index = control_client->member->index;
    join.host = control_client->host;
    join.pid = (uint32_t)getpid();
    join.port = control_client->port;
    join.shm_key = control_client->shm_key;
    join.only_there = control_client->process->address != NULL;
    if (join.only_there)
        join.address = (char *)control_client->process->address;
    else if (control_client->member->self)
        join.address = (char *)control_client->member->self->host;
    join.end_key = control_client->end_key;
    join.launcher = launch_record_launcher(control_client->member->record);
    join.device = "cpu";
    if (control_client->member->key)
        join.key = (char *)control_client->member->key;
    if (control_client->member->size.source) {
        join.source = (char *)control_client->member->size.source;
        join.workers = control_client->member->size.workers;
        join.ps = control_client->member->size.ps;
    }
    join.n_memory = control_client_memory(
        control_client, now, CONTROL_CLIENT_LOOKUP_INTERVAL, &join.memory);
    Capstan__Past past;
    if (fill_past(control_client->member->past, now, &past))
        join.past = &past;
    Capstan__HeldCopy copies[COPIES_MOST], *listed[COPIES_MOST];
    join.copies = listed;
    join.n_copies = list_copies(control_client->member->copies, copies, listed);
    Capstan__Rejoin again;
    if (control_client->is_rejoining) {
        rejoin_fill(&control_client->rejoin, &control_client->heartbeat,
                    &again);
        again.heard = heard_by_chief(control_client);
        if (capstan__rejoin__get_packed_size(&again) > MESSAGE_MAX_REJOIN) {
            again.plan = NULL; /* the chief refuses, and the run goes back */
            again.model_spec = NULL;
        }
        join.rejoin = &again;
    }
    char *manifests[2];
    tell_copies(control_client, &join, manifests);
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    control.body_case = CAPSTAN__CONTROL__BODY_JOIN;
    control.join = &join;
    bool sent = control_client_send_unreliable(control_client, &control);
    free(manifests[0]);
    free(manifests[1]);
    return sent;
}

/* Before the join: the server of link INDEX is no chief that this process can
 * join; it does WHAT, a predicate. Is that new? Then the caller logs it. */
static bool control_client_note_foreign(struct control_client *client,
                                        unsigned index, const char *what) {
    char text[sizeof client->foreign_server];
    snprintf(text, sizeof text, "%s:%u %.400s", client->chief_host,
             client->chief_port + index, what);
    bool is_new = strcmp(text, client->foreign_server) != 0;
    snprintf(client->foreign_server, sizeof client->foreign_server, "%s", text);
    return is_new;
}

/* Looks at what answers at each port. Of several ports the chief takes the
 * first that is free: programs on those before it are expected. */
static void check_answers(struct control_client *client, int64_t now) {
    static const char *const texts[] = {
        [LINK_ANSWER_LINK] =
            "has not answered a join for 5 s: a ps, a worker or another "
            "program over ZeroMQ has the port, or the chief stands still, or "
            "it waits until this task's last process counts as dead",
        [LINK_ANSWER_PROTOCOL] = NOT_AS_CHIEF "speaks another protocol: is "
                                              "another program using the port?",
        [LINK_ANSWER_CLOSED] = NOT_AS_CHIEF
        "closes each connection: is another program using the port, or a proxy "
        "before a chief that has not come?",
        [LINK_ANSWER_SILENT] = NOT_AS_CHIEF
        "accepts connections and says nothing: is another program using the "
        "port, or a proxy before a chief that has not come, or does the chief "
        "stand still?",
    };
    if (client->member->chief_inproc || client->answered)
        return;
    for (unsigned i = 0; i < client->multi_connect.count; i++) {
        int64_t since;
        enum link_answer answer =
            link_answer(client->multi_connect.links[i], &since);
        bool too_early =
            answer == LINK_ANSWER_LINK && now - since < WELCOME_LIMIT;
        const char *of_keys = link_answer_of_keys(answer),
                   *text = of_keys ? of_keys : texts[answer];
        if (!text || too_early)
            continue;
        bool is_new = control_client_note_foreign(client, i, text);
        client->foreign_at = now;
        bool certain = client->multi_connect.count == 1 || of_keys;
        if (is_new && certain &&
            (!client->last_foreign_log || of_keys ||
             now - client->last_foreign_log > WAIT_LOG_INTERVAL)) {
            client->last_foreign_log = now;
            log_warning(client->process->log, "foreign_server_found", "%s",
                        client->foreign_server);
        }
    }
    if (client->foreign_at && now - client->foreign_at > FOREIGN_AGE)
        client->foreign_server[0] = 0; /* it has gone */
}

static enum status fail_without_chief(const struct control_client *client,
                                      const struct deadline *deadline,
                                      struct failure *why) {
    const char *foreign = client->foreign_server;
    const struct launch_record none = {0};
    bool refused = client->multi_connect.count == 1 &&
                   link_is_refused(client->multi_connect.links[0]);
    if (client->member->past && client->member->past->chief_lost)
        launch_record_write(client->member->record, &none); /* it is over */
    return status_fail(
        why, FAILURE_NO_CHIEF, "%s did not answer within %.0f s (%s)%s%s",
        deadline->peer, time_to_seconds(client->join_limit), deadline->limit,
        foreign[0] ? ": "
        : refused  ? ": connections to it fail at once (refused, or no route "
                     "to its host); is it started?"
                   : "; is it started, and does its host answer?",
        foreign);
}

/* control_client_step before the join. */
static enum status control_client_step_joining(struct control_client *client,
                                               int64_t now,
                                               struct failure *why) {
    struct deadline deadline = control_client_chief_deadline(client);
    char text[512];
    if (deadline_passed(&deadline, now))
        return fail_without_chief(client, &deadline, why);
    check_answers(client, now);
    if (now - client->last_wait_log > WAIT_LOG_INTERVAL / 6 &&
        (now - client->last_wait_log > WAIT_LOG_INTERVAL ||
         client->last_wait_log == client->opened)) {
        client->last_wait_log = now;
        deadline_text(&deadline, now, text, sizeof text);
        log_info(client->process->log, "waiting_for_chief", "%s", text);
    }
    control_client_look_up(client, now);
    client->last_poll = now;
    if (now - client->last_join >= CONTROL_CLIENT_JOIN_INTERVAL) {
        client->last_join = now;
        /* Not connected yet: try again soon. */
        if (!control_client_send_join(client, now))
            client->last_join +=
                CONTROL_CLIENT_POLL_INTERVAL - CONTROL_CLIENT_JOIN_INTERVAL;
    }
    return STATUS_OK;
}

static const int64_t RESEND_INTERVAL = 2 * TIME_S, REJOIN_INTERVAL = 2 * TIME_S;
static const int64_t MEMORY_READ_INTERVAL = TIME_S;
static const double FIRST_PEER_TIMEOUT = 30;
static const double ABANDONED_AFTER = 5; /* seconds, at least */

static void format_chief_name(struct control_client *client) {
    if (client->member->chief_inproc)
        snprintf(client->chief_name, sizeof client->chief_name,
                 "the chief in this process");
    else if (client->chief_host[0] && client->multi_connect.count > 1)
        snprintf(client->chief_name, sizeof client->chief_name,
                 "the chief at %s, one of the ports %u to %u",
                 client->chief_host, client->chief_port,
                 client->chief_port + client->multi_connect.count - 1);
    else if (client->chief_host[0])
        snprintf(client->chief_name, sizeof client->chief_name,
                 "the chief at %s:%u", client->chief_host, client->chief_port);
    else
        snprintf(client->chief_name, sizeof client->chief_name,
                 "a chief (this cluster description names none)");
}

void control_client_set_timeout(struct control_client *client, double peer) {
    client->peer_limit = time_from_seconds(peer);
    client->heartbeat_interval = client->peer_limit / 6;
    if (client->heartbeat_interval > TIME_S / 2)
        client->heartbeat_interval = TIME_S / 2;
}

/* The link exists as long as the process; the address it connects to is looked
 * up later and again. */
enum status control_client_open(struct control_client **out,
                                const struct control_client_settings *settings,
                                struct failure *why) {
    struct control_client *client = calloc(1, sizeof *client);
    if (!client)
        return status_fail(why, FAILURE_NO_MEMORY, "no memory to join");
    struct link_settings link = {.max_frame = MESSAGE_MAX_CONTROL,
                                 .address = settings->process->address,
                                 .keys = settings->process->keys,
                                 .party = cluster_party(CLUSTER_CHIEF, 0),
                                 .flush_ms = 1000};
    unsigned ports =
        settings->member->chief_inproc ? 1 : settings->member->chief_ports;
    enum status status = multi_connect_open(
        &client->multi_connect, settings->process->zmq, &link, ports, why);
    if (!status && settings->member->chief_inproc)
        status = link_connect_inproc(client->multi_connect.links[0],
                                     settings->member->chief_inproc, why);
    if (status) {
        multi_connect_close(&client->multi_connect);
        free(client);
        return status;
    }
    client->process = settings->process;
    client->member = settings->member;
    client->port = settings->port;
    client->shm_key = settings->shm_key;
    client->process->incarnation = message_random();
    client->end_key = settings->member->record ? message_random() : 0;
    client->opened = client->last_received = client->last_wait_log = time_now();
    client->last_join = client->last_heartbeat = client->lookup_started =
        client->opened - CONTROL_CLIENT_LOOKUP_INTERVAL;
    client->join_limit = time_from_seconds(settings->member->join_timeout);
    control_client_set_timeout(client, FIRST_PEER_TIMEOUT);
    capstan__heartbeat__init(&client->heartbeat);
    gethostname(client->host, sizeof client->host - 1);
    if (settings->member->chief)
        control_client_set_chief(client, settings->member->chief->host,
                                 settings->member->chief->port);
    format_chief_name(client);
    *out = client;
    return STATUS_OK;
}

void control_client_close(struct control_client **where) {
    struct control_client *client = *where;
    *where = NULL;
    if (!client)
        return;
    message_free_control(&client->command);
    rejoin_clear(&client->rejoin);
    trace_close(&client->process->trace);
    histograms_close(&client->process->histograms);
    channel_close(&client->channel);
    resolve_end(&client->resolve);
    multi_connect_close(&client->multi_connect);
    free(client);
}

void control_client_set_chief(struct control_client *client, const char *host,
                              uint16_t port) {
    if (client->member->chief_inproc || client->joined)
        return;
    snprintf(client->chief_host, sizeof client->chief_host, "%s", host);
    client->chief_port = port;
    format_chief_name(client);
}

void control_client_set_chief_address(struct control_client *client,
                                      const char *address) {
    char host[256];
    uint16_t port;
    if (resolve_split(address, host, sizeof host, &port))
        control_client_set_chief(client, host, port);
}

bool control_client_chief_address(const struct control_client *control_client,
                                  char *text, size_t size) {
    snprintf(text, size,
             strchr(control_client->chief_host, ':') ? "[%s]:%u" : "%s:%u",
             control_client->chief_host, control_client->chief_port);
    return control_client->chief_host[0];
}

/* Until the plan arrives each heartbeat reports free memory: the chief may wait
 * for it. */
static void control_client_send_one_heartbeat(struct control_client *client) {
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    client->heartbeat.n_memory =
        client->planned
            ? 0
            : control_client_memory(client, time_now(), MEMORY_READ_INTERVAL,
                                    &client->heartbeat.memory);
    if (client->process->trace)
        client->heartbeat.sent_at = time_now();
    control.body_case = CAPSTAN__CONTROL__BODY_HEARTBEAT;
    control.heartbeat = &client->heartbeat;
    control_client_send_unreliable(client, &control);
}

/* After a standstill of this process, messages received meanwhile are still
 * unread, so the chief's deadline is moved: it has as much time left as before.
 */
static void record_stall(struct control_client *client, int64_t now) {
    int64_t stall = deadline_stall(client->last_step, now);
    client->last_step = now;
    deadline_shift(&client->last_received, stall, now);
    deadline_shift(&client->silence_logged, stall, now);
    deadline_shift(&client->orphaned_at, stall, now);
    if (stall < deadline_warn_after(client->peer_limit) ||
        client->member->chief_inproc) /* the chief reports it */
        return;
    client->stall = stall;
    client->stall_end = now;
    log_warning(client->process->log, "process_stalled",
                "this process itself stood still for %.0f s (stopped, starved, "
                "or at a slow disk): %s has that much longer (timeouts.peer), "
                "but may have declared this process dead",
                time_to_seconds(stall), client->chief_name);
}

static enum status fail_silent(const struct control_client *client,
                               const struct deadline *deadline,
                               struct failure *why) {
    if (client->stall && client->last_received <= client->stall_end)
        return status_fail(
            why, FAILURE_PEER_SILENT,
            "no message from %s for %.0f s (%s), since this process "
            "itself stood still for %.0f s, stopped or starved; start the same "
            "command again",
            deadline->peer, time_to_seconds(client->peer_limit),
            deadline->limit, time_to_seconds(client->stall));
    return status_fail(
        why, FAILURE_PEER_SILENT,
        "%s was silent for %.0f s (%s): it is gone, or the network is; "
        "start the same commands again",
        deadline->peer, time_to_seconds(client->peer_limit), deadline->limit);
}

/* The process leaves its run as on a stop that another run follows, and joins
 * the chief that takes the place of the one that is gone, as HOW says. */
/* As a Stop, whose text is `loss_text`. */
static void stop_by_itself(struct control_client *client, double within) {
    capstan__control__init(&client->loss);
    capstan__stop__init(&client->loss_stop);
    client->loss_stop.text = client->loss_text;
    client->loss_stop.restart_within = within;
    client->loss.body_case = CAPSTAN__CONTROL__BODY_STOP;
    client->loss.stop = &client->loss_stop;
}

static void lose_chief(struct control_client *client, const char *how) {
    if (client->loss_text[0])
        return;
    snprintf(client->loss_text, sizeof client->loss_text, "%s %s",
             client->chief_name, how);
    stop_by_itself(client, client->chief_within);
}

/* The process trains on, and waits for its chief, or for the one that takes its
 * place. What it has to tell is kept. */
static void become_orphan(struct control_client *client, const char *how,
                          int64_t now) {
    if (client->orphaned_at)
        return;
    client->orphaned_at = now;
    log_warning(client->process->log, "chief_awaited",
                "%s %s: this process goes on without it, and waits up to %g s "
                "(timeouts.chief) for the chief to be there again",
                client->chief_name, how, client->chief_within);
}

static enum status fail_as_orphan(const struct control_client *client,
                                  struct failure *why) {
    return status_fail(why, FAILURE_PEER_SILENT,
                       "%s did not answer within %.0f s (timeouts.chief); is "
                       "it started, and does its host answer?",
                       client->chief_name, client->chief_within);
}

static bool is_orphaned_for_long(const struct control_client *client,
                                 int64_t now) {
    return client->orphaned_at &&
           now - client->orphaned_at > time_from_seconds(client->chief_within);
}

/* A chief that is silent for longer than DEADLINE ends this process, or is
 * awaited. */
static enum status pass_silence(struct control_client *client,
                                const struct deadline *deadline,
                                struct failure *why) {
    enum status status = fail_silent(client, deadline, why);
    char how[128];
    if (client->chief_within <= 0)
        return status;
    snprintf(how, sizeof how, "was silent for %.0f s (%s)",
             time_to_seconds(client->peer_limit), deadline->limit);
    if (can_rejoin(client))
        become_orphan(client, how, time_now());
    else
        lose_chief(client, how);
    return STATUS_OK;
}

static void log_silence(struct control_client *client,
                        const struct deadline *deadline, int64_t now) {
    char text[512];
    if (client->silence_logged &&
        client->last_received > client->silence_logged) {
        log_info(client->process->log, "heartbeat_resumed",
                 "heartbeat from %s resumed", client->chief_name);
        client->silence_logged = 0;
    }
    if (client->silence_logged ||
        now - client->last_received < deadline_warn_after(client->peer_limit))
        return;
    client->silence_logged = client->last_received;
    deadline_text(deadline, now, text, sizeof text);
    log_warning(client->process->log, "heartbeat_missed", "%s", text);
}

static void control_client_send_pending(struct control_client *client,
                                        int64_t now) {
    const struct channel_entry *entry;
    while (!client->rejoins && !client->is_rejoining &&
           (entry = channel_next(&client->channel, now, RESEND_INTERVAL)))
        if (!multi_connect_commit(&client->multi_connect, entry->bytes,
                                  entry->size)) {
            channel_unsent(entry);
            return;
        }
}

/* The chief accepts messages of a process only by the connection of its last
 * join. So the client joins again on a new connection, and when nothing is
 * received on the present one. By a new one nothing is sent before the chief
 * has answered: it ends connections whose sender it does not know yet. */
static void rejoin(struct control_client *client, int64_t now) {
    bool renewed = link_renewed(client->multi_connect.links[0]);
    bool is_silent = now - client->last_received >= REJOIN_INTERVAL &&
                     now - client->last_join >= REJOIN_INTERVAL;
    client->rejoins |= renewed;
    if (!renewed && !is_silent)
        return;
    client->last_join = now;
    if (control_client_send_join(client, now))
        channel_resend_all(&client->channel);
}

/* The records that there are, while fewer than MOST messages wait to be
 * acknowledged. */
static void send_trace(struct control_client *client, int64_t now,
                       uint64_t most) {
    Capstan__Trace piece;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    control.body_case = CAPSTAN__CONTROL__BODY_TRACE;
    control.trace = &piece;
    while (channel_count(&client->channel) < most &&
           trace_sender_next(&client->trace_sender, client->process->trace, now,
                             &piece))
        control_client_send_reliable(client, &control);
}

/* Those that there are, while fewer than MOST messages wait to be acknowledged.
 */
static void send_histograms(struct control_client *client, uint64_t most) {
    Capstan__Histograms message;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    struct histograms *histograms = client->process->histograms;
    control.body_case = CAPSTAN__CONTROL__BODY_HISTOGRAMS;
    control.histograms = &message;
    while (histograms && channel_count(&client->channel) < most &&
           histograms_next(histograms, &message))
        control_client_send_reliable(client, &control);
}

/* Before the role opens what records. */
static void open_trace(struct control_client *client,
                       const Capstan__Plan *plan) {
    const uint32_t most = TRACE_BYTES / sizeof(struct trace_record);
    struct process *process = client->process;
    if (process->trace || !plan->trace_last)
        return;
    process->trace =
        trace_open(plan->trace_first, plan->trace_last,
                   plan->trace_room < most ? plan->trace_room : most);
    client->trace_sender.same_clock = client->member->chief_inproc != NULL;
    if (process->trace)
        control_client_send_one_heartbeat(client); /* its answer has times */
    else
        log_warning(process->log, "trace_incomplete",
                    "no memory for the records of the steps that are traced: "
                    "this process has none");
}

/* The chief that is there does not know it: nothing else is of use to it. */
static void step_rejoining(struct control_client *client, int64_t now) {
    if (now - client->last_join < CONTROL_CLIENT_JOIN_INTERVAL)
        return;
    client->last_join = client->last_heartbeat = now;
    control_client_look_up(client, now);
    control_client_send_join(client, now);
}

enum status control_client_step(struct control_client *client, int64_t now,
                                struct failure *why) {
    if (!client->joined)
        return control_client_step_joining(client, now, why);
    record_stall(client, now);
    struct deadline deadline = control_client_chief_deadline(client);
    if (client->loss_text[0])
        return STATUS_OK; /* control_client_receive delivers it */
    if (is_orphaned_for_long(client, now))
        return fail_as_orphan(client, why);
    if (deadline_passed(&deadline, now) && !client->orphaned_at)
        return pass_silence(client, &deadline, why);
    log_silence(client, &deadline, now);
    if (client->is_rejoining) {
        step_rejoining(client, now);
        return STATUS_OK;
    }
    if (now - client->last_received > CONTROL_CLIENT_LOOKUP_INTERVAL)
        control_client_look_up(client, now);
    rejoin(client, now);
    control_client_send_pending(client, now);
    if (client->trace_sender.requested)
        send_trace(client, now, TRACE_SENDER_PIECES);
    send_histograms(client, HISTOGRAMS_UNACKNOWLEDGED);
    if (now - client->last_heartbeat >= client->heartbeat_interval) {
        client->last_heartbeat = now;
        control_client_send_one_heartbeat(client);
    }
    return STATUS_OK;
}

bool control_client_is_abandoned(const struct control_client *client,
                                 double stop) {
    double limit = stop > ABANDONED_AFTER ? stop : ABANDONED_AFTER;
    if (!client->joined ||
        time_now() - client->last_received < time_from_seconds(limit))
        return false;
    log_warning(client->process->log, "heartbeat_missed",
                "%s has been silent for %.0f s (timeouts.stop, at least 5): "
                "this process ends without it",
                client->chief_name, limit);
    return true;
}

int64_t control_client_deadline(const struct control_client *client) {
    if (!client->joined)
        return client->resolve || client->multi_connect.count > 1
                   ? client->last_poll + CONTROL_CLIENT_POLL_INTERVAL
                   : client->last_join + CONTROL_CLIENT_JOIN_INTERVAL;
    return client->last_heartbeat + client->heartbeat_interval;
}

void control_client_report(const struct control_client *client,
                           struct health_report *report, int64_t now) {
    struct deadline deadline = control_client_chief_deadline(client);
    struct health_peer chief = {
        .role = "chief",
        .last_seen = client->joined ? client->last_received : 0,
    };
    control_client_chief_address(client, chief.address, sizeof chief.address);
    if (client->member->chief_inproc || !client->chief_host[0])
        chief.address[0] = 0;
    report->state = client->joined ? HEALTH_JOINED : HEALTH_JOINING;
    report->run = client->process->run;
    if (!client->joined)
        snprintf(report->waiting_for, sizeof report->waiting_for, "%s",
                 client->chief_name);
    health_add_peer(report, chief);
    if (chief.last_seen)
        health_add_sample(report, METRIC_CHIEF_SILENCE, HEALTH_NONE,
                          time_to_seconds(now - chief.last_seen));
    health_add_deadline(report, &deadline, now);
}

void *control_client_socket(struct control_client *client) {
    return link_socket(client->multi_connect.links[0]);
}

/* If this process dies, its launcher reports that to the chief by this record.
 */
static void control_client_write_record(const struct control_client *client) {
    struct launch_record record = {.run = client->process->run,
                                   .incarnation = client->process->incarnation,
                                   .key = client->end_key};
    size_t size = sizeof record.chief;
    char endpoint[sizeof record.chief];
    if (!client->member->chief_inproc &&
        !zmq_getsockopt(link_socket(client->multi_connect.links[0]),
                        ZMQ_LAST_ENDPOINT, endpoint, &size) &&
        !strncmp(endpoint, "tcp://", 6))
        snprintf(record.chief, sizeof record.chief, "%s", endpoint + 6);
    launch_record_write(client->member->record, &record);
}

static void control_client_on_welcome(struct control_client *client,
                                      const Capstan__Control *control,
                                      unsigned index) {
    multi_connect_choose(&client->multi_connect, index);
    client->chief_port += (uint16_t)index;
    format_chief_name(client);
    client->joined = true;
    client->chief_incarnation = control->incarnation;
    client->job_digest = message_job_digest(control->welcome->job);
    if (!client->member->chief_inproc && client->member->past)
        client->chief_within = control->welcome->chief_within;
    client->may_adopt = control->welcome->may_adopt;
    client->last_step = time_now();
    client->process->run = control->run;
    client->channel.received = 0;
    /* The join came by this connection: it is not a new one. */
    link_renewed(client->multi_connect.links[0]);
    control_client_write_record(client);
}

/* Another job's chief listens there; this job's may take a port after it. */
static void warn_other_job(struct control_client *client, unsigned index) {
    if (!client->answered)
        log_warning(
            client->process->log, "foreign_chief_found",
            "another job's chief answers at %s:%u: waiting for this job's",
            client->chief_host, client->chief_port + index);
    client->answered = true;
    control_client_note_foreign(client, index,
                                "answers as the chief of another job");
}

/* The run goes on without this process, which may join the one that follows. */
static void wait_on(struct control_client *client,
                    const Capstan__Refusal *refusal, int64_t now) {
    if (!client->answered)
        log_info(client->process->log, "ps_waits", "%s", refusal->text);
    client->answered = true;
    client->opened = client->last_wait_log = now;
    if (client->member->copies) /* they are of no use to that run */
        copies_begin(client->member->copies, 0, 0);
}

/* WHY: what link INDEX has sent. A chief of another release may be replaced by
 * one of this. */
static void warn_malformed(struct control_client *client, unsigned index,
                           const struct failure *why) {
    if (client->joined || why->code != FAILURE_VERSION_MISMATCH) {
        log_warning(client->process->log, "malformed_message_rejected",
                    "from %s: %s", client->chief_name, why->text);
        return;
    }
    char what[sizeof client->foreign_server];
    snprintf(what, sizeof what, "answers as another release: it sent %.300s",
             why->text);
    client->answered = true;
    if (control_client_note_foreign(client, index, what))
        log_warning(client->process->log, "foreign_server_found", "%s",
                    client->foreign_server);
}

/* Its launcher starts no other process in the place of one whose death ends the
 * run, and goes on without a ps whose weights others may take over. */
static void record_own_death(const struct control_client *client,
                             const Capstan__Plan *plan) {
    bool is_ps = client->member->role == CLUSTER_PS;
    bool ends = !plan->checkpoint_dir[0] && !plan->buddy_steps &&
                (plan->strategy == JOB_ALLREDUCE || is_ps);
    bool spare = is_ps && plan->n_ps > 1 &&
                 (plan->checkpoint_dir[0] || plan->buddy_steps);
    if ((ends || spare) && !client->member->chief_inproc)
        launch_record_write_deaths(client->member->record,
                                   ends ? LAUNCH_RECORD_OWN
                                        : LAUNCH_RECORD_SPARE);
}

/* Of a run that it has not begun nothing goes on. */
static void plan_past(struct control_client *client,
                      const Capstan__Plan *plan) {
    const struct member_past *past = client->member->past;
    if (client->chief_within <= 0)
        return;
    client->planned_past = (struct member_past){
        .run = client->process->run,
        .lineage = plan->lineage,
        .job = client->job_digest,
        .step = plan->start_step,
        .saved = plan->n_buddies ? past->saved : plan->start_step,
        .rewinds = plan->rewinds,
        .steps_again = plan->steps_again,
        .furthest = plan->furthest,
        .in_vain = plan->in_vain};
}

/* From its first view on the process can join a run that goes on for this one.
 */
static void keep_past(struct control_client *client) {
    if (client->planned_past.run)
        *client->member->past = client->planned_past;
    client->planned_past.run = 0;
}

/* STEPS have checkpoints, ascending. */
static void keep_saved(struct control_client *client,
                       const Capstan__Retain *retain) {
    struct member_past *past =
        client->planned_past.run ? &client->planned_past : client->member->past;
    if (past && retain->n_steps)
        past->saved = retain->steps[retain->n_steps - 1];
}

/* Does the chief that has the place of the last one adopt the run? */
static bool is_adoption(const struct control_client *client,
                        const Capstan__Control *control) {
    return control->body_case == CAPSTAN__CONTROL__BODY_ADOPTED &&
           client->is_rejoining && control->adopted->term > client->rejoin.term;
}

static void take_adoption(struct control_client *client,
                          const Capstan__Control *control) {
    client->chief_incarnation = control->incarnation;
    client->is_rejoining = false;
    if (!rejoin_begin_channel(&client->rejoin, control->adopted,
                              &client->channel))
        control_client_drop(client);
    client->evaluated = client->channel.last_seq; /* it may be any of them */
    log_info(client->process->log, "chief_replaced",
             "%s is another process, which has adopted the run",
             client->chief_name);
}

/* A chief that takes the place of this one repeats no evaluation up to there.
 */
static void update_heard(struct control_client *client) {
    const struct channel_entry *first = client->channel.first;
    const Capstan__Heartbeat *own = &client->heartbeat;
    if (!first || first->seq > client->evaluated)
        client->heard =
            own->global_step > own->clock ? own->global_step : own->clock;
}

/* No chief can adopt the run: what one needs does not fit into a Join. */
static void tell_long_plan(const struct control_client *client,
                           const Capstan__Plan *plan) {
    size_t size = capstan__plan__get_packed_size(plan);
    if (client->may_adopt && client->member->role == CLUSTER_PS &&
        size > MESSAGE_MAX_REJOIN)
        log_info(client->process->log, "plan_too_long",
                 "the plan takes %zu KiB, more than %d: if the chief dies, the "
                 "run goes back to its newest checkpoint, or ends with 138 "
                 "(docs/running.md, Going back)",
                 size >> 10, MESSAGE_MAX_REJOIN >> 10);
}

/* CONTROL is the next in order: an older one that comes again would replace
 * what is newer. */
static void note_received(struct control_client *client,
                          const Capstan__Control *control) {
    bool is_of_ps = control->body_case == CAPSTAN__CONTROL__BODY_PLAN ||
                    control->body_case == CAPSTAN__CONTROL__BODY_VIEW;
    if (client->may_adopt && (client->member->role == CLUSTER_PS || !is_of_ps))
        rejoin_note_received(&client->rejoin, control);
    if (control->body_case == CAPSTAN__CONTROL__BODY_PLAN) {
        client->planned = true;
        open_trace(client, control->plan);
        record_own_death(client, control->plan);
        plan_past(client, control->plan);
        tell_long_plan(client, control->plan);
    } else if (control->body_case == CAPSTAN__CONTROL__BODY_VIEW) {
        keep_past(client);
    } else if (control->body_case == CAPSTAN__CONTROL__BODY_RETAIN) {
        keep_saved(client, control->retain);
    }
}

/* True if CONTROL is a command for the caller. */
static bool accept(struct control_client *client,
                   const Capstan__Control *control, unsigned index,
                   int64_t now) {
    bool welcoming = control->body_case == CAPSTAN__CONTROL__BODY_WELCOME;
    if (control->body_case == CAPSTAN__CONTROL__BODY_REFUSAL &&
        control->refusal->other_job) {
        warn_other_job(client, index);
        return false;
    }
    if (control->body_case == CAPSTAN__CONTROL__BODY_REFUSAL &&
        control->refusal->waits && !client->joined) {
        wait_on(client, control->refusal, now);
        return false;
    }
    if (control->body_case == CAPSTAN__CONTROL__BODY_REFUSAL)
        return true;
    if (!client->joined && welcoming)
        control_client_on_welcome(client, control, index);
    if (!client->joined || control->run != client->process->run)
        return false;
    if (is_adoption(client, control))
        take_adoption(client, control);
    if (control->incarnation != client->chief_incarnation)
        return false;
    client->last_received = now;
    client->orphaned_at = 0;
    client->rejoins = false;
    channel_acknowledge(&client->channel, control->ack);
    update_heard(client);
    bool is_next =
        control->seq && channel_accept(&client->channel, control->seq);
    if (is_next)
        note_received(client, control);
    if (control->body_case == CAPSTAN__CONTROL__BODY_HEARTBEAT)
        trace_sender_take_answer(&client->trace_sender, control->heartbeat,
                                 time_now());
    else if (control->body_case == CAPSTAN__CONTROL__BODY_TRACE_REQUEST)
        client->trace_sender.requested = true;
    return is_next;
}

/* Is it by a chief that knows nothing of this process's run, as it took the
 * place of the one that led it? */
static bool is_of_another_chief(const struct control_client *client,
                                const Capstan__Control *refusal) {
    return client->joined && client->chief_within > 0 &&
           refusal->refusal->code == FAILURE_RUN_ENDED &&
           refusal->incarnation &&
           refusal->incarnation != client->chief_incarnation;
}

static void send_own_report(void *client, Capstan__Control *control) {
    control_client_send_reliable(client, control);
}

/* What this process does is asked for whatever its role is. */
static bool answers_request(struct control_client *client,
                            const Capstan__Control *command, int64_t now) {
    struct health *health = client->process->health;
    if (command->body_case != CAPSTAN__CONTROL__BODY_REPORT_REQUEST)
        return false;
    if (health && client->joined)
        process_report_send(health, command->report_request->id, now,
                            send_own_report, client);
    return true;
}

enum status control_client_receive(struct control_client *client, int64_t now,
                                   const Capstan__Control **command,
                                   struct failure *why) {
    struct link_frame frame;
    unsigned index;
    *command = client->loss_text[0] ? &client->loss : NULL;
    message_free_control(&client->command);
    if (*command)
        return STATUS_OK;
    if (client->has_dropped)
        return status_fail(why, FAILURE_NO_MEMORY,
                           "no memory for a message to the chief");
    while (multi_connect_view(&client->multi_connect, &frame, &index)) {
        struct failure bad;
        enum status status = message_read_control(
            &client->command, frame.header.data, frame.header.size, &bad);
        link_release(&frame);
        if (status) {
            warn_malformed(client, index, &bad);
            continue;
        }
        if (accept(client, client->command, index, now) &&
            !answers_request(client, client->command, now)) {
            *command = client->command;
            break;
        }
        message_free_control(&client->command);
    }
    if (!*command || (*command)->body_case != CAPSTAN__CONTROL__BODY_REFUSAL)
        return STATUS_OK;
    const Capstan__Refusal *refusal = (*command)->refusal;
    bool is_other = is_of_another_chief(client, *command);
    *command = NULL;
    if (is_other && !refusal->from_checkpoint && can_rejoin(client)) {
        become_orphan(client, "has been started again", now);
        client->is_rejoining = true;
        client->last_join = now - CONTROL_CLIENT_JOIN_INTERVAL;
        return STATUS_OK;
    }
    if (is_other) {
        lose_chief(client, "has been started again");
        *command = &client->loss;
        return STATUS_OK;
    }
    if (refusal->over && !client->joined) {
        snprintf(client->loss_text, sizeof client->loss_text, "%s",
                 refusal->text);
        stop_by_itself(client, 0);
        *command = &client->loss;
        return STATUS_OK;
    }
    enum status status =
        status_fail(why, (enum failure_code)refusal->code, "%s", refusal->text);
    return refusal->ended ? status_mark_reported(why) : status;
}

void control_client_drop(struct control_client *client) {
    client->has_dropped = true;
    log_error(client->process->log, "message_dropped",
              "no memory for a message to the chief");
}

void control_client_send_reliable(struct control_client *client,
                                  Capstan__Control *body) {
    body->version = MESSAGE_VERSION;
    body->run = client->process->run;
    body->incarnation = client->process->incarnation;
    if (client->may_adopt)
        rejoin_note_sent(&client->rejoin, body);
    if (!channel_put(&client->channel, body))
        control_client_drop(client);
    if (body->body_case == CAPSTAN__CONTROL__BODY_EVALUATED)
        client->evaluated = client->channel.last_seq;
    if (client->orphaned_at && client->channel.bytes > KEPT_BYTES)
        lose_chief(client, "is away, and what waits for it takes 256 MiB");
    control_client_send_pending(client, time_now());
}

void control_client_send_finished(struct control_client *client, uint64_t clock,
                                  bool early, bool leaving) {
    Capstan__Finished finished = CAPSTAN__FINISHED__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    finished.clock = clock;
    finished.early = early;
    finished.leaving = leaving;
    control.body_case = CAPSTAN__CONTROL__BODY_FINISHED;
    control.finished = &finished;
    control_client_send_reliable(client, &control);
}

void control_client_send_failed(struct control_client *client,
                                const struct failure *why) {
    Capstan__Failed failed = CAPSTAN__FAILED__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    failed.code = why->code;
    failed.text = (char *)why->text;
    control.body_case = CAPSTAN__CONTROL__BODY_FAILED;
    control.failed = &failed;
    control_client_send_reliable(client, &control);
}

Capstan__Heartbeat *control_client_heartbeat(struct control_client *client) {
    return &client->heartbeat;
}

void control_client_send_heartbeat(struct control_client *client) {
    if (client->joined && !client->is_rejoining)
        control_client_send_one_heartbeat(client);
}

/* FOLLOWED: the process joins the next run of this chief. It is in its last run
 * until then, for its launcher, which starts it again if it dies meanwhile; but
 * the chief has no member by that name to report dead. */
static void leave_run(struct control_client *client, bool followed) {
    struct launch_record record = {.run = followed ? client->process->run : 0};
    launch_record_write(client->member->record, &record);
    if (client->loss_text[0])
        return; /* nobody is there to read more */
    Capstan__Goodbye goodbye = CAPSTAN__GOODBYE__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    control.body_case = CAPSTAN__CONTROL__BODY_GOODBYE;
    control.goodbye = &goodbye;
    if (client->process->trace) /* what was not requested yet */
        send_trace(client, time_now(), UINT64_MAX);
    send_histograms(client, UINT64_MAX);
    control_client_send_unreliable(client, &control);
}

void control_client_leave(struct control_client *client) {
    leave_run(client, false);
}

void control_client_leave_failed(struct control_client *client,
                                 const struct failure *why) {
    leave_run(client, failure_code_status(why->code) == STATUS_RETRY &&
                          why->code != FAILURE_PEER_SILENT);
}

/* In its log and for its next join. */
static void await_next_run(struct control_client *client,
                           const Capstan__Stop *stop) {
    const struct log *log = client->process->log;
    const Capstan__Heartbeat *heartbeat = &client->heartbeat;
    struct member_past *past = client->member->past;
    bool is_lost = client->loss_text[0];
    if (is_lost)
        log_warning(log, "chief_lost",
                    "%s: this process leaves its run, keeps its data and "
                    "memory, and waits up to %g s (timeouts.chief) for the "
                    "chief to be there again",
                    stop->text, stop->restart_within);
    else
        log_info(log, "run_over", "the run is over: %s; another follows",
                 stop->text);
    if (!past || client->chief_within <= 0)
        return;
    past->chief_lost = is_lost;
    past->join_key = is_lost ? "timeouts.chief" : "timeouts.recover";
    past->heard_at = client->last_received;
    if (past->run != client->process->run)
        return; /* it had no view */
    if (heartbeat->clock > past->step)
        past->step = heartbeat->clock;
    if (heartbeat->global_step > past->step)
        past->step = heartbeat->global_step;
}

enum status control_client_handle_stop(struct control_client *client,
                                       const Capstan__Stop *stop,
                                       struct failure *why) {
    const struct log *log = client->process->log;
    if (!client->loss_text[0])
        control_client_send_heartbeat(client); /* the summary has its numbers */
    leave_run(client, stop->restart_within > 0);
    if (stop->restart_within > 0) {
        await_next_run(client, stop);
        if (client->member->restart_within)
            *client->member->restart_within = stop->restart_within;
        return STATUS_OK;
    }
    if (stop->code) {
        status_fail(why, (enum failure_code)stop->code,
                    stop->dismissed ? "the chief dismissed this process: %s; "
                                      "the run goes on without it"
                                    : "the chief ended the run: %s",
                    stop->text);
        return status_mark_reported(why);
    }
    log_info(log, "run_over", "the run is over: %s", stop->text);
    return STATUS_OK;
}

bool control_client_is_orphaned(const struct control_client *client) {
    return client->orphaned_at;
}

bool control_client_is_joined(const struct control_client *control_client) {
    return control_client->joined;
}

bool control_client_is_drained(const struct control_client *control_client) {
    return channel_empty(&control_client->channel);
}

const char *control_client_chief_name(const struct control_client *client) {
    return client->chief_name;
}
