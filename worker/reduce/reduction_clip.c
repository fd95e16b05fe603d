/* Clipping: sums of squares are made where the gradients are, in fixed pieces,
 * and added up by the host, so that all devices clip alike. */
#include "proto/base/time.h"
#include "worker/reduce/reduction_parts.h"

#include <math.h>
#include <string.h>

/* Of the mean gradient that RANK has of each bucket, or would have, in fixed
 * pieces from number *NEXT on. */
static void square(struct reduction *reduction, uint32_t rank, size_t *next) {
    for (uint32_t i = 0; i < reduction->num_buckets; i++) {
        struct part part = reduction_part_of(reduction, i, rank);
        if (part.first < part.end)
            reduction->ops->square_sums(reduction->device, OPS_EXCHANGE,
                                        reduction->gradients + part.first,
                                        part.end - part.first, reduction->scale,
                                        reduction->pieces + *next);
        *next += reduction_pieces_of(part);
    }
}

/* The sum of RANK's pieces, bucket by bucket. */
static double add_pieces(const struct reduction *reduction, uint32_t rank,
                         size_t *next) {
    double sum = 0;
    for (uint32_t i = 0; i < reduction->num_buckets; i++) {
        double own = 0;
        for (size_t n =
                 reduction_pieces_of(reduction_part_of(reduction, i, rank));
             n > 0; n--)
            own += reduction->told->pieces[(*next)++];
        sum += own;
    }
    return sum;
}

/* The ranks whose squares this one adds up. */
static bool adds_up(const struct reduction *reduction, uint32_t rank) {
    return !reduction->shared || rank == reduction->ranks->rank;
}

static enum status square_all(struct reduction *reduction,
                              struct failure *why) {
    size_t count = 0;
    for (uint32_t r = 0; r < reduction->ranks->size; r++)
        if (adds_up(reduction, r))
            square(reduction, r, &count);
    reduction->ops->download(reduction->device, OPS_EXCHANGE,
                             reduction->told->pieces, reduction->pieces,
                             count * sizeof *reduction->pieces);
    return reduction_settle(reduction, why);
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

/* All norms are told where one's own were. */
static enum status gather_norms(struct reduction *reduction,
                                struct failure *why) {
    const struct ops *ops = reduction->ops;
    size_t floats = reduction_norm_floats(reduction),
           bytes = floats * sizeof(float);
    float *told = reduction->told->norms;
    ops->upload(reduction->device, OPS_EXCHANGE, reduction->norms, told, bytes);
    enum status status =
        group_all_gather(reduction->ranks, reduction->norms, floats, why);
    if (status)
        return status;
    ops->download(reduction->device, OPS_EXCHANGE, told, reduction->norms,
                  bytes);
    return reduction_settle(reduction, why);
}

static enum status gather_squares(struct reduction *reduction,
                                  struct failure *why) {
    int64_t start = time_now();
    size_t next = 0;
    enum status status = square_all(reduction, why);
    for (uint32_t r = 0; !status && r < reduction->ranks->size; r++)
        if (adds_up(reduction, r))
            put_double(reduction->told->norms +
                           (size_t)r * REDUCTION_NORM_FLOATS,
                       add_pieces(reduction, r, &next));
    atomic_fetch_add(&reduction->update_ns, time_now() - start);
    return status || !reduction->shared ? status : gather_norms(reduction, why);
}

/* As torch.nn.utils.clip_grad_norm_ does. A rank's squares are added first,
 * then those of all in rank order: in one way, whoever has which. */
enum status reduction_clip(struct reduction *reduction, struct failure *why) {
    double limit = reduction->settings->job->gradient_clipping, sum = 0;
    if (!reduction_changes(reduction))
        return STATUS_OK;
    enum status status = gather_squares(reduction, why);
    if (status)
        return status;
    for (uint32_t r = 0; r < reduction->ranks->size; r++)
        sum += get_double(reduction->told->norms +
                          (size_t)r * REDUCTION_NORM_FLOATS);
    double factor = limit / (sqrt(sum) + 1e-6);
    reduction->scale *= factor < 1 ? (float)factor : 1.0f;
    return STATUS_OK;
}
