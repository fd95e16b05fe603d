/* SPDX-License-Identifier: Apache-2.0 */
/* Whether a thread may wait awake: only where that keeps no other from its
 * core. */
#ifndef CAPSTAN_SPIN_POLICY_H
#define CAPSTAN_SPIN_POLICY_H

#include <stdbool.h>
#include <stdint.h>

/* Zero at the start. */
struct spin_policy {
    int64_t last_check;
    unsigned crowded_checks; /* looks in a row that found none */
    bool known;
};

/* Has this process, at NOW, a core for each of WANTED threads, itself among
 * them, and do no more threads run on the machine than it has cores? Looks at
 * /proc/loadavg each 20 ms at most, and believes that all are taken when three
 * looks in a row say so; false where it cannot be read. */
bool spin_policy(struct spin_policy *core, unsigned wanted, int64_t now);

#endif
