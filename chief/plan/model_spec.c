/* SPDX-License-Identifier: Apache-2.0 */
#include "chief/plan/model_spec.h"

#include "chief/control/membership.h"
#include "chief/plan/collective_select.h"
#include "chief/plan/device_replicas.h"
#include "proto/tensor/plan.h"

#include <stdio.h>

/* Rank 0's first spec defines the model; a later incarnation of rank 0 is
 * compared with it. */
static void store_spec(struct run *run, const Capstan__ModelSpec *model_spec) {
    struct failure why;
    if (run->plan.layout)
        return;
    enum status status = plan_layout(&run->plan.layout, model_spec->parameters,
                                     model_spec->n_parameters, &why);
    if (!status)
        status = optimizer_group_read(&run->plan.groups, model_spec->groups,
                                      model_spec->n_groups, &why);
    if (status) {
        run_stop(run, why.code, "the parameters of rank 0: %s", why.text);
        return;
    }
    run->plan.num_groups = (uint32_t)model_spec->n_groups;
    if (run->plan.groups)
        run->job->optimizer = run->plan.groups[0].optimizer;
    run->plan.digest = layout_digest(run->plan.layout);
    run->plan.train_samples = model_spec->train_samples;
    run->plan.test_samples = model_spec->test_samples;
    run->plan.batches_per_epoch = model_spec->batches_per_epoch;
}

/* Compares digests: the chief knows nothing about models and can only see that
 * two differ. False: TEXT says how the rank differs. */
static bool matches_rank_0(const struct run *run,
                           const struct roster_slot *slot, char *text,
                           size_t size) {
    const struct run_trainer *trainer = &run->trainers[slot->rank];
    char name[64];
    roster_name(slot, name, sizeof name);
    if (trainer->digest != run->plan.digest) {
        snprintf(text, size,
                 "%s on host %s has other parameters than rank 0: is it the "
                 "same release of capstan?",
                 name, slot->host);
        return false;
    }
    if (trainer->train_samples == run->plan.train_samples &&
        trainer->test_samples == run->plan.test_samples)
        return true;
    snprintf(text, size,
             "%s on host %s reads %llu training and %llu test samples, "
             "rank 0 reads %llu and %llu: the data files differ",
             name, slot->host, (unsigned long long)trainer->train_samples,
             (unsigned long long)trainer->test_samples,
             (unsigned long long)run->plan.train_samples,
             (unsigned long long)run->plan.test_samples);
    return false;
}

/* Before there is a plan it is unknown which of two trainers is wrong, so the
 * run ends. Afterwards the joiner is wrong and is dismissed. */
static void model_spec_check(struct run *run, struct roster_slot *slot) {
    char text[512];
    if (matches_rank_0(run, slot, text, sizeof text))
        return;
    if (!membership_is_joining(run, slot)) {
        run_stop(run, FAILURE_MODEL_MISMATCH, "%s", text);
        return;
    }
    membership_dismiss(run, slot, FAILURE_MODEL_MISMATCH, text);
}

void model_spec_receive(struct run *run, struct roster_slot *slot,
                        const Capstan__ModelSpec *model_spec) {
    struct run_trainer *trainer = &run->trainers[slot->rank];
    trainer->declared = device_replicas_declare(run, slot, model_spec);
    device_assignment_declared(run, slot);
    trainer->digest = model_spec->digest;
    trainer->train_samples = model_spec->train_samples;
    trainer->test_samples = model_spec->test_samples;
    trainer->synthetic = model_spec->synthetic;
    collective_select_declare(trainer, model_spec);
    if (slot->rank == 0)
        store_spec(run, model_spec);
    for (uint32_t r = 0; run->plan.layout && r < run->roster.num_ranks; r++)
        if (run->trainers[r].declared)
            model_spec_check(run, &run->roster.slots[r]);
}

bool model_spec_is_complete(const struct run *run) {
    for (uint32_t r = 0; r < run->roster.num_ranks; r++)
        if (!run->trainers[r].declared)
            return false;
    return roster_count(&run->roster, CLUSTER_ROLES, ROSTER_HELD) ==
           run->roster.count;
}
