/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base/time_slice.h"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The first version of sched_setattr(2)'s struct sched_attr, which glibc before
 * 2.41 does not declare. */
struct attributes {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime, deadline, period;
};

void time_slice_set(int64_t ns) {
    struct attributes own = {0};
    if (syscall(SYS_sched_getattr, 0, &own, sizeof own, 0) ||
        own.policy != SCHED_OTHER)
        return;
    own.runtime = (uint64_t)ns;
    (void)syscall(SYS_sched_setattr, 0, &own, 0);
}
