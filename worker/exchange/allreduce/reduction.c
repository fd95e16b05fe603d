/* SPDX-License-Identifier: Apache-2.0 */
/* The header of a round: how many replicas contribute gradients, whether any
 * has overflowed, and whether rank 0 asks for a save. Each rank writes its
 * header in front of the first bucket's gradients, and all ranks read the sum.
 * So ranks agree before they apply anything, without an extra message.
 *
 * In rounds in which parameters differ, what is one call for a bucket is one
 * for each parameter in it: in an external model each has its own divisor, kind
 * and group, in a built-in one with optimizers by group its own rule, after
 * some checkpoints its own rule step. */
#include "worker/exchange/allreduce/reduction.h"

#include "core/base/time.h"
#include "core/tensor/schedule.h"
#include "proto/messages/histograms.h"
#include "worker/exchange/allreduce/reduction_internal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* Floats of the round's header. */
enum { HEADER_REPLICAS, HEADER_SAVE, HEADER_OVERFLOW, HEADER_FLOATS };

/* Floats of the host's page: the header, then the overflow flag. */
enum { OVERFLOW_FOUND = HEADER_FLOATS, PAGE = 4096 };

static_assert((int)HEADER_FLOATS <= (int)REDUCER_HEADER_FLOATS,
              "the arena has room before its first parameter");
static_assert(sizeof(double) == 2 * sizeof(float), "as norms are gathered");

/* Upper limits of a bucket, whatever the job allows: the rule then reads sums
 * that are still in the CPU's cache, and sending overlaps the rest of the
 * backward pass. */
enum { MAX_FLOATS = 1 << 18, MAX_LARGE_FLOATS = 1 << 22 };

static uint64_t reduction_min_u64(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

/* A lost rank explains the failure better than a device timeout does. */
enum status reduction_sync_event(struct reduction *reduction,
                                 struct device_event *event,
                                 struct failure *why) {
    struct failure lost;
    enum status status =
        reduction->ops->event_sync(reduction->device, event, why);
    if (!group_async_error(reduction->ranks, &lost))
        return status;
    *why = lost;
    return failure_code_status(lost.code);
}

/* With sharded updates gathering follows the same buckets as scattering. */
static uint64_t max_bucket_elements(const struct reduction *reduction) {
    const struct job_zero *zero = &reduction->settings->job->zero;
    uint64_t maximum = reduction_min_u64(
        zero->reduce_bucket,
        reduction->settings->large_buckets ? MAX_LARGE_FLOATS : MAX_FLOATS);
    if (reduction->shared)
        maximum = reduction_min_u64(maximum, zero->allgather_bucket);
    return maximum > 0 ? maximum : 1;
}

/* The maximum over the ranks. */
static size_t count_pieces(const struct reduction *reduction) {
    size_t maximum = 0;
    for (uint32_t r = 0; r < reduction->ranks->size; r++) {
        size_t count = 0;
        for (uint32_t i = 0; i < reduction->num_buckets; i++)
            count += reduction_pieces_of(reduction_range_of(reduction, i, r));
        if (reduction->trailer) /* each parameter in a bucket begins its own */
            count += reduction->settings->layout->num_parameters +
                     reduction->num_buckets;
        maximum = count > maximum ? count : maximum;
    }
    return maximum;
}

/* On a device a retry would not find more memory. */
static enum status reduction_no_memory(const struct reduction *reduction,
                                       struct failure *why) {
    return reduction->ops->async
               ? status_fail(why, FAILURE_DEVICE_MEMORY,
                             "no memory left on the device for sums over the "
                             "ranks")
               : status_fail(why, FAILURE_NO_MEMORY, "no memory for a reducer");
}

/* Memory that both the host and the device access: pinned memory, or, if the
 * device's memory is the host's, the same memory. */
static bool open_host_result(struct reduction *reduction) {
    struct reduction_host_result *host_result = calloc(1, sizeof *host_result);
    reduction->host_result = host_result;
    if (!host_result)
        return false;
    if (!reduction->ops->async) {
        *host_result = (struct reduction_host_result){
            .header = reduction->gradients, .found = reduction->found};
        return true;
    }
    void *pinned = aligned_alloc(PAGE, PAGE);
    if (!pinned)
        return false;
    memset(pinned, 0, PAGE);
    *host_result = (struct reduction_host_result){.pinned = pinned,
                                                  .header = pinned,
                                                  .found = (uint32_t *)pinned +
                                                           OVERFLOW_FOUND};
    (void)reduction->ops->pin(reduction->device, pinned, PAGE);
    return true;
}

static void close_host_result(struct reduction *reduction) {
    if (!reduction->host_result)
        return;
    if (reduction->host_result->pinned)
        reduction->ops->unpin(reduction->device,
                              reduction->host_result->pinned);
    free(reduction->host_result->pinned);
    free(reduction->host_result);
}

static void *allocate_device(const struct reduction *reduction, size_t bytes) {
    return reduction->ops->allocate(reduction->device, bytes);
}

static bool allocate_small(struct reduction *reduction) {
    const struct device_ops *ops = reduction->ops;
    reduction->norms = allocate_device(reduction, reduction_norms(reduction) *
                                                      sizeof *reduction->norms);
    reduction->found = allocate_device(reduction, sizeof *reduction->found);
    reduction->pieces = allocate_device(
        reduction, count_pieces(reduction) * sizeof *reduction->pieces);
    reduction->clip = allocate_device(reduction, sizeof *reduction->clip);
    reduction->header_received = ops->event_open(reduction->device);
    reduction->idle = ops->event_open(reduction->device);
    return reduction->norms && reduction->found && reduction->pieces &&
           reduction->clip && reduction->header_received && reduction->idle &&
           open_host_result(reduction);
}

/* State tensors of the parameters that have the most. */
static unsigned reducer_slots(const struct reducer_settings *settings) {
    unsigned slots = 0;
    for (uint32_t p = 0; p < settings->layout->num_parameters; p++) {
        unsigned own = rule_slots(optimizer_group_find(
            settings->groups, settings->layout->parameters[p].group,
            &settings->job->optimizer));
        slots = own > slots ? own : slots;
    }
    return slots;
}

enum status reduction_sum_trailer(struct reduction *reduction,
                                  bool request_save, struct failure *why) {
    struct round_trailer *trailer = reduction->trailer;
    const struct job_fp16 *fp16 = &reduction->settings->job->fp16;
    enum status status = round_trailer_sum(trailer, reduction->ranks,
                                           reduction->round, request_save, why);
    if (status)
        return status;
    reduction->save_requested = round_trailer_is_saved(trailer);
    reduction->overflowed = round_trailer_overflowed(trailer);
    reduction->contributors = 0;
    for (uint32_t p = 0; p < reduction->settings->layout->num_parameters; p++) {
        bool has_bytes = round_trailer_has_bytes(trailer, p);
        reduction->contributors += has_bytes;
        reduction->rule_steps[p] += has_bytes && !reduction->overflowed;
    }
    if (reduction->overflowed)
        loss_scaler_overflow(&reduction->scaler, fp16, reduction->scaler.scale);
    else
        loss_scaler_no_overflow(&reduction->scaler, fp16);
    return STATUS_OK;
}

/* True if the round changes weights and state; all ranks agree. */
static bool reduction_changes(const struct reduction *reduction) {
    return reduction->contributors > 0 && !reduction->overflowed;
}

/* The part of a parameter that lies in a range of the arena. */
struct part {
    uint32_t parameter;
    uint64_t first, end;
};

/* The next part of RANGE behind *PART, whose `end` is at first where the range
 * begins and whose `parameter` is above all. Parameters descend in memory. */
static bool next_parameter(const struct reduction *reduction,
                           struct partition_range range, struct part *part) {
    const struct reducer_settings *s = reduction->settings;
    while (part->parameter-- > 0) {
        uint64_t begin = s->offsets[part->parameter];
        uint64_t end = begin + s->layout->parameters[part->parameter].elements;
        part->first = begin > range.first ? begin : range.first;
        part->end = end < range.end ? end : range.end;
        if (begin >= range.end)
            return false;
        if (part->first < part->end)
            return true;
    }
    return false;
}

static struct part before_first(const struct reduction *reduction) {
    return (struct part){.parameter =
                             reduction->settings->layout->num_parameters};
}

/* State SLOT of PART, which bucket I of this rank has. */
static float *state_of_part(const struct reduction *reduction, uint32_t i,
                            const struct part *part, unsigned slot) {
    assert(part->first >= reduction->partition.owned[i].first &&
           part->end <= reduction->partition.owned[i].end);
    return partition_state(&reduction->partition, i, slot) +
           (part->first - reduction->partition.owned[i].first);
}

/* With groups: the state of each parameter starts as its rule says. */
static void reduction_start_state(struct reduction *reduction) {
    const struct reducer_settings *s = reduction->settings;
    for (uint32_t i = 0; i < reduction->num_buckets; i++) {
        struct part part = before_first(reduction);
        while (
            next_parameter(reduction, reduction->partition.owned[i], &part)) {
            const struct optimizer *rule = optimizer_group_find(
                s->groups, s->layout->parameters[part.parameter].group,
                &s->job->optimizer);
            for (unsigned slot = 0; slot < rule_slots(rule); slot++)
                reduction->ops->run(
                    reduction->device, STREAM_EXCHANGE,
                    op_fill(state_of_part(reduction, i, &part, slot),
                            part.end - part.first,
                            rule_slot_start(rule, slot)));
        }
    }
}

/* The rule of PARAMETER, and what the round's header says of it: of an external
 * model the trailer, which has the values of groups. */
static const struct optimizer *part_rule(const struct reduction *reduction,
                                         uint32_t parameter,
                                         struct rule_update *update) {
    const struct reducer_settings *s = reduction->settings;
    uint32_t number = s->layout->parameters[parameter].group;
    const struct optimizer_group *group =
        reduction->trailer ? round_trailer_group(reduction->trailer, parameter)
        : s->groups        ? &s->groups[number]
                           : NULL;
    uint64_t step = reduction_step(reduction);
    update->rate = schedule_rate(&reduction->schedule, step);
    update->scale = reduction->scale;
    update->num_gradients = reduction_changes(reduction);
    if (reduction->trailer) {
        update->rate = group ? group->lr : update->rate;
        update->scale = round_trailer_scale(reduction->trailer, parameter);
        update->num_gradients =
            !reduction->overflowed &&
            round_trailer_has_bytes(reduction->trailer, parameter);
    } else if (number) {
        update->rate = group->lr * schedule_factor(&reduction->schedule, step);
    }
    return group ? &group->optimizer : &s->job->optimizer;
}

/* Assigned values may have any bits, which a sum would not keep. */
static enum status apply_part(struct reduction *reduction, uint32_t i,
                              const struct part *part, struct failure *why) {
    const struct reducer_settings *s = reduction->settings;
    uint32_t kind = s->layout->parameters[part->parameter].kind;
    const void *sum = reduction->gradients + part->first;
    bool nonfinite = false;
    float *weights = reduction->weights + part->first;
    if (kind == PARAMETER_ASSIGNED)
        sum = round_trailer_values(reduction->trailer, part->parameter) +
              (part->first - s->offsets[part->parameter]);
    struct rule_update update = {
        .step = reduction->rule_steps[part->parameter],
        .elements = part->end - part->first,
        .gradients = &sum,
        .weights = weights,
        .weights_out = weights,
        .nonfinite = reduction->trailer ? &nonfinite : NULL,
    };
    const struct optimizer *rule =
        part_rule(reduction, part->parameter, &update);
    for (unsigned slot = 0; slot < rule_slots(rule); slot++)
        update.state[slot] = update.state_out[slot] =
            state_of_part(reduction, i, part, slot);
    if (kind == PARAMETER_TRAINED && reduction->clips &&
        rule->type == OPTIMIZER_NONE)
        update.scale *= *reduction->clip;
    if (kind == PARAMETER_AVERAGED ||
        (kind == PARAMETER_TRAINED && rule->type == OPTIMIZER_NONE)) {
        size_t variants;
        update.rate = 1;
        rule_average(s->loops ? s->loops : rule_variants(&variants)[0],
                     &update);
    } else if (kind == PARAMETER_ASSIGNED) {
        rule_assign(&update);
    } else {
        reduction->ops->run(
            reduction->device, STREAM_EXCHANGE,
            op_rule(rule, &update, reduction->clips ? reduction->clip : NULL));
    }
    return nonfinite
               ? rule_nonfinite(s->layout->parameters[part->parameter].name,
                                reduction_step(reduction), why)
               : STATUS_OK;
}

/* External, or with groups: applies to bucket I the rule of each parameter in
 * it. STATUS_FAILED: an external model's gradient is NaN or infinite. */
static enum status reduction_apply_parameters(struct reduction *reduction,
                                              uint32_t i, struct failure *why) {
    struct part part = before_first(reduction);
    enum status status = STATUS_OK;
    while (!status &&
           next_parameter(reduction, reduction->partition.owned[i], &part))
        status = apply_part(reduction, i, &part, why);
    return status;
}

/* External: adds the pieces of the squares of RANGE to those before; returns
 * how many there are now. */
static size_t reduction_square_parameters(struct reduction *reduction,
                                          struct partition_range range,
                                          size_t count) {
    const struct layout *layout = reduction->settings->layout;
    struct part part = before_first(reduction);
    while (next_parameter(reduction, range, &part)) {
        size_t elements = part.end - part.first;
        if (layout->parameters[part.parameter].kind != PARAMETER_TRAINED)
            continue;
        reduction->ops->run(
            reduction->device, STREAM_EXCHANGE,
            op_square_sums(
                reduction->gradients + part.first, elements,
                round_trailer_scale(reduction->trailer, part.parameter),
                reduction->pieces + count));
        count += (elements + RULE_PIECE - 1) / RULE_PIECE;
    }
    return count;
}

static enum status reduction_allocate(struct reduction *reduction,
                                      struct failure *why) {
    const struct reducer_settings *s = reduction->settings;
    enum status status =
        bucket_split(&reduction->buckets, &reduction->num_buckets, s->layout,
                     s->offsets, max_bucket_elements(reduction), why);
    if (status)
        return status;
    if (s->external)
        reduction->trailer =
            round_trailer_open(s->layout, s->groups, s->num_groups);
    if ((s->external && !reduction->trailer) || !allocate_small(reduction))
        return reduction_no_memory(reduction, why);
    struct partition_settings partition = {
        .ops = reduction->ops,
        .device = reduction->device,
        .buckets = reduction->buckets,
        .count = reduction->num_buckets,
        .begin = reduction->begin,
        .rule = &s->job->optimizer,
        .slots = reducer_slots(s),
        .rank = s->group.rank,
        .size = s->group.size,
        .shared = reduction->shared,
    };
    status = partition_open(&reduction->partition, &partition, why);
    if (!status && s->groups)
        reduction_start_state(reduction);
    return status;
}

/* The device of DEVICE_ARENA, or the CPU. */
static enum status use_device_arena(
    struct reduction *reduction,
    const struct reducer_device_arena *device_arena, struct failure *why) {
    const struct reducer_settings *settings = reduction->settings;
    struct device_settings processor = {.threads = 1, .loops = settings->loops};
    if (device_arena) {
        reduction->ops = device_arena->ops;
        reduction->device = device_arena->device;
        reduction->weights = device_arena->weights;
        reduction->gradients = device_arena->gradients;
        reduction->ops->run(reduction->device, STREAM_EXCHANGE,
                            op_fill(reduction->gradients, reduction->begin, 0));
        return STATUS_OK;
    }
    reduction->ops = ops_cpu();
    reduction->weights = buffer_data(settings->weights);
    reduction->gradients = buffer_data(settings->gradients);
    enum status status =
        reduction->ops->open(&reduction->device, &processor, why);
    reduction->owns_device = !status;
    return status;
}

/* On the host a rule without state is sharded in every stage: each rank updates
 * a part, and the ranks transfer the same number of bytes either way.
 * Exceptions: a collective that copies the whole bucket to a device and back,
 * and halving and doubling, which sums a whole bucket in the fewest steps. */
static bool shares(const struct reducer_settings *settings,
                   const struct reducer_device_arena *device_arena) {
    const struct job *job = settings->job;
    uint32_t size = settings->group.size;
    bool rings = job->algorithm == JOB_RING || size & (size - 1);
    return size > 1 && (job->zero.stage > 0 ||
                        (!device_arena && !settings->ops->supports_stream &&
                         rings && !reducer_slots(settings)));
}

enum status reduction_open(struct reduction *reduction,
                           const struct reducer_settings *settings,
                           const struct reducer_device_arena *device_arena,
                           struct group *ranks, struct failure *why) {
    *reduction = (struct reduction){
        .settings = settings,
        .ranks = ranks,
        .schedule = settings->job->schedule,
        .begin = settings->offsets[settings->layout->num_parameters - 1],
        .shared = shares(settings, device_arena),
        .round = settings->run_schedule->start,
        .scaler = loss_scaler_restore(&settings->job->fp16, &settings->scaler),
    };
    if (settings->job->scale_lr)
        schedule_scale(&reduction->schedule, settings->all_replicas
                                                 ? settings->all_replicas
                                                 : settings->group.size);
    enum status status = use_device_arena(reduction, device_arena, why);
    reduction->rule_steps =
        calloc(settings->layout->num_parameters, sizeof *reduction->rule_steps);
    if (!status && !reduction->rule_steps)
        status = reduction_no_memory(reduction, why);
    if (!status)
        status = reduction_allocate(reduction, why);
    if (!status)
        return STATUS_OK;
    if (reduction->device)
        reduction->ops->synchronize(reduction->device, NULL);
    reduction_close(reduction);
    return status;
}

static void reduction_close_events(struct reduction *reduction) {
    if (reduction->header_received)
        reduction->ops->event_close(reduction->device,
                                    &reduction->header_received);
    if (reduction->idle)
        reduction->ops->event_close(reduction->device, &reduction->idle);
}

void reduction_close(struct reduction *reduction) {
    const struct device_ops *ops = reduction->ops;
    if (reduction->device) {
        close_host_result(reduction);
        reduction_close_events(reduction);
        partition_close(&reduction->partition);
        ops->release(reduction->device, reduction->norms);
        ops->release(reduction->device, reduction->found);
        ops->release(reduction->device, reduction->pieces);
        ops->release(reduction->device, reduction->clip);
    }
    if (reduction->owns_device)
        ops->close(&reduction->device);
    round_trailer_close(&reduction->trailer);
    free(reduction->buckets);
    free(reduction->rule_steps);
    *reduction = (struct reduction){0};
}

void reduction_begin(struct reduction *reduction, uint64_t round,
                     enum contribution contribution_kind, bool request_save) {
    float *header = reduction->host_result->header;
    reduction->round = round;
    reduction->clips = false;
    reduction->empty = contribution_kind != CONTRIBUTION_FULL;
    uint32_t replicas = reduction->settings->replicas;
    header[HEADER_REPLICAS] = contribution_kind != CONTRIBUTION_FULL
                                  ? 0
                                  : (float)(replicas ? replicas : 1);
    header[HEADER_SAVE] = request_save;
    header[HEADER_OVERFLOW] = contribution_kind == CONTRIBUTION_OVERFLOWED;
    reduction->ops->upload(reduction->device, STREAM_EXCHANGE,
                           reduction->gradients, header,
                           HEADER_FLOATS * sizeof *header);
}

enum status reduction_sync(struct reduction *reduction, struct failure *why) {
    reduction->ops->record(reduction->device, STREAM_EXCHANGE, reduction->idle);
    return reduction_sync_event(reduction, reduction->idle, why);
}

enum status reduction_unscale(struct reduction *reduction, float by,
                              bool *finite, struct failure *why) {
    const struct device_ops *ops = reduction->ops;
    struct device *device = reduction->device;
    float *floats = reduction->gradients + reduction->begin;
    uint64_t end = reduction->buckets[reduction->num_buckets - 1].end;
    uint64_t count = end - reduction->begin;
    ops->run(device, STREAM_COMPUTE,
             op_find_overflow(floats, count, reduction->found));
    ops->download(device, STREAM_COMPUTE, reduction->host_result->found,
                  reduction->found, sizeof *reduction->found);
    ops->record(device, STREAM_COMPUTE, reduction->idle);
    enum status status = reduction_sync_event(reduction, reduction->idle, why);
    *finite = !status && !*reduction->host_result->found;
    if (*finite && by != 1)
        ops->run(device, STREAM_COMPUTE, op_scale(floats, count, by));
    return status;
}

/* The first bucket carried the header summed over all ranks. */
static void reduction_read_header(struct reduction *reduction) {
    const float *header = reduction->host_result->header;
    reduction->contributors = (unsigned)header[HEADER_REPLICAS];
    reduction->scale =
        header[HEADER_REPLICAS] > 0 ? 1.0f / header[HEADER_REPLICAS] : 1.0f;
    reduction->save_requested = header[HEADER_SAVE] > 0;
    reduction->overflowed = header[HEADER_OVERFLOW] > 0;
    struct loss_scaler *scaler = &reduction->scaler;
    const struct job_fp16 *fp16 = &reduction->settings->job->fp16;
    if (reduction->overflowed)
        loss_scaler_overflow(scaler, fp16, scaler->scale);
    else
        loss_scaler_no_overflow(scaler, fp16);
    for (uint32_t p = 0; p < reduction->settings->layout->num_parameters; p++)
        reduction->rule_steps[p] += reduction_changes(reduction);
}

enum status reduction_wait_header(struct reduction *reduction,
                                  struct failure *why) {
    enum status status =
        reduction_sync_event(reduction, reduction->header_received, why);
    if (!status)
        reduction_read_header(reduction);
    return status;
}

/* The first bucket is all-reduced, because all ranks read the header. */
enum status reduction_sum(struct reduction *reduction, uint32_t i,
                          struct failure *why) {
    assert(i < reduction->num_buckets);
    const struct device_ops *ops = reduction->ops;
    const struct bucket *bucket = &reduction->buckets[i];
    float *data = reduction->gradients + bucket->first;
    size_t count = bucket->end - bucket->first;
    size_t padding = i == 0 ? reduction->begin : 0;
    if (reduction->empty)
        ops->run(reduction->device, STREAM_EXCHANGE,
                 op_fill(data + padding, count - padding, 0));
    enum status status =
        reduction->shared && i > 0
            ? group_reduce_scatter(reduction->ranks, data, count, why)
            : group_all_reduce(reduction->ranks, data, count, why);
    if (status || i > 0 || reduction->trailer)
        return status;
    ops->download(reduction->device, STREAM_EXCHANGE,
                  reduction->host_result->header, reduction->gradients,
                  HEADER_FLOATS * sizeof *data);
    ops->record(reduction->device, STREAM_EXCHANGE, reduction->header_received);
    return STATUS_OK;
}

/* A round to which no replica contributed gradients changes nothing. */
static enum status reduction_apply(struct reduction *reduction, uint32_t i,
                                   struct failure *why) {
    const struct partition_range *owned = &reduction->partition.owned[i];
    const struct optimizer *rule = &reduction->settings->job->optimizer;
    const void *sum = reduction->gradients + owned->first;
    if (reduction->trailer || reduction->settings->groups || reduction->uneven)
        return reduction_apply_parameters(reduction, i, why);
    float *weights = reduction->weights + owned->first;
    struct rule_update update = {
        .step = reduction->rule_steps[0],
        .rate = schedule_rate(&reduction->schedule, reduction_step(reduction)),
        .scale = reduction->scale,
        .elements = owned->end - owned->first,
        .num_gradients = reduction_changes(reduction),
        .gradients = &sum,
        .weights = weights,
        .weights_out = weights,
    };
    for (unsigned slot = 0; slot < reduction->partition.slots; slot++) {
        float *state = partition_state(&reduction->partition, i, slot);
        update.state[slot] = update.state_out[slot] = state;
    }
    reduction->ops->run(
        reduction->device, STREAM_EXCHANGE,
        op_rule(rule, &update, reduction->clips ? reduction->clip : NULL));
    return STATUS_OK;
}

/* FLOATS of the device in host memory. NULL: no memory. The caller frees
 * *COPY. */
static const float *reduction_host_floats(struct reduction *reduction,
                                          const float *floats, size_t count,
                                          float **copy) {
    if (reduction->owns_device)
        return floats;
    *copy = malloc(count * sizeof **copy);
    if (*copy)
        reduction->ops->download(reduction->device, STREAM_EXCHANGE, *copy,
                                 floats, count * sizeof **copy);
    return *copy;
}

/* SCALE times FLOATS, which is what the rule has taken. */
static void histogram_add_scaled(struct histogram *histogram,
                                 const float *floats, size_t count,
                                 float scale) {
    float scaled[512];
    const size_t most = sizeof scaled / sizeof *scaled;
    for (size_t first = 0; first < count; first += most) {
        size_t n = count - first < most ? count - first : most;
        for (size_t i = 0; i < n; i++)
            scaled[i] = scale * floats[first + i];
        histogram_add(histogram, scaled, n);
    }
}

/* Histograms of FLOATS, of a part, are made block by block, so that a block's
 * sums are the same on a ps. */
static void add_histograms(struct reduction *reduction, const struct part *part,
                           const float *floats, bool gradient, float scale) {
    const struct reducer_settings *s = reduction->settings;
    struct histogram_piece piece = {.step = reduction->round,
                                    .parameter = part->parameter,
                                    .gradient = gradient,
                                    .offset = part->first -
                                              s->offsets[part->parameter]};
    uint64_t left = part->end - part->first;
    struct histogram histogram;
    while (left) {
        uint64_t in_block = s->layout->block_elements -
                            piece.offset % s->layout->block_elements;
        uint64_t count = left < in_block ? left : in_block;
        histogram_clear(&histogram);
        if (gradient)
            histogram_add_scaled(&histogram, floats, count, scale);
        else
            histogram_add(&histogram, floats, count);
        histograms_add(s->histograms, &piece, &histogram);
        piece.offset += count;
        floats += count;
        left -= count;
    }
}

static enum status histograms_of_part(struct reduction *reduction,
                                      const struct part *part,
                                      struct failure *why) {
    const struct reducer_settings *s = reduction->settings;
    struct rule_update update = {0};
    size_t count = part->end - part->first;
    float *copies[3] = {NULL}, one = 1;
    const struct optimizer *rule =
        part_rule(reduction, part->parameter, &update);
    bool trained =
        s->layout->parameters[part->parameter].kind == PARAMETER_TRAINED;
    const float *weights = reduction_host_floats(
        reduction, reduction->weights + part->first, count, &copies[0]);
    const float *gradients = reduction_host_floats(
        reduction, reduction->gradients + part->first, count, &copies[1]);
    const float *clip =
        reduction->clips
            ? reduction_host_floats(reduction, reduction->clip, 1, &copies[2])
            : &one;
    enum status status = weights && gradients && clip
                             ? reduction_sync(reduction, why)
                             : reduction_no_memory(reduction, why);
    if (!status && !(trained && rule->type == OPTIMIZER_NONE))
        add_histograms(reduction, part, weights, false, 1);
    if (!status && trained && update.num_gradients)
        add_histograms(reduction, part, gradients, true, update.scale * *clip);
    for (int i = 0; i < 3; i++)
        free(copies[i]);
    return status;
}

/* Of what this rank has updated in bucket I; where all ranks update the same,
 * only rank 0 adds them. */
static enum status reduction_histograms(struct reduction *reduction, uint32_t i,
                                        struct failure *why) {
    const struct reducer_settings *s = reduction->settings;
    struct part part = before_first(reduction);
    enum status status = STATUS_OK;
    if (!partition_shares(&reduction->partition, i) &&
        reduction->ranks->rank > 0)
        return STATUS_OK;
    while (!status &&
           next_parameter(reduction, reduction->partition.owned[i], &part))
        if (histograms_wants(s->histograms, s->layout, part.parameter,
                             reduction->round))
            status = histograms_of_part(reduction, &part, why);
    return status;
}

/* Clears the padding between parameters of bucket I, where a collective may
 * have left partial sums in other ranks' parts. */
static void clear_between(const struct reduction *reduction, uint32_t i) {
    const struct layout *layout = reduction->settings->layout;
    const uint64_t *offsets = reduction->settings->offsets;
    uint32_t last = layout->num_parameters - 1;
    for (uint32_t n = reduction->buckets[i - 1].completed;
         n < reduction->buckets[i].completed; n++) {
        uint32_t p = last - n;
        uint64_t end = offsets[p] + layout->parameters[p].elements;
        if (p > 0 && offsets[p - 1] > end)
            reduction->ops->run(
                reduction->device, STREAM_EXCHANGE,
                op_fill(reduction->gradients + end, offsets[p - 1] - end, 0));
    }
}

enum status reduction_update(struct reduction *reduction, uint32_t i,
                             struct failure *why) {
    assert(i < reduction->num_buckets);
    const struct bucket *bucket = &reduction->buckets[i];
    int64_t start = time_now();
    enum status status = reduction_apply(reduction, i, why);
    atomic_fetch_add(&reduction->update_ns, time_now() - start);
    if (!status && reduction->settings->histograms)
        status = reduction_histograms(reduction, i, why);
    if (status || !partition_shares(&reduction->partition, i))
        return status;
    status =
        group_all_gather(reduction->ranks, reduction->weights + bucket->first,
                         bucket->end - bucket->first, why);
    if (!status && i > 0)
        clear_between(reduction, i);
    return status;
}

uint64_t reduction_step(const struct reduction *reduction) {
    return reduction->round - reduction->scaler.skipped;
}

/* Callers set the rate of the run's optimizer, as of the groups'. */
struct row_reducer_round reduction_of_rows(const struct reduction *reduction) {
    uint64_t step = reduction_step(reduction);
    const struct optimizer_group *first =
        reduction->trailer ? round_trailer_first_group(reduction->trailer)
                           : NULL;
    return (struct row_reducer_round){
        .round = reduction->round,
        .step = step,
        .rate = first ? first->lr : schedule_rate(&reduction->schedule, step),
        .factor = schedule_factor(&reduction->schedule, step),
        .optimizer = first ? &first->optimizer : NULL,
        .clip = reduction->clips ? *reduction->clip : 1,
        .overflowed = reduction->overflowed};
}

bool reduction_is_saved(const struct reduction *reduction) {
    return reduction->save_requested ||
           run_schedule_saves(reduction->settings->run_schedule,
                              reduction->round);
}

/* Squares of RANK's part of the mean gradient: the pieces of all buckets are
 * summed, bucket by bucket, into the rank's entry of the norms. */
static void reduction_clip_square(struct reduction *reduction, uint32_t rank) {
    const struct device_ops *ops = reduction->ops;
    size_t count = 0;
    for (uint32_t i = 0; i < reduction->num_buckets; i++) {
        struct partition_range range = reduction_range_of(reduction, i, rank);
        if (reduction->trailer) {
            count = reduction_square_parameters(reduction, range, count);
            continue;
        }
        if (range.first < range.end)
            ops->run(reduction->device, STREAM_EXCHANGE,
                     op_square_sums(reduction->gradients + range.first,
                                    range.end - range.first, reduction->scale,
                                    reduction->pieces + count));
        count += reduction_pieces_of(range);
    }
    ops->run(reduction->device, STREAM_EXCHANGE,
             op_reduce_sum(reduction->pieces, count,
                           reduction->norms + (size_t)rank * REDUCTION_NORM));
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
enum status reduction_clip(struct reduction *reduction, double rows,
                           struct failure *why) {
    double limit = reduction->settings->job->gradient_clipping;
    int64_t start = time_now();
    if (!reduction_changes(reduction) && !(rows > 0))
        return STATUS_OK;
    for (uint32_t r = 0; r < reduction->ranks->size; r++)
        if (sums_rank(reduction, r))
            reduction_clip_square(reduction, r);
    atomic_fetch_add(&reduction->update_ns, time_now() - start);
    enum status status = reduction_clip_gather(reduction, why);
    if (rows > 0)
        reduction->norms[0] += rows;
    reduction->ops->run(reduction->device, STREAM_EXCHANGE,
                        op_clip(reduction->norms, reduction->ranks->size,
                                REDUCTION_NORM, limit, reduction->clip));
    reduction->clips = true;
    return status;
}
