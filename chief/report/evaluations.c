/* SPDX-License-Identifier: Apache-2.0 */
/* An evaluation on the trainers' own weights (id 0) starts with the first part
 * that is reported: each rank computes its part after the planned round, and no
 * other can replace it. An evaluation on a snapshot starts when the snapshot is
 * held: its parts are assigned, reassigned when their trainer dies, and the
 * snapshot is released after the last one. If a part of the former never comes,
 * the latter replaces it. */
#include "chief/report/evaluations.h"

#include "chief/report/metrics.h"
#include "chief/run.h"
#include "chief/snapshot/snapshot_coordinator.h"

#include <stdlib.h>

bool evaluation_split_open(struct evaluation_split *parts, uint32_t count) {
    parts->part = calloc(count, sizeof *parts->part);
    parts->count = parts->part ? count : 0;
    return parts->part;
}

void evaluation_split_close(struct evaluation_split *parts) {
    free(parts->part);
    *parts = (struct evaluation_split){0};
}

static bool is_assigned(const struct evaluation_split_part *part,
                        const uint64_t *living, uint32_t num_living) {
    for (uint32_t i = 0; !part->done && i < num_living; i++)
        if (part->trainer == living[i])
            return true;
    return false;
}

/* A trainer gets one part at a time. */
static bool find_idle(const struct evaluation_split *parts,
                      const uint64_t *living, uint32_t num_living,
                      uint32_t *to) {
    for (uint32_t i = 0; i < num_living; i++) {
        bool busy = false;
        for (uint32_t p = 0; p < parts->count; p++)
            busy |= is_assigned(&parts->part[p], &living[i], 1);
        *to = i;
        if (!busy)
            return true;
    }
    return false;
}

bool evaluation_split_assign(struct evaluation_split *parts,
                             const uint64_t *living, uint32_t num_living,
                             uint32_t *part, uint32_t *to) {
    uint32_t p = 0;
    while (p < parts->count &&
           (parts->part[p].done ||
            is_assigned(&parts->part[p], living, num_living)))
        p++;
    if (p == parts->count || !find_idle(parts, living, num_living, to))
        return false;
    parts->part[p].trainer = living[*to];
    *part = p;
    return true;
}

bool evaluation_split_receive(struct evaluation_split *parts, uint32_t part,
                              uint64_t trainer,
                              const struct evaluation_split_result *result) {
    if (part >= parts->count || parts->part[part].trainer != trainer ||
        parts->part[part].done)
        return false;
    parts->part[part].done = true;
    parts->part[part].result = *result;
    return true;
}

bool evaluation_split_is_pending(const struct evaluation_split *parts,
                                 const uint64_t *living, uint32_t num_living) {
    for (uint32_t p = 0; p < parts->count; p++)
        if (is_assigned(&parts->part[p], living, num_living))
            return true;
    return false;
}

bool evaluation_split_is_complete(const struct evaluation_split *parts) {
    for (uint32_t p = 0; p < parts->count; p++)
        if (!parts->part[p].done)
            return false;
    return true;
}

struct evaluation_split_result evaluation_split_sum(
    const struct evaluation_split *parts) {
    struct evaluation_split_result sum = {0};
    for (uint32_t p = 0; p < parts->count; p++) {
        const struct evaluation_split_part *part = &parts->part[p];
        if (!part->done)
            continue;
        sum.loss_sum += part->result.loss_sum;
        sum.correct += part->result.correct;
        sum.count += part->result.count;
        sum.bad_lines += part->result.bad_lines;
        sum.regression |= part->result.regression;
        sum.predicted_sum += part->result.predicted_sum;
        sum.target_sum += part->result.target_sum;
    }
    return sum;
}

/* The trainers that can evaluate: ranks and incarnations of live trainers that
 * have started. */
struct evaluators {
    uint32_t count, *rank;
    uint64_t *incarnation;
};

static bool can_evaluate(const struct run *run, uint32_t rank) {
    return run->roster.slots[rank].state == ROSTER_HELD &&
           run->trainers[rank].in_view;
}

static bool list_evaluators(const struct run *run,
                            struct evaluators *evaluators) {
    uint32_t ranks = run->roster.num_ranks;
    *evaluators = (struct evaluators){0};
    evaluators->rank = calloc(ranks, sizeof *evaluators->rank);
    evaluators->incarnation = calloc(ranks, sizeof *evaluators->incarnation);
    for (uint32_t r = 0;
         evaluators->rank && evaluators->incarnation && r < ranks; r++) {
        if (!can_evaluate(run, r))
            continue;
        evaluators->rank[evaluators->count] = r;
        evaluators->incarnation[evaluators->count++] =
            run->roster.slots[r].incarnation;
    }
    return evaluators->rank && evaluators->incarnation;
}

static void free_evaluators(struct evaluators *evaluators) {
    free(evaluators->rank);
    free(evaluators->incarnation);
}

static struct run_evaluation *evaluations_find(struct run *run, uint64_t id,
                                               uint64_t step) {
    for (uint32_t i = 0; i < run->evaluations.count; i++)
        if (run->evaluations.items[i].open &&
            run->evaluations.items[i].id == id &&
            run->evaluations.items[i].step == step)
            return &run->evaluations.items[i];
    return NULL;
}

/* Returns the entry of an evaluation that is over, or a new one. A trainer that
 * cannot be reached for a while is any number of evaluations behind, and each
 * must find its part later. */
static struct run_evaluation *evaluations_find_free(struct run *run) {
    for (uint32_t i = 0; i < run->evaluations.count; i++)
        if (!run->evaluations.items[i].open)
            return &run->evaluations.items[i];
    struct run_evaluation *more =
        realloc(run->evaluations.items,
                (run->evaluations.count + 1) * sizeof *run->evaluations.items);
    if (!more)
        return NULL;
    run->evaluations.items = more;
    more[run->evaluations.count] = (struct run_evaluation){0};
    return &more[run->evaluations.count++];
}

static struct run_evaluation *evaluations_begin(struct run *run, uint64_t id,
                                                uint64_t step,
                                                uint32_t num_parts) {
    struct run_evaluation *evaluation = evaluations_find_free(run);
    if (!evaluation)
        return NULL;
    evaluation_split_close(&evaluation->parts);
    free(evaluation->rank_points);
    binary_scores_clear(&evaluation->scores);
    *evaluation = (struct run_evaluation){.id = id, .step = step};
    evaluation->rank_points =
        calloc(num_parts, sizeof *evaluation->rank_points);
    evaluation->open = evaluation->rank_points &&
                       evaluation_split_open(&evaluation->parts, num_parts);
    return evaluation->open ? evaluation : NULL;
}

/* On own weights there is one part per rank, and no other rank can compute it:
 * by the time that it is missed, the others are at a later round. */
static struct run_evaluation *begin_live(struct run *run, uint64_t step) {
    uint32_t ranks = run->roster.num_ranks;
    struct run_evaluation *evaluation = evaluations_begin(run, 0, step, ranks);
    if (!evaluation) /* the part at hand is lost with it */
        run->evaluations.incomplete = step;
    for (uint32_t r = 0; evaluation && r < ranks; r++)
        if (can_evaluate(run, r) && run->trainers[r].from <= step)
            evaluation->parts.part[r].trainer =
                run->roster.slots[r].incarnation;
    return evaluation;
}

/* On a snapshot there is one part for each live trainer. */
static void begin_snapshot(struct run *run, uint64_t id, uint64_t step) {
    struct evaluators evaluators;
    if (!list_evaluators(run, &evaluators) ||
        !evaluations_begin(run, id, step,
                           evaluators.count ? evaluators.count : 1))
        snapshot_coordinator_release(run, id);
    free_evaluators(&evaluators);
}

void evaluations_receive_part(struct run *run, const struct roster_slot *slot,
                              const Capstan__Evaluated *report) {
    struct run_evaluation *evaluation =
        evaluations_find(run, report->id, report->step);
    struct evaluation_split_result result = {.loss_sum = report->loss_sum,
                                             .correct = report->correct,
                                             .count = report->count,
                                             .bad_lines = report->bad_lines,
                                             .regression = report->regression,
                                             .predicted_sum =
                                                 report->predicted_sum,
                                             .target_sum = report->target_sum};
    if (!evaluation && !report->id &&
        report->step > run->evaluations.incomplete)
        evaluation = begin_live(run, report->step);
    if (!evaluation ||
        !evaluation_split_receive(&evaluation->parts, report->part,
                                  slot->incarnation, &result))
        return;
    if (!evaluation->scores_lost &&
        !binary_scores_unpack(&evaluation->scores, report->scores.data,
                              report->scores.len)) {
        evaluation->scores_lost = true;
        log_warning(run->log, "scores_lost",
                    "step %llu: no AUC, as the scores of part %u cannot be "
                    "read or there is no memory for them",
                    (unsigned long long)report->step, report->part);
    }
    struct run_trainer *trainer = &run->trainers[slot->rank];
    struct run_point *at_evaluation =
        report->id ? &trainer->at_evaluation
                   : &evaluation->rank_points[report->part];
    *at_evaluation = (struct run_point){
        .loss = trainer->past.loss + report->train_loss_sum,
        .seconds = report->training_s,
        .samples = trainer->past.samples + report->train_samples};
    evaluations_step(run);
}

static void send_evaluate(struct run *run, uint32_t rank,
                          const struct run_evaluation *evaluation,
                          uint32_t part) {
    Capstan__Evaluate evaluate = CAPSTAN__EVALUATE__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    evaluate.id = evaluation->id;
    evaluate.step = evaluation->step;
    evaluate.part = part;
    evaluate.parts = evaluation->parts.count;
    control.body_case = CAPSTAN__CONTROL__BODY_EVALUATE;
    control.evaluate = &evaluate;
    control_server_send(run->control_server, &run->roster.slots[rank],
                        &control);
}

/* If a part on own weights does not come any more, the whole evaluation is
 * repeated on a snapshot that the ps take next. */
static void evaluations_end(struct run *run,
                            struct run_evaluation *evaluation) {
    evaluation->open = false;
    if (!evaluation->id && !evaluation_split_is_complete(&evaluation->parts)) {
        if (evaluation->step > run->evaluations.incomplete)
            run->evaluations.incomplete = evaluation->step;
        return;
    }
    struct evaluation_split_result sum =
        evaluation_split_sum(&evaluation->parts);
    for (uint32_t r = 0; !evaluation->id && r < evaluation->parts.count; r++)
        run->trainers[r].at_evaluation = evaluation->rank_points[r];
    if (evaluation->scores_lost)
        binary_scores_clear(&evaluation->scores);
    metrics_report_evaluation(run, evaluation->step, &sum, &evaluation->scores);
    binary_scores_clear(&evaluation->scores);
    if (evaluation->id)
        snapshot_coordinator_release(run, evaluation->id);
}

static void assign_parts(struct run *run, struct run_evaluation *evaluation,
                         const struct evaluators *evaluators) {
    struct evaluation_split *parts = &evaluation->parts;
    uint32_t part, to;
    while (evaluation->id &&
           evaluation_split_assign(parts, evaluators->incarnation,
                                   evaluators->count, &part, &to))
        send_evaluate(run, evaluators->rank[to], evaluation, part);
    if (evaluation_split_is_pending(parts, evaluators->incarnation,
                                    evaluators->count))
        return;
    /* Parts that no live trainer can take wait for a trainer that comes back;
     * none does when the run is ending. */
    if (!evaluation->id || evaluation_split_is_complete(parts) ||
        run->phase >= RUN_FINISHING)
        evaluations_end(run, evaluation);
}

void evaluations_step(struct run *run) {
    struct evaluators evaluators;
    uint64_t id, step;
    while (snapshot_coordinator_take_evaluation(run, &id, &step))
        begin_snapshot(run, id, step);
    if (!run_evaluations_pending(run))
        return;
    bool listed = list_evaluators(run, &evaluators);
    for (uint32_t i = 0; listed && i < run->evaluations.count; i++)
        if (run->evaluations.items[i].open)
            assign_parts(run, &run->evaluations.items[i], &evaluators);
    free_evaluators(&evaluators);
}
