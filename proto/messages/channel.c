/* SPDX-License-Identifier: Apache-2.0 */
/* Both sides number messages consecutively, and the receiver accepts only the
 * next number. A duplicate, or a message that overtook an earlier one, is
 * dropped; the latter is sent again. An acknowledgement covers all messages up
 * to its number. */
#include "proto/messages/channel.h"

#include <stdlib.h>

enum { NEVER_SENT = -1 };

static void drop_first(struct channel *channel) {
    struct channel_entry *entry = channel->first;
    channel->first = entry->next;
    if (!channel->first)
        channel->last = NULL;
    channel->bytes -= entry->size;
    free(entry);
}

void channel_close(struct channel *channel) {
    while (channel->first)
        drop_first(channel);
}

bool channel_put(struct channel *channel, Capstan__Control *control) {
    control->seq = channel->last_seq + 1;
    size_t size = capstan__control__get_packed_size(control);
    struct channel_entry *entry = malloc(sizeof *entry + size);
    if (!entry)
        return false;
    capstan__control__pack(control, entry->bytes);
    *entry = (struct channel_entry){
        .seq = control->seq, .sent = NEVER_SENT, .size = size};
    if (channel->last)
        channel->last->next = entry;
    else
        channel->first = entry;
    channel->last = entry;
    channel->last_seq = control->seq;
    channel->bytes += size;
    return true;
}

const struct channel_entry *channel_next(struct channel *channel, int64_t now,
                                         int64_t resend) {
    for (struct channel_entry *entry = channel->first; entry;
         entry = entry->next)
        if (entry->sent == NEVER_SENT || now - entry->sent >= resend) {
            entry->sent = now;
            return entry;
        }
    return NULL;
}

void channel_unsent(const struct channel_entry *entry) {
    ((struct channel_entry *)entry)->sent = NEVER_SENT;
}

void channel_resend_all(struct channel *channel) {
    for (struct channel_entry *entry = channel->first; entry;
         entry = entry->next)
        channel_unsent(entry);
}

void channel_acknowledge(struct channel *channel, uint64_t seq) {
    while (channel->first && channel->first->seq <= seq)
        drop_first(channel);
}

bool channel_accept(struct channel *channel, uint64_t seq) {
    if (seq != channel->received + 1)
        return false;
    channel->received = seq;
    return true;
}

uint64_t channel_count(const struct channel *channel) {
    return channel->first ? channel->last_seq - channel->first->seq + 1 : 0;
}

bool channel_empty(const struct channel *channel) {
    return !channel->first;
}
