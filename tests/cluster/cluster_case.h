/* SPDX-License-Identifier: Apache-2.0 */
/* A form of the cluster description and what must come of it. */
#ifndef CAPSTAN_CLUSTER_CASE_H
#define CAPSTAN_CLUSTER_CASE_H

#include "proto/cluster/cluster.h"

#include <stddef.h>

enum { CLUSTER_CASE_VARIABLES = 10 };

struct cluster_case_variable {
    const char *name, *value;
};

/* In `expect` quotes are single. It is either a class of error, or an object
 * of those fields of `capstan cluster` that matter. */
struct cluster_case {
    const char *description; /* what the form shows, for a failing test */
    struct cluster_case_variable environment[CLUSTER_CASE_VARIABLES];
    const char *expect;
    struct cluster_flags flags;
};

/* A form of one variable, VALUE with single quotes in place of double ones. */
struct cluster_case_text {
    const char *description, *value, *expect;
};

/* A cluster_getenv: CONTEXT is an array of CLUSTER_CASE_VARIABLES. */
const char *cluster_case_lookup(void *context, const char *name);

/* Fails the running test unless FORM comes out as it expects. */
void cluster_case_check(const struct cluster_case *form);

/* The same for all of an array. */
#define cluster_case_check_all(forms)                                          \
    for (size_t form = 0; form < sizeof(forms) / sizeof *(forms); form++)      \
    cluster_case_check(&(forms)[form])

/* The same for COUNT texts, each as the variable NAME. */
void cluster_case_check_texts(const char *name,
                              const struct cluster_case_text *texts,
                              size_t count);

/* A copy of TEXT with every single quote doubled; the caller frees it. */
char *cluster_case_requote(const char *text);

#endif
