/* SPDX-License-Identifier: Apache-2.0 */
#include "simulator/packet.h"

#include <stdlib.h>
#include <string.h>

struct packet *packet_new(const struct packet *head, const uint32_t *blocks,
                          uint32_t count) {
    size_t bytes = count * sizeof *blocks;
    struct packet *packet = malloc(sizeof *packet + bytes);
    if (!packet)
        return NULL;
    memcpy(packet, head, sizeof *packet);
    packet->next = NULL;
    packet->count = count;
    if (count)
        memcpy(packet->blocks, blocks, bytes);
    return packet;
}

void packet_queue_push(struct packet_queue *packet_queue,
                       struct packet *packet) {
    packet->next = NULL;
    if (packet_queue->first)
        packet_queue->last->next = packet;
    else
        packet_queue->first = packet;
    packet_queue->last = packet;
}

struct packet *packet_queue_pop(struct packet_queue *packet_queue) {
    struct packet *packet = packet_queue->first;
    if (packet)
        packet_queue->first = packet->next;
    return packet;
}

void packet_queue_clear(struct packet_queue *packet_queue) {
    struct packet *packet;
    while ((packet = packet_queue_pop(packet_queue)))
        free(packet);
}
