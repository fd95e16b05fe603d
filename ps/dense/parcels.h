/* SPDX-License-Identifier: Apache-2.0 */
/* What trainers have sent, kept where it came: a parcel is a received payload,
 * which lives as long as a block's contribution lies in it. */
#ifndef CAPSTAN_PARCELS_H
#define CAPSTAN_PARCELS_H

#include "proto/net/link/link.h"

#include <stdint.h>

struct parcel;
struct parcels;

/* One contribution of each of NUM_RANKS to each of NUM_BLOCKS at a time. NULL:
 * no memory. */
struct parcels *parcels_open(uint32_t num_blocks, uint32_t num_ranks);

/* Lets all go and clears *PARCELS (may be NULL). */
void parcels_close(struct parcels **parcels);

/* Moves FRAME's payload into a parcel, held once; used ones are used again, so
 * that a step allocates nothing. NULL: no memory. */
struct parcel *parcels_take(struct parcels *parcels, struct link_frame *frame);

/* Its payload; view. */
const struct link_bytes *parcels_payload(const struct parcel *parcel);

/* One holder less of PARCEL (may be NULL). */
void parcels_let_go(struct parcels *parcels, struct parcel *parcel);

/* RANK's contribution to BLOCK lies in PARCEL, one more holder, at FLOATS;
 * NULL: it has no bytes. */
void parcels_contribute(struct parcels *parcels, uint32_t block, uint32_t rank,
                        struct parcel *parcel, const void *floats);

/* Where BLOCK's contributions that have bytes lie, in rank order, into
 * GRADIENTS [num_ranks]; returns how many. */
unsigned parcels_gather(const struct parcels *parcels, uint32_t block,
                        const void **gradients);

/* What these weigh together: each as many as WEIGHTS [num_ranks] says of its
 * rank, or (NULL) one. */
uint32_t parcels_weight(const struct parcels *parcels, uint32_t block,
                        const uint32_t *weights);

/* BLOCK's contributions are over: what held their parcels is the caller's now,
 * to be let go, into HELD [num_ranks]; returns how many. */
unsigned parcels_hand_over(struct parcels *parcels, uint32_t block,
                           struct parcel **held);

#endif
