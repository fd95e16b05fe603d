/* SPDX-License-Identifier: Apache-2.0 */
/* What a ps is made of: for ps.c, its life, and ps_control.c, what the chief
 * orders. */
#ifndef CAPSTAN_PS_INTERNAL_H
#define CAPSTAN_PS_INTERNAL_H

#include "proto/net/link/link.h"
#include "proto/net/messages/control_client.h"
#include "proto/net/messages/message.h"
#include "proto/net/security/discovery_guard.h"
#include "proto/tensor/plan.h"
#include "ps/dense/shard_init.h"
#include "ps/dense/snapshot_agent.h"
#include "ps/ps.h"
#include "ps/server.h"

struct ps {
    const struct ps_settings *settings;
    struct control_client *control_client;
    struct discovery_guard discovery_guard;
    struct link *link;
    struct job *job;
    struct plan *plan;
    struct shard_init *shard_init; /* while weights are being set, else NULL */
    struct server *server;
    struct snapshot_agent *snapshot_agent;
    uint32_t *ids, num_blocks;
    uint64_t chief;         /* its incarnation */
    uint64_t shm_key;       /* what shared memory is offered by, 0: it is not */
    uint64_t reported_step; /* staleness: global step the chief was told of */
    bool stopped;           /* told to, or must */
    enum status interrupted; /* by a signal, or OK */
    int64_t polled;          /* when the control side last had its turn */
    bool busy;               /* frames came when last looked for */
    struct message_arena arena;
};

/* Does what ORDER says. Before the plan there is nothing to cut or to answer
 * for: such orders are passed over. */
enum status ps_control_handle(struct ps *ps, const Capstan__Control *command,
                              struct failure *why) MUST_CHECK;

#endif
