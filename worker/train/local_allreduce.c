/* SPDX-License-Identifier: Apache-2.0 */
/* On the host: each member downloads its gradients into its own memory, and the
 * compute thread adds them in member order as they arrive. On the devices:
 * adjacent gradients are all-reduced there in pieces; the first device's sum is
 * downloaded to the arena while the next piece is reduced. */
#include "worker/train/local_allreduce.h"

/* Minimum floats of a piece that justify a collective call. */
enum { PIECE = 1 << 20 };

static struct device_transfer *transfer_of(struct local_group_member *member) {
    return &member->device_replica.executor.device_transfer;
}

/* The piece that ends with parameter LAST: parameters *FIRST to LAST, the same
 * on all members. Returns its floats from gradients[*FIRST] on. */
static size_t cut_piece(const struct device_transfer *transfer, uint32_t last,
                        uint32_t *first) {
    const struct layout *layout = transfer->layout;
    const float *end =
        transfer->gradients[last] + layout->parameters[last].elements;
    *first = last;
    while (*first > 0 && end - transfer->gradients[*first] < PIECE)
        --*first;
    return (size_t)(end - transfer->gradients[*first]);
}

void local_allreduce_abort(struct local_group_member *member) {
    unsigned none = 0;
    atomic_compare_exchange_strong(&member->local_group->failed_member, &none,
                                   member->index + 1);
    local_collective_abort(member->local_group->local_collective);
}

/* MEMBER's part in the sum of a piece. */
static enum status sum_piece(struct local_group_member *member, uint32_t first,
                             size_t floats, struct failure *why) {
    struct device_transfer *transfer = transfer_of(member);
    struct local_collective *collective = member->local_group->local_collective;
    enum status status = device_transfer_sync(transfer, first, why);
    if (!status)
        status = local_collective_all_reduce(
            collective, member->index, transfer->gradients[first], floats, why);
    if (status)
        local_allreduce_abort(member);
    return status;
}

static enum status reduce_member_on_device(struct local_group_member *member) {
    struct device_transfer *transfer = transfer_of(member);
    enum status status = STATUS_OK;
    uint32_t first = transfer->layout->num_parameters;
    while (!status && first > 0) {
        size_t floats = cut_piece(transfer, first - 1, &first);
        status = sum_piece(member, first, floats, &member->why);
    }
    return status;
}

static enum status reduce_member_on_host(struct local_group_member *member,
                                         uint64_t begin) {
    enum status status = STATUS_OK;
    uint32_t count = member->local_group->layout->num_parameters;
    for (uint32_t p = count; !status && p-- > 0;) {
        status = device_transfer_sync(transfer_of(member), p, &member->why);
        if (!status && p > 0)
            sequence_advance(&member->gathered, begin + count - p);
    }
    return status;
}

void local_allreduce_run_member(struct local_group_member *member,
                                uint64_t begin) {
    const struct local_group *group = member->local_group;
    enum status status = STATUS_OK;
    if (group->gathers && !atomic_load(&member->failed))
        status = group->local_collective ? reduce_member_on_device(member)
                                         : reduce_member_on_host(member, begin);
    if (status)
        atomic_store(&member->failed, true);
    sequence_advance(&member->gathered, begin + group->layout->num_parameters);
}

static void local_allreduce_add(float *restrict sum, const float *restrict more,
                                uint64_t count) {
    for (uint64_t i = 0; i < count; i++)
        sum[i] += more[i];
}

/* False: a member has failed. */
static bool add_member(struct local_group_member *member, uint32_t parameter,
                       uint64_t sequence) {
    struct local_group *group = member->local_group;
    (void)sequence_wait(&member->gathered, sequence, NULL);
    if (atomic_load(&member->failed))
        return false;
    local_allreduce_add(group->arena->gradient_of[parameter],
                        member->device_replica.arena.gradient_of[parameter],
                        group->layout->parameters[parameter].elements);
    return true;
}

static enum status reduce_on_host(struct local_group *group, uint64_t begin,
                                  void (*on_reduced)(void *context,
                                                     uint32_t parameter),
                                  void *context, struct failure *why) {
    uint32_t count = group->layout->num_parameters;
    for (uint32_t p = count; p-- > 0;) {
        enum status status =
            device_transfer_sync(transfer_of(&group->members[0]), p, why);
        if (status)
            return status;
        for (uint32_t i = 1; i < group->count; i++)
            if (!add_member(&group->members[i], p, begin + count - p))
                return STATUS_OK; /* local_group_gather reports it */
        if (on_reduced)
            on_reduced(context, p);
    }
    return STATUS_OK;
}

/* Parameters FIRST to LAST. */
struct piece {
    uint32_t first, last;
};

/* Waits until PIECE is in the arena. */
static enum status wait_piece(struct local_group *group, struct piece piece,
                              void (*on_reduced)(void *context,
                                                 uint32_t parameter),
                              void *context, struct failure *why) {
    enum status status = STATUS_OK;
    for (uint32_t p = piece.last + 1; !status && p-- > piece.first;) {
        status = device_transfer_sync(transfer_of(&group->members[0]), p, why);
        if (!status && on_reduced)
            on_reduced(context, p);
    }
    return status;
}

static enum status reduce_on_device(struct local_group *group,
                                    void (*on_reduced)(void *context,
                                                       uint32_t parameter),
                                    void *context, struct failure *why) {
    struct local_group_member *own = &group->members[0];
    struct device_transfer *transfer = transfer_of(own);
    uint32_t count = transfer->layout->num_parameters;
    struct piece before = {count, count};
    enum status status = STATUS_OK;
    for (uint32_t end = count; !status && end > 0; end = before.first) {
        struct piece piece = {.last = end - 1};
        size_t floats = cut_piece(transfer, piece.last, &piece.first);
        status = sum_piece(own, piece.first, floats, why);
        for (uint32_t p = end; !status && p-- > piece.first;)
            device_transfer_download_recorded(transfer, p);
        if (!status && end < count)
            status = wait_piece(group, before, on_reduced, context, why);
        before = piece;
    }
    return status ? status
                  : wait_piece(group, before, on_reduced, context, why);
}

enum status local_allreduce_run(struct local_group *group, uint64_t begin,
                                void (*on_reduced)(void *context,
                                                   uint32_t parameter),
                                void *context, struct failure *why) {
    return group->local_collective
               ? reduce_on_device(group, on_reduced, context, why)
               : reduce_on_host(group, begin, on_reduced, context, why);
}
