/* SPDX-License-Identifier: Apache-2.0 */
/* The chief that sends the plan is trusted to belong to the run, but not to be
 * free of faults: each number that later indexes an array or sizes memory is
 * checked here once. Parameters come first, because the layout computed from
 * them gives the number of blocks, and each block needs a place. */
#include "proto/plan/plan.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static enum status plan_read_parameter(struct parameter *out,
                                       const Capstan__Parameter *message,
                                       struct failure *why) {
    *out = (struct parameter){.init_bound = message->init_bound,
                              .init_shift = message->init_shift,
                              .init_kind = message->init_kind,
                              .kind = message->kind,
                              .dtype = message->dtype,
                              .group = message->group,
                              .values = message->values,
                              .num_dims = (uint32_t)message->n_dims};
    if (message->n_dims > LAYOUT_MAX_DIMS)
        return status_fail(why, FAILURE_BAD_MESSAGE,
                           "%zu dimensions (at most %d)", message->n_dims,
                           LAYOUT_MAX_DIMS);
    if (strlen(message->name) >= LAYOUT_MAX_NAME)
        return status_fail(why, FAILURE_BAD_MESSAGE, "a name of %zu bytes",
                           strlen(message->name));
    strcpy(out->name, message->name);
    for (size_t d = 0; d < message->n_dims; d++)
        out->dims[d] = message->dims[d];
    return STATUS_OK;
}

enum status plan_layout(struct layout **out, Capstan__Parameter **parameters,
                        size_t count, struct failure *why) {
    if (count > LAYOUT_MAX_PARAMETERS)
        return status_fail(why, FAILURE_BAD_MESSAGE, "%zu parameters", count);
    struct parameter *copies = calloc(count + 1, sizeof *copies);
    if (!copies)
        return status_fail(why, FAILURE_NO_MEMORY,
                           "no memory for %zu parameters", count);
    enum status status = STATUS_OK;
    for (size_t i = 0; !status && i < count; i++)
        status = plan_read_parameter(&copies[i], parameters[i], why);
    if (!status)
        status = layout_build(out, copies, (uint32_t)count, why);
    free(copies);
    return status;
}

/* One allocation for all messages, which array[0] begins: two calls of free
 * release it. */
Capstan__Parameter **plan_parameters(const struct layout *layout) {
    uint32_t count = layout->num_parameters;
    Capstan__Parameter **array = calloc(count + 1, sizeof *array);
    Capstan__Parameter *messages = calloc(count + 1, sizeof *messages);
    if (!array || !messages) {
        free(array);
        free(messages);
        return NULL;
    }
    for (uint32_t p = 0; p < count; p++) {
        struct parameter *parameter = &layout->parameters[p];
        capstan__parameter__init(&messages[p]);
        messages[p].name = parameter->name;
        messages[p].n_dims = parameter->num_dims;
        messages[p].dims = parameter->dims;
        messages[p].init_bound = parameter->init_bound;
        messages[p].init_shift = parameter->init_shift;
        messages[p].init_kind = parameter->init_kind;
        messages[p].kind = parameter->kind;
        messages[p].dtype = parameter->dtype;
        messages[p].group = parameter->group;
        messages[p].values = parameter->values;
        array[p] = &messages[p];
    }
    return array;
}

enum status plan_read_tables(struct layout *layout, Capstan__Table **tables,
                             size_t count, uint32_t num_partitions,
                             struct failure *why) {
    if (!count)
        return STATUS_OK;
    if (count > LAYOUT_MAX_TABLES)
        return status_fail(why, FAILURE_BAD_MESSAGE, "%zu tables", count);
    struct table *copies = calloc(count, sizeof *copies);
    if (!copies)
        return status_fail(why, FAILURE_NO_MEMORY, "no memory for %zu tables",
                           count);
    for (size_t t = 0; t < count; t++) {
        const Capstan__Table *message = tables[t];
        copies[t] = (struct table){.dim = message->dim,
                                   .init_bound = message->init_bound,
                                   .init_shift = message->init_shift,
                                   .init_kind = message->init_kind,
                                   .optimizer = message->optimizer,
                                   .admit = message->admit,
                                   .expire = message->expire,
                                   .max_rows = message->max_rows,
                                   .num_ids = message->num_ids,
                                   .assigned = message->assigned};
        snprintf(copies[t].name, sizeof copies[t].name, "%s", message->name);
    }
    enum status status =
        layout_add_tables(layout, copies, (uint32_t)count, num_partitions, why);
    free(copies);
    return status;
}

Capstan__Table **plan_tables(const struct layout *layout) {
    uint32_t count = layout->num_tables;
    Capstan__Table **array =
        count ? malloc(count * (sizeof *array + sizeof **array)) : NULL;
    Capstan__Table *messages = (Capstan__Table *)(array + count);
    for (uint32_t t = 0; array && t < count; t++) {
        struct table *table = &layout->tables[t];
        capstan__table__init(&messages[t]);
        messages[t].name = table->name;
        messages[t].dim = table->dim;
        messages[t].init_bound = table->init_bound;
        messages[t].init_shift = table->init_shift;
        messages[t].init_kind = table->init_kind;
        messages[t].optimizer = table->optimizer;
        messages[t].admit = table->admit;
        messages[t].expire = table->expire;
        messages[t].max_rows = table->max_rows;
        messages[t].num_ids = table->num_ids;
        messages[t].assigned = table->assigned;
        array[t] = &messages[t];
    }
    return array;
}

void plan_free_parameters(Capstan__Parameter ***array) {
    if (*array)
        free((*array)[0]);
    free(*array);
    *array = NULL;
}

static enum status read_ps_info(struct plan *plan, const Capstan__Plan *message,
                                struct failure *why) {
    plan->num_ps = (uint32_t)message->n_ps;
    plan->ps = calloc(message->n_ps + 1, sizeof *plan->ps);
    if (!plan->ps)
        return status_fail(why, FAILURE_NO_MEMORY, "no memory for the plan");
    if ((message->n_ps == 0 && !plan->allreduce) || message->n_ps > UINT16_MAX)
        return status_fail(why, FAILURE_BAD_MESSAGE, "a plan of %zu ps",
                           message->n_ps);
    for (uint32_t i = 0; i < plan->num_ps; i++) {
        snprintf(plan->ps[i].address, sizeof plan->ps[i].address, "%s",
                 message->ps[i]->address);
        plan->ps[i].incarnation = message->ps[i]->incarnation;
        plan->ps[i].shm_key = message->ps[i]->shm_key;
        plan->ps[i].index = message->ps[i]->index;
        if (i && plan->ps[i].index <= plan->ps[i - 1].index)
            return status_fail(why, FAILURE_BAD_MESSAGE,
                               "a plan with ps %u after ps %u",
                               plan->ps[i].index, plan->ps[i - 1].index);
    }
    return STATUS_OK;
}

bool plan_find_ps(const struct plan *plan, uint32_t index, uint32_t *place) {
    uint32_t p = 0;
    while (p < plan->num_ps && plan->ps[p].index != index)
        p++;
    *place = p;
    return p < plan->num_ps;
}

/* From memory each part that is on a ps comes from one of them. */
static enum status read_buddies(struct plan *plan, const Capstan__Plan *message,
                                struct failure *why) {
    if (!message->n_buddies)
        return STATUS_OK;
    if (!plan->restore_manifest || plan->restore_folder)
        return status_fail(why, FAILURE_BAD_MESSAGE,
                           "a plan of %zu copies in memory for %u ps",
                           message->n_buddies, plan->num_ps);
    plan->buddies = malloc(message->n_buddies * sizeof *plan->buddies);
    if (!plan->buddies)
        return status_fail(why, FAILURE_NO_MEMORY, "no memory for the plan");
    plan->num_buddies = (uint32_t)message->n_buddies;
    for (uint32_t i = 0; i < plan->num_buddies; i++) {
        plan->buddies[i] = message->buddies[i];
        if (plan->buddies[i] >= plan->num_ps)
            return status_fail(why, FAILURE_BAD_MESSAGE,
                               "a copy in memory on ps %u of %u",
                               plan->buddies[i], plan->num_ps);
    }
    return STATUS_OK;
}

static enum status read_block_ps(struct plan *plan,
                                 const Capstan__Plan *message,
                                 struct failure *why) {
    uint32_t count = layout_units(plan->layout);
    if (plan->allreduce)
        return STATUS_OK;
    plan->block_ps = malloc((count + 1) * sizeof *plan->block_ps);
    if (!plan->block_ps)
        return status_fail(why, FAILURE_NO_MEMORY, "no memory for %u blocks",
                           count);
    if (message->block_ps.len != count * sizeof *plan->block_ps)
        return status_fail(why, FAILURE_BAD_MESSAGE,
                           "a plan of %zu places for %u "
                           "blocks",
                           message->block_ps.len / 2, count);
    memcpy(plan->block_ps, message->block_ps.data, message->block_ps.len);
    for (uint32_t b = 0; b < count; b++)
        if (plan->block_ps[b] >= plan->num_ps)
            return status_fail(why, FAILURE_BAD_MESSAGE,
                               "block %u on ps %u of %u", b, plan->block_ps[b],
                               plan->num_ps);
    return STATUS_OK;
}

enum status plan_read_scaler(struct loss_scaler *out,
                             const Capstan__LossScaler *message,
                             struct failure *why) {
    *out = (struct loss_scaler){0};
    if (!message)
        return STATUS_OK;
    if (!(message->scale >= 0 && isfinite(message->scale)))
        return status_fail(why, FAILURE_BAD_MESSAGE, "a loss scale of %g",
                           message->scale);
    *out = (struct loss_scaler){.scale = message->scale,
                                .good = message->good,
                                .hysteresis = message->hysteresis,
                                .skipped = message->skipped};
    return STATUS_OK;
}

Capstan__LossScaler plan_scaler_message(const struct loss_scaler *scaler) {
    Capstan__LossScaler message = CAPSTAN__LOSS_SCALER__INIT;
    message.scale = scaler->scale;
    message.good = scaler->good;
    message.hysteresis = scaler->hysteresis;
    message.skipped = scaler->skipped;
    return message;
}

/* NULL for "". False: no memory. */
static bool copy_text(char **out, const char *text) {
    bool empty = !text || !text[0];
    *out = empty ? NULL : strdup(text);
    return empty || *out;
}

/* Without its folder a restored plan would look like a new run. */
static enum status read_paths(struct plan *plan, const Capstan__Plan *message,
                              struct failure *why) {
    if (!copy_text(&plan->restore_folder, message->restore_folder) ||
        !copy_text(&plan->restore_manifest, message->restore_manifest) ||
        !copy_text(&plan->restore_base, message->restore_base) ||
        !copy_text(&plan->checkpoint_dir, message->checkpoint_dir))
        return status_fail(why, FAILURE_NO_MEMORY, "no memory for the plan");
    if (plan->restore_folder && !plan->restore_manifest)
        return status_fail(why, FAILURE_BAD_MESSAGE,
                           "a plan that restores without a manifest");
    return STATUS_OK;
}

static enum status read_run_schedule(struct plan *plan,
                                     const Capstan__Plan *message,
                                     const struct job *job,
                                     struct failure *why) {
    plan->run_schedule = (struct run_schedule){
        .start = message->start_step,
        .start_batch = message->start_batch,
        .total = message->total_steps,
        .accumulation = job->accumulation,
        .epoch_batches = message->epoch_batches,
        .checkpoints = message->checkpoint_dir[0],
        .every_steps = job->checkpoint.every_steps,
        .every_epochs = job->checkpoint.every_epochs,
        .delta_every_steps = job->checkpoint.delta_every_steps,
        .buddy_steps = message->buddy_steps,
    };
    if (!message->epoch_batches)
        return status_fail(why, FAILURE_BAD_MESSAGE, "a plan of empty epochs");
    return STATUS_OK;
}

/* The number of each trainer, or none, which means one each. */
static enum status check_replicas(const Capstan__Plan *message,
                                  struct failure *why) {
    size_t count = message->n_replicas;
    if (!message->trainers || message->trainers > PLAN_MAX_TRAINERS)
        return status_fail(why, FAILURE_BAD_MESSAGE,
                           "a plan of %u trainers (1..%d)", message->trainers,
                           PLAN_MAX_TRAINERS);
    if (count && count != message->trainers)
        return status_fail(why, FAILURE_BAD_MESSAGE,
                           "a plan of %u trainers with the replicas of %zu",
                           message->trainers, count);
    for (size_t r = 0; r < count; r++)
        if (!message->replicas[r] || message->replicas[r] > JOB_MAX_DEVICES)
            return status_fail(why, FAILURE_BAD_MESSAGE,
                               "a plan of %u replicas (1..%d)",
                               message->replicas[r], JOB_MAX_DEVICES);
    for (size_t r = 0; message->resident && r < count; r++)
        if (message->replicas[r] > 1)
            return status_fail(why, FAILURE_BAD_MESSAGE,
                               "a plan in which gradients stay on the device "
                               "of a trainer that has %u",
                               message->replicas[r]);
    return STATUS_OK;
}

enum status plan_settle_job(struct job *job, const Capstan__Plan *message,
                            struct failure *why) {
    struct job_replicas replicas = {message->trainers, 0, 1};
    enum status status = check_replicas(message, why);
    if (status)
        return status;
    for (size_t r = 0; r < message->n_replicas; r++)
        replicas.all += replicas.each = message->replicas[r];
    if (!message->n_replicas)
        replicas.all = message->trainers;
    struct optimizer_group *groups;
    status = optimizer_group_read(&groups, message->groups, message->n_groups,
                                  job->model.type == JOB_EXTERNAL, why);
    if (groups)
        job->optimizer = groups[0].optimizer;
    free(groups);
    return status ? status : job_solve_replicas(job, replicas, why);
}

/* Of a job's groups; callers scale the rates that they set. */
static void scale_rates(const struct plan *plan, const struct job *job,
                        struct optimizer_group *groups, uint32_t count) {
    for (uint32_t g = 0;
         job->scale_lr && job->model.type != JOB_EXTERNAL && g < count; g++)
        groups[g].lr *= plan_all_replicas(plan);
}

/* Without groups all parameters are in the first. */
static enum status read_groups(struct plan *plan, const Capstan__Plan *message,
                               const struct job *job, struct failure *why) {
    enum status status =
        optimizer_group_read(&plan->groups, message->groups, message->n_groups,
                             job->model.type == JOB_EXTERNAL, why);
    uint32_t most = message->n_groups ? (uint32_t)message->n_groups : 1;
    plan->num_groups = (uint32_t)message->n_groups;
    for (uint32_t p = 0; !status && p < plan->layout->num_parameters; p++)
        if (plan->layout->parameters[p].group >= most)
            status = status_fail(why, FAILURE_BAD_MESSAGE,
                                 "parameter \"%s\" in group %u of %u",
                                 plan->layout->parameters[p].name,
                                 plan->layout->parameters[p].group, most);
    if (!status)
        scale_rates(plan, job, plan->groups, plan->num_groups);
    return status;
}

static enum status read_table_groups(struct plan *plan,
                                     const Capstan__Plan *message,
                                     const struct job *job,
                                     struct failure *why) {
    const struct layout *layout = plan->layout;
    enum status status =
        optimizer_group_read(&plan->table_groups, message->table_groups,
                             message->n_table_groups, false, why);
    plan->num_table_groups = (uint32_t)message->n_table_groups;
    for (uint32_t t = 0; !status && t < layout->num_tables; t++)
        if (layout->tables[t].optimizer > message->n_table_groups)
            status = status_fail(
                why, FAILURE_BAD_MESSAGE,
                "table \"%s\" with optimizer %u of %zu", layout->tables[t].name,
                layout->tables[t].optimizer, message->n_table_groups);
    if (!status)
        scale_rates(plan, job, plan->table_groups, plan->num_table_groups);
    return status;
}

static enum status read_replicas(struct plan *plan,
                                 const Capstan__Plan *message,
                                 struct failure *why) {
    size_t bytes = message->n_replicas * sizeof *plan->replicas;
    enum status status = check_replicas(message, why);
    plan->num_ranks = message->trainers;
    if (status || !bytes)
        return status;
    plan->replicas = malloc(bytes);
    if (!plan->replicas)
        return status_fail(why, FAILURE_NO_MEMORY, "no memory for the plan");
    memcpy(plan->replicas, message->replicas, bytes);
    return STATUS_OK;
}

enum status plan_check_trainers(const struct plan *plan, uint32_t trainers,
                                struct failure *why) {
    if (plan->num_ranks == trainers)
        return STATUS_OK;
    return status_fail(why, FAILURE_BAD_MESSAGE,
                       "a plan of %u trainers, where the chief has counted %u",
                       plan->num_ranks, trainers);
}

uint32_t plan_replicas(const struct plan *plan, uint32_t rank) {
    return plan->replicas ? plan->replicas[rank] : 1;
}

uint32_t plan_first_replica(const struct plan *plan, uint32_t rank) {
    uint32_t first = 0;
    for (uint32_t r = 0; r < rank; r++)
        first += plan_replicas(plan, r);
    return first;
}

uint32_t plan_all_replicas(const struct plan *plan) {
    return plan_first_replica(plan, plan->num_ranks);
}

/* A value that depends on the layout is read after it, and the places before
 * the blocks on them. */
enum status plan_read(struct plan **out, const Capstan__Plan *message,
                      const struct job *job, struct failure *why) {
    struct plan *plan = calloc(1, sizeof *plan);
    if (!plan)
        return status_fail(why, FAILURE_NO_MEMORY, "no memory for the plan");
    plan->pull_first = message->pull_first;
    plan->allreduce = message->strategy == JOB_ALLREDUCE;
    snprintf(plan->backend, sizeof plan->backend, "%s", message->backend);
    plan->resident = message->resident;
    enum status status = read_paths(plan, message, why);
    if (!status)
        status = plan_read_scaler(&plan->scaler, message->scaler, why);
    if (!status && plan->scaler.skipped > message->start_step)
        status = status_fail(why, FAILURE_BAD_MESSAGE,
                             "a plan of %llu steps skipped before step %llu",
                             (unsigned long long)plan->scaler.skipped,
                             (unsigned long long)message->start_step);
    if (!status)
        status = read_run_schedule(plan, message, job, why);
    if (!status)
        status = read_replicas(plan, message, why);
    if (!status)
        status = plan_layout(&plan->layout, message->parameters,
                             message->n_parameters, why);
    if (!status)
        status = plan_read_tables(plan->layout, message->tables,
                                  message->n_tables, message->partitions, why);
    if (!status)
        status = read_table_groups(plan, message, job, why);
    if (!status)
        status = read_groups(plan, message, job, why);
    if (!status)
        status = read_ps_info(plan, message, why);
    if (!status)
        status = read_buddies(plan, message, why);
    if (!status)
        status = read_block_ps(plan, message, why);
    if (status)
        plan_close(&plan);
    *out = plan;
    return status;
}

void plan_close(struct plan **where) {
    struct plan *plan = *where;
    *where = NULL;
    if (!plan)
        return;
    layout_free(&plan->layout);
    free(plan->block_ps);
    free(plan->replicas);
    free(plan->groups);
    free(plan->table_groups);
    free(plan->ps);
    free(plan->restore_folder);
    free(plan->restore_manifest);
    free(plan->restore_base);
    free(plan->checkpoint_dir);
    free(plan->buddies);
    free(plan);
}

uint32_t plan_units(const struct plan *plan, uint32_t ps, uint32_t *ids) {
    uint32_t count = 0, units = layout_units(plan->layout);
    for (uint32_t b = 0; plan->block_ps && b < units; b++)
        if (plan->block_ps[b] == ps)
            ids[count++] = b;
    return count;
}
