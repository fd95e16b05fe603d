/* SPDX-License-Identifier: Apache-2.0 */
#include "simulator/timeline.h"

#include <stdlib.h>

struct event {
    int64_t time;
    uint64_t order, number;
    void (*callback)(void *context, uint64_t number);
    void *context;
};

/* EVENTS is a heap with the next event first. */
struct timeline {
    int64_t now;
    uint64_t added;
    struct event *events;
    size_t count, capacity;
    bool failed;
};

struct timeline *timeline_open(void) {
    return calloc(1, sizeof(struct timeline));
}

void timeline_close(struct timeline **where) {
    struct timeline *timeline = *where;
    *where = NULL;
    if (!timeline)
        return;
    free(timeline->events);
    free(timeline);
}

int64_t timeline_now(const struct timeline *timeline) {
    return timeline->now;
}

static bool is_earlier(const struct event *a, const struct event *b) {
    return a->time != b->time ? a->time < b->time : a->order < b->order;
}

static bool timeline_reserve(struct timeline *timeline) {
    if (timeline->count < timeline->capacity)
        return true;
    size_t capacity = timeline->capacity ? 2 * timeline->capacity : 1024;
    struct event *events =
        realloc(timeline->events, capacity * sizeof *timeline->events);
    if (!events)
        return false;
    timeline->events = events;
    timeline->capacity = capacity;
    return true;
}

void timeline_add(struct timeline *timeline, int64_t delay,
                  void (*callback)(void *context, uint64_t number),
                  void *context, uint64_t number) {
    if (!timeline_reserve(timeline)) {
        timeline->failed = true;
        return;
    }
    struct event event = {timeline->now + delay, timeline->added++, number,
                          callback, context};
    size_t at = timeline->count++;
    while (at && is_earlier(&event, &timeline->events[(at - 1) / 2])) {
        timeline->events[at] = timeline->events[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    timeline->events[at] = event;
}

/* Removes the first event; the last one is moved down into its place. */
static struct event pop(struct timeline *timeline) {
    struct event first = timeline->events[0];
    struct event moving = timeline->events[--timeline->count];
    size_t at = 0;
    for (;;) {
        size_t child = 2 * at + 1;
        if (child + 1 < timeline->count &&
            is_earlier(&timeline->events[child + 1], &timeline->events[child]))
            child++;
        if (child >= timeline->count ||
            !is_earlier(&timeline->events[child], &moving))
            break;
        timeline->events[at] = timeline->events[child];
        at = child;
    }
    timeline->events[at] = moving;
    return first;
}

bool timeline_step(struct timeline *timeline) {
    if (timeline->failed || !timeline->count)
        return false;
    struct event event = pop(timeline);
    timeline->now = event.time;
    event.callback(event.context, event.number);
    return true;
}
