/* SPDX-License-Identifier: Apache-2.0 */
/* Failure consensus: a rank that fails sends all others a verdict, which names
 * the rank that it was waiting for. From the verdicts, and from the ranks that
 * send none, each rank determines the one at fault. */
#ifndef CAPSTAN_GLOO_CONSENSUS_H
#define CAPSTAN_GLOO_CONSENSUS_H

#include "worker/collective/gloo_group.h"

/* Sends all other ranks the verdict that this rank fails because of BLAMED;
 * DISCONNECTED: whose connections are known to be lost. GLOO_NO_RANK:
 * goodbye. */
void gloo_consensus_send(struct gloo_group *group, uint32_t blamed,
                         bool disconnected);

/* Waits for the verdict of RANK until UNTIL; false: it sends none. */
bool gloo_consensus_receive(struct gloo_group *group, uint32_t rank,
                            gloo_group::clock::time_point until);

/* A call has failed with CAUSE, Gloo's text or the reason for a shutdown by
 * this rank. Sends the verdict to the others, shuts the connections down and
 * fills WHY with the rank at fault, lost or late. */
enum status gloo_consensus_resolve(struct gloo_group *group,
                                   const std::string &cause,
                                   struct failure *why);

#endif
