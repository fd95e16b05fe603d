/* SPDX-License-Identifier: Apache-2.0 */
/* The mutex guards what the worker and the caller share; the parameters and
 * their pushes are the caller's, and under the mutex as well, since gradients
 * may come from several threads. It is not held while a call waits: `inside`
 * counts the calls that use the trainer, and external_detach waits for them.
 *
 * With ps gradients are sent from the caller's memory and weights arrive in it.
 * A gradient is lent to the link as a buffer over the caller's bytes; the wait
 * for its weights ends once every message has given it back. In all-reduce both
 * are copied from and to the arena, whose ranges are summed in place. */
#include "core/base/time.h"
#include "core/base/trace.h"
#include "proto/messages/message.h"
#include "worker/collective/trainer_group.h"
#include "worker/train/external_internal.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct external *external_open(void) {
    struct external *external = calloc(1, sizeof *external);
    if (!external)
        return NULL;
    external->left_at.total = UINT64_MAX;
    waiter_open(&external->waiter);
    pthread_mutex_init(&external->kept_mutex, NULL);
    return external;
}

static void close_tables(struct external_tables *all) {
    if (!all)
        return;
    table_steps_close(&all->steps);
    row_writes_close(&all->writes);
    row_batch_close(&all->listing.batch);
    free(all->tables);
    free(all->groups);
    free(all->has_group);
    free(all);
}

void external_close(struct external **where) {
    struct external *external = *where;
    *where = NULL;
    if (!external)
        return;
    for (uint32_t p = 0; p < external->count; p++)
        if (external->tensors[p].gradient)
            buffer_destroy(external->tensors[p].gradient);
    waiter_close(&external->waiter);
    pthread_mutex_destroy(&external->kept_mutex);
    for (uint32_t k = 0; k < external->num_kept; k++)
        free(external->kept[k].data);
    close_tables(external->tables);
    free(external->given);
    free(external->state_read.floats);
    free(external->groups);
    free(external->parameters);
    free(external->values);
    free(external->means);
    free(external->tensors);
    free(external);
}

/* A caller whose loop is over does not take its last steps again. */
static bool caller_may_go_back(const struct external *external) {
    return external->rewinds && !external->calls_others &&
           !external->loop_over && !external->past_end;
}

bool external_rewinds(struct external *external) {
    waiter_enter(&external->waiter);
    bool rewinds = caller_may_go_back(external);
    waiter_leave(&external->waiter);
    return rewinds;
}

/* The trainer is going: does its run go back with this caller, or begin anew?
 * The waiter is entered. */
static void begin_return(struct external *external) {
    bool returns = external->back; /* the caller waits for the next trainer */
    external->anew = external->is_asked_back && !returns && external->sent &&
                     !external->requested;
    external->back = external->is_asked_back && !external->anew &&
                     caller_may_go_back(external);
    external->is_asked_back = false;
}

/* The links of the run before have given back all but what is owned here. */
static void reset_tensor(struct tensor *tensor) {
    struct buffer *own = tensor->owned ? tensor->gradient : NULL;
    tensor->owned = tensor->pushed = tensor->stale = false;
    if (own)
        buffer_release(&own);
}

static void drop_listing(struct row_listing *listing) {
    row_batch_close(&listing->batch);
    *listing = (struct row_listing){0};
}

static void reset_tables(struct external_tables *all) {
    if (!all)
        return;
    table_steps_close(&all->steps);
    all->steps = (struct table_steps){0};
    row_writes_close(&all->writes);
    drop_listing(&all->listing);
    all->awaited_clock = 0;
    all->open = false;
}

static void reset_kept(struct external *external) {
    pthread_mutex_lock(&external->kept_mutex);
    external->kept_checked = external->saved_kept = 0;
    external->save_with = external->due_as_lead = 0;
    external->must_save = external->pushes_over = false;
    pthread_mutex_unlock(&external->kept_mutex);
}

/* No call is under way. */
static void reset_for_return(struct external *external) {
    for (uint32_t p = 0; p < external->count; p++)
        reset_tensor(&external->tensors[p]);
    reset_tables(external->tables);
    reset_kept(external);
    free(external->state_read.floats);
    external->state_read = (struct state_read){0};
    external->sent = external->requested = external->started = false;
    external->counted = external->trained_pushed = false;
    external->is_read_again = false;
    external->num_pushed = external->num_waiting = 0;
    external->waiting_elements = 0;
    external->epoch = external->epoch_first = 0;
}

bool external_brought(const struct external *external, uint32_t p) {
    return p < external->count && external->tensors[p].brought;
}

bool external_had_batch(struct external *external) {
    struct trainer *trainer = external_enter(external);
    if (!trainer)
        return false;
    bool backed = trainer->settings.job->backup_workers;
    bool had = external->started && !backed &&
               trainer->exchange->had_batch(trainer->exchange, trainer->clock);
    if (backed)
        external_misused(
            trainer, "capstan_had_batch with strategy.backup_workers, where "
                     "ranks are not at the same step: give all ranks as "
                     "many batches, or set that to 0");
    external_leave(external);
    return had;
}

uint64_t external_step_of_run(const struct trainer *trainer) {
    return trainer_is_synchronous(trainer)
               ? trainer->clock
               : trainer->exchange->global_step(trainer->exchange);
}

bool external_has_joined(const struct trainer *trainer) {
    const struct run_schedule *schedule = &trainer->plan->run_schedule;
    uint64_t begun = trainer_is_synchronous(trainer)
                         ? schedule->start
                         : schedule->start_batch / trainer->settings.num_ranks;
    return trainer->from > begun + 1;
}

void external_find_position(const struct external *external,
                            const struct trainer *trainer,
                            struct external_position *position) {
    *position = (struct external_position){.total = UINT64_MAX};
    position->joined = trainer->settings.joins_late;
    if (!external->started)
        return;
    const struct run_schedule *schedule = &trainer->plan->run_schedule;
    position->step = external_step_of_run(trainer);
    position->total =
        schedule->total == RUN_SCHEDULE_ENDLESS ? UINT64_MAX : schedule->total;
    position->updates =
        position->step - trainer->exchange->scaler(trainer->exchange).skipped;
    position->epoch = external->epoch;
    position->epoch_step = trainer->clock - external->epoch_first;
    position->resumed = schedule->start || trainer->from > 1;
    position->joined = external_has_joined(trainer);
}

void external_attach(struct external *external, struct trainer *trainer) {
    if (external->joined && !external->anew)
        reset_for_return(external);
    waiter_enter(&external->waiter);
    external->sent = external->anew = false;
    external->trainer = trainer;
    external->joined = true;
    external->detached = false;
    external->place = (struct external_place){
        trainer->settings.rank,          trainer->settings.num_ranks,
        trainer->settings.local_rank,    trainer->settings.job->staleness,
        trainer->settings.job->nan_skip, trainer->settings.job->backup_workers};
    waiter_leave_changed(&external->waiter);
}

void external_detach(struct external *external) {
    struct external_position left_at;
    external_find_position(external, external->trainer, &left_at);
    waiter_enter(&external->waiter);
    external->detached = true;
    external->left_at = left_at;
    begin_return(external);
    pthread_cond_broadcast(&external->waiter.changed);
    while (external->inside)
        waiter_wait(&external->waiter, TIME_NEVER, NULL);
    external->anew &= !external->requested; /* by a call that was under way */
    pthread_mutex_lock(&external->kept_mutex);
    dir_lock_release(&external->dir_lock);
    pthread_mutex_unlock(&external->kept_mutex);
    external->trainer = NULL;
    waiter_leave_changed(&external->waiter);
}

float *const *external_values(const struct external *external) {
    return external->values;
}

float *const *external_means(const struct external *external) {
    return external->means;
}

void external_end(struct external *external, enum status status,
                  const struct failure *why) {
    waiter_enter(&external->waiter);
    external->ended = true;
    external->status = status;
    external->why = *why;
    waiter_leave_changed(&external->waiter);
}

enum external_result external_wait_end(struct external *external, int64_t until,
                                       enum status *status,
                                       struct failure *why) {
    waiter_enter(&external->waiter);
    while (!external->ended && waiter_wait(&external->waiter, until, NULL))
        ;
    bool ended = external->ended;
    *status = external->status;
    if (ended)
        *why = external->why;
    waiter_leave(&external->waiter);
    return ended ? EXTERNAL_DONE : EXTERNAL_LATE;
}

enum external_result external_wait_joined(struct external *external,
                                          int64_t until) {
    waiter_enter(&external->waiter);
    while (!external->joined && !external->ended &&
           waiter_wait(&external->waiter, until, NULL))
        ;
    enum external_result result = external->joined  ? EXTERNAL_DONE
                                  : external->ended ? EXTERNAL_OVER
                                                    : EXTERNAL_LATE;
    waiter_leave(&external->waiter);
    return result;
}

void external_place(const struct external *external,
                    struct external_place *place) {
    *place = external->place;
}

bool external_skips(struct external *external) {
    external->follows_on_nan = true;
    return external->place.skips;
}

uint32_t external_backup_workers(struct external *external) {
    external->follows_rounds = true;
    return external->place.backup_workers;
}

void external_give_trainers(struct external *external,
                            struct trainer_group *trainers) {
    external->trainers = trainers;
}

enum external_result external_collective(struct external *external,
                                         const struct trainer_call *call,
                                         void *data, int64_t until,
                                         struct failure *why) {
    *why = (struct failure){.code = FAILURE_NONE};
    waiter_enter(&external->waiter);
    external->calls_others = true;
    waiter_leave(&external->waiter);
    struct trainer *trainer = external_enter(external);
    if (!trainer)
        return EXTERNAL_OVER;
    bool steps = external->started && trainer_is_synchronous(trainer);
    uint64_t step = steps ? trainer->clock : UINT64_MAX;
    enum trainer_call_result result =
        trainer_group_call(external->trainers, call, data, step, until, why);
    external_leave(external);
    if (result == TRAINER_CALL_OVER)
        return external_late(external, until);
    return result == TRAINER_CALL_LATE ? EXTERNAL_LATE : EXTERNAL_DONE;
}

static struct trainer *enter_unless(struct external *external,
                                    bool left_out_back) {
    waiter_enter(&external->waiter);
    bool may = external->trainer && !external->detached && !external->ended &&
               !(left_out_back && external->back);
    external->inside += may;
    struct trainer *trainer = may ? external->trainer : NULL;
    waiter_leave(&external->waiter);
    return trainer;
}

struct trainer *external_enter(struct external *external) {
    return enter_unless(external, true);
}

struct trainer *external_enter_any(struct external *external) {
    return enter_unless(external, false);
}

void external_interrupt(struct external *external) {
    atomic_store(&external->leaves, true);
}

bool external_is_back(struct external *external) {
    waiter_enter(&external->waiter);
    bool back = external->back && !external->ended;
    waiter_leave(&external->waiter);
    return back;
}

bool external_is_behind(struct external *external) {
    waiter_enter(&external->waiter);
    bool behind = (external->back || external->rewound) && !external->ended;
    waiter_leave(&external->waiter);
    return behind;
}

enum external_result external_left_out(struct external *external) {
    return external_is_back(external) ? EXTERNAL_DONE : EXTERNAL_OVER;
}

void external_leave(struct external *external) {
    waiter_enter(&external->waiter);
    external->inside--;
    waiter_leave_changed(&external->waiter);
}

enum external_result external_late(struct external *external, int64_t until) {
    waiter_enter(&external->waiter);
    while (!external->detached && !external->ended &&
           waiter_wait(&external->waiter, until, NULL))
        ;
    bool over = external->detached || external->ended;
    waiter_leave(&external->waiter);
    return over ? EXTERNAL_OVER : EXTERNAL_LATE;
}

bool external_is_over(struct external *external) {
    waiter_enter(&external->waiter);
    bool over = external->detached || external->ended;
    waiter_leave(&external->waiter);
    return over;
}

bool external_is_past_end(struct external *external) {
    waiter_enter(&external->waiter);
    bool past_end = external->past_end && !external->finished;
    waiter_leave(&external->waiter);
    return past_end;
}

bool external_leaves_out(struct external *external) {
    return external_is_past_end(external) || external_is_behind(external);
}

void external_report(struct trainer *trainer, const struct failure *why) {
    struct trainer_report failed = {.event = TRAINER_FAILED, .why = *why};
    event_queue_push(&trainer->event_queue, &failed);
}

void external_misused(struct trainer *trainer, const char *text) {
    struct failure why;
    status_fail(&why, FAILURE_WRONG_CALL, "%s", text);
    external_report(trainer, &why);
}

bool external_fail(struct external *external, const struct failure *why) {
    struct trainer *trainer = external_enter_any(external);
    if (!trainer)
        return false;
    external_report(trainer, why);
    external_leave(external);
    return true;
}

enum status external_default_group(struct optimizer_group *group,
                                   const char *type, struct failure *why) {
    char override[128];
    const char *overrides[] = {override};
    struct job_source source = {.models = &model_schemas,
                                .overrides = overrides,
                                .num_overrides = 1,
                                .external = true};
    struct job *job;
    snprintf(override, sizeof override, "optimizer.type=%.64s", type);
    enum status status = job_load(&job, &source, NULL, why);
    if (status)
        return status;
    *group = (struct optimizer_group){job->optimizer, job->schedule.lr};
    job_free(&job);
    return STATUS_OK;
}

/* With ps: the gradient may be changed once no message reads it. */
static bool await_gradient(struct external *external, struct tensor *tensor,
                           int64_t until) {
    waiter_enter(&external->waiter);
    while (tensor->lent && !external->detached &&
           waiter_wait(&external->waiter, until, NULL))
        ;
    bool here = !tensor->lent;
    waiter_leave(&external->waiter);
    return here;
}

/* What the step left for parameter P, if it is not in the caller's memory. */
static void take_result(const struct external *external,
                        const struct trainer *trainer, uint32_t p) {
    struct tensor *tensor = &external->tensors[p];
    bool mean =
        tensor->answers_push && external->takes_means && external->means[p];
    bool assigned = external->parameters[p].kind == PARAMETER_ASSIGNED;
    tensor->brought = trainer->exchange->take(
        trainer->exchange, p, mean || (assigned && tensor->answers_push),
        mean ? external->means[p] : external->values[p]);
}

static bool wait_for_rows(struct trainer *trainer, int64_t until) {
    struct trace *trace = trainer->exchange->trace;
    int64_t start = trace_begin(trace, trainer->clock + 1);
    bool here = trainer->exchange->wait_rows(trainer->exchange, until);
    trace_end(trace, start, TRACE_WAIT, trainer->clock + 1, 0);
    return here;
}

bool external_wait_weights(struct external *external, struct trainer *trainer,
                           uint32_t p, int64_t until) {
    struct tensor *tensor = &external->tensors[p];
    struct trace *trace = trainer->exchange->trace;
    int64_t start = trace_begin(trace, trainer->clock);
    bool here = trainer->exchange->wait(trainer->exchange, p, until);
    trace_end(trace, start, TRACE_WAIT, trainer->clock, p);
    if (!here)
        return false;
    waiter_enter(&external->waiter);
    struct buffer *own = tensor->owned ? tensor->gradient : NULL;
    bool lent = tensor->lent;
    tensor->owned = false;
    waiter_leave(&external->waiter);
    if (own) /* the first wait after the push */
        buffer_release(&own);
    if (lent && !await_gradient(external, tensor, until))
        return false;
    if (tensor->stale)
        take_result(external, trainer, p);
    tensor->stale = false;
    return true;
}

bool external_wait_all(struct external *external, struct trainer *trainer,
                       int64_t until) {
    for (uint32_t p = 0; p < external->count; p++)
        if (!external_wait_weights(external, trainer, p, until))
            return false;
    return true;
}

/* Tables of the caller: rows are looked up between steps; the gradients of a
 * step are pushed, summed by row, when it ends. */

static enum status tables_no_memory(struct failure *why) {
    return status_fail(why, FAILURE_NO_MEMORY, "no memory for a table's rows");
}

static bool grow_tables(struct external_tables *all) {
    uint32_t count = all->count + 1;
    struct table *tables =
        reallocarray(all->tables, count, sizeof *all->tables);
    if (tables)
        all->tables = tables;
    struct optimizer_group *groups =
        reallocarray(all->groups, count, sizeof *all->groups);
    if (groups)
        all->groups = groups;
    bool *has = reallocarray(all->has_group, count, sizeof *has);
    if (has)
        all->has_group = has;
    return tables && groups && has;
}

enum status external_declare_table(struct external *external,
                                   const struct table *table, const char *type,
                                   uint32_t *number, struct failure *why) {
    struct external_tables *all = external->tables;
    if (external->declared)
        return status_fail(why, FAILURE_WRONG_CALL,
                           "table \"%s\" is declared after the start",
                           table->name);
    if (!all)
        external->tables = all = calloc(1, sizeof *all);
    if (!all || !grow_tables(all))
        return tables_no_memory(why);
    struct optimizer_group group = {0};
    if (type) {
        enum status status = external_default_group(&group, type, why);
        if (status)
            return status;
    }
    all->tables[all->count] = *table;
    all->groups[all->count] = group;
    all->has_group[all->count] = type != NULL;
    *number = all->count++;
    return STATUS_OK;
}

enum status external_set_table(struct external *external, uint32_t number,
                               const char *key, double value,
                               struct failure *why) {
    struct external_tables *all = external->tables;
    if (!all || number >= all->count || external->declared ||
        !all->has_group[number])
        return status_fail(
            why, FAILURE_WRONG_CALL,
            "\"%s\" of table number %u: set before the start, of "
            "tables with an optimizer of their own",
            key, number);
    enum status status =
        optimizer_group_set(&all->groups[number], key, value, why);
    if (status)
        why->code = FAILURE_WRONG_CALL;
    return status;
}

const struct optimizer_group *external_table_groups(
    const struct external *external, uint32_t *count) {
    *count = external->tables ? external->tables->count : 0;
    return *count ? external->tables->groups : NULL;
}

/* The place of table T's own optimizer among the groups: that of an earlier
 * table with the same, so that their rows are stored together. */
static uint32_t same_group(const struct external_tables *all, uint32_t t) {
    uint32_t u = 0;
    while (u < t &&
           (!all->has_group[u] ||
            memcmp(&all->groups[u], &all->groups[t], sizeof all->groups[t])))
        u++;
    return u + 1;
}

/* A table without an optimizer of its own has a place among the groups, too,
 * which does not count. */
enum status external_add_tables(struct external *external,
                                struct layout *layout, struct failure *why) {
    struct external_tables *all = external->tables;
    for (uint32_t t = 0; all && t < all->count; t++) {
        all->tables[t].optimizer = all->has_group[t] ? same_group(all, t) : 0;
    }
    return all ? layout_add_tables(layout, all->tables, all->count,
                                   LAYOUT_PARTITIONS, why)
               : STATUS_OK;
}

/* The steps need the plan's layout. */
static enum status open_steps(struct external *external,
                              const struct trainer *trainer,
                              struct failure *why) {
    struct external_tables *all = external->tables;
    if (all->open)
        return STATUS_OK;
    all->open = true;
    return table_steps_open(&all->steps, trainer->plan->layout, why);
}

/* The offsets of bags go up from 0 to the number of ids. */
static enum status check_bags(const struct external_rows *rows,
                              const char *name, struct failure *why) {
    const uint32_t *offsets = rows->offsets;
    size_t b = 0;
    if (!offsets && !rows->num_bags)
        return STATUS_OK;
    if (!offsets || rows->combiner > BATCH_SQRTN ||
        (!rows->num_bags && rows->count))
        return status_fail(why, FAILURE_WRONG_CALL,
                           "bags of table \"%s\" without offsets, with an "
                           "unknown combiner, or none of them for %zu ids",
                           name, rows->count);
    while (b < rows->num_bags && offsets[b] <= offsets[b + 1])
        b++;
    if (!offsets[0] && b == rows->num_bags && offsets[b] == rows->count)
        return STATUS_OK;
    return status_fail(why, FAILURE_WRONG_CALL,
                       "bags of table \"%s\": offsets[%zu] is %" PRIu32
                       "; offsets go up from 0 to the number of ids, %zu",
                       name, offsets[0] ? 0 : b, offsets[offsets[0] ? 0 : b],
                       rows->count);
}

static enum status check_lists(const struct external *external,
                               const struct external_rows *rows, uint32_t count,
                               struct failure *why) {
    const struct external_tables *all = external->tables;
    enum status status = STATUS_OK;
    for (uint32_t i = 0; !status && i < count; i++) {
        if (!all || rows[i].table >= all->count || !external->started ||
            external->finished || (rows[i].count && !rows[i].ids))
            return status_fail(why, FAILURE_WRONG_CALL,
                               "rows of a table that was not declared, or not "
                               "between start and end");
        status = check_bags(&rows[i], all->tables[rows[i].table].name, why);
    }
    return status;
}

/* Sends the awaited lookup; AHEAD: for the step after this one, which reads the
 * rows that this one writes. */
static void send_awaited(struct external *external, struct trainer *trainer,
                         bool ahead) {
    struct external_tables *all = external->tables;
    all->awaited_clock = trainer->clock + ahead;
    trainer->exchange->lookup(trainer->exchange, all->awaited_clock,
                              ahead && !row_writes_any(&all->writes), 0,
                              &all->steps.awaited->batch);
}

/* Rows that were asked for ahead may not come before this step's push. */
static enum status check_order(const struct external *external,
                               const struct trainer *trainer, uint32_t count,
                               struct failure *why) {
    const struct external_tables *all = external->tables;
    if (count && all->steps.awaited && all->awaited_clock > trainer->clock)
        return status_fail(why, FAILURE_WRONG_CALL,
                           "rows are looked up, or asked for ahead again, "
                           "after those of the next step were asked for ahead: "
                           "the step ends first");
    return STATUS_OK;
}

/* A listing that a call has left is awaited, and dropped. */
static bool end_listing(struct external *external, struct trainer *trainer,
                        int64_t until) {
    struct external_tables *all = external->tables;
    if (!all || !all->listing.awaited)
        return true;
    if (!wait_for_rows(trainer, until))
        return false;
    waiter_enter(&external->waiter);
    drop_listing(&all->listing);
    waiter_leave(&external->waiter);
    return true;
}

/* A lookup that was begun ahead is awaited, also if it has brought other rows
 * than those which are wanted now, or those of a step that had no lookup. */
static bool await_others(struct external *external, struct trainer *trainer,
                         const struct external_rows *rows, uint32_t count,
                         int64_t until) {
    struct external_tables *all = external->tables;
    if (!end_listing(external, trainer, until))
        return false;
    waiter_enter(&external->waiter);
    bool others = count && all->steps.awaited &&
                  (all->awaited_clock < trainer->clock ||
                   !table_steps_awaits(&all->steps, rows, count));
    waiter_leave(&external->waiter);
    if (!others)
        return true;
    if (!wait_for_rows(trainer, until))
        return false;
    waiter_enter(&external->waiter);
    table_steps_drop(&all->steps);
    waiter_leave(&external->waiter);
    return true;
}

/* Asks ahead for what is prepared; none else is awaited. */
static void send_prepared(struct external *external, struct trainer *trainer) {
    struct table_steps *steps = &external->tables->steps;
    if (!steps->prepared)
        return;
    table_steps_begin(steps);
    send_awaited(external, trainer, true);
}

static enum status prepare_lookup(struct external *external,
                                  struct trainer *trainer,
                                  const struct external_rows *rows,
                                  uint32_t count, struct failure *why) {
    struct table_steps *steps = &external->tables->steps;
    enum status status = open_steps(external, trainer, why);
    if (!status)
        status = check_order(external, trainer, count, why);
    if (!status && steps->prepared)
        status = status_fail(why, FAILURE_WRONG_CALL,
                             "rows are asked for ahead twice in a step");
    if (!status && external->tables->listing.awaited)
        status = status_fail(why, FAILURE_WRONG_CALL,
                             "rows are asked for ahead, and the ids of a table "
                             "are being listed: call that again until it has "
                             "returned first");
    if (!status)
        status = table_steps_prepare(steps, rows, count, why);
    if (!status && !steps->awaited)
        send_prepared(external, trainer);
    return status;
}

enum external_result external_prefetch(struct external *external,
                                       const struct external_rows *rows,
                                       uint32_t count) {
    struct trainer *trainer = external_enter(external);
    struct failure why;
    if (!trainer)
        return external_left_out(external);
    enum status status = check_lists(external, rows, count, &why);
    bool past_end = external_leaves_out(external);
    waiter_enter(&external->waiter);
    if (!status && count && !past_end)
        status = prepare_lookup(external, trainer, rows, count, &why);
    waiter_leave(&external->waiter);
    if (status)
        external_report(trainer, &why);
    external_leave(external);
    return status ? EXTERNAL_OVER : EXTERNAL_DONE;
}

static enum status begin_lookup(struct external *external,
                                struct trainer *trainer,
                                const struct external_rows *rows,
                                uint32_t count, struct failure *why) {
    enum status status = open_steps(external, trainer, why);
    if (!status)
        status =
            table_steps_look_up(&external->tables->steps, rows, count, why);
    if (!status)
        send_awaited(external, trainer, false);
    return status;
}

/* The awaited rows are here. Those of the next step, if they are prepared, are
 * asked for first. What this step has written is read in their place. */
static enum status take_rows(struct external *external, struct trainer *trainer,
                             const struct external_rows *rows, uint32_t count,
                             struct failure *why) {
    struct table_steps *steps = &external->tables->steps;
    struct row_writes *writes = &external->tables->writes;
    struct row_lists *lists = table_steps_take(steps);
    struct row_batch *written;
    send_prepared(external, trainer);
    if (row_writes_any(writes)) {
        enum status status =
            row_writes_list(writes, steps->index, &written, why);
        if (status)
            return status;
        row_writes_overlay(writes, &lists->batch);
    }
    table_steps_copy(steps, lists, rows, count);
    return STATUS_OK;
}

enum external_result external_lookup(struct external *external,
                                     const struct external_rows *rows,
                                     uint32_t count, int64_t until) {
    struct trainer *trainer = external_enter(external);
    struct failure why;
    enum external_result result = EXTERNAL_OVER;
    if (!trainer)
        return result;
    enum status status = check_lists(external, rows, count, &why);
    if (!status)
        status = check_order(external, trainer, count, &why);
    if (!status && !await_others(external, trainer, rows, count, until)) {
        result = external_late(external, until);
        external_leave(external);
        return result;
    }
    waiter_enter(&external->waiter);
    if (!status && count && !external->tables->steps.awaited)
        status = begin_lookup(external, trainer, rows, count, &why);
    waiter_leave(&external->waiter);
    if (status) {
        external_report(trainer, &why);
    } else if (!count || wait_for_rows(trainer, until)) {
        waiter_enter(&external->waiter);
        if (count)
            status = take_rows(external, trainer, rows, count, &why);
        waiter_leave(&external->waiter);
        if (status)
            external_report(trainer, &why);
        else
            result = EXTERNAL_DONE;
    } else {
        result = external_late(external, until);
    }
    external_leave(external);
    return result;
}

/* Looks up the next places of the listing. */
static enum status list_next(struct external *external, struct trainer *trainer,
                             struct failure *why) {
    enum { FIRST = 64, MOST = 4096 }; /* places of a partition */
    struct row_listing *listing = &external->tables->listing;
    listing->next += listing->count;
    listing->count = listing->count ? listing->count * 2 : FIRST;
    if (listing->count > MOST)
        listing->count = MOST;
    row_batch_close(&listing->batch);
    enum status status =
        row_batch_places(&listing->batch, trainer->plan->layout, listing->table,
                         listing->next, listing->count, why);
    if (status)
        return status;
    listing->awaited = true;
    trainer->exchange->lookup(trainer->exchange, trainer->clock, false, 0,
                              &listing->batch);
    return STATUS_OK;
}

/* Takes the ids of the admitted rows that are here; returns whether there may
 * be more. */
static bool list_found(struct row_listing *listing, const struct table *table,
                       uint64_t *ids, size_t room) {
    const struct row_batch *batch = &listing->batch;
    size_t rows = (size_t)batch->layout->num_partitions * listing->count;
    bool more = false;
    listing->awaited = false;
    for (size_t r = 0; r < rows; r++) {
        struct row row;
        memcpy(&row, batch->weights + r * ROW_FLOATS, sizeof row);
        more |= row.table != ROW_NO_TABLE;
        if (row.table != listing->table || row.count < table->admit)
            continue;
        if (listing->found < room)
            ids[listing->found] = row.id;
        listing->found++;
    }
    return more;
}

static enum status check_listing(const struct external *external,
                                 const struct trainer *trainer, uint32_t table,
                                 struct failure *why) {
    const struct external_rows rows = {.table = table};
    enum status status = check_lists(external, &rows, 1, why);
    return status ? status : check_order(external, trainer, 1, why);
}

/* The listing of TABLE goes on, or begins. */
static enum external_result list_table(struct external *external,
                                       struct trainer *trainer, uint32_t table,
                                       struct external_ids *out, int64_t until,
                                       struct failure *why) {
    struct external_tables *all = external->tables;
    struct row_listing *listing = &all->listing;
    const struct external_rows none = {.table = table};
    bool more = true;
    bool goes_on = listing->awaited && listing->table == table &&
                   listing->clock == trainer->clock &&
                   listing->ids == out->ids && listing->room == out->room;
    if (!goes_on && !await_others(external, trainer, &none, 1, until))
        return external_late(external, until);
    if (!listing->awaited) {
        *listing = (struct row_listing){.table = table,
                                        .clock = trainer->clock,
                                        .ids = out->ids,
                                        .room = out->room};
        if (list_next(external, trainer, why))
            return EXTERNAL_OVER;
    }
    while (more) {
        if (!wait_for_rows(trainer, until))
            return external_late(external, until);
        more = list_found(listing, &all->tables[table], out->ids, out->room) &&
               listing->found <= out->room;
        if (more && list_next(external, trainer, why))
            return EXTERNAL_OVER;
    }
    out->count = listing->found;
    drop_listing(listing);
    return EXTERNAL_DONE;
}

enum external_result external_ids(struct external *external, uint32_t table,
                                  struct external_ids *out, int64_t until) {
    struct trainer *trainer = external_enter(external);
    struct failure why = {0};
    enum external_result result = EXTERNAL_OVER;
    if (!trainer)
        return result;
    if (!check_listing(external, trainer, table, &why))
        result = list_table(external, trainer, table, out, until, &why);
    if (why.code)
        external_report(trainer, &why);
    external_leave(external);
    return result;
}

enum external_result external_push_rows(struct external *external,
                                        const struct external_rows *rows,
                                        uint32_t count) {
    struct trainer *trainer = external_enter(external);
    struct failure why;
    if (!trainer)
        return external_left_out(external);
    enum status status = check_lists(external, rows, count, &why);
    if (external_leaves_out(external))
        count = 0;
    waiter_enter(&external->waiter);
    if (!status && external->tables)
        status = open_steps(external, trainer, &why);
    for (uint32_t i = 0; !status && i < count; i++)
        status = table_steps_add(&external->tables->steps, &rows[i], &why);
    waiter_leave(&external->waiter);
    if (status)
        external_report(trainer, &why);
    external_leave(external);
    return status ? EXTERNAL_OVER : EXTERNAL_DONE;
}

/* Rows are written between the declaration of their table and the end, and
 * before those of the next step are asked for ahead. */
static enum status check_writes(const struct external *external,
                                const struct trainer *trainer,
                                const struct external_rows *rows,
                                uint32_t count, struct failure *why) {
    const struct external_tables *all = external->tables;
    bool may = external->started ? !external->finished : !external->declared;
    for (uint32_t i = 0; i < count; i++)
        if (!may || !all || rows[i].table >= all->count || rows[i].offsets ||
            rows[i].num_bags ||
            (rows[i].count && !(rows[i].ids && rows[i].values)))
            return status_fail(why, FAILURE_WRONG_CALL,
                               "rows are written of a table that was not "
                               "declared, in bags, or while the run starts or "
                               "after its end");
    if (count && (all->steps.prepared ||
                  (all->steps.awaited && all->awaited_clock > trainer->clock)))
        return status_fail(why, FAILURE_WRONG_CALL,
                           "rows are written after those of the next step were "
                           "asked for ahead: write them first");
    return STATUS_OK;
}

/* The first writes to a table, before the start, say that rank 0's rows are
 * awaited, also if this rank has none. */
enum external_result external_write_rows(struct external *external,
                                         const struct external_rows *rows,
                                         uint32_t count) {
    struct trainer *trainer = external_enter(external);
    struct failure why;
    if (!trainer)
        return external_left_out(external);
    if (external_leaves_out(external))
        count = 0;
    waiter_enter(&external->waiter);
    enum status status = check_writes(external, trainer, rows, count, &why);
    for (uint32_t i = 0; !status && i < count; i++) {
        struct table *table = &external->tables->tables[rows[i].table];
        table->assigned |= !external->started;
        status = row_writes_add(&external->tables->writes, table->dim, &rows[i],
                                &why);
    }
    waiter_leave(&external->waiter);
    if (status)
        external_report(trainer, &why);
    external_leave(external);
    return status ? EXTERNAL_OVER : EXTERNAL_DONE;
}

enum status external_first_rows(struct external *external,
                                struct trainer *trainer,
                                struct row_batch **batch, struct failure *why) {
    struct external_tables *all = external->tables;
    *batch = NULL;
    if (!all || !layout_assigns_rows(trainer->plan->layout))
        return STATUS_OK;
    enum status status = open_steps(external, trainer, why);
    return status ? status
                  : row_writes_list(&all->writes, all->steps.index, batch, why);
}

/* A partition's part of a push is one message. */
static enum status check_size(const struct row_batch *pushed,
                              const struct row_batch *written,
                              struct failure *why) {
    for (uint32_t p = 0; pushed && p < written->layout->num_partitions; p++) {
        const struct row_batch_part *own = &written->parts[p];
        const struct row_batch_part *other = &pushed->parts[p];
        uint64_t bytes =
            (uint64_t)own->bytes + other->bytes +
            ((uint64_t)own->floats + other->floats) * sizeof(float);
        if (bytes > MESSAGE_MAX_PAYLOAD)
            return status_fail(why, FAILURE_JOB_TOO_LARGE,
                               "the rows that a step writes and pushes have "
                               "%" PRIu64 " bytes in one partition, more than "
                               "the %d MiB of a message: write fewer at once",
                               bytes, MESSAGE_MAX_PAYLOAD >> 20);
    }
    return STATUS_OK;
}

/* What the step has written goes with its push, of which PUSHED (may be NULL)
 * are the gradients. */
static enum status send_writes(struct external *external,
                               struct trainer *trainer,
                               const struct row_batch *pushed,
                               struct failure *why) {
    struct external_tables *all = external->tables;
    struct row_batch *written;
    if (!row_writes_any(&all->writes))
        return STATUS_OK;
    enum status status =
        row_writes_list(&all->writes, all->steps.index, &written, why);
    if (!status)
        status = check_size(pushed, written, why);
    if (!status)
        trainer->exchange->write_rows(trainer->exchange, written);
    return status;
}

/* The contribution of a step without rows is that of its tensors. */
enum status external_flush_rows(struct external *external,
                                struct trainer *trainer, struct failure *why) {
    struct external_tables *all = external->tables;
    enum contribution kind = external->last_kind;
    if (!all)
        return STATUS_OK;
    struct row_batch *batch = NULL;
    waiter_enter(&external->waiter);
    enum status status = open_steps(external, trainer, why);
    if (!status)
        status = table_steps_sum(&all->steps, &batch, why);
    if (!status)
        status = send_writes(external, trainer, batch, why);
    waiter_leave(&external->waiter);
    if (kind != CONTRIBUTION_OVERFLOWED && batch)
        kind = CONTRIBUTION_FULL;
    if (status || !trainer_push_rows(trainer, trainer->clock + 1, kind,
                                     kind == CONTRIBUTION_FULL ? batch : NULL))
        return status;
    waiter_enter(&external->waiter);
    table_steps_sent(&all->steps);
    row_writes_sent(&all->writes);
    waiter_leave(&external->waiter);
    return STATUS_OK;
}
