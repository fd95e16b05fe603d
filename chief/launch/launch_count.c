/* SPDX-License-Identifier: Apache-2.0 */
#include "chief/launch/launch_count.h"

#include "proto/base/cores.h"
#include "proto/base/device_head.h"
#include "proto/base/plugin.h"

/* Counts GPUs whether or not this build supports them; 0: there is none, and
 * WHY says why. */
static uint32_t count_gpus(struct failure *why) {
    const void *table;
    if (plugin_find(&table, "cuda", DEVICE_SYMBOL, DEVICE_ABI, why))
        return 0;
    return ((const struct device_head *)table)->count();
}

enum status launch_count_fill(struct launch_world *world, const struct log *log,
                              struct failure *why) {
    struct failure none = {0};
    if (world->nproc_kind == LAUNCH_NPROC_NUMBER)
        return STATUS_OK;
    uint32_t gpus =
        world->nproc_kind == LAUNCH_NPROC_CPU ? 0 : count_gpus(&none);
    if (world->nproc_kind == LAUNCH_NPROC_GPU && !gpus)
        return status_fail(why, STATUS_CONFIG,
                           "--nproc_per_node is gpu, and none is found here"
                           "%s%.400s",
                           none.text[0] ? ": " : "", none.text);
    world->nproc_per_node = gpus ? gpus : cores_count();
    log_info(log, "%u process%s: one for each %s", world->nproc_per_node,
             world->nproc_per_node == 1 ? "" : "es",
             gpus ? "GPU" : "processor");
    return STATUS_OK;
}
