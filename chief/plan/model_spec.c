/* SPDX-License-Identifier: Apache-2.0 */
#include "chief/plan/model_spec.h"

#include "chief/control/membership.h"
#include "chief/plan/device_replicas.h"
#include "chief/plan/strategy.h"
#include "chief/rewind.h"
#include "core/tensor/rule.h"
#include "proto/plan/plan.h"

#include <stdio.h>
#include <string.h>

/* At least four on each ps. */
static uint32_t num_partitions(const struct run *run) {
    uint32_t least = 4 * run->roster.num_ps;
    return least > LAYOUT_PARTITIONS ? least : LAYOUT_PARTITIONS;
}

/* Each table has an optimizer that can update it. */
static enum status check_table_optimizers(const struct run *run,
                                          const Capstan__ModelSpec *model_spec,
                                          struct failure *why) {
    const struct layout *layout = run->plan.layout;
    const struct optimizer *own = run->plan.groups
                                      ? &run->plan.groups[0].optimizer
                                      : &run->job->optimizer;
    enum status status = STATUS_OK;
    for (uint32_t t = 0; !status && t < layout->num_tables; t++) {
        const struct table *table = &layout->tables[t];
        if (table->optimizer > model_spec->n_table_groups)
            return status_fail(why, FAILURE_BAD_MESSAGE,
                               "table \"%s\" has optimizer %u of %zu",
                               table->name, table->optimizer,
                               model_spec->n_table_groups);
        status = optimizer_group_check_table(
            table->optimizer
                ? &run->plan.table_groups[table->optimizer - 1].optimizer
                : own,
            table->name, why);
    }
    return status;
}

/* Rank 0's first spec defines the model; a later incarnation of rank 0 is
 * compared with it. */
static void store_spec(struct run *run, const Capstan__ModelSpec *model_spec) {
    struct failure why;
    if (run->plan.layout)
        return;
    enum status status = plan_layout(&run->plan.layout, model_spec->parameters,
                                     model_spec->n_parameters, &why);
    if (!status)
        status =
            plan_read_tables(run->plan.layout, model_spec->tables,
                             model_spec->n_tables, num_partitions(run), &why);
    if (!status)
        status = optimizer_group_read(
            &run->plan.groups, model_spec->groups, model_spec->n_groups,
            run->job->model.type == JOB_EXTERNAL, &why);
    if (!status)
        status = optimizer_group_read(&run->plan.table_groups,
                                      model_spec->table_groups,
                                      model_spec->n_table_groups, false, &why);
    run->plan.num_table_groups = (uint32_t)model_spec->n_table_groups;
    if (!status)
        status = check_table_optimizers(run, model_spec, &why);
    if (status) {
        run_stop(run, why.code, "the parameters of rank 0: %s", why.text);
        return;
    }
    run->plan.num_groups = (uint32_t)model_spec->n_groups;
    if (run->plan.groups)
        run->job->optimizer = run->plan.groups[0].optimizer;
    run->plan.digest = layout_digest(run->plan.layout);
    run->plan.features = model_spec->features;
    run->plan.features_unplaced = model_spec->features_unplaced;
    run->plan.train_samples = model_spec->train_samples;
    run->plan.test_samples = model_spec->test_samples;
    run->plan.batches_per_epoch = model_spec->batches_per_epoch;
}

/* The first tensor in which OTHER differs from rank 0's model. */
static void describe_difference(const struct run *run, const char *name,
                                const struct layout *other, char *text,
                                size_t size) {
    const struct layout *own = run->plan.layout;
    char tensors[2][320];
    uint32_t p = 0;
    while (p < own->num_parameters && p < other->num_parameters &&
           !memcmp(&own->parameters[p], &other->parameters[p],
                   sizeof own->parameters[p]))
        p++;
    layout_describe_parameter(other, p, tensors[0], sizeof tensors[0]);
    layout_describe_parameter(own, p, tensors[1], sizeof tensors[1]);
    snprintf(text, size,
             "%s has another model than rank 0: its tensor number %u is %s, "
             "rank 0's is %s; all ranks declare the same tensors in the same "
             "order",
             name, p, tensors[0], tensors[1]);
}

/* A script's rule "worker" is None. */
static void describe_optimizers(const struct run *run, const char *name,
                                const struct run_trainer *trainer, char *text,
                                size_t size) {
    enum optimizer_type own = run->job->optimizer.type;
    uint32_t groups = run->plan.num_groups ? run->plan.num_groups : 1;
    bool none = own == OPTIMIZER_NONE || trainer->optimizer == OPTIMIZER_NONE;
    snprintf(text, size,
             "%s has the optimizer %s with %u groups, rank 0 %s with %u; all "
             "ranks have the same%s",
             name, rule_name(trainer->optimizer), trainer->num_groups,
             rule_name(own), groups,
             none && own != trainer->optimizer
                 ? " (in Python None is DistributedOptimizer's rule \"worker\","
                   " also of one that has loaded a state: say rule=)"
                 : "");
}

/* Compares digests: the chief knows nothing about models and can only see that
 * two differ, except of callers' models. False: TEXT says how the rank
 * differs. */
static bool matches_rank_0(const struct run *run,
                           const struct roster_slot *slot, char *text,
                           size_t size) {
    const struct run_trainer *trainer = &run->trainers[slot->rank];
    char name[64];
    roster_name(slot, name, sizeof name);
    if (trainer->num_groups &&
        (trainer->optimizer != run->job->optimizer.type ||
         (run->plan.num_groups &&
          trainer->num_groups != run->plan.num_groups))) {
        describe_optimizers(run, name, trainer, text, size);
        return false;
    }
    if (trainer->digest != run->plan.digest && trainer->layout) {
        describe_difference(run, name, trainer->layout, text, size);
        return false;
    }
    if (trainer->digest != run->plan.digest) {
        snprintf(text, size,
                 "%s on host %s has other parameters than rank 0: is it the "
                 "same release of capstan?",
                 name, slot->host);
        return false;
    }
    if (trainer->features != run->plan.features) {
        snprintf(text, size,
                 "%s on host %s has other features than rank 0: do the files "
                 "of vocabularies have the same words in the same order?",
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
    char text[1024];
    if (matches_rank_0(run, slot, text, sizeof text))
        return;
    if (!membership_is_joining(run, slot)) {
        run_stop(run, FAILURE_MODEL_MISMATCH, "%s", text);
        return;
    }
    membership_dismiss(run, slot, FAILURE_MODEL_MISMATCH, text);
}

/* Only for the text of a difference. */
static void store_layout(struct run_trainer *trainer,
                         const Capstan__ModelSpec *model_spec) {
    struct failure ignored;
    layout_free(&trainer->layout);
    if (plan_layout(&trainer->layout, model_spec->parameters,
                    model_spec->n_parameters, &ignored))
        trainer->layout = NULL;
}

void model_spec_receive(struct run *run, struct roster_slot *slot,
                        const Capstan__ModelSpec *model_spec) {
    struct run_trainer *trainer = &run->trainers[slot->rank];
    trainer->declared = device_replicas_declare(run, slot, model_spec);
    device_replicas_have_declared(run, slot);
    trainer->digest = model_spec->digest;
    trainer->features = model_spec->features;
    trainer->num_groups = (uint32_t)model_spec->n_groups;
    if (model_spec->n_groups)
        trainer->optimizer = (enum optimizer_type)model_spec->groups[0]->type;
    trainer->train_samples = model_spec->train_samples;
    trainer->test_samples = model_spec->test_samples;
    trainer->share_samples = model_spec->share_samples;
    trainer->synthetic = model_spec->synthetic;
    strategy_declare_rank(trainer, model_spec);
    if (slot->rank == 0)
        store_spec(run, model_spec);
    else if (model_spec->n_parameters)
        store_layout(trainer, model_spec);
    for (uint32_t r = 0; run->plan.layout && r < run->roster.num_ranks; r++)
        if (run->trainers[r].declared)
            model_spec_check(run, &run->roster.slots[r]);
}

bool model_spec_is_complete(const struct run *run) {
    uint32_t away = 0;
    for (uint32_t r = 0; r < run->roster.num_ranks; r++) {
        bool lacks = rewind_lacks(run, r);
        if (!run->trainers[r].declared && !lacks)
            return false;
        away += lacks;
    }
    return roster_count(&run->roster, CLUSTER_ROLES, ROSTER_HELD) + away ==
           run->roster.count;
}
