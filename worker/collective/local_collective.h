/* SPDX-License-Identifier: Apache-2.0 */
/* Sums over the devices of one process by a collective plugin (collective.h):
 * each device is a rank of a group with an in-memory rendezvous. Every member
 * calls on its own thread. */
#ifndef CAPSTAN_LOCAL_COLLECTIVE_H
#define CAPSTAN_LOCAL_COLLECTIVE_H

#include "core/base/status.h"
#include "worker/collective/collective.h"

#include <stddef.h>
#include <stdint.h>

struct local_collective;

/* For COUNT members over OPS (borrowed), whose calls take at most TIMEOUT
 * seconds. STATUS_RETRY: no memory. */
enum status local_collective_open(struct local_collective **out,
                                  const struct collective_ops *ops,
                                  uint32_t count, double timeout,
                                  struct failure *why) MUST_CHECK;

/* Frees *COLLECTIVE (may be NULL) and clears it; all members have
 * left. */
void local_collective_close(struct local_collective **collective);

/* MEMBER, which has DEVICE, connects to the others, all of whom call it. */
enum status local_collective_join(struct local_collective *collective,
                                  uint32_t member, uint32_t device,
                                  struct failure *why) MUST_CHECK;

/* DATA [count], in memory of MEMBER's device with no work in flight on it,
 * becomes the sum over all members. All call it in the same order with the same
 * COUNT. The same input gives the same bits. */
enum status local_collective_all_reduce(struct local_collective *collective,
                                        uint32_t member, float *data,
                                        size_t count,
                                        struct failure *why) MUST_CHECK;

/* From any thread: current and later calls fail at once. */
void local_collective_abort(struct local_collective *collective);

/* MEMBER, which may never have joined, calls no more. All that have joined call
 * it, as some backends wait for each other. */
void local_collective_leave(struct local_collective *collective,
                            uint32_t member);

#endif
