/* SPDX-License-Identifier: Apache-2.0 */
/* Asks the port of --metrics-port of a running process for its report. */
#include "commands/verbs.h"
#include "core/base/background_task.h"
#include "core/base/time.h"
#include "proto/cluster/address.h"
#include "proto/messages/process_report.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static const int64_t LOOK_UP_LIMIT = 2 * TIME_S;
static const int64_t CONNECT_LIMIT = 2 * TIME_S;
/* A chief gives its members two of them, and looks ten times a second whether
 * it is asked. */
static const int64_t REPORT_ANSWER_LIMIT = (HEALTH_ANSWER_S + 3) * TIME_S;
enum { MAX_ANSWER = 256 << 20, CHUNK = 64 << 10 };

static bool await(int descriptor, short events, int64_t until) {
    struct pollfd item = {descriptor, events, 0};
    int ready;
    do
        ready = poll(&item, 1, time_poll_ms(time_now(), until));
    while (ready < 0 && errno == EINTR);
    return ready > 0;
}

/* A connection to one address; -1 with errno. */
static int connect_one(const struct addrinfo *found, int64_t until) {
    int error = 0;
    socklen_t size = sizeof error;
    int client =
        socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (client < 0)
        return -1;
    if (!connect(client, found->ai_addr, found->ai_addrlen))
        return client;
    if (errno != EINPROGRESS)
        error = errno;
    else if (!await(client, POLLOUT, until))
        error = ETIMEDOUT;
    else
        getsockopt(client, SOL_SOCKET, SO_ERROR, &error, &size);
    if (!error)
        return client;
    close(client);
    errno = error;
    return -1;
}

static enum status fail_connect(const char *name, int error,
                                struct failure *why) {
    if (error == ETIMEDOUT)
        return status_fail(why, FAILURE_PEER_SILENT,
                           "%s has not answered within %.0f s: its process "
                           "stands still, or the network does not reach it",
                           name, time_to_seconds(CONNECT_LIMIT));
    return status_fail(why, FAILURE_CONNECTION_FAILED,
                       "%s: %s; give the address and port of the process's "
                       "--metrics-port",
                       name, strerror(error));
}

struct name_look_up {
    char host[256], port[8];
    struct addrinfo *found;
};

static enum status status_look_up(void *context, int cancel,
                                  struct failure *why) {
    struct name_look_up *name = context;
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM,
                             .ai_flags = AI_NUMERICSERV};
    (void)cancel;
    int problem = getaddrinfo(name->host, name->port, &hints, &name->found);
    if (!problem)
        return STATUS_OK;
    return status_fail(why, FAILURE_ADDRESS_UNRESOLVED,
                       "no address is known for %s: %s", name->host,
                       gai_strerror(problem));
}

static void status_free_look_up(void *context) {
    struct name_look_up *name = context;
    if (name->found)
        freeaddrinfo(name->found);
    free(name);
}

/* Waits for LOOK_UP_LIMIT; the caller frees *OUT by status_free_look_up. */
static enum status status_resolve(const struct cluster_task *task,
                                  struct name_look_up **out,
                                  struct failure *why) {
    struct background_task *work;
    struct name_look_up *name = calloc(1, sizeof *name);
    *out = NULL;
    if (!name)
        return status_fail(why, FAILURE_NO_MEMORY, "out of memory");
    snprintf(name->host, sizeof name->host, "%s", task->host);
    snprintf(name->port, sizeof name->port, "%u", task->port);
    enum status status = background_task_open(&work, status_look_up, name, why);
    if (status) {
        status_free_look_up(name);
        return status;
    }
    if (!await(background_task_descriptor(work), POLLIN,
               time_now() + LOOK_UP_LIMIT)) {
        background_task_abandon(&work, status_free_look_up);
        return status_fail(why, FAILURE_ADDRESS_UNRESOLVED,
                           "no address is known for %s: its name server has "
                           "not answered within %.0f s",
                           task->host, time_to_seconds(LOOK_UP_LIMIT));
    }
    (void)background_task_poll(work, &status, why);
    background_task_close(&work);
    *out = name;
    return status;
}

/* HOST is the numeric address, which every server answers to. */
static enum status connect_found(const struct name_look_up *look_up,
                                 const char *name, int *client, char *host,
                                 size_t size, struct failure *why) {
    char address[128];
    int error = 0;
    int64_t until = time_now() + CONNECT_LIMIT;
    *client = -1;
    for (struct addrinfo *each = look_up->found; each && *client < 0;
         each = each->ai_next) {
        *client = connect_one(each, until);
        error = errno;
        if (*client >= 0)
            getnameinfo(each->ai_addr, each->ai_addrlen, address,
                        sizeof address, NULL, 0, NI_NUMERICHOST);
    }
    if (*client < 0)
        return fail_connect(name, error, why);
    snprintf(host, size, strchr(address, ':') ? "[%s]:%s" : "%s:%s", address,
             look_up->port);
    return STATUS_OK;
}

/* Reads until the server closes; TEXT is the caller's. */
static enum status read_report_answer(int client, const char *name, char **text,
                                      struct failure *why) {
    int64_t until = time_now() + REPORT_ANSWER_LIMIT;
    size_t used = 0;
    ssize_t got = 1;
    *text = NULL;
    while (got && used < MAX_ANSWER) {
        char *grown = realloc(*text, used + CHUNK + 1);
        if (!grown)
            return status_fail(why, FAILURE_NO_MEMORY, "out of memory");
        *text = grown;
        if (!await(client, POLLIN, until))
            return status_fail(why, FAILURE_PEER_SILENT,
                               "%s is connected and has not answered within "
                               "%.0f s: its process stands still",
                               name, time_to_seconds(REPORT_ANSWER_LIMIT));
        got = recv(client, *text + used, CHUNK, 0);
        if (got < 0 && errno == ECONNRESET)
            got = 0; /* as a program does that speaks another protocol */
        if (got < 0 && errno != EAGAIN && errno != EINTR)
            return status_errno(why, FAILURE_CONNECTION_FAILED, errno, "%s",
                                name);
        used += got > 0 ? (size_t)got : 0;
        (*text)[used] = 0;
    }
    return STATUS_OK;
}

/* What stands behind the head of an answer, if that is a good one. */
static enum status read_report_object(const char *text, const char *name,
                                      json_t **object, struct failure *why) {
    int code = 0;
    json_error_t error;
    const char *body = strstr(text, "\r\n\r\n");
    (void)sscanf(text, "HTTP/%*s %d", &code);
    *object = body && code == 200 ? json_loads(body + 4, 0, &error) : NULL;
    if (json_array_size(json_object_get(*object, "processes")))
        return STATUS_OK;
    json_decref(*object);
    *object = NULL;
    return status_fail(why, FAILURE_BAD_MESSAGE,
                       "%s answers without a report (HTTP %d): give the "
                       "address and port of --metrics-port of a process of "
                       "this release",
                       name, code);
}

static enum status ask_report(const struct cluster_task *task, json_t **object,
                              struct failure *why) {
    char name[300], host[160], request[256], *text = NULL;
    struct name_look_up *look_up;
    int client = -1;
    cluster_address(task, name, sizeof name);
    enum status status = status_resolve(task, &look_up, why);
    if (!status)
        status = connect_found(look_up, name, &client, host, sizeof host, why);
    if (look_up)
        status_free_look_up(look_up);
    if (status)
        return status;
    int length = snprintf(request, sizeof request,
                          "GET /report HTTP/1.0\r\nHost: %s\r\n\r\n", host);
    if (send(client, request, (size_t)length, MSG_NOSIGNAL) != length)
        status =
            status_errno(why, FAILURE_CONNECTION_FAILED, errno, "%s", name);
    else
        status = read_report_answer(client, name, &text, why);
    if (!status)
        status = read_report_object(text, name, object, why);
    free(text);
    close(client);
    return status;
}

static void print_report_line(void *context, const char *text) {
    fprintf(context, "%s\n", text);
}

enum status status_command(const struct options *options, struct failure *why) {
    struct cluster_task task;
    json_t *object = NULL;
    if (!address_parse_listener(&task, options->job) || !task.port)
        return status_fail(why, FAILURE_USAGE,
                           "'%s' is neither PORT nor HOST:PORT: give the "
                           "address and port of --metrics-port of a process",
                           options->job);
    enum status status = ask_report(&task, &object, why);
    if (status)
        return status;
    if (options->json) {
        json_dumpf(object, stdout, JSON_COMPACT | JSON_REAL_PRECISION(6));
        fputc('\n', stdout);
    } else if (!process_report_each_line(object, print_report_line, stdout)) {
        status = status_fail(why, FAILURE_BAD_MESSAGE,
                             "'%s' answers with a report of no process",
                             options->job);
    }
    json_decref(object);
    return status;
}
