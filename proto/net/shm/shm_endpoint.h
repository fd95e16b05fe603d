/* SPDX-License-Identifier: Apache-2.0 */
/* The lanes of one link, told apart by numbers with the top bit set. One that
 * is broken is closed at the next shm_endpoint_progress. */
#ifndef CAPSTAN_SHM_ENDPOINT_H
#define CAPSTAN_SHM_ENDPOINT_H

#include "proto/net/shm/shm_connection.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SHM_ENDPOINT_MAX = 256, SHM_ENDPOINT_NAME = 64 };
#define SHM_ENDPOINT_FIRST (UINT32_C(1) << 31)

struct shm_endpoint;

/* The name for WORD, a random number: names can be seen by every process of
 * this host, so they tell nothing else. */
void shm_endpoint_name(char name[SHM_ENDPOINT_NAME], uint64_t key);

/* Payloads of up to MAX_FRAME bytes. NULL: no memory or descriptors. */
struct shm_endpoint *shm_endpoint_open(uint64_t max_frame);

/* Closes them all and clears *LANES (may be NULL). */
void shm_endpoint_close(struct shm_endpoint **shm_endpoint);

/* Takes clients that call NAME. False: errno says why not. */
bool shm_endpoint_listen(struct shm_endpoint *shm_endpoint, const char *name);

/* Calls NAME: the number of a lane that is not yet open, or 0 and why in TEXT
 * of SIZE. */
uint32_t shm_endpoint_connect(struct shm_endpoint *shm_endpoint,
                              const char *name, char *text, size_t size);

/* For poll: readable when there is something to do. */
int shm_endpoint_descriptor(const struct shm_endpoint *shm_endpoint);

/* Before a wait on the descriptor: bells are wanted. */
void shm_endpoint_prepare_wait(struct shm_endpoint *shm_endpoint);

/* After a wait: meets, lets go what was read, moves on what waits, closes what
 * is broken or has not been read for 3 s. Does nothing without a wait before.
 */
void shm_endpoint_progress(struct shm_endpoint *shm_endpoint, int64_t now);

/* The lane of NUMBER, open or not; NULL: closed. View until
 * shm_endpoint_progress. */
struct shm_connection *shm_endpoint_find(struct shm_endpoint *shm_endpoint,
                                         uint32_t number);

/* How many there are. */
unsigned shm_endpoint_count(const struct shm_endpoint *shm_endpoint);

/* Has any of them a message? Cheap. */
bool shm_endpoint_pending(struct shm_endpoint *shm_endpoint);

/* The next message of any lane, each in its turn; false: none. It is the same
 * until shm_connection_release. */
struct shm_endpoint_message {
    uint32_t number;
    struct shm_connection *shm_connection;
    struct shm_connection_view view;
};
bool shm_endpoint_view(struct shm_endpoint *shm_endpoint,
                       struct shm_endpoint_message *message);

/* Why a lane was closed that had not just left; NULL: none since the last
 * call. */
const char *shm_endpoint_error(struct shm_endpoint *shm_endpoint);

#endif
