/* SPDX-License-Identifier: Apache-2.0 */
#include "chief/plan/sharing.h"

#include "chief/plan/replicas.h"
#include "chief/run.h"

#include <stdio.h>
#include <string.h>

static bool sees(const struct sharing_sight *sight, const char *id) {
    for (uint32_t i = 0; i < sight->count; i++)
        if (!strcmp(sight->ids[i], id))
            return true;
    return false;
}

static bool meet(const struct sharing_sight *a, const struct sharing_sight *b) {
    for (uint32_t i = 0; i < a->count; i++)
        if (sees(b, a->ids[i]))
            return true;
    return false;
}

struct sharing_place sharing_place(const struct run *run, uint32_t rank) {
    struct sharing_place out = {0, 1};
    for (uint32_t r = 0; r < run->roster.num_ranks; r++) {
        bool shares = r != rank &&
                      meet(&run->trainers[rank].sight, &run->trainers[r].sight);
        out.trainers += shares;
        out.place += shares && r < rank;
    }
    return out;
}

bool sharing_waits(const struct run *run, uint32_t rank) {
    const struct sharing_sight *sight = &run->trainers[rank].sight;
    return sight->told && !sight->answered && sight->count;
}

static bool all_known(const struct run *run) {
    for (uint32_t r = 0; r < run->roster.num_ranks; r++)
        if (!run->trainers[r].sight.known)
            return false;
    return true;
}

static void keep(struct sharing_sight *kept, const Capstan__Sight *told) {
    *kept = (struct sharing_sight){.told = true,
                                   .known = true,
                                   .alone = told->alone > JOB_MOST_DEVICES
                                                ? JOB_MOST_DEVICES
                                            : told->alone ? told->alone
                                                          : 1};
    for (size_t i = 0; i < told->n_devices && i < JOB_MOST_DEVICES; i++)
        snprintf(kept->ids[kept->count++], DEVICE_ID, "%s", told->devices[i]);
}

static void answer(struct run *run, uint32_t rank) {
    struct sharing_place place = sharing_place(run, rank);
    Capstan__Share share = CAPSTAN__SHARE__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    share.place = place.place;
    share.trainers = place.trainers;
    control.body_case = CAPSTAN__CONTROL__BODY_SHARE;
    control.share = &share;
    run->trainers[rank].sight.answered = true;
    post_tell(run->post, &run->roster.slots[rank], &control);
}

/* Before anybody takes a device, and while data are still read. */
static bool foresee(struct run *run) {
    if (run->phase != RUN_JOINING)
        return run->phase < RUN_STOPPING;
    for (uint32_t r = 0; r < run->roster.num_ranks; r++) {
        struct run_trainer *trainer = &run->trainers[r];
        if (!trainer->declared)
            trainer->devices = trainer->sight.alone;
    }
    return replicas_foresee(run);
}

/* Who has not been answered yet, once it is known what all see. */
static void answer_all(struct run *run) {
    if (!all_known(run) || !foresee(run))
        return;
    for (uint32_t r = 0; r < run->roster.num_ranks; r++)
        if (run->trainers[r].sight.told && !run->trainers[r].sight.answered)
            answer(run, r);
}

void sharing_take(struct run *run, struct roster_slot *slot,
                  const Capstan__Sight *sight) {
    keep(&run->trainers[slot->rank].sight, sight);
    answer_all(run);
}

void sharing_declared(struct run *run, const struct roster_slot *slot) {
    struct sharing_sight *sight = &run->trainers[slot->rank].sight;
    if (sight->known)
        return;
    *sight = (struct sharing_sight){.known = true, .alone = 1};
    answer_all(run);
}
