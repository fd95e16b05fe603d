/* SPDX-License-Identifier: Apache-2.0 */
/* One epoll stands for all lanes: their sockets, and each one's bell once it is
 * open. Bells ring for who sleeps only, so a wait is framed by two calls:
 * lanes_sleep before it asks for bells and moves on what can move, lanes_tend
 * after it hears what came. Without a wait in between there is nothing to tend,
 * and messages are found by looking at the rings, which costs no system call.
 */
#include "proto/net/shm/lanes.h"

#include "proto/base/time.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { LISTENER = LANES_MAX, EVENTS = 64, UNREAD_LOOKS = 6 };
static const int64_t LOOK_EVERY = TIME_S / 2;

struct lanes {
    uint64_t max_frame;
    int epoll, listener;
    struct lane *lanes[LANES_MAX];
    uint32_t numbers[LANES_MAX];
    bool belled[LANES_MAX]; /* its bell is in the epoll */
    uint32_t used, next;    /* slots below USED may hold a lane */
    uint32_t serial;
    bool slept;
    int64_t looked;
    const char *trouble;
};

void lanes_name(char name[LANES_NAME], uint64_t word) {
    snprintf(name, LANES_NAME, "capstan-%016llx", (unsigned long long)word);
}

struct lanes *lanes_open(uint64_t max_frame) {
    struct lanes *lanes = calloc(1, sizeof *lanes);
    if (!lanes)
        return NULL;
    lanes->max_frame = max_frame;
    lanes->listener = -1;
    lanes->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (lanes->epoll < 0)
        lanes_close(&lanes);
    return lanes;
}

void lanes_close(struct lanes **where) {
    struct lanes *lanes = *where;
    *where = NULL;
    if (!lanes)
        return;
    for (uint32_t i = 0; i < lanes->used; i++)
        lane_close(&lanes->lanes[i]);
    if (lanes->listener >= 0)
        close(lanes->listener);
    if (lanes->epoll >= 0)
        close(lanes->epoll);
    free(lanes);
}

static bool watch(struct lanes *lanes, int descriptor, uint32_t events,
                  uint32_t slot) {
    struct epoll_event event = {.events = events, .data.u32 = slot};
    return !epoll_ctl(lanes->epoll, EPOLL_CTL_ADD, descriptor, &event);
}

bool lanes_listen(struct lanes *lanes, const char *name) {
    lanes->listener = lane_listen(name);
    return lanes->listener >= 0 &&
           watch(lanes, lanes->listener, EPOLLIN, LISTENER);
}

/* LANE (taken, may be NULL) into a free slot; 0: there is none. A number has a
 * serial beside its slot, so that an old one names no later lane. */
static uint32_t add(struct lanes *lanes, struct lane *lane) {
    uint32_t slot = 0;
    while (slot < LANES_MAX && lanes->lanes[slot])
        slot++;
    if (!lane || slot == LANES_MAX ||
        !watch(lanes, lane_socket(lane), EPOLLIN, slot)) {
        lane_close(&lane);
        return 0;
    }
    lanes->lanes[slot] = lane;
    lanes->belled[slot] = false;
    lanes->numbers[slot] = (lanes->serial++ * LANES_MAX + slot) | LANES_FIRST;
    if (slot >= lanes->used)
        lanes->used = slot + 1;
    return lanes->numbers[slot];
}

uint32_t lanes_call(struct lanes *lanes, const char *name, char *text,
                    size_t size) {
    struct lane *lane = lane_call(name, lanes->max_frame, text, size);
    if (!lane)
        return 0;
    uint32_t number = add(lanes, lane);
    if (!number)
        snprintf(text, size, "no descriptors");
    return number;
}

int lanes_descriptor(const struct lanes *lanes) {
    return lanes->epoll;
}

void lanes_sleep(struct lanes *lanes) {
    lanes->slept = true;
    for (uint32_t i = 0; i < lanes->used; i++) {
        if (!lanes->lanes[i])
            continue;
        lane_settle(lanes->lanes[i]);
        lane_sleep(lanes->lanes[i]);
    }
}

static void accept_all(struct lanes *lanes) {
    int socket;
    while ((socket = accept4(lanes->listener, NULL, NULL,
                             SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0)
        add(lanes, lane_meet(socket, lanes->max_frame));
}

static void step(struct lanes *lanes, uint32_t slot, int64_t now) {
    struct lane *lane = lanes->lanes[slot];
    if (lane && lane_step(lane, now) == LANE_OPEN && !lanes->belled[slot])
        lanes->belled[slot] =
            watch(lanes, lane_bell(lane), EPOLLIN | EPOLLET, slot);
}

static void take_events(struct lanes *lanes, int64_t now) {
    struct epoll_event events[EVENTS];
    int count = epoll_wait(lanes->epoll, events, EVENTS, 0);
    for (int i = 0; i < count; i++) {
        if (events[i].data.u32 == LISTENER)
            accept_all(lanes);
        else
            step(lanes, events[i].data.u32, now);
    }
}

/* Meetings end by a deadline; who reads nothing is taken for stopped. A server
 * looks for that alone: it would hold its blocks' buffers for a stopped client
 * without end, where a client waits for its server by a deadline of its own. */
static void look(struct lanes *lanes, int64_t now) {
    lanes->looked = now;
    for (uint32_t i = 0; i < lanes->used; i++) {
        struct lane *lane = lanes->lanes[i];
        if (!lane)
            continue;
        step(lanes, i, now);
        if (lanes->listener >= 0 && lane_unread(lane) >= UNREAD_LOOKS)
            lane_break(lane, "has read nothing for 3 s");
    }
}

/* The other side has the bell too: an epoll would go on hearing it, as it knows
 * the open file and not the descriptor that is closed here. */
static void end(struct lanes *lanes, uint32_t slot) {
    if (lanes->belled[slot])
        epoll_ctl(lanes->epoll, EPOLL_CTL_DEL, lane_bell(lanes->lanes[slot]),
                  NULL);
    lane_close(&lanes->lanes[slot]);
}

static void close_broken(struct lanes *lanes) {
    for (uint32_t i = 0; i < lanes->used; i++) {
        struct lane *lane = lanes->lanes[i];
        if (!lane || !lane_trouble(lane))
            continue;
        if (!lane_gone(lane))
            lanes->trouble = lane_trouble(lane);
        end(lanes, i);
    }
    while (lanes->used && !lanes->lanes[lanes->used - 1])
        lanes->used--;
}

void lanes_tend(struct lanes *lanes, int64_t now) {
    if (!lanes->slept)
        return;
    lanes->slept = false;
    for (uint32_t i = 0; i < lanes->used; i++)
        if (lanes->lanes[i])
            lane_wake(lanes->lanes[i]);
    take_events(lanes, now);
    if (now - lanes->looked >= LOOK_EVERY)
        look(lanes, now);
    close_broken(lanes);
}

struct lane *lanes_find(struct lanes *lanes, uint32_t number) {
    uint32_t slot = number % LANES_MAX;
    return lanes->lanes[slot] && lanes->numbers[slot] == number
               ? lanes->lanes[slot]
               : NULL;
}

unsigned lanes_count(const struct lanes *lanes) {
    unsigned count = 0;
    for (uint32_t i = 0; i < lanes->used; i++)
        count += lanes->lanes[i] != NULL;
    return count;
}

bool lanes_waiting(struct lanes *lanes) {
    for (uint32_t i = 0; i < lanes->used; i++)
        if (lanes->lanes[i] && lane_waiting(lanes->lanes[i]))
            return true;
    return false;
}

bool lanes_view(struct lanes *lanes, struct lanes_message *message) {
    for (uint32_t i = 0; i < lanes->used; i++) {
        uint32_t slot = lanes->next++ % lanes->used;
        struct lane *lane = lanes->lanes[slot];
        if (!lane || !lane_view(lane, &message->view))
            continue;
        message->lane = lane;
        message->number = lanes->numbers[slot];
        return true;
    }
    return false;
}

const char *lanes_trouble(struct lanes *lanes) {
    const char *trouble = lanes->trouble;
    lanes->trouble = NULL;
    return trouble;
}
