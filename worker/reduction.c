/* The word of a round: how many replicas bring gradients, and whether rank 0
 * asks for it to be saved. Each rank writes its own in front of the first
 * bucket's gradients, and the sum over ranks is what all read. So no message
 * more is needed for what all have to agree on before they apply anything. */
#include "worker/reduction.h"

#include "proto/base/time.h"
#include "proto/math/schedule.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Floats of the word of a round. */
enum { BRINGS, ASKS, VOIDS };

/* The largest bucket, whatever the job allows: what is summed is then still in
 * the cache when the rule reads it, and there is something to send while the
 * rest of the pass goes on. */
enum { MOST_FLOATS = 1 << 18 };

enum { NORM_FLOATS = 16 }; /* a rank's piece of a vector of norms */

static uint64_t smaller(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

/* With shared updates a bucket is gathered as it was scattered. */
static uint64_t most_elements(const struct reduction *reduction) {
    const struct job_zero *zero = &reduction->settings->job->zero;
    uint64_t most = smaller(zero->reduce_bucket, MOST_FLOATS);
    if (reduction->shared)
        most = smaller(most, zero->allgather_bucket);
    return most > 0 ? most : 1;
}

static enum status allocate(struct reduction *reduction, struct failure *why) {
    const struct reducer_settings *s = reduction->settings;
    const struct collective_settings *group = &s->group;
    reduction->norms = calloc((size_t)group->size * NORM_FLOATS, sizeof(float));
    if (!reduction->norms)
        return status_fail(why, STATUS_RETRY, "no memory for a reducer");
    enum status status =
        bucket_cut(&reduction->buckets, &reduction->num_buckets, s->layout,
                   s->offsets, most_elements(reduction), why);
    if (status)
        return status;
    struct partition_settings partition = {
        .buckets = reduction->buckets,
        .count = reduction->num_buckets,
        .begin = reduction->begin,
        .rule = &s->job->optimizer,
        .rank = group->rank,
        .size = group->size,
        .shared = reduction->shared,
    };
    return partition_open(&reduction->partition, &partition, why);
}

enum status reduction_open(struct reduction *reduction,
                           const struct reducer_settings *settings,
                           struct failure *why) {
    size_t variants;
    *reduction = (struct reduction){
        .settings = settings,
        .loops = settings->loops ? settings->loops : *rule_variants(&variants),
        .schedule = settings->job->schedule,
        .weights = buffer_data(settings->weights),
        .gradients = buffer_data(settings->gradients),
        .begin = settings->offsets[settings->layout->num_parameters - 1],
        .shared = settings->job->zero.stage > 0 && settings->group.size > 1,
        .round = settings->rounds->start,
        .scaler = loss_scaler_resumed(&settings->job->fp16, &settings->scaler),
    };
    if (settings->job->scale_lr)
        schedule_scale(&reduction->schedule, settings->all_replicas
                                                 ? settings->all_replicas
                                                 : settings->group.size);
    group_open(&reduction->ranks, settings->ops, settings->group.rank,
               settings->group.size);
    enum status status = allocate(reduction, why);
    if (status)
        reduction_close(reduction);
    return status;
}

void reduction_close(struct reduction *reduction) {
    group_close(&reduction->ranks);
    partition_close(&reduction->partition);
    free(reduction->buckets);
    free(reduction->norms);
}

void reduction_begin(struct reduction *reduction, uint64_t round,
                     enum contribution brings, bool asks) {
    reduction->round = round;
    reduction->empty = brings != CONTRIBUTION_WHOLE;
    uint32_t replicas = reduction->settings->replicas;
    reduction->gradients[BRINGS] =
        brings != CONTRIBUTION_WHOLE ? 0 : (float)(replicas ? replicas : 1);
    reduction->gradients[ASKS] = asks;
    reduction->gradients[VOIDS] = brings == CONTRIBUTION_VOID;
}

/* The first bucket brought what all ranks say of the round. */
static void read_word(struct reduction *reduction) {
    float brought = reduction->gradients[BRINGS];
    reduction->brought = (unsigned)brought;
    reduction->scale = brought > 0 ? 1.0f / brought : 1.0f;
    reduction->asked = reduction->gradients[ASKS] > 0;
    reduction->voided = reduction->gradients[VOIDS] > 0;
    struct loss_scaler *scaler = &reduction->scaler;
    const struct job_fp16 *fp16 = &reduction->settings->job->fp16;
    if (reduction->voided)
        loss_scaler_overflow(scaler, fp16, scaler->scale);
    else
        loss_scaler_good(scaler, fp16);
}

/* All ranks have to read the word, so the first bucket is reduced to all. */
enum status reduction_sum(struct reduction *reduction, uint32_t i,
                          struct failure *why) {
    const struct bucket *bucket = &reduction->buckets[i];
    float *data = reduction->gradients + bucket->first;
    size_t count = bucket->end - bucket->first;
    size_t room = i == 0 ? reduction->begin : 0;
    if (reduction->empty)
        memset(data + room, 0, (count - room) * sizeof *data);
    enum status status =
        reduction->shared && i > 0
            ? group_reduce_scatter(&reduction->ranks, data, count, why)
            : group_all_reduce(&reduction->ranks, data, count, why);
    if (!status && i == 0)
        read_word(reduction);
    return status;
}

/* Weights and state, that is; all ranks know it. */
static bool changes(const struct reduction *reduction) {
    return reduction->brought > 0 && !reduction->voided;
}

/* Of the mean gradient in PART, in fixed pieces. */
static double square_sum(const struct reduction *reduction, struct part part) {
    enum { PIECES = 16 };
    double pieces[PIECES], sum = 0;
    while (part.first < part.end) {
        const void *floats = reduction->gradients + part.first;
        struct rule_update update = {
            .scale = reduction->scale,
            .elements = smaller(part.end - part.first, PIECES * RULE_PIECE),
            .num_gradients = 1,
            .gradients = &floats,
        };
        rule_square_sums(reduction->loops, &update, pieces);
        for (size_t i = 0; i * RULE_PIECE < update.elements; i++)
            sum += pieces[i];
        part.first += update.elements;
    }
    return sum;
}

/* The squares of what RANK has of each bucket, or would have. */
static double squares_of(const struct reduction *reduction, uint32_t rank) {
    double sum = 0;
    for (uint32_t i = 0; i < reduction->num_buckets; i++)
        sum += square_sum(reduction, partition_part(&reduction->buckets[i],
                                                    reduction->begin, rank,
                                                    reduction->ranks.size));
    return sum;
}

/* A double travels as two floats, which nobody computes with. */
static void put_double(float *floats, double value) {
    memcpy(floats, &value, sizeof value);
}

static double get_double(const float *floats) {
    double value;
    memcpy(&value, floats, sizeof value);
    return value;
}

static enum status gather_squares(struct reduction *reduction,
                                  struct failure *why) {
    struct group *ranks = &reduction->ranks;
    float *norms = reduction->norms;
    int64_t start = time_now();
    for (uint32_t r = 0; r < ranks->size; r++)
        if (!reduction->shared || r == ranks->rank)
            put_double(norms + (size_t)r * NORM_FLOATS,
                       squares_of(reduction, r));
    atomic_fetch_add(&reduction->update_ns, time_now() - start);
    if (!reduction->shared)
        return STATUS_OK;
    return group_all_gather(ranks, norms, (size_t)ranks->size * NORM_FLOATS,
                            why);
}

/* As torch.nn.utils.clip_grad_norm_ does. A rank's squares are added first,
 * then those of all in rank order: in one way, whoever has which. */
enum status reduction_clip(struct reduction *reduction, struct failure *why) {
    double limit = reduction->settings->job->gradient_clipping, sum = 0;
    if (!changes(reduction))
        return STATUS_OK;
    enum status status = gather_squares(reduction, why);
    if (status)
        return status;
    for (uint32_t r = 0; r < reduction->ranks.size; r++)
        sum += get_double(reduction->norms + (size_t)r * NORM_FLOATS);
    double factor = limit / (sqrt(sum) + 1e-6);
    reduction->scale *= factor < 1 ? (float)factor : 1.0f;
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
        .num_gradients = changes(reduction),
        .gradients = &sum,
        .weights = weights,
        .weights_out = weights,
    };
    for (unsigned slot = 0; slot < reduction->partition.slots; slot++) {
        float *state = partition_state(&reduction->partition, i, slot);
        update.state[slot] = update.state_out[slot] = state;
    }
    rule_apply(reduction->loops, rule, &update);
}

enum status reduction_update(struct reduction *reduction, uint32_t i,
                             struct failure *why) {
    const struct bucket *bucket = &reduction->buckets[i];
    int64_t start = time_now();
    apply(reduction, i);
    atomic_fetch_add(&reduction->update_ns, time_now() - start);
    if (!reduction->shared)
        return STATUS_OK;
    return group_all_gather(&reduction->ranks,
                            reduction->weights + bucket->first,
                            bucket->end - bucket->first, why);
}

bool reduction_saves(const struct reduction *reduction) {
    return reduction->asked ||
           rounds_saves(reduction->settings->rounds, reduction->round);
}
