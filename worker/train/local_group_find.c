/* SPDX-License-Identifier: Apache-2.0 */
/* Selects a group's devices and how their gradients are summed. This happens
 * before there is a plan, as the chief needs the number of replicas. */
#include "core/base/plugin.h"
#include "worker/train/local_group.h"

bool local_group_is_async(const struct local_group *local_group) {
    return local_group->members[0].device_replica.executor.device.ops->async;
}

/* Uses NCCL for the sums if the devices are CUDA's and the plugin is
 * available. */
static void find_collective(struct local_group *group,
                            const struct collective_ops *nccl) {
    struct failure why;
    const void *table = nccl;
    enum status status = STATUS_OK;
    if (!nccl && group->count > 1)
        status = plugin_find(&table, "nccl", COLLECTIVE_SYMBOL, COLLECTIVE_ABI,
                             &why);
    group->collective = status ? NULL : table;
    if (status)
        log_info(group->log, "device_reduction_unavailable",
                 "gradients of %u devices are summed in host memory; "
                 "capstan-nccl.so: %s (docs/collectives.md has what it needs)",
                 group->count, why.text);
}

/* A device for which there is no code is skipped unless the job asks for
 * CUDA. */
static enum status add_device(struct local_group *group,
                              struct local_device_request request,
                              uint32_t index, struct failure *why) {
    struct local_group_member *member = &group->members[group->count];
    bool cuda_required = request.kind == JOB_DEVICE_CUDA;
    request.kind = JOB_DEVICE_CUDA;
    request.local_rank = index;
    enum status status = executor_select_device(
        &member->device_replica.executor, &request, group->log, why);
    if (!status)
        group->count++;
    if (status != STATUS_CONFIG || cuda_required)
        return status;
    log_warning(group->log, "device_not_used", "device %u is not used: %s",
                index, why->text);
    return STATUS_OK;
}

enum status local_group_find(struct local_group *group,
                             const struct local_group_search *search,
                             struct failure *why) {
    const struct local_device_request *request = search->request;
    uint32_t max_devices = search->max_devices;
    *group = (struct local_group){.log = search->log,
                                  .is_cancelled = request->is_cancelled,
                                  .context = request->context,
                                  .timeout = request->timeout};
    for (uint32_t i = 0; i < JOB_MAX_DEVICES; i++) {
        group->members[i].local_group = group;
        group->members[i].index = i;
    }
    struct executor *first = &group->members[0].device_replica.executor;
    enum status status =
        executor_select_device(first, request, group->log, why);
    if (status)
        return status;
    group->count = 1;
    uint32_t count = local_group_is_async(group) && search->alone
                         ? first->device.ops->count()
                         : 1;
    if (max_devices == 0 || max_devices > JOB_MAX_DEVICES)
        max_devices = JOB_MAX_DEVICES;
    for (uint32_t i = 1; !status && i < count && group->count < max_devices;
         i++)
        status = add_device(group, *request, i, why);
    if (!status)
        find_collective(group, search->nccl);
    return status;
}

bool local_group_reduces_on_host(const struct local_group *local_group) {
    return local_group->count > 1 && !local_group->collective;
}
