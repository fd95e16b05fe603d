/* SPDX-License-Identifier: Apache-2.0 */
/* The socket is opened here, not by libmicrohttpd, so that a busy port has a
 * reason. A request is answered at once, from memory. */
#include "commands/status_server.h"

#include "proto/base/fork_guard.h"
#include "proto/base/time.h"

#include <errno.h>
#include <jansson.h>
#include <microhttpd.h>
#include <netdb.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MAX_CONNECTIONS = 32, CONNECTION_TIMEOUT = 10 /* seconds */ };

struct status_server {
    struct MHD_Daemon *daemon;
    struct health *healths[ROLES_MAX];
    unsigned count;
    uint16_t port;
};

struct http_answer {
    unsigned code;
    const char *type;
    char *text; /* malloc's; NULL: no memory */
};

static double seconds_between(int64_t time, int64_t now) {
    return now > time ? time_to_seconds(now - time) : 0;
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
            peers, json_pack("{s:s, s:i, s:s?, s:o}", "role", peer->role,
                             "index", (int)peer->index, "address",
                             peer->address[0] ? peer->address : NULL,
                             "silent_seconds", silent));
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

/* -1 and UINT64_MAX stand for "none". */
static json_t *number_or_null(int64_t number) {
    return number < 0 ? json_null() : json_integer(number);
}

static json_t *describe_role(struct health *health, int64_t now) {
    char run[24];
    const struct health_report *report = health_lock(health);
    snprintf(run, sizeof run, "%016llx", (unsigned long long)report->run);
    json_t *role = json_pack(
        "{s:s, s:o, s:o, s:i, s:s?, s:I, s:o, s:s, s:o, s:s?, s:o}", "role",
        health_role(health), "index", number_or_null(health_index(health)),
        "rank", number_or_null(report->rank), "pid", (int)getpid(), "run",
        report->run ? run : NULL, "step", (json_int_t)report->step,
        "total_steps",
        number_or_null(report->total_steps ? (int64_t)report->total_steps
                                           : HEALTH_NONE),
        "state", health_state_name(report->state), "peers",
        describe_health_peers(report, now), "waiting_for",
        report->waiting_for[0] ? report->waiting_for : NULL, "deadline",
        describe_health_deadline(report, now));
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
    if (answer->code == MHD_HTTP_METHOD_NOT_ALLOWED)
        MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW, "GET, HEAD");
    enum MHD_Result result =
        MHD_queue_response(connection, answer->code, response);
    MHD_destroy_response(response);
    return result;
}

static enum MHD_Result answer_request(void *context,
                                      struct MHD_Connection *connection,
                                      const char *path, const char *method,
                                      const char *version, const char *upload,
                                      size_t *upload_size, void **state) {
    struct status_server *server = context;
    struct http_answer answer = {.type = "text/plain; charset=utf-8"};
    bool reads = !strcmp(method, MHD_HTTP_METHOD_GET) ||
                 !strcmp(method, MHD_HTTP_METHOD_HEAD);
    bool status = !strcmp(path, "/status");
    (void)version, (void)upload, (void)upload_size, (void)state;
    if (!status && strcmp(path, "/healthz")) {
        answer.code = MHD_HTTP_NOT_FOUND;
        answer.text = strdup("there are /healthz and /status\n");
    } else if (!reads) {
        answer.code = MHD_HTTP_METHOD_NOT_ALLOWED;
        answer.text = strdup("GET only\n");
    } else if (status) {
        answer_status(server, &answer);
    } else {
        answer_healthz(server, &answer);
    }
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
        !listen(listener, MAX_CONNECTIONS))
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

/* The library's thread must take no signal of the process. */
static struct MHD_Daemon *start_daemon(struct status_server *server,
                                       int listener) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    struct MHD_Daemon *daemon = MHD_start_daemon(
        MHD_USE_AUTO_INTERNAL_THREAD, 0, NULL, NULL, answer_request, server,
        MHD_OPTION_LISTEN_SOCKET, listener, MHD_OPTION_CONNECTION_LIMIT,
        (unsigned)MAX_CONNECTIONS, MHD_OPTION_CONNECTION_TIMEOUT,
        (unsigned)CONNECTION_TIMEOUT, MHD_OPTION_END);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return daemon;
}

enum status status_server_open(struct status_server **out,
                               const struct cluster_task *address,
                               struct health *const *healths, unsigned count,
                               struct failure *why) {
    int listener;
    enum status status = open_listener(&listener, address, why);
    if (status)
        return status;
    struct status_server *server = calloc(1, sizeof *server);
    if (server) {
        memcpy(server->healths, healths, count * sizeof(struct health *));
        server->count = count;
        server->port = address->port;
        fork_guard_add_port(server->port);
        server->daemon = start_daemon(server, listener);
    }
    if (server && server->daemon) {
        *out = server;
        return STATUS_OK;
    }
    close(listener);
    status_server_close(&server);
    return status_fail(why, FAILURE_SYSTEM_BUSY,
                       "no thread or memory to serve --metrics-port");
}

void status_server_close(struct status_server **where) {
    struct status_server *server = *where;
    *where = NULL;
    if (!server)
        return;
    if (server->daemon)
        MHD_stop_daemon(server->daemon);
    fork_guard_remove_port(server->port);
    free(server);
}
