/* SPDX-License-Identifier: Apache-2.0 */
/* The last events of a role, for a report of what it did before it stopped.
 * Any thread adds one and any thread reads them; nobody waits, and nothing is
 * allocated. */
#ifndef CAPSTAN_EVENT_RING_H
#define CAPSTAN_EVENT_RING_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

enum { EVENT_RING_SIZE = 64, EVENT_TEXT = 96 };
#define EVENT_NO_INDEX UINT32_MAX

/* X(name, its text): %n stands for the event's number, %p for its peer. */
#define EVENTS(X)                                                              \
    X(JOINED, "joined the chief")                                              \
    X(PLANNED, "got the plan")                                                 \
    X(DECLARED, "declared its model")                                          \
    X(READY, "had its weights")                                                \
    X(VIEW, "got view %n of %p trainers")                                      \
    X(PHASE, "began %p")                                                       \
    X(MEMBER_JOINED, "%p joined")                                              \
    X(MEMBER_GONE, "%p was gone")                                              \
    X(PUSHED, "began to push step %n to %p")                                   \
    X(ANSWERED, "got the first weights of step %n from %p")                    \
    X(STEPPED, "finished step %n")                                             \
    X(RECEIVED, "got the first push of step %n of rank %p")                    \
    X(CLOSED, "closed round %n")                                               \
    X(SNAPSHOT, "was told to take the snapshot of step %n")                    \
    X(EVALUATED, "was told to evaluate step %n")                               \
    X(WARNED, "warned of %p")                                                  \
    X(STOPPED, "was told to stop")

enum event_kind {
#define EVENT_KIND(name, text) EVENT_##name,
    EVENTS(EVENT_KIND)
#undef EVENT_KIND
        EVENT_KINDS
};

struct event {
    int64_t time;
    enum event_kind kind;
    uint64_t number;  /* a step, a round or a view */
    const char *role; /* of the peer, a literal; NULL: the index says all */
    uint32_t peer;    /* index, or EVENT_NO_INDEX: the literal says all */
};

/* Zeroed it is empty. Each slot has the event's number in the ring, 0 while it
 * is written, before the event. */
struct event_ring {
    _Atomic uint64_t count;
    struct event_slot {
        _Atomic uint64_t sequence, time, kind, number, peer;
        _Atomic(const char *) role;
    } slots[EVENT_RING_SIZE];
};

void event_ring_add(struct event_ring *ring, struct event event);

/* Copies the events to EVENTS[EVENT_RING_SIZE], the newest first; returns how
 * many. One that is overwritten meanwhile is left out. */
unsigned event_ring_read(struct event_ring *ring, struct event *events);

/* "pushed step 3 to ps 1", at most EVENT_TEXT bytes. */
void event_text(const struct event *event, char *text, size_t size);

#endif
