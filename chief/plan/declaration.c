/* SPDX-License-Identifier: Apache-2.0 */
#include "chief/plan/declaration.h"

#include "chief/control/admission.h"
#include "chief/plan/backend.h"
#include "chief/plan/replicas.h"
#include "proto/tensor/plan.h"

#include <stdio.h>

/* Rank 0's word is the model; a later incarnation of it is compared, not
 * believed anew. */
static void keep_first(struct run *run,
                       const Capstan__Declaration *declaration) {
    struct failure why;
    if (run->layout)
        return;
    enum status status = plan_layout(&run->layout, declaration->parameters,
                                     declaration->n_parameters, &why);
    if (status) {
        run_stop(run, status, "the parameters of rank 0: %s", why.text);
        return;
    }
    run->digest = layout_digest(run->layout);
    run->train_samples = declaration->train_samples;
    run->test_samples = declaration->test_samples;
    run->batches_per_epoch = declaration->batches_per_epoch;
}

/* A digest is enough to see that two differ, which is all that the chief, who
 * knows nothing of models, can say. False: TEXT says how rank differs. */
static bool agrees(const struct run *run, const struct roster_slot *slot,
                   char *text, size_t size) {
    const struct run_trainer *trainer = &run->trainers[slot->rank];
    char name[64];
    roster_name(slot, name, sizeof name);
    if (trainer->digest != run->digest) {
        snprintf(text, size,
                 "%s on host %s has other parameters than rank 0: is it the "
                 "same release of capstan?",
                 name, slot->host);
        return false;
    }
    if (trainer->train_samples == run->train_samples &&
        trainer->test_samples == run->test_samples)
        return true;
    snprintf(text, size,
             "%s on host %s reads %llu training and %llu test samples, "
             "rank 0 reads %llu and %llu: the data files differ",
             name, slot->host, (unsigned long long)trainer->train_samples,
             (unsigned long long)trainer->test_samples,
             (unsigned long long)run->train_samples,
             (unsigned long long)run->test_samples);
    return false;
}

/* Before there is a plan nobody can tell who of two is wrong; later it is who
 * comes, and the run is not its. */
static void check(struct run *run, struct roster_slot *slot) {
    char text[512];
    if (agrees(run, slot, text, sizeof text))
        return;
    if (!admission_joins(run, slot)) {
        run_stop(run, STATUS_CONFIG, "%s", text);
        return;
    }
    admission_dismiss(run, slot, STATUS_CONFIG, text);
}

void declaration_take(struct run *run, struct roster_slot *slot,
                      const Capstan__Declaration *declaration) {
    struct run_trainer *trainer = &run->trainers[slot->rank];
    trainer->declared = replicas_declare(run, slot, declaration);
    sharing_declared(run, slot);
    trainer->digest = declaration->digest;
    trainer->train_samples = declaration->train_samples;
    trainer->test_samples = declaration->test_samples;
    trainer->passes = declaration->passes;
    backend_declare(trainer, declaration);
    if (slot->rank == 0)
        keep_first(run, declaration);
    for (uint32_t r = 0; run->layout && r < run->roster.num_ranks; r++)
        if (run->trainers[r].declared)
            check(run, &run->roster.slots[r]);
}

bool declaration_whole(const struct run *run) {
    for (uint32_t r = 0; r < run->roster.num_ranks; r++)
        if (!run->trainers[r].declared)
            return false;
    return roster_count(&run->roster, CLUSTER_ROLES, ROSTER_HELD) ==
           run->roster.count;
}
