/* SPDX-License-Identifier: Apache-2.0 */
/* This rank among the others: a backend's collectives, counted and timed; with
 * one rank alone there is nobody to meet and each is done at once. */
#ifndef CAPSTAN_GROUP_H
#define CAPSTAN_GROUP_H

#include "proto/base/status.h"
#include "worker/collective/collective.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One thread calls; others may abort and read the counts. */
struct group {
    const struct collective_ops *ops;
    uint32_t rank, size;
    pthread_mutex_t mutex;
    struct collective *group; /* NULL: not met, or alone */
    bool aborted;
    atomic_int_least64_t ns;     /* in collectives */
    atomic_uint_least64_t bytes; /* that this rank has sent to others */
};

/* Not met yet. */
void group_open(struct group *ranks, const struct collective_ops *ops,
                uint32_t rank, uint32_t size);

/* Meets the others. */
enum status group_connect(struct group *ranks,
                          const struct collective_settings *settings,
                          struct failure *why) MUST_CHECK;

/* Any thread: calls under way and later ones fail. */
void group_abort(struct group *ranks);

/* Ends the group, if they have met; from the thread that calls. */
void group_disconnect(struct group *ranks);

/* The same; nobody calls or aborts any more. */
void group_close(struct group *ranks);

/* As those of collective.h, COUNT in floats. All but broadcasts are counted,
 * bytes as a ring sends them, which is the least there is. */
enum status group_all_reduce(struct group *ranks, float *data, size_t count,
                             struct failure *why) MUST_CHECK;
enum status group_reduce_scatter(struct group *ranks, float *data, size_t count,
                                 struct failure *why) MUST_CHECK;
enum status group_all_gather(struct group *ranks, float *data, size_t count,
                             struct failure *why) MUST_CHECK;
enum status group_broadcast(struct group *ranks, float *data, size_t count,
                            uint32_t root, struct failure *why) MUST_CHECK;

/* How it goes with what was put on a stream that the group has joined, as far
 * as that is known; from the thread that calls. */
enum status group_async_error(struct group *ranks,
                              struct failure *why) MUST_CHECK;

/* As collective.h has it; once they have met, from the thread that calls. */
void group_register(struct group *ranks, struct buffer *buffer);
void group_transport(const struct group *ranks, char *text, size_t size);

#endif
