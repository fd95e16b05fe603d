/* SPDX-License-Identifier: Apache-2.0 */
/* Whether a thread may busy-wait: only where that takes no core from another
 * thread. */
#ifndef CAPSTAN_SPIN_POLICY_H
#define CAPSTAN_SPIN_POLICY_H

#include <stdbool.h>
#include <stdint.h>

/* Zero it before the first use. */
struct spin_policy {
    int64_t last_check;
    unsigned crowded_checks; /* samples in a row without a free core */
    bool known;
};

/* May this process busy-wait at NOW? True if it has a core for each of WANTED
 * threads, the caller included, and the machine runs no more threads than it
 * has cores. Samples /proc/loadavg at most every 20 ms; three crowded samples
 * in a row mean no. False if it cannot be read. */
bool spin_policy(struct spin_policy *policy, unsigned wanted, int64_t now);

#endif
