/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/plan/optimizer_group.h"

#include "core/tensor/rule.h"
#include "proto/job/job_schema.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OF_OPTIMIZER(member) offsetof(struct optimizer_group, optimizer.member)

/* A value: its key, its field, its range. The job's keys below optimizer.params
 * say which optimizers have it. */
struct value_row {
    const char *key;
    size_t field;
    double min, max; /* both allowed */
};
#define VALUE(member, from, to)                                                \
    { #member, OF_OPTIMIZER(member), from, to }

/* The changeable ones, by enum optimizer_value, then those that are fixed. */
static const struct value_row reals[] = {
    [OPTIMIZER_LR] = {"lr", offsetof(struct optimizer_group, lr), 0, INFINITY},
    [OPTIMIZER_MOMENTUM] = VALUE(momentum, 0, INFINITY),
    [OPTIMIZER_DAMPENING] = VALUE(dampening, -INFINITY, INFINITY),
    [OPTIMIZER_WEIGHT_DECAY] = VALUE(weight_decay, 0, INFINITY),
    [OPTIMIZER_BETA1] = VALUE(beta1, 0, 1),
    [OPTIMIZER_BETA2] = VALUE(beta2, 0, 1),
    [OPTIMIZER_EPS] = VALUE(eps, 0, INFINITY),
    [OPTIMIZER_ALPHA] = VALUE(alpha, 0, 1),
    [OPTIMIZER_LR_DECAY] = VALUE(lr_decay, 0, INFINITY),
    VALUE(initial_accumulator_value, 0, INFINITY),
    VALUE(learning_rate_power, -INFINITY, 0),
    {"l1_regularization_strength", OF_OPTIMIZER(l1), 0, INFINITY},
    {"l2_regularization_strength", OF_OPTIMIZER(l2), 0, INFINITY},
};

static const struct value_row flags[] = {
    VALUE(nesterov, 0, 1),
    VALUE(maximize, 0, 1),
    VALUE(centered, 0, 1),
    VALUE(amsgrad, 0, 1),
};

enum {
    REALS = sizeof reals / sizeof *reals,
    FLAGS = sizeof flags / sizeof *flags
};

static double *real_at(const struct optimizer_group *group, unsigned row) {
    return (double *)((char *)group + reals[row].field);
}

static bool *flag_at(const struct optimizer_group *group, unsigned row) {
    return (bool *)((char *)group + flags[row].field);
}

void optimizer_group_get(const struct optimizer_group *group, double *values) {
    for (unsigned v = 0; v < OPTIMIZER_VALUES; v++)
        values[v] = *real_at(group, v);
}

void optimizer_group_put(struct optimizer_group *group, const double *values) {
    for (unsigned v = 0; v < OPTIMIZER_VALUES; v++)
        *real_at(group, v) = values[v];
}

struct optimizer_group optimizer_group_changes(void) {
    struct optimizer_group changes = {
        .optimizer = {.type = OPTIMIZER_SGD, .maximize = true}, .lr = 1};
    return changes;
}

bool optimizer_group_is_changes(const struct optimizer_group *group) {
    const struct optimizer *rule = &group->optimizer;
    return rule->type == OPTIMIZER_SGD && rule->maximize && group->lr == 1 &&
           rule->momentum == 0 && rule->weight_decay == 0;
}

static bool is_value_allowed(const struct value_row *row, double value) {
    return isfinite(value) && value >= row->min && value <= row->max;
}

/* The job has beta1 and beta2 in one key. */
static bool has_value(enum optimizer_type type, const struct value_row *row) {
    bool beta = !strncmp(row->key, "beta", 4);
    char path[64];
    snprintf(path, sizeof path, "optimizer.params.%s",
             beta ? "betas" : row->key);
    const struct job_key *key;
    for (size_t i = 0; (key = job_schema_row(NULL, i)); i++)
        if (key->optimizers & 1u << type && !strcmp(key->path, path))
            return true;
    return false;
}

static const struct value_row *find_row(const struct optimizer_group *group,
                                        const char *key, bool *is_flag) {
    for (unsigned i = 0; i < REALS + FLAGS; i++) {
        *is_flag = i >= REALS;
        const struct value_row *row = *is_flag ? &flags[i - REALS] : &reals[i];
        if (!strcmp(row->key, key))
            return has_value(group->optimizer.type, row) ? row : NULL;
    }
    return NULL;
}

enum status optimizer_group_set(struct optimizer_group *group, const char *key,
                                double value, struct failure *why) {
    bool is_flag;
    const struct value_row *row = find_row(group, key, &is_flag);
    if (!row)
        return status_fail(why, FAILURE_JOB_INVALID,
                           "the optimizer has no \"%.64s\"", key);
    if (!is_value_allowed(row, value) || (is_flag && value != 0 && value != 1))
        return status_fail(why, FAILURE_JOB_INVALID,
                           "\"%s\" of the optimizer: found %g; allowed are %g "
                           "to %g",
                           key, value, row->min, row->max);
    if (is_flag)
        *(bool *)((char *)group + row->field) = value != 0;
    else
        *(double *)((char *)group + row->field) = value;
    return STATUS_OK;
}

uint32_t optimizer_group_of_job(const struct job *job,
                                struct optimizer_group *groups) {
    uint32_t count = 1;
    groups[0] = (struct optimizer_group){job->optimizer, job->schedule.lr};
    for (int g = JOB_GROUP_WIDE; g < JOB_GROUPS; g++)
        if (job->groups[g].given)
            groups[count++] = (struct optimizer_group){job->groups[g].optimizer,
                                                       job->groups[g].lr};
    return count > 1 ? count : 0;
}

const struct optimizer *optimizer_group_find(
    const struct optimizer_group *groups, uint32_t group,
    const struct optimizer *own) {
    return groups ? &groups[group].optimizer : own;
}

enum status optimizer_group_check(const double *values, size_t count,
                                  struct failure *why) {
    bool allowed = count == OPTIMIZER_VALUES;
    for (unsigned v = 0; allowed && v < OPTIMIZER_VALUES; v++)
        allowed = is_value_allowed(&reals[v], values[v]);
    return allowed ? STATUS_OK
                   : status_fail(why, FAILURE_BAD_MESSAGE,
                                 "values of an optimizer's group that are not "
                                 "allowed");
}

/* One allocation for the list, one for the messages, one for their values. */
Capstan__OptimizerGroup **optimizer_group_messages(
    const struct optimizer_group *groups, uint32_t count) {
    Capstan__OptimizerGroup **list = calloc(count + 1, sizeof *list);
    Capstan__OptimizerGroup *messages = calloc(count + 1, sizeof *messages);
    double *values = calloc((count + 1) * REALS, sizeof *values);
    protobuf_c_boolean *words = calloc((count + 1) * FLAGS, sizeof *words);
    if (!list || !messages || !values || !words) {
        free(list);
        free(messages);
        free(values);
        free(words);
        return NULL;
    }
    for (uint32_t g = 0; g <= count; g++) {
        capstan__optimizer_group__init(&messages[g]);
        messages[g].n_values = REALS;
        messages[g].values = values + g * REALS;
        messages[g].n_flags = FLAGS;
        messages[g].flags = words + g * FLAGS;
        list[g] = &messages[g];
        if (g == count)
            break;
        messages[g].type = groups[g].optimizer.type;
        messages[g].keeps_momentum = groups[g].optimizer.keeps_momentum;
        for (unsigned v = 0; v < REALS; v++)
            messages[g].values[v] = *real_at(&groups[g], v);
        for (unsigned f = 0; f < FLAGS; f++)
            messages[g].flags[f] = *flag_at(&groups[g], f);
    }
    return list;
}

void optimizer_group_free(Capstan__OptimizerGroup ***list) {
    if (!*list)
        return;
    free((*list)[0]->values);
    free((*list)[0]->flags);
    free((*list)[0]);
    free(*list);
    *list = NULL;
}

static bool read_group(struct optimizer_group *group,
                       const Capstan__OptimizerGroup *message) {
    if (message->type >= OPTIMIZER_TYPES || message->n_values != REALS ||
        message->n_flags != FLAGS)
        return false;
    *group = (struct optimizer_group){
        .optimizer = {.type = (enum optimizer_type)message->type,
                      .keeps_momentum = message->keeps_momentum}};
    for (unsigned v = 0; v < REALS; v++) {
        if (!is_value_allowed(&reals[v], message->values[v]))
            return false;
        *real_at(group, v) = message->values[v];
    }
    for (unsigned f = 0; f < FLAGS; f++)
        *flag_at(group, f) = message->flags[f];
    return true;
}

enum status optimizer_group_read(struct optimizer_group **out,
                                 Capstan__OptimizerGroup **messages,
                                 size_t count, bool alike,
                                 struct failure *why) {
    *out = NULL;
    bool valid = count <= OPTIMIZER_GROUPS_MAX;
    if (!count)
        return STATUS_OK;
    struct optimizer_group *groups =
        valid ? calloc(count, sizeof *groups) : NULL;
    if (valid && !groups)
        return status_fail(why, FAILURE_NO_MEMORY, "no memory for %zu groups",
                           count);
    for (size_t g = 0; valid && g < count; g++)
        valid =
            read_group(&groups[g], messages[g]) &&
            (!alike || (groups[g].optimizer.type == groups[0].optimizer.type &&
                        rule_slots(&groups[g].optimizer) ==
                            rule_slots(&groups[0].optimizer)));
    if (!valid) {
        free(groups);
        return status_fail(why, FAILURE_BAD_MESSAGE,
                           "groups of an optimizer that are not allowed");
    }
    *out = groups;
    return STATUS_OK;
}

enum status optimizer_group_check_table(const struct optimizer *optimizer,
                                        const char *table,
                                        struct failure *why) {
    bool known = optimizer->type == OPTIMIZER_SGD ||
                 optimizer->type == OPTIMIZER_ADAGRAD ||
                 optimizer->type == OPTIMIZER_ADAM ||
                 optimizer->type == OPTIMIZER_ADAMW ||
                 optimizer->type == OPTIMIZER_FTRL;
    if (known && optimizer->momentum == 0)
        return STATUS_OK;
    char found[64];
    if (!known)
        snprintf(found, sizeof found, "%s", rule_name(optimizer->type));
    else
        snprintf(found, sizeof found, "momentum %g", optimizer->momentum);
    return status_fail(
        why, FAILURE_JOB_INVALID,
        "found %s for table \"%s\"; allowed for tables are SGD without "
        "momentum, Adagrad, Adam, AdamW and Ftrl, as a row that no push names "
        "stays as it is",
        found, table);
}
