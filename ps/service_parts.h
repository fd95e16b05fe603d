/* SPDX-License-Identifier: Apache-2.0 */
/* What a service is made of: for service.c, which carries out what the exchange
 * decides, and service_messages.c, which tells it what has come. */
#ifndef CAPSTAN_SERVICE_PARTS_H
#define CAPSTAN_SERVICE_PARTS_H

#include "proto/tensor/schedule.h"
#include "ps/answers.h"
#include "ps/dense/holding.h"
#include "ps/dense/parcels.h"
#include "ps/service.h"
#include "ps/tasks.h"

struct service {
    struct service_settings settings;
    struct exchange *exchange;
    struct shard *shard;
    struct snapshots *snapshots;
    struct schedule schedule;
    struct holding holding;
    uint64_t *receipts; /* [num_blocks, num_ranks]: the last request that wants
                           a receipt */
    struct answers *answers;
    struct tasks *tasks;
    struct parcels *parcels;
    double *sums; /* [num_blocks]: square sums of the round being clipped */
    uint32_t num_summed; /* of them are here */
    double norm;         /* the last that the chief has told */
    int64_t update_ns;   /* spent on updates so far, on any thread */
};

/* Tells the exchange what FRAME with HEADER brings, and answers what needs no
 * decision. NULL, or why it is refused. Blocks in HEADER become local. */
const char *service_take(struct service *service, struct link_frame *frame,
                         Capstan__DataHeader *header);

#endif
