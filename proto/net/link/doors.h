/* SPDX-License-Identifier: Apache-2.0 */
/* A client's links to a peer that listens on one of several ports in a row:
 * all are tried at once until the peer has answered behind one. Belongs to one
 * thread. */
#ifndef CAPSTAN_DOORS_H
#define CAPSTAN_DOORS_H

#include "proto/net/link/link.h"

enum { DOORS_MAX = 16 };

struct doors {
    struct link *links[DOORS_MAX];
    unsigned count;
};

/* COUNT links (0 is 1, more than DOORS_MAX are DOORS_MAX) of SETTINGS, not
 * connected. On failure none is left. */
enum status doors_open(struct doors *doors, void *zmq,
                       const struct link_settings *settings, unsigned count,
                       struct failure *why) MUST_CHECK;

/* Closes what is open. */
void doors_close(struct doors *doors);

/* Connects to the numeric ADDRESS ("10.0.0.1:2222"), the others to the ports
 * above it. */
enum status doors_connect(struct doors *doors, const char *address,
                          struct failure *why) MUST_CHECK;

/* Sends BYTES by each; false when none could take them. */
bool doors_commit(struct doors *doors, const void *bytes, size_t size);

/* Views the next frame that is here and tells by WHICH it came; the caller
 * releases it before the next view. */
bool doors_view(struct doors *doors, struct link_frame *frame, unsigned *which);

/* The peer is behind WHICH, which is now the only one. */
void doors_choose(struct doors *doors, unsigned which);

#endif
