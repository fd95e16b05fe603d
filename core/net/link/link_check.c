/* SPDX-License-Identifier: Apache-2.0 */
#include "core/net/link/link_check.h"

#include "core/base/status.h"
#include "core/base/time.h"
#include "core/net/link/resolve.h"

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { AT_ONCE = 256, GREETING = 0xff };
/* A look-up has no descriptor to poll. A turn is short, so that a longer one
 * shows that this process stood still (deadline_stall). */
static const int64_t LOOKUP_POLL = 20 * TIME_MS, TURN = TIME_S / 2;

/* A check under way: its name is looked up, then its socket connects, then the
 * greeting is awaited. */
struct attempt {
    struct link_check *check;
    struct resolve *resolve; /* NULL: done */
    int socket;              /* -1: not yet */
    bool connected;
    int64_t since;
};

static void finish(struct attempt *attempt, enum link_check_state state,
                   const char *format, ...) PRINTF_LIKE(3, 4);

static void finish(struct attempt *attempt, enum link_check_state state,
                   const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(attempt->check->text, sizeof attempt->check->text, format,
              arguments);
    va_end(arguments);
    attempt->check->state = state;
    resolve_end(&attempt->resolve);
    if (attempt->socket >= 0)
        close(attempt->socket);
    attempt->socket = -1;
    attempt->check = NULL;
}

static void fail_with(struct attempt *attempt, int error) {
    if (error == ECONNREFUSED)
        finish(attempt, LINK_CHECK_REFUSED,
               "refused: the host is reachable, and nothing listens on port "
               "%u yet",
               attempt->check->port);
    else
        finish(attempt, LINK_CHECK_UNREACHABLE, "the host is not reachable: %s",
               strerror(error));
}

static void begin_attempt(struct attempt *attempt, struct link_check *check,
                          int64_t now) {
    *attempt = (struct attempt){.check = check, .socket = -1, .since = now};
    attempt->resolve = resolve_start(check->host, check->port);
    if (!attempt->resolve)
        fail_with(attempt, EAGAIN);
}

/* Connects to the numeric ADDRESS. */
static void connect_to(struct attempt *attempt, const char *address) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM,
                             .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV};
    struct addrinfo *found = NULL;
    char host[256], port[8];
    uint16_t number;
    if (!resolve_split(address, host, sizeof host, &number)) {
        fail_with(attempt, EINVAL);
        return;
    }
    snprintf(port, sizeof port, "%u", number);
    if (getaddrinfo(host, port, &hints, &found)) {
        fail_with(attempt, EINVAL);
        return;
    }
    attempt->socket =
        socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    bool failed =
        attempt->socket < 0 ||
        (connect(attempt->socket, found->ai_addr, found->ai_addrlen) &&
         errno != EINPROGRESS);
    int error = errno;
    freeaddrinfo(found);
    if (failed)
        fail_with(attempt, error);
}

static void poll_lookup(struct attempt *attempt) {
    char text[300];
    enum resolve_state state =
        resolve_poll(attempt->resolve, text, sizeof text);
    if (state == RESOLVE_WAITING)
        return;
    resolve_end(&attempt->resolve);
    if (state == RESOLVE_FOUND)
        connect_to(attempt, text);
    else
        finish(attempt, LINK_CHECK_UNRESOLVED, "the name does not resolve: %s",
               text);
}

static void finish_connect(struct attempt *attempt) {
    int error = 0;
    socklen_t size = sizeof error;
    getsockopt(attempt->socket, SOL_SOCKET, SO_ERROR, &error, &size);
    if (error)
        fail_with(attempt, error);
    attempt->connected = !error;
}

static void read_greeting(struct attempt *attempt) {
    unsigned char first;
    ssize_t count = recv(attempt->socket, &first, 1, 0);
    if (count < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (count == 1 && first == GREETING)
        finish(attempt, LINK_CHECK_ANSWERS, "answers");
    else
        finish(
            attempt, LINK_CHECK_FOREIGN,
            "connected, but what listens on port %u %s", attempt->check->port,
            count == 1 ? "is no process of Capstan" : "closes the connection");
}

static void time_out(struct attempt *attempt, int64_t limit) {
    double seconds = time_to_seconds(limit);
    if (attempt->connected)
        finish(attempt, LINK_CHECK_FOREIGN,
               "connected, but what listens on port %u says nothing within "
               "%g s",
               attempt->check->port, seconds);
    else if (attempt->resolve)
        finish(attempt, LINK_CHECK_UNRESOLVED,
               "no answer from the name server within %g s", seconds);
    else
        finish(attempt, LINK_CHECK_TIMEOUT,
               "no answer from the host within %g s: it is down, or a "
               "firewall drops what is sent to port %u",
               seconds, attempt->check->port);
}

/* READY: its socket has an event. */
static void advance_attempt(struct attempt *attempt, bool ready, int64_t now,
                            int64_t limit) {
    if (attempt->resolve)
        poll_lookup(attempt);
    else if (ready && !attempt->connected)
        finish_connect(attempt);
    else if (ready)
        read_greeting(attempt);
    if (attempt->check && now - attempt->since >= limit)
        time_out(attempt, limit);
}

/* Waits for an event of one of COUNT attempts or for the first deadline, and
 * advances them all. */
static void turn(struct attempt *attempts, uint32_t count, int64_t limit,
                 int64_t *last) {
    struct pollfd items[AT_ONCE];
    int64_t now = time_now(), until = now + TURN;
    for (uint32_t i = 0; i < count; i++) {
        const struct attempt *attempt = &attempts[i];
        int64_t next = attempt->since + limit;
        if (attempt->resolve && now + LOOKUP_POLL < next)
            next = now + LOOKUP_POLL;
        until = next < until ? next : until;
        items[i] =
            (struct pollfd){.fd = attempt->socket,
                            .events = attempt->connected ? POLLIN : POLLOUT};
    }
    poll(items, count, time_poll_ms(now, until));
    now = time_now();
    int64_t stall = deadline_stall(*last, now);
    for (uint32_t i = 0; i < count; i++) {
        deadline_shift(&attempts[i].since, stall, now);
        advance_attempt(&attempts[i], items[i].revents, now, limit);
    }
    *last = now;
}

void link_check_run(struct link_check *checks, uint32_t count, int64_t limit) {
    struct attempt attempts[AT_ONCE];
    uint32_t begun = 0, open = 0;
    int64_t last = 0;
    while (begun < count || open) {
        for (; begun < count && open < AT_ONCE; begun++)
            begin_attempt(&attempts[open++], &checks[begun], time_now());
        if (open)
            turn(attempts, open, limit, &last);
        for (uint32_t i = 0; i < open;)
            if (attempts[i].check)
                i++;
            else
                attempts[i] = attempts[--open];
    }
}

const char *link_check_state_name(enum link_check_state state) {
    static const char *const names[] = {
        [LINK_CHECK_NOT_TRIED] = "not_tried",
        [LINK_CHECK_ANSWERS] = "answers",
        [LINK_CHECK_REFUSED] = "refused",
        [LINK_CHECK_UNRESOLVED] = "unresolved",
        [LINK_CHECK_UNREACHABLE] = "unreachable",
        [LINK_CHECK_TIMEOUT] = "timeout",
        [LINK_CHECK_FOREIGN] = "foreign",
    };
    return names[state];
}
