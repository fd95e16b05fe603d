/* SPDX-License-Identifier: Apache-2.0 */
/* Cuts: which snapshot a block's state belongs to, and their way to the
 * checkpoint directory and back to the chief. */
#ifndef CAPSTAN_CUTTER_H
#define CAPSTAN_CUTTER_H

#include "proto/base/log.h"
#include "proto/base/status.h"
#include "proto/net/messages/member.h"
#include "proto/tensor/plan.h"
#include "ps/service.h"

#include <stdbool.h>
#include <stdint.h>

/* All borrowed. */
struct cutter_settings {
    const struct log *log;
    struct member *member;
    const struct plan *plan;
    uint32_t index;
    uint64_t copy_bytes; /* limit of copies; 0: half of the free memory */
};

struct cutter;

/* Looks for the chief's mark in the checkpoint directory; one of this host's
 * own is claimed (claim.h): STATUS_CONFIG when another run lives in it. */
enum status cutter_open(struct cutter **out,
                        const struct cutter_settings *settings,
                        struct failure *why) MUST_CHECK;

/* Starts the writing thread for SERVICE's blocks. */
enum status cutter_attach(struct cutter *cutter, struct service *service,
                          struct failure *why) MUST_CHECK;

/* Ends the writing thread; what is half written is removed. */
void cutter_close(struct cutter **cutter);

/* Does this ps see the folder that the chief sees? */
bool cutter_shares_folder(const struct cutter *cutter);

/* For service_settings: CONTEXT is the cutter. */
void cutter_snapshot(void *context, uint32_t block, uint64_t version);

/* The square sums of a round are complete: the chief gets them. */
void cutter_summed(void *context, uint64_t round, const double *sums);

/* Orders of the chief. */
enum status cutter_ask(struct cutter *cutter, const Capstan__CutAsk *order);

/* Take a snapshot at a round or now, or write one that is held. */
enum status cutter_cut(struct cutter *cutter, const Capstan__Cut *order,
                       struct failure *why) MUST_CHECK;

/* Let a snapshot go. */
enum status cutter_end(struct cutter *cutter, const Capstan__CutEnd *order);

/* Remove files of steps that no longer stand, in a folder of one's own. */
enum status cutter_keep(struct cutter *cutter, const Capstan__Keep *order);

/* Polls readable when cutter_step has something to report. */
int cutter_descriptor(const struct cutter *cutter);

/* Tells the chief of each snapshot that was written or failed. */
enum status cutter_step(struct cutter *cutter, struct failure *why) MUST_CHECK;

/* Have the copies of a running snapshot reached their limit? Pushes then wait
 * for the writer. */
bool cutter_full(struct cutter *cutter);

#endif
