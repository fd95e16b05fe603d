/* SPDX-License-Identifier: Apache-2.0 */
#include "chief/chief.h"

#include "chief/adopt.h"
#include "chief/control/discovery.h"
#include "chief/control/membership.h"
#include "chief/control/watchdog.h"
#include "chief/last_export.h"
#include "chief/plan/bandwidth_probe.h"
#include "chief/plan/memory_plan.h"
#include "chief/plan/model_spec.h"
#include "chief/plan/planning.h"
#include "chief/report/evaluations.h"
#include "chief/report/hang_report.h"
#include "chief/report/histogram_board.h"
#include "chief/report/metrics.h"
#include "chief/report/summary.h"
#include "chief/report/trace_file.h"
#include "chief/rewind.h"
#include "chief/run.h"
#include "chief/shutdown.h"
#include "chief/snapshot/checkpoint_commit.h"
#include "chief/snapshot/checkpoint_policy.h"
#include "chief/snapshot/snapshot_coordinator.h"
#include "chief/snapshot/weights_io.h"
#include "chief/take_over.h"
#include "core/base/limits.h"
#include "core/base/time.h"
#include "proto/messages/launch_record.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

enum { MAX_MESSAGES_PER_TURN = 256 };
static const int64_t MAX_POLL_WAIT = TIME_S / 10, JOIN_GRACE = 30 * TIME_S;

/* Binds PORT or the first free one of the COUNT ports from PORT on; joining
 * processes try all of them. */
static enum status bind_port(struct link *link, uint16_t port, unsigned count,
                             struct failure *why) {
    enum status status = link_bind(link, port, why);
    for (unsigned i = 1; status == STATUS_RETRY && i < count; i++)
        status = link_bind(link, (uint16_t)(port + i), why);
    return status;
}

/* One server link for all members: roles of this process connect by the
 * in-process name, the others by the port, if the cluster lists any. */
static enum status chief_open_link(struct run *run,
                                   const struct chief_settings *settings,
                                   struct failure *why) {
    const struct cluster_task *self = cluster_own_task(settings->cluster);
    struct link_settings link = {.max_frame = MESSAGE_MAX_TO_CHIEF,
                                 .address = settings->address,
                                 .keys = settings->keys,
                                 .party = cluster_party(CLUSTER_CHIEF, 0),
                                 .flush_ms = 1000,
                                 .follows = rewind_is_second(run)};
    enum status status =
        link_open(&run->link, settings->zmq, LINK_SERVER, &link, why);
    if (!status && settings->inproc)
        status = link_bind_inproc(run->link, settings->inproc, why);
    if (!status && self)
        status = bind_port(run->link, self->port,
                           settings->cluster->chief_ports, why);
    if (!status)
        link_admit_within(run->link, JOIN_GRACE, MESSAGE_MAX_TO_CHIEF);
    return status;
}

static enum status chief_allocate(struct run *run,
                                  const struct chief_settings *settings,
                                  struct failure *why) {
    bool roster = roster_open(&run->roster, settings->trains,
                              settings->num_workers, settings->num_ps,
                              time_from_seconds(run->job->timeouts.peer));
    if (roster)
        take_over_leave_out(run);
    run->trainers = calloc(run->roster.num_ranks + 1, sizeof *run->trainers);
    run->ps = calloc(run->roster.num_ps + 1, sizeof *run->ps);
    run->probes = calloc(run->roster.count + 1, sizeof *run->probes);
    run->plan.limits = calloc(run->roster.count + 1, sizeof *run->plan.limits);
    run->metrics.points.sums =
        calloc(RUN_POINTS, sizeof *run->metrics.points.sums);
    run->control_server =
        roster ? control_server_open(run->link, &run->roster, run->log, run->id,
                                     run->incarnation)
               : NULL;
    bool reachability =
        roster &&
        reachability_open(&run->membership.reachability, &run->roster);
    if (!reachability || !run->trainers || !run->ps || !run->probes ||
        !run->plan.limits || !run->control_server || !run->metrics.points.sums)
        return status_fail(why, FAILURE_NO_MEMORY, "no memory for a chief");
    for (uint32_t r = 0; r < run->roster.num_ranks; r++)
        capstan__heartbeat__init(&run->trainers[r].heartbeat);
    return STATUS_OK;
}

/* A member knows by it whether the chief that answers is the one that it has
 * joined: a process has the same in all of its runs. */
static uint64_t incarnation_of(struct rewind_lineage *lineage) {
    if (!lineage)
        return message_random();
    if (!lineage->incarnation)
        lineage->incarnation = message_random();
    return lineage->incarnation;
}

/* Opens what the chief needs to answer a joining process at all. */
static enum status open_run(struct run *run,
                            const struct chief_settings *settings,
                            struct failure *why) {
    *run = (struct run){.log = settings->log,
                        .health = settings->health,
                        .job = settings->job,
                        .model_memory = settings->model_memory,
                        .zmq = settings->zmq,
                        .address = settings->address,
                        .keys = settings->keys,
                        .cluster = settings->cluster,
                        .ps_inproc = settings->ps_inproc,
                        .num_beyond = settings->num_beyond,
                        .trains = settings->trains,
                        .allreduce = settings->allreduce,
                        .together = settings->together,
                        .no_restart = settings->no_restart,
                        .starts_once = settings->starts_once,
                        .launcher = launch_record_launcher(settings->record),
                        .series = settings->series,
                        .lineage = settings->lineage,
                        .page_points = settings->page_points,
                        .mlflow = &settings->mlflow,
                        .bandwidth.gbits = settings->link_gbits,
                        .id = message_random(),
                        .opened = time_now(),
                        .evaluations.accuracy = NAN,
                        .evaluations.test_loss = NAN,
                        .evaluations.auc = NAN,
                        .evaluations.calibration = NAN,
                        .metrics.shown_loss = NAN,
                        .metrics.shown_rate = NAN,
                        .metrics.epoch_loss = NAN,
                        .shutdown.grace_deadline = TIME_NEVER};
    run->incarnation = incarnation_of(run->lineage);
    if (settings->allreduce)
        snprintf(run->plan.backend, sizeof run->plan.backend, "%s",
                 settings->backend);
    run_enter_phase(run, RUN_JOINING);
    progress_open(&run->metrics.progress, run->log, run->opened);
    enum status status = chief_open_link(run, settings, why);
    if (!status)
        status = chief_allocate(run, settings, why);
    return status;
}

/* Counts one connection from each member, and for each ps those that read its
 * weights. */
static enum status chief_check_descriptors(
    const struct chief_settings *settings, struct failure *why) {
    enum { OF_TRAINER = 1, OF_PS = 8 };
    uint32_t trainers = settings->num_workers + settings->trains;
    char members[64];
    snprintf(members, sizeof members, "%u trainer%s and %u ps", trainers,
             log_plural(trainers), settings->num_ps);
    return limits_descriptors((uint64_t)trainers * OF_TRAINER +
                                  (uint64_t)settings->num_ps * OF_PS,
                              members, why);
}

/* Every other check that depends on this host or directory fails here, before
 * any process has joined. */
static enum status chief_prepare(struct run *run,
                                 const struct chief_settings *settings,
                                 struct failure *why) {
    if (settings->problem) {
        *why = *settings->problem;
        return failure_code_status(why->code);
    }
    enum status status = chief_check_descriptors(settings, why);
    if (!status)
        status = rewind_check(run, why);
    if (!status)
        status = buddies_check(run, why);
    if (!status)
        status = checkpoint_policy_open(run, why);
    if (!status)
        status = weights_io_check_export_path(run, why);
    if (!status)
        status = trace_file_open(run, &settings->trace_steps, why);
    if (!status)
        status = point_outlets_open(&run->metrics.outlets, run, why);
    return status;
}

/* Processes that have not joined would otherwise wait for the chief until
 * timeouts.join. Says why before it waits for them: a launcher may end this
 * process because of theirs. */
static void fail_start(struct run *run, const struct chief_settings *settings,
                       const struct failure *why) {
    struct roster_slot *own = roster_find(&run->roster, settings->cluster->role,
                                          settings->cluster->index);
    if (settings->problem && own)
        own->state = ROSTER_VACATED; /* no trainer starts in this process */
    run->failed_to_start = true;
    run_stop(run, why->code, "%s", why->text);
    if (!roster_count(&run->roster, CLUSTER_ROLES, ROSTER_ABSENT))
        return;
    if (!settings->problem) /* it is logged */
        log_warning(run->log, "start_failed", "%s", why->text);
    log_info(run->log, "run_not_begun",
             "the run cannot begin; processes that join within %.0f s "
             "(timeouts.stop) are told why",
             run->job->timeouts.stop);
}

static void close_run(struct run *run) {
    adopt_close(run);
    last_export_close(run);
    trace_file_close(run);
    hang_report_close(run);
    histogram_board_close(run);
    weights_io_close(run);
    checkpoint_policy_close(run);
    buddies_close(run);
    progress_close(&run->metrics.progress);
    point_outlets_close(&run->metrics.outlets);
    control_server_close(&run->control_server);
    link_close(&run->link);
    reachability_close(&run->membership.reachability);
    roster_close(&run->roster);
    layout_free(&run->plan.layout);
    for (uint32_t i = 0; run->ps && i <= run->roster.num_ps; i++)
        free(run->ps[i].table_counts);
    free(run->plan.groups);
    free(run->plan.table_groups);
    if (run->plan.has_restored)
        manifest_clear(&run->plan.restored);
    for (uint32_t i = 0; i < run->snapshots.count; i++)
        free(run->snapshots.items[i].files);
    free(run->snapshots.items);
    for (uint32_t i = 0; i < run->evaluations.count; i++) {
        evaluation_split_close(&run->evaluations.items[i].parts);
        free(run->evaluations.items[i].rank_points);
        binary_scores_clear(&run->evaluations.items[i].scores);
    }
    free(run->evaluations.items);
    for (uint32_t r = 0; run->trainers && r < run->roster.num_ranks; r++)
        layout_free(&run->trainers[r].layout);
    free(run->trainers);
    for (uint32_t i = 0; run->probes && i < run->roster.count; i++)
        port_probe_close(&run->probes[i]);
    free(run->probes);
    free(run->ps);
    free(run->plan.limits);
    free(run->metrics.points.sums);
    free(run->plan.ps_of_block);
    free(run->square_sums);
}

/* Records how much memory SLOT's member may take by now; ignored once there is
 * a plan. */
static void update_memory(struct run *run, const struct roster_slot *slot,
                          const Capstan__Heartbeat *heartbeat) {
    struct free_memory_limit limits[FREE_MEMORY_LIMITS];
    if (run->phase == RUN_JOINING && heartbeat->n_memory)
        memory_plan_update_limits(
            &run->plan.limits[slot - run->roster.slots], limits,
            membership_read_limits(limits, heartbeat->memory,
                                   heartbeat->n_memory));
}

static void take_table_counts(struct run *run, struct run_ps *ps,
                              const Capstan__Heartbeat *heartbeat) {
    const struct layout *layout = run->plan.layout;
    const uint64_t *const counts[RUN_TABLE_COUNTS] = {heartbeat->table_rows,
                                                      heartbeat->table_admitted,
                                                      heartbeat->table_expired};
    uint32_t tables = layout ? layout->num_tables : 0;
    if (!tables || heartbeat->n_table_rows != tables ||
        heartbeat->n_table_admitted != tables ||
        heartbeat->n_table_expired != tables)
        return;
    if (!ps->table_counts)
        ps->table_counts =
            calloc(RUN_TABLE_COUNTS * tables, sizeof *ps->table_counts);
    for (int c = 0; ps->table_counts && c < RUN_TABLE_COUNTS; c++)
        memcpy(ps->table_counts + c * tables, counts[c],
               tables * sizeof *ps->table_counts);
    for (uint32_t t = 0; t < layout->num_tables; t++) {
        const struct table *table = &layout->tables[t];
        uint64_t rows = run_table_rows(run, t);
        if (table->max_rows && rows > table->max_rows &&
            run->phase == RUN_TRAINING && !run->shutdown.interrupted)
            run_stop(run, FAILURE_TABLE_FULL,
                     "table \"%s\" has %llu rows%s, and its max_rows is %llu: "
                     "raise it, or set admit or expire",
                     table->name, (unsigned long long)rows,
                     run->allreduce ? "" : " on all ps together",
                     (unsigned long long)table->max_rows);
    }
}

/* A heartbeat that carries the newest view acknowledges it: the ps knows the
 * trainers that this view lists, so they may start. */
static void handle_ps_heartbeat(struct run *run, const struct roster_slot *slot,
                                const Capstan__Heartbeat *heartbeat) {
    struct run_ps *ps = run_ps_of(run, slot);
    ps->highest = heartbeat->clock;
    ps->update_s = heartbeat->update_s;
    metrics_update_step(run, heartbeat->global_step);
    take_table_counts(run, ps, heartbeat);
    if (ps->view == heartbeat->view)
        return;
    ps->view = heartbeat->view;
    if (run->phase == RUN_TRAINING && !run->membership.view_sent)
        membership_broadcast_acknowledged(run);
}

/* Are the last square sums of each holder those of ROUND? */
static bool has_square_sums(const struct run *run, uint64_t round) {
    for (uint32_t i = 0; i < run->plan.num_holders; i++)
        if (run->ps[i].square_round != round)
            return false;
    return true;
}

/* Gradient clipping: adds the square sums of all blocks of a round in plan
 * order, so that the norm does not depend on the order of arrival. A ps sends
 * those of its blocks in that order too, once a round, and once more to a chief
 * that adopts the run; no ps closes a round before its norm is known. */
static void handle_square_sums(struct run *run, const struct roster_slot *slot,
                               const Capstan__SquareSums *sums) {
    size_t next = 0;
    if (!run_is_holder(run, slot)) /* or there is no plan yet */
        return;
    uint32_t place = roster_place(&run->roster, slot);
    for (uint32_t b = 0; b < layout_units(run->plan.layout); b++)
        if (run->plan.ps_of_block[b] == place && next < sums->n_sums)
            run->square_sums[b] = sums->sums[next++];
    run->ps[place].square_round = sums->round;
    if (!has_square_sums(run, sums->round))
        return;
    double sum = 0;
    for (uint32_t b = 0; b < layout_units(run->plan.layout); b++)
        sum += run->square_sums[b];
    Capstan__Norm norm = CAPSTAN__NORM__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    norm.round = sums->round;
    norm.norm = sqrt(sum);
    control.body_case = CAPSTAN__CONTROL__BODY_NORM;
    control.norm = &norm;
    control_server_broadcast(run->control_server, CLUSTER_PS, &control);
}

/* Handles messages of a holder: a ps, or rank 0 in all-reduce. */
static void handle_holder(struct run *run, struct roster_slot *slot,
                          const Capstan__Control *control) {
    bool holds = !run->allreduce || slot->rank == 0;
    switch (holds ? control->body_case : CAPSTAN__CONTROL__BODY__NOT_SET) {
    case CAPSTAN__CONTROL__BODY_READY:
        planning_receive_ready(run, slot, control->ready);
        break;
    case CAPSTAN__CONTROL__BODY_SNAPSHOT_PREPARED:
        snapshot_coordinator_receive_round(run, slot,
                                           control->snapshot_prepared);
        break;
    case CAPSTAN__CONTROL__BODY_SNAPSHOT_REPORT:
        snapshot_coordinator_receive_report(run, slot,
                                            control->snapshot_report);
        break;
    default:
        break;
    }
}

static void handle_trainer(struct run *run, struct roster_slot *slot,
                           const Capstan__Control *control, int64_t now) {
    char name[64];
    switch (control->body_case) {
    case CAPSTAN__CONTROL__BODY_HEARTBEAT:
        update_memory(run, slot, control->heartbeat);
        metrics_receive_heartbeat(run, slot, control->heartbeat, now);
        membership_receive_lost(run, slot, control->heartbeat, now);
        if (run->allreduce && slot->rank == 0)
            take_table_counts(run, run_allreduce_holder(run),
                              control->heartbeat);
        break;
    case CAPSTAN__CONTROL__BODY_VISIBLE_DEVICES:
        device_replicas_receive_visible(run, slot, control->visible_devices);
        break;
    case CAPSTAN__CONTROL__BODY_EPOCH:
        planning_receive_epoch(run, slot, control->epoch);
        break;
    case CAPSTAN__CONTROL__BODY_KEPT:
        if (control->kept->copy)
            buddies_receive_kept(run, slot, control->kept);
        else
            kept_states_receive(run, slot, control->kept);
        break;
    case CAPSTAN__CONTROL__BODY_SAVE_REQUEST:
        roster_name(slot, name, sizeof name);
        snapshot_coordinator_receive_signal(run, name);
        break;
    case CAPSTAN__CONTROL__BODY_POINTS:
        metrics_receive_points(run, slot, control->points);
        break;
    case CAPSTAN__CONTROL__BODY_MODEL_SPEC:
        model_spec_receive(run, slot, control->model_spec);
        break;
    case CAPSTAN__CONTROL__BODY_EVALUATED:
        evaluations_receive_part(run, slot, control->evaluated);
        break;
    case CAPSTAN__CONTROL__BODY_MEASURED:
        bandwidth_probe_receive(run, slot, control->measured);
        break;
    case CAPSTAN__CONTROL__BODY_FINISHED:
        shutdown_receive_finished(run, slot, control->finished);
        break;
    case CAPSTAN__CONTROL__BODY_RENDEZVOUS:
        membership_forward_rendezvous(run, control);
        break;
    default:
        if (run->allreduce && slot->rank == 0)
            handle_holder(run, slot, control);
        break;
    }
}

static void handle_ps(struct run *run, struct roster_slot *slot,
                      const Capstan__Control *control) {
    switch (control->body_case) {
    case CAPSTAN__CONTROL__BODY_HEARTBEAT:
        update_memory(run, slot, control->heartbeat);
        handle_ps_heartbeat(run, slot, control->heartbeat);
        break;
    case CAPSTAN__CONTROL__BODY_SQUARE_SUMS:
        handle_square_sums(run, slot, control->square_sums);
        break;
    case CAPSTAN__CONTROL__BODY_READY: /* in all-reduce a ps holds nothing */
        planning_receive_ready(run, slot, control->ready);
        break;
    case CAPSTAN__CONTROL__BODY_BUDDY_REPORT:
        buddies_receive(run, slot, control->buddy_report);
        break;
    default:
        handle_holder(run, slot, control);
        break;
    }
}

/* Reads a bounded number of messages, so that timers get their turn. */
static void receive_messages(struct run *run) {
    struct control_message incoming;
    char text[128];
    int64_t now = time_now();
    for (int i = 0; i < MAX_MESSAGES_PER_TURN &&
                    control_server_receive(run->control_server, now, &incoming);
         i++) {
        const Capstan__Control *control = incoming.control;
        if (control->body_case == CAPSTAN__CONTROL__BODY_JOIN) {
            if (!adopt_receive(run, &incoming, now))
                membership_join(run, &incoming, now);
        } else if (!incoming.slot)
            membership_reject_unknown(run, incoming.peer, control);
        else if (control->body_case == CAPSTAN__CONTROL__BODY_GOODBYE)
            shutdown_receive_goodbye(run, incoming.slot);
        else if (control->body_case == CAPSTAN__CONTROL__BODY_FAILED)
            shutdown_receive_failed(run, incoming.slot, control->failed);
        else if (control->body_case == CAPSTAN__CONTROL__BODY_INTERRUPTED)
            shutdown_receive_interrupted(run, incoming.slot,
                                         control->interrupted);
        else if (control->body_case == CAPSTAN__CONTROL__BODY_REPORT)
            hang_report_receive(run, incoming.slot, control->report);
        else if (control->body_case == CAPSTAN__CONTROL__BODY_EXIT_REPORT)
            membership_receive_exit(run, incoming.slot, control->exit_report);
        else if (control->body_case == CAPSTAN__CONTROL__BODY_TRACE)
            trace_file_receive(run, incoming.slot, control->trace);
        else if (control->body_case == CAPSTAN__CONTROL__BODY_HISTOGRAMS)
            histogram_board_receive(run, incoming.slot, control->histograms);
        else if (incoming.slot->rank != ROSTER_NO_RANK)
            handle_trainer(run, incoming.slot, control, now);
        else
            handle_ps(run, incoming.slot, control);
    }
    while (link_bad_peer(run->link, text, sizeof text))
        log_warning(run->log, "unknown_peer_rejected",
                    "an unknown peer on port %u %s", link_port(run->link),
                    text);
}

static void read_interrupt(struct run *run, int descriptor) {
    eventfd_t number = 0;
    if (descriptor < 0 || eventfd_read(descriptor, &number))
        return;
    if (number == SIGUSR1)
        snapshot_coordinator_receive_signal(run, "SIGUSR1");
    else if (number == SIGQUIT)
        hang_report_print(run, time_now());
    else
        shutdown_interrupt(run, failure_code_of_signal((int)number),
                           "ended by a signal");
}

/* "waiting for X" without the first words. */
static void chief_report_wait(const struct run *run,
                              struct health_report *report, int64_t now) {
    static const char words[] = "waiting for ";
    char text[sizeof report->waiting_for];
    stall_seconds(run, now, text, sizeof text);
    bool names = !strncmp(text, words, sizeof words - 1);
    snprintf(report->waiting_for, sizeof report->waiting_for, "%s",
             text + (names ? sizeof words - 1 : 0));
    report->waiting_since = run->stall.since;
}

/* What the chief knows of the member of SLOT. */
static struct health_peer peer_of(const struct run *run,
                                  const struct roster_slot *slot) {
    static const char *const states[] = {[ROSTER_ABSENT] = "absent",
                                         [ROSTER_HELD] = "joined",
                                         [ROSTER_VACATED] = "gone"};
    struct health_peer peer = {
        .role = cluster_role_name(slot->role),
        .index = slot->index,
        .state = states[slot->state],
        .last_seen = slot->state == ROSTER_HELD ? slot->last_seen : 0};
    snprintf(peer.address, sizeof peer.address, "%s", slot->address);
    if (slot->rank == ROSTER_NO_RANK) {
        peer.step = run->ps[roster_place(&run->roster, slot)].highest;
        return peer;
    }
    const struct run_trainer *trainer = &run->trainers[slot->rank];
    peer.step = trainer->heartbeat.clock;
    peer.seconds.input = trainer->heartbeat.input_s;
    peer.seconds.compute = trainer->heartbeat.compute_s;
    peer.seconds.waiting = trainer->heartbeat.wire_s;
    peer.seconds.training = trainer->heartbeat.training_s;
    if (slot->state == ROSTER_HELD && run->phase == RUN_TRAINING)
        peer.state = trainer->finished  ? "finished"
                     : trainer->in_view ? "training"
                                        : peer.state;
    return peer;
}

static void fill_report(const struct run *run, struct health_report *report,
                        int64_t now) {
    static const enum health_state states[] = {
        [RUN_JOINING] = HEALTH_JOINING,   [RUN_READYING] = HEALTH_JOINED,
        [RUN_TRAINING] = HEALTH_TRAINING, [RUN_FINISHING] = HEALTH_ENDING,
        [RUN_STOPPING] = HEALTH_ENDING,   [RUN_OVER] = HEALTH_ENDING,
    };
    report->state = states[run->phase];
    report->run = run->id;
    report->step = run_step(run);
    report->total_steps = run->plan.schedule.total;
    for (uint32_t i = 0; i < run->roster.count; i++)
        health_add_peer(report, peer_of(run, &run->roster.slots[i]));
    if (run->phase == RUN_TRAINING)
        chief_report_wait(run, report, now);
    watchdog_report(run, report, now);
    metrics_add_samples(run, report, now);
}

static void chief_report_health(const struct run *run, struct health *health,
                                int64_t now) {
    struct health_report *report = health_begin(health, now);
    if (!report)
        return;
    fill_report(run, report, now);
    health_end(health);
}

/* /status and /metrics have the last point while outlets end, as these may wait
 * for a server. */
static void report_last_health(const struct run *run, struct health *health) {
    struct health_report *report = health_begin_last(health);
    if (!report)
        return;
    fill_report(run, report, time_now());
    health_end(health);
}

/* Makes and sends the plan, once it can be made. */
static void chief_plan(struct run *run) {
    struct failure why;
    if (rewind_is_over(run) || !planning_prepare(run))
        return;
    if (checkpoint_policy_find_start(run, &why) ||
        buddies_find_start(run, &why))
        run_stop(run, why.code, "%s", why.text);
    else if (planning_schedule(run)) {
        metrics_begin(run, run->plan.schedule.start);
        rewind_go_on(run);
        planning_send(run);
        checkpoint_policy_send_retained(run);
    }
}

/* Those that have declared their model while others train, or before. */
static void admit_joiners(struct run *run) {
    for (uint32_t r = 0; r < run->roster.num_ranks; r++) {
        struct roster_slot *slot = &run->roster.slots[r];
        if (run->phase == RUN_TRAINING && slot->state == ROSTER_HELD &&
            run->trainers[r].declared && !run->trainers[r].has_plan &&
            !rewind_for_joiner(run, slot))
            planning_admit_joiner(run, slot, kept_states_any(run));
    }
}

/* Its launcher starts another process in the place of one that dies while it
 * leads. A trainer in this process writes more. */
static void record_lead(const struct run *run, int record) {
    const struct launch_record leads = {.run = run->id};
    launch_record_write(record, &leads);
}

/* A launcher does not start a process again whose run has ended it: from before
 * the lock of the run's directory is gone. A caller's program may go on. */
static void record_end(const struct run *run, int record) {
    const struct launch_record none = {0};
    if (!run->code && !run->series && run->job->model.type != JOB_EXTERNAL)
        launch_record_write_deaths(record, LAUNCH_RECORD_DONE);
    launch_record_write(record, &none);
}

static void record_deaths(struct run *run, int record) {
    unsigned deaths = rewind_deaths(run);
    if (!run->has_recorded || deaths != run->recorded_deaths)
        launch_record_write_deaths(record, deaths);
    run->recorded_deaths = deaths;
    run->has_recorded = true;
}

/* Handles events first. Then each part checks what has become due; a part runs
 * after the parts whose outcome it depends on. */
static void chief_run_iteration(struct run *run, struct discovery *discovery,
                                const struct chief_settings *settings) {
    int interrupts = settings->interrupts;
    int64_t peer = time_from_seconds(run->job->timeouts.peer);
    /* Six heartbeats fit into a short timeouts.peer, so that a few late ones do
     * not look like a death. */
    int64_t heartbeat_interval = peer / 6 < TIME_S / 2 ? peer / 6 : TIME_S / 2;
    enum { OWN = 3 };
    zmq_pollitem_t items[OWN + LINK_POLL_ITEMS] = {
        {NULL, interrupts, ZMQ_POLLIN, 0},
        {NULL, weights_io_descriptor(run), ZMQ_POLLIN, 0},
        {NULL, checkpoint_commit_descriptor(run), ZMQ_POLLIN, 0},
    };
    int count = OWN + link_poll_items(run->link, items + OWN);
    int64_t wait = heartbeat_interval / 2 < MAX_POLL_WAIT
                       ? heartbeat_interval / 2
                       : MAX_POLL_WAIT;
    zmq_poll(items, count, (long)(wait / TIME_MS));
    watchdog_check_own_stall(run, time_now());
    receive_messages(run);
    read_interrupt(run, interrupts);
    int64_t now = time_now();
    adopt_step(run, now);
    membership_check_deaths(run, now);
    weights_io_step(run);
    checkpoint_commit_step(run, metrics_write_until);
    chief_plan(run);
    planning_step(run);
    admit_joiners(run);
    evaluations_step(run);
    watchdog_step(run, now);
    hang_report_step(run, now);
    rewind_step(run);
    take_over_step(run, buddies_can_take_over);
    snapshot_coordinator_step(run, now);
    buddies_step(run, metrics_write_until);
    run_series_step(run, now);
    metrics_show(run, now);
    trace_file_step(run, now);
    shutdown_step(run, now);
    if (!control_server_step(run->control_server, now, heartbeat_interval))
        run_stop(run, FAILURE_NO_MEMORY, "no memory for a message to a member");
    if (run->phase < RUN_FINISHING || run->failed_to_start)
        discovery_step(discovery, now);
    record_deaths(run, settings->record);
    chief_report_health(run, settings->health, now);
}

/* Writes the address that discovery announces to peers that know no chief. */
static void chief_advertised_address(const struct chief_settings *settings,
                                     const struct run *run, char *text,
                                     size_t size) {
    const struct cluster_task *chief = cluster_chief(settings->cluster);
    struct cluster_task bound = {0};
    text[0] = 0;
    if (!chief)
        return;
    bound = *chief;
    bound.port = link_port(run->link);
    if (settings->address)
        snprintf(bound.host, sizeof bound.host, "%s", settings->address);
    cluster_address(&bound, text, size);
}

/* By which the launcher knows whether a process that died was replaced. */
static void record_last_members(const struct run *run, int record) {
    const struct roster *roster = &run->roster;
    uint64_t *last = calloc(roster->num_ranks + 1, sizeof *last);
    for (uint32_t r = 0; last && r < roster->num_ranks; r++)
        last[r] = roster->slots[r].incarnation ? roster->slots[r].incarnation
                                               : roster->slots[r].removed;
    if (last)
        launch_record_write_last(record, last, roster->num_ranks);
    free(last);
}

/* Steps of the timeline that the next run does not compute are written now. */
static void end_trace(struct run *run) {
    if (run->checkpoints.has_saved &&
        run->checkpoints.saved >= run->trace.first)
        trace_file_finish(run);
    run->lineage->traced |= trace_file_is_written(run);
}

/* Tells each outlet what the run has come to. */
static void chief_report_end(struct run *run,
                             const struct chief_settings *settings) {
    json_t *summary = summary_object(run);
    point_outlets_end(&run->metrics.outlets, run, summary);
    trace_file_finish(run);
    summary_print(run, settings->json);
    if (settings->summary)
        summary_save(run, settings->summary);
    if (run->series && !run->code)
        run->series->measured = json_incref(summary);
    json_decref(summary);
}

/* After the loop: returns the run's status. WHY is there if the run failed to
 * start. */
static enum status chief_end_run(struct run *run,
                                 const struct chief_settings *settings,
                                 struct failure *why) {
    char text[SHUTDOWN_END_TEXT];
    checkpoint_commit_finish(run, settings->health);
    shutdown_end_text(run, text, sizeof text);
    health_leave_loop(settings->health, HEALTH_ENDING);
    metrics_end(run);
    if (run->metrics.began)
        run_find_end_step(run); /* by the members' last heartbeats */
    report_last_health(run, settings->health);
    record_last_members(run, settings->record);
    if (rewind_end(run)) {
        end_trace(run);
        point_outlets_end(&run->metrics.outlets, run, NULL);
        return STATUS_OK;
    }
    chief_report_end(run, settings);
    enum status status = failure_code_status(run->code);
    if (run->failed_to_start)
        return status;
    record_end(run, settings->record);
    return status ? status_fail(why, run->code, "%s", text) : STATUS_OK;
}

/* After a failed start the loop still runs, to refuse those that join. */
static enum status lead_run(struct run *run,
                            const struct chief_settings *settings,
                            struct failure *why) {
    char address[300];
    if (link_port(run->link))
        log_info(run->log, "listening", "listening on port %u, run %016llx",
                 link_port(run->link), (unsigned long long)run->id);
    run->join_limit = time_from_seconds(settings->join_timeout);
    chief_advertised_address(settings, run, address, sizeof address);
    struct discovery *discovery = discovery_open(
        &(struct discovery_settings){.zmq = settings->zmq,
                                     .source = settings->address,
                                     .address = address,
                                     .keys = settings->keys,
                                     .cluster = settings->cluster,
                                     .roster = &run->roster,
                                     .log = run->log});
    enum status status = discovery ? chief_prepare(run, settings, why)
                                   : status_fail(why, FAILURE_NO_MEMORY,
                                                 "no memory for a chief");
    if (status)
        fail_start(run, settings, why);
    else
        record_lead(run, settings->record);
    while (discovery && run->phase != RUN_OVER)
        chief_run_iteration(run, discovery, settings);
    discovery_close(&discovery);
    return chief_end_run(run, settings, why);
}

enum status chief_run(const struct chief_settings *settings,
                      struct failure *why) {
    struct run *run = calloc(1, sizeof *run);
    if (!run)
        return status_fail(why, FAILURE_NO_MEMORY, "no memory for a chief");
    enum status status = open_run(run, settings, why);
    if (!status)
        status = lead_run(run, settings, why);
    close_run(run);
    free(run);
    return status;
}
