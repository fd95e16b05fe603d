/* SPDX-License-Identifier: Apache-2.0 */
/* The lanes of one link, told apart by numbers with the top bit set. One that
 * is broken is closed at the next lanes_tend. */
#ifndef CAPSTAN_LANES_H
#define CAPSTAN_LANES_H

#include "proto/net/shm/lane.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { LANES_MAX = 256, LANES_NAME = 64 };
#define LANES_FIRST (UINT32_C(1) << 31)

struct lanes;

/* The name for WORD, a random number: names can be seen by every process of
 * this host, so they tell nothing else. */
void lanes_name(char name[LANES_NAME], uint64_t word);

/* Payloads of up to MAX_FRAME bytes. NULL: no memory or descriptors. */
struct lanes *lanes_open(uint64_t max_frame);

/* Closes them all and clears *LANES (may be NULL). */
void lanes_close(struct lanes **lanes);

/* Takes clients that call NAME. False: errno says why not. */
bool lanes_listen(struct lanes *lanes, const char *name);

/* Calls NAME: the number of a lane that is not yet open, or 0 and why in TEXT
 * of SIZE. */
uint32_t lanes_call(struct lanes *lanes, const char *name, char *text,
                    size_t size);

/* For poll: readable when there is something to do. */
int lanes_descriptor(const struct lanes *lanes);

/* Before a wait on the descriptor: bells are wanted. */
void lanes_sleep(struct lanes *lanes);

/* After a wait: meets, lets go what was read, moves on what waits, closes what
 * is broken or has not been read for 3 s. Does nothing without a wait before.
 */
void lanes_tend(struct lanes *lanes, int64_t now);

/* The lane of NUMBER, open or not; NULL: closed. View until lanes_tend. */
struct lane *lanes_find(struct lanes *lanes, uint32_t number);

/* How many there are. */
unsigned lanes_count(const struct lanes *lanes);

/* Has any of them a message? Cheap. */
bool lanes_waiting(struct lanes *lanes);

/* The next message of any lane, each in its turn; false: none. It is the same
 * until lane_done. */
struct lanes_message {
    uint32_t number;
    struct lane *lane;
    struct lane_view view;
};
bool lanes_view(struct lanes *lanes, struct lanes_message *message);

/* Why a lane was closed that had not just left; NULL: none since the last
 * call. */
const char *lanes_trouble(struct lanes *lanes);

#endif
