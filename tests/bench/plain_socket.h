/* SPDX-License-Identifier: Apache-2.0 */
/* A baseline for the client: the same bytes by send(2) and recv(2) over one TCP
 * connection. */
#ifndef CAPSTAN_PLAIN_SOCKET_H
#define CAPSTAN_PLAIN_SOCKET_H

#include "commands/measure/bench_iteration.h"
#include "core/base/status.h"

#include <stdint.h>

/* Listens on a free port of this host's own address; returns the descriptor, -1
 * on failure. */
int plain_socket_listen(uint16_t *port);

/* Serves one connection of LISTENER until its peer closes it. */
void plain_socket_serve(int listener);

struct plain_socket;

/* Connects to PORT of this host. */
enum status plain_socket_open(struct plain_socket **out, uint16_t port,
                              struct failure *why) MUST_CHECK;

/* Closes it and clears *SOCKET (may be NULL). */
void plain_socket_close(struct plain_socket **socket);

/* Runs ITERATION. With depth 1 each vector waits for the one before: a
 * push for a byte in answer, a pull for the byte that requests it. With more,
 * pushes and pulls go in one direction without answers, and a push-pull in both
 * at once. */
enum status plain_socket_run(struct plain_socket *socket,
                             struct bench_iteration *iteration,
                             struct failure *why) MUST_CHECK;

#endif
