/* SPDX-License-Identifier: Apache-2.0 */
/* A shared-memory connection between two ranks of one user on one host
 * (core/net/shm/shm_connection.h). One thread sends and receives, any may shut
 * it down. Waits have no time limit: a caller with a limit shuts the connection
 * down. */
#ifndef CAPSTAN_GLOO_SHM_H
#define CAPSTAN_GLOO_SHM_H

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes that can be sent before the other side reads any, and bytes of a
 * piece. */
enum { GLOO_SHM_WINDOW = 256 << 10, GLOO_SHM_CHUNK = 64 << 10 };
enum { GLOO_SHM_NAME = 64 };

struct buffer;
struct gloo_shm;

/* True if this process can map other processes' memory beside its own: false if
 * its address space is limited (ulimit -v). */
bool gloo_shm_is_available(void);

/* Handshake: one side listens, the other connects; the first accepts once it
 * knows of that, the other opens once it knows of that, and then the first.
 * Each proves to the other that it has KEY (proof.h; NULL: zeros) and is of
 * this rank. Errors are written to TEXT of SIZE. */
struct gloo_shm_ends {
    const unsigned char *key;
    unsigned self, peer; /* ranks */
};

/* A socket that listens under a new NAME, or -1. */
int gloo_shm_listen(char name[GLOO_SHM_NAME], char *text, size_t size);

/* NULL: the connection cannot be made. */
struct gloo_shm *gloo_shm_connect(const char *name,
                                  const struct gloo_shm_ends *ends, char *text,
                                  size_t size);

/* Accepts the peer that has connected to LISTENER, which stays the caller's;
 * NULL: it cannot. */
struct gloo_shm *gloo_shm_accept(int listener, const struct gloo_shm_ends *ends,
                                 char *text, size_t size);

/* Opens the connecting side after the other has accepted, and that one after
 * the connecting side is open; false: the connection is unusable. */
bool gloo_shm_open(struct gloo_shm *connection, char *text, size_t size);

/* Disconnects and clears *CONNECTION (may be NULL). */
void gloo_shm_close(struct gloo_shm **connection);

/* Waits until SIZE bytes are where the other side reads them. False: the
 * connection has failed. */
bool gloo_shm_send(struct gloo_shm *connection, const void *bytes, size_t size);

/* The same for bytes in BUFFER: the other side reads them in place if possible,
 * so they must not change until it has sent something that depends on them. */
bool gloo_shm_send_shared(struct gloo_shm *connection, const void *bytes,
                          size_t size, struct buffer *buffer);

/* A message arrives in pieces of GLOO_SHM_CHUNK bytes, of which the last may be
 * shorter. Waits for the next, which must have SIZE bytes; a view until
 * gloo_shm_release, which the other side may still write to. NULL: the
 * connection has failed. */
const void *gloo_shm_view(struct gloo_shm *connection, size_t size);
void gloo_shm_release(struct gloo_shm *connection);

/* Why it has failed, as a statement about the other side; static. */
const char *gloo_shm_error(const struct gloo_shm *connection);

/* From any thread, while open: current and later calls on both sides fail. */
void gloo_shm_shutdown(struct gloo_shm *connection);

#ifdef __cplusplus
}
#endif

#endif
