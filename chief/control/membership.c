/* SPDX-License-Identifier: Apache-2.0 */
/* A joining process gets the welcome with the job and sends its model spec
 * (model_spec.c); after the plan (planning.c) it is listed in a view with the
 * clock of its first contribution. A process that leaves or dies is removed
 * from the next view, or ends the run. */
#include "chief/control/membership.h"

#include "chief/rewind.h"
#include "chief/run.h"
#include "chief/run_series.h"
#include "chief/take_over.h"
#include "core/base/time.h"
#include "proto/cluster/cluster_size.h"
#include "proto/plan/plan.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { DEPARTURE = 1024 /* bytes of its text */ };

static void send_refusal(struct run *run, uint32_t peer, enum failure_code code,
                         const char *text, Capstan__Refusal refusal) {
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    refusal.code = code;
    refusal.text = (char *)text;
    control.body_case = CAPSTAN__CONTROL__BODY_REFUSAL;
    control.refusal = &refusal;
    control_server_reply(run->control_server, peer, &control);
}

void membership_send_back(struct run *run, uint32_t peer) {
    Capstan__Refusal refusal = CAPSTAN__REFUSAL__INIT;
    refusal.from_checkpoint = true;
    send_refusal(run, peer, FAILURE_RUN_ENDED,
                 "its run goes on from a checkpoint", refusal);
}

static void refuse(struct run *run, uint32_t peer, enum failure_code code,
                   const char *text) {
    Capstan__Refusal refusal = CAPSTAN__REFUSAL__INIT;
    send_refusal(run, peer, code, text, refusal);
}

/* TO: NULL: all trainers. */
static void send_to_trainers(struct run *run, struct roster_slot *to, char *key,
                             char *value) {
    Capstan__Rendezvous message = CAPSTAN__RENDEZVOUS__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    message.key = key;
    message.value =
        (ProtobufCBinaryData){strlen(value), (unsigned char *)value};
    control.body_case = CAPSTAN__CONTROL__BODY_RENDEZVOUS;
    control.rendezvous = &message;
    if (to)
        control_server_send(run->control_server, to, &control);
    else
        control_server_broadcast(run->control_server, CLUSTER_WORKER, &control);
}

static void send_generation(struct run *run, struct roster_slot *to,
                            uint32_t number) {
    char key[64];
    snprintf(key, sizeof key, RENDEZVOUS_GENERATION_KEY, number);
    send_to_trainers(run, to, key, "");
}

/* Others do not wait for RANK in this generation. */
static void send_lost(struct run *run, uint32_t rank) {
    char key[64], value[16];
    snprintf(key, sizeof key, RENDEZVOUS_LOST_KEY, run->membership.generation);
    snprintf(value, sizeof value, "%u", rank);
    if (run->membership.generation)
        send_to_trainers(run, NULL, key, value);
}

static void send_generations(struct run *run, struct roster_slot *to) {
    for (uint32_t n = 1; n <= run->membership.generation; n++)
        send_generation(run, to, n);
}

/* The trainer of SLOT is welcomed. In place of one that is gone it begins a
 * generation, and it is told of all so far. */
static void welcome_to_group(struct run *run, struct roster_slot *slot) {
    bool takes_place =
        slot->removed || run->trainers[slot->rank].absence.is_gone;
    send_generations(run, slot);
    if (takes_place)
        send_generation(run, NULL, ++run->membership.generation);
}

void membership_tell_generations(struct run *run) {
    send_generations(run, NULL);
    for (uint32_t r = 0; r < run->roster.num_ranks; r++)
        if (run->roster.slots[r].state == ROSTER_VACATED)
            send_lost(run, r);
}

void membership_forward_rendezvous(struct run *run,
                                   const Capstan__Control *incoming) {
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    char again[64];
    snprintf(again, sizeof again, RENDEZVOUS_AGAIN_KEY,
             run->membership.generation);
    if (!strcmp(incoming->rendezvous->key, again)) {
        send_generation(run, NULL, ++run->membership.generation);
        return;
    }
    control.body_case = CAPSTAN__CONTROL__BODY_RENDEZVOUS;
    control.rendezvous = incoming->rendezvous;
    control_server_broadcast(run->control_server, CLUSTER_WORKER, &control);
}

static void welcome(struct run *run, struct roster_slot *slot) {
    Capstan__Welcome message = CAPSTAN__WELCOME__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    char name[64];
    message.job = run->job->text;
    message.rank = slot->rank;
    message.trainers = run->roster.num_ranks;
    message.num_beyond = run->num_beyond;
    message.chief_incarnation = run->incarnation;
    message.under_way = run->phase == RUN_TRAINING;
    message.chief_within = rewind_chief_within(run);
    message.may_adopt = rewind_may_be_adopted(run);
    control.body_case = CAPSTAN__CONTROL__BODY_WELCOME;
    control.welcome = &message;
    control_server_send(run->control_server, slot, &control);
    roster_name(slot, name, sizeof name);
    health_note(run->health, EVENT_MEMBER_JOINED, 0,
                cluster_role_name(slot->role), slot->index);
    log_info(run->log, "member_joined", "%s joined from %s, pid %u", name,
             slot->host, slot->pid);
}

/* What a trainer has told outlives its incarnation. */
static void reset_trainer(struct run *run, uint32_t rank) {
    struct run_trainer *trainer = &run->trainers[rank];
    struct run_counts past = run_counts(run, rank);
    *trainer = (struct run_trainer){
        .began = run->metrics.points.last.seconds,
        .past = past,
        .at_evaluation = {.loss = past.loss, .samples = past.samples},
        .replicas = trainer->replicas,
        .absence = trainer->absence,
        .visible_devices = trainer->visible_devices,
        .last_progress = time_now(),
    };
    trainer->visible_devices.reported = trainer->visible_devices.answered =
        false;
    capstan__heartbeat__init(&trainer->heartbeat);
}

static bool membership_is_loopback(const char *host) {
    return !strncmp(host, "127.", 4) || !strcmp(host, "::1");
}

/* For a joiner without an address: that of its connection. If this is a
 * loopback address, the joiner is on the chief's host: the chief's host name.
 */
static const char *observed_host(const struct run *run,
                                 const struct control_message *incoming) {
    const struct cluster_task *chief = cluster_chief(run->cluster);
    if (incoming->from[0] && !membership_is_loopback(incoming->from))
        return incoming->from;
    if (run->address)
        return run->address;
    return incoming->from[0] && chief ? chief->host
                                      : incoming->control->join->host;
}

/* The chief's cluster description has precedence: a listed address may be
 * mapped to the bound port. If it lists none or port 0, or the joiner listens
 * nowhere else, the joiner's own address counts. */
static void membership_advertised_address(
    const struct run *run, const struct control_message *incoming, char *text,
    size_t size) {
    const Capstan__Join *join = incoming->control->join;
    const struct cluster_task *task =
        join->only_there
            ? NULL
            : cluster_find(run->cluster, (enum cluster_role)join->role,
                           join->index);
    const char *own =
        join->address[0] ? join->address : observed_host(run, incoming);
    const char *host = task && task->host[0] ? task->host : own;
    snprintf(text, size, strchr(host, ':') ? "[%s]:%u" : "%s:%u", host,
             task && task->port ? task->port : join->port);
}

/* Logs at a limited rate: a refused process may repeat its join. */
static void warn_and_refuse(struct run *run, uint32_t peer,
                            enum failure_code code, const char *text) {
    if (link_may_log(run->link, text))
        log_warning(run->log, "join_refused", "%s", text);
    refuse(run, peer, code, text);
}

static void refuse_second(struct run *run, uint32_t peer,
                          const struct roster_slot *slot,
                          const Capstan__Join *join) {
    char text[1024], name[64];
    roster_name(slot, name, sizeof name);
    snprintf(
        text, sizeof text,
        "%s is already here, from host %s (pid %u), and alive; a second one "
        "on host %s (pid %u) is refused: give it another index",
        name, slot->host, slot->pid, join->host, join->pid);
    warn_and_refuse(run, peer, FAILURE_SLOT_TAKEN, text);
}

static void refuse_dead(struct run *run, uint32_t peer) {
    refuse(run, peer, FAILURE_DECLARED_DEAD,
           "the chief has declared this process dead after missed heartbeats "
           "(timeouts.peer); restart it to rejoin");
}

/* A ps that comes back has lost its blocks. */
static bool is_too_late(const struct run *run, const struct roster_slot *slot) {
    return (slot->role == CLUSTER_PS && run->phase > RUN_JOINING &&
            slot->state != ROSTER_HELD) ||
           run->phase >= RUN_FINISHING;
}

/* A process that joins only after the run has failed ends with the run's
 * status. SLOT may be NULL: a run that cannot begin may not know all its tasks.
 */
static void refuse_late(struct run *run, uint32_t peer,
                        struct roster_slot *slot) {
    char text[sizeof run->text + 64];
    bool failed = run->phase == RUN_STOPPING && run->code &&
                  !(slot && slot->pid); /* it never had a member */
    if (!failed) {
        refuse(run, peer, FAILURE_RUN_ENDED,
               "the run is ending; start again once it is over");
        return;
    }
    snprintf(text, sizeof text, "the chief ended the run: %s", run->text);
    Capstan__Refusal refusal = CAPSTAN__REFUSAL__INIT;
    refusal.ended = true;
    send_refusal(run, peer, run_code_of_members(run->code), text, refusal);
    if (slot)
        slot->state = ROSTER_VACATED;
    run->membership.refused_at = time_now();
}

static bool is_other_job(const struct run *run, const Capstan__Join *join) {
    const char *key = run->cluster->key;
    return key[0] && join->key[0] && strcmp(key, join->key);
}

unsigned membership_read_limits(struct free_memory_limit *limits,
                                Capstan__MemoryLimit *const *reported,
                                size_t count) {
    unsigned read = 0;
    for (; read < count && read < FREE_MEMORY_LIMITS; read++) {
        struct free_memory_limit *limit = &limits[read];
        limit->free = reported[read]->free;
        limit->held = reported[read]->held;
        limit->most = reported[read]->most;
        snprintf(limit->key, sizeof limit->key, "%s", reported[read]->key);
        snprintf(limit->name, sizeof limit->name, "%s", reported[read]->name);
    }
    return read;
}

static void take_copies(struct membership_copies *held,
                        const Capstan__Join *join) {
    held->count = 0;
    for (size_t i = 0; i < join->n_copies && held->count < COPIES_MOST; i++) {
        held->list[held->count].step = join->copies[i]->step;
        held->list[held->count++].part = join->copies[i]->part;
    }
}

bool membership_has_copy(const struct membership_copies *held, uint64_t step,
                         uint32_t part) {
    for (uint32_t i = 0; i < held->count; i++)
        if (held->list[i].step == step && held->list[i].part == part)
            return true;
    return false;
}

/* Of a delta also its base's part. */
static bool has_part(const struct run *run, uint32_t ps,
                     const struct manifest *copy, uint32_t part) {
    const struct roster_slot *slot =
        &run->roster.slots[run->roster.num_ranks + ps];
    const struct membership_copies *held = &run->ps[ps].held;
    return slot->state == ROSTER_HELD &&
           membership_has_copy(held, copy->step, part) &&
           (!copy->is_delta ||
            membership_has_copy(held, copy->base_name.step, part));
}

uint32_t membership_find_copy(const struct run *run,
                              const struct manifest *copy, uint32_t part) {
    uint32_t ps = 0;
    if (part < run->roster.num_ps && has_part(run, part, copy, part))
        return part;
    while (ps < run->roster.num_ps && !has_part(run, ps, copy, part))
        ps++;
    return ps < run->roster.num_ps ? ps : UINT32_MAX;
}

bool membership_has_kept(const struct run *run, uint64_t step, uint32_t rank) {
    return run->roster.slots[rank].state == ROSTER_HELD &&
           membership_has_copy(&run->trainers[rank].held, step, rank);
}

/* Records how much memory the joiner may still take. */
static void store_limits(struct run *run, const struct roster_slot *slot,
                         const Capstan__Join *join) {
    take_copies(slot->role == CLUSTER_PS ? &run_ps_of(run, slot)->held
                                         : &run->trainers[slot->rank].held,
                join);
    struct memory_plan_limits *reported =
        &run->plan.limits[slot - run->roster.slots];
    reported->devices = 0;
    reported->count =
        membership_read_limits(reported->limits, join->memory, join->n_memory);
}

/* Does JOIN describe another cluster size than this chief knows? Writes TEXT
 * then. The worker count of the job has precedence over any list of workers. */
static bool is_size_mismatch(const struct run *run, const Capstan__Join *join,
                             char *text, size_t size) {
    struct cluster_size own = cluster_size_known(run->cluster);
    struct cluster_size joiner_size = {*join->source ? join->source : NULL,
                                       join->workers, join->ps};
    char reported[96], known[96];
    if (run->job->workers)
        own.workers = CLUSTER_UNKNOWN;
    if (!cluster_size_differs(&own, &joiner_size))
        return false;
    cluster_size_text(&joiner_size, reported, sizeof reported);
    cluster_size_text(&own, known, sizeof known);
    snprintf(
        text, size,
        "%s %u on host %.64s (pid %u) counts %s, and the chief %s: all "
        "processes of a run need the same cluster description. Correct the "
        "wrong one (WORLD_SIZE, --num-ps, the lists), and start that process "
        "again",
        join->role < CLUSTER_ROLES
            ? cluster_role_name((enum cluster_role)join->role)
            : "task",
        join->index, join->host, join->pid, reported, known);
    return true;
}

/* A ps waits for its place in RUN, or in the one that follows. */
static void answer_waiting(struct run *run, uint32_t peer) {
    Capstan__Refusal refusal = CAPSTAN__REFUSAL__INIT;
    bool over = run->phase >= RUN_STOPPING && !run->is_rewinding;
    if (over && run->code) {
        refuse_late(run, peer, NULL);
        return;
    }
    if (over) {
        refusal.over = true;
        send_refusal(run, peer, FAILURE_RUN_ENDED, "done", refusal);
        run->membership.refused_at = time_now();
        return;
    }
    refusal.waits = true;
    send_refusal(run, peer, FAILURE_RUN_ENDED,
                 "the run goes on without this ps, which was not back in time: "
                 "it waits, and has its place when the run goes back the next "
                 "time",
                 refusal);
}

static void describe_no_slot(const struct run *run, const Capstan__Join *join,
                             char *text, size_t size) {
    const char *beyond =
        run->num_beyond
            ? ", of which the last may join (workers in the job)"
            : "; a worker beyond the list may join an asynchronous run by ps "
              "whose chief has --join and whose job has \"workers\"";
    snprintf(
        text, size, "this run has no %s %u: it has %u trainer%s and %u ps%s",
        join->role < CLUSTER_ROLES
            ? cluster_role_name((enum cluster_role)join->role)
            : "task of that kind",
        join->index, run->roster.num_ranks, log_plural(run->roster.num_ranks),
        run->roster.num_ps, join->role == CLUSTER_WORKER ? beyond : "");
}

/* Does this run have a slot for JOIN? Otherwise the sender is refused. SLOT may
 * be NULL: there is none. */
static bool is_expected(struct run *run, const struct control_message *incoming,
                        struct roster_slot *slot) {
    const Capstan__Join *join = incoming->control->join;
    uint32_t peer = incoming->peer;
    char text[768];
    if (is_other_job(run, join)) {
        Capstan__Refusal refusal = CAPSTAN__REFUSAL__INIT;
        refusal.other_job = true;
        send_refusal(run, peer, FAILURE_WRONG_CHIEF,
                     "this chief leads another job", refusal);
        return false;
    }
    if (run->failed_to_start) {
        if (!join->past) /* that waits for a chief whose start succeeds */
            refuse_late(run, peer, slot);
        return false;
    }
    if (is_size_mismatch(run, join, text, sizeof text)) {
        warn_and_refuse(run, peer, FAILURE_CLUSTER_DIFFERS, text);
        return false;
    }
    bool accepts = rewind_accepts(run, join, text, sizeof text);
    if (slot && accepts)
        return true;
    if (!accepts) {
        warn_and_refuse(run, peer, FAILURE_WRONG_CHIEF, text);
        return false;
    }
    if (take_over_waits(run, join)) {
        answer_waiting(run, peer);
        return false;
    }
    describe_no_slot(run, join, text, sizeof text);
    refuse(run, peer, FAILURE_SLOT_UNKNOWN, text);
    return false;
}

/* Messages queued for an earlier member of the slot are dropped with its
 * channel. */
enum roster_claim_result membership_claim(
    struct run *run, const struct control_message *incoming,
    struct roster_slot *slot, int64_t now) {
    const Capstan__Join *join = incoming->control->join;
    char address[300];
    membership_advertised_address(run, incoming, address, sizeof address);
    struct roster_claim claim = {incoming->control->incarnation,
                                 join->pid,
                                 (uint16_t)join->port,
                                 join->host,
                                 address,
                                 join->shm_key};
    enum roster_claim_result result = roster_claim(slot, &claim, now);
    if (result != ROSTER_GRANTED)
        return result;
    if (slot->rank != ROSTER_NO_RANK)
        reset_trainer(run, slot->rank);
    slot->end_key = join->end_key;
    slot->launcher = join->launcher;
    store_limits(run, slot, join);
    control_server_bind_peer(run->control_server, slot, incoming->peer);
    return result;
}

/* The sender of INCOMING claims SLOT: it gets the slot, is refused, or asks
 * again. */
static void handle_claim(struct run *run,
                         const struct control_message *incoming,
                         struct roster_slot *slot, int64_t now) {
    const Capstan__Join *join = incoming->control->join;
    enum roster_claim_result result =
        membership_claim(run, incoming, slot, now);
    if (result == ROSTER_REFUSED)
        refuse_second(run, incoming->peer, slot, join);
    if (result == ROSTER_REMOVED)
        refuse_dead(run, incoming->peer);
    if (result != ROSTER_GRANTED)
        return;
    rewind_take_past(run, join);
    welcome(run, slot);
    if (slot->rank != ROSTER_NO_RANK)
        welcome_to_group(run, slot);
}

static struct roster_slot *find_joiner(struct run *run,
                                       const Capstan__Join *join) {
    return join->role < CLUSTER_ROLES
               ? roster_find(&run->roster, (enum cluster_role)join->role,
                             join->index)
               : NULL;
}

struct roster_slot *membership_find_expected(
    struct run *run, const struct control_message *incoming) {
    struct roster_slot *slot = find_joiner(run, incoming->control->join);
    return is_expected(run, incoming, slot) ? slot : NULL;
}

/* A worker beyond the list comes in once the others train: until then its data,
 * devices and death would be theirs. */
static bool is_early(const struct run *run, const struct roster_slot *slot) {
    return run->phase < RUN_TRAINING && slot->rank != ROSTER_NO_RANK &&
           run_is_beyond(run, slot->rank);
}

void membership_join(struct run *run, const struct control_message *incoming,
                     int64_t now) {
    const Capstan__Control *control = incoming->control;
    struct roster_slot *slot = find_joiner(run, control->join);
    if (!control->incarnation)
        return; /* not a valid member */
    if (incoming
            ->slot) { /* again: by another connection, or not yet welcomed */
        roster_mark_alive(incoming->slot, now);
        return;
    }
    if (control->run) {
        membership_reject_unknown(run, incoming->peer,
                                  control); /* it was in a run already */
        return;
    }
    if (!is_expected(run, incoming, slot))
        return;
    if (run->phase >= RUN_FINISHING &&
        (run->is_rewinding ||
         run_series_next_within(run, failure_code_status(run->code)) > 0))
        return; /* it is early and will ask the next run's chief again */
    if (is_early(run, slot))
        return; /* it asks again */
    if (is_too_late(run, slot))
        refuse_late(run, incoming->peer, slot);
    else
        handle_claim(run, incoming, slot, now);
}

/* It may arrive after the slot is vacated: from a process that was declared
 * dead, or from the launcher of one that said goodbye. */
static bool is_departure(const Capstan__Control *control) {
    return control->body_case == CAPSTAN__CONTROL__BODY_GOODBYE ||
           control->body_case == CAPSTAN__CONTROL__BODY_EXIT_REPORT;
}

static bool was_removed(const struct run *run, uint64_t incarnation) {
    for (uint32_t p = 0; p < run->roster.count; p++)
        if (run->roster.slots[p].removed == incarnation)
            return true;
    return false;
}

void membership_reject_unknown(struct run *run, uint32_t peer,
                               const Capstan__Control *control) {
    if (control->run == run->id && is_departure(control))
        return;
    if (link_may_log(run->link, "a message of an unknown peer"))
        log_warning(run->log, "message_refused",
                    "a message of run %016llx from a process that is not in "
                    "this run is refused",
                    (unsigned long long)control->run);
    if (control->run == run->id && run->term &&
        !was_removed(run, control->incarnation))
        membership_send_back(run, peer); /* it had joined the chief before */
    else if (control->run == run->id)
        refuse_dead(run, peer);
    else if (control->run)
        refuse(run, peer, FAILURE_RUN_ENDED,
               rewind_is_second(run)
                   ? "its run is over: it went back to a checkpoint without "
                     "this process, which the chief had not heard; start the "
                     "same command again to join it"
                   : "its run is over: the chief was restarted; start the "
                     "same command again to join it");
}

/* Without a first clock a rank is in no view; `finished` must not carry over to
 * the next member. */
static void vacate_slot(struct run *run, struct roster_slot *slot) {
    if (slot->rank != ROSTER_NO_RANK) {
        send_lost(run, slot->rank);
        run->trainers[slot->rank].from = 0;
        run->trainers[slot->rank].finished = false;
        run->trainers[slot->rank].ended_early = false;
        run->trainers[slot->rank].leaving = false;
        run->trainers[slot->rank].keeps = false;
        run->trainers[slot->rank].heard = false;
        reachability_forget(&run->membership.reachability, slot->rank);
    }
    roster_remove(slot);
}

/* All-reduce needs every rank while it trains, and rank 0 to the end: its
 * weights are saved and exported. */
static bool is_needed(const struct run *run, const struct roster_slot *slot) {
    return (run->phase == RUN_TRAINING && slot->role != CLUSTER_PS) ||
           (run->phase == RUN_FINISHING && slot->rank == 0);
}

static void stop_to_start_again(struct run *run, const char *departed,
                                const char *why) {
    run_stop(run,
             run->shutdown.interrupted ? run->shutdown.interrupted
                                       : FAILURE_PEER_LOST,
             "%s%s; start the same command again", departed, why);
}

/* A process short of memory that died has not written its last checkpoint. */
static void stop_without(struct run *run, const char *departed) {
    enum failure_code code = run->shutdown.interrupted;
    if (!code || code == FAILURE_TOO_LITTLE_MEMORY)
        code = FAILURE_PEER_LOST;
    run_stop_resumable(run, code, "%s%s", departed,
                       run_consequence_of_loss(run));
}

static const char *consequence(const struct run *run, bool ps) {
    if (run->phase != RUN_TRAINING || ps || run->allreduce || run->series)
        return "";
    return run->no_restart
               ? "; the run goes on without it"
               : "; the run goes on, and the process may be restarted";
}

/* Writes "worker 1 on host a (pid 7)" followed by HOW it went. */
static void describe_departure(const struct roster_slot *slot, const char *how,
                               char *text, size_t size) {
    char name[64];
    roster_name(slot, name, sizeof name);
    snprintf(text, size, "%s on host %s (pid %u) %s", name, slot->host,
             slot->pid, how);
}

/* May the ps lack first values, which rank 0 sends? They have them once a step
 * is complete, or a checkpoint of one. */
static bool may_lack_values(const struct run *run, uint32_t rank) {
    return run->phase == RUN_TRAINING && rank == 0 &&
           run->job->model.type == JOB_EXTERNAL && !run->plan.has_restored &&
           !run->checkpoints.has_saved && !run->trainers[0].finished &&
           run_step(run) == 0;
}

/* If the trainers keep the weights, does one have them? A trainer that joins
 * has them once it has done a step. */
static bool trainers_have_weights(const struct run *run) {
    uint64_t first = run->plan.schedule.start + 1;
    if (!run_trainers_keep_weights(run) ||
        run->shutdown.interrupted) /* its checkpoint may have them already */
        return true;
    for (uint32_t r = 0; r < run->roster.num_ranks; r++) {
        const struct run_trainer *trainer = &run->trainers[r];
        if (run->roster.slots[r].state == ROSTER_HELD && trainer->from &&
            (trainer->from == first || trainer->finished ||
             trainer->heartbeat.clock >= trainer->from))
            return true;
    }
    return false;
}

/* The last step that is known of RANK, which is gone, perhaps for long. Without
 * backup workers a trainer begins a round once all have pushed for the one
 * before. */
static uint64_t last_step(const struct run *run, uint32_t rank) {
    uint64_t step = run->plan.schedule.start;
    if (!run_synchronous(run) &&
        run->trainers[rank].heartbeat.global_step > step)
        return run->trainers[rank].heartbeat.global_step;
    for (uint32_t r = 0; run_synchronous(run) && r < run->roster.num_ranks;
         r++) {
        uint64_t clock = run->trainers[r].heartbeat.clock;
        clock -= r != rank && clock > 0;
        if (run->trainers[r].in_view && clock > step &&
            (r == rank || !run->job->backup_workers))
            step = clock;
    }
    return step;
}

/* SLOT's trainer, which was not done, has left: if others train on, warns of
 * what that means. */
static void leave_untrained(struct run *run, const struct roster_slot *slot) {
    struct run_absence *absence = &run->trainers[slot->rank].absence;
    char name[64];
    if (run->phase != RUN_TRAINING || run->shutdown.interrupted ||
        run_is_beyond(run, slot->rank))
        return; /* it has ended its part, or all do, or others have its share */
    absence->is_gone = true;
    absence->since = last_step(run, slot->rank);
    if (!absence->steps)
        absence->first = absence->since;
    if (!run_count_live(run))
        return; /* nothing is trained any more */
    roster_name(slot, name, sizeof name);
    log_warning(
        run->log, "share_untrained",
        "after step %" PRIu64 " nothing of %s's share of the data, 1 of %u, "
        "is trained%s: %s",
        absence->since, name, run_num_shares(run),
        run->no_restart ? " any more, though the run may end with 0" : "",
        run->no_restart
            ? "to train it, end this run (SIGINT writes a checkpoint, if "
              "there is checkpoint.dir) and start the same command again"
            : "start this process again, by the same command, to train it "
              "from then on");
}

/* Does the loss of SLOT's member end the run while it begins? The first view
 * counts on all trainers, and a caller's model on rank 0's values (VALUES: the
 * lost one's); while joining no process may be started again. */
static bool is_needed_to_begin(const struct run *run,
                               const struct roster_slot *slot, bool values) {
    bool ps = slot->role == CLUSTER_PS;
    bool follows = rewind_is_second(run) || !run->starts_once;
    bool restarts = ps ? run->lineage && follows : !run->no_restart;
    bool planned = ps || run->trainers[slot->rank].has_plan;
    return (run->phase == RUN_READYING && planned) || values ||
           (run->phase == RUN_JOINING && !restarts);
}

/* The effect of a loss is the first of the list that applies; else the others
 * join, or finish, without it. */
static void remove_member(struct run *run, struct roster_slot *slot,
                          const char *departed) {
    bool ps = slot->role == CLUSTER_PS;
    bool values = !ps && may_lack_values(run, slot->rank);
    bool trains = !ps && run->trainers[slot->rank].from &&
                  !run->trainers[slot->rank].finished;
    vacate_slot(run, slot);
    bool weights = run->allreduce ? is_needed(run, slot)
                                  : ps || (run->phase >= RUN_TRAINING &&
                                           !trainers_have_weights(run));
    if (run->phase >= RUN_STOPPING)
        return;
    if (run_series_requires_all(run)) {
        stop_to_start_again(run, departed,
                            ", and the comparison cannot go on without it");
    } else if (rewind_begin(run, slot, departed)) {
        return;
    } else if (weights && run->phase >= RUN_READYING) {
        stop_without(run, departed);
    } else if (is_needed_to_begin(run, slot, values)) {
        stop_to_start_again(run, departed, " before the first step");
    } else if (run->phase == RUN_TRAINING || (run->phase == RUN_FINISHING &&
                                              run_trainers_keep_weights(run))) {
        if (trains)
            leave_untrained(run, slot);
        membership_broadcast_view(run);
    }
}

static void declare_dead(struct run *run, struct roster_slot *slot,
                         const char *how, const char *since) {
    char departed[DEPARTURE];
    bool ps = slot->role == CLUSTER_PS;
    health_note(run->health, EVENT_MEMBER_GONE, 0,
                cluster_role_name(slot->role), slot->index);
    describe_departure(slot, how, departed, sizeof departed);
    if (!ps) {
        run->membership.trainer_died = true;
        run->membership.death_step = run_step(run);
    }
    log_warning(run->log, "member_died", "%s%s%s", departed, since,
                consequence(run, ps));
    rewind_note_death(run, slot);
    remove_member(run, slot, departed);
}

/* The parent of process PID of this machine; 0: it is gone. */
static pid_t parent_of(uint32_t pid) {
    char path[64], line[256];
    int parent = 0;
    snprintf(path, sizeof path, "/proc/%u/status", pid);
    FILE *file = fopen(path, "re");
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "PPid: %d", &parent) == 1)
            break;
    if (file)
        fclose(file);
    return parent;
}

/* Was SLOT's process started by the launcher of this one? On another node of a
 * `capstan launch` a process may have the number of one that is here, which is
 * of another rank. */
static bool is_sibling(const struct run *run, const struct roster_slot *slot) {
    return slot->pid && run->launcher && slot->launcher == run->launcher &&
           parent_of(slot->pid) == getppid();
}

/* The launcher of this process starts another one in the place of SLOT's, or
 * leaves, only once that has ended, which a process that is stopped does not
 * do. */
static void end_silent_sibling(const struct run *run,
                               const struct roster_slot *slot) {
    bool is_replaced = !run->starts_once ||
                       (slot->role == CLUSTER_PS && take_over_may_begin(run));
    if (is_replaced && is_sibling(run, slot))
        kill((pid_t)slot->pid, SIGKILL);
}

/* The text says whether the chief itself stood still: a peer that got no
 * message from it for that long has given up. */
void membership_remove(struct run *run, struct roster_slot *slot,
                       bool goodbye) {
    char text[512], how[80] = "is gone";
    if (goodbye) {
        roster_name(slot, text, sizeof text);
        log_info(run->log, "member_left", "%s said goodbye", text);
        describe_departure(slot, "said goodbye", text, sizeof text);
        remove_member(run, slot, text);
        return;
    }
    snprintf(text, sizeof text, ": silent for %.1f s",
             time_to_seconds(time_now() - slot->last_seen));
    if (run->suspension.until && slot->last_seen <= run->suspension.until)
        snprintf(how, sizeof how,
                 "is gone since this chief itself stood still for %.0f s",
                 time_to_seconds(run->suspension.total));
    /* One without a pid died before this chief adopted the run: it was never
     * asked anything, and the others may not be heard yet. */
    run->membership.silence_passed |= slot->pid != 0;
    end_silent_sibling(run, slot);
    declare_dead(run, slot, how, text);
}

void membership_receive_exit(struct run *run, struct roster_slot *slot,
                             const Capstan__ExitReport *report) {
    char how[64];
    status_end_text((int)report->wait_status, how, sizeof how);
    if (report->last)
        take_over_note_last(run, slot);
    declare_dead(run, slot, how, "");
}

static void send_dismissal(struct run *run, struct roster_slot *slot,
                           enum failure_code code, const char *text) {
    Capstan__Stop stop = CAPSTAN__STOP__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    stop.code = code;
    stop.text = (char *)text;
    stop.dismissed = true;
    control.body_case = CAPSTAN__CONTROL__BODY_STOP;
    control.stop = &stop;
    control_server_send(run->control_server, slot, &control);
}

void membership_dismiss(struct run *run, struct roster_slot *slot,
                        enum failure_code code, const char *text) {
    struct run_trainer *trainer = &run->trainers[slot->rank];
    if (trainer->dismissed)
        return;
    trainer->dismissed = true;
    trainer->declared = false;
    log_warning(run->log, "member_dismissed", "%s; the run goes on without it",
                text);
    send_dismissal(run, slot, code, text);
}

bool membership_is_joining(const struct run *run,
                           const struct roster_slot *slot) {
    return (run->phase == RUN_TRAINING || run->phase == RUN_FINISHING) &&
           slot->rank != ROSTER_NO_RANK && !run->trainers[slot->rank].from;
}

void membership_receive_lost(struct run *run, const struct roster_slot *slot,
                             const Capstan__Heartbeat *heartbeat, int64_t now) {
    struct reachability *reachability = &run->membership.reachability;
    if (!run->trainers[slot->rank].in_view || !heartbeat->view)
        return; /* it has no connections yet */
    reachability_report(reachability, slot->rank, now);
    for (size_t i = 0; i < heartbeat->n_lost; i++)
        if (heartbeat->lost[i]->ps < run->roster.num_ps)
            reachability_lose(
                reachability, slot->rank, heartbeat->lost[i]->ps,
                now - time_from_seconds(heartbeat->lost[i]->seconds));
}

/* A caller's program ends with its trainer, and the chief in it. */
static bool takes_chief_along(const struct run *run,
                              const struct roster_slot *slot) {
    return run->job->model.type == JOB_EXTERNAL &&
           slot->role == run->cluster->role &&
           slot->index == run->cluster->index;
}

/* SLOT's trainer does not reach PS, and others do. It is told, and the run goes
 * on without it. */
static void remove_cut_off(struct run *run, struct roster_slot *slot,
                           const struct roster_slot *ps, double seconds) {
    char name[64], how[512], text[DEPARTURE];
    roster_name(ps, name, sizeof name);
    snprintf(how, sizeof how,
             "has not reached %s at %s for %.0f s (timeouts.peer), which other "
             "trainers reach (a firewall between the two, or a path that loses "
             "large packets?)",
             name, ps->address, seconds);
    describe_departure(slot, how, text, sizeof text);
    if (takes_chief_along(run, slot)) {
        run_stop_resumable(run, FAILURE_PEER_SILENT, "%s", text);
        return;
    }
    send_dismissal(run, slot, FAILURE_PEER_SILENT, text);
    declare_dead(run, slot, how, "");
}

/* No trainer reaches SLOT's ps, which lives: it learns of the end as the others
 * do. */
static void stop_without_ps(struct run *run, const struct roster_slot *slot,
                            double seconds) {
    char trainers[256] = "", how[384], departed[DEPARTURE], name[64];
    size_t used = 0;
    for (uint32_t r = 0; r < run->roster.num_ranks; r++) {
        const struct roster_slot *trainer = &run->roster.slots[r];
        if (trainer->state != ROSTER_HELD || used >= sizeof trainers)
            continue;
        roster_name(trainer, name, sizeof name);
        used += (size_t)snprintf(trainers + used, sizeof trainers - used,
                                 "%s%s on host %s", used ? ", " : "", name,
                                 trainer->host);
    }
    snprintf(how, sizeof how,
             "is out of reach of every trainer (%s) for %.0f s (timeouts.peer)",
             trainers, seconds);
    describe_departure(slot, how, departed, sizeof departed);
    log_warning(run->log, "member_died", "%s", departed);
    stop_without(run, departed);
}

static void check_reachability(struct run *run, int64_t now) {
    struct reachability_verdict verdict;
    while ((run->phase == RUN_TRAINING || run->phase == RUN_FINISHING) &&
           (verdict = reachability_judge(&run->membership.reachability,
                                         &run->roster, now))
               .fault) {
        struct roster_slot *ps = roster_ps(&run->roster, verdict.ps);
        double seconds = time_to_seconds(now - verdict.since);
        if (verdict.fault == REACHABILITY_PS)
            stop_without_ps(run, ps, seconds);
        else
            remove_cut_off(run, &run->roster.slots[verdict.rank], ps, seconds);
    }
}

/* Each that has ended, as its kernel and its port say. */
static void remove_ended(struct run *run, int64_t now) {
    char text[400];
    for (uint32_t i = 0; i < run->roster.count; i++) {
        struct roster_slot *slot = &run->roster.slots[i];
        if (!port_probe_refuses(&run->probes[i], slot, now))
            continue;
        snprintf(text, sizeof text,
                 ": its connection is closed, and %s refuses", slot->address);
        declare_dead(run, slot, "is gone", text);
    }
}

void membership_check_deaths(struct run *run, int64_t now) {
    struct roster_slot *slot;
    while ((slot = roster_find_expired(&run->roster, now)))
        membership_remove(run, slot, false);
    remove_ended(run, now);
    check_reachability(run, now);
}

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
    /* Where nobody counts on in its place, all that is told is past. */
    struct run_counts past =
        entry.incarnation ? trainer->past : run_counts(run, rank);
    message->past_samples = past.samples;
    message->past_loss = past.loss;
    message->past_bad_lines = past.bad_lines;
    message->past_late = past.late;
    message->past_missed = past.missed;
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
