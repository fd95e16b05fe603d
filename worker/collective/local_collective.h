/* SPDX-License-Identifier: Apache-2.0 */
/* Devices of one process that add up what each of them has, by a collective's
 * plugin (collective.h): each is a rank of a group that meets in memory. Every
 * member calls on a thread of its own. */
#ifndef CAPSTAN_LOCAL_COLLECTIVE_H
#define CAPSTAN_LOCAL_COLLECTIVE_H

#include "proto/base/status.h"
#include "worker/collective/collective.h"

#include <stddef.h>
#include <stdint.h>

struct local_collective;

/* For COUNT members by OPS (borrowed), whose calls take at most TIMEOUT
 * seconds. STATUS_RETRY: no memory. */
enum status local_collective_open(struct local_collective **out,
                                  const struct collective_ops *ops,
                                  uint32_t count, double timeout,
                                  struct failure *why) MUST_CHECK;

/* Frees *SIBLINGS (may be NULL) and clears it; all have left. */
void local_collective_close(struct local_collective **local_collective);

/* MEMBER, which has DEVICE, meets the others, all of whom call it. */
enum status local_collective_join(struct local_collective *local_collective,
                                  uint32_t member, uint32_t device,
                                  struct failure *why) MUST_CHECK;

/* DATA [count], memory of MEMBER's device where nothing is under way, becomes
 * the sum over all members, who call it in the same order with the same COUNT.
 * The same input gives the same bits. */
enum status local_collective_all_reduce(
    struct local_collective *local_collective, uint32_t member, float *data,
    size_t count, struct failure *why) MUST_CHECK;

/* From any thread: calls under way and later ones fail at once. */
void local_collective_abort(struct local_collective *local_collective);

/* MEMBER, which may never have joined, calls no more; all who have joined call
 * it, as some backends have them wait for each other. */
void local_collective_leave(struct local_collective *local_collective,
                            uint32_t member);

#endif
