/* SPDX-License-Identifier: Apache-2.0 */
#include "chief/control/membership_broadcast.h"

#include "core/base/time.h"
#include "proto/plan/plan.h"

/* Callers of the library take the same steps. One that has ended, and not said
 * that it ends early, is awaited by those that go on, so that no round closes
 * without it before the chief ends the run, which names both (shutdown.c). */
static bool is_awaited(const struct run *run,
                       const struct run_trainer *trainer) {
    return trainer->finished && !trainer->ended_early &&
           run->job->model.type == JOB_EXTERNAL && run_synchronous(run) &&
           !run->shutdown.interrupted && run_count_live(run) > 0;
}

static void fill_slot(const struct run *run, uint32_t rank,
                      Capstan__Slot *message) {
    const struct roster_slot *slot = &run->roster.slots[rank];
    const struct run_trainer *trainer = &run->trainers[rank];
    capstan__slot__init(message);
    message->role = slot->role;
    message->index = slot->index;
    struct membership_view_entry entry = membership_view_make_entry(
        slot->incarnation, trainer->from,
        trainer->finished && !is_awaited(run, trainer));
    message->from_clock = entry.from;
    message->incarnation = entry.incarnation;
    message->live = entry.live;
}

/* Sends to trainer TO; NULL: to every ps. */
static void send_view(struct run *run, struct roster_slot *to) {
    uint32_t count = run->roster.num_ranks;
    Capstan__Slot slots[PLAN_MAX_TRAINERS], *array[PLAN_MAX_TRAINERS];
    Capstan__View view = CAPSTAN__VIEW__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    for (uint32_t r = 0; r < count; r++) {
        fill_slot(run, r, &slots[r]);
        array[r] = &slots[r];
    }
    view.number = run->membership.view;
    view.n_slots = count;
    view.slots = array;
    view.link_gbits = run->bandwidth.gbits;
    control.body_case = CAPSTAN__CONTROL__BODY_VIEW;
    control.view = &view;
    if (to)
        control_server_send(run->control_server, to, &control);
    else
        control_server_broadcast(run->control_server, CLUSTER_PS, &control);
}

/* The ps get the view first: a ps refuses a trainer that it does not know. */
void membership_broadcast_view(struct run *run) {
    run->membership.view++;
    run->membership.view_sent = false;
    send_view(run, NULL);
    if (!run->roster.num_ps)
        membership_broadcast_acknowledged(run);
}

/* The oldest view that any ps has decides which trainers may start. */
void membership_broadcast_acknowledged(struct run *run) {
    uint64_t oldest = run->membership.view;
    for (uint32_t i = 0; i < run->roster.num_ps; i++)
        if (run->ps[i].view < oldest)
            oldest = run->ps[i].view;
    run->membership.view_sent = oldest == run->membership.view;
    for (uint32_t r = 0; r < run->roster.num_ranks; r++) {
        struct run_trainer *trainer = &run->trainers[r];
        if (!membership_view_may_start(trainer->from, trainer->in_view, oldest,
                                       run->membership.view))
            continue;
        trainer->in_view = true;
        trainer->last_progress = time_now();
        send_view(run, &run->roster.slots[r]);
    }
}

struct membership_view_entry membership_view_make_entry(uint64_t incarnation,
                                                        uint64_t from,
                                                        bool finished) {
    return (struct membership_view_entry){.incarnation = from ? incarnation : 0,
                                          .from = from,
                                          .live = from && !finished};
}

bool membership_view_may_start(uint64_t from, bool reported, uint64_t oldest,
                               uint64_t newest) {
    return from && !reported && oldest >= newest;
}
