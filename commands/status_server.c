/* SPDX-License-Identifier: Apache-2.0 */
/* The socket is opened here, not by libmicrohttpd, so that a busy port has a
 * reason. A request is answered at once, from memory. A connection is for one
 * request and has a deadline, as libmicrohttpd's timeout begins anew at each
 * byte. Where there are too many, of an address or in all, the oldest ends: so
 * slow clients keep no probe out, wherever it comes from. Only a request for
 * the report of all processes waits, suspended, while the chief asks them. */
#include "commands/status_server.h"

#include "commands/host_header.h"
#include "commands/metrics_text.h"
#include "commands/page.h"
#include "core/base/fork_guard.h"
#include "core/base/time.h"
#include "proto/messages/process_report.h"

#include <ctype.h>
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <microhttpd.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MAX_CONNECTIONS = 32, MAX_OF_ADDRESS = 8 };
/* Of a connection that has ended libmicrohttpd learns later. */
enum { MAX_ACCEPTED = 2 * MAX_CONNECTIONS };
static const int64_t REQUEST_LIMIT = 5 * TIME_S;
/* The chief's loop may take a while to see the question, and its members two
 * seconds to answer it. */
static const int64_t REPORT_LIMIT = (HEALTH_ANSWER_S + 1) * TIME_S;
enum { REPORT_TICK_MS = 20 };

struct http_client {
    int64_t since; /* 0: no connection */
    int descriptor;
    bool ended; /* this side has shut it down */
    struct MHD_Connection
        *suspended;  /* it awaits the report; NULL: it doesn't */
    uint64_t ticket; /* of health_ask */
    int64_t asked_at;
    char address[64];
};

struct status_server {
    struct MHD_Daemon *daemon;
    pthread_t thread;
    int stop; /* an eventfd: the thread ends */
    struct http_client clients[MAX_ACCEPTED];
    struct health *healths[ROLES_MAX];
    struct page_points *points; /* or NULL */
    unsigned count;
    uint16_t port;
    char host[256]; /* that of --metrics-port */
};

struct http_answer {
    unsigned code;
    const char *type;
    char *text;         /* malloc's; NULL: no memory */
    const char *policy; /* Content-Security-Policy; NULL: none */
};

static double seconds_between(int64_t time, int64_t now) {
    return now > time ? time_to_seconds(now - time) : 0;
}

/* -1 and UINT64_MAX stand for "none". */
static json_t *number_or_null(int64_t number) {
    return number < 0 ? json_null() : json_integer(number);
}

static json_t *describe_seconds(const struct health_peer *peer) {
    return peer->seconds.training > 0
               ? json_pack("{s:f, s:f, s:f, s:f}", "input", peer->seconds.input,
                           "compute", peer->seconds.compute, "waiting",
                           peer->seconds.waiting, "training",
                           peer->seconds.training)
               : json_null();
}

static json_t *describe_health_peers(const struct health_report *report,
                                     int64_t now) {
    json_t *peers = json_array();
    for (uint32_t i = 0; i < report->num_peers; i++) {
        const struct health_peer *peer = &report->peers[i];
        json_t *silent = peer->last_seen
                             ? json_real(seconds_between(peer->last_seen, now))
                             : json_null();
        json_array_append_new(
            peers,
            json_pack(
                "{s:s, s:i, s:s?, s:o, s:s?, s:o, s:o}", "role", peer->role,
                "index", (int)peer->index, "address",
                peer->address[0] ? peer->address : NULL, "silent_seconds",
                silent, "state", peer->state, "step",
                number_or_null(peer->step ? (int64_t)peer->step : HEALTH_NONE),
                "seconds", describe_seconds(peer)));
    }
    return peers;
}

static json_t *describe_health_deadline(const struct health_report *report,
                                        int64_t now) {
    const struct deadline *deadline = &report->deadline;
    if (deadline->until == TIME_NEVER)
        return json_null();
    return json_pack("{s:s, s:s, s:f}", "key", deadline->limit, "peer",
                     deadline->peer, "seconds_left",
                     seconds_between(now, deadline->until));
}

static json_t *sample_or_null(const struct health_report *report,
                              enum metric metric) {
    double value = health_sample(report, metric);
    return isfinite(value) ? json_real(value) : json_null();
}

static json_t *describe_role(struct health *health, int64_t now) {
    char run[24];
    const struct health_report *report = health_lock(health);
    snprintf(run, sizeof run, "%016llx", (unsigned long long)report->run);
    json_t *role = json_pack(
        "{s:s, s:o, s:o, s:i, s:s?, s:I, s:o, s:s, s:o, s:s?, s:o, s:o, s:o, "
        "s:o}",
        "role", report->role, "index", number_or_null(report->index), "rank",
        number_or_null(report->rank), "pid", (int)getpid(), "run",
        report->run ? run : NULL, "step", (json_int_t)report->step,
        "total_steps",
        number_or_null(report->total_steps ? (int64_t)report->total_steps
                                           : HEALTH_NONE),
        "state", health_state_name(report->state), "peers",
        describe_health_peers(report, now), "waiting_for",
        report->waiting_for[0] ? report->waiting_for : NULL, "deadline",
        describe_health_deadline(report, now), "train_loss",
        sample_or_null(report, METRIC_TRAIN_LOSS), "steps_per_second",
        sample_or_null(report, METRIC_STEPS_PER_SECOND), "examples_per_second",
        sample_or_null(report, METRIC_EXAMPLES_PER_SECOND));
    health_unlock(health);
    return role;
}

/* The first role, and in "roles" those beside it in this process. */
static void answer_status(struct status_server *server,
                          struct http_answer *answer) {
    int64_t now = time_now();
    json_t *object = describe_role(server->healths[0], now);
    json_t *others = json_array();
    for (unsigned i = 1; i < server->count; i++)
        json_array_append_new(others, describe_role(server->healths[i], now));
    json_object_set_new(object, "roles", others);
    answer->code = MHD_HTTP_OK;
    answer->type = "application/json";
    answer->text = json_dumps(object, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
    json_decref(object);
}

/* The text about the role's deadline if it is close, else NULL. */
static char *late_text(struct health *health, int64_t now) {
    char wait[700], *text = NULL;
    const struct health_report *report = health_lock(health);
    if (health_is_late(report, now)) {
        deadline_text(&report->deadline, now, wait, sizeof wait);
        if (asprintf(&text, "%s: %s\n", health_state_name(report->state),
                     wait) < 0)
            text = NULL;
    }
    health_unlock(health);
    return text;
}

static void answer_healthz(struct status_server *server,
                           struct http_answer *answer) {
    int64_t now = time_now();
    answer->type = "text/plain; charset=utf-8";
    answer->code = MHD_HTTP_SERVICE_UNAVAILABLE;
    for (unsigned i = 0; i < server->count; i++) {
        answer->text = late_text(server->healths[i], now);
        if (answer->text)
            return;
    }
    answer->code = MHD_HTTP_OK;
    const struct health_report *report = health_lock(server->healths[0]);
    enum health_state state = report->state;
    health_unlock(server->healths[0]);
    if (asprintf(&answer->text, "%s\n", health_state_name(state)) < 0)
        answer->text = NULL;
}

static void answer_metrics(struct status_server *server,
                           struct http_answer *answer) {
    struct metrics_process process = metrics_process_now();
    answer->code = MHD_HTTP_OK;
    answer->type = "text/plain; version=0.0.4; charset=utf-8";
    answer->text = metrics_text(server->healths, server->count, &process);
}

static void answer_page(struct status_server *server,
                        struct http_answer *answer) {
    (void)server;
    answer->code = MHD_HTTP_OK;
    answer->type = "text/html; charset=utf-8";
    answer->policy = page_policy;
    answer->text = strdup(page_html);
}

/* The samples of all roles of this process, by name; what is by rank, or of
 * another role already, is left out. */
static json_t *describe_samples(struct status_server *server) {
    json_t *samples = json_object();
    for (unsigned i = 0; i < server->count; i++) {
        const struct health_report *report = health_lock(server->healths[i]);
        for (uint32_t s = 0; s < report->num_samples; s++) {
            const struct health_sample *sample = &report->samples[s];
            const char *name = metric_rows[sample->metric].name;
            if (sample->rank < 0 && isfinite(sample->value) &&
                !json_object_get(samples, name))
                json_object_set_new(samples, name, json_real(sample->value));
        }
        health_unlock(server->healths[i]);
    }
    return samples;
}

/* What the page draws: of a chief its points, of each role its samples now. */
static void answer_points(struct status_server *server,
                          struct http_answer *answer) {
    json_t *object =
        server->points ? page_points_describe(server->points) : json_object();
    if (object)
        json_object_set_new(object, "now", describe_samples(server));
    answer->code = MHD_HTTP_OK;
    answer->type = "application/json";
    if (object)
        answer->text =
            json_dumps(object, JSON_COMPACT | JSON_REAL_PRECISION(13));
    json_decref(object);
}

static enum MHD_Result send_answer(struct MHD_Connection *connection,
                                   struct http_answer *answer) {
    if (!answer->text)
        return MHD_NO; /* closes the connection */
    struct MHD_Response *response = MHD_create_response_from_buffer(
        strlen(answer->text), answer->text, MHD_RESPMEM_MUST_FREE);
    if (!response) {
        free(answer->text);
        return MHD_NO;
    }
    MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE,
                            answer->type);
    MHD_add_response_header(response, MHD_HTTP_HEADER_CACHE_CONTROL,
                            "no-store");
    MHD_add_response_header(response, MHD_HTTP_HEADER_CONNECTION, "close");
    MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
    MHD_add_response_header(response, "Referrer-Policy", "no-referrer");
    MHD_add_response_header(response, "Cross-Origin-Resource-Policy",
                            "same-origin");
    if (answer->policy)
        MHD_add_response_header(response, "Content-Security-Policy",
                                answer->policy);
    if (answer->code == MHD_HTTP_METHOD_NOT_ALLOWED)
        MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW, "GET, HEAD");
    enum MHD_Result result =
        MHD_queue_response(connection, answer->code, response);
    MHD_destroy_response(response);
    return result;
}

static struct http_client *client_of(struct MHD_Connection *connection) {
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return info ? info->socket_context : NULL;
}

/* True: CONNECTION waits for the report, and is answered when it is there. */
static bool suspend_for_report(struct status_server *server,
                               struct MHD_Connection *connection) {
    struct http_client *client = client_of(connection);
    if (!client || !health_is_chiefs(server->healths[0]))
        return false;
    client->ticket = health_ask(server->healths[0]);
    client->asked_at = time_now();
    client->suspended = connection;
    MHD_suspend_connection(connection);
    return true;
}

static bool is_report_due(const struct status_server *server,
                          const struct http_client *client, int64_t now) {
    char *text = health_take_answer(server->healths[0], client->ticket);
    bool due = text || client->ended || now - client->asked_at >= REPORT_LIMIT;
    free(text);
    return due;
}

/* Lets those go on whose report is there, or overdue, or ALL. True: there is
 * one that waits or is being answered, which takes turns of the loop that no
 * event of its socket brings. */
static bool resume_clients(struct status_server *server, bool all) {
    bool waits = false;
    for (unsigned i = 0; i < MAX_ACCEPTED; i++) {
        struct http_client *client = &server->clients[i];
        waits |= client->since && client->ticket;
        if (!client->suspended ||
            (!all && !is_report_due(server, client, time_now())))
            continue;
        struct MHD_Connection *connection = client->suspended;
        client->suspended = NULL;
        MHD_resume_connection(connection);
    }
    return waits;
}

/* A chief's is of all processes, unless its loop stands still; another one's of
 * this process. */
static void answer_report(struct status_server *server,
                          struct http_answer *answer) {
    json_t *object =
        process_report_of_roles(server->healths, server->count, time_now());
    answer->code = MHD_HTTP_OK;
    answer->type = "application/json";
    answer->text = json_dumps(object, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
    json_decref(object);
}

static void answer_report_of(struct status_server *server,
                             struct MHD_Connection *connection,
                             struct http_answer *answer) {
    const struct http_client *client = client_of(connection);
    char *text = client && client->ticket
                     ? health_take_answer(server->healths[0], client->ticket)
                     : NULL;
    answer_report(server, answer);
    if (!text)
        return;
    free(answer->text);
    answer->text = text;
}

/* A probe asks by any name; what a run tells is for those who ask by one that
 * no other site can have. */
static const struct http_path {
    const char *path;
    void (*answer)(struct status_server *server, struct http_answer *answer);
    bool is_open; /* whatever the request calls this host */
} paths[] = {
    {"/", answer_page, false},          {"/healthz", answer_healthz, true},
    {"/metrics", answer_metrics, true}, {"/points", answer_points, false},
    {"/report", answer_report, false},  {"/status", answer_status, false},
};

static const struct http_path *find_path(const char *text) {
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++)
        if (!strcmp(paths[i].path, text))
            return &paths[i];
    return NULL;
}

struct http_hosts {
    const char *own;
    unsigned count;
    bool is_other; /* than the server's own */
};

static enum MHD_Result check_host(void *context, enum MHD_ValueKind kind,
                                  const char *key, const char *value) {
    struct http_hosts *hosts = context;
    (void)kind;
    if (strcasecmp(key, MHD_HTTP_HEADER_HOST) != 0)
        return MHD_YES;
    hosts->count++;
    hosts->is_other |= !value || !host_header_is_own(value, hosts->own);
    return MHD_YES;
}

/* Refuses a request for PATH in ANSWER, if it is to be refused. Without Host it
 * is no browser's. */
static void refuse_request(struct status_server *server,
                           struct MHD_Connection *connection,
                           const struct http_path *path, const char *method,
                           struct http_answer *answer) {
    struct http_hosts hosts = {.own = server->host};
    MHD_get_connection_values(connection, MHD_HEADER_KIND, check_host, &hosts);
    bool reads = !strcmp(method, MHD_HTTP_METHOD_GET) ||
                 !strcmp(method, MHD_HTTP_METHOD_HEAD);
    const char *text = NULL;
    if (!path) {
        answer->code = MHD_HTTP_NOT_FOUND;
        text = "there are /, /healthz, /metrics, /points, /report and "
               "/status\n";
    } else if (!reads) {
        answer->code = MHD_HTTP_METHOD_NOT_ALLOWED;
        text = "GET only\n";
    } else if (hosts.count > 1) {
        answer->code = MHD_HTTP_BAD_REQUEST;
        text = "the header Host is there twice\n";
    } else if (!path->is_open && hosts.is_other) {
        answer->code = MHD_HTTP_MISDIRECTED_REQUEST;
        text = "this is answered to who asks by an address, by localhost, or "
               "by the name in --metrics-port NAME:PORT\n";
    }
    if (text)
        answer->text = strdup(text);
}

static enum MHD_Result answer_request(void *context,
                                      struct MHD_Connection *connection,
                                      const char *path, const char *method,
                                      const char *version, const char *upload,
                                      size_t *upload_size, void **state) {
    struct status_server *server = context;
    struct http_answer answer = {.type = "text/plain; charset=utf-8"};
    const struct http_path *found = find_path(path);
    (void)version, (void)upload, (void)upload_size;
    refuse_request(server, connection, found, method, &answer);
    bool reports = !answer.code && found->answer == answer_report;
    if (reports && !*state && suspend_for_report(server, connection)) {
        *state = server; /* the next call has the answer */
        return MHD_YES;
    }
    if (reports)
        answer_report_of(server, connection, &answer);
    else if (!answer.code)
        found->answer(server, &answer);
    return send_answer(connection, &answer);
}

/* A socket that listens at FOUND; -1 with errno. A port whose last connections
 * are being forgotten by the system is taken. */
static int listen_at(const struct addrinfo *found) {
    int yes = 1;
    int listener =
        socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (listener < 0)
        return -1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (!bind(listener, found->ai_addr, found->ai_addrlen) &&
        !listen(listener, SOMAXCONN))
        return listener;
    int error = errno;
    close(listener);
    errno = error;
    return -1;
}

static enum status open_listener(int *listener,
                                 const struct cluster_task *address,
                                 struct failure *why) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM,
                             .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct addrinfo *found = NULL;
    char port[8];
    snprintf(port, sizeof port, "%u", address->port);
    int problem = getaddrinfo(address->host, port, &hints, &found);
    if (problem)
        return status_fail(why, FAILURE_CANNOT_LISTEN,
                           "--metrics-port: no address is known for %s: %s",
                           address->host, gai_strerror(problem));
    *listener = listen_at(found);
    int error = errno;
    freeaddrinfo(found);
    if (*listener >= 0)
        return STATUS_OK;
    return status_fail(why, FAILURE_CANNOT_LISTEN,
                       "--metrics-port: cannot listen on port %u of %s: %s%s",
                       address->port, address->host, strerror(error),
                       error == EADDRINUSE
                           ? "; give each process of a host another port, or 0"
                           : "");
}

static void end_client(struct http_client *client) {
    client->ended = true;
    shutdown(client->descriptor, SHUT_RDWR);
}

/* Ends CLIENT, before libmicrohttpd has read it, if its request begins with
 * neither a letter, as a method does, nor a line, which HTTP lets precede it: a
 * member of a run that takes this port for its chief's learns at once that it
 * is none. */
static void end_if_foreign(struct http_client *client) {
    char first;
    if (recv(client->descriptor, &first, 1, MSG_PEEK | MSG_DONTWAIT) == 1 &&
        !isalpha((unsigned char)first) && first != '\r' && first != '\n')
        end_client(client);
}

/* The oldest of ADDRESS (NULL: of all) that may go on. *COUNT: how many may. */
static struct http_client *oldest_client(struct status_server *server,
                                         const char *address, unsigned *count) {
    struct http_client *oldest = NULL;
    *count = 0;
    for (unsigned i = 0; i < MAX_ACCEPTED; i++) {
        struct http_client *client = &server->clients[i];
        if (!client->since || client->ended ||
            (address && strcmp(client->address, address)))
            continue;
        *count += 1;
        if (!oldest || client->since < oldest->since)
            oldest = client;
    }
    return oldest;
}

static void add_client(struct status_server *server,
                       struct MHD_Connection *connection,
                       struct http_client *client) {
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    unsigned count;
    *client = (struct http_client){.since = time_now(),
                                   .descriptor = info->connect_fd};
    info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    if (info && info->client_addr)
        getnameinfo(info->client_addr,
                    info->client_addr->sa_family == AF_INET6
                        ? sizeof(struct sockaddr_in6)
                        : sizeof(struct sockaddr_in),
                    client->address, sizeof client->address, NULL, 0,
                    NI_NUMERICHOST);
    struct http_client *oldest = oldest_client(server, client->address, &count);
    if (count > MAX_OF_ADDRESS)
        end_client(oldest);
    oldest = oldest_client(server, NULL, &count);
    if (count > MAX_CONNECTIONS)
        end_client(oldest);
    end_if_foreign(client);
}

static void notice_connection(void *context, struct MHD_Connection *connection,
                              void **own,
                              enum MHD_ConnectionNotificationCode event) {
    struct status_server *server = context;
    struct http_client *client = *own;
    if (event == MHD_CONNECTION_NOTIFY_CLOSED) {
        if (client)
            client->since = 0;
        return;
    }
    for (unsigned i = 0; i < MAX_ACCEPTED && !client; i++)
        if (!server->clients[i].since)
            client = &server->clients[i];
    *own = client;
    if (client)
        add_client(server, connection, client);
}

/* Ends connections past their deadline; the milliseconds until the next one is,
 * -1: there is none. */
static int end_late_clients(struct status_server *server) {
    int64_t now = time_now(), next = INT64_MAX;
    for (unsigned i = 0; i < MAX_ACCEPTED; i++) {
        struct http_client *client = &server->clients[i];
        if (!client->since || client->ended)
            continue;
        int64_t left = client->since + REQUEST_LIMIT - now;
        if (left <= 0)
            end_client(client);
        else if (left < next)
            next = left;
    }
    return next == INT64_MAX ? -1 : (int)(next / TIME_MS) + 1;
}

static void *serve(void *context) {
    struct status_server *server = context;
    const union MHD_DaemonInfo *info =
        MHD_get_daemon_info(server->daemon, MHD_DAEMON_INFO_EPOLL_FD);
    struct pollfd ready[] = {{.fd = info->epoll_fd, .events = POLLIN},
                             {.fd = server->stop, .events = POLLIN}};
    while (!ready[1].revents) {
        MHD_UNSIGNED_LONG_LONG wanted;
        int wait = end_late_clients(server);
        if (resume_clients(server, false) &&
            (wait < 0 || wait > REPORT_TICK_MS))
            wait = REPORT_TICK_MS;
        if (MHD_get_timeout(server->daemon, &wanted) == MHD_YES &&
            (wait < 0 || wanted < (unsigned)wait))
            wait = (int)wanted;
        bool goes_on = poll(ready, 2, wait) >= 0 || errno == EINTR;
        for (unsigned i = 0; i < MAX_ACCEPTED; i++)
            if (server->clients[i].since && !server->clients[i].ended)
                end_if_foreign(&server->clients[i]);
        if (goes_on)
            MHD_run(server->daemon);
    }
    return NULL;
}

/* The thread must take no signal of the process. */
static bool start_serving(struct status_server *server) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    bool started = !pthread_create(&server->thread, NULL, serve, server);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return started;
}

static bool start_daemon(struct status_server *server, int listener) {
    server->stop = eventfd(0, EFD_CLOEXEC);
    if (server->stop >= 0)
        server->daemon = MHD_start_daemon(
            MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME, 0, NULL, NULL,
            answer_request, server, MHD_OPTION_LISTEN_SOCKET, listener,
            MHD_OPTION_CONNECTION_LIMIT, (unsigned)MAX_ACCEPTED,
            MHD_OPTION_NOTIFY_CONNECTION, notice_connection, server,
            MHD_OPTION_END);
    if (server->daemon && start_serving(server))
        return true;
    if (server->daemon)
        MHD_stop_daemon(server->daemon); /* closes the listener */
    else
        close(listener);
    if (server->stop >= 0)
        close(server->stop);
    return false;
}

enum status status_server_open(struct status_server **out,
                               const struct cluster_task *address,
                               struct health *const *healths, unsigned count,
                               struct page_points *points,
                               struct failure *why) {
    int listener;
    enum status status = open_listener(&listener, address, why);
    if (status)
        return status;
    struct status_server *server = calloc(1, sizeof *server);
    if (server) {
        memcpy(server->healths, healths, count * sizeof(struct health *));
        server->count = count;
        server->points = points;
        server->port = address->port;
        snprintf(server->host, sizeof server->host, "%s", address->host);
    } else {
        close(listener);
    }
    if (!server || !start_daemon(server, listener)) {
        free(server);
        return status_fail(why, FAILURE_SYSTEM_BUSY,
                           "no thread or memory to serve --metrics-port");
    }
    fork_guard_add_port(server->port);
    *out = server;
    return STATUS_OK;
}

void status_server_close(struct status_server **where) {
    struct status_server *server = *where;
    *where = NULL;
    if (!server)
        return;
    eventfd_write(server->stop, 1);
    pthread_join(server->thread, NULL);
    resume_clients(server, true);
    MHD_stop_daemon(server->daemon);
    close(server->stop);
    fork_guard_remove_port(server->port);
    free(server);
}
