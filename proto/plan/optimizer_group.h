/* SPDX-License-Identifier: Apache-2.0 */
/* The optimizer by groups of parameters. Trainers of an external model set it:
 * one type, whose values may differ by group and change between steps. For a
 * built-in model the job does: group 0 has the job's own optimizer, the others
 * those of its `optimizers`, of any types. */
#ifndef CAPSTAN_OPTIMIZER_GROUP_H
#define CAPSTAN_OPTIMIZER_GROUP_H

#include "core/base/status.h"
#include "proto/job/job.h"
#include "proto/messages/control.pb-c.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { OPTIMIZER_GROUPS_MAX = 256 };

/* What may change between steps. */
enum optimizer_value {
    OPTIMIZER_LR,
    OPTIMIZER_MOMENTUM,
    OPTIMIZER_DAMPENING,
    OPTIMIZER_WEIGHT_DECAY,
    OPTIMIZER_BETA1,
    OPTIMIZER_BETA2,
    OPTIMIZER_EPS,
    OPTIMIZER_ALPHA,
    OPTIMIZER_LR_DECAY,
    OPTIMIZER_VALUES
};

struct optimizer_group {
    struct optimizer optimizer;
    double lr;
};

/* Copies GROUP's changeable values to VALUES [OPTIMIZER_VALUES], and back. */
void optimizer_group_get(const struct optimizer_group *group, double *values);
void optimizer_group_put(struct optimizer_group *group, const double *values);

/* Adds what is pushed to the weights, to the bit: w - 1 * -change. */
struct optimizer_group optimizer_group_changes(void);
bool optimizer_group_is_changes(const struct optimizer_group *group);

/* Sets KEY, as in the job's optimizer.params ("lr", "momentum", "beta1", ...;
 * booleans are 0 or 1). STATUS_CONFIG: no such key of this optimizer, or a
 * value that is not allowed. */
enum status optimizer_group_set(struct optimizer_group *group, const char *key,
                                double value, struct failure *why) MUST_CHECK;

/* STATUS_FAILED unless COUNT is COUNT of values and each is finite and in
 * range. */
enum status optimizer_group_check(const double *values, size_t count,
                                  struct failure *why) MUST_CHECK;

/* Writes the groups of JOB to GROUPS [JOB_GROUPS]; returns how many, 0 if it
 * names none. */
uint32_t optimizer_group_of_job(const struct job *job,
                                struct optimizer_group *groups);

/* The optimizer of GROUP among GROUPS; OWN if they are NULL. */
const struct optimizer *optimizer_group_find(
    const struct optimizer_group *groups, uint32_t group,
    const struct optimizer *own);

/* GROUPS as messages; free them with optimizer_group_free. NULL: no memory. */
Capstan__OptimizerGroup **optimizer_group_messages(
    const struct optimizer_group *groups, uint32_t count);
void optimizer_group_free(Capstan__OptimizerGroup ***messages);

/* Reads COUNT messages; ALIKE: all must have one type and the same state. *OUT
 * is NULL if there are none; free(3). */
enum status optimizer_group_read(struct optimizer_group **out,
                                 Capstan__OptimizerGroup **messages,
                                 size_t count, bool alike,
                                 struct failure *why) MUST_CHECK;

/* FAILURE_JOB_INVALID unless tables can be updated by OPTIMIZER, which touches
 * only the rows that are pushed, also with weight decay: SGD without momentum,
 * Adagrad, Adam, AdamW and Ftrl. */
enum status optimizer_group_check_table(const struct optimizer *optimizer,
                                        const char *table,
                                        struct failure *why) MUST_CHECK;

#endif
