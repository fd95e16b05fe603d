/* SPDX-License-Identifier: Apache-2.0 */
/* A client's links to a peer that listens on one of several ports in a row:
 * all are tried at once until the peer has answered behind one. Belongs to one
 * thread. */
#ifndef CAPSTAN_MULTI_CONNECT_H
#define CAPSTAN_MULTI_CONNECT_H

#include "proto/net/link/link.h"

enum { MULTI_CONNECT_MAX = 16 };

struct multi_connect {
    struct link *links[MULTI_CONNECT_MAX];
    unsigned count;
};

/* COUNT links (0 is 1, more than MULTI_CONNECT_MAX are MULTI_CONNECT_MAX) of
 * SETTINGS, not connected. On failure none is left. */
enum status multi_connect_open(struct multi_connect *multi_connect, void *zmq,
                               const struct link_settings *settings,
                               unsigned count, struct failure *why) MUST_CHECK;

/* Closes what is open. */
void multi_connect_close(struct multi_connect *multi_connect);

/* Connects to the numeric ADDRESS ("10.0.0.1:2222"), the others to the ports
 * above it. */
enum status multi_connect_connect(struct multi_connect *multi_connect,
                                  const char *address,
                                  struct failure *why) MUST_CHECK;

/* Sends BYTES by each; false when none could take them. */
bool multi_connect_commit(struct multi_connect *multi_connect,
                          const void *bytes, size_t size);

/* Views the next frame that is here and tells by WHICH it came; the caller
 * releases it before the next view. */
bool multi_connect_view(struct multi_connect *multi_connect,
                        struct link_frame *frame, unsigned *index);

/* The peer is behind WHICH, which is now the only one. */
void multi_connect_choose(struct multi_connect *multi_connect, unsigned index);

#endif
