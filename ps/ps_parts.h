/* SPDX-License-Identifier: Apache-2.0 */
/* What a ps is made of: for ps.c, its life, and ps_orders.c, what the chief
 * orders. */
#ifndef CAPSTAN_PS_PARTS_H
#define CAPSTAN_PS_PARTS_H

#include "proto/net/link/link.h"
#include "proto/net/messages/member.h"
#include "proto/net/messages/message.h"
#include "proto/net/security/call_guard.h"
#include "proto/tensor/plan.h"
#include "ps/dense/cutter.h"
#include "ps/dense/filler.h"
#include "ps/ps.h"
#include "ps/service.h"

struct ps {
    const struct ps_settings *settings;
    struct member *member;
    struct call_guard calls;
    struct link *link;
    struct job *job;
    struct plan *plan;
    struct filler *filler; /* while weights are being set, else NULL */
    struct service *service;
    struct cutter *cutter;
    uint32_t *ids, num_blocks;
    uint64_t chief; /* its incarnation */
    uint64_t lane;  /* what shared memory is offered by, 0: it is not */
    uint64_t told;  /* staleness: global step the chief was told of */
    bool stopped;   /* told to, or must */
    enum status interrupted; /* by a signal, or OK */
    int64_t polled;          /* when the control side last had its turn */
    bool busy;               /* frames came when last looked for */
    struct message_arena arena;
};

/* Does what ORDER says. Before the plan there is nothing to cut or to answer
 * for: such orders are passed over. */
enum status ps_obey(struct ps *ps, const Capstan__Control *order,
                    struct failure *why) MUST_CHECK;

#endif
