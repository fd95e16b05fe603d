/* SPDX-License-Identifier: Apache-2.0 */
/* Control messages in order and exactly once between two incarnations, across
 * lost connections: each message is numbered, kept until acknowledged and sent
 * again. Pure: bytes and times in, bytes out. */
#ifndef CAPSTAN_CHANNEL_H
#define CAPSTAN_CHANNEL_H

#include "proto/messages/control.pb-c.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct channel_entry {
    struct channel_entry *next;
    uint64_t seq;
    int64_t sent; /* time of the last send, or -1 */
    size_t size;
    unsigned char bytes[];
};

struct channel {
    uint64_t last_seq; /* last number assigned */
    uint64_t received; /* highest number received in order: acknowledged */
    struct channel_entry *first, *last; /* not yet acknowledged */
    size_t bytes;                       /* of those messages */
};

/* Frees the unacknowledged messages. */
void channel_close(struct channel *channel);

/* Assigns CONTROL the next number, packs it and keeps it. False: no memory. */
bool channel_put(struct channel *channel, Capstan__Control *control);

/* The next message to send at NOW, marked as sent: one never sent, or sent at
 * least RESEND ns ago. NULL: none. */
const struct channel_entry *channel_next(struct channel *channel, int64_t now,
                                         int64_t resend);

/* ENTRY could not be sent: it is due again at once. */
void channel_unsent(const struct channel_entry *entry);

/* Makes all kept messages due: the connection that carried them is lost. */
void channel_resend_all(struct channel *channel);

/* The other side has received all messages up to SEQ. */
void channel_acknowledge(struct channel *channel, uint64_t seq);

/* Is SEQ the next in order? If so, records it as received; else the caller
 * drops the message. */
bool channel_accept(struct channel *channel, uint64_t seq);

/* How many messages are not acknowledged. */
uint64_t channel_count(const struct channel *channel);

/* Are all messages acknowledged? */
bool channel_empty(const struct channel *channel);

#endif
