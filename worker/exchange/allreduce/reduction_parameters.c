/* SPDX-License-Identifier: Apache-2.0 */
/* Rounds in which parameters differ. In an external model each has its own
 * divisor, kind and group, in a built-in one with optimizers by group its own
 * rule, after some checkpoints its own rule step; so what is one call for a
 * bucket is one for each parameter in it. */
#include "proto/tensor/schedule.h"
#include "worker/exchange/allreduce/reduction_internal.h"

#include <string.h>

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
    return partition_state(&reduction->partition, i, slot) +
           (part->first - reduction->partition.owned[i].first);
}

void reduction_start_state(struct reduction *reduction) {
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

enum status reduction_apply_parameters(struct reduction *reduction, uint32_t i,
                                       struct failure *why) {
    struct part part = before_first(reduction);
    enum status status = STATUS_OK;
    while (!status &&
           next_parameter(reduction, reduction->partition.owned[i], &part))
        status = apply_part(reduction, i, &part, why);
    return status;
}

size_t reduction_square_parameters(struct reduction *reduction,
                                   struct partition_range range, size_t count) {
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
