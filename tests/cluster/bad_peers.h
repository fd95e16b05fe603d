/* SPDX-License-Identifier: Apache-2.0 */
/* Peers that a port on a network meets, each on this machine and over when
 * the call returns, but for those who stay. */
#ifndef CAPSTAN_BAD_PEERS_H
#define CAPSTAN_BAD_PEERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A plain connection, to be closed by the caller; -1: nobody listens. */
int bad_peers_connect(uint16_t port);

/* Sends BYTES and leaves the connection open for the caller to close. */
int bad_peers_send_bytes(uint16_t port, const void *bytes, size_t size);

/* Noise, and a request of a web browser. */
int bad_peers_send_garbage(uint16_t port);
int bad_peers_send_http(uint16_t port);

/* Shakes hands as ZeroMQ's peers do, then begins a frame of SIZE bytes and
 * sends one MiB of it. */
int bad_peers_begin_frame(uint16_t port, uint64_t size);

/* Shakes hands, sends COUNT messages of SIZE BYTES (at most 255), reads
 * nothing, leaves the connection open for the caller to close. */
int bad_peers_send_unread(uint16_t port, const void *bytes, size_t size,
                          unsigned count);

/* A port that listens, and the next who connects there, shaken hands with as
 * ZeroMQ's ROUTER does. Both are for the caller to close. */
int bad_peers_listen(uint16_t *port);
int bad_peers_accept(int listener);

/* A program in the place of a process of the run. It listens at *PORT (0: at
 * one that it gets), where it says nothing, or greets who comes as a mail
 * server does and hangs up, or (FULL) takes nobody any more: packets to it are
 * dropped.
 */
enum bad_peers_manner { BAD_PEERS_SILENT, BAD_PEERS_GREETS, BAD_PEERS_FULL };
struct bad_peers_program;
struct bad_peers_program *bad_peers_start(enum bad_peers_manner manner,
                                          uint16_t *port);

/* Ends *PROGRAM (may be NULL) and clears it. */
void bad_peers_stop(struct bad_peers_program **program);

/* Closes CONNECTION by a reset, as the system does for who is killed with
 * something unread. */
void bad_peers_reset(int connection);

/* Shakes hands, sends COUNT messages of a byte and a PING, and resets the
 * connection: libzmq aborts a process whose queue is full then. False: the
 * other side has closed before. */
bool bad_peers_ping_and_reset(uint16_t port, unsigned count);

/* Shakes hands and sends a message of PARTS parts of SIZE bytes, which never
 * ends, until the other side closes the connection. */
void bad_peers_send_parts(uint16_t port, unsigned parts, size_t size);

/* Opens COUNT connections and closes each as the other side first speaks. */
void bad_peers_open_and_close(uint16_t port, unsigned count);

/* Sends, as ZeroMQ's peers do, TIMES a message of PARTS parts: HEADER, and
 * PAYLOAD bytes in each further one. Returns when all has left. */
struct bad_peers_message {
    const void *header;
    size_t bytes, payload;
    unsigned parts, times;
};
void bad_peers_send_messages(uint16_t port,
                             const struct bad_peers_message *message);

#endif
