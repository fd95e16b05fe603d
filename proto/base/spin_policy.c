/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/base/spin_policy.h"

#include "proto/base/time.h"

#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <unistd.h>

enum { MIN_CROWDED_CHECKS = 3 };
static const int64_t CHECK_INTERVAL = 20 * TIME_MS;

/* Threads that run or could, this one among them; 0: not known. */
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

/* One look may fall into a moment when everything runs, so it is no reason to
 * sleep: waking costs more than a few looks in vain. */
bool spin_policy(struct spin_policy *core, unsigned wanted, int64_t now) {
    cpu_set_t allowed;
    if (sched_getaffinity(0, sizeof allowed, &allowed) ||
        wanted > (unsigned)CPU_COUNT(&allowed))
        return false;
    if (!core->last_check || now - core->last_check >= CHECK_INTERVAL) {
        int threads = count_running();
        bool crowded_checks = threads > CPU_COUNT(&allowed);
        core->last_check = now;
        core->known = threads > 0;
        core->crowded_checks = crowded_checks ? core->crowded_checks + 1 : 0;
    }
    return core->known && core->crowded_checks < MIN_CROWDED_CHECKS;
}
