/* SPDX-License-Identifier: Apache-2.0 */
/* Packs and checks messages. Control messages are allocated. Data headers are
 * unpacked into a fixed arena, so that a step allocates nothing. */
#ifndef CAPSTAN_MESSAGE_H
#define CAPSTAN_MESSAGE_H

#include "core/base/status.h"
#include "proto/messages/control.pb-c.h"
#include "proto/messages/data.pb-c.h"

#include <stddef.h>
#include <stdint.h>

enum {
    MESSAGE_VERSION = 20,
    MESSAGE_MAX_BLOCKS = 4096, /* in one data header */
    MESSAGE_MAX_HEADER = 32 << 10,
    MESSAGE_MAX_CONTROL = 256 << 20, /* from the chief: a plan */
    MESSAGE_MAX_TO_CHIEF =
        48 << 20, /* to the chief: 8 bytes for each block of 2^40 weights */
    MESSAGE_MAX_REJOIN = 192 << 10, /* of a process that is no member yet: the
                                       chief's link bounds what it sends */
    MESSAGE_GROUP_BYTES = 1 << 20,  /* of a message with several blocks */
    MESSAGE_CREDIT = 64 << 20,      /* of gradients in flight to one ps */
    MESSAGE_MAX_PAYLOAD = 64 << 20, /* of one partition's rows; others are
                                       shorter */
};

/* Ids of snapshots: a planned one has its round's number; the chief numbers
 * requested ones from here. */
#define MESSAGE_REQUESTED_SNAPSHOT (UINT64_C(1) << 63)

/* How often chiefs can adopt a run. Each one's requested snapshots have ids of
 * their own (1 << MESSAGE_TERM_SHIFT of them). */
enum { MESSAGE_TERM_SHIFT = 40, MESSAGE_MAX_TERM = (1 << 23) - 1 };

/* Keys of a rendezvous: the chief tells of the generation with this number in
 * which the trainers' group is to connect anew, and of a rank, in decimal, that
 * is gone again; a trainer asks for the one after it. */
#define RENDEZVOUS_GENERATION_KEY "trainers/generation/%u"
#define RENDEZVOUS_LOST_KEY "trainers/lost/%u"
#define RENDEZVOUS_AGAIN_KEY "trainers/again/%u"
/* Of one generation; by a rank: the step that it waits for when it starts, and
 * its first one. */
#define RENDEZVOUS_PREFIX "trainers/%u/"
#define RENDEZVOUS_START_KEY RENDEZVOUS_PREFIX "start/%u"
#define RENDEZVOUS_STEP_KEY RENDEZVOUS_PREFIX "step/%u"
enum { RENDEZVOUS_MAX_GENERATION = 1 << 20 };

/* Of the epochs that rank 0 of an external model has begun so many are known,
 * the last. */
enum { MESSAGE_EPOCHS = 64 };

/* Of a job's TEXT, to compare it with another one's; never 0. */
uint64_t message_job_digest(const char *text);

/* A random number, never 0, for runs and incarnations. */
uint64_t message_random(void);

/* The bytes to send in one message on a network of LINK_GBITS (10^9 bits/s; 0:
 * unknown): what it passes in half a millisecond, rounded up to 64 KiB, at most
 * MESSAGE_GROUP_BYTES, and that if the rate is unknown. A ps handles a message
 * once it is complete, so a longer one would leave the other direction idle. */
uint32_t message_group_bytes(double link_gbits);

/* Unpacks BYTES as CONTROL; the caller frees it by message_free_control.
 * STATUS_FAILED unless it has this protocol version, a code of failure_codes.h,
 * at least one trainer in a welcome, times that are none below 0, and lists of
 * one length in points. */
enum status message_read_control(Capstan__Control **out, const void *bytes,
                                 size_t size, struct failure *why) MUST_CHECK;

/* STATUS_FAILED unless VIEW lists RANKS trainers and the first clock of each
 * filled slot is at least 1. */
enum status message_check_view(const Capstan__View *view, uint32_t ranks,
                               struct failure *why) MUST_CHECK;

/* A copy that the caller frees by message_free_control; NULL: no memory. */
Capstan__Control *message_copy_control(const Capstan__Control *control);

/* Frees *CONTROL (may be NULL) and clears it. */
void message_free_control(Capstan__Control **control);

/* Memory for one unpacked data header. */
struct message_arena {
    size_t used;
    _Alignas(16) unsigned char memory[MESSAGE_MAX_HEADER];
};

/* Unpacks a data header into ARENA, where it is valid until the next call.
 * STATUS_FAILED names the first field out of range. */
enum status message_read_data(Capstan__DataHeader **out,
                              struct message_arena *arena, const void *bytes,
                              size_t size, struct failure *why) MUST_CHECK;

/* Sets HEADER's version and packs it into SPACE of MESSAGE_MAX_HEADER bytes;
 * returns the size. HEADER has at most MESSAGE_MAX_BLOCKS blocks. */
size_t message_write_data(Capstan__DataHeader *header, void *space);

#endif
