/* SPDX-License-Identifier: Apache-2.0 */
/* Each call begins with what every rank calls, in rank order: a difference is
 * named on all of them before any of the data travels.
 *
 * A rank that has joined again finds the others in the next generation of the
 * group, of which the chief tells all ranks. Its keys and its count of calls
 * are its own, so that those of before mean nothing in it. A rank that waits
 * for the others in its first step says so: they do not wait for its call
 * before they are there. */
#include "worker/collective/trainer_group.h"

#include "core/base/time.h"
#include "core/base/waiter.h"
#include "proto/messages/message.h"
#include "worker/collective/group.h"
#include "worker/collective/reduce_numbers.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    PART_BYTES = 1 << 20,
    KEY_BYTES = 300,
    ROLL_KEY_BYTES = 64,
    CALL_BYTES = 120
};
static const double ROLL_SECONDS = 2; /* for those that wait to say so */
static const double GENERATION_SECONDS = 0.2; /* between looks for the next */
#define HERE_KEY "here/%u"
static const char *const step_keys[] = {RENDEZVOUS_START_KEY,
                                        RENDEZVOUS_STEP_KEY};

enum call_state { CALL_NONE, CALL_RUNS, CALL_ENDED };

struct trainer_group {
    struct collective_settings settings;
    struct collective_store store; /* the settings', of the generation */
    const struct collective_store *all;
    struct group group;
    struct waiter waiter;
    pthread_t thread;
    bool started, connected;
    uint32_t generation; /* in which it is connected, or was */
    enum call_state state;
    struct trainer_call call;
    struct trainer_call *calls; /* of each rank */
    uint64_t count;             /* calls begun in the generation */
    uint64_t step;              /* of the call: that the caller has ended */
    bool again;                 /* the call failed, and the next may not */
    uint32_t said;              /* generation in which it said what it awaits */
    _Atomic uint64_t ended;     /* the caller's last step */
    uint32_t met;               /* first ranks that are in the first of them */
    char *data;                 /* of the call, of all ranks if it gathers */
    char *parts;                /* of all ranks, of one that reduces */
    struct failure why;         /* code FAILURE_NONE: all went well so far */
};

static size_t data_bytes(const struct trainer_group *group,
                         const struct trainer_call *call) {
    bool gathers = call->kind == TRAINER_ALL_GATHER;
    return call->bytes * (gathers ? group->settings.size : 1);
}

static const char *prefixed(const struct trainer_group *group, const char *key,
                            char *text) {
    snprintf(text, KEY_BYTES, RENDEZVOUS_PREFIX "%s", group->generation, key);
    return text;
}

static enum status trainers_set(void *context, const char *key,
                                const void *value, size_t size,
                                struct failure *why) {
    const struct trainer_group *group = context;
    char text[KEY_BYTES];
    return group->all->set(group->all->context, prefixed(group, key, text),
                           value, size, why);
}

static enum status trainers_get(void *context, const char *key, int64_t until,
                                void **value, size_t *size,
                                struct failure *why) {
    const struct trainer_group *group = context;
    char text[KEY_BYTES];
    return group->all->get(group->all->context, prefixed(group, key, text),
                           until, value, size, why);
}

static bool trainers_cancelled(void *context) {
    struct trainer_group *group = context;
    return waiter_is_cancelled(&group->waiter) ||
           group->all->is_cancelled(group->all->context);
}

struct trainer_group *trainer_group_open(
    const struct collective_settings *settings) {
    struct trainer_group *group = calloc(1, sizeof *group);
    if (!group)
        return NULL;
    group->calls = calloc(settings->size, sizeof *group->calls);
    if (!group->calls) {
        free(group);
        return NULL;
    }
    group->settings = *settings;
    group->all = settings->store;
    group->store = (struct collective_store){group, trainers_set, trainers_get,
                                             trainers_cancelled};
    group->settings.store = &group->store;
    waiter_open(&group->waiter);
    group_open(&group->group, NULL, settings->rank, settings->size);
    return group;
}

void trainer_group_cancel(struct trainer_group *group) {
    waiter_cancel(&group->waiter);
    group_abort(&group->group);
}

void trainer_group_close(struct trainer_group **where) {
    struct trainer_group *group = *where;
    *where = NULL;
    if (!group)
        return;
    trainer_group_cancel(group);
    if (group->started)
        pthread_join(group->thread, NULL);
    group_close(&group->group);
    waiter_close(&group->waiter);
    free(group->data);
    free(group->parts);
    free(group->calls);
    free(group);
}

/* The newest generation that the chief has told of. */
static uint32_t newest_generation(const struct trainer_group *group) {
    const struct collective_store *all = group->all;
    struct failure unused;
    uint32_t number = group->generation;
    char key[KEY_BYTES];
    for (;;) {
        void *value = NULL;
        size_t size;
        snprintf(key, sizeof key, RENDEZVOUS_GENERATION_KEY, number + 1);
        if (all->get(all->context, key, 0, &value, &size, &unused))
            return number;
        free(value);
        number++;
    }
}

/* Says in the newest GENERATION that this rank waits for STEP of the others. */
static void say_awaited(const struct trainer_group *group, uint32_t generation,
                        uint64_t step, bool starts) {
    struct failure unused;
    char key[KEY_BYTES], text[24];
    snprintf(key, sizeof key, step_keys[!starts], generation,
             group->settings.rank);
    int length = snprintf(text, sizeof text, "%llu", (unsigned long long)step);
    enum status ignored = group->all->set(group->all->context, key, text,
                                          (size_t)length, &unused);
    (void)ignored;
}

void trainer_group_awaits(struct trainer_group *group, uint64_t step,
                          bool starts) {
    const struct trainer_group first = {.all = group->all};
    say_awaited(group, newest_generation(&first), step, starts);
}

void trainer_group_note_step(struct trainer_group *group, uint64_t step) {
    atomic_store(&group->ended, step);
}

static bool is_outdated(const struct trainer_group *group) {
    return newest_generation(group) > group->generation;
}

/* Is a rank gone since the generation began? Then *RANK is, and the next begins
 * once it has joined again. */
static bool has_lost(const struct trainer_group *group, unsigned *rank) {
    const struct collective_store *all = group->all;
    struct failure unused;
    char key[KEY_BYTES], text[16] = "";
    void *value = NULL;
    size_t size = 0;
    snprintf(key, sizeof key, RENDEZVOUS_LOST_KEY, group->generation);
    if (!group->generation ||
        all->get(all->context, key, 0, &value, &size, &unused))
        return false;
    memcpy(text, value, size < sizeof text ? size : sizeof text - 1);
    free(value);
    return sscanf(text, "%u", rank) == 1;
}

static enum status check_lost(const struct trainer_group *group,
                              struct failure *why) {
    unsigned rank;
    return has_lost(group, &rank)
               ? status_fail(why, FAILURE_PEER_LOST,
                             "rank %u was lost again; calls work once it has "
                             "joined again",
                             rank)
               : STATUS_OK;
}

/* The last step for which RANK has said, in any generation, that it waits; 0:
 * it has said none. */
static uint64_t awaited_by(const struct trainer_group *group, uint32_t rank) {
    const struct collective_store *all = group->all;
    struct failure unused;
    char key[KEY_BYTES], text[24];
    uint64_t last = 0;
    for (uint32_t g = 1; g <= group->generation; g++)
        for (int k = 0; k < 2; k++) {
            void *value = NULL;
            size_t size = 0;
            snprintf(key, sizeof key, step_keys[k], g, rank);
            if (all->get(all->context, key, 0, &value, &size, &unused))
                continue;
            snprintf(text, sizeof text, "%.*s", (int)size, (char *)value);
            free(value);
            uint64_t step = strtoull(text, NULL, 10);
            last = step > last ? step : last;
        }
    return last;
}

/* Does RANK, which has joined again, wait for a step of this rank? */
static enum status check_step_of(struct trainer_group *group, uint32_t rank,
                                 struct failure *why) {
    uint64_t awaited = awaited_by(group, rank);
    group->again = awaited > group->step;
    return group->again
               ? status_fail(
                     why, FAILURE_PEER_LOST,
                     "rank %u has joined again and waits for step %llu; "
                     "calls work once this rank has taken it",
                     rank, (unsigned long long)awaited)
               : STATUS_OK;
}

/* As trainers_get of what RANK sets, which ends too once the generation is
 * outdated or lacks a rank, RANK waits for this one, or the run ends. */
static enum status get_in_generation(struct trainer_group *group, uint32_t rank,
                                     const char *key, int64_t until,
                                     void **value, size_t *size,
                                     struct failure *why) {
    int64_t look = 0;
    for (;;) {
        bool is_last = look >= until;
        enum status status =
            trainers_get(group, key, is_last ? until : look, value, size, why);
        if (status != STATUS_RETRY || is_last || is_outdated(group) ||
            trainers_cancelled(group))
            return status;
        *why = (struct failure){.code = FAILURE_NONE};
        status = check_lost(group, why);
        if (!status)
            status = check_step_of(group, rank, why);
        if (status)
            return status;
        look = time_now() + time_from_seconds(GENERATION_SECONDS);
    }
}

/* How long a rank waits for the others' call. Where they are to connect anew
 * some may have failed in the call and be in the next step, whose deadline is
 * timeouts.step. */
static double call_limit(const struct trainer_group *group) {
    bool again = group->generation && !group->connected;
    return again ? group->settings.timeout / 2 : group->settings.timeout;
}

static const char *limit_name(const struct trainer_group *group) {
    return call_limit(group) < group->settings.timeout
               ? "half of timeouts.step, in which ranks connect anew"
               : "timeouts.step";
}

/* A rank that joins late has missed what the others set before: each says that
 * it is here, and again once it knows that all have joined. */
static enum status meet(struct trainer_group *group, int64_t until,
                        struct failure *why) {
    const struct collective_settings *settings = &group->settings;
    char key[32];
    enum status status = STATUS_OK;
    for (uint32_t r = 0; !status && r <= settings->size + 1; r++) {
        bool sets = r == 0 || r > settings->size;
        uint32_t rank = sets ? settings->rank : r - 1;
        void *value = NULL;
        size_t size;
        snprintf(key, sizeof key, HERE_KEY, rank);
        status = sets ? trainers_set(group, key, "", 0, why)
                      : get_in_generation(group, rank, key, until, &value,
                                          &size, why);
        free(value);
        if (status == STATUS_RETRY && !sets && why->code != FAILURE_PEER_LOST)
            status_fail(why, FAILURE_PEER_SILENT,
                        "rank %u has called no collective, nor anything after "
                        "it, within %s (%g s)",
                        rank, limit_name(group), call_limit(group));
        if (!status && !sets)
            group->met = r;
    }
    return status;
}

static enum status connect_trainers(struct trainer_group *group,
                                    struct failure *why) {
    enum status status = group_find_backend(&group->group.ops, "gloo", why);
    if (status)
        return status;
    int64_t until = TIME_NEVER; /* one limit for all that begin meanwhile */
    do {
        group->generation = newest_generation(group);
        group->met = 0;
        int64_t limit = time_now() + time_from_seconds(call_limit(group));
        until = limit < until ? limit : until;
        status = meet(group, until, why);
    } while (status == STATUS_RETRY && is_outdated(group));
    if (!status)
        status = check_lost(group, why);
    if (!status)
        status = group_connect(&group->group, &group->settings, why);
    group->connected = !status;
    group->count = 0;
    return status;
}

static void leave_generation(struct trainer_group *group) {
    group_disconnect(&group->group);
    group->connected = false;
}

/* What a rank has set in a generation that has not connected stays: the ranks
 * meet in the next. The first is left as it is, as all have yet to come. */
static void ask_for_next_generation(struct trainer_group *group) {
    struct failure unused;
    unsigned rank;
    char key[KEY_BYTES];
    if (group->connected || !group->generation || group->again ||
        has_lost(group, &rank))
        return;
    snprintf(key, sizeof key, RENDEZVOUS_AGAIN_KEY, group->generation);
    enum status ignored =
        group->all->set(group->all->context, key, "", 0, &unused);
    (void)ignored;
}

static void describe_call(const struct trainer_call *call, char *text,
                          size_t size) {
    static const char *const kinds[] = {"barrier", "all_gather", "broadcast",
                                        "all_reduce"};
    static const char *const numbers[] = {"float32", "float64", "int8", "int16",
                                          "int32",   "int64",   "uint8"};
    static const char *const reductions[] = {"sum", "mean", "min", "max",
                                             "product"};
    const char *kind =
        call->kind <= TRAINER_ALL_REDUCE ? kinds[call->kind] : "?";
    if (call->kind == TRAINER_BARRIER)
        snprintf(text, size, "%s", kind);
    else if (call->kind == TRAINER_ALL_REDUCE && call->number < NUMBERS &&
             call->reduction < REDUCTIONS)
        snprintf(text, size, "%s of %llu bytes of %s, %s", kind,
                 (unsigned long long)call->bytes, numbers[call->number],
                 reductions[call->reduction]);
    else if (call->kind == TRAINER_BROADCAST)
        snprintf(text, size, "%s of %llu bytes from rank %u", kind,
                 (unsigned long long)call->bytes, call->root);
    else
        snprintf(text, size, "%s of %llu bytes", kind,
                 (unsigned long long)call->bytes);
}

static enum status broadcast_bytes(struct trainer_group *group, void *data,
                                   size_t bytes, uint32_t root,
                                   struct failure *why) {
    struct group *ranks = &group->group;
    return bytes ? ranks->ops->broadcast(ranks->group, data, bytes, root, why)
                 : STATUS_OK;
}

/* Do all ranks call the same? */
static enum status compare_calls(struct trainer_group *group,
                                 struct failure *why) {
    const struct trainer_call *own = &group->call;
    enum status status = STATUS_OK;
    group->calls[group->settings.rank] = *own;
    for (uint32_t r = 0; !status && r < group->settings.size; r++)
        status = broadcast_bytes(group, &group->calls[r], sizeof *group->calls,
                                 r, why);
    for (uint32_t r = 0; !status && r < group->settings.size; r++) {
        char first[CALL_BYTES], other[CALL_BYTES];
        if (!memcmp(&group->calls[r], &group->calls[0], sizeof *own))
            continue;
        describe_call(&group->calls[0], first, sizeof first);
        describe_call(&group->calls[r], other, sizeof other);
        status = status_fail(why, FAILURE_WRONG_CALL,
                             "collectives differ: rank 0 calls %s, rank %u %s; "
                             "all ranks call the same in the same order",
                             first, r, other);
    }
    return status;
}

/* PARTS, of BYTES each, are those of all ranks afterwards. */
static enum status gather_parts(struct trainer_group *group, char *parts,
                                size_t bytes, struct failure *why) {
    enum status status = STATUS_OK;
    for (uint32_t r = 0; !status && r < group->settings.size; r++)
        status = broadcast_bytes(group, parts + r * bytes, bytes, r, why);
    return status;
}

static enum status reduce_parts(struct trainer_group *group,
                                struct failure *why) {
    const struct trainer_call *call = &group->call;
    const struct collective_settings *settings = &group->settings;
    enum status status = STATUS_OK;
    if (!group->parts)
        group->parts = malloc((size_t)PART_BYTES * settings->size);
    if (!group->parts)
        return status_fail(why, FAILURE_NO_MEMORY, "no memory for all_reduce");
    for (uint64_t at = 0; !status && at < call->bytes; at += PART_BYTES) {
        size_t left = call->bytes - at;
        size_t bytes = left < PART_BYTES ? left : PART_BYTES;
        memcpy(group->parts + settings->rank * bytes, group->data + at, bytes);
        status = gather_parts(group, group->parts, bytes, why);
        if (!status)
            reduce_numbers(call, group->data + at, group->parts, bytes,
                           settings->size);
    }
    return status;
}

static enum status run_trainer_call(struct trainer_group *group,
                                    struct failure *why) {
    const struct trainer_call *call = &group->call;
    if (is_outdated(group))
        leave_generation(group);
    enum status status =
        group->connected ? STATUS_OK : connect_trainers(group, why);
    if (!status)
        status = compare_calls(group, why);
    if (status || call->kind == TRAINER_BARRIER)
        return status;
    if (call->kind == TRAINER_ALL_GATHER)
        return gather_parts(group, group->data, call->bytes, why);
    if (call->kind == TRAINER_BROADCAST)
        return broadcast_bytes(group, group->data, call->bytes, call->root,
                               why);
    return reduce_parts(group, why);
}

/* Ranks in a text: "0, 2, 3"; after ten of them "...". */
struct ranks_text {
    char text[128];
    uint32_t count;
};

static void add_rank(struct ranks_text *ranks, uint32_t rank) {
    size_t used = strlen(ranks->text);
    if (ranks->count++ < 10)
        snprintf(ranks->text + used, sizeof ranks->text - used, "%s%u",
                 used ? ", " : "", rank);
    else if (ranks->count == 11)
        snprintf(ranks->text + used, sizeof ranks->text - used, ", ...");
}

/* The key by which RANK says that it is in the present call: the first, or one
 * in which it has waited in vain. */
static void roll_key(const struct trainer_group *group, uint32_t rank,
                     char *key) {
    if (group->connected)
        snprintf(key, ROLL_KEY_BYTES, "waits/%llu/%u",
                 (unsigned long long)group->count, rank);
    else
        snprintf(key, ROLL_KEY_BYTES, HERE_KEY, rank);
}

/* A rank that has waited in vain says in which call, and so do the others that
 * wait: those that say nothing have not called. That it is in the first call it
 * says again, for those that have joined since. */
static void call_roll(struct trainer_group *group, const char *own,
                      struct failure *why) {
    const struct collective_settings *settings = &group->settings;
    struct ranks_text here = {0}, absent = {0};
    struct failure unused = {0};
    char key[ROLL_KEY_BYTES], other[CALL_BYTES + 40] = "";
    int64_t until = time_now() + time_from_seconds(ROLL_SECONDS);
    roll_key(group, settings->rank, key);
    size_t said = group->connected ? strlen(own) : 0;
    if (trainers_set(group, key, own, said, &unused))
        return;
    for (uint32_t r = 0; r < settings->size; r++) {
        void *value = NULL;
        size_t size = 0;
        roll_key(group, r, key);
        bool says = r == settings->rank ||
                    (!group->connected && r < group->met) ||
                    !trainers_get(group, key, until, &value, &size, &unused);
        add_rank(says ? &here : &absent, r);
        if (size && (size != strlen(own) || memcmp(value, own, size)))
            snprintf(other, sizeof other, ", of which rank %u called %.*s", r,
                     (int)(size < CALL_BYTES ? size : CALL_BYTES),
                     (const char *)value);
        free(value);
    }
    if (absent.count)
        status_fail(why, FAILURE_PEER_SILENT,
                    "rank%s %s did not call it within %s (%g s), and rank%s %s "
                    "did%s",
                    absent.count > 1 ? "s" : "", absent.text, limit_name(group),
                    call_limit(group), here.count > 1 ? "s" : "", here.text,
                    other);
    else if (group->connected)
        status_fail(why, FAILURE_PEER_SILENT,
                    "all ranks have called it%s, and it has not ended within "
                    "timeouts.step (%g s): one called it late, or a network is "
                    "slow",
                    other, settings->timeout);
}

/* The failure's text says in what call it came. */
static void note_failed_call(struct trainer_group *group, struct failure *why) {
    char text[CALL_BYTES];
    describe_call(&group->call, text, sizeof text);
    if (why->code == FAILURE_PEER_SILENT)
        call_roll(group, text, why);
    status_context(why, "%s", text);
}

/* After a call that failed the caller may be in another step when the next
 * generation begins, and wait there for a rank that is in the call. */
static void look_for_next(struct trainer_group *group) {
    uint64_t ended = atomic_load(&group->ended);
    uint32_t newest = newest_generation(group);
    if (newest == group->said || newest <= group->generation ||
        ended <= group->step)
        return;
    group->said = newest;
    say_awaited(group, newest, ended, false);
}

static void await_call(struct trainer_group *group) {
    bool looks = group->why.code != FAILURE_NONE;
    int64_t look = time_now() + time_from_seconds(GENERATION_SECONDS);
    waiter_wait(&group->waiter, looks ? look : TIME_NEVER, NULL);
    if (looks && group->state != CALL_RUNS)
        look_for_next(group);
}

static void *serve_trainer_calls(void *argument) {
    struct trainer_group *group = argument;
    waiter_enter(&group->waiter);
    while (!group->waiter.cancelled) {
        if (group->state != CALL_RUNS) {
            await_call(group);
            continue;
        }
        waiter_leave(&group->waiter);
        struct failure why = {0};
        group->count++;
        if (run_trainer_call(group, &why)) {
            note_failed_call(group, &why);
            ask_for_next_generation(group);
        }
        waiter_enter(&group->waiter);
        if (why.code != FAILURE_NONE && group->waiter.cancelled)
            continue; /* the caller is told how the run ended */
        group->why = why;
        group->state = CALL_ENDED;
        pthread_cond_broadcast(&group->waiter.changed);
    }
    waiter_leave(&group->waiter);
    group_disconnect(&group->group);
    return NULL;
}

/* The thread takes no signal of the caller's. */
static enum status start_trainer_calls(struct trainer_group *group,
                                       struct failure *why) {
    sigset_t all, before;
    if (group->started)
        return STATUS_OK;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error =
        pthread_create(&group->thread, NULL, serve_trainer_calls, group);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    group->started = !error;
    return error ? status_errno(why, FAILURE_SYSTEM_REFUSED, error,
                                "cannot start a thread for collectives")
                 : STATUS_OK;
}

/* The mutex is held. */
static enum status begin_trainer_call(struct trainer_group *group,
                                      const struct trainer_call *call,
                                      const char *data, uint64_t step,
                                      struct failure *why) {
    size_t bytes = data_bytes(group, call);
    if (group->state != CALL_NONE)
        return memcmp(&group->call, call, sizeof *call)
                   ? status_fail(why, FAILURE_WRONG_CALL,
                                 "a collective is called before the last one "
                                 "is complete")
                   : STATUS_OK;
    *why = group->why;
    if (why->code != FAILURE_NONE && !group->again && !is_outdated(group))
        return failure_code_status(why->code);
    group->again = false;
    *why = (struct failure){.code = FAILURE_NONE};
    char *copy = realloc(group->data, bytes ? bytes : 1);
    if (!copy)
        return status_fail(why, FAILURE_NO_MEMORY, "no memory for %zu bytes",
                           bytes);
    group->data = copy;
    if (bytes)
        memcpy(copy, data, bytes);
    group->call = *call;
    group->step = step;
    enum status status = start_trainer_calls(group, why);
    if (!status)
        group->state = CALL_RUNS;
    return status;
}

/* The mutex is held. */
static enum trainer_call_result await_trainer_call(struct trainer_group *group,
                                                   void *data, int64_t until,
                                                   struct failure *why) {
    while (group->state == CALL_RUNS &&
           waiter_wait(&group->waiter, until, NULL))
        ;
    if (group->state == CALL_RUNS)
        return group->waiter.cancelled ? TRAINER_CALL_OVER : TRAINER_CALL_LATE;
    group->state = CALL_NONE;
    *why = group->why;
    if (why->code != FAILURE_NONE)
        return TRAINER_CALL_FAILED;
    size_t bytes = data_bytes(group, &group->call);
    if (bytes)
        memcpy(data, group->data, bytes);
    return TRAINER_CALL_DONE;
}

static enum status check_trainer_call(const struct trainer_group *group,
                                      const struct trainer_call *call,
                                      struct failure *why) {
    if (call->root >= group->settings.size)
        return status_fail(why, FAILURE_WRONG_CALL,
                           "a broadcast from rank %u in a run of %u trainers",
                           call->root, group->settings.size);
    if (call->number >= NUMBERS || call->reduction >= REDUCTIONS)
        return status_fail(why, FAILURE_WRONG_CALL,
                           "an all_reduce of type %u by reduction %u",
                           call->number, call->reduction);
    return call->reduction == REDUCTION_MEAN && call->number > NUMBER_FLOAT64
               ? status_fail(why, FAILURE_WRONG_CALL,
                             "an all_reduce of whole numbers by mean: reduce "
                             "them by sum, or as floating point")
               : STATUS_OK;
}

enum trainer_call_result trainer_group_call(struct trainer_group *group,
                                            const struct trainer_call *call,
                                            void *data, uint64_t step,
                                            int64_t until,
                                            struct failure *why) {
    if (check_trainer_call(group, call, why))
        return TRAINER_CALL_FAILED;
    if (group->settings.size == 1)
        return TRAINER_CALL_DONE;
    waiter_enter(&group->waiter);
    enum trainer_call_result result =
        begin_trainer_call(group, call, data, step, why) ? TRAINER_CALL_FAILED
                                                         : TRAINER_CALL_DONE;
    pthread_cond_broadcast(&group->waiter.changed);
    if (!result)
        result = await_trainer_call(group, data, until, why);
    waiter_leave(&group->waiter);
    return result;
}
