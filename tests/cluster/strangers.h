/* SPDX-License-Identifier: Apache-2.0 */
/* Peers that a port on a network meets, each on this machine and over when
 * the call returns, but for those who stay. */
#ifndef CAPSTAN_STRANGERS_H
#define CAPSTAN_STRANGERS_H

#include <stddef.h>
#include <stdint.h>

/* A plain connection, to be closed by the caller; -1: nobody listens. */
int strangers_connect(uint16_t port);

/* Sends BYTES and leaves the connection open for the caller to close. */
int strangers_say(uint16_t port, const void *bytes, size_t size);

/* Noise, and a request of a web browser. */
int strangers_garbage(uint16_t port);
int strangers_browse(uint16_t port);

/* Shakes hands as ZeroMQ's peers do, then begins a frame of SIZE bytes and
 * sends one MiB of it. */
int strangers_begin_frame(uint16_t port, uint64_t size);

/* Shakes hands, sends COUNT messages of SIZE BYTES (at most 255), reads
 * nothing, leaves the connection open for the caller to close. */
int strangers_chat(uint16_t port, const void *bytes, size_t size,
                   unsigned count);

/* A port that listens, and the next who connects there, shaken hands with as
 * ZeroMQ's ROUTER does. Both are for the caller to close. */
int strangers_listen(uint16_t *port);
int strangers_welcome(int listener);

/* Closes CONNECTION by a reset, as the system does for who is killed with
 * something unread. */
void strangers_reset(int connection);

/* Opens COUNT connections and closes each as the other side first speaks. */
void strangers_knock(uint16_t port, unsigned count);

/* Sends, as ZeroMQ's peers do, TIMES a message of PARTS parts: HEADER, and
 * PAYLOAD bytes in each further one. Returns when all has left. */
struct strangers_message {
    const void *header;
    size_t bytes, payload;
    unsigned parts, times;
};
void strangers_send(uint16_t port, const struct strangers_message *message);

/* The same of one whose first part is answered, TIMES times, each after the
 * answer before. Peers are read in turns: then as much has been read of each.
 */
void strangers_ask(uint16_t port, const struct strangers_message *message);

#endif
