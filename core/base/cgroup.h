/* SPDX-License-Identifier: Apache-2.0 */
/* The control groups of this process, of version 1 and 2
 * (https://docs.kernel.org/admin-guide/cgroup-v2.html). */
#ifndef CAPSTAN_CGROUP_H
#define CAPSTAN_CGROUP_H

#include <stdbool.h>

/* A group; views. */
struct cgroup {
    const char *root;   /* what lies before all paths */
    const char *folder; /* with its files, from ROOT on */
    const char *name;   /* the end of `folder`, "" of a mount's own */
    bool v2;
};

/* Calls VISIT for each group that limits this process by CONTROLLER ("memory",
 * "cpu"): its own, then those above it. Where its own is not found, as in a
 * container that mounts its own group as the root, the root alone has the
 * files. ROOT is "", or what proc and sys lie below. */
void cgroup_visit(const char *root, const char *controller,
                  void (*visit)(void *context, const struct cgroup *group),
                  void *context);

#endif
