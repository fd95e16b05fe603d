/* SPDX-License-Identifier: Apache-2.0 */
/* This rank's group: a backend's collectives, counted and timed. With one rank
 * each collective is a no-op. */
#ifndef CAPSTAN_GROUP_H
#define CAPSTAN_GROUP_H

#include "core/base/status.h"
#include "worker/collective/collective.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Sets *OUT to the collectives of backend NAME ("gloo", "nccl"). STATUS_CONFIG:
 * not available; WHY has the reason. */
enum status group_find_backend(const struct collective_ops **out,
                               const char *name,
                               struct failure *why) MUST_CHECK;

/* One thread calls; others may abort and read the counters. */
struct group {
    const struct collective_ops *ops;
    uint32_t rank, size;
    pthread_mutex_t mutex;
    struct collective *group; /* NULL: not connected, or a single rank */
    bool aborted;
    atomic_int_least64_t ns;     /* nanoseconds in collectives */
    atomic_uint_least64_t bytes; /* sent to other ranks */
};

/* Logs a refused connection: `reject` of collective_settings, whose context is
 * a struct log. */
void group_log_rejected(const void *log, const char *own, const char *from,
                        const char *why);

/* Opens the group, not connected yet. */
void group_open(struct group *ranks, const struct collective_ops *ops,
                uint32_t rank, uint32_t size);

/* Connects to the other ranks. */
enum status group_connect(struct group *ranks,
                          const struct collective_settings *settings,
                          struct failure *why) MUST_CHECK;

/* Any thread: current and later calls fail. */
void group_abort(struct group *ranks);

/* Closes the connection, if any; on the calling thread. */
void group_disconnect(struct group *ranks);

/* The same; no thread may call or abort any more. */
void group_close(struct group *ranks);

/* As in collective.h, COUNT in floats. All but broadcasts are counted, with the
 * bytes that a ring sends, which is the minimum. */
enum status group_all_reduce(struct group *ranks, float *data, size_t count,
                             struct failure *why) MUST_CHECK;
enum status group_reduce_scatter(struct group *ranks, float *data, size_t count,
                                 struct failure *why) MUST_CHECK;
enum status group_all_gather(struct group *ranks, float *data, size_t count,
                             struct failure *why) MUST_CHECK;
enum status group_broadcast(struct group *ranks, float *data, size_t count,
                            uint32_t root, struct failure *why) MUST_CHECK;

/* The state of the operations on a joined stream, as known without waiting; on
 * the calling thread. */
enum status group_async_error(struct group *ranks,
                              struct failure *why) MUST_CHECK;

/* As in collective.h; after group_connect, on the calling thread. */
void group_register(struct group *ranks, struct buffer *buffer);
void group_transport(const struct group *ranks, char *text, size_t size);

#endif
