/* SPDX-License-Identifier: Apache-2.0 */
/* A line between two ranks of one user on one host, over shared memory
 * (proto/net/shm/shm_connection.h). One thread sends and receives, any may cut.
 * Waits have no limit of their own: who has one cuts. */
#ifndef CAPSTAN_GLOO_SHM_H
#define CAPSTAN_GLOO_SHM_H

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes that can be sent before the other side reads any, and of a piece. */
enum { GLOO_SHM_WINDOW = 256 << 10, GLOO_SHM_CHUNK = 64 << 10 };
enum { GLOO_SHM_NAME = 64 };

struct buffer;
struct gloo_shm;

/* May this process map what others show it, beside all that is its own? Not
 * where its address space is limited (ulimit -v). */
bool gloo_shm_is_available(void);

/* How two sides meet: one listens, the other calls, the first answers when it
 * has heard that it was called, the other opens when it has heard of that. What
 * does not go is told in TEXT of SIZE. */

/* A socket that listens by a new NAME, or -1. */
int gloo_shm_listen(char name[GLOO_SHM_NAME], char *text, size_t size);

/* NULL: it cannot be called. */
struct gloo_shm *gloo_shm_connect(const char *name, char *text, size_t size);

/* Takes who has called LISTENER, which stays the caller's; NULL: it cannot. */
struct gloo_shm *gloo_shm_accept(int listener, char *text, size_t size);

/* Called, and the other side has answered; false: the line is of no use. */
bool gloo_shm_open(struct gloo_shm *connection, char *text, size_t size);

/* Leaves the other side and clears *LINE (may be NULL). */
void gloo_shm_close(struct gloo_shm **connection);

/* Waits until SIZE bytes are where the other side reads them. False: the line
 * has failed. */
bool gloo_shm_send(struct gloo_shm *connection, const void *bytes, size_t size);

/* The same of what lies in BUFFER: the other side reads it there, where that
 * can be, so it has to stay as it is until that side has said something which
 * it could not say before. */
bool gloo_shm_send_shared(struct gloo_shm *connection, const void *bytes,
                          size_t size, struct buffer *buffer);

/* What is sent comes in pieces of GLOO_SHM_CHUNK bytes, the last of one send
 * may be shorter. Waits for the next, which is of SIZE; view until
 * gloo_shm_release, and the other side may still write there. NULL: the line
 * has failed. */
const void *gloo_shm_view(struct gloo_shm *connection, size_t size);
void gloo_shm_release(struct gloo_shm *connection);

/* Why it has failed, as something that is said of the other side; static. */
const char *gloo_shm_error(const struct gloo_shm *connection);

/* From any thread, while it is open: calls under way on both sides and later
 * ones fail. */
void gloo_shm_shutdown(struct gloo_shm *connection);

#ifdef __cplusplus
}
#endif

#endif
