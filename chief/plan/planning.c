/* SPDX-License-Identifier: Apache-2.0 */
#include "chief/plan/planning.h"

#include "chief/control/membership.h"
#include "chief/plan/bandwidth_probe.h"
#include "chief/plan/device_replicas.h"
#include "chief/plan/memory_plan.h"
#include "chief/plan/model_spec.h"
#include "chief/plan/placement.h"
#include "chief/plan/strategy.h"
#include "chief/plan/table_memory.h"
#include "chief/rewind.h"
#include "chief/run.h"
#include "chief/run_series.h"
#include "chief/take_over.h"
#include "core/base/byte_size.h"
#include "core/base/time.h"
#include "core/tensor/rule.h"
#include "core/tensor/schedule.h"
#include "proto/plan/encoding.h"
#include "proto/plan/plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The same for shares of records, in micro batches of an epoch of BATCHES:
 * inverts run_share_samples. */
static uint64_t batches_completed(const struct run *run, uint64_t batches) {
    uint64_t samples = run->plan.restored.samples,
             all = run->plan.share_samples, rest = samples % all;
    uint64_t batch =
        (uint64_t)((long double)rest / (long double)all * (long double)batches);
    while (run_share_samples(run, batch, batches) < rest)
        batch++;
    while (batch && run_share_samples(run, batch - 1, batches) >= rest)
        batch--;
    return samples / all * batches + batch;
}

/* The steps of this job that read as many samples as the checkpoint has behind
 * it, rounded down: with another number of replicas or another batch the run
 * continues near the same sample. */
static uint64_t steps_completed(const struct run *run) {
    const struct manifest *manifest = &run->plan.restored;
    uint64_t samples = run->plan.train_samples,
             batches = run->plan.batches_per_epoch;
    uint64_t step = (uint64_t)run->job->micro_batch * run_step_replicas(run);
    if (run->job->model.type == JOB_EXTERNAL)
        return manifest->step;
    if (run->job->steps_per_epoch || batches == RUN_SCHEDULE_NO_EPOCHS)
        return manifest->samples / step / run->job->accumulation;
    if (!run_synchronous(run))
        batches *= run_num_shares(run);
    if (run->plan.share_samples)
        return batches_completed(run, batches) / run->job->accumulation;
    return (manifest->samples / samples * batches +
            manifest->samples % samples / step) /
           run->job->accumulation;
}

/* A copy has weights and state; each trainer sends as many gradients in a step.
 * Of tables it sends some rows. */
static uint64_t steps_between_copies(const struct run *run) {
    enum { ELEMENTS = 1 << 20 }; /* of any number the same */
    const struct job *job = run->job;
    if (!job->replicas || !run->lineage || run->plan.num_holders < 2)
        return 0;
    uint64_t copied =
        (1 + rule_slots(&job->optimizer)) * ELEMENTS * sizeof(float);
    uint64_t sent =
        run->roster.num_ranks * (uint64_t)encoding_bytes(job->wire, ELEMENTS);
    return job->buddy_steps
               ? job->buddy_steps
               : run_schedule_copy_steps(
                     copied, run->plan.layout->num_tables ? 0 : sent);
}

/* The run's schedule by step number. Every process derives from it when to save
 * and evaluate, without further messages. */
static void set_rounds(struct run *run) {
    const struct job *job = run->job;
    uint64_t batches = run->plan.batches_per_epoch;
    if (job->steps_per_epoch)
        batches = job->steps_per_epoch * job->accumulation;
    run->plan.batches_per_epoch = batches;
    run->plan.schedule = (struct run_schedule){
        .start = run->plan.has_restored ? run->plan.restored.step : 0,
        .start_batch = run->plan.has_restored ? steps_completed(run) : 0,
        .accumulation = job->accumulation,
        .epoch_batches = run_synchronous(run) || job->steps_per_epoch
                             ? batches
                             : batches * run_num_shares(run),
        .checkpoints = job->checkpoint.dir,
        .every_steps = job->checkpoint.every_steps,
        .every_epochs = job->checkpoint.every_epochs,
        .delta_every_steps = job->checkpoint.delta_every_steps,
        .buddy_steps = steps_between_copies(run),
    };
    run->evaluations.epochs_seen = run->metrics.epochs_ended =
        run_schedule_epochs(&run->plan.schedule, run->plan.schedule.start);
    if (run->plan.schedule.every_steps)
        run->checkpoints.every_seen =
            run->plan.schedule.start / run->plan.schedule.every_steps;
    if (run->plan.schedule.delta_every_steps)
        run->checkpoints.delta_every_seen =
            run->plan.schedule.start / run->plan.schedule.delta_every_steps;
    if (job->has_steps)
        run->plan.schedule.total = job->steps;
    else if (batches == RUN_SCHEDULE_NO_EPOCHS || !job->epochs)
        run->plan.schedule.total = RUN_SCHEDULE_ENDLESS;
    else
        run->plan.schedule.total =
            run_schedule_total(&run->plan.schedule, job->epochs);
    if (run->plan.schedule.total < run->plan.schedule.start)
        run->plan.schedule.total = run->plan.schedule.start;
}

static uint32_t num_ps_used(const struct run *run) {
    uint32_t ps = run->series ? run->series->ps : 0;
    return ps && ps < run->roster.num_ps ? ps : run->roster.num_ps;
}

/* Fills the rest of PS_OF_BLOCK[layout_units], for the partitions of tables: as
 * hashes make them equal, each ps gets an equal range. */
static void spread_partitions(const struct layout *layout, uint32_t num_ps,
                              uint32_t *ps_of_block) {
    for (uint64_t p = 0; p < layout->num_partitions; p++)
        ps_of_block[layout->num_blocks + p] =
            (uint32_t)(p * num_ps / layout->num_partitions);
}

/* Places the partitions of tables, of which a run that resumes has as many as
 * its checkpoint. */
static bool place_partitions(struct run *run) {
    uint32_t units = layout_units(run->plan.layout);
    uint32_t *places = realloc(run->plan.ps_of_block, units * sizeof *places);
    if (places)
        run->plan.ps_of_block = places;
    double *sums =
        places ? realloc(run->square_sums, units * sizeof *sums) : NULL;
    if (sums)
        run->square_sums = sums;
    if (!sums) {
        run_stop(run, FAILURE_NO_MEMORY, "no memory for the plan");
        return false;
    }
    spread_partitions(run->plan.layout, run->allreduce ? 1 : num_ps_used(run),
                      places);
    for (uint32_t b = 0; b < units && !run->allreduce; b++)
        if (places[b] >= run->plan.num_holders)
            run->plan.num_holders = places[b] + 1;
    return true;
}

/* With fewer blocks than ps the last ps hold nothing, and their answers are not
 * expected. */
static bool planning_place_blocks(struct run *run) {
    struct failure why;
    uint32_t units = layout_units(run->plan.layout);
    run->plan.ps_of_block = calloc(units, sizeof *run->plan.ps_of_block);
    run->square_sums = calloc(units, sizeof *run->square_sums);
    enum status status = STATUS_OK;
    if (!run->plan.ps_of_block || !run->square_sums)
        status = status_fail(&why, FAILURE_NO_MEMORY, "no memory for the plan");
    else if (!run->allreduce)
        status = placement_greedy(run->plan.layout, num_ps_used(run),
                                  run->plan.ps_of_block, &why);
    if (status)
        run_stop(run, why.code, "%s", why.text);
    for (uint32_t b = 0; !status && b < units; b++)
        if (run->plan.ps_of_block[b] >= run->plan.num_holders)
            run->plan.num_holders = run->plan.ps_of_block[b] + 1;
    return !status;
}

static struct memory_footprint_case footprint_of(const struct run *run) {
    return (struct memory_footprint_case){
        .job = run->job,
        .model = run->model_memory,
        .allreduce = run->allreduce,
        .resident = run->plan.resident,
        .trainers = run->roster.num_ranks,
        .elements = run->plan.layout->elements,
        .train_samples = run->plan.share_samples ? run->plan.share_samples
                                                 : run->plan.train_samples,
        .test_samples = run->plan.test_samples};
}

static uint32_t remote_trainers(const struct run *run, const char *host) {
    uint32_t count = 0;
    for (uint32_t r = 0; r < run->roster.num_ranks; r++)
        count += strcmp(run->roster.slots[r].host, host) != 0;
    return count;
}

static uint64_t elements_on(const struct run *run, uint32_t ps) {
    uint64_t elements = 0;
    for (uint32_t b = 0; !run->allreduce && b < run->plan.layout->num_blocks;
         b++)
        if (run->plan.ps_of_block[b] == ps)
            elements += run->plan.layout->blocks[b].elements;
    return elements;
}

/* Those of all ps on HOST. */
static uint64_t elements_beside(const struct run *run, const char *host) {
    uint64_t elements = 0;
    for (uint32_t p = 0; p < run->roster.num_ps; p++)
        if (!strcmp(run->roster.slots[run->roster.num_ranks + p].host, host))
            elements += elements_on(run, p);
    return elements;
}

/* Fills MEMBERS and NAMES, one entry for each slot. */
static void list_members(const struct run *run,
                         struct memory_plan_member *members,
                         char (*names)[64]) {
    for (uint32_t i = 0; i < run->roster.count; i++) {
        const struct roster_slot *slot = &run->roster.slots[i];
        bool ranked = slot->rank != ROSTER_NO_RANK;
        roster_name(slot, names[i], sizeof names[i]);
        members[i] = (struct memory_plan_member){
            .name = names[i],
            .host = slot->host,
            .reported = &run->plan.limits[i],
            .trains = ranked && !run->trainers[slot->rank].synthetic,
            .elements =
                ranked ? elements_beside(run, slot->host)
                       : elements_on(run, roster_place(&run->roster, slot)),
            .remote = ranked ? 0 : remote_trainers(run, slot->host),
        };
    }
}

/* A process that was just killed may still hold the missing memory, and members
 * of an earlier run whose chief died end after timeouts.peer. Until then each
 * heartbeat's report is checked again. */
static bool waits_for_memory(struct run *run, const struct failure *why) {
    double limit = run->job->timeouts.peer;
    int64_t now = time_now();
    if (!run->plan.memory_wait_since) {
        run->plan.memory_wait_since = now;
        log_info(run->log, "waiting_for_memory",
                 "waiting up to %.0f s (timeouts.peer): %s", limit, why->text);
    }
    return now - run->plan.memory_wait_since < time_from_seconds(limit);
}

/* Of two reasons the one that no waiting mends. */
static enum status check_plan(const struct run *run,
                              const struct memory_plan_member *members,
                              const struct memory_footprint_case *given,
                              struct failure *why) {
    struct failure rows;
    enum status status =
        memory_plan_check(members, run->roster.count, given, why);
    enum status of_rows = table_memory_check(run, &rows);
    if (!of_rows || (status && (status != STATUS_RETRY || of_rows == status)))
        return status;
    *why = rows;
    return of_rows;
}

/* Only the trainers know the state of an optimizer that they apply themselves:
 * it is told for Adam's. */
static void log_own_state(const struct run *run,
                          const struct memory_footprint_case *given) {
    bool changes =
        run->plan.groups && optimizer_group_is_changes(&run->plan.groups[0]);
    uint32_t trainers = run->roster.num_ranks;
    char one[16], all[16], saved[64];
    if (given->model || !given->elements ||
        !(changes || run->job->optimizer.type == OPTIMIZER_NONE))
        return;
    uint64_t bytes = 2 * given->elements * sizeof(float);
    byte_size_text(bytes, one, sizeof one);
    byte_size_text(changes ? trainers * bytes : bytes, all, sizeof all);
    snprintf(saved, sizeof saved, changes ? "those of all %u trainers" : "one",
             trainers);
    log_info(run->log, "own_state_planned",
             "memory: not counted is the state of the optimizer that each "
             "trainer applies itself, %s if it is Adam's; a checkpoint has "
             "%s, %s, and each trainer that saves one has two more in memory "
             "meanwhile, and one until the next",
             one, saved, all);
}

/* Checks memory before any large allocation and before the checkpoint is read.
 */
static bool check_memory(struct run *run) {
    struct memory_footprint_case given = footprint_of(run);
    uint32_t count = run->roster.count;
    struct memory_plan_member *members = calloc(count, sizeof *members);
    char(*names)[64] = calloc(count, sizeof *names);
    struct failure why;
    char text[640];
    enum status status =
        status_fail(&why, FAILURE_NO_MEMORY, "no memory for the plan");
    bool listed = members && names, waits = false;
    if (listed) {
        list_members(run, members, names);
        status = check_plan(run, members, &given, &why);
        waits = status == STATUS_RETRY && waits_for_memory(run, &why);
    }
    if (status && !waits) {
        if (!listed || !take_over_await_all(run, why.text))
            run_stop(run, listed ? FAILURE_JOB_TOO_LARGE : why.code, "%s",
                     why.text);
    } else if (!status) {
        memory_plan_describe(members, count, &given, text, sizeof text);
        log_info(run->log, "memory_planned", "%s", text);
        table_memory_log(run);
        log_own_state(run, &given);
    }
    free(members);
    free(names);
    return !status;
}

/* Fills MESSAGE; the caller frees its arrays by planning_free_plan. */
static bool write_plan(const struct run *run, Capstan__Plan *message) {
    uint32_t blocks = layout_units(run->plan.layout),
             count = run->roster.num_ps;
    uint16_t *block_ps = malloc((blocks + 1) * sizeof *block_ps);
    Capstan__PsEndpoint *endpoints = calloc(count + 1, sizeof *endpoints);
    Capstan__PsEndpoint **array = calloc(count + 1, sizeof *array);
    capstan__plan__init(message);
    message->parameters = plan_parameters(run->plan.layout);
    message->block_ps.data = (uint8_t *)block_ps;
    message->ps = array;
    if (!array) {
        free(endpoints);
        return false;
    }
    array[0] = endpoints; /* planning_free_plan frees it through array[0] */
    if (!message->parameters || !block_ps || !endpoints)
        return false;
    message->n_parameters = run->plan.layout->num_parameters;
    message->tables = plan_tables(run->plan.layout);
    message->n_tables = message->tables ? run->plan.layout->num_tables : 0;
    message->partitions = run->plan.layout->num_partitions;
    if (message->n_tables != run->plan.layout->num_tables)
        return false;
    if (run->plan.num_groups)
        message->groups =
            optimizer_group_messages(run->plan.groups, run->plan.num_groups);
    message->n_groups = message->groups ? run->plan.num_groups : 0;
    if (message->n_groups != run->plan.num_groups)
        return false;
    message->table_groups = optimizer_group_messages(
        run->plan.table_groups, run->plan.num_table_groups);
    if (!message->table_groups)
        return false;
    message->n_table_groups = run->plan.num_table_groups;
    message->block_ps.len = run->allreduce ? 0 : blocks * sizeof *block_ps;
    message->n_ps = count;
    for (uint32_t b = 0; b < blocks; b++)
        block_ps[b] = (uint16_t)run->plan.ps_of_block[b];
    for (uint32_t i = 0; i < count; i++) {
        struct roster_slot *slot = roster_ps((struct roster *)&run->roster, i);
        capstan__ps_endpoint__init(&endpoints[i]);
        endpoints[i].index = slot->index;
        endpoints[i].address = slot->address;
        endpoints[i].incarnation = slot->incarnation;
        endpoints[i].shm_key = slot->shm_key;
        array[i] = &endpoints[i];
    }
    return true;
}

static void planning_free_plan(Capstan__Plan *message) {
    plan_free_parameters(&message->parameters);
    optimizer_group_free(&message->groups);
    optimizer_group_free(&message->table_groups);
    free(message->tables);
    free(message->block_ps.data);
    if (message->ps)
        free(message->ps[0]);
    free(message->ps);
    if (message->restore_manifest != protobuf_c_empty_string)
        free(message->restore_manifest);
    if (message->restore_base != protobuf_c_empty_string)
        free(message->restore_base);
}

static void send_plan(struct run *run, struct roster_slot *slot) {
    Capstan__Plan message;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    uint32_t replicas[PLAN_MAX_TRAINERS];
    uint32_t *buddies =
        calloc(run->plan.restored.num_files + 1, sizeof *buddies);
    bool written = write_plan(run, &message) && buddies;
    message.replicas = replicas;
    message.n_replicas = device_replicas_list(run, replicas);
    message.start_step = run->plan.schedule.start;
    message.start_batch = run->plan.schedule.start_batch;
    message.total_steps = run->plan.schedule.total;
    message.epoch_batches = run->plan.schedule.epoch_batches;
    message.trainers = run->roster.num_ranks;
    /* The weights then differ from those that a trainer would initialise. */
    message.pull_first = run->plan.has_restored || run->job->init;
    message.strategy = run->allreduce ? JOB_ALLREDUCE : JOB_PS;
    message.backend = run->plan.backend;
    message.resident = run->plan.resident;
    if (run->job->checkpoint.dir)
        message.checkpoint_dir = run->job->checkpoint.dir;
    Capstan__LossScaler scaler =
        plan_scaler_message(&run->plan.restored.scaler);
    if (run->plan.has_restored) {
        message.scaler = &scaler;
        message.restore_folder = run->plan.restore_folder;
        message.restore_manifest = manifest_text(&run->plan.restored);
        written &= message.restore_manifest != NULL;
        if (run->plan.restored.base)
            message.restore_base = manifest_text(run->plan.restored.base);
        written &= message.restore_base != NULL;
    }
    message.buddy_steps = run->plan.schedule.buddy_steps;
    message.n_buddies =
        buddies && run->plan.from_memory ? run->plan.restored.num_files : 0;
    message.buddies = buddies;
    for (size_t i = 0; i < message.n_buddies; i++)
        buddies[i] =
            membership_find_copy(run, &run->plan.restored, (uint32_t)i);
    message.trace_first = run->trace.first;
    message.trace_last = run->trace.last;
    message.trace_room = run->trace.room;
    message.lineage = run->plan.lineage;
    message.rewinds = run->lineage ? run->lineage->count : 0;
    message.steps_again = run->lineage ? run->lineage->again : 0;
    message.furthest = run->lineage ? run->lineage->furthest : 0;
    message.in_vain = run->lineage ? run->lineage->in_vain : 0;
    control.body_case = CAPSTAN__CONTROL__BODY_PLAN;
    control.plan = &message;
    if (!written)
        run_stop(run, FAILURE_NO_MEMORY, "no memory for the plan");
    else if (slot)
        control_server_send(run->control_server, slot, &control);
    else
        control_server_broadcast(run->control_server, CLUSTER_ROLES, &control);
    planning_free_plan(&message);
    free(buddies);
}

/* With staleness a joiner starts at once, at the lowest live clock; in a
 * synchronous run it starts with the next snapshot. */
void planning_admit_joiner(struct run *run, struct roster_slot *slot,
                           bool keeps) {
    struct run_trainer *trainer = &run->trainers[slot->rank];
    if (run->job->optimizer.type == OPTIMIZER_NONE &&
        !run->job->checkpoint.dir && keeps) {
        membership_dismiss(run, slot, FAILURE_JOB_UNFIT,
                           "a trainer with what it keeps, or with an optimizer "
                           "of its own, joins with the others' state, which "
                           "needs checkpoint.dir (in Python init(checkpoint="
                           "...))");
        return;
    }
    trainer->has_plan = true;
    send_plan(run, slot);
    if (run_synchronous(run))
        return;
    uint64_t lowest = UINT64_MAX;
    for (uint32_t r = 0; r < run->roster.num_ranks; r++)
        if (run->trainers[r].in_view && !run->trainers[r].finished &&
            run->roster.slots[r].state == ROSTER_HELD &&
            run->trainers[r].heartbeat.clock < lowest)
            lowest = run->trainers[r].heartbeat.clock;
    if (lowest == UINT64_MAX)
        lowest = run->plan.schedule.start_batch / run_num_shares(run);
    trainer->from = lowest + 1;
    trainer->heartbeat.clock = lowest;
    run_absence_end(run, slot->rank);
    membership_broadcast_view(run);
}

static void log_plan(const struct run *run) {
    char where[64], end[32] = "the trainers' end";
    if (!run_is_endless(run))
        snprintf(end, sizeof end, "%llu",
                 (unsigned long long)run->plan.schedule.total);
    snprintf(where, sizeof where, "%u block%s on %u ps",
             run->plan.layout->num_blocks,
             log_plural(run->plan.layout->num_blocks), run->plan.num_holders);
    log_info(run->log, "plan_made",
             "%u tensor%s, %llu value%s %s%s; steps %llu to %s, a point each "
             "%llu",
             run->plan.layout->num_parameters,
             log_plural(run->plan.layout->num_parameters),
             (unsigned long long)run->plan.layout->elements,
             log_plural(run->plan.layout->elements),
             run->allreduce ? "on every trainer" : "in ",
             run->allreduce ? "" : where,
             (unsigned long long)run->plan.schedule.start, end,
             (unsigned long long)run_schedule_point_steps(
                 &run->plan.schedule, run->job->steps_per_print));
}

/* Warns if the schedule ends before the run: the last steps would train at the
 * schedule's final rate. */
static void planning_check_schedule(const struct run *run) {
    const struct schedule *schedule = &run->job->schedule;
    unsigned long long last = run->plan.schedule.total;
    const char *key;
    unsigned long long end = schedule_end(schedule, &key);
    if (last > run->plan.schedule.start && schedule_ends_before(schedule, last))
        log_warning(run->log, "schedule_ends_early",
                    "the scheduler ends at step %llu (scheduler.params.%s), "
                    "the run at step %llu: the rate of the last steps is %g; "
                    "set %s together with epochs or steps, to %llu",
                    end, key, last, schedule_rate(schedule, last), key, last);
}

/* The place is that of the samples, whatever they were when the checkpoint was
 * written. */
static void warn_of_other_epochs(const struct run *run) {
    const struct manifest *manifest = &run->plan.restored;
    uint64_t each = run->plan.share_samples ? run->plan.share_samples
                                            : run->plan.train_samples;
    if (!run->plan.has_restored || run->job->steps_per_epoch || !each ||
        run->plan.batches_per_epoch == RUN_SCHEDULE_NO_EPOCHS ||
        run->job->model.type == JOB_EXTERNAL ||
        (manifest->samples >= manifest->epoch * each &&
         manifest->samples <= (manifest->epoch + 1) * each))
        return;
    log_warning(
        run->log, "epochs_recounted",
        "the checkpoint has %llu complete epochs, and its %llu samples "
        "are %.3g epochs of the data as they are now, %llu samples: the "
        "run goes on in epoch %llu",
        (unsigned long long)manifest->epoch,
        (unsigned long long)manifest->samples,
        (double)manifest->samples / (double)each, (unsigned long long)each,
        (unsigned long long)(manifest->samples / each + 1));
}

/* Epochs are shown counting from 1, and after the last epoch the last one is
 * shown. */
static uint64_t resume_epoch(const struct run *run) {
    uint64_t epoch = run->plan.restored.epoch + 1, last = run->job->epochs;
    bool ends = run->job->model.type != JOB_EXTERNAL && !run->job->has_steps;
    return ends && epoch > last ? last : epoch;
}

static void log_start(const struct run *run) {
    if (run->plan.has_restored)
        log_info(run->log, "run_resumed", "resuming from %s, epoch %llu",
                 run->plan.from_memory ? "the copies in memory"
                                       : run->plan.restore_folder,
                 (unsigned long long)resume_epoch(run));
}

/* Logs that the job asks for no more than the checkpoint has behind it. */
static void log_nothing_left(const struct run *run) {
    const struct job *job = run->job;
    const char *unit = job->has_steps ? "steps" : "epochs";
    unsigned long long requested = job->has_steps ? job->steps : job->epochs;
    unsigned long long done_before =
        job->has_steps ? run->plan.schedule.start
                       : run_schedule_epochs(&run->plan.schedule,
                                             run->plan.schedule.start);
    if (!run->plan.has_restored ||
        run->plan.schedule.start < run->plan.schedule.total)
        return;
    log_info(run->log, "nothing_to_train",
             "the checkpoint has completed %llu %s and the job asks for %llu: "
             "nothing is left to train (raise %s to continue)",
             done_before, unit, requested, unit);
}

static void restore_epoch(struct run *run) {
    const struct manifest *manifest = &run->plan.restored;
    run->plan.lineage = run->plan.has_restored  ? manifest->lineage
                        : rewind_is_second(run) ? run->lineage->id
                                                : run->id;
    if (!run->plan.has_restored)
        return;
    unsigned place = manifest->epoch % MESSAGE_EPOCHS;
    run->plan.epochs[place].is_known = true;
    run->plan.epochs[place].number = manifest->epoch;
    run->plan.epochs[place].first_step =
        manifest->step - (manifest->epoch_step < manifest->step
                              ? manifest->epoch_step
                              : manifest->step);
}

/* A delta saves what has changed of tables only. */
static bool planning_check_deltas(struct run *run) {
    unsigned long long every = run->job->checkpoint.delta_every_steps;
    if (!every || run->plan.layout->num_tables)
        return true;
    run_stop(run, FAILURE_JOB_UNFIT,
             "checkpoint.delta_every_steps: found %llu, and the model has no "
             "tables: a delta leaves out rows of tables that have not "
             "changed, and nothing else; allowed: 0",
             every);
    return false;
}

/* Rows that a trainer has looked up are those of the round that it pushes to.
 */
static bool check_backup_workers(struct run *run) {
    if (!run->job->backup_workers || !run->plan.layout->num_tables)
        return true;
    run_stop(run, FAILURE_JOB_UNFIT,
             "strategy.backup_workers: found %u, and the model has tables, "
             "whose rows are read for one round; allowed there: 0",
             run->job->backup_workers);
    return false;
}

bool planning_prepare(struct run *run) {
    /* If it is made already, only memory was waited for. */
    bool settled = run->plan.ps_of_block;
    if (run->phase != RUN_JOINING || !run->plan.layout ||
        !model_spec_is_complete(run))
        return false;
    rewind_fill_in(run);
    if (!settled &&
        (!planning_check_deltas(run) || !check_backup_workers(run) ||
         !device_replicas_resolve(run) || !strategy_select_collective(run) ||
         !planning_place_blocks(run)))
        return false;
    return check_memory(run);
}

bool planning_schedule(struct run *run) {
    if (!place_partitions(run))
        return false;
    if (run->job->init && run->plan.has_restored)
        log_info(run->log, "init_ignored",
                 "init is ignored: the run resumes, and %s is not read",
                 run->job->init);
    set_rounds(run);
    restore_epoch(run);
    return true;
}

/* Where the run began. */
static enum status take_restored(struct run *run, const struct plan *plan,
                                 struct failure *why) {
    if (!plan->restore_manifest)
        return STATUS_OK;
    enum status status =
        manifest_parse(&run->plan.restored, plan->restore_manifest, why);
    run->plan.has_restored = !status;
    if (!status)
        restore_epoch(run);
    snprintf(run->plan.restore_folder, sizeof run->plan.restore_folder, "%s",
             plan->restore_folder ? plan->restore_folder : "");
    return status;
}

/* The number of shares is that of the plan, whoever trains now. */
static void take_replicas(struct run *run, const struct plan *plan) {
    for (uint32_t r = 0; r < run->roster.num_ranks; r++) {
        struct run_trainer *trainer = &run->trainers[r];
        trainer->devices = trainer->replicas = plan_replicas(plan, r);
        trainer->has_plan = true;
        if (!run_is_beyond(run, r))
            run->plan.share_samples += trainer->share_samples;
    }
    run->plan.num_replicas = plan_first_replica(plan, run_num_shares(run));
}

static enum status take_places(struct run *run, const struct plan *plan,
                               struct failure *why) {
    uint32_t units = layout_units(plan->layout);
    run->plan.ps_of_block = calloc(units, sizeof *run->plan.ps_of_block);
    run->square_sums = calloc(units, sizeof *run->square_sums);
    if (!run->plan.ps_of_block || !run->square_sums)
        return status_fail(why, FAILURE_NO_MEMORY, "no memory for the plan");
    run->plan.layout->num_partitions = plan->layout->num_partitions;
    for (uint32_t b = 0; b < units; b++) {
        run->plan.ps_of_block[b] = plan->block_ps[b];
        if (plan->block_ps[b] >= run->plan.num_holders)
            run->plan.num_holders = plan->block_ps[b] + 1u;
    }
    return STATUS_OK;
}

enum status planning_take_over(struct run *run, const Capstan__Plan *message,
                               struct failure *why) {
    struct plan *plan = NULL;
    enum status status = plan_settle_job(run->job, message, why);
    if (!status)
        status = plan_read(&plan, message, run->job, why);
    if (status)
        return status;
    if (plan->allreduce || plan->num_ps != run->roster.num_ps ||
        plan->num_ranks != run->roster.num_ranks ||
        layout_digest(plan->layout) != run->plan.digest)
        status = status_fail(why, FAILURE_CLUSTER_DIFFERS,
                             "its plan is of another cluster or model");
    if (!status)
        status = take_places(run, plan, why);
    if (!status)
        status = take_restored(run, plan, why);
    if (!status)
        take_replicas(run, plan);
    run->plan.schedule = plan->run_schedule;
    run->plan.batches_per_epoch = plan->run_schedule.epoch_batches;
    run->plan.lineage = message->lineage;
    plan_close(&plan);
    return status;
}

void planning_send(struct run *run) {
    log_start(run);
    log_plan(run);
    planning_check_schedule(run);
    warn_of_other_epochs(run);
    log_nothing_left(run);
    for (uint32_t r = 0; r < run->roster.num_ranks; r++)
        run->trainers[r].has_plan = !rewind_lacks(run, r);
    run_enter_phase(run, RUN_READYING);
    send_plan(run, NULL);
}

/* Is a checkpoint due at the end of the one before EPOCH? */
static bool take_epoch(struct run *run, const Capstan__Epoch *epoch) {
    uint64_t every = run->job->checkpoint.every_epochs;
    unsigned place = epoch->number % MESSAGE_EPOCHS;
    if (epoch->under_way && run->plan.epochs[place].is_known &&
        run->plan.epochs[place].number == epoch->number)
        return false;
    run->plan.epochs[place].is_known = true;
    run->plan.epochs[place].number = epoch->number;
    run->plan.epochs[place].first_step = epoch->step;
    return every && epoch->number && epoch->number % every == 0 &&
           run->job->checkpoint.dir;
}

/* A checkpoint that is due at an epoch's end is requested when the next one
 * begins. */
void planning_receive_epoch(struct run *run, const struct roster_slot *slot,
                            const Capstan__Epoch *epoch) {
    if (slot->rank == 0 && run->job->model.type == JOB_EXTERNAL)
        run->checkpoints.requested |= take_epoch(run, epoch);
}

void planning_take_epochs(struct run *run, Capstan__Epoch *const *epochs,
                          size_t count) {
    const struct run_checkpoints *own = &run->checkpoints;
    for (unsigned e = 0; e < MESSAGE_EPOCHS; e++)
        run->plan.epochs[e].is_known &=
            count && run->plan.epochs[e].number == epochs[0]->number;
    for (size_t i = 0; i < count; i++) {
        bool is_due = take_epoch(run, epochs[i]);
        bool is_saved = own->has_saved && own->saved >= epochs[i]->step;
        run->checkpoints.requested |= is_due && !is_saved;
    }
}

static bool all_ready(const struct run *run) {
    for (uint32_t i = 0; i < run->roster.num_ps; i++)
        if (!run->ps[i].ready)
            return false;
    return !run->allreduce || run->ps[run->roster.num_ps].ready;
}

static bool starts_from_file(const struct run *run) {
    return run->job->init && !run->plan.has_restored;
}

/* All weights are in place: the first view starts training. */
static void planning_begin(struct run *run) {
    uint64_t from = run->plan.schedule.start + 1;
    if (!run_synchronous(run))
        from = run->plan.schedule.start_batch / run_num_shares(run) + 1;
    for (uint32_t r = 0; r < run->roster.num_ranks; r++) {
        if (!run->trainers[r].has_plan)
            continue;
        run->trainers[r].from = from;
        run->trainers[r].heartbeat.clock = from - 1;
    }
    run->metrics.shown_at = time_now();
    run_enter_phase(run, RUN_TRAINING);
    membership_broadcast_view(run);
}

void planning_step(struct run *run) {
    if (run->phase == RUN_READYING && all_ready(run) &&
        (run->plan.init_done || !starts_from_file(run)) &&
        bandwidth_probe_is_done(run, time_now()))
        planning_begin(run);
}

void planning_receive_ready(struct run *run, struct roster_slot *slot,
                            const Capstan__Ready *ready) {
    bool is_holder = slot->rank == 0 && run->allreduce;
    if (slot->role != CLUSTER_PS && !is_holder)
        return;
    struct run_ps *ps =
        is_holder ? run_allreduce_holder(run) : run_ps_of(run, slot);
    ps->ready = true;
    ps->shares_folder = ready->shares_folder;
    ps->port = (uint16_t)ready->port;
    run->plan.init_wanted =
        starts_from_file(run) && run->phase == RUN_READYING && all_ready(run);
}
