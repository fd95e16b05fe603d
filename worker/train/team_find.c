/* SPDX-License-Identifier: Apache-2.0 */
/* Which devices a team has, and what adds their gradients up: known before
 * there is a plan, as the chief counts replicas by it. */
#include "proto/base/plugin.h"
#include "worker/train/team.h"

bool team_is_remote(const struct team *team) {
    return team->members[0].replica.engine.device.ops->later;
}

/* What is added up by NCCL, if devices are CUDA's and it is here. */
static void find_collective(struct team *team,
                            const struct collective_ops *nccl) {
    struct failure why;
    const void *table = nccl;
    enum status status = STATUS_OK;
    if (!nccl && team->count > 1)
        status = plugin_find(&table, "nccl", COLLECTIVE_SYMBOL, COLLECTIVE_ABI,
                             &why);
    team->by = status ? NULL : table;
    if (status)
        log_info(team->log,
                 "gradients of %u devices are added up in the host's memory; "
                 "capstan-nccl.so: %s (docs/collectives.md has what it needs)",
                 team->count, why.text);
}

/* One that there is no code for is left out, if the job does not ask for it. */
static enum status find_one(struct team *team, struct device_wish wish,
                            uint32_t index, struct failure *why) {
    struct team_member *member = &team->members[team->count];
    bool asked = wish.kind == JOB_DEVICE_CUDA;
    wish.kind = JOB_DEVICE_CUDA;
    wish.local_rank = index;
    enum status status =
        engine_find(&member->replica.engine, &wish, team->log, why);
    if (!status)
        team->count++;
    if (status != STATUS_CONFIG || asked)
        return status;
    log_warning(team->log, "device %u is left out: %s", index, why->text);
    return STATUS_OK;
}

enum status team_find(struct team *team, const struct team_search *search,
                      struct failure *why) {
    const struct device_wish *wish = search->wish;
    uint32_t most = search->most;
    *team = (struct team){.log = search->log,
                          .given_up = wish->given_up,
                          .context = wish->context,
                          .timeout = wish->timeout};
    for (uint32_t i = 0; i < JOB_MOST_DEVICES; i++) {
        team->members[i].team = team;
        team->members[i].index = i;
    }
    struct engine *first = &team->members[0].replica.engine;
    enum status status = engine_find(first, wish, team->log, why);
    if (status)
        return status;
    team->count = 1;
    uint32_t count =
        team_is_remote(team) && search->alone ? first->device.ops->count() : 1;
    if (most == 0 || most > JOB_MOST_DEVICES)
        most = JOB_MOST_DEVICES;
    for (uint32_t i = 1; !status && i < count && team->count < most; i++)
        status = find_one(team, *wish, i, why);
    if (!status)
        find_collective(team, search->nccl);
    return status;
}

bool team_adds_on_host(const struct team *team) {
    return team->count > 1 && !team->by;
}
