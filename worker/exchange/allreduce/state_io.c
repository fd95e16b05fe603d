/* SPDX-License-Identifier: Apache-2.0 */
/* Initial weights and state, and the path to rank 0's snapshot agent, block by
 * block in arena order. Each rank has all weights, and all state or (ZeRO) its
 * piece of every bucket. Load: rank 0 reads a block and broadcasts it; each
 * rank keeps its part of the state. Save: if rank 0 has all state, it hands the
 * blocks over alone; with pieces all ranks gather each bucket's state, and rank
 * 0 splits it into blocks. So no rank needs memory for more than one bucket's
 * state beside its own. */
#include "worker/exchange/allreduce/state_io.h"

#include "worker/exchange/allreduce/reduction_internal.h"

#include <stdlib.h>
#include <string.h>

static uint64_t state_io_min_u64(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

static uint64_t state_io_max_u64(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

static uint64_t largest_bucket(const struct reduction *reduction) {
    uint64_t maximum = 0;
    for (uint32_t i = 0; i < reduction->num_buckets; i++) {
        uint64_t size = reduction->buckets[i].end - reduction->buckets[i].first;
        maximum = size > maximum ? size : maximum;
    }
    return maximum;
}

static bool state_io_is_async(const struct reduction *reduction) {
    return reduction->ops->async;
}

/* If the state is in one place, only the rank that broadcasts needs memory for
 * a block. */
static bool state_io_allocate(struct state_io *state_io, unsigned slot) {
    const struct reduction *reduction = state_io->reduction;
    size_t block = reduction->settings->layout->block_elements * sizeof(float);
    size_t bucket =
        (reduction->shared ? largest_bucket(reduction) : 1) * sizeof(float);
    state_io->block[slot] = calloc(1, block);
    state_io->device_block[slot] =
        state_io_is_async(reduction)
            ? reduction->ops->allocate(reduction->device, block)
            : state_io->block[slot];
    state_io->bucket[slot] =
        reduction->ops->allocate(reduction->device, bucket);
    return state_io->block[slot] && state_io->device_block[slot] &&
           state_io->bucket[slot];
}

enum status state_io_open(struct state_io *state_io,
                          struct reduction *reduction, struct failure *why) {
    *state_io =
        (struct state_io){.reduction = reduction,
                          .weights = buffer_data(reduction->settings->weights)};
    for (unsigned slot = 0; slot < reduction->partition.slots; slot++) {
        if (state_io_allocate(state_io, slot))
            continue;
        state_io_close(state_io);
        return status_fail(why,
                           state_io_is_async(reduction) ? FAILURE_DEVICE_MEMORY
                                                        : FAILURE_NO_MEMORY,
                           "no memory for the state of a block");
    }
    return STATUS_OK;
}

void state_io_close(struct state_io *state_io) {
    const struct reduction *reduction = state_io->reduction;
    for (unsigned slot = 0; slot < RULE_MAX_SLOTS; slot++) {
        if (state_io->bucket[slot])
            reduction->ops->release(reduction->device, state_io->bucket[slot]);
        if (state_io->device_block[slot] != state_io->block[slot])
            reduction->ops->release(reduction->device,
                                    state_io->device_block[slot]);
        free(state_io->block[slot]);
    }
    *state_io = (struct state_io){0};
}

/* The float of the arena where block B begins. */
static uint64_t state_io_offset_of(const struct reduction *reduction,
                                   uint32_t b) {
    const struct block *block = &reduction->settings->layout->blocks[b];
    return reduction->settings->offsets[block->parameter] + block->offset;
}

static void initialise(const struct state_io *state_io) {
    const struct reduction *reduction = state_io->reduction;
    const struct layout *layout = reduction->settings->layout;
    for (uint32_t b = 0; b < layout->num_blocks; b++) {
        float *weights = state_io->weights + state_io_offset_of(reduction, b);
        layout_init_block(layout, b, reduction->settings->job->seed, weights);
        reduction->ops->upload(
            reduction->device, STREAM_EXCHANGE,
            reduction->weights + state_io_offset_of(reduction, b), weights,
            layout->blocks[b].elements * sizeof *weights);
    }
}

/* Copies the host's TENSORS of a block, loaded on rank 0, to all ranks, in
 * DEVICE_BLOCK on their devices. */
static enum status broadcast_block(struct reduction *reduction,
                                   float *const *tensors,
                                   float *const *device_block,
                                   uint32_t elements, struct failure *why) {
    enum status status = STATUS_OK;
    for (unsigned t = 0; !status && t <= reduction->partition.slots; t++) {
        if (reduction->ranks->rank == 0)
            reduction->ops->upload(reduction->device, STREAM_EXCHANGE,
                                   device_block[t], tensors[t],
                                   elements * sizeof(float));
        status = group_broadcast(reduction->ranks, device_block[t], elements, 0,
                                 why);
    }
    return status;
}

/* All ranks receive block B from rank 0's snapshot agent and keep their
 * part. */
static enum status load_block(struct state_io *state_io, uint32_t b,
                              struct failure *why) {
    struct reduction *reduction = state_io->reduction;
    const struct reducer_storage *rank0_snapshot_agent =
        reduction->settings->rank0_snapshot_agent;
    uint64_t first = state_io_offset_of(reduction, b);
    uint32_t elements = reduction->settings->layout->blocks[b].elements;
    float *floats[1 + RULE_MAX_SLOTS] = {state_io->weights + first};
    float *device_block[1 + RULE_MAX_SLOTS] = {reduction->weights + first};
    memcpy(floats + 1, state_io->block, sizeof state_io->block);
    memcpy(device_block + 1, state_io->device_block,
           sizeof state_io->device_block);
    const struct block *block = &reduction->settings->layout->blocks[b];
    uint64_t rule_step = 0;
    enum status status = STATUS_OK;
    if (reduction->ranks->rank == 0)
        status = rank0_snapshot_agent->load(rank0_snapshot_agent->context, b,
                                            floats, &rule_step, why);
    if (!block->offset) /* as the run's step is that of the first block */
        reduction->rule_steps[block->parameter] = rule_step;
    if (!status)
        status =
            broadcast_block(reduction, floats, device_block, elements, why);
    for (unsigned s = 0; !status && s < reduction->partition.slots; s++)
        partition_put(&reduction->partition, s, first, elements,
                      device_block[1 + s]);
    return status ? status : reduction_sync(reduction, why);
}

/* All ranks receive rank 0's rule steps. A broadcast does no arithmetic, so the
 * memory of the norms carries any bits. */
static enum status broadcast_rule_steps(struct reduction *reduction,
                                        struct failure *why) {
    const struct device_ops *ops = reduction->ops;
    enum status status = STATUS_OK;
    for (uint32_t p = 0;
         !status && p < reduction->settings->layout->num_parameters; p++) {
        uint64_t *step = &reduction->rule_steps[p];
        ops->upload(reduction->device, STREAM_EXCHANGE, reduction->norms, step,
                    sizeof *step);
        status = group_broadcast(
            reduction->ranks, (float *)reduction->norms,
            REDUCTION_NORM * sizeof(double) / sizeof(float), 0, why);
        ops->download(reduction->device, STREAM_EXCHANGE, step,
                      reduction->norms, sizeof *step);
        if (!status)
            status = reduction_sync(reduction, why);
        reduction->uneven |= *step != reduction->rule_steps[0];
    }
    return status;
}

enum status state_io_load(struct state_io *state_io, struct failure *why) {
    const struct reducer_settings *s = state_io->reduction->settings;
    enum status status = STATUS_OK;
    if (!s->broadcasts_first_weights)
        initialise(state_io);
    for (uint32_t b = 0;
         s->broadcasts_first_weights && !status && b < s->layout->num_blocks;
         b++)
        status = load_block(state_io, b, why);
    if (!status && s->run_schedule->start)
        status = broadcast_rule_steps(state_io->reduction, why);
    return status ? status : reduction_sync(state_io->reduction, why);
}

static bool saves_here(const struct reduction *reduction) {
    const struct reducer_storage *rank0_snapshot_agent =
        reduction->settings->rank0_snapshot_agent;
    return rank0_snapshot_agent && rank0_snapshot_agent->save;
}

/* Enqueues a copy of FLOATS, in device memory, to HOST; host memory needs none.
 * Returns where the floats will be. */
static const float *copy_to_host(const struct reduction *reduction, float *host,
                                 const float *floats, uint64_t count) {
    if (!state_io_is_async(reduction))
        return floats;
    reduction->ops->download(reduction->device, STREAM_EXCHANGE, host, floats,
                             count * sizeof *floats);
    return host;
}

/* Hands block B, whose STATE is being copied to the host, to this rank's
 * snapshot agent. */
static enum status save_block(struct state_io *state_io, uint32_t b,
                              const float *const *state, struct failure *why) {
    struct reduction *reduction = state_io->reduction;
    const struct reducer_storage *rank0_snapshot_agent =
        reduction->settings->rank0_snapshot_agent;
    const struct block *block = &reduction->settings->layout->blocks[b];
    uint64_t first = state_io_offset_of(reduction, b);
    const float *tensors[1 + RULE_MAX_SLOTS] = {copy_to_host(
        reduction, state_io->weights + first, reduction->weights + first,
        reduction->settings->layout->blocks[b].elements)};
    for (unsigned slot = 0; slot < reduction->partition.slots; slot++)
        tensors[1 + slot] = state[slot];
    enum status status = reduction_sync(reduction, why);
    return status ? status
                  : rank0_snapshot_agent->save(
                        rank0_snapshot_agent->context, reduction->round, b,
                        tensors, reduction->rule_steps[block->parameter], why);
}

/* All state is on this rank, in arena order. */
static enum status save_local(struct state_io *state_io, struct failure *why) {
    const struct reduction *reduction = state_io->reduction;
    const struct layout *layout = reduction->settings->layout;
    enum status status = STATUS_OK;
    for (uint32_t b = 0;
         saves_here(reduction) && !status && b < layout->num_blocks; b++) {
        const float *state[RULE_MAX_SLOTS];
        for (unsigned slot = 0; slot < reduction->partition.slots; slot++)
            state[slot] = copy_to_host(
                reduction, state_io->block[slot],
                reduction->partition.state[slot] +
                    (state_io_offset_of(reduction, b) - reduction->begin),
                layout->blocks[b].elements);
        status = save_block(state_io, b, state, why);
    }
    return status;
}

/* Gathers all ranks' state of bucket I, in place. */
static enum status gather_bucket(struct state_io *state_io, uint32_t i,
                                 struct failure *why) {
    struct reduction *reduction = state_io->reduction;
    const struct bucket *bucket = &reduction->buckets[i];
    const struct partition_range *owned = &reduction->partition.owned[i];
    enum status status = STATUS_OK;
    for (unsigned slot = 0; !status && slot < reduction->partition.slots;
         slot++) {
        float *floats = state_io->bucket[slot];
        if (owned->first < owned->end)
            reduction->ops->copy(
                reduction->device, STREAM_EXCHANGE,
                floats + (owned->first - bucket->first),
                partition_state(&reduction->partition, i, slot),
                (owned->end - owned->first) * sizeof *floats);
        status = group_all_gather(reduction->ranks, floats,
                                  bucket->end - bucket->first, why);
    }
    return status;
}

/* Blocks and buckets both ascend through the arena. Hands over the blocks that
 * the gathered bucket I completes; *B is the first block not handed over
 * yet. */
static enum status save_bucket(struct state_io *state_io, uint32_t i,
                               uint32_t *b, struct failure *why) {
    const struct reduction *reduction = state_io->reduction;
    const struct layout *layout = reduction->settings->layout;
    const struct bucket *bucket = &reduction->buckets[i];
    const float *state[RULE_MAX_SLOTS];
    enum status status = STATUS_OK;
    memcpy(state, state_io->block, sizeof state);
    while (!status && *b < layout->num_blocks) {
        uint64_t first = state_io_offset_of(reduction, *b);
        uint64_t end = first + layout->blocks[*b].elements;
        uint64_t from = state_io_max_u64(first, bucket->first);
        uint64_t until = state_io_min_u64(end, bucket->end);
        if (from >= until)
            break;
        for (unsigned slot = 0; slot < reduction->partition.slots; slot++)
            reduction->ops->download(reduction->device, STREAM_EXCHANGE,
                                     state_io->block[slot] + (from - first),
                                     state_io->bucket[slot] +
                                         (from - bucket->first),
                                     (until - from) * sizeof(float));
        if (until < end)
            break;
        status = save_block(state_io, (*b)++, state, why);
    }
    return status;
}

enum status state_io_save(struct state_io *state_io, struct failure *why) {
    const struct reduction *reduction = state_io->reduction;
    enum status status = STATUS_OK;
    const struct reducer_storage *rank0_snapshot_agent =
        reduction->settings->rank0_snapshot_agent;
    uint32_t b = 0;
    if (rank0_snapshot_agent && rank0_snapshot_agent->note)
        rank0_snapshot_agent->note(rank0_snapshot_agent->context,
                                   &reduction->scaler);
    if (!reduction->shared)
        return save_local(state_io, why);
    for (uint32_t i = 0; !status && i < reduction->num_buckets; i++) {
        status = gather_bucket(state_io, i, why);
        if (!status && saves_here(reduction))
            status = save_bucket(state_io, i, &b, why);
    }
    return status;
}

enum status state_io_download_weights(struct state_io *state_io,
                                      struct failure *why) {
    const struct reduction *reduction = state_io->reduction;
    uint64_t begin = reduction->begin;
    uint64_t end = reduction->buckets[reduction->num_buckets - 1].end;
    if (reduction->ranks->rank == 0)
        (void)copy_to_host(reduction, state_io->weights + begin,
                           reduction->weights + begin, end - begin);
    return reduction_sync(state_io->reduction, why);
}
