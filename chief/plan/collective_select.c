/* SPDX-License-Identifier: Apache-2.0 */
#include "chief/plan/collective_select.h"

#include "chief/plan/strategy.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void collective_select_declare(struct run_trainer *trainer,
                               const Capstan__ModelSpec *model_spec) {
    bool any = model_spec->n_devices > 0;
    snprintf(trainer->device, sizeof trainer->device, "%s",
             any ? model_spec->devices[0]->key : "");
    snprintf(trainer->without_nccl, sizeof trainer->without_nccl, "%s",
             model_spec->without_nccl);
}

static void list_ranks(const struct run *run, struct strategy_rank *ranks,
                       char (*names)[64]) {
    for (uint32_t r = 0; r < run->roster.num_ranks; r++) {
        const struct run_trainer *trainer = &run->trainers[r];
        roster_name(&run->roster.slots[r], names[r], sizeof names[r]);
        ranks[r] = (struct strategy_rank){
            names[r], trainer->device[0] ? trainer->device : NULL,
            trainer->without_nccl, trainer->replicas};
    }
}

static void resolve_backend(struct run *run,
                            const struct strategy_rank *ranks) {
    uint32_t count = run->roster.num_ranks;
    bool tables = run->plan.layout->num_tables > 0;
    if (tables && !strcmp(run->plan.backend, "auto"))
        snprintf(run->plan.backend, sizeof run->plan.backend, "gloo");
    if (!strcmp(run->plan.backend, "auto"))
        snprintf(run->plan.backend, sizeof run->plan.backend, "%s",
                 strategy_resolve_backend(run->job, ranks, count, run->log));
    run->plan.resident =
        !tables && strategy_resident(run->job, run->plan.backend, ranks, count);
}

bool collective_select_resolve(struct run *run) {
    uint32_t count = run->roster.num_ranks;
    if (!run->allreduce)
        return true;
    struct strategy_rank *ranks = calloc(count, sizeof *ranks);
    char(*names)[64] = calloc(count, sizeof *names);
    bool allocated = ranks && names;
    if (allocated) {
        list_ranks(run, ranks, names);
        resolve_backend(run, ranks);
    } else {
        run_stop(run, FAILURE_NO_MEMORY, "no memory for the plan");
    }
    free(ranks);
    free(names);
    return allocated;
}
