/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/base/spare_core.h"

#include "proto/base/time.h"

#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <unistd.h>

enum { BELIEVED = 3 };
static const int64_t LOOK_EVERY = 20 * TIME_MS;

/* Threads that run or could, this one among them; 0: not known. */
static int running(void) {
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
bool spare_core(struct spare_core *core, unsigned wanted, int64_t now) {
    cpu_set_t mine;
    if (sched_getaffinity(0, sizeof mine, &mine) ||
        wanted > (unsigned)CPU_COUNT(&mine))
        return false;
    if (!core->looked || now - core->looked >= LOOK_EVERY) {
        int threads = running();
        bool crowded = threads > CPU_COUNT(&mine);
        core->looked = now;
        core->known = threads > 0;
        core->crowded = crowded ? core->crowded + 1 : 0;
    }
    return core->known && core->crowded < BELIEVED;
}
