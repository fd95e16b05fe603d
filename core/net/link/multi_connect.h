/* SPDX-License-Identifier: Apache-2.0 */
/* A client's links to a server that listens on one of several consecutive
 * ports: it uses all of them until the server has answered on one. Belongs to
 * one thread. */
#ifndef CAPSTAN_MULTI_CONNECT_H
#define CAPSTAN_MULTI_CONNECT_H

#include "core/net/link/link.h"

enum { MULTI_CONNECT_MAX = 16 };

struct multi_connect {
    struct link *links[MULTI_CONNECT_MAX];
    unsigned count;
};

/* Opens COUNT links (at least 1, at most MULTI_CONNECT_MAX) with SETTINGS, not
 * connected. On failure none stays open. */
enum status multi_connect_open(struct multi_connect *multi_connect, void *zmq,
                               const struct link_settings *settings,
                               unsigned count, struct failure *why) MUST_CHECK;

/* Closes the open links. */
void multi_connect_close(struct multi_connect *multi_connect);

/* Connects the first link to the numeric ADDRESS ("10.0.0.1:2222") and the
 * others to the ports above it. */
enum status multi_connect_connect(struct multi_connect *multi_connect,
                                  const char *address,
                                  struct failure *why) MUST_CHECK;

/* Sends BYTES on each link; false if none could take them. */
bool multi_connect_commit(struct multi_connect *multi_connect,
                          const void *bytes, size_t size);

/* Views the next received frame and sets INDEX to its link. The caller releases
 * it before the next view. */
bool multi_connect_view(struct multi_connect *multi_connect,
                        struct link_frame *frame, unsigned *index);

/* The server is behind link INDEX: keeps only that one, as link 0. */
void multi_connect_choose(struct multi_connect *multi_connect, unsigned index);

#endif
