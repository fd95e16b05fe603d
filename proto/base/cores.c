/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/base/cores.h"

#include <sched.h>
#include <unistd.h>

uint32_t cores_count(void) {
    cpu_set_t set;
    if (!sched_getaffinity(0, sizeof set, &set))
        return (uint32_t)CPU_COUNT(&set);
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (uint32_t)online : 1;
}
