/* SPDX-License-Identifier: Apache-2.0 */
/* Handles the chief's commands, in the order of a run: the job; the plan, by
 * which blocks are allocated and set; views; snapshots; the stop. A repeated
 * job or plan is ignored. */
#include "core/base/limits.h"
#include "ps/ps_internal.h"
#include "ps/thread_pool.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Worker threads for block operations, besides the calling thread. */
static uint32_t threads(const struct job *job) {
    if (job->ps_threads)
        return job->ps_threads > 1 ? job->ps_threads : 0;
    return thread_pool_default_threads(cores_count());
}

/* Bytes that one peer may have in flight: its credit; with clipping or an
 * external model all of this shard, and once more what is WANTED of it;
 * lookups, which have no credit. */
static uint64_t most_in_flight(const struct ps *ps) {
    const struct layout *layout = ps->plan->layout;
    uint64_t elements = 0;
    for (uint32_t i = 0; i < ps->num_blocks - ps->num_partitions; i++)
        elements += layout->blocks[ps->ids[i]].elements;
    return MESSAGE_CREDIT + 2 * elements * sizeof(float) +
           ps->num_partitions * (uint64_t)MESSAGE_MAX_PAYLOAD;
}

static enum status open_server(struct ps *ps, struct failure *why) {
    enum { DESCRIPTORS_PER_TRAINER = 4 }; /* a connection, or shared memory */
    struct plan *plan = ps->plan;
    char trainers[32];
    snprintf(trainers, sizeof trainers, "%u trainer%s", plan->num_ranks,
             log_plural(plan->num_ranks));
    enum status status = limits_descriptors(
        (uint64_t)plan->num_ranks * DESCRIPTORS_PER_TRAINER, trainers, why);
    if (status)
        return status;
    ps->ids = malloc((layout_units(plan->layout) + 1) * sizeof *ps->ids);
    if (!ps->ids)
        return status_fail(why, FAILURE_NO_MEMORY, "no memory for the plan");
    uint32_t blocks;
    ps->num_blocks = plan_units(plan, ps->member->index, ps->ids, &blocks);
    ps->num_partitions = ps->num_blocks - blocks;
    ps->table_counts = calloc(ROW_SHARD_COUNTS * plan->layout->num_tables + 1,
                              sizeof *ps->table_counts);
    ps->row_views = calloc(plan->layout->num_stacks + 1, sizeof *ps->row_views);
    ps->rule_steps = calloc(ps->num_blocks + 1, sizeof *ps->rule_steps);
    if (!ps->table_counts || !ps->row_views || !ps->rule_steps)
        return status_fail(why, FAILURE_NO_MEMORY, "no memory for the plan");
    status = ps_snapshot_open(ps, why);
    if (status)
        return status;
    struct server_settings server = {
        .process = &ps->process,
        .link = ps->link,
        .chief = ps->chief,
        .job = ps->job,
        .threads = threads(ps->job),
        .layout = plan->layout,
        .ids = ps->ids,
        .num_blocks = ps->num_blocks,
        .num_partitions = ps->num_partitions,
        .num_ranks = plan->num_ranks,
        .replicas = plan->replicas,
        .all_replicas = plan_all_replicas(plan),
        .groups = plan->groups,
        .num_groups = plan->num_groups,
        .table_groups = plan->table_groups,
        .awaits_values = !plan->pull_first,
        .run_schedule = plan->run_schedule,
        .scaler = plan->scaler,
        .snapshot = ps_snapshot_reached,
        .on_square_sums = ps_snapshot_send_square_sums,
        .context = ps,
    };
    status = server_open(&ps->server, &server, why);
    link_set_credit(ps->link, most_in_flight(ps));
    if (!status)
        server_set_snapshots(ps->server,
                             snapshot_agent_snapshots(ps->snapshot_agent));
    return status;
}

static enum status take_plan(struct ps *ps, const Capstan__Plan *message,
                             struct failure *why) {
    enum status status = plan_settle_job(ps->job, message, why);
    if (!status)
        status = plan_read(&ps->plan, message, ps->job, why);
    if (!status && ps->member->index >= ps->plan->num_ps)
        status = status_fail(why, FAILURE_BAD_MESSAGE, "a plan of %u ps",
                             ps->plan->num_ps);
    if (!status)
        status = open_server(ps, why);
    if (status)
        return status;
    ps->shard_init = (struct shard_init){.shard = server_shard(ps->server),
                                         .rows = server_row_shard(ps->server),
                                         .seed = ps->job->seed,
                                         .folder = ps->plan->restore_folder,
                                         .manifest = ps->plan->restore_manifest,
                                         .base = ps->plan->restore_base,
                                         .ids = ps->ids,
                                         .rule_steps = ps->rule_steps};
    return background_task_open(&ps->init_task, shard_init_run, &ps->shard_init,
                                why);
}

static enum status take_job(struct ps *ps, const Capstan__Welcome *welcome,
                            struct failure *why) {
    enum status status = job_parse(&ps->job, welcome->job, NULL, why);
    if (status)
        return status;
    ps->chief = welcome->chief_incarnation;
    if (ps->member->own_job && strcmp(ps->member->own_job, welcome->job))
        log_warning(ps->process.log, "job_ignored",
                    "the job given here is not read and differs from the "
                    "chief's");
    control_client_set_timeout(ps->control_client, ps->job->timeouts.peer);
    log_detail(ps->process.log, "run_joined", "joined %s, run %016llx",
               control_client_chief_name(ps->control_client),
               (unsigned long long)ps->process.run);
    return STATUS_OK;
}

static enum status take_view(struct ps *ps, const Capstan__View *view,
                             struct failure *why) {
    struct gate_slot slots[PLAN_MAX_TRAINERS] = {0};
    enum status status = message_check_view(view, ps->plan->num_ranks, why);
    if (status)
        return status;
    for (size_t r = 0; r < view->n_slots; r++)
        slots[r] =
            (struct gate_slot){.incarnation = view->slots[r]->incarnation,
                               .from = view->slots[r]->from_clock,
                               .live = view->slots[r]->live};
    link_limit_rate(ps->link, view->link_gbits, ps->plan->num_ranks);
    update_core_set_view(server_update_core(ps->server), view->number, slots);
    control_client_heartbeat(ps->control_client)->view = view->number;
    control_client_send_heartbeat(
        ps->control_client); /* the chief waits for this acknowledgement */
    return server_run_actions(ps->server, why);
}

static enum status take_stop(struct ps *ps, const Capstan__Stop *stop,
                             struct failure *why) {
    ps->stopped = true;
    return control_client_handle_stop(ps->control_client, stop, why);
}

enum status ps_control_handle(struct ps *ps, const Capstan__Control *command,
                              struct failure *why) {
    switch (command->body_case) {
    case CAPSTAN__CONTROL__BODY_WELCOME:
        return ps->job ? STATUS_OK : take_job(ps, command->welcome, why);
    case CAPSTAN__CONTROL__BODY_PLAN:
        return ps->plan || !ps->job ? STATUS_OK
                                    : take_plan(ps, command->plan, why);
    case CAPSTAN__CONTROL__BODY_STOP:
        return take_stop(ps, command->stop, why);
    default:
        break;
    }
    if (!ps->server)
        return STATUS_OK;
    switch (command->body_case) {
    case CAPSTAN__CONTROL__BODY_VIEW:
        return take_view(ps, command->view, why);
    case CAPSTAN__CONTROL__BODY_NORM:
        return server_set_norm(ps->server, command->norm->round,
                               command->norm->norm, why);
    default:
        return snapshot_agent_handle(ps->snapshot_agent, command, why);
    }
}
