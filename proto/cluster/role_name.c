/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/cluster/role_name.h"

#include <string.h>
#include <strings.h>

struct role_name {
    const char *name;
    enum cluster_role role;
};

static const struct role_name tf_names[] = {
    {"chief", CLUSTER_CHIEF},         {"master", CLUSTER_CHIEF},
    {"worker", CLUSTER_WORKER},       {"ps", CLUSTER_PS},
    {"evaluator", CLUSTER_EVALUATOR},
};

static const struct role_name vertex_names[] = {
    {"workerpool0", CLUSTER_CHIEF},
    {"workerpool1", CLUSTER_WORKER},
    {"workerpool2", CLUSTER_PS},
    {"workerpool3", CLUSTER_EVALUATOR},
};

/* Names that other systems and users give to the roles. */
static const struct role_name synonyms[] = {
    {"coordinator", CLUSTER_CHIEF}, {"leader", CLUSTER_CHIEF},
    {"launcher", CLUSTER_CHIEF},    {"scheduler", CLUSTER_CHIEF},
    {"trainer", CLUSTER_WORKER},    {"replica", CLUSTER_WORKER},
    {"slave", CLUSTER_WORKER},      {"server", CLUSTER_PS},
    {"parameter", CLUSTER_PS},      {"param", CLUSTER_PS},
    {"eval", CLUSTER_EVALUATOR},    {"validator", CLUSTER_EVALUATOR},
};

#define COUNT(table) (sizeof(table) / sizeof *(table))

const char *cluster_role_name(enum cluster_role role) {
    static const char *const names[] = {[CLUSTER_CHIEF] = "chief",
                                        [CLUSTER_WORKER] = "worker",
                                        [CLUSTER_PS] = "ps",
                                        [CLUSTER_EVALUATOR] = "evaluator"};
    return names[role];
}

static const struct role_name *role_name_find_in(const struct role_name *table,
                                                 size_t count,
                                                 const char *name) {
    for (size_t i = 0; i < count; i++)
        if (strcmp(table[i].name, name) == 0)
            return &table[i];
    return NULL;
}

bool role_name_find(enum role_names names, const char *name,
                    enum cluster_role *role) {
    const struct role_name *found =
        role_name_find_in(tf_names, COUNT(tf_names), name);
    if (!found && names == ROLE_NAMES_VERTEX)
        found = role_name_find_in(vertex_names, COUNT(vertex_names), name);
    if (found)
        *role = found->role;
    return found != NULL;
}

const char *role_name_list(enum role_names names) {
    if (names == ROLE_NAMES_VERTEX)
        return "chief, master, worker, ps, evaluator, workerpool0 (chief), "
               "workerpool1 (worker), workerpool2 (ps), workerpool3 "
               "(evaluator)";
    return "chief, master, worker, ps, evaluator";
}

/* ps_hosts, workers, Chief, parameter-server: the prefix gives the role. */
static const struct role_name *find_prefix(const struct role_name *table,
                                           size_t count, const char *name) {
    for (size_t i = 0; i < count; i++)
        if (strncasecmp(name, table[i].name, strlen(table[i].name)) == 0)
            return &table[i];
    return NULL;
}

/* True if one added, removed, changed or swapped letter turns A into B. */
static bool one_letter_apart(const char *a, const char *b) {
    while (*a && *a == *b)
        a++, b++;
    if (strcmp(a, b) == 0 || (*a && strcmp(a + 1, b) == 0) ||
        (*b && strcmp(a, b + 1) == 0))
        return true;
    if (!*a || !*b)
        return false;
    bool swapped = a[1] && a[0] == b[1] && a[1] == b[0];
    return strcmp(a + 1, b + 1) == 0 || (swapped && !strcmp(a + 2, b + 2));
}

static const struct role_name *find_misspelt(const char *name) {
    for (size_t i = 0; i < COUNT(tf_names); i++)
        if (strlen(tf_names[i].name) > 2 &&
            one_letter_apart(name, tf_names[i].name))
            return &tf_names[i];
    return NULL;
}

const char *role_name_nearest(const char *name) {
    const struct role_name *found =
        find_prefix(vertex_names, COUNT(vertex_names), name);
    if (found)
        return cluster_role_name(found->role);
    found = find_prefix(tf_names, COUNT(tf_names), name);
    if (!found)
        found = find_misspelt(name);
    if (found)
        return found->name;
    found = find_prefix(synonyms, COUNT(synonyms), name);
    return found ? cluster_role_name(found->role) : NULL;
}
