/* SPDX-License-Identifier: Apache-2.0 */
/* Last words: who fails tells all others which rank it was waiting for, and
 * from what they say, and from who says nothing, each finds the one at fault.
 */
#ifndef CAPSTAN_GLOO_CONSENSUS_H
#define CAPSTAN_GLOO_CONSENSUS_H

#include "worker/collective/gloo_group.h"

/* What others may have to say is awaited from now on. */
void gloo_consensus_listen(struct gloo_group *group);

/* Tells all others that this rank fails because of BLAMED, whose connections
 * are CERTAIN to be lost; GLOO_NO_RANK: goodbye. */
void gloo_consensus_send(struct gloo_group *group, uint32_t blamed,
                         bool disconnected);

/* Waits for the last word of RANK until UNTIL; false: it says nothing. */
bool gloo_consensus_receive(struct gloo_group *group, uint32_t rank,
                            gloo_group::clock::time_point until);

/* A call has failed with CAUSE, which is what Gloo says: after a cut of one's
 * own that is the cut. Tells the others, cuts the lines and fills WHY with the
 * rank at fault, lost or late. */
enum status gloo_consensus_resolve(struct gloo_group *group,
                                   const std::string &cause,
                                   struct failure *why);

#endif
