/* SPDX-License-Identifier: Apache-2.0 */
/* What the chief orders, in the order in which a run goes: the job, the plan
 * with which blocks are allocated and filled, views, cuts, the end. A second
 * job or plan changes nothing. */
#include "proto/base/cores.h"
#include "proto/base/limits.h"
#include "ps/crew.h"
#include "ps/ps_parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Threads that work on blocks beside this one. */
static uint32_t threads(const struct job *job) {
    if (job->ps_threads)
        return job->ps_threads > 1 ? job->ps_threads : 0;
    return crew_usual(cores_count());
}

static enum status open_service(struct ps *ps, struct failure *why) {
    enum { OF_TRAINER = 4 }; /* a connection, or shared memory */
    struct plan *plan = ps->plan;
    char trainers[32];
    snprintf(trainers, sizeof trainers, "%u trainers", plan->num_ranks);
    enum status status = limits_descriptors(
        (uint64_t)plan->num_ranks * OF_TRAINER, trainers, why);
    if (status)
        return status;
    ps->ids = malloc((plan->layout->num_blocks + 1) * sizeof *ps->ids);
    if (!ps->ids)
        return status_fail(why, STATUS_RETRY, "no memory for the plan");
    ps->num_blocks = plan_blocks(plan, ps->settings->index, ps->ids);
    struct cutter_settings cutter = {
        .log = ps->settings->log,
        .member = ps->member,
        .plan = plan,
        .index = ps->settings->index,
        .copy_bytes = ps->job->checkpoint.copy_mb << 20,
    };
    status = cutter_open(&ps->cutter, &cutter, why);
    if (status)
        return status;
    struct service_settings service = {
        .link = ps->link,
        .log = ps->settings->log,
        .run = member_run(ps->member),
        .incarnation = member_incarnation(ps->member),
        .chief = ps->chief,
        .job = ps->job,
        .loops = ps->settings->loops,
        .threads = threads(ps->job),
        .layout = plan->layout,
        .ids = ps->ids,
        .num_blocks = ps->num_blocks,
        .num_ranks = plan->num_ranks,
        .replicas = plan->replicas,
        .all_replicas = plan_all_replicas(plan),
        .rounds = plan->rounds,
        .scaler = plan->scaler,
        .snapshot = cutter_snapshot,
        .summed = cutter_summed,
        .context = ps->cutter,
    };
    status = service_open(&ps->service, &service, why);
    return status ? status : cutter_attach(ps->cutter, ps->service, why);
}

static enum status take_plan(struct ps *ps, const Capstan__Plan *message,
                             struct failure *why) {
    enum status status = plan_solve_batch(ps->job, message, why);
    if (!status)
        status = plan_read(&ps->plan, message, ps->job, why);
    if (!status && ps->settings->index >= ps->plan->num_ps)
        status = status_fail(why, STATUS_FAILED, "a plan of %u ps",
                             ps->plan->num_ps);
    if (!status)
        status = open_service(ps, why);
    if (status)
        return status;
    struct filler_settings filler = {.shard = service_shard(ps->service),
                                     .seed = ps->job->seed,
                                     .folder = ps->plan->restore_folder,
                                     .manifest = ps->plan->restore_manifest};
    return filler_open(&ps->filler, &filler, why);
}

static enum status take_job(struct ps *ps, const Capstan__Welcome *welcome,
                            struct failure *why) {
    enum status status = job_parse(&ps->job, welcome->job, why);
    if (status)
        return status;
    ps->chief = welcome->chief_incarnation;
    if (ps->settings->own_job && strcmp(ps->settings->own_job, welcome->job))
        log_warning(ps->settings->log,
                    "the job given here is not read and differs from the "
                    "chief's");
    member_timeout(ps->member, ps->job->timeouts.peer);
    log_info(ps->settings->log, "joined %s, run %016llx",
             member_chief_name(ps->member),
             (unsigned long long)member_run(ps->member));
    return STATUS_OK;
}

static enum status take_view(struct ps *ps, const Capstan__View *view,
                             struct failure *why) {
    struct gate_slot slots[RULE_MAX_GRADIENTS] = {0};
    enum status status = message_check_view(view, ps->plan->num_ranks, why);
    if (status)
        return status;
    for (size_t r = 0; r < view->n_slots; r++)
        slots[r] =
            (struct gate_slot){.incarnation = view->slots[r]->incarnation,
                               .from = view->slots[r]->from_clock,
                               .live = view->slots[r]->live};
    link_pace(ps->link, view->link_gbits, ps->plan->num_ranks);
    exchange_view(service_exchange(ps->service), view->number, slots);
    member_beat(ps->member)->view = view->number;
    member_beat_now(ps->member); /* the chief waits for it */
    return service_settle(ps->service, why);
}

static enum status take_stop(struct ps *ps, const Capstan__Stop *stop,
                             struct failure *why) {
    ps->stopped = true;
    return member_stop(ps->member, stop, ps->settings->again, why);
}

enum status ps_obey(struct ps *ps, const Capstan__Control *order,
                    struct failure *why) {
    switch (order->body_case) {
    case CAPSTAN__CONTROL__BODY_WELCOME:
        return ps->job ? STATUS_OK : take_job(ps, order->welcome, why);
    case CAPSTAN__CONTROL__BODY_PLAN:
        return ps->plan || !ps->job ? STATUS_OK
                                    : take_plan(ps, order->plan, why);
    case CAPSTAN__CONTROL__BODY_STOP:
        return take_stop(ps, order->stop, why);
    default:
        break;
    }
    if (!ps->service)
        return STATUS_OK;
    switch (order->body_case) {
    case CAPSTAN__CONTROL__BODY_VIEW:
        return take_view(ps, order->view, why);
    case CAPSTAN__CONTROL__BODY_CUT_ASK:
        return cutter_ask(ps->cutter, order->cut_ask);
    case CAPSTAN__CONTROL__BODY_CUT:
        return cutter_cut(ps->cutter, order->cut, why);
    case CAPSTAN__CONTROL__BODY_CUT_END:
        return cutter_end(ps->cutter, order->cut_end);
    case CAPSTAN__CONTROL__BODY_KEEP:
        return cutter_keep(ps->cutter, order->keep);
    case CAPSTAN__CONTROL__BODY_NORM:
        return service_norm(ps->service, order->norm->round, order->norm->norm,
                            why);
    default:
        return STATUS_OK;
    }
}
