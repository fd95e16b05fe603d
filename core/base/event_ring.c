/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base/event_ring.h"

#include <stdio.h>

void event_ring_add(struct event_ring *ring, struct event event) {
    uint64_t number = atomic_fetch_add(&ring->count, 1) + 1;
    struct event_slot *slot = &ring->slots[number % EVENT_RING_SIZE];
    atomic_store(&slot->sequence, 0);
    atomic_store(&slot->time, (uint64_t)event.time);
    atomic_store(&slot->kind, (uint64_t)event.kind);
    atomic_store(&slot->number, event.number);
    atomic_store(&slot->peer, event.peer);
    atomic_store(&slot->role, event.role);
    atomic_store(&slot->sequence, number);
}

unsigned event_ring_read(struct event_ring *ring, struct event *events) {
    uint64_t newest = atomic_load(&ring->count);
    unsigned count = 0;
    for (uint64_t i = 0; i < EVENT_RING_SIZE && i < newest; i++) {
        uint64_t number = newest - i;
        struct event_slot *slot = &ring->slots[number % EVENT_RING_SIZE];
        if (atomic_load(&slot->sequence) != number)
            continue;
        events[count] =
            (struct event){.time = (int64_t)atomic_load(&slot->time),
                           .kind = (enum event_kind)atomic_load(&slot->kind),
                           .number = atomic_load(&slot->number),
                           .peer = (uint32_t)atomic_load(&slot->peer),
                           .role = atomic_load(&slot->role)};
        count += atomic_load(&slot->sequence) == number;
    }
    return count;
}

static void peer_text(const struct event *event, char *text, size_t size) {
    if (!event->role)
        snprintf(text, size, "%u", event->peer);
    else if (event->peer == EVENT_NO_INDEX)
        snprintf(text, size, "%s", event->role);
    else
        snprintf(text, size, "%s %u", event->role, event->peer);
}

void event_text(const struct event *event, char *text, size_t size) {
    static const char *const texts[] = {
#define EVENT_ENTRY(name, words) [EVENT_##name] = words,
        EVENTS(EVENT_ENTRY)
#undef EVENT_ENTRY
    };
    char peer[EVENT_TEXT];
    size_t used = 0;
    peer_text(event, peer, sizeof peer);
    text[0] = 0;
    for (const char *from = texts[event->kind]; *from && used < size; from++)
        if (*from != '%')
            used += (size_t)snprintf(text + used, size - used, "%c", *from);
        else if (*++from == 'n')
            used += (size_t)snprintf(text + used, size - used, "%llu",
                                     (unsigned long long)event->number);
        else
            used += (size_t)snprintf(text + used, size - used, "%s", peer);
}
