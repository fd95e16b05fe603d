/* SPDX-License-Identifier: Apache-2.0 */
/* The names that descriptions give to roles. */
#ifndef CAPSTAN_ROLE_NAME_H
#define CAPSTAN_ROLE_NAME_H

#include "proto/cluster/cluster.h"

#include <stdbool.h>

/* The names that a source may use. */
enum role_names {
    ROLE_NAMES_TF,     /* chief, master, worker, ps, evaluator */
    ROLE_NAMES_VERTEX, /* the same and workerpool0 to workerpool3 */
};

/* False if NAME is not one of NAMES; else *ROLE is its role. */
bool role_name_find(enum role_names names, const char *name,
                    enum cluster_role *role);

/* The list of NAMES for error texts: "chief, master, ...". */
const char *role_name_list(enum role_names names);

/* The known name that NAME most likely stands for, or NULL. */
const char *role_name_nearest(const char *name);

#endif
