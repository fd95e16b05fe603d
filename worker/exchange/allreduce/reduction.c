/* SPDX-License-Identifier: Apache-2.0 */
/* The word of a round: how many replicas bring gradients, and whether rank 0
 * asks for it to be saved. Each rank writes its own in front of the first
 * bucket's gradients, and the sum over ranks is what all read. So no message
 * more is needed for what all have to agree on before they apply anything. */
#include "worker/exchange/allreduce/reduction.h"

#include "proto/base/time.h"
#include "proto/tensor/schedule.h"
#include "worker/exchange/allreduce/reduction_parts.h"

#include <stdlib.h>
#include <string.h>

/* Floats of the word of a round. */
enum { BRINGS, ASKS, VOIDS, WORDS };

/* Of the host's page: the word, and in the same room whether gradients have
 * overflowed. */
enum { FOUND = WORDS, PAGE = 4096 };

/* The largest bucket, whatever the job allows: what is summed is then still in
 * the processor's cache when the rule reads it, and there is something to send
 * while the rest of the pass goes on. */
enum { MOST_FLOATS = 1 << 18, MOST_WIDE_FLOATS = 1 << 22 };

static uint64_t smaller(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

/* A rank that was lost explains more than a wait in vain for the device. */
enum status reduction_await(struct reduction *reduction,
                            struct ops_event *event, struct failure *why) {
    struct failure lost;
    enum status status = reduction->ops->await(reduction->device, event, why);
    if (!group_look(reduction->ranks, &lost))
        return status;
    *why = lost;
    return lost.status;
}

/* With shared updates a bucket is gathered as it was scattered. */
static uint64_t most_elements(const struct reduction *reduction) {
    const struct job_zero *zero = &reduction->settings->job->zero;
    uint64_t most =
        smaller(zero->reduce_bucket,
                reduction->settings->wide ? MOST_WIDE_FLOATS : MOST_FLOATS);
    if (reduction->shared)
        most = smaller(most, zero->allgather_bucket);
    return most > 0 ? most : 1;
}

/* Of the rank that has most. */
static size_t count_pieces(const struct reduction *reduction) {
    size_t most = 0;
    for (uint32_t r = 0; r < reduction->ranks->size; r++) {
        size_t count = 0;
        for (uint32_t i = 0; i < reduction->num_buckets; i++)
            count += reduction_pieces_of(reduction_part_of(reduction, i, r));
        most = count > most ? count : most;
    }
    return most;
}

/* A device finds no more the next time. */
static enum status no_memory(const struct reduction *reduction,
                             struct failure *why) {
    return reduction->ops->later
               ? status_fail(why, STATUS_FAILED,
                             "no memory left on the device for sums over the "
                             "ranks")
               : status_fail(why, STATUS_RETRY, "no memory for a reducer");
}

/* What the host reads and writes of the device's memory: a place of its own,
 * or, where that memory is the host's, the same place. */
static bool open_told(struct reduction *reduction) {
    struct reduction_told *told = calloc(1, sizeof *told);
    reduction->told = told;
    if (!told)
        return false;
    if (!reduction->ops->later) {
        *told = (struct reduction_told){.word = reduction->gradients,
                                        .found = reduction->found};
        return true;
    }
    void *pinned = aligned_alloc(PAGE, PAGE);
    if (!pinned)
        return false;
    memset(pinned, 0, PAGE);
    *told = (struct reduction_told){
        .pinned = pinned, .word = pinned, .found = (uint32_t *)pinned + FOUND};
    (void)reduction->ops->pin(reduction->device, pinned, PAGE);
    return true;
}

static void close_told(struct reduction *reduction) {
    if (!reduction->told)
        return;
    if (reduction->told->pinned)
        reduction->ops->unpin(reduction->device, reduction->told->pinned);
    free(reduction->told->pinned);
    free(reduction->told);
}

static void *take(const struct reduction *reduction, size_t bytes) {
    return reduction->ops->allocate(reduction->device, bytes);
}

static bool allocate_small(struct reduction *reduction) {
    const struct ops *ops = reduction->ops;
    reduction->norms =
        take(reduction, reduction_norms(reduction) * sizeof *reduction->norms);
    reduction->found = take(reduction, sizeof *reduction->found);
    reduction->pieces =
        take(reduction, count_pieces(reduction) * sizeof *reduction->pieces);
    reduction->clip = take(reduction, sizeof *reduction->clip);
    reduction->heard = ops->event_open(reduction->device);
    reduction->here = ops->event_open(reduction->device);
    return reduction->norms && reduction->found && reduction->pieces &&
           reduction->clip && reduction->heard && reduction->here &&
           open_told(reduction);
}

static enum status allocate(struct reduction *reduction, struct failure *why) {
    const struct reducer_settings *s = reduction->settings;
    enum status status =
        bucket_cut(&reduction->buckets, &reduction->num_buckets, s->layout,
                   s->offsets, most_elements(reduction), why);
    if (status)
        return status;
    if (!allocate_small(reduction))
        return no_memory(reduction, why);
    struct partition_settings partition = {
        .ops = reduction->ops,
        .device = reduction->device,
        .buckets = reduction->buckets,
        .count = reduction->num_buckets,
        .begin = reduction->begin,
        .rule = &s->job->optimizer,
        .rank = s->group.rank,
        .size = s->group.size,
        .shared = reduction->shared,
    };
    return partition_open(&reduction->partition, &partition, why);
}

/* The device of PLACE, or the processor. */
static enum status take_place(struct reduction *reduction,
                              const struct reducer_place *place,
                              struct failure *why) {
    const struct reducer_settings *settings = reduction->settings;
    struct ops_settings processor = {.threads = 1, .loops = settings->loops};
    if (place) {
        reduction->ops = place->ops;
        reduction->device = place->device;
        reduction->weights = place->weights;
        reduction->gradients = place->gradients;
        reduction->ops->fill(reduction->device, OPS_EXCHANGE,
                             reduction->gradients, reduction->begin, 0);
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

/* A rule without state is shared out on the host whatever the stage: each rank
 * updates a part, and what all gather is as much either way. Not so where a
 * call takes the whole bucket to a device and back, nor by halving and
 * doubling, which sums a whole bucket in the fewest turns. */
static bool shares(const struct reducer_settings *settings,
                   const struct reducer_place *place) {
    const struct job *job = settings->job;
    uint32_t size = settings->group.size;
    bool rings = job->algorithm == JOB_RING || size & (size - 1);
    return size > 1 &&
           (job->zero.stage > 0 || (!place && !settings->ops->joins && rings &&
                                    !rule_slots(&job->optimizer)));
}

enum status reduction_open(struct reduction *reduction,
                           const struct reducer_settings *settings,
                           const struct reducer_place *place,
                           struct group *ranks, struct failure *why) {
    *reduction = (struct reduction){
        .settings = settings,
        .ranks = ranks,
        .schedule = settings->job->schedule,
        .begin = settings->offsets[settings->layout->num_parameters - 1],
        .shared = shares(settings, place),
        .round = settings->rounds->start,
        .scaler = loss_scaler_resumed(&settings->job->fp16, &settings->scaler),
    };
    if (settings->job->scale_lr)
        schedule_scale(&reduction->schedule, settings->all_replicas
                                                 ? settings->all_replicas
                                                 : settings->group.size);
    enum status status = take_place(reduction, place, why);
    if (!status)
        status = allocate(reduction, why);
    if (!status)
        return STATUS_OK;
    if (reduction->device)
        reduction->ops->synchronize(reduction->device, NULL);
    reduction_close(reduction);
    return status;
}

static void close_events(struct reduction *reduction) {
    if (reduction->heard)
        reduction->ops->event_close(reduction->device, &reduction->heard);
    if (reduction->here)
        reduction->ops->event_close(reduction->device, &reduction->here);
}

void reduction_close(struct reduction *reduction) {
    const struct ops *ops = reduction->ops;
    if (reduction->device) {
        close_told(reduction);
        close_events(reduction);
        partition_close(&reduction->partition);
        ops->release(reduction->device, reduction->norms);
        ops->release(reduction->device, reduction->found);
        ops->release(reduction->device, reduction->pieces);
        ops->release(reduction->device, reduction->clip);
    }
    if (reduction->owns_device)
        ops->close(&reduction->device);
    free(reduction->buckets);
    *reduction = (struct reduction){0};
}

void reduction_begin(struct reduction *reduction, uint64_t round,
                     enum contribution brings, bool asks) {
    float *word = reduction->told->word;
    reduction->round = round;
    reduction->clips = false;
    reduction->empty = brings != CONTRIBUTION_WHOLE;
    uint32_t replicas = reduction->settings->replicas;
    word[BRINGS] =
        brings != CONTRIBUTION_WHOLE ? 0 : (float)(replicas ? replicas : 1);
    word[ASKS] = asks;
    word[VOIDS] = brings == CONTRIBUTION_VOID;
    reduction->ops->upload(reduction->device, OPS_EXCHANGE,
                           reduction->gradients, word, WORDS * sizeof *word);
}

enum status reduction_settle(struct reduction *reduction, struct failure *why) {
    reduction->ops->record(reduction->device, OPS_EXCHANGE, reduction->here);
    return reduction_await(reduction, reduction->here, why);
}

enum status reduction_undo(struct reduction *reduction, float by, bool *finite,
                           struct failure *why) {
    const struct ops *ops = reduction->ops;
    struct ops_device *device = reduction->device;
    float *floats = reduction->gradients + reduction->begin;
    uint64_t end = reduction->buckets[reduction->num_buckets - 1].end;
    uint64_t count = end - reduction->begin;
    ops->find_overflow(device, OPS_COMPUTE, floats, count, reduction->found);
    ops->download(device, OPS_COMPUTE, reduction->told->found, reduction->found,
                  sizeof *reduction->found);
    ops->record(device, OPS_COMPUTE, reduction->here);
    enum status status = reduction_await(reduction, reduction->here, why);
    *finite = !status && !*reduction->told->found;
    if (*finite && by != 1)
        ops->scale(device, OPS_COMPUTE, floats, count, by);
    return status;
}

/* The first bucket brought what all ranks say of the round. */
static void read_word(struct reduction *reduction) {
    const float *word = reduction->told->word;
    reduction->brought = (unsigned)word[BRINGS];
    reduction->scale = word[BRINGS] > 0 ? 1.0f / word[BRINGS] : 1.0f;
    reduction->asked = word[ASKS] > 0;
    reduction->voided = word[VOIDS] > 0;
    struct loss_scaler *scaler = &reduction->scaler;
    const struct job_fp16 *fp16 = &reduction->settings->job->fp16;
    if (reduction->voided)
        loss_scaler_overflow(scaler, fp16, scaler->scale);
    else
        loss_scaler_good(scaler, fp16);
}

enum status reduction_hear(struct reduction *reduction, struct failure *why) {
    enum status status = reduction_await(reduction, reduction->heard, why);
    if (!status)
        read_word(reduction);
    return status;
}

/* All ranks have to read the word, so the first bucket is reduced to all. */
enum status reduction_sum(struct reduction *reduction, uint32_t i,
                          struct failure *why) {
    const struct ops *ops = reduction->ops;
    const struct bucket *bucket = &reduction->buckets[i];
    float *data = reduction->gradients + bucket->first;
    size_t count = bucket->end - bucket->first;
    size_t room = i == 0 ? reduction->begin : 0;
    if (reduction->empty)
        ops->fill(reduction->device, OPS_EXCHANGE, data + room, count - room,
                  0);
    enum status status =
        reduction->shared && i > 0
            ? group_reduce_scatter(reduction->ranks, data, count, why)
            : group_all_reduce(reduction->ranks, data, count, why);
    if (status || i > 0)
        return status;
    ops->download(reduction->device, OPS_EXCHANGE, reduction->told->word,
                  reduction->gradients, WORDS * sizeof *data);
    ops->record(reduction->device, OPS_EXCHANGE, reduction->heard);
    return STATUS_OK;
}

/* A round that nobody brought gradients to leaves all as it is. */
static void apply(struct reduction *reduction, uint32_t i) {
    const struct part *own = &reduction->partition.own[i];
    const struct optimizer *rule = &reduction->settings->job->optimizer;
    const void *sum = reduction->gradients + own->first;
    uint64_t step = reduction->round - reduction->scaler.skipped;
    float *weights = reduction->weights + own->first;
    struct rule_update update = {
        .step = step,
        .rate = schedule_rate(&reduction->schedule, step),
        .scale = reduction->scale,
        .elements = own->end - own->first,
        .num_gradients = reduction_changes(reduction),
        .gradients = &sum,
        .weights = weights,
        .weights_out = weights,
    };
    for (unsigned slot = 0; slot < reduction->partition.slots; slot++) {
        float *state = partition_state(&reduction->partition, i, slot);
        update.state[slot] = update.state_out[slot] = state;
    }
    reduction->ops->rule(reduction->device, OPS_EXCHANGE, rule, &update,
                         reduction->clips ? reduction->clip : NULL);
}

/* Between parameters of bucket I are zeros again, where sums have left anything
 * in what is other ranks'. */
static void clear_between(const struct reduction *reduction, uint32_t i) {
    const struct layout *layout = reduction->settings->layout;
    const uint64_t *offsets = reduction->settings->offsets;
    uint32_t last = layout->num_parameters - 1;
    for (uint32_t n = reduction->buckets[i - 1].whole;
         n < reduction->buckets[i].whole; n++) {
        uint32_t p = last - n;
        uint64_t end = offsets[p] + layout->parameters[p].elements;
        if (p > 0 && offsets[p - 1] > end)
            reduction->ops->fill(reduction->device, OPS_EXCHANGE,
                                 reduction->gradients + end,
                                 offsets[p - 1] - end, 0);
    }
}

enum status reduction_update(struct reduction *reduction, uint32_t i,
                             struct failure *why) {
    const struct bucket *bucket = &reduction->buckets[i];
    int64_t start = time_now();
    apply(reduction, i);
    atomic_fetch_add(&reduction->update_ns, time_now() - start);
    if (!partition_shares(&reduction->partition, i))
        return STATUS_OK;
    enum status status =
        group_all_gather(reduction->ranks, reduction->weights + bucket->first,
                         bucket->end - bucket->first, why);
    if (!status && i > 0)
        clear_between(reduction, i);
    return status;
}

bool reduction_saves(const struct reduction *reduction) {
    return reduction->asked ||
           rounds_saves(reduction->settings->rounds, reduction->round);
}
