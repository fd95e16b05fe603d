/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base/spin_policy.h"

#include "core/base/time.h"

#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <unistd.h>

enum { MIN_CROWDED_CHECKS = 3 };
static const int64_t CHECK_INTERVAL = 20 * TIME_MS;

/* Runnable threads on the machine, this one included; 0: unknown. */
static int count_running(void) {
    char text[128];
    int count = 0;
    int file = open("/proc/loadavg", O_RDONLY | O_CLOEXEC);
    ssize_t size = file < 0 ? -1 : read(file, text, sizeof text - 1);
    if (file >= 0)
        close(file);
    if (size <= 0)
        return 0;
    text[size] = 0;
    return sscanf(text, "%*f %*f %*f %d/", &count) == 1 ? count : 0;
}

/* A single sample may hit a moment when all threads run, so it takes several in
 * a row to stop spinning: waking costs more than a few useless polls. */
bool spin_policy(struct spin_policy *policy, unsigned wanted, int64_t now) {
    cpu_set_t allowed;
    if (sched_getaffinity(0, sizeof allowed, &allowed) ||
        wanted > (unsigned)CPU_COUNT(&allowed))
        return false;
    if (!policy->last_check || now - policy->last_check >= CHECK_INTERVAL) {
        int threads = count_running();
        bool crowded = threads > CPU_COUNT(&allowed);
        policy->last_check = now;
        policy->known = threads > 0;
        policy->crowded_checks = crowded ? policy->crowded_checks + 1 : 0;
    }
    return policy->known && policy->crowded_checks < MIN_CROWDED_CHECKS;
}
