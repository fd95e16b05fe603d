/* SPDX-License-Identifier: Apache-2.0 */
/* What is sent goes in pieces: while the other side works at one, the next is
 * written. */
#include "worker/collective/gloo_lane.h"

#include "proto/base/spare_core.h"
#include "proto/base/time.h"
#include "proto/net/shm/lane.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

enum { LOOKS = 32 }; /* at the ring before one at the clock */
enum { SIDES = 2 };  /* threads that are at a lane */
static const int64_t LINGER = 50 * TIME_US;

struct gloo_lane {
    struct lane *lane;
    int epoll; /* of its socket and its bell; -1: not open */
    struct spare_core core;
    const char *trouble;
    atomic_bool is_cut;
};

bool gloo_lane_has_room(void) {
    struct rlimit space;
    return getrlimit(RLIMIT_AS, &space) || space.rlim_cur == RLIM_INFINITY;
}

int gloo_lane_listen(char name[GLOO_LANE_NAME], char *text, size_t size) {
    unsigned long long number = 0;
    int listener = -1;
    if (getrandom(&number, sizeof number, 0) == sizeof number) {
        snprintf(name, GLOO_LANE_NAME, "capstan-gloo-%016llx", number);
        listener = lane_listen(name);
    }
    if (listener < 0)
        snprintf(text, size, "%s", strerror(errno));
    return listener;
}

/* LANE is taken, and may be NULL. */
static struct gloo_lane *hold(struct lane *lane) {
    struct gloo_lane *line = lane ? malloc(sizeof *line) : NULL;
    if (!line) {
        lane_close(&lane);
        return NULL;
    }
    *line = (struct gloo_lane){.lane = lane, .epoll = -1};
    return line;
}

struct gloo_lane *gloo_lane_call(const char *name, char *text, size_t size) {
    snprintf(text, size, "no memory");
    struct gloo_lane *line = hold(lane_call(name, GLOO_LANE_AHEAD, text, size));
    if (line)
        *text = 0;
    return line;
}

struct gloo_lane *gloo_lane_answer(int listener, char *text, size_t size) {
    int socket = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (socket < 0) {
        snprintf(text, size, "it has not called");
        return NULL;
    }
    struct gloo_lane *line = hold(lane_meet(socket, GLOO_LANE_AHEAD));
    if (!line)
        snprintf(text, size, "it is another user's, or there is no memory");
    else if (!gloo_lane_open(line, text, size))
        gloo_lane_close(&line);
    return line;
}

/* A bell is heard without being read: the other side could take it back. */
static bool listen_to_both(struct gloo_lane *line) {
    int bell = lane_bell(line->lane), socket = lane_socket(line->lane);
    struct epoll_event ring = {.events = EPOLLIN | EPOLLET, .data.fd = bell};
    struct epoll_event word = {.events = EPOLLIN, .data.fd = socket};
    line->epoll = epoll_create1(EPOLL_CLOEXEC);
    return line->epoll >= 0 &&
           !epoll_ctl(line->epoll, EPOLL_CTL_ADD, bell, &ring) &&
           !epoll_ctl(line->epoll, EPOLL_CTL_ADD, socket, &word);
}

bool gloo_lane_open(struct gloo_lane *line, char *text, size_t size) {
    enum lane_state state = lane_step(line->lane, time_now());
    if (state == LANE_OPEN && listen_to_both(line)) {
        lane_keep_ahead(line->lane, GLOO_LANE_AHEAD);
        return true;
    }
    snprintf(text, size, "%s",
             state == LANE_OPEN     ? strerror(errno)
             : state == LANE_BROKEN ? lane_trouble(line->lane)
                                    : "somebody else has answered");
    return false;
}

/* The epoll goes before the bell, which the other side has too. */
void gloo_lane_close(struct gloo_lane **where) {
    struct gloo_lane *line = *where;
    *where = NULL;
    if (!line)
        return;
    if (line->epoll >= 0)
        close(line->epoll);
    lane_close(&line->lane);
    free(line);
}

const char *gloo_lane_trouble(const struct gloo_lane *line) {
    return line->trouble;
}

static bool is_whole(struct gloo_lane *line) {
    if (atomic_load_explicit(&line->is_cut, memory_order_relaxed))
        line->trouble = "its shared memory is cut off";
    else if (lane_gone(line->lane))
        line->trouble = "it has ended, or has closed its shared memory";
    else
        line->trouble = lane_trouble(line->lane);
    return !line->trouble;
}

/* Until the other side rings, ends or is cut off. Who READS takes what came
 * before an end first. */
static void await_bell(struct gloo_lane *line, bool reads) {
    struct epoll_event events[2];
    int count = epoll_wait(line->epoll, events, 2, -1);
    for (int i = 0; i < count; i++)
        if (events[i].data.fd == lane_socket(line->lane) &&
            !(reads && lane_waiting(line->lane)))
            lane_step(line->lane, time_now());
}

/* Waits awake, where that keeps nobody from a core. */
static void linger(struct gloo_lane *line) {
    int64_t now = time_now();
    if (!spare_core(&line->core, SIDES, now))
        return;
    for (int64_t end = now + LINGER; now < end; now = time_now())
        for (int look = 0; look < LOOKS; look++) {
            if (lane_waiting(line->lane))
                return;
            __builtin_ia32_pause();
        }
}

/* The next message; false: the line has failed. */
static bool await_message(struct gloo_lane *line, struct lane_view *view) {
    if (!lane_waiting(line->lane))
        linger(line);
    while (is_whole(line)) {
        if (lane_view(line->lane, view))
            return true;
        if (!is_whole(line))
            break;
        lane_sleep(line->lane);
        await_bell(line, true);
        lane_wake(line->lane);
    }
    return false;
}

const void *gloo_lane_view(struct gloo_lane *line, size_t size) {
    struct lane_view view;
    if (!await_message(line, &view))
        return NULL;
    if (view.payload_bytes == size)
        return view.payload;
    lane_break(line->lane, "it sends what is not due");
    is_whole(line);
    return NULL;
}

void gloo_lane_done(struct gloo_lane *line) {
    lane_done(line->lane);
}

/* BUFFER is NULL where the piece is copied. */
static bool send_piece(struct gloo_lane *line, const void *bytes, size_t size,
                       struct buffer *buffer) {
    void *room = NULL;
    while (is_whole(line) &&
           !(room = lane_room(line->lane, buffer ? 0 : size))) {
        await_bell(line, false);
        lane_settle(line->lane);
    }
    if (!room)
        return false;
    if (!buffer)
        memcpy(room, bytes, size);
    struct lane_payload payload = {buffer ? bytes : room, size, buffer};
    lane_send(line->lane, "", 0, &payload);
    lane_ring(line->lane);
    return true;
}

bool gloo_lane_lend(struct gloo_lane *line, const void *bytes, size_t size,
                    struct buffer *buffer) {
    if (buffer && !lane_shows(line->lane, buffer))
        buffer = NULL;
    for (size_t at = 0; at < size; at += GLOO_LANE_PIECE) {
        size_t left = size - at;
        size_t most = left < GLOO_LANE_PIECE ? left : GLOO_LANE_PIECE;
        if (!send_piece(line, (const char *)bytes + at, most, buffer))
            return false;
    }
    return true;
}

bool gloo_lane_send(struct gloo_lane *line, const void *bytes, size_t size) {
    return gloo_lane_lend(line, bytes, size, NULL);
}

void gloo_lane_cut(struct gloo_lane *line) {
    atomic_store(&line->is_cut, true);
    shutdown(lane_socket(line->lane), SHUT_RDWR);
}
