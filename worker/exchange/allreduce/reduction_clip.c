/* SPDX-License-Identifier: Apache-2.0 */
/* Clipping: sums of squares are computed where the gradients are, in fixed
 * pieces, and enqueued on the device's stream in the same order on each
 * rank. */
#include "proto/base/time.h"
#include "worker/exchange/allreduce/reduction_internal.h"

/* Squares of RANK's part of the mean gradient: the pieces of all buckets are
 * summed, bucket by bucket, into the rank's entry of the norms. */
static void reduction_clip_square(struct reduction *reduction, uint32_t rank) {
    const struct ops *ops = reduction->ops;
    size_t count = 0;
    for (uint32_t i = 0; i < reduction->num_buckets; i++) {
        struct partition_range partition_range =
            reduction_range_of(reduction, i, rank);
        if (partition_range.first < partition_range.end)
            ops->square_sums(reduction->device, OPS_EXCHANGE,
                             reduction->gradients + partition_range.first,
                             partition_range.end - partition_range.first,
                             reduction->scale, reduction->pieces + count);
        count += reduction_pieces_of(partition_range);
    }
    ops->reduce_sum(reduction->device, OPS_EXCHANGE, reduction->pieces, count,
                    reduction->norms + (size_t)rank * REDUCTION_NORM);
}

/* True if this rank sums the squares of RANK. */
static bool sums_rank(const struct reduction *reduction, uint32_t rank) {
    return !reduction->shared || rank == reduction->ranks->rank;
}

/* A double travels as two floats; an all-gather does no arithmetic on them. */
static enum status reduction_clip_gather(struct reduction *reduction,
                                         struct failure *why) {
    size_t floats = reduction_norms(reduction) * sizeof(double) / sizeof(float);
    if (!reduction->shared)
        return STATUS_OK;
    return group_all_gather(reduction->ranks, (float *)reduction->norms, floats,
                            why);
}

/* As torch.nn.utils.clip_grad_norm_ does. Squares are summed per rank first,
 * then in rank order, so that the result does not depend on the sharding. */
enum status reduction_clip(struct reduction *reduction, struct failure *why) {
    double limit = reduction->settings->job->gradient_clipping;
    int64_t start = time_now();
    if (!reduction_changes(reduction))
        return STATUS_OK;
    for (uint32_t r = 0; r < reduction->ranks->size; r++)
        if (sums_rank(reduction, r))
            reduction_clip_square(reduction, r);
    atomic_fetch_add(&reduction->update_ns, time_now() - start);
    enum status status = reduction_clip_gather(reduction, why);
    reduction->ops->clip(reduction->device, OPS_EXCHANGE, reduction->norms,
                         reduction->ranks->size, REDUCTION_NORM, limit,
                         reduction->clip);
    reduction->clips = true;
    return status;
}
