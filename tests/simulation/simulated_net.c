/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/simulation/simulated_net.h"

#include <stdlib.h>
#include <string.h>

enum {
    DATA_LINES = SIMULATED_RANKS * SIMULATED_PS,
    LINES = DATA_LINES + SIMULATED_PROCESSES,
    LATE = 300, /* of 1000 messages on a broken line */
};

static const int64_t LONGEST_KEPT = 8 * TIME_S;

struct line {
    uint64_t generation;
    int64_t down_until;
    int64_t last[2]; /* the last message's arrival, down and up */
};

struct stored {
    struct simulated_message message; /* first: one address for both */
    struct stored *next;
};

struct simulated_net {
    struct simulated_event *heap;
    size_t count, room;
    uint64_t order;
    struct line lines[LINES];
    struct stored *free;
    struct stored *lent;
};

struct simulated_net *simulated_net_open(void) {
    return calloc(1, sizeof(struct simulated_net));
}

void simulated_net_close(struct simulated_net **where) {
    struct simulated_net *net = *where;
    *where = NULL;
    if (!net)
        return;
    for (size_t i = 0; i < net->count; i++)
        free(net->heap[i].message);
    while (net->free) {
        struct stored *stored = net->free;
        net->free = stored->next;
        free(stored);
    }
    free(net->lent);
    free(net->heap);
    free(net);
}

uint32_t simulated_net_data(uint32_t rank, uint32_t ps) {
    return rank * SIMULATED_PS + ps;
}

uint32_t simulated_net_control(uint32_t process) {
    return DATA_LINES + process;
}

static bool before(const struct simulated_event *a,
                   const struct simulated_event *b) {
    return a->time != b->time ? a->time < b->time : a->order < b->order;
}

static void put(struct simulated_net *net, struct simulated_event event) {
    if (net->count == net->room) {
        net->room = net->room ? 2 * net->room : 256;
        net->heap = realloc(net->heap, net->room * sizeof *net->heap);
    }
    size_t at = net->count++;
    while (at && before(&event, &net->heap[(at - 1) / 2])) {
        net->heap[at] = net->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    net->heap[at] = event;
}

static struct simulated_event take(struct simulated_net *net) {
    struct simulated_event first = net->heap[0];
    struct simulated_event last = net->heap[--net->count];
    size_t at = 0;
    for (;;) {
        size_t child = 2 * at + 1;
        if (child + 1 < net->count &&
            before(&net->heap[child + 1], &net->heap[child]))
            child++;
        if (child >= net->count || !before(&net->heap[child], &last))
            break;
        net->heap[at] = net->heap[child];
        at = child;
    }
    net->heap[at] = last;
    return first;
}

static struct simulated_message *store(
    struct simulated_net *net, const struct simulated_message *message) {
    struct stored *stored = net->free;
    if (stored)
        net->free = stored->next;
    else
        stored = malloc(sizeof *stored);
    stored->message = *message;
    return &stored->message;
}

static void give_back(struct simulated_net *net,
                      struct simulated_message *message) {
    struct stored *stored = (struct stored *)message;
    if (!stored)
        return;
    stored->next = net->free;
    net->free = stored;
}

static void carry(struct simulated *s, struct simulated_event event,
                  const struct simulated_message *message) {
    struct simulated_net *net = s->net;
    struct line *line = &net->lines[event.peer.line];
    if (simulated_chance(s, s->scenario.drop))
        return;
    event.time = s->now + TIME_US + simulated_time(s, s->scenario.delay);
    if (simulated_chance(s, s->scenario.reorder))
        event.time += simulated_time(s, 4 * s->scenario.delay);
    else if (event.time <= line->last[event.up])
        event.time = line->last[event.up] + 1;
    if (event.time > line->last[event.up])
        line->last[event.up] = event.time;
    event.order = ++net->order;
    event.late = !s->healed && simulated_chance(s, LATE);
    event.message = store(net, message);
    put(net, event);
    if (!simulated_chance(s, s->scenario.duplicate))
        return;
    event.time += simulated_time(s, 50 * s->scenario.delay);
    event.order = ++net->order;
    event.message = store(net, message);
    put(net, event);
}

bool simulated_net_connected(const struct simulated *s, uint32_t line) {
    return s->net->lines[line].down_until <= s->now;
}

bool simulated_net_up(struct simulated *s, uint32_t line, uint32_t process,
                      uint32_t server,
                      const struct simulated_message *message) {
    if (!simulated_net_connected(s, line))
        return false;
    carry(
        s,
        (struct simulated_event){.process = server,
                                 .up = true,
                                 .peer = {line, s->net->lines[line].generation,
                                          s->processes[process].incarnation}},
        message);
    return true;
}

void simulated_net_down(struct simulated *s, const struct simulated_peer *peer,
                        uint32_t process,
                        const struct simulated_message *message) {
    const struct line *line = &s->net->lines[peer->line];
    if (!peer->client || line->generation != peer->generation ||
        line->down_until > s->now)
        return;
    carry(s,
          (struct simulated_event){
              .process = process, .client = peer->client, .peer = *peer},
          message);
}

void simulated_net_wake(struct simulated *s, uint32_t process, int64_t time) {
    struct simulated_process *who = &s->processes[process];
    if (who->wakes > s->now && who->wakes <= time)
        return;
    who->wakes = time > s->now ? time : s->now + 1;
    put(s->net, (struct simulated_event){.time = who->wakes,
                                         .order = ++s->net->order,
                                         .process = process,
                                         .client = who->incarnation});
}

void simulated_net_break(struct simulated *s, uint32_t line, int64_t until) {
    s->net->lines[line].generation++;
    s->net->lines[line].down_until = until;
}

static bool is_broken(const struct simulated *s,
                      const struct simulated_event *event) {
    return event->message &&
           s->net->lines[event->peer.line].generation != event->peer.generation;
}

static bool has_somebody(const struct simulated *s,
                         const struct simulated_event *event) {
    const struct simulated_process *who = &s->processes[event->process];
    if (event->client && event->client != who->incarnation)
        return false;
    return event->late || !is_broken(s, event);
}

/* Until when EVENT has to wait: what was sent before its line broke, for the
 * next connection; all, for whoever is stopped. */
static int64_t put_off(struct simulated *s, struct simulated_event *event) {
    int64_t until = s->processes[event->process].paused_until;
    if (!is_broken(s, event) || event->kept)
        return until;
    event->kept = true;
    int64_t connected = s->now + simulated_time(s, LONGEST_KEPT);
    return connected > until ? connected : until;
}

bool simulated_net_next(struct simulated *s, struct simulated_event *event) {
    struct simulated_net *net = s->net;
    give_back(net, (struct simulated_message *)net->lent);
    net->lent = NULL;
    while (net->count) {
        *event = take(net);
        s->now = event->time;
        bool wanted = has_somebody(s, event);
        int64_t until = wanted ? put_off(s, event) : 0;
        if (!wanted) {
            give_back(net, event->message);
        } else if (until > s->now) {
            event->time = until;
            put(net, *event);
        } else {
            net->lent = (struct stored *)event->message;
            return true;
        }
    }
    return false;
}
