/* SPDX-License-Identifier: Apache-2.0 */
/* What trainers have sent, kept where it came: a parcel is a received payload,
 * which lives as long as a block's contribution lies in it. */
#ifndef CAPSTAN_GRADIENT_INBOX_H
#define CAPSTAN_GRADIENT_INBOX_H

#include "proto/net/link/link.h"

#include <stdint.h>

struct gradient_payload;
struct gradient_inbox;

/* One contribution of each of NUM_RANKS to each of NUM_BLOCKS at a time. NULL:
 * no memory. */
struct gradient_inbox *gradient_inbox_open(uint32_t num_blocks,
                                           uint32_t num_ranks);

/* Lets all go and clears *PARCELS (may be NULL). */
void gradient_inbox_close(struct gradient_inbox **gradient_inbox);

/* Moves FRAME's payload into a parcel, held once; used ones are used again, so
 * that a step allocates nothing. NULL: no memory. */
struct gradient_payload *gradient_inbox_receive(
    struct gradient_inbox *gradient_inbox, struct link_frame *frame);

/* Its payload; view. */
const struct link_bytes *gradient_inbox_payload(
    const struct gradient_payload *gradient_payload);

/* One holder less of PARCEL (may be NULL). */
void gradient_inbox_release(struct gradient_inbox *gradient_inbox,
                            struct gradient_payload *gradient_payload);

/* RANK's contribution to BLOCK lies in PARCEL, one more holder, at FLOATS;
 * NULL: it has no bytes. */
void gradient_inbox_add(struct gradient_inbox *gradient_inbox, uint32_t block,
                        uint32_t rank,
                        struct gradient_payload *gradient_payload,
                        const void *floats);

/* Where BLOCK's contributions that have bytes lie, in rank order, into
 * GRADIENTS [num_ranks]; returns how many. */
unsigned gradient_inbox_gather(const struct gradient_inbox *gradient_inbox,
                               uint32_t block, const void **gradients);

/* What these weigh together: each as many as WEIGHTS [num_ranks] says of its
 * rank, or (NULL) one. */
uint32_t gradient_inbox_weight(const struct gradient_inbox *gradient_inbox,
                               uint32_t block, const uint32_t *weights);

/* BLOCK's contributions are over: what held their parcels is the caller's now,
 * to be let go, into HELD [num_ranks]; returns how many. */
unsigned gradient_inbox_detach(struct gradient_inbox *gradient_inbox,
                               uint32_t block, struct gradient_payload **held);

#endif
