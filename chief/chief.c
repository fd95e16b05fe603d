/* SPDX-License-Identifier: Apache-2.0 */
#include "chief/chief.h"

#include "chief/control/admission.h"
#include "chief/control/crier.h"
#include "chief/control/ending.h"
#include "chief/control/enlisting.h"
#include "chief/control/watch.h"
#include "chief/plan/declaration.h"
#include "chief/plan/link_rate.h"
#include "chief/plan/planning.h"
#include "chief/report/evaluations.h"
#include "chief/report/measures.h"
#include "chief/report/summary.h"
#include "chief/run.h"
#include "chief/snapshot/collect.h"
#include "chief/snapshot/commit.h"
#include "chief/snapshot/cuts.h"
#include "chief/snapshot/saves.h"
#include "proto/base/limits.h"
#include "proto/base/time.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

enum { LETTERS_A_TURN = 256, QUEUED_OF_A_PEER = 16 };
static const int64_t LONGEST_WAIT = TIME_S / 10, JOINED_WITHIN = 30 * TIME_S;

/* PORT, or the first free of COUNT from it on: those who join try them all. */
static enum status bind_port(struct link *link, uint16_t port, unsigned count,
                             struct failure *why) {
    enum status status = link_bind(link, port, why);
    for (unsigned i = 1; status == STATUS_RETRY && i < count; i++)
        status = link_bind(link, (uint16_t)(port + i), why);
    return status;
}

/* One server link for everyone: roles of this process come in by its inside
 * name, the others by the port, if any are listed. */
static enum status open_link(struct run *run,
                             const struct chief_settings *settings,
                             struct failure *why) {
    const struct cluster_task *self = cluster_self(settings->cluster);
    struct link_settings link = {.max_frame = MESSAGE_MAX_TOLD,
                                 .receive_frames = QUEUED_OF_A_PEER,
                                 .linger_ms = 1000};
    enum status status =
        link_open(&run->link, settings->zmq, LINK_SERVER, &link, why);
    if (!status && settings->inside)
        status = link_bind_inside(run->link, settings->inside, why);
    if (!status && self)
        status = bind_port(run->link, self->port,
                           settings->cluster->chief_ports, why);
    if (!status)
        link_admit_within(run->link, JOINED_WITHIN);
    return status;
}

static enum status allocate(struct run *run,
                            const struct chief_settings *settings,
                            struct failure *why) {
    bool roster = roster_open(&run->roster, settings->trains,
                              settings->num_workers, settings->num_ps,
                              time_from_seconds(run->job->timeouts.peer));
    run->trainers = calloc(run->roster.num_ranks + 1, sizeof *run->trainers);
    run->ps = calloc(run->roster.num_ps + 1, sizeof *run->ps);
    run->limits = calloc(run->roster.count + 1, sizeof *run->limits);
    run->points.sums = calloc(RUN_POINTS, sizeof *run->points.sums);
    run->post = roster ? post_open(run->link, &run->roster, run->log, run->id,
                                   run->incarnation)
                       : NULL;
    if (!run->trainers || !run->ps || !run->limits || !run->post ||
        !run->points.sums)
        return status_fail(why, STATUS_RETRY, "no memory for a chief");
    for (uint32_t r = 0; r < run->roster.num_ranks; r++)
        capstan__beat__init(&run->trainers[r].beat);
    return STATUS_OK;
}

/* Without these nobody can be told anything. */
static enum status open_run(struct run *run,
                            const struct chief_settings *settings,
                            struct failure *why) {
    *run = (struct run){.log = settings->log,
                        .job = settings->job,
                        .zmq = settings->zmq,
                        .cluster = settings->cluster,
                        .ps_inside = settings->ps_inside,
                        .trains = settings->trains,
                        .allreduce = settings->allreduce,
                        .json = settings->json,
                        .together = settings->together,
                        .series = settings->series,
                        .link_gbits = settings->link_gbits,
                        .id = message_random(),
                        .incarnation = message_random(),
                        .opened = time_now(),
                        .accuracy = NAN,
                        .test_loss = NAN,
                        .shown_loss = NAN,
                        .shown_rate = NAN,
                        .epoch_loss = NAN,
                        .give_up = TIME_NEVER};
    if (settings->allreduce)
        snprintf(run->backend, sizeof run->backend, "%s", settings->backend);
    run_enter(run, RUN_JOINING);
    progress_open(&run->progress, run->log, run->opened);
    enum status status = open_link(run, settings, why);
    if (!status)
        status = allocate(run, settings, why);
    return status;
}

/* A connection from each member, and to a ps those by which weights are read.
 */
static enum status check_descriptors(const struct chief_settings *settings,
                                     struct failure *why) {
    enum { OF_TRAINER = 1, OF_PS = 8 };
    uint32_t trainers = settings->num_workers + settings->trains;
    char what[64];
    snprintf(what, sizeof what, "%u trainers and %u ps", trainers,
             settings->num_ps);
    return limits_descriptors(LIMITS_OWN_DESCRIPTORS +
                                  (uint64_t)trainers * OF_TRAINER +
                                  (uint64_t)settings->num_ps * OF_PS,
                              what, why);
}

/* All else that can fail for the place it is started in fails here, before
 * anybody has joined. */
static enum status prepare(struct run *run,
                           const struct chief_settings *settings,
                           struct failure *why) {
    if (settings->wrong) {
        *why = *settings->wrong;
        return why->status;
    }
    enum status status = check_descriptors(settings, why);
    if (!status)
        status = saves_open(run, why);
    if (!status)
        status = collect_check(run, why);
    if (!status && run->job->events_dir)
        status = events_open(&run->events, run->job->events_dir, why);
    return status;
}

/* Those who are to join would wait for their chief until timeouts.join. */
static void fail_start(struct run *run, const struct chief_settings *settings,
                       const struct failure *why) {
    struct roster_slot *own = roster_find(&run->roster, settings->cluster->role,
                                          settings->cluster->index);
    if (settings->wrong && own)
        own->state = ROSTER_GONE; /* nobody comes in this process */
    run->unstarted = true;
    run_stop(run, why->status, "%s", why->text);
    if (roster_count(&run->roster, CLUSTER_ROLES, ROSTER_ABSENT))
        log_info(run->log,
                 "the run cannot begin; who joins within %.0f s "
                 "(timeouts.stop) is told why",
                 run->job->timeouts.stop);
}

static void close_run(struct run *run) {
    collect_close(run);
    saves_close(run);
    progress_close(&run->progress);
    events_close(&run->events);
    post_close(&run->post);
    link_close(&run->link);
    roster_close(&run->roster);
    layout_free(&run->layout);
    if (run->has_restored)
        manifest_clear(&run->restored);
    for (uint32_t i = 0; i < run->num_cuts; i++)
        free(run->cuts[i].files);
    free(run->cuts);
    for (uint32_t i = 0; i < run->num_evaluations; i++) {
        parts_close(&run->evaluations[i].parts);
        free(run->evaluations[i].marks);
    }
    free(run->evaluations);
    free(run->trainers);
    free(run->ps);
    free(run->limits);
    free(run->points.sums);
    free(run->ps_of_block);
    free(run->square_sums);
}

/* A beat with the newest view is a ps's word that it knows the trainers which
 * that view lists: they may start. */
static void take_ps_beat(struct run *run, const struct roster_slot *slot,
                         const Capstan__Beat *beat) {
    struct run_ps *ps = &run->ps[slot->index];
    ps->highest = beat->clock;
    ps->update_s = beat->update_s;
    measures_step(run, beat->global_step);
    if (ps->view == beat->view)
        return;
    ps->view = beat->view;
    if (run->phase == RUN_TRAINING && !run->view_sent)
        enlisting_seen(run);
}

/* Clipping: the squares of all blocks of a round are added in plan order. */
static void take_sums(struct run *run, const struct roster_slot *slot,
                      const Capstan__SquareSums *sums) {
    size_t next = 0;
    if (!run->square_sums) /* there is no plan yet */
        return;
    for (uint32_t b = 0; b < run->layout->num_blocks; b++)
        if (run->ps_of_block[b] == slot->index && next < sums->n_sums)
            run->square_sums[b] = sums->sums[next++];
    run->sums_heard++;
    if (run->sums_heard < run->num_holders)
        return;
    run->sums_heard = 0;
    double sum = 0;
    for (uint32_t b = 0; b < run->layout->num_blocks; b++)
        sum += run->square_sums[b];
    Capstan__Norm norm = CAPSTAN__NORM__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    norm.round = sums->round;
    norm.norm = sqrt(sum);
    control.body_case = CAPSTAN__CONTROL__BODY_NORM;
    control.norm = &norm;
    post_tell_all(run->post, CLUSTER_PS, &control);
}

/* All-reduce: what a rank tells the others to find it by. */
static void pass_meeting(struct run *run, const Capstan__Control *letter) {
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    control.body_case = CAPSTAN__CONTROL__BODY_MEETING;
    control.meeting = letter->meeting;
    if (run->allreduce)
        post_tell_all(run->post, CLUSTER_WORKER, &control);
}

/* A ps, or rank 0 in all-reduce. */
static void take_holder(struct run *run, struct roster_slot *slot,
                        const Capstan__Control *control) {
    bool holds = !run->allreduce || slot->rank == 0;
    switch (holds ? control->body_case : CAPSTAN__CONTROL__BODY__NOT_SET) {
    case CAPSTAN__CONTROL__BODY_READY:
        planning_ready(run, slot, control->ready);
        break;
    case CAPSTAN__CONTROL__BODY_CUT_MARK:
        cuts_marked(run, slot, control->cut_mark);
        break;
    case CAPSTAN__CONTROL__BODY_CUT_DONE:
        cuts_done(run, slot, control->cut_done);
        break;
    default:
        break;
    }
}

static void take_trainer(struct run *run, struct roster_slot *slot,
                         const Capstan__Control *control, int64_t now) {
    switch (control->body_case) {
    case CAPSTAN__CONTROL__BODY_BEAT:
        admission_memory(run, slot, control->beat);
        measures_beat(run, slot, control->beat, now);
        break;
    case CAPSTAN__CONTROL__BODY_SIGHT:
        sharing_take(run, slot, control->sight);
        break;
    case CAPSTAN__CONTROL__BODY_POINTS:
        measures_points(run, slot, control->points);
        break;
    case CAPSTAN__CONTROL__BODY_DECLARATION:
        declaration_take(run, slot, control->declaration);
        if (run->phase == RUN_TRAINING && run->trainers[slot->rank].declared)
            watch_joiner(run, slot);
        break;
    case CAPSTAN__CONTROL__BODY_EVALUATED:
        evaluations_part(run, slot, control->evaluated);
        break;
    case CAPSTAN__CONTROL__BODY_MEASURED:
        link_rate_take(run, slot, control->measured);
        break;
    case CAPSTAN__CONTROL__BODY_LEFT:
        ending_left(run, slot, control->left);
        break;
    case CAPSTAN__CONTROL__BODY_MEETING:
        pass_meeting(run, control);
        break;
    default:
        if (run->allreduce && slot->rank == 0)
            take_holder(run, slot, control);
        break;
    }
}

static void take_ps(struct run *run, struct roster_slot *slot,
                    const Capstan__Control *control) {
    switch (control->body_case) {
    case CAPSTAN__CONTROL__BODY_BEAT:
        admission_memory(run, slot, control->beat);
        take_ps_beat(run, slot, control->beat);
        break;
    case CAPSTAN__CONTROL__BODY_SQUARE_SUMS:
        take_sums(run, slot, control->square_sums);
        break;
    case CAPSTAN__CONTROL__BODY_LEFT:
        ending_left(run, slot, control->left);
        break;
    case CAPSTAN__CONTROL__BODY_READY:
        planning_ready(run, slot, control->ready);
        break;
    default:
        take_holder(run, slot, control);
        break;
    }
}

/* At most so many that what is due by time has its turn. */
static void read_letters(struct run *run) {
    struct post_letter letter;
    char text[128];
    int64_t now = time_now();
    for (int i = 0; i < LETTERS_A_TURN && post_receive(run->post, now, &letter);
         i++) {
        const Capstan__Control *control = letter.control;
        if (control->body_case == CAPSTAN__CONTROL__BODY_JOIN)
            admission_join(run, &letter, now);
        else if (!letter.slot)
            admission_stranger(run, letter.peer, control);
        else if (control->body_case == CAPSTAN__CONTROL__BODY_BYE)
            ending_bye(run, letter.slot);
        else if (control->body_case == CAPSTAN__CONTROL__BODY_ENDED)
            admission_ended(run, letter.slot, control->ended);
        else if (letter.slot->rank != ROSTER_NO_RANK)
            take_trainer(run, letter.slot, control, now);
        else
            take_ps(run, letter.slot, control);
    }
    while (link_stranger(run->link, text, sizeof text))
        log_warning(run->log, "a stranger on port %u %s", link_port(run->link),
                    text);
}

static void read_interrupt(struct run *run, int descriptor) {
    eventfd_t number = 0;
    if (descriptor < 0 || eventfd_read(descriptor, &number))
        return;
    if (number == SIGUSR1)
        saves_signal(run);
    else
        ending_interrupt(run, status_of_signal((int)number));
}

/* Events first, then everything that follows from the state as it stands: each
 * part looks for itself what has become due, in the order in which one's
 * outcome is another's cause. */
static void turn(struct run *run, struct crier *crier, int interrupts) {
    int64_t peer = time_from_seconds(run->job->timeouts.peer);
    int64_t beat_every = peer / 6 < TIME_S / 2 ? peer / 6 : TIME_S / 2;
    enum { OWN = 3 };
    zmq_pollitem_t items[OWN + LINK_POLL_ITEMS] = {
        {NULL, interrupts, ZMQ_POLLIN, 0},
        {NULL, collect_descriptor(run), ZMQ_POLLIN, 0},
        {NULL, commit_descriptor(run), ZMQ_POLLIN, 0},
    };
    int count = OWN + link_poll_items(run->link, items + OWN);
    int64_t wait =
        beat_every / 2 < LONGEST_WAIT ? beat_every / 2 : LONGEST_WAIT;
    zmq_poll(items, count, (long)(wait / TIME_MS));
    watch_standstill(run, time_now());
    read_letters(run);
    read_interrupt(run, interrupts);
    int64_t now = time_now();
    admission_check_deaths(run, now);
    collect_step(run);
    commit_step(run);
    planning_try(run);
    evaluations_settle(run);
    watch_step(run, now);
    series_step(run, now);
    measures_show(run, now);
    ending_step(run, now);
    post_step(run->post, now, beat_every);
    if (run->phase < RUN_FINISHING || run->unstarted)
        crier_step(crier, now);
}

/* What ps and workers that know no chief are called with. */
static void my_address(const struct chief_settings *settings,
                       const struct run *run, char *text, size_t size) {
    const struct cluster_task *chief = cluster_chief(settings->cluster);
    struct cluster_task bound = {0};
    text[0] = 0;
    if (!chief)
        return;
    bound = *chief;
    bound.port = link_port(run->link);
    cluster_address(&bound, text, size);
}

enum status chief_run(const struct chief_settings *settings,
                      struct failure *why) {
    struct run *run = calloc(1, sizeof *run);
    struct failure first;
    char address[300];
    if (!run)
        return status_fail(why, STATUS_RETRY, "no memory for a chief");
    enum status status = open_run(run, settings, why);
    if (status) {
        close_run(run);
        free(run);
        return status;
    }
    if (link_port(run->link))
        log_info(run->log, "listening on port %u, run %016llx",
                 link_port(run->link), (unsigned long long)run->id);
    run->join_limit = time_from_seconds(settings->join_timeout);
    my_address(settings, run, address, sizeof address);
    struct crier *crier =
        crier_open(settings->zmq, settings->cluster, &run->roster, address);
    if (!crier)
        status = status_fail(&first, STATUS_RETRY, "no memory for a chief");
    else
        status = prepare(run, settings, &first);
    if (status)
        fail_start(run, settings, &first);
    while (crier && run->phase != RUN_OVER)
        turn(run, crier, settings->interrupts);
    crier_close(&crier);
    commit_finish(run);
    measures_end(run);
    summary_tell(run, settings->json);
    if (run->series && !run->status)
        run->series->measured = summary_object(run);
    status = run->status;
    if (run->unstarted)
        *why = first;
    else if (status)
        status_fail(why, status, "%s", run->text);
    close_run(run);
    free(run);
    return status;
}
