/* SPDX-License-Identifier: Apache-2.0 */
/* The second user of what main.c composes: a thread plays this process's roles
 * by process_run, as `capstan run` does, with a caller's model (external.c)
 * where the program has its own. That thread and all that it starts block every
 * signal. */
#include "library/capstan.h"

#include "commands/process.h"
#include "commands/process_settings.h"
#include "commands/report_board.h"
#include "core/base/fork_guard.h"
#include "core/base/time.h"
#include "core/base/version.h"
#include "proto/messages/process_report.h"
#include "worker/collective/reduce_numbers.h"
#include "worker/train/external.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PUBLIC __attribute__((visibility("default")))

struct capstan_run {
    struct options options;
    struct cluster *cluster;
    struct process_settings settings;
    struct external *external;
    struct report_board *board;
    int interrupt_writer;
    bool trains;
    pthread_t thread;
    bool started, over;
    unsigned generation;   /* fork_guard's, of the process that opened it */
    pthread_mutex_t mutex; /* `over`, `why` */
    struct failure why;
    int result;
};

static void *play_roles(void *argument) {
    capstan_run *run = argument;
    struct failure why = {0};
    enum status status =
        process_run(&run->options, &run->settings, run->cluster, &why);
    external_end(run->external, status, &why);
    return NULL;
}

static enum status start_roles(capstan_run *run, struct failure *why) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&run->thread, NULL, play_roles, run);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    run->started = !error;
    return error ? status_errno(why, FAILURE_SYSTEM_REFUSED, error,
                                "cannot start a thread")
                 : STATUS_OK;
}

static enum status open_interrupts(capstan_run *run, struct failure *why) {
    int ends[2];
    if (pipe2(ends, O_NONBLOCK | O_CLOEXEC))
        return status_errno(why, FAILURE_NO_DESCRIPTORS, errno,
                            "no pipe for signals");
    run->settings.interrupts = ends[0];
    run->interrupt_writer = ends[1];
    return STATUS_OK;
}

static enum status add_override(struct options *options, const char *text,
                                struct failure *why) {
    if (options->num_sets == OPTIONS_MAX_SETS)
        return status_fail(why, FAILURE_JOB_INVALID, "more than %d overrides",
                           OPTIONS_MAX_SETS);
    char *copy = strdup(text);
    if (!copy)
        return status_fail(why, FAILURE_NO_MEMORY, "out of memory");
    options->sets[options->num_sets++] = copy;
    return STATUS_OK;
}

/* Copies the strings, which the thread reads later. The environment's come
 * last, as they are those of the command line. */
static enum status set_job(capstan_run *run, const char *job,
                           const char *const *overrides, struct failure *why) {
    struct options *options = &run->options;
    enum status status = STATUS_OK;
    if (getenv(SCRIPT_DEEPSPEED))
        return status_fail(why, FAILURE_JOB_UNFIT,
                           "--deepspeed_config %s is for a script that imports "
                           "capstan.deepspeed: leave it out",
                           getenv(SCRIPT_DEEPSPEED));
    options->cli_command = CLI_COMMAND_RUN;
    if (getenv(SCRIPT_JOB))
        job = getenv(SCRIPT_JOB);
    options->job = job ? strdup(job) : NULL;
    if (job && !options->job)
        return status_fail(why, FAILURE_NO_MEMORY, "out of memory");
    for (; !status && overrides && *overrides; overrides++)
        status = add_override(options, *overrides, why);
    return status ? status : process_settings_add_sets(options, why);
}

static enum status resolve(capstan_run *run, unsigned flags,
                           struct failure *why) {
    enum status status = cluster_resolve(&run->cluster, &run->options.flags,
                                         process_settings_getenv, NULL, why);
    if (!status)
        status = process_settings_read(&run->settings, &run->options, why);
    if (!status)
        status = open_interrupts(run, why);
    run->settings.external = run->external;
    run->settings.board = run->board;
    run->settings.silent = !(flags & CAPSTAN_LOG);
    if (!status)
        status =
            composition_trains(&run->options, run->cluster, &run->trains, why);
    return status;
}

static int end_with(capstan_run *run, enum status status,
                    const struct failure *why) {
    pthread_mutex_lock(&run->mutex);
    if (!run->over) {
        run->over = true;
        run->why = *why;
        run->result = status;
    }
    pthread_mutex_unlock(&run->mutex);
    return run->result;
}

static bool is_forked(const capstan_run *run) {
    return run->generation != fork_guard_generation();
}

/* In a forked child every run of the parent is. */
static bool is_over(capstan_run *run) {
    if (is_forked(run) && run->why.code != FAILURE_WRONG_CALL) {
        run->over = true;
        run->result = (int)status_fail(&run->why, FAILURE_WRONG_CALL,
                                       "the run belongs to the parent process");
    }
    return run->over;
}

/* The result of a call after the run's end, however well that was. */
static int over_result(capstan_run *run) {
    pthread_mutex_lock(&run->mutex);
    int result = run->result;
    if (!result)
        result =
            (int)status_fail(&run->why, FAILURE_RUN_ENDED, "the run is over");
    pthread_mutex_unlock(&run->mutex);
    return result;
}

PUBLIC int capstan_open(capstan_run **out, const char *job,
                        const char *const *overrides, unsigned flags) {
    struct failure why = {0};
    capstan_run *run = calloc(1, sizeof *run);
    *out = NULL;
    if (!run)
        return STATUS_FAILED;
    pthread_mutex_init(&run->mutex, NULL);
    fork_guard_install();
    run->generation = fork_guard_generation();
    run->settings.interrupts = run->interrupt_writer = -1;
    run->external = external_open();
    run->board = report_board_open();
    if (!run->external || !run->board) {
        capstan_close(run);
        return STATUS_FAILED;
    }
    *out = run;
    enum status status = set_job(run, job, overrides, &why);
    if (!status)
        status = resolve(run, flags, &why);
    if (!status)
        status = start_roles(run, &why);
    return status ? end_with(run, status, &why) : 0;
}

PUBLIC enum capstan_role capstan_role(const capstan_run *run) {
    return run->cluster ? (enum capstan_role)run->cluster->role
                        : CAPSTAN_WORKER;
}

PUBLIC int capstan_trains(const capstan_run *run) {
    return run->trains;
}

static int64_t until_of(double seconds) {
    if (seconds < 0)
        return TIME_NEVER;
    int64_t wait = time_from_seconds(seconds), now = time_now();
    return wait < TIME_NEVER - now ? now + wait : TIME_NEVER;
}

/* Waits for the end of the process's part. */
static int wait_for_end(capstan_run *run, int64_t until) {
    enum status status;
    struct failure why = {0};
    if (!run->started || run->over)
        return run->result;
    if (external_wait_end(run->external, until, &status, &why) == EXTERNAL_LATE)
        return CAPSTAN_AGAIN;
    return end_with(run, status, &why);
}

/* A wrong call ends the run on all ranks. */
static int end_run(capstan_run *run, const struct failure *why) {
    bool sent = external_fail(run->external, why);
    if (!sent) { /* not joined yet: the process leaves */
        capstan_interrupt(run, SIGTERM);
        capstan_interrupt(run, SIGTERM);
    }
    int result = wait_for_end(run, TIME_NEVER);
    if (!result || !sent)
        result = (int)failure_code_status(why->code);
    run->why = *why; /* the chief's text names this process, which knows it */
    return run->result = result;
}

/* The result of a call that the run's end may cut short. */
static int result_of(capstan_run *run, enum external_result result,
                     int64_t until) {
    struct failure why = {0};
    if (result != EXTERNAL_OVER)
        return result == EXTERNAL_LATE ? CAPSTAN_AGAIN : 0;
    if (external_wait_joined(run->external, 0) == EXTERNAL_LATE) {
        status_fail(&why, FAILURE_WRONG_CALL,
                    "a call that needs a run before capstan_join");
        return end_run(run, &why);
    }
    int ended = wait_for_end(run, until);
    return ended ? ended : over_result(run);
}

/* How long a call that takes no seconds waits for a run that goes back. */
static const int64_t RETURN_TURN = TIME_S / 5;

/* A call that has returned RESULT is made again, as the run has gone back
 * meanwhile. False: RESULT is that of the call. */
static bool is_back(capstan_run *run, enum external_result *result,
                    int64_t until) {
    if (*result != EXTERNAL_OVER || !external_is_back(run->external))
        return false;
    *result = external_return(run->external, until);
    return *result == EXTERNAL_DONE;
}

PUBLIC int capstan_serve(capstan_run *run, double seconds) {
    if (is_over(run))
        return run->result;
    return wait_for_end(run, until_of(seconds));
}

PUBLIC int capstan_join(capstan_run *run, double seconds) {
    if (is_over(run))
        return run->result;
    int64_t until = until_of(seconds);
    return result_of(run, external_wait_joined(run->external, until), until);
}

PUBLIC int capstan_rank(const capstan_run *run) {
    struct external_place place;
    external_place(run->external, &place);
    return (int)place.rank;
}

PUBLIC int capstan_size(const capstan_run *run) {
    struct external_place place;
    external_place(run->external, &place);
    return (int)place.num_ranks;
}

PUBLIC int capstan_local_rank(const capstan_run *run) {
    struct external_place place;
    external_place(run->external, &place);
    return (int)place.local_rank;
}

PUBLIC uint64_t capstan_staleness(const capstan_run *run) {
    struct external_place place;
    external_place(run->external, &place);
    return place.staleness;
}

PUBLIC int capstan_skips(capstan_run *run) {
    return external_skips(run->external);
}

PUBLIC unsigned capstan_backup_workers(capstan_run *run) {
    return external_backup_workers(run->external);
}

static enum status read_declared(struct parameter *parameter,
                                 const struct capstan_tensor *tensor,
                                 struct failure *why) {
    *parameter = (struct parameter){.num_dims = tensor->num_dims,
                                    .kind = (uint32_t)tensor->kind,
                                    .dtype = (uint32_t)tensor->dtype,
                                    .group = tensor->group,
                                    .values = 1};
    if (!tensor->name || strlen(tensor->name) >= sizeof parameter->name)
        return status_fail(why, FAILURE_MODEL_INVALID,
                           "a tensor's name has 1 to %zu bytes",
                           sizeof parameter->name - 1);
    strcpy(parameter->name, tensor->name);
    if (tensor->num_dims > LAYOUT_MAX_DIMS)
        return status_fail(why, FAILURE_MODEL_INVALID,
                           "tensor \"%s\" has %u dimensions; at most %d are "
                           "allowed",
                           tensor->name, tensor->num_dims, LAYOUT_MAX_DIMS);
    if (tensor->num_dims && !tensor->dims)
        return status_fail(why, FAILURE_MODEL_INVALID,
                           "tensor \"%s\" has %u dimensions and no dims",
                           tensor->name, tensor->num_dims);
    if (tensor->num_dims)
        memcpy(parameter->dims, tensor->dims,
               tensor->num_dims * sizeof *tensor->dims);
    return tensor->values
               ? STATUS_OK
               : status_fail(why, FAILURE_MODEL_INVALID,
                             "tensor \"%s\" has no values", tensor->name);
}

PUBLIC int capstan_declare(capstan_run *run,
                           const struct capstan_tensor *tensor,
                           uint32_t *number) {
    struct parameter parameter;
    struct failure why = {0};
    if (is_over(run))
        return over_result(run);
    enum status status = read_declared(&parameter, tensor, &why);
    if (!status)
        status = external_declare(run->external, &parameter, tensor->values,
                                  tensor->mean, number, &why);
    return status ? end_run(run, &why) : 0;
}

PUBLIC int capstan_optimizer(capstan_run *run, const char *type) {
    struct failure why = {0};
    if (is_over(run))
        return over_result(run);
    return external_optimizer(run->external, type ? type : "", &why)
               ? end_run(run, &why)
               : 0;
}

PUBLIC int capstan_set(capstan_run *run, uint32_t group, const char *key,
                       double value) {
    struct failure why = {0};
    if (is_over(run))
        return over_result(run);
    if (!external_set(run->external, group, key ? key : "", value, &why))
        return 0;
    return why.code == FAILURE_RUN_ENDED
               ? result_of(run, EXTERNAL_OVER, TIME_NEVER)
               : end_run(run, &why);
}

PUBLIC int capstan_declare_table(capstan_run *run,
                                 const struct capstan_table *table,
                                 uint32_t *number) {
    struct table declared = {.dim = table->dim,
                             .init_bound = table->init_range,
                             .admit = table->admit,
                             .expire = table->expire,
                             .max_rows = table->max_rows};
    struct failure why = {0};
    enum status status = STATUS_OK;
    if (is_over(run))
        return over_result(run);
    if (!table->name || strlen(table->name) >= sizeof declared.name)
        status = status_fail(&why, FAILURE_MODEL_INVALID,
                             "a table's name has 1 to %zu bytes",
                             sizeof declared.name - 1);
    else
        strcpy(declared.name, table->name);
    if (!status)
        status = external_declare_table(run->external, &declared,
                                        table->optimizer, number, &why);
    return status ? end_run(run, &why) : 0;
}

PUBLIC int capstan_set_table(capstan_run *run, uint32_t number, const char *key,
                             double value) {
    struct failure why = {0};
    if (is_over(run))
        return over_result(run);
    return external_set_table(run->external, number, key ? key : "", value,
                              &why)
               ? end_run(run, &why)
               : 0;
}

/* Both structs have the same members. */
_Static_assert(sizeof(struct capstan_rows) == sizeof(struct external_rows) &&
                   offsetof(struct capstan_rows, combiner) ==
                       offsetof(struct external_rows, combiner) &&
                   (int)CAPSTAN_SQRTN == (int)BATCH_SQRTN,
               "struct capstan_rows differs from struct external_rows");

PUBLIC int capstan_lookup(capstan_run *run, const struct capstan_rows *rows,
                          size_t n, double seconds) {
    if (is_over(run))
        return over_result(run);
    int64_t until = until_of(seconds);
    enum external_result result;
    do
        result =
            external_lookup(run->external, (const struct external_rows *)rows,
                            (uint32_t)n, until);
    while (is_back(run, &result, until));
    return result_of(run, result, until);
}

PUBLIC int capstan_prefetch(capstan_run *run, const struct capstan_rows *rows,
                            size_t n) {
    if (is_over(run))
        return over_result(run);
    return result_of(run,
                     external_prefetch(run->external,
                                       (const struct external_rows *)rows,
                                       (uint32_t)n),
                     TIME_NEVER);
}

PUBLIC int capstan_push_rows(capstan_run *run, const struct capstan_rows *rows,
                             size_t n) {
    if (is_over(run))
        return over_result(run);
    return result_of(run,
                     external_push_rows(run->external,
                                        (const struct external_rows *)rows,
                                        (uint32_t)n),
                     TIME_NEVER);
}

PUBLIC int capstan_ids(capstan_run *run, uint32_t table, uint64_t *ids,
                       size_t room, size_t *count, double seconds) {
    if (is_over(run))
        return over_result(run);
    int64_t until = until_of(seconds);
    struct external_ids found = {.ids = ids, .room = room};
    enum external_result result;
    do
        result = external_ids(run->external, table, &found, until);
    while (is_back(run, &result, until));
    *count = found.count;
    return result_of(run, result, until);
}

PUBLIC int capstan_write_rows(capstan_run *run, const struct capstan_rows *rows,
                              size_t n) {
    if (is_over(run))
        return over_result(run);
    return result_of(run,
                     external_write_rows(run->external,
                                         (const struct external_rows *)rows,
                                         (uint32_t)n),
                     TIME_NEVER);
}

PUBLIC int capstan_start(capstan_run *run, double seconds) {
    if (is_over(run))
        return over_result(run);
    int64_t until = until_of(seconds);
    return result_of(run, external_start(run->external, until), until);
}

PUBLIC void capstan_where(capstan_run *run, struct capstan_position *position) {
    struct external_position found;
    *position = (struct capstan_position){.total = UINT64_MAX};
    if (is_over(run))
        return;
    external_position(run->external, &found);
    *position =
        (struct capstan_position){.step = found.step,
                                  .total = found.total,
                                  .updates = found.updates,
                                  .resumed = found.joined ? 2 : found.resumed,
                                  .epoch = found.epoch,
                                  .epoch_step = found.epoch_step};
}

PUBLIC int capstan_state(capstan_run *run, uint32_t number, const char *key,
                         float *data, int *found, double seconds) {
    *found = 0;
    if (is_over(run))
        return over_result(run);
    int64_t until = until_of(seconds);
    bool there = false;
    enum external_result result;
    do
        result =
            external_state(run->external, number, key, data, &there, until);
    while (is_back(run, &result, until));
    *found = there;
    return result_of(run, result, until);
}

PUBLIC int capstan_epoch(capstan_run *run, uint64_t number) {
    if (is_over(run))
        return over_result(run);
    return result_of(run, external_epoch(run->external, number, 0), TIME_NEVER);
}

PUBLIC int capstan_epoch_begun(capstan_run *run, uint64_t number,
                               uint64_t steps) {
    if (is_over(run))
        return over_result(run);
    return result_of(run, external_epoch(run->external, number, steps),
                     TIME_NEVER);
}

PUBLIC int capstan_rewinds(capstan_run *run, int rewinds) {
    if (is_over(run))
        return over_result(run);
    struct external_place place;
    struct failure why;
    external_place(run->external, &place);
    if (rewinds && place.backup_workers) {
        status_fail(
            &why, FAILURE_WRONG_CALL,
            "capstan_rewinds with strategy.backup_workers, where a late "
            "rank keeps nothing to go back to: leave it out, or set "
            "that to 0");
        return end_run(run, &why);
    }
    external_set_rewinds(run->external, rewinds != 0);
    return 0;
}

PUBLIC int capstan_is_behind(capstan_run *run) {
    return !is_over(run) && external_is_behind(run->external);
}

PUBLIC int capstan_brought(capstan_run *run, uint32_t number) {
    return !is_over(run) && external_brought(run->external, number);
}

PUBLIC int capstan_had_batch(capstan_run *run) {
    return !is_over(run) && external_had_batch(run->external);
}

PUBLIC int capstan_keep(capstan_run *run, const char *name, const void *data,
                        size_t bytes) {
    if (is_over(run))
        return over_result(run);
    return result_of(run, external_keep(run->external, name, data, bytes),
                     TIME_NEVER);
}

PUBLIC enum capstan_due capstan_due(capstan_run *run, int ending) {
    static const enum capstan_due dues[] = {
        [EXTERNAL_NOT_DUE] = CAPSTAN_NOT_DUE,
        [EXTERNAL_DUE] = CAPSTAN_DUE,
        [EXTERNAL_DUE_LEAD] = CAPSTAN_DUE_LEAD,
    };
    return is_over(run) ? CAPSTAN_NOT_DUE
                        : dues[external_due(run->external, ending)];
}

PUBLIC int capstan_kept(capstan_run *run, const char *name, const void **data,
                        size_t *bytes) {
    *data = NULL;
    *bytes = 0;
    if (is_over(run))
        return over_result(run);
    int64_t until = time_now() + RETURN_TURN;
    enum external_result result;
    do
        result = external_kept(run->external, name, data, bytes);
    while (is_back(run, &result, until));
    return result_of(run, result, until);
}

PUBLIC int capstan_checkpoint(capstan_run *run) {
    if (is_over(run))
        return over_result(run);
    return result_of(run, external_request_save(run->external), TIME_NEVER);
}

PUBLIC int capstan_push(capstan_run *run, uint32_t number, const void *data,
                        size_t bytes, enum capstan_contribution contribution) {
    static const enum contribution kinds[] = {
        [CAPSTAN_FULL] = CONTRIBUTION_FULL,
        [CAPSTAN_ZERO] = CONTRIBUTION_ZERO,
        [CAPSTAN_EMPTY] = CONTRIBUTION_EMPTY,
        [CAPSTAN_VOID] = CONTRIBUTION_OVERFLOWED,
    };
    struct failure why = {0};
    struct external_push push = {
        .parameter = number, .data = data, .bytes = bytes};
    if (is_over(run))
        return over_result(run);
    if ((unsigned)contribution < sizeof kinds / sizeof *kinds) {
        push.kind = kinds[contribution];
        return result_of(run, external_push(run->external, &push, 1),
                         TIME_NEVER);
    }
    status_fail(&why, FAILURE_WRONG_CALL, "a push of contribution %d",
                (int)contribution);
    return end_run(run, &why);
}

/* So many share their locks. */
enum { PUSHES_AT_ONCE = 64 };

PUBLIC int capstan_push_tensors(capstan_run *run, const uint32_t *numbers,
                                const void *const *data, size_t n) {
    int result = is_over(run) ? over_result(run) : 0;
    struct external_push pushes[PUSHES_AT_ONCE];
    for (size_t done = 0, count; done < n && !result; done += count) {
        count = n - done < PUSHES_AT_ONCE ? n - done : PUSHES_AT_ONCE;
        for (size_t i = 0; i < count; i++)
            pushes[i] = (struct external_push){
                numbers[done + i], CONTRIBUTION_FULL, data[done + i],
                external_bytes(run->external, numbers[done + i])};
        result = result_of(run, external_push(run->external, pushes, count),
                           TIME_NEVER);
    }
    return result;
}

PUBLIC int capstan_wait(capstan_run *run, uint32_t number, double seconds) {
    if (is_over(run))
        return over_result(run);
    int64_t until = until_of(seconds);
    enum external_result result;
    do
        result = external_wait(run->external, number, until);
    while (is_back(run, &result, until));
    return result_of(run, result, until);
}

PUBLIC int capstan_step(capstan_run *run, double loss, uint64_t samples,
                        uint64_t correct, enum capstan_outcome *outcome,
                        double seconds) {
    struct external_step step = {loss, samples, correct};
    bool ends = false;
    *outcome = CAPSTAN_GOES_ON;
    if (is_over(run))
        return over_result(run);
    int64_t until = until_of(seconds);
    enum external_result result;
    do {
        result = external_take_rewound(run->external, until);
        if (result != EXTERNAL_OVER) {
            *outcome = result ? CAPSTAN_GOES_ON : CAPSTAN_REWOUND;
            return result ? CAPSTAN_AGAIN : 0;
        }
        result = external_step(run->external, &step, &ends, until);
    } while (is_back(run, &result, until));
    if (result == EXTERNAL_DONE && ends)
        *outcome = CAPSTAN_ENDS;
    return result_of(run, result, until);
}

/* A collective that fails does not end the run. */
static int call_trainers(capstan_run *run, const struct trainer_call *call,
                         void *data, double seconds) {
    struct failure why;
    if (is_over(run))
        return over_result(run);
    int64_t until = until_of(seconds);
    enum external_result result =
        external_collective(run->external, call, data, until, &why);
    if (why.code == FAILURE_NONE)
        return result_of(run, result, until);
    pthread_mutex_lock(&run->mutex);
    if (!run->over)
        run->why = why;
    pthread_mutex_unlock(&run->mutex);
    return (int)failure_code_status(why.code);
}

PUBLIC int capstan_barrier(capstan_run *run, double seconds) {
    struct trainer_call call = {.kind = TRAINER_BARRIER};
    return call_trainers(run, &call, NULL, seconds);
}

PUBLIC int capstan_all_gather(capstan_run *run, const void *send, size_t bytes,
                              void *received, double seconds) {
    struct trainer_call call = {.kind = TRAINER_ALL_GATHER, .bytes = bytes};
    struct external_place place;
    external_place(run->external, &place);
    if (bytes)
        memmove((char *)received + place.rank * bytes, send, bytes);
    return call_trainers(run, &call, received, seconds);
}

PUBLIC int capstan_broadcast(capstan_run *run, void *data, size_t bytes,
                             uint32_t root, double seconds) {
    struct trainer_call call = {
        .kind = TRAINER_BROADCAST, .bytes = bytes, .root = root};
    return call_trainers(run, &call, data, seconds);
}

_Static_assert((int)CAPSTAN_NUMBER_UINT8 == (int)NUMBER_UINT8 &&
                   (int)CAPSTAN_REDUCE_PRODUCT == (int)REDUCTION_PRODUCT,
               "capstan.h differs from trainer_group.h");

PUBLIC int capstan_all_reduce(capstan_run *run, void *data, size_t count,
                              enum capstan_number number,
                              enum capstan_reduction reduction,
                              double seconds) {
    struct trainer_call call = {.kind = TRAINER_ALL_REDUCE,
                                .number = (uint32_t)number,
                                .reduction = (uint32_t)reduction};
    if (call.number < NUMBERS)
        call.bytes = count * number_size((enum number)number);
    return call_trainers(run, &call, data, seconds);
}

PUBLIC void capstan_interrupt(capstan_run *run, int number) {
    if (is_forked(run))
        return;
    uint64_t value = (uint64_t)number;
    int saved = errno;
    if (number != SIGUSR1 && number != SIGQUIT)
        external_interrupt(run->external);
    ssize_t written = write(run->interrupt_writer, &value, sizeof value);
    (void)written; /* a full pipe holds earlier signals */
    errno = saved;
}

struct report_text {
    char *text;
    size_t used, size;
};

static void add_line(void *context, const char *line) {
    struct report_text *to = context;
    size_t left = to->used < to->size ? to->size - to->used : 0;
    to->used +=
        (size_t)snprintf(left ? to->text + to->used : NULL, left, "%s\n", line);
}

PUBLIC int capstan_report(capstan_run *run, char *text, size_t size) {
    struct report_text to = {text, 0, size};
    if (size)
        text[0] = 0;
    json_t *object = is_forked(run) ? NULL : report_board_read(run->board);
    if (!object)
        return CAPSTAN_AGAIN;
    process_report_each_line(object, add_line, &to);
    json_decref(object);
    return to.used < size ? 0 : STATUS_CONFIG;
}

PUBLIC int capstan_end(capstan_run *run, enum capstan_end end, const char *text,
                       double seconds) {
    int64_t until = until_of(seconds);
    struct failure why = {0};
    if (is_over(run))
        return run->result;
    if (end == CAPSTAN_FAILED || end == CAPSTAN_RETRY) {
        status_fail(&why,
                    end == CAPSTAN_RETRY ? FAILURE_PEER_LOST
                                         : FAILURE_CALLER_FAILED,
                    "%s", text && *text ? text : "the script has failed");
        if (external_is_back(run->external))
            return end_run(run, &why);
        external_fail(run->external, &why);
    } else if (external_is_behind(run->external)) {
        status_fail(&why, FAILURE_PEER_LOST,
                    "the run has gone back to a checkpoint, and this rank ends "
                    "its part: start the same command again");
        return end_run(run, &why);
    } else if (external_finish(run->external, end == CAPSTAN_EARLY, until) ==
               EXTERNAL_LATE) {
        return CAPSTAN_AGAIN;
    }
    return wait_for_end(run, until);
}

PUBLIC void capstan_close(capstan_run *run) {
    if (!run || is_forked(run)) /* the parent has the run and its threads */
        return;
    if (run->started) {
        capstan_interrupt(run, SIGTERM);
        capstan_interrupt(run, SIGTERM); /* the second does not wait */
        pthread_join(run->thread, NULL);
    }
    external_close(&run->external);
    report_board_close(&run->board);
    cluster_free(&run->cluster);
    if (run->interrupt_writer >= 0)
        close(run->interrupt_writer);
    if (run->settings.interrupts >= 0)
        close(run->settings.interrupts);
    for (unsigned i = 0; i < run->options.num_sets; i++)
        free((char *)run->options.sets[i]);
    free((char *)run->options.job);
    pthread_mutex_destroy(&run->mutex);
    free(run);
}

PUBLIC const char *capstan_error(const capstan_run *run) {
    return run->why.text;
}

PUBLIC const char *capstan_error_name(const capstan_run *run) {
    return failure_code_name(run->why.code);
}

PUBLIC const char *capstan_version(void) {
    return VERSION_TEXT;
}
