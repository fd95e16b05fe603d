/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients that trainers have sent, kept in the received payloads until their
 * blocks are updated. */
#ifndef CAPSTAN_GRADIENT_INBOX_H
#define CAPSTAN_GRADIENT_INBOX_H

#include "core/net/link/link.h"

#include <stdbool.h>
#include <stdint.h>

struct gradient_payload;
struct gradient_inbox;

/* Room for one contribution of each of NUM_RANKS to each of NUM_BLOCKS. NULL:
 * no memory. */
struct gradient_inbox *gradient_inbox_open(uint32_t num_blocks,
                                           uint32_t num_ranks,
                                           uint32_t num_groups);

/* Releases all payloads and clears *INBOX (may be NULL). */
void gradient_inbox_close(struct gradient_inbox **inbox);

/* Moves FRAME's payload into a gradient payload with one reference. Released
 * ones are reused, so that a step allocates nothing. NULL: no memory. */
struct gradient_payload *gradient_inbox_receive(struct gradient_inbox *inbox,
                                                struct link_frame *frame);

/* Whose push a payload is. */
struct gradient_origin {
    uint32_t rank;
    uint64_t clock;
    int64_t received; /* time; 0: the step is not traced */
};

/* Sets PAYLOAD's origin, which is not set at first. */
void gradient_inbox_set_origin(struct gradient_payload *payload,
                               struct gradient_origin origin);
struct gradient_origin gradient_inbox_origin(
    const struct gradient_payload *payload);

/* Its received bytes; view. */
const struct link_bytes *gradient_inbox_payload(
    const struct gradient_payload *payload);

/* Drops one reference of PAYLOAD (may be NULL). */
void gradient_inbox_release(struct gradient_inbox *inbox,
                            struct gradient_payload *payload);

/* Records that RANK's contribution to BLOCK is BYTES of PAYLOAD, which gains a
 * reference; no data: it has none. COUNTS: in the divisor of the mean. */
void gradient_inbox_add(struct gradient_inbox *inbox, uint32_t block,
                        uint32_t rank, struct gradient_payload *payload,
                        struct link_bytes bytes, bool counts);

/* That contribution also sets ROWS of BLOCK, a partition: bytes of its payload,
 * as row_shard.h has them. */
void gradient_inbox_assign(struct gradient_inbox *inbox, uint32_t block,
                           uint32_t rank, struct link_bytes rows);

/* Writes what contributions to BLOCK set into ROWS [num_ranks], in rank order;
 * returns how many do. Views until gradient_inbox_detach. */
unsigned gradient_inbox_assigned(const struct gradient_inbox *inbox,
                                 uint32_t block, struct link_bytes *rows);

/* The sender of PAYLOAD has set GROUP (< num_groups) of the optimizer to VALUES
 * [OPTIMIZER_VALUES] for it; copied. */
void gradient_inbox_set_values(struct gradient_payload *payload, uint32_t group,
                               const double *values);

/* The values of GROUP with which the lowest rank that has contributed to BLOCK
 * pushed; NULL: the plan's. A view until gradient_inbox_detach. */
const double *gradient_inbox_values(const struct gradient_inbox *inbox,
                                    uint32_t block, uint32_t group);

/* Writes the addresses of BLOCK's contributions that have bytes, in rank order,
 * into GRADIENTS [num_ranks], how many bytes into SIZES and whose they are into
 * RANKS, [num_ranks] each. Returns how many contributions. */
unsigned gradient_inbox_gather(const struct gradient_inbox *inbox,
                               uint32_t block, const void **gradients,
                               uint32_t *sizes, uint32_t *ranks);

/* The sum of the weights of those contributions that count: WEIGHTS [num_ranks]
 * by rank, or (NULL) 1 each. */
uint32_t gradient_inbox_weight(const struct gradient_inbox *inbox,
                               uint32_t block, const uint32_t *weights);

/* Empties BLOCK's contributions. Moves their references into HELD [num_ranks],
 * for the caller to release. Returns how many. */
unsigned gradient_inbox_detach(struct gradient_inbox *inbox, uint32_t block,
                               struct gradient_payload **held);

#endif
