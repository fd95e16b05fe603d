/* SPDX-License-Identifier: Apache-2.0 */
/* Control messages in order and exactly once between two incarnations, across
 * lost connections: each is numbered, kept until acknowledged and sent again.
 * Pure: bytes and times in, bytes out. */
#ifndef CAPSTAN_CHANNEL_H
#define CAPSTAN_CHANNEL_H

#include "proto/net/messages/control.pb-c.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct channel_entry {
    struct channel_entry *next;
    uint64_t seq;
    int64_t sent; /* time of the last sending, or -1 */
    size_t size;
    unsigned char bytes[];
};

struct channel {
    uint64_t last_seq; /* given to a message */
    uint64_t received; /* highest taken in order: what to acknowledge */
    struct channel_entry *first, *last; /* not yet acknowledged */
};

/* Drops what was not acknowledged. */
void channel_close(struct channel *channel);

/* Numbers and packs CONTROL and keeps it. False: no memory. */
bool channel_put(struct channel *channel, Capstan__Control *control);

/* The next message to send at NOW: never sent, or RESEND ago or more; marked
 * as sent now. NULL: none. */
const struct channel_entry *channel_next(struct channel *channel, int64_t now,
                                         int64_t resend);

/* It could not leave: it stays due. */
void channel_unsent(const struct channel_entry *entry);

/* All that is kept is due: what it was sent by may have been lost. */
void channel_resend_all(struct channel *channel);

/* The other side has all up to SEQ. */
void channel_acknowledge(struct channel *channel, uint64_t seq);

/* Is SEQ the next in order? Then it is taken; all others are dropped. */
bool channel_accept(struct channel *channel, uint64_t seq);

/* Is nothing waiting to be acknowledged? */
bool channel_empty(const struct channel *channel);

#endif
