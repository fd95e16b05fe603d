/* SPDX-License-Identifier: Apache-2.0 */
/* Packing and checking what goes over the wire. Control messages are
 * allocated; data headers are unpacked into a fixed arena, so that a step
 * allocates nothing. */
#ifndef CAPSTAN_MESSAGE_H
#define CAPSTAN_MESSAGE_H

#include "proto/base/status.h"
#include "proto/net/messages/control.pb-c.h"
#include "proto/net/messages/data.pb-c.h"

#include <stddef.h>
#include <stdint.h>

enum {
    MESSAGE_VERSION = 4,
    MESSAGE_MAX_BLOCKS = 4096, /* in one data header */
    MESSAGE_MAX_HEADER = 32 << 10,
    MESSAGE_MAX_CONTROL = 256 << 20, /* to a peer: the plan */
    MESSAGE_MAX_TO_CHIEF = 48 << 20, /* to the chief: 8 bytes a block of 2^40
                                    weights */
    MESSAGE_GROUP_BYTES = 1 << 20,   /* of several blocks in one message */
    MESSAGE_MAX_PAYLOAD = 4 << 20,
};

/* A random number, never 0: runs and incarnations. */
uint64_t message_random(void);

/* Bytes of one message on a network that passes LINK_GBITS (10^9 bits/s; 0: not
 * known): what passes in half a millisecond, a multiple of 64 KiB, and at most
 * what a message may have of several blocks. A ps begins with what has come
 * whole, so more than that keeps the other direction waiting; where the rate is
 * not known the most is best. */
uint32_t message_group_bytes(double link_gbits);

/* Unpacks BYTES of CONTROL; STATUS_FAILED for what is not one of this
 * protocol version, tells a status that no process ends with (status.h),
 * welcomes to a run without trainers, or has points that lack a number. The
 * caller frees it by message_free_control. */
enum status message_read_control(Capstan__Control **out, const void *bytes,
                                 size_t size, struct failure *why) MUST_CHECK;

/* STATUS_FAILED unless VIEW lists RANKS trainers, each that somebody is with a
 * first clock from 1. */
enum status message_check_view(const Capstan__View *view, uint32_t ranks,
                               struct failure *why) MUST_CHECK;

/* Frees *CONTROL (may be NULL) and clears it. */
void message_free_control(Capstan__Control **control);

/* Room for one unpacked data header. */
struct message_arena {
    size_t used;
    _Alignas(16) unsigned char memory[MESSAGE_MAX_HEADER];
};

/* Unpacks a data header into ARENA, where it lives until the next call with
 * it. STATUS_FAILED names the first field out of range. */
enum status message_read_data(Capstan__DataHeader **out,
                              struct message_arena *arena, const void *bytes,
                              size_t size, struct failure *why) MUST_CHECK;

/* Packs HEADER (version is set here) into SPACE of MESSAGE_MAX_HEADER bytes;
 * returns its size. HEADER has at most MESSAGE_MAX_BLOCKS blocks. */
size_t message_write_data(Capstan__DataHeader *header, void *space);

#endif
