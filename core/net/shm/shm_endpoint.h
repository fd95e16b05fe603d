/* SPDX-License-Identifier: Apache-2.0 */
/* The shared-memory connections of one link, identified by numbers with the top
 * bit set. A failed connection is closed at the next shm_endpoint_progress. */
#ifndef CAPSTAN_SHM_ENDPOINT_H
#define CAPSTAN_SHM_ENDPOINT_H

#include "core/net/shm/shm_connection.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SHM_ENDPOINT_MAX = 256, SHM_ENDPOINT_NAME = 64 };
#define SHM_ENDPOINT_FIRST (UINT32_C(1) << 31)

struct shm_endpoint;

/* The name for KEY, a random number. Every process of the host can see names,
 * so they reveal nothing else. */
void shm_endpoint_name(char name[SHM_ENDPOINT_NAME], uint64_t key);

/* SETTINGS are those of each connection. NULL: no memory or no descriptors. */
struct shm_endpoint *shm_endpoint_open(
    const struct shm_connection_settings *settings);

/* Closes all connections and clears *ENDPOINT (may be NULL). */
void shm_endpoint_close(struct shm_endpoint **endpoint);

/* Accepts clients that connect to NAME. False: errno says why not. */
bool shm_endpoint_listen(struct shm_endpoint *endpoint, const char *name);

/* Connects to NAME: returns the number of a connection that is not open yet, or
 * 0 and the reason in TEXT of SIZE bytes. */
uint32_t shm_endpoint_connect(struct shm_endpoint *endpoint, const char *name,
                              char *text, size_t size);

/* For poll: readable when there is something to do. */
int shm_endpoint_descriptor(const struct shm_endpoint *endpoint);

/* Call before a wait on the descriptor: asks for wakeups. */
void shm_endpoint_prepare_wait(struct shm_endpoint *endpoint);

/* Call after a wait: accepts clients, handles packets, releases buffers that
 * were read, sends queued messages, closes connections that failed or (server)
 * have read nothing for 3 s. Does nothing without a prepared wait. */
void shm_endpoint_progress(struct shm_endpoint *endpoint, int64_t now);

/* The connection of NUMBER, open or not; NULL: closed. View until
 * shm_endpoint_progress. */
struct shm_connection *shm_endpoint_find(struct shm_endpoint *endpoint,
                                         uint32_t number);

/* How many connections there are. */
unsigned shm_endpoint_count(const struct shm_endpoint *endpoint);

/* Does any of them have a message? Cheap. */
bool shm_endpoint_pending(struct shm_endpoint *endpoint);

/* The next message of any connection, in turn; false: none. The same until
 * shm_connection_release. */
struct shm_endpoint_message {
    uint32_t number;
    struct shm_connection *shm_connection;
    struct shm_connection_view view;
};
bool shm_endpoint_view(struct shm_endpoint *endpoint,
                       struct shm_endpoint_message *message);

/* Why a connection failed other than by the other side's leaving; NULL: none
 * since the last call. */
const char *shm_endpoint_error(struct shm_endpoint *endpoint);

#endif
