/* SPDX-License-Identifier: Apache-2.0 */
#include "chief/snapshot/kept_states.h"

#include "chief/run.h"
#include "core/store/kept_file.h"

#include <stdio.h>
#include <stdlib.h>

static void free_state(struct kept_state *state) {
    free(state->files);
    *state = (struct kept_state){0};
}

/* Forgets the states of steps up to STEP. */
static void forget(struct run_kept *kept, uint64_t step) {
    uint32_t left = 0;
    for (uint32_t i = 0; i < kept->count; i++)
        if (kept->items[i].step > step)
            kept->items[left++] = kept->items[i];
        else
            free_state(&kept->items[i]);
    kept->count = left;
}

static bool take_files(struct kept_state *state, const Capstan__Kept *kept) {
    state->files = calloc(kept->n_files + 1, sizeof *state->files);
    if (!state->files || kept->n_files > KEPT_FILE_KEYS)
        return false;
    for (size_t f = 0; f < kept->n_files; f++) {
        const Capstan__Kept__File *from = kept->files[f];
        struct shard_info *info = &state->files[state->num_files++];
        snprintf(info->name, sizeof info->name, "%s", from->name);
        snprintf(info->host, sizeof info->host, "%s", from->host);
        info->size = from->size;
        info->hash[0] = from->hash_low;
        info->hash[1] = from->hash_high;
        if (!manifest_is_file_name(from->name))
            return false;
    }
    return true;
}

/* Tells RANK to write what it keeps with STEP. */
static void request_of(struct run *run, uint32_t rank, uint64_t step) {
    Capstan__Snapshot message = CAPSTAN__SNAPSHOT__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    message.step = step;
    message.write = true;
    control.body_case = CAPSTAN__CONTROL__BODY_SNAPSHOT;
    control.snapshot = &message;
    control_server_send(run->control_server, &run->roster.slots[rank],
                        &control);
}

/* The checkpoint of step `keeps_with` may be on its way, and now waits for what
 * RANK keeps. */
static void begin_to_keep(struct run *run, uint32_t rank) {
    struct run_trainer *trainer = &run->trainers[rank];
    bool is_complete = run->checkpoints.has_saved &&
                       run->checkpoints.saved >= trainer->keeps_with;
    if (!trainer->keeps && trainer->keeps_with && !is_complete)
        request_of(run, rank, trainer->keeps_with);
    trainer->keeps = true;
    run->checkpoints.kept.is_used = true;
}

void kept_states_receive(struct run *run, const struct roster_slot *slot,
                         const Capstan__Kept *kept) {
    struct run_kept *all = &run->checkpoints.kept;
    struct kept_state state = {
        .rank = slot->rank, .step = kept->step, .lead = kept->lead};
    begin_to_keep(run, slot->rank);
    if (!kept->step)
        return;
    struct kept_state *items =
        reallocarray(all->items, all->count + 1, sizeof *items);
    if (items)
        all->items = items;
    snprintf(state.error, sizeof state.error, "%s", kept->error);
    if (!take_files(&state, kept) && !*state.error)
        snprintf(state.error, sizeof state.error,
                 "what it keeps cannot be listed");
    all->needs_lead |= state.lead;
    if (items)
        items[all->count++] = state;
    else
        free_state(&state);
}

static const struct kept_state *find_state(const struct run_kept *kept,
                                           uint32_t rank, uint64_t step) {
    for (uint32_t i = 0; i < kept->count; i++)
        if (kept->items[i].rank == rank && kept->items[i].step == step)
            return &kept->items[i];
    return NULL;
}

void kept_states_send(struct run *run, Capstan__Control *control) {
    for (uint32_t r = 0; r < run->roster.num_ranks; r++)
        if (run->trainers[r].keeps && run->roster.slots[r].state == ROSTER_HELD)
            control_server_send(run->control_server, &run->roster.slots[r],
                                control);
}

void kept_states_request(struct run *run, uint64_t step) {
    if (run_synchronous(run))
        return;
    for (uint32_t r = 0; r < run->roster.num_ranks; r++) {
        if (run->roster.slots[r].state != ROSTER_HELD)
            continue;
        run->trainers[r].keeps_with = step;
        if (run->trainers[r].keeps)
            request_of(run, r, step);
    }
}

bool kept_states_any(const struct run *run) {
    if (!run_synchronous(run))
        return false;
    for (uint32_t r = 0; r < run->roster.num_ranks; r++)
        if (run->trainers[r].keeps)
            return true;
    return false;
}

/* Has RANK, if it lives, pushed for STEP, or been told of it? */
static bool takes_part(const struct run *run, uint32_t rank, uint64_t step) {
    const struct run_trainer *trainer = &run->trainers[rank];
    bool early = trainer->ended_early &&
                 !(trainer->leaving && trainer->heartbeat.clock == step);
    if (!run_synchronous(run))
        return trainer->keeps_with == step;
    return trainer->from && trainer->from <= step && !early;
}

/* All-reduce goes on with all ranks only, each with what it has kept: of one
 * that is lost with that, there is a checkpoint before. */
static bool is_lost(const struct run *run, uint32_t rank) {
    return run->allreduce && run->code == FAILURE_PEER_LOST &&
           !run->roster.slots[rank].incarnation && kept_states_any(run);
}

bool kept_states_awaited(const struct run *run, uint64_t step, char *name) {
    for (uint32_t r = 0; r < run->roster.num_ranks; r++) {
        const struct roster_slot *slot = &run->roster.slots[r];
        bool keeps = run->trainers[r].keeps && slot->incarnation &&
                     takes_part(run, r, step);
        if ((keeps || is_lost(run, r)) &&
            !find_state(&run->checkpoints.kept, r, step)) {
            roster_name(slot, name, 64);
            return true;
        }
    }
    return false;
}

/* May RANK have kept, with STEP, what only the chief before had? */
static bool is_unknown(const struct run *run, uint32_t rank, uint64_t step) {
    const struct run_trainer *trainer = &run->trainers[rank];
    uint64_t adopted = run->checkpoints.kept.adopted;
    return adopted && step <= adopted &&
           (trainer->absence.is_gone || trainer->from > step);
}

enum status kept_states_take(struct run *run, uint64_t step,
                             struct shard_info **files, uint32_t *count,
                             struct failure *why) {
    struct run_kept *kept = &run->checkpoints.kept;
    size_t room = (size_t)run->roster.num_ranks * KEPT_FILE_KEYS;
    struct shard_info *all = calloc(room + 1, sizeof *all);
    enum status status = STATUS_OK;
    bool has_lead = false;
    *count = 0;
    if (!all)
        return status_fail(why, FAILURE_NO_MEMORY, "no memory for a manifest");
    for (uint32_t r = 0; r < run->roster.num_ranks; r++) {
        const struct kept_state *state = find_state(kept, r, step);
        if (state && *state->error)
            status = status_fail(why, FAILURE_CHECKPOINT_NOT_WRITTEN,
                                 "what rank %u keeps: %s", r, state->error);
        if (!state && is_unknown(run, r, step))
            status = status_fail(why, FAILURE_CHECKPOINT_NOT_WRITTEN,
                                 "only the chief before had what rank %u, "
                                 "whose trainer is gone, kept with it",
                                 r);
        for (uint32_t f = 0; state && f < state->num_files; f++)
            all[(*count)++] = state->files[f];
        has_lead |= state && state->lead;
    }
    if (!status && kept->needs_lead && !has_lead)
        status = status_fail(why, FAILURE_CHECKPOINT_NOT_WRITTEN,
                             "no rank has kept what is alike on all of them");
    if (status) {
        free(all); /* STEP may be saved again, and fails for the same reason */
        return status;
    }
    /* Synchronous: a rank writes once a step, and the last snapshot may be of
     * the same step as a planned one. */
    forget(kept, run_synchronous(run) ? step - 1 : step);
    *files = all;
    return STATUS_OK;
}

void kept_states_free(struct run *run) {
    forget(&run->checkpoints.kept, UINT64_MAX);
    free(run->checkpoints.kept.items);
    run->checkpoints.kept.items = NULL;
}
