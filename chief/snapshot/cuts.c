/* SPDX-License-Identifier: Apache-2.0 */
/* From a reason to a checkpoint, an evaluation or an export. A cut is asked for
 * (cuts_ask): synchronous, each holder says how far it is and closes no further
 * than one round more (cuts_marked), so the round after the highest is still
 * ahead of all of them, and all are told it. Otherwise it is the moment each
 * hears of it. Held by all, it is read and written; written by all, it gets its
 * manifest (commit.c). Rounds that stand in the plan are never asked for: the
 * first word of them is that a part is written. */
#include "chief/snapshot/cuts.h"

#include "chief/control/enlisting.h"
#include "chief/snapshot/saves.h"
#include "proto/base/time.h"
#include "proto/tensor/plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ASKED_FIRST (UINT64_C(1) << 63) /* ids below are planned rounds */

struct run_cut *cuts_find(struct run *run, uint64_t id) {
    for (uint32_t i = 0; i < run->num_cuts; i++)
        if (run->cuts[i].course.stage && run->cuts[i].id == id)
            return &run->cuts[i];
    return NULL;
}

/* A free one. There may be many: while the reports of one ps do not come,
 * those of the others on planned rounds do. */
static struct run_cut *find_room(struct run *run) {
    uint32_t i = 0;
    while (i < run->num_cuts && run->cuts[i].course.stage)
        i++;
    if (i == run->num_cuts) {
        struct run_cut *more = realloc(run->cuts, (i + 1) * sizeof *run->cuts);
        if (!more)
            return NULL;
        run->cuts = more;
        run->cuts[run->num_cuts++] = (struct run_cut){0};
    }
    return &run->cuts[i];
}

/* Other cuts may move in memory. */
static struct run_cut *begin(struct run *run, uint64_t id) {
    struct run_cut *cut = find_room(run);
    struct shard_info *files = calloc(run->num_holders, sizeof *files);
    if (!cut || !files) {
        free(files);
        run_stop(run, STATUS_RETRY, "no memory for a checkpoint");
        return NULL;
    }
    free(cut->files);
    *cut = (struct run_cut){
        .id = id, .step = id, .began = time_now(), .files = files};
    cut_round_take(&cut->course, run->num_holders);
    return cut;
}

/* A snapshot that is only read any more, by evaluations that one trainer may
 * hold up for long, is in nobody's way. */
static bool is_only_read(const struct run_cut *cut) {
    return cut->course.stage == CUT_HELD &&
           (!cut->save || cut->written || cut->failed);
}

bool cuts_asking(const struct run *run) {
    for (uint32_t i = 0; i < run->num_cuts; i++)
        if (run->cuts[i].course.stage && run->cuts[i].id >= ASKED_FIRST &&
            !is_only_read(&run->cuts[i]))
            return true;
    return false;
}

bool cuts_writing(const struct run *run) {
    for (uint32_t i = 0; i < run->num_cuts; i++)
        if (run->cuts[i].course.stage && !is_only_read(&run->cuts[i]))
            return true;
    return false;
}

bool cuts_saving(const struct run *run) {
    for (uint32_t i = 0; i < run->num_cuts; i++) {
        const struct run_cut *cut = &run->cuts[i];
        if (cut->course.stage && cut->save && !cut->written && !cut->failed)
            return true;
    }
    return false;
}

bool cuts_pending(const struct run *run) {
    for (uint32_t i = 0; i < run->num_cuts; i++)
        if (run->cuts[i].course.stage)
            return true;
    return false;
}

bool cuts_evaluating(const struct run *run) {
    for (uint32_t i = 0; i < run->num_cuts; i++)
        if (run->cuts[i].course.stage && run->cuts[i].evaluate)
            return true;
    return false;
}

/* Synchronous, unplanned: ps close no block above one more than their highest
 * until they are told the round, so that some round is ahead of all of them. */
static void tell_ask(struct run *run, const struct run_cut *cut) {
    Capstan__CutAsk ask = CAPSTAN__CUT_ASK__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    ask.id = cut->id;
    control.body_case = CAPSTAN__CONTROL__BODY_CUT_ASK;
    control.cut_ask = &ask;
    run_tell_holders(run, &control);
}

static void tell_cut(struct run *run, uint64_t id, uint64_t round,
                     uint64_t step, bool write, bool keep) {
    Capstan__Cut message = CAPSTAN__CUT__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    message.id = id;
    message.round = round;
    message.step = step;
    message.write = write;
    message.keep = keep;
    control.body_case = CAPSTAN__CONTROL__BODY_CUT;
    control.cut = &message;
    if (run->allreduce && write && !round) /* all ranks hand over */
        post_tell_all(run->post, CLUSTER_WORKER, &control);
    else
        run_tell_holders(run, &control);
}

static void tell_end(struct run *run, uint64_t id) {
    Capstan__CutEnd end = CAPSTAN__CUT_END__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    end.id = id;
    control.body_case = CAPSTAN__CONTROL__BODY_CUT_END;
    control.cut_end = &end;
    run_tell_holders(run, &control);
}

/* With staleness, and when nobody pushes any more, a cut is the moment that
 * each ps hears of it: snapshots first, and the order to write follows with the
 * step that they turn out to be at. */
bool cuts_ask(struct run *run, struct cuts_reason reason, bool end) {
    if (run_synchronous(run) && cuts_asking(run))
        return false; /* a ps agrees on one round at a time */
    struct run_cut *cut = begin(run, ASKED_FIRST + ++run->cuts_asked);
    if (!cut)
        return false;
    cut->step = run_step(run);
    cut->save = reason.save;
    cut->evaluate = reason.evaluate;
    cut->export = reason.export;
    cut->joins = reason.joins;
    cut->keep = reason.evaluate || reason.export;
    cut->readers = (uint32_t)reason.evaluate + reason.export;
    if (run_synchronous(run) && !end) {
        cut_round_ask(&cut->course, run->num_holders);
        tell_ask(run, cut);
    } else {
        tell_cut(run, cut->id, 0, 0, false, true);
    }
    return true;
}

/* Joiners' first contribution is the one after the cut's round. */
static void let_join(struct run *run, uint64_t round) {
    for (uint32_t r = 0; r < run->roster.num_ranks; r++)
        if (run->roster.slots[r].state == ROSTER_HELD &&
            run->trainers[r].planned && !run->trainers[r].from) {
            run->trainers[r].from = round + 1;
            run->trainers[r].beat.clock = round;
        }
    enlisting_begin(run);
}

/* A planned cut is known from its first answer on, or from here. */
static struct run_cut *await_planned(struct run *run, uint64_t round) {
    struct run_cut *cut = cuts_find(run, round);
    if (cut || (run->has_saved && run->saved == round))
        return cut;
    cut = begin(run, round);
    if (cut)
        cut->save = true;
    return cut;
}

void cuts_expect(struct run *run, uint64_t round) {
    if (rounds_saves(&run->rounds, round) && run->unsaved != round)
        await_planned(run, round);
}

/* When the round that was agreed on stands in the plan, the ps save it anyway,
 * and a joiner needs no snapshot: then the asked cut is over, and what else it
 * was for is asked again. */
void cuts_marked(struct run *run, const struct roster_slot *slot,
                 const Capstan__CutMark *mark) {
    struct run_cut *cut = cuts_find(run, mark->id);
    (void)slot;
    if (!cut ||
        !cut_round_marked(&cut->course, mark->highest, run->rounds.total))
        return;
    uint64_t round = cut->course.round;
    if (cut->joins)
        let_join(run, round);
    if (rounds_saves(&run->rounds, round) || !(cut->save || cut->keep)) {
        cut->course.stage = CUT_FREE;
        tell_cut(run, round, 0, round, false, false);
        if (cut->save)
            await_planned(run, round);
        return;
    }
    cut->step = round;
    cut->ordered = cut->save;
    tell_cut(run, cut->id, round, round, cut->save, cut->keep);
}

/* Planned cuts end by themselves at the ps; what was asked for is held there
 * until the chief lets it go. */
static void end_if_over(struct run *run, struct run_cut *cut) {
    bool saved = !cut->save || cut->written;
    if (!saved || cut->readers || !cut->course.stage)
        return;
    if (cut->id >= ASKED_FIRST)
        tell_end(run, cut->id);
    cut->course.stage = CUT_FREE;
}

bool cuts_abandon(struct run *run) {
    bool any = false;
    for (uint32_t i = 0; i < run->num_cuts; i++) {
        struct run_cut *cut = &run->cuts[i];
        bool waits = cut->course.stage == CUT_ASKING ||
                     (cut->course.stage == CUT_TAKING && cut->course.round);
        if (cut->id < ASKED_FIRST || !waits || cut->course.held)
            continue;
        tell_end(run, cut->id);
        cut->course.stage = CUT_FREE;
        any = true;
    }
    return any;
}

bool cuts_take_evaluation(struct run *run, uint64_t *id, uint64_t *step) {
    for (uint32_t i = 0; i < run->num_cuts; i++) {
        struct run_cut *cut = &run->cuts[i];
        if (cut->course.stage != CUT_HELD || !cut->evaluate || cut->evaluating)
            continue;
        cut->evaluating = true;
        *id = cut->id;
        *step = cut->step;
        return true;
    }
    return false;
}

bool cuts_take_export(struct run *run, uint64_t *id) {
    for (uint32_t i = 0; i < run->num_cuts; i++) {
        struct run_cut *cut = &run->cuts[i];
        if (cut->course.stage != CUT_HELD || !cut->export || cut->exporting)
            continue;
        cut->exporting = true;
        *id = cut->id;
        return true;
    }
    return false;
}

void cuts_release(struct run *run, uint64_t id) {
    struct run_cut *cut = cuts_find(run, id);
    if (!cut || !cut->readers)
        return;
    cut->readers--;
    end_if_over(run, cut);
}

/* All ps hold the snapshot. */
static void held(struct run *run, struct run_cut *cut) {
    if (cut->save && !cut->ordered) {
        cut->ordered = true;
        tell_cut(run, cut->id, 0, cut->step, true, cut->keep);
    }
    end_if_over(run, cut);
}

static void write_over(struct run *run, struct run_cut *cut) {
    cut->whole = !cut->failed;
    cut->whole_at = time_now();
    if (!cut->failed)
        return;
    saves_discard(run, cut);
    cuts_saved(run, cut);
}

struct run_cut *cuts_whole(struct run *run) {
    struct run_cut *oldest = NULL;
    for (uint32_t i = 0; i < run->num_cuts; i++) {
        struct run_cut *cut = &run->cuts[i];
        if (cut->course.stage && cut->whole && !cut->written &&
            (!oldest || cut->step < oldest->step))
            oldest = cut;
    }
    return oldest;
}

void cuts_saved(struct run *run, struct run_cut *cut) {
    cut->written = true;
    end_if_over(run, cut);
}

static void note_file(struct run_cut *cut, uint32_t index,
                      const Capstan__CutDone *done) {
    struct shard_info *file = &cut->files[index];
    snprintf(file->name, sizeof file->name, "%s", done->name);
    snprintf(file->holder, sizeof file->holder, "%s", done->holder);
    file->size = done->size;
    file->hash[0] = done->hash_low;
    file->hash[1] = done->hash_high;
    if (done->seconds > cut->seconds)
        cut->seconds = done->seconds;
}

/* A planned cut is first heard of by an answer like this. Holding comes before
 * writing, from each ps, so counting is enough. */
void cuts_done(struct run *run, const struct roster_slot *slot,
               const Capstan__CutDone *done) {
    struct run_cut *cut = done->id < ASKED_FIRST ? await_planned(run, done->id)
                                                 : cuts_find(run, done->id);
    if (!cut)
        return;
    bool failed = done->error[0], written = done->written;
    struct failure why;
    char name[64];
    if (failed) {
        cut->failed = true;
        roster_name(slot, name, sizeof name);
        snprintf(cut->problem, sizeof cut->problem, "%s: %.440s", name,
                 done->error);
    }
    if (!failed && !written) {
        if (done->has_step)
            cut->step = done->step;
        if (cut_round_held(&cut->course))
            held(run, cut);
        return;
    }
    if (written)
        note_file(cut, run->allreduce ? 0 : slot->index, done);
    if (written && done->scaler &&
        plan_read_scaler(&cut->scaler, done->scaler, &why)) {
        cut->failed = true;
        snprintf(cut->problem, sizeof cut->problem, "%.440s", why.text);
    }
    if (cut_round_done(&cut->course))
        write_over(run, cut);
}
