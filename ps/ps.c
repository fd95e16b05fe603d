/* SPDX-License-Identifier: Apache-2.0 */
/* One thread runs the ps. It serves data frames first, for up to a millisecond
 * while they keep coming, then everything else. While copies for a snapshot are
 * at their limit it reads no frames, so that senders wait.
 *
 * It has two links: the data link, bound here, for trainers and discovery
 * messages, and the control client's link to the chief, whose commands are
 * handled here; server.c handles the trainers' messages, ps_snapshot.c
 * snapshots. Each returns a status that is not OK when the run cannot go on;
 * the loop then ends. Besides such a failure only the chief's stop and a signal
 * end a ps. */
#include "ps/ps.h"

#include "core/base/health.h"
#include "core/base/limits.h"
#include "core/base/time.h"
#include "proto/messages/histograms.h"
#include "proto/messages/process_report.h"
#include "ps/buddy.h"
#include "ps/ps_internal.h"
#include "ps/thread_pool.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* The chief's commands, in the order of a run: the job; the plan, by
 * which blocks are allocated and set; views; snapshots; the stop. A repeated
 * job or plan is ignored. */

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
    uint64_t bytes = MESSAGE_CREDIT;
    for (uint32_t i = 0; i < ps->num_blocks; i++) {
        const struct block *block = layout_block(layout, ps->ids[i]);
        bytes +=
            block ? 2 * block->elements * sizeof(float) : MESSAGE_MAX_PAYLOAD;
    }
    return bytes;
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
    ps->num_blocks = plan_units(plan, ps->place, ps->ids);
    ps->table_counts = calloc(ROW_SHARD_COUNTS * plan->layout->num_tables + 1,
                              sizeof *ps->table_counts);
    ps->rule_steps = calloc(ps->num_blocks + 1, sizeof *ps->rule_steps);
    ps->noted_clocks = calloc(plan->num_ranks + 1, sizeof *ps->noted_clocks);
    ps->parties = calloc(plan->num_ranks + 1, sizeof *ps->parties);
    ps->noted_round = plan->run_schedule.start;
    if (!ps->table_counts || !ps->rule_steps || !ps->noted_clocks ||
        !ps->parties)
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
        .num_ranks = plan->num_ranks,
        .parties = ps->parties,
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

static enum status begin_weights(struct ps *ps, struct failure *why) {
    struct shard_copy copy = {-1, -1};
    (void)buddy_restored(ps, &copy);
    ps->shard_init = (struct shard_init){.units = *server_units(ps->server),
                                         .seed = ps->job->seed,
                                         .folder = ps->plan->restore_folder,
                                         .manifest = ps->plan->restore_manifest,
                                         .base = ps->plan->restore_base,
                                         .copy = copy,
                                         .part = ps->part,
                                         .ids = ps->ids,
                                         .rule_steps = ps->rule_steps};
    return background_task_open(&ps->init_task, shard_init_run, &ps->shard_init,
                                why);
}

/* A copy in memory that is to be restored comes first. */
static enum status step_copies(struct ps *ps, struct failure *why) {
    bool restores = !ps->init_task && !ps->weights_set;
    enum status status = buddy_step(ps, time_now(), why);
    return status || !restores || buddy_is_fetching(ps)
               ? status
               : begin_weights(ps, why);
}

static enum status take_plan(struct ps *ps, const Capstan__Plan *message,
                             struct failure *why) {
    enum status status = plan_settle_job(ps->job, message, why);
    ps->files_unread = message->rewinds && !message->in_vain;
    if (!status)
        status = plan_read(&ps->plan, message, ps->job, why);
    if (!status && !plan_find_ps(ps->plan, ps->member->index, &ps->place))
        status = status_fail(why, FAILURE_BAD_MESSAGE,
                             "a plan of %u ps, without ps %u", ps->plan->num_ps,
                             ps->member->index);
    if (!status && ps->job->histogram_every_steps)
        ps->process.histograms =
            histograms_open(ps->job->histogram_every_steps);
    if (!status)
        status = open_server(ps, why);
    if (status)
        return status;
    health_note(ps->process.health, EVENT_PLANNED, 0, NULL, 0);
    status = buddy_open(ps, why);
    return status || buddy_is_fetching(ps) ? status : begin_weights(ps, why);
}

static enum status take_job(struct ps *ps, const Capstan__Welcome *welcome,
                            struct failure *why) {
    enum status status = job_parse(&ps->job, welcome->job, NULL, why);
    if (status)
        return status;
    ps->chief = welcome->chief_incarnation;
    health_note(ps->process.health, EVENT_JOINED, 0, NULL, 0);
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
    uint32_t live = 0, present = 0;
    enum status status = message_check_view(view, ps->plan->num_ranks, why);
    if (status)
        return status;
    for (size_t r = 0; r < view->n_slots; r++)
        slots[r] =
            (struct gate_slot){.incarnation = view->slots[r]->incarnation,
                               .from = view->slots[r]->from_clock,
                               .live = view->slots[r]->live};
    for (size_t r = 0; r < view->n_slots; r++) {
        ps->parties[r] =
            cluster_party(view->slots[r]->role, view->slots[r]->index);
        live += slots[r].live;
        present += slots[r].incarnation != 0;
    }
    health_note(ps->process.health, EVENT_VIEW, view->number, NULL, live);
    if (!ps->round_since)
        ps->round_since = time_now();
    link_limit_rate(ps->link, view->link_gbits, present);
    update_core_set_view(server_update_core(ps->server), view->number, slots);
    control_client_heartbeat(ps->control_client)->view = view->number;
    control_client_send_heartbeat(
        ps->control_client); /* the chief waits for this acknowledgement */
    return server_run_actions(ps->server, why);
}

static enum status take_stop(struct ps *ps, const Capstan__Stop *stop,
                             struct failure *why) {
    ps->stopped = true;
    health_note(ps->process.health, EVENT_STOPPED, 0, NULL, 0);
    return control_client_handle_stop(ps->control_client, stop, why);
}

/* Handles one COMMAND of the chief. Snapshot and view commands that arrive
 * before the plan are ignored. */
static enum status ps_control_handle(struct ps *ps,
                                     const Capstan__Control *command,
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
    case CAPSTAN__CONTROL__BODY_ADOPTED:
        ps->chief = command->incarnation;
        server_set_chief(ps->server, ps->chief);
        return snapshot_agent_forget(ps->snapshot_agent,
                                     command->adopted->saved, why);
    case CAPSTAN__CONTROL__BODY_BUDDY_ORDER:
        buddy_order(ps, command->buddy_order);
        return STATUS_OK;
    case CAPSTAN__CONTROL__BODY_NORM:
        return server_set_norm(ps->server, command->norm->round,
                               command->norm->norm, why);
    case CAPSTAN__CONTROL__BODY_SNAPSHOT:
        health_note(ps->process.health, EVENT_SNAPSHOT,
                    command->snapshot->round ? command->snapshot->round
                                             : command->snapshot->step,
                    NULL, 0);
        return snapshot_agent_handle(ps->snapshot_agent, command, why);
    default:
        return snapshot_agent_handle(ps->snapshot_agent, command, why);
    }
}

enum { FRAMES_PER_TURN = 64 };
static const int64_t SHOWN_WAIT = TIME_S; /* for pushes, in the report */
/* Trainers connect when a view lists them and send at once. */
static const int64_t FIRST_MESSAGE_LIMIT = 30 * TIME_S;

static enum status ps_open_links(struct ps *ps, const char *inproc,
                                 struct failure *why) {
    const struct member *member = ps->member;
    struct link_settings link = {.max_frame = MESSAGE_MAX_PAYLOAD,
                                 .address = ps->process.address,
                                 .keys = ps->process.keys,
                                 .party =
                                     cluster_party(CLUSTER_PS, member->index),
                                 .flush_ms = 0,
                                 .follows = true};
    enum status status =
        link_open(&ps->link, ps->process.zmq, LINK_SERVER, &link, why);
    if (status)
        return status;
    if (inproc)
        status = link_bind_inproc(ps->link, inproc, why);
    if (!status && member->self)
        status = link_bind(ps->link, member->self->port, why);
    if (status)
        return status;
    link_admit_within(ps->link, FIRST_MESSAGE_LIMIT, MESSAGE_CREDIT);
    ps->discovery_guard =
        (struct discovery_guard){.cluster = member->discovery_cluster,
                                 .chief = member->chief,
                                 .log = ps->process.log};
    ps->shm_key = ps->process.shm ? message_random() : 0;
    struct control_client_settings settings = {
        .process = &ps->process,
        .member = ps->member,
        .port = link_port(ps->link),
        .shm_key = ps->shm_key,
    };
    return control_client_open(&ps->control_client, &settings, why);
}

static void ps_close_all(struct ps *ps) {
    discovery_guard_close(&ps->discovery_guard);
    buddy_close(ps);
    snapshot_agent_close(&ps->snapshot_agent);
    background_task_close(&ps->init_task);
    server_close(&ps->server);
    plan_close(&ps->plan);
    job_free(&ps->job);
    control_client_close(&ps->control_client);
    link_close(&ps->link);
    free(ps->ids);
    free(ps->table_counts);
    free(ps->rule_steps);
    free(ps->noted_clocks);
    free(ps->parties);
}

static void ps_send_ready(struct ps *ps) {
    Capstan__Ready ready = CAPSTAN__READY__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    ready.shares_folder = snapshot_agent_shares_folder(ps->snapshot_agent);
    control.body_case = CAPSTAN__CONTROL__BODY_READY;
    control.ready = &ready;
    control_client_send_reliable(ps->control_client, &control);
}

static void listen_shm(struct ps *ps) {
    struct failure why;
    if (ps->shm_key && link_listen_shm(ps->link, ps->shm_key, &why))
        log_info(ps->process.log, "shm_unavailable", "%s", why.text);
}

/* The run goes back once more, and its chief reads the files before. */
static enum status give_up_files(const struct ps *ps, struct failure *why) {
    log_warning(ps->process.log, "shard_failed",
                "the run cannot go on from the checkpoint of step %" PRIu64
                ": %s",
                ps->plan->run_schedule.start, why->text);
    why->code = FAILURE_PEER_LOST;
    return status_mark_reported(why);
}

/* Reports ready once the blocks are set. The chief sends the first view, with
 * which training begins, after that. */
static enum status await_weights(struct ps *ps, struct failure *why) {
    struct shard_copy copy;
    enum status status;
    if (!background_task_poll(ps->init_task, &status, why))
        return STATUS_OK;
    background_task_close(&ps->init_task);
    if (status && buddy_restored(ps, &copy))
        return buddy_give_up(ps, why);
    if (status)
        return ps->files_unread ? give_up_files(ps, why) : status;
    status = buddy_end_part(ps, why);
    if (status || ps->part < ps->plan->num_buddies)
        return status || buddy_is_fetching(ps) ? status
                                               : begin_weights(ps, why);
    ps->weights_set = true;
    for (uint32_t b = 0; b < ps->num_blocks; b++)
        update_core_set_rule_step(server_update_core(ps->server), b,
                                  ps->rule_steps[b]);
    ps->reported_step = ps->plan->run_schedule.start;
    listen_shm(ps);
    health_note(ps->process.health, EVENT_READY, 0, NULL, 0);
    ps_send_ready(ps);
    return STATUS_OK;
}

static enum status ps_handle_control(struct ps *ps, struct failure *why) {
    const Capstan__Control *command;
    enum status status;
    do {
        status = control_client_receive(ps->control_client, time_now(),
                                        &command, why);
        if (!status && command)
            status = ps_control_handle(ps, command, why);
    } while (!status && command && !ps->stopped);
    return status;
}

/* Discovery messages, also before the run: a chief says where it is, or a
 * worker asks for the chief. */
static bool handle_discovery(struct ps *ps, struct link_frame *frame,
                             const Capstan__DataHeader *header) {
    if (header->kind == CAPSTAN__DATA_HEADER__KIND__CHIEF_AT) {
        if (!control_client_is_joined(ps->control_client))
            discovery_guard_receive(&ps->discovery_guard, ps->link, frame,
                                    header->text);
        return true;
    }
    if (header->kind != CAPSTAN__DATA_HEADER__KIND__FIND_CHIEF)
        return false;
    char address[300];
    if (!control_client_chief_address(ps->control_client, address,
                                      sizeof address))
        return true;
    Capstan__DataHeader reply = CAPSTAN__DATA_HEADER__INIT;
    unsigned char space[1024];
    reply.kind = CAPSTAN__DATA_HEADER__KIND__CHIEF_AT;
    reply.text = address;
    size_t bytes = message_write_data(&reply, space);
    link_reply(ps->link, frame->peer, space, bytes);
    return true;
}

/* Of the messages of a push the first. */
static void note_push(struct ps *ps, struct link_frame *frame,
                      const Capstan__DataHeader *header) {
    if (header->kind != CAPSTAN__DATA_HEADER__KIND__PUSH ||
        header->rank >= ps->plan->num_ranks ||
        ps->noted_clocks[header->rank] >= header->clock ||
        !update_core_is_current(server_update_core(ps->server), header->rank,
                                header->incarnation) ||
        !server_may_speak(ps->server, frame, header))
        return;
    ps->noted_clocks[header->rank] = header->clock;
    health_note(ps->process.health, EVENT_RECEIVED, header->clock, NULL,
                header->rank);
}

static void note_rounds(struct ps *ps) {
    uint64_t highest = update_core_highest(server_update_core(ps->server));
    if (highest <= ps->noted_round)
        return;
    ps->noted_round = highest;
    ps->round_since = time_now();
    if (ps->job->staleness)
        return; /* it is a push, which is noted when it arrives */
    health_note(ps->process.health, EVENT_CLOSED, highest, NULL, 0);
}

/* A frame that cannot be parsed costs its sender the connection and one log
 * line. */
static enum status serve_frame(struct ps *ps, struct link_frame *frame,
                               struct failure *why) {
    struct failure bad;
    Capstan__DataHeader *header;
    if (message_read_data(&header, &ps->arena, frame->header.data,
                          frame->header.size, &bad)) {
        if (link_may_log(ps->link, bad.text))
            log_warning(ps->process.log, "malformed_message_rejected",
                        "a peer sent %s; its connection is not read any more",
                        bad.text);
        link_ban(ps->link, frame->peer);
        link_release(frame);
        return STATUS_OK;
    }
    if (handle_discovery(ps, frame, header) ||
        buddy_answer(ps, frame, header) || !ps->server) {
        link_release(frame);
        return STATUS_OK;
    }
    note_push(ps, frame, header);
    enum status status = server_handle(ps->server, frame, header, why);
    note_rounds(ps);
    return status;
}

static bool holds_first_block(const struct ps *ps) {
    return ps->num_blocks && ps->ids[0] == 0;
}

static void ps_fill_heartbeat(struct ps *ps) {
    Capstan__Heartbeat *heartbeat =
        control_client_heartbeat(ps->control_client);
    if (!ps->server)
        return;
    heartbeat->clock = update_core_highest(server_update_core(ps->server));
    heartbeat->update_s = server_update_seconds(ps->server);
    const struct row_shard *rows = server_units(ps->server)->rows;
    if (rows)
        row_shard_report(rows, ps->table_counts, heartbeat);
    if (holds_first_block(ps))
        heartbeat->global_step =
            update_core_version(server_update_core(ps->server), 0);
}

/* With staleness the chief triggers what is due by step when it learns of the
 * step. A heartbeat interval is many steps, so the ps reports a boundary at
 * once. */
static void report_step(struct ps *ps) {
    if (!ps->server || ps->job->staleness == 0 || !holds_first_block(ps))
        return;
    uint64_t step = update_core_version(server_update_core(ps->server), 0);
    if (!run_schedule_crosses_boundary(&ps->plan->run_schedule,
                                       ps->reported_step, step))
        return;
    ps->reported_step = step;
    ps_fill_heartbeat(ps);
    control_client_send_heartbeat(ps->control_client);
}

static enum status ps_serve(struct ps *ps, struct failure *why) {
    struct link_frame frame;
    char text[128];
    enum status status = STATUS_OK;
    ps->busy = false;
    for (int i = 0; !status && i < FRAMES_PER_TURN; i++) {
        if (!link_view(ps->link, &frame))
            break;
        ps->busy = true;
        status = serve_frame(ps, &frame, why);
        report_step(ps);
        if (ps->snapshot_agent && !status)
            status = ps_snapshot_check_memory(ps, why);
        if (ps->memory_short)
            break; /* the next turn may pause */
    }
    if (ps->server)
        server_flush(ps->server);
    while (link_bad_peer(ps->link, text, sizeof text))
        log_warning(ps->process.log, "unknown_peer_rejected",
                    "an unknown peer on port %u %s", link_port(ps->link), text);
    return status;
}

static void ps_send_interrupted(struct ps *ps) {
    Capstan__Interrupted interrupted = CAPSTAN__INTERRUPTED__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    control.body_case = CAPSTAN__CONTROL__BODY_INTERRUPTED;
    control.interrupted = &interrupted;
    control_client_send_reliable(ps->control_client, &control);
}

static enum status end_by_signal(enum failure_code code, struct failure *why) {
    status_fail(why, code, "ended by a signal");
    return status_mark_reported(why);
}

/* On the first signal the chief is told and arranges the checkpoint; a second
 * one, or the chief's silence, ends this ps. */
static enum status interrupt(struct ps *ps, struct failure *why) {
    eventfd_t number = 0;
    if (ps->interrupted &&
        control_client_is_abandoned(ps->control_client, ps->job->timeouts.stop))
        return end_by_signal(ps->interrupted, why);
    if (eventfd_read(ps->process.interrupts, &number))
        return STATUS_OK;
    enum failure_code code = failure_code_of_signal((int)number);
    if (control_client_is_joined(ps->control_client))
        ps_send_interrupted(ps);
    if (ps->interrupted || !ps->plan)
        return end_by_signal(code, why);
    ps->interrupted = code;
    log_info(ps->process.log, "signal_received",
             "signal %d: asking the chief for a checkpoint", (int)number);
    return STATUS_OK;
}

/* May the next turn skip polling and serve frames only, for up to a
 * millisecond? Not with worker threads, whose results must be collected. A
 * shared-memory link must be armed for its wakeup before it polls. */
static bool keeps_serving(struct ps *ps) {
    return ps->server && server_descriptor(ps->server) < 0 &&
           ((ps->busy && !link_has_shm(ps->link)) ||
            link_busy_poll(&ps->link, 1)) &&
           time_now() - ps->polled < TIME_MS;
}

/* Of a text that grows: SIZE bytes, of which USED are. */
struct report_text {
    char *bytes;
    size_t used, size;
};

/* Cuts what has no room. */
PRINTF_LIKE(2, 3)
static void say(struct report_text *text, const char *format, ...) {
    va_list values;
    va_start(values, format);
    if (text->used < text->size)
        text->used += (size_t)vsnprintf(
            text->bytes + text->used, text->size - text->used, format, values);
    va_end(values);
}

/* The ranks whose contributions the open round lacks. */
static void report_round(struct ps *ps, struct report_text *text) {
    struct update_core *core = server_update_core(ps->server);
    uint64_t round;
    for (uint32_t r = 0; r < ps->plan->num_ranks; r++)
        if (update_core_awaits(core, r, &round))
            say(text, "%s%u", text->used ? ", " : "the pushes of rank ", r);
    if (text->used)
        say(text, " for round %llu", (unsigned long long)round);
}

/* The ranks that others, which are further ahead than the bound, wait for. */
static void report_staleness(struct ps *ps, struct report_text *text) {
    uint32_t num_ranks = ps->plan->num_ranks;
    uint8_t *marks = malloc(num_ranks);
    uint64_t step;
    if (marks &&
        update_core_waits(server_update_core(ps->server), marks, &step)) {
        for (uint32_t r = 0; r < num_ranks; r++)
            if (marks[r] & UPDATE_CORE_BEHIND)
                say(text, "%s%u", text->used ? ", " : "the pushes of rank ", r);
        say(text, " for step %llu; strategy.staleness holds back rank ",
            (unsigned long long)step);
        const char *between = "";
        for (uint32_t r = 0; r < num_ranks; r++)
            if (marks[r] & UPDATE_CORE_AHEAD) {
                say(text, "%s%u", between, r);
                between = ", ";
            }
    }
    free(marks);
}

static void report_pushes(struct ps *ps, struct health_report *report) {
    struct report_text text = {report->waiting_for, 0,
                               sizeof report->waiting_for};
    if (ps->polled - ps->round_since < SHOWN_WAIT)
        return;
    if (ps->job->staleness)
        report_staleness(ps, &text);
    else
        report_round(ps, &text);
    report->waiting_since = ps->round_since;
}

/* Pushes of the first block between the fastest and the slowest live trainer.
 */
static uint64_t ps_staleness(struct update_core *core) {
    const struct gate *gate = update_core_gate(core);
    uint64_t least = UINT64_MAX, most = 0;
    for (uint32_t r = 0; r < gate->num_ranks; r++) {
        if (!gate->slots[r].live)
            continue;
        uint64_t clock = gate_clock(gate, update_core_ledger(core), 0, r);
        least = clock < least ? clock : least;
        most = clock > most ? clock : most;
    }
    return most > least ? most - least : 0;
}

static void ps_add_samples(struct ps *ps, struct health_report *report) {
    const Capstan__Heartbeat *heartbeat =
        control_client_heartbeat(ps->control_client);
    struct update_core *core = server_update_core(ps->server);
    double rows = 0;
    for (size_t t = 0; t < heartbeat->n_table_rows; t++)
        rows += (double)heartbeat->table_rows[t];
    health_add_sample(report, METRIC_UPDATES, HEALTH_NONE,
                      (double)update_core_highest(core));
    health_add_sample(report, METRIC_UPDATE_TIME, HEALTH_NONE,
                      server_update_seconds(ps->server));
    health_add_sample(report, METRIC_QUEUE, HEALTH_NONE,
                      server_queue(ps->server));
    if (update_core_gate(core)->view && ps->num_blocks)
        health_add_sample(report, METRIC_STALENESS, HEALTH_NONE,
                          (double)ps_staleness(core));
    if (heartbeat->n_table_rows)
        health_add_sample(report, METRIC_ROWS, HEALTH_NONE, rows);
}

static void ps_report_health(struct ps *ps) {
    struct health_report *report = health_begin(ps->process.health, ps->polled);
    if (!report)
        return;
    control_client_report(ps->control_client, report, ps->polled);
    if (ps->plan)
        report->total_steps = ps->plan->run_schedule.total;
    if (ps->init_task || (buddy_is_fetching(ps) && !ps->weights_set))
        snprintf(report->waiting_for, sizeof report->waiting_for,
                 "its weights to be set");
    if (ps->server) {
        report->step = update_core_highest(server_update_core(ps->server));
        if (update_core_gate(server_update_core(ps->server))->view) {
            report->state = HEALTH_TRAINING;
            report_pushes(ps, report);
        } else if (!ps->init_task) {
            snprintf(report->waiting_for, sizeof report->waiting_for,
                     "the first view of the chief");
        }
        ps_add_samples(ps, report);
    }
    if (ps->interrupted || ps->stopped)
        report->state = HEALTH_ENDING;
    health_end(ps->process.health);
}

static enum status ps_run_once(struct ps *ps, struct failure *why) {
    bool paused = ps->snapshot_agent && ps_snapshot_is_full(ps);
    enum { OWN_ITEMS = 5 };
    if (!paused && keeps_serving(ps))
        return ps_serve(ps, why);
    zmq_pollitem_t items[OWN_ITEMS + 2 * LINK_POLL_ITEMS] = {
        {control_client_socket(ps->control_client), 0, ZMQ_POLLIN, 0},
        {NULL, ps->process.interrupts, ZMQ_POLLIN, 0},
        {NULL,
         ps->snapshot_agent ? snapshot_agent_descriptor(ps->snapshot_agent)
                            : -1,
         ZMQ_POLLIN, 0},
        {NULL, ps->init_task ? background_task_descriptor(ps->init_task) : -1,
         ZMQ_POLLIN, 0},
        {NULL, ps->server ? server_descriptor(ps->server) : -1, ZMQ_POLLIN, 0},
    };
    int64_t deadline = control_client_deadline(ps->control_client);
    int count = OWN_ITEMS + buddy_poll_items(ps, items + OWN_ITEMS, &deadline);
    if (!paused)
        count += link_poll_items(ps->link, items + count);
    else /* leave the data link unread and look again soon */
        deadline = time_now() + 2 * TIME_MS;
    zmq_poll(items, count, time_poll_ms(time_now(), deadline));
    ps->polled = time_now();
    ps_fill_heartbeat(ps);
    enum status status =
        control_client_step(ps->control_client, time_now(), why);
    if (!status)
        status = ps_handle_control(ps, why);
    if (!status && (items[1].revents || ps->interrupted))
        status = interrupt(ps, why);
    if (!status && ps->snapshot_agent) {
        snapshot_agent_step(ps->snapshot_agent);
        status = ps_snapshot_check_memory(ps, why);
    }
    if (!status && ps->snapshot_agent &&
        control_client_is_orphaned(ps->control_client))
        status = snapshot_agent_lift(ps->snapshot_agent, why);
    if (!status && ps->server)
        status = server_repeat_wants(ps->server, ps->polled, why);
    if (!status && buddy_is_fetching(ps))
        status = step_copies(ps, why);
    if (!status && ps->init_task)
        status = await_weights(ps, why);
    if (!status && items[4].revents)
        status = server_collect(ps->server, why);
    if (!status && !paused && !ps->stopped)
        status = ps_serve(ps, why);
    char address[300];
    if (discovery_guard_step(&ps->discovery_guard, ps->link, address,
                             sizeof address))
        control_client_set_chief_address(ps->control_client, address);
    ps_report_health(ps);
    return status;
}

enum status ps_run(const struct ps_settings *settings, struct failure *why) {
    struct ps *ps = calloc(1, sizeof *ps);
    if (!ps)
        return status_fail(why, FAILURE_NO_MEMORY, "no memory for a ps");
    ps->process = settings->process;
    ps->member = &settings->member;
    enum status status = ps_open_links(ps, settings->inproc, why);
    if (!status && ps->member->self)
        log_detail(ps->process.log, "listening", "listening on port %u",
                   link_port(ps->link));
    while (!status && !ps->stopped)
        status = ps_run_once(ps, why);
    if (status && why->code == FAILURE_PEER_SILENT)
        process_report_log(ps->process.log, ps->process.health, time_now());
    health_leave_loop(ps->process.health, HEALTH_ENDING);
    if (ps->interrupted && (status == STATUS_OK || ps->stopped)) {
        status = end_by_signal(ps->interrupted, why);
    } else if (status && !ps->stopped && ps->control_client &&
               control_client_is_joined(ps->control_client)) {
        if (!why->reported) /* else the chief knows: a signal */
            control_client_send_failed(ps->control_client, why);
        control_client_leave_failed(ps->control_client, why);
    }
    ps_close_all(ps);
    free(ps);
    return status;
}
