/* SPDX-License-Identifier: Apache-2.0 */
#include "simulator/agenda.h"

#include <stdlib.h>

struct event {
    int64_t time;
    uint64_t order, number;
    void (*happen)(void *context, uint64_t number);
    void *context;
};

/* EVENTS is a heap, the next one first. */
struct agenda {
    int64_t now;
    uint64_t added;
    struct event *events;
    size_t count, room;
    bool failed;
};

struct agenda *agenda_open(void) {
    return calloc(1, sizeof(struct agenda));
}

void agenda_close(struct agenda **where) {
    struct agenda *agenda = *where;
    *where = NULL;
    if (!agenda)
        return;
    free(agenda->events);
    free(agenda);
}

int64_t agenda_now(const struct agenda *agenda) {
    return agenda->now;
}

bool agenda_failed(const struct agenda *agenda) {
    return agenda->failed;
}

static bool sooner(const struct event *a, const struct event *b) {
    return a->time != b->time ? a->time < b->time : a->order < b->order;
}

static bool make_room(struct agenda *agenda) {
    if (agenda->count < agenda->room)
        return true;
    size_t room = agenda->room ? 2 * agenda->room : 1024;
    struct event *events =
        realloc(agenda->events, room * sizeof *agenda->events);
    if (!events)
        return false;
    agenda->events = events;
    agenda->room = room;
    return true;
}

void agenda_add(struct agenda *agenda, int64_t delay,
                void (*happen)(void *context, uint64_t number), void *context,
                uint64_t number) {
    if (!make_room(agenda)) {
        agenda->failed = true;
        return;
    }
    struct event event = {agenda->now + delay, agenda->added++, number, happen,
                          context};
    size_t at = agenda->count++;
    while (at && sooner(&event, &agenda->events[(at - 1) / 2])) {
        agenda->events[at] = agenda->events[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    agenda->events[at] = event;
}

/* Takes the first event; the last one moves down to where it belongs. */
static struct event take(struct agenda *agenda) {
    struct event first = agenda->events[0];
    struct event moving = agenda->events[--agenda->count];
    size_t at = 0;
    for (;;) {
        size_t child = 2 * at + 1;
        if (child + 1 < agenda->count &&
            sooner(&agenda->events[child + 1], &agenda->events[child]))
            child++;
        if (child >= agenda->count || !sooner(&agenda->events[child], &moving))
            break;
        agenda->events[at] = agenda->events[child];
        at = child;
    }
    agenda->events[at] = moving;
    return first;
}

bool agenda_step(struct agenda *agenda) {
    if (agenda->failed || !agenda->count)
        return false;
    struct event event = take(agenda);
    agenda->now = event.time;
    event.happen(event.context, event.number);
    return true;
}
