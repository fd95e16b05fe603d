/* SPDX-License-Identifier: Apache-2.0 */
/* An evaluation on own weights (id 0) is begun by the first part that comes:
 * each rank computes its own after the planned round, and nobody can take
 * another's. One on a snapshot is begun by its cut: parts are handed out to who
 * can, and handed on when a holder dies; the snapshot is let go with the last
 * one. Where a part of the former never comes, the latter makes up for it. */
#include "chief/report/evaluations.h"

#include "chief/report/measures.h"
#include "chief/snapshot/cuts.h"

#include <stdlib.h>

/* Who can evaluate: the ranks of the living trainers that have begun, and
 * their incarnations. */
struct able {
    uint32_t count, *rank;
    uint64_t *incarnation;
};

static bool is_able(const struct run *run, uint32_t rank) {
    return run->roster.slots[rank].state == ROSTER_HELD &&
           run->trainers[rank].viewed;
}

static bool list_able(const struct run *run, struct able *able) {
    uint32_t ranks = run->roster.num_ranks;
    *able = (struct able){0};
    able->rank = calloc(ranks, sizeof *able->rank);
    able->incarnation = calloc(ranks, sizeof *able->incarnation);
    for (uint32_t r = 0; able->rank && able->incarnation && r < ranks; r++) {
        if (!is_able(run, r))
            continue;
        able->rank[able->count] = r;
        able->incarnation[able->count++] = run->roster.slots[r].incarnation;
    }
    return able->rank && able->incarnation;
}

static void free_able(struct able *able) {
    free(able->rank);
    free(able->incarnation);
}

static struct run_evaluation *find(struct run *run, uint64_t id,
                                   uint64_t step) {
    for (uint32_t i = 0; i < run->num_evaluations; i++)
        if (run->evaluations[i].open && run->evaluations[i].id == id &&
            run->evaluations[i].step == step)
            return &run->evaluations[i];
    return NULL;
}

/* One that is over, or another one at the end. A trainer that cannot be heard
 * for a while is behind by any number of them: each must find its part. */
static struct run_evaluation *find_room(struct run *run) {
    for (uint32_t i = 0; i < run->num_evaluations; i++)
        if (!run->evaluations[i].open)
            return &run->evaluations[i];
    struct run_evaluation *more =
        realloc(run->evaluations,
                (run->num_evaluations + 1) * sizeof *run->evaluations);
    if (!more)
        return NULL;
    run->evaluations = more;
    more[run->num_evaluations] = (struct run_evaluation){0};
    return &more[run->num_evaluations++];
}

static struct run_evaluation *begin(struct run *run, uint64_t id, uint64_t step,
                                    uint32_t num_parts) {
    struct run_evaluation *evaluation = find_room(run);
    if (!evaluation)
        return NULL;
    parts_close(&evaluation->parts);
    free(evaluation->marks);
    *evaluation = (struct run_evaluation){.id = id, .step = step};
    evaluation->marks = calloc(num_parts, sizeof *evaluation->marks);
    evaluation->open =
        evaluation->marks && parts_open(&evaluation->parts, num_parts);
    return evaluation->open ? evaluation : NULL;
}

/* On own weights there is a part a rank, and nobody else can take it: others
 * are at another round by the time that it is missed. */
static struct run_evaluation *begin_own(struct run *run, uint64_t step) {
    uint32_t ranks = run->roster.num_ranks;
    struct run_evaluation *evaluation = begin(run, 0, step, ranks);
    for (uint32_t r = 0; evaluation && r < ranks; r++)
        if (is_able(run, r) && run->trainers[r].from <= step)
            evaluation->parts.part[r].holder = run->roster.slots[r].incarnation;
    return evaluation;
}

/* Of a snapshot: a part for each living trainer. */
static void begin_held(struct run *run, uint64_t id, uint64_t step) {
    struct able able;
    if (!list_able(run, &able) ||
        !begin(run, id, step, able.count ? able.count : 1))
        cuts_release(run, id);
    free_able(&able);
}

void evaluations_part(struct run *run, const struct roster_slot *slot,
                      const Capstan__Evaluated *report) {
    struct run_evaluation *evaluation = find(run, report->id, report->step);
    struct part_result result = {report->loss_sum, report->correct,
                                 report->count};
    if (!evaluation && !report->id && report->step > run->unevaluated)
        evaluation = begin_own(run, report->step);
    if (!evaluation || !parts_take(&evaluation->parts, report->part,
                                   slot->incarnation, &result))
        return;
    struct run_trainer *trainer = &run->trainers[slot->rank];
    struct run_point *mark =
        report->id ? &trainer->mark : &evaluation->marks[report->part];
    *mark = (struct run_point){
        .loss = trainer->past_loss + report->train_loss_sum,
        .seconds = report->training_s,
        .samples = trainer->past_samples + report->train_samples};
    evaluations_settle(run);
}

static void tell_evaluate(struct run *run, uint32_t rank,
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
    post_tell(run->post, &run->roster.slots[rank], &control);
}

/* On own weights a part that does not come any more leaves a hole: then all
 * is computed anew, on a snapshot that the ps take next. */
static void end(struct run *run, struct run_evaluation *evaluation) {
    evaluation->open = false;
    if (!evaluation->id && !parts_whole(&evaluation->parts)) {
        if (evaluation->step > run->unevaluated)
            run->unevaluated = evaluation->step;
        return;
    }
    struct part_result sum = parts_sum(&evaluation->parts);
    for (uint32_t r = 0; !evaluation->id && r < evaluation->parts.count; r++)
        run->trainers[r].mark = evaluation->marks[r];
    measures_epoch(run, evaluation->step, &sum);
    if (evaluation->id)
        cuts_release(run, evaluation->id);
}

static void settle(struct run *run, struct run_evaluation *evaluation,
                   const struct able *able) {
    struct parts *parts = &evaluation->parts;
    uint32_t part, to;
    while (evaluation->id &&
           parts_hand(parts, able->incarnation, able->count, &part, &to))
        tell_evaluate(run, able->rank[to], evaluation, part);
    if (parts_awaited(parts, able->incarnation, able->count))
        return;
    /* Parts that nobody is left for wait for who comes back; none does when
     * the run is ending. */
    if (!evaluation->id || parts_whole(parts) || run->phase >= RUN_FINISHING)
        end(run, evaluation);
}

void evaluations_settle(struct run *run) {
    struct able able;
    uint64_t id, step;
    while (cuts_take_evaluation(run, &id, &step))
        begin_held(run, id, step);
    if (!evaluations_pending(run))
        return;
    bool listed = list_able(run, &able);
    for (uint32_t i = 0; listed && i < run->num_evaluations; i++)
        if (run->evaluations[i].open)
            settle(run, &run->evaluations[i], &able);
    free_able(&able);
}

bool evaluations_pending(const struct run *run) {
    for (uint32_t i = 0; i < run->num_evaluations; i++)
        if (run->evaluations[i].open)
            return true;
    return false;
}

bool evaluations_lack(const struct run *run) {
    return run->unevaluated > run->evaluated;
}
