/* SPDX-License-Identifier: Apache-2.0 */
/* Two threads meet here: the reducer's loads, saves and pauses (keeper_calls),
 * the communication thread takes the chief's orders and tells what came of
 * them.
 *
 * A planned round is saved without a word before, under its own number as id.
 * One that the chief asks for is agreed on first: from the question on no round
 * is entered that is above the highest which may be under way, which is the
 * answer; the chief names one from there on; the reducer is told it and goes
 * on. Handed over, it is told as held, and as written when the saver has its
 * file. When nobody trains any more there is no round to agree on: what there
 * is is held at once, and all ranks hand it over when it is to be written. */
#include "worker/exchange/allreduce/keeper.h"

#include "proto/base/free_memory.h"
#include "proto/store/checkpoint.h"
#include "proto/store/cut_done.h"
#include "worker/exchange/allreduce/keeper_parts.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* Planned rounds have the round as their id; the chief numbers the others from
 * here on. */
#define CUT_ASKED (UINT64_C(1) << 63)

static void tell(struct keeper *keeper, Capstan__Control *control) {
    keeper->settings.tell(keeper->settings.context, control);
}

/* Without a directory nobody looks for anything. */
static enum status find_folder(struct keeper *keeper, struct failure *why) {
    const struct keeper_settings *settings = &keeper->settings;
    struct claim_settings claim = {.dir = settings->plan->checkpoint_dir,
                                   .run = settings->run,
                                   .who = "rank 0",
                                   .log = settings->log};
    keeper->shares_folder = true;
    return claim.dir ? claim_take_beside(&keeper->claim, &keeper->shares_folder,
                                         &claim, why)
                     : STATUS_OK;
}

static void tell_ready(struct keeper *keeper) {
    Capstan__Ready ready = CAPSTAN__READY__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    ready.shares_folder = keeper->shares_folder;
    ready.port = lender_port(keeper->lender);
    control.body_case = CAPSTAN__CONTROL__BODY_READY;
    control.ready = &ready;
    tell(keeper, &control);
}

static enum status open_parts(struct keeper *keeper, struct failure *why) {
    const struct keeper_settings *settings = &keeper->settings;
    const struct job *job = settings->job;
    struct saver_settings saver = {
        .layout = settings->plan->layout,
        .num_tensors = 1 + rule_slots(&job->optimizer),
        .checkpoint_dir = settings->plan->checkpoint_dir,
        .claim = keeper->claim,
        .run = settings->run,
        .copy_bytes = job->checkpoint.copy_mb ? job->checkpoint.copy_mb << 20
                                              : free_memory_half(),
    };
    struct lender_settings lender = {
        .zmq = settings->zmq,
        .log = settings->log,
        .inside = settings->inside,
        .run = settings->run,
        .incarnation = settings->incarnation,
        .chief = settings->chief,
        .layout = settings->plan->layout,
        .weights = (float *)buffer_data(settings->weights),
        .offsets = settings->offsets,
    };
    enum status status = saver_open(&keeper->saver, &saver, why);
    return status ? status : lender_open(&keeper->lender, &lender, why);
}

enum status keeper_open(struct keeper **out,
                        const struct keeper_settings *settings,
                        struct failure *why) {
    struct keeper *keeper = calloc(1, sizeof *keeper);
    *out = NULL;
    if (!keeper)
        return status_fail(why, STATUS_RETRY, "no memory for checkpoints");
    keeper->settings = *settings;
    keeper->calls = keeper_saves_calls(keeper);
    keeper->entered = settings->plan->rounds.start + 1;
    keeper->limit = UINT64_MAX;
    gethostname(keeper->host, sizeof keeper->host - 1);
    pthread_mutex_init(&keeper->mutex, NULL);
    pthread_cond_init(&keeper->changed, NULL);
    keeper->descriptor = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    enum status status =
        keeper->descriptor < 0
            ? status_errno(why, STATUS_FAILED, errno, "cannot open an eventfd")
            : find_folder(keeper, why);
    if (!status)
        status = open_parts(keeper, why);
    if (status) {
        keeper_close(&keeper);
        return status;
    }
    tell_ready(keeper);
    *out = keeper;
    return STATUS_OK;
}

void keeper_cancel(struct keeper *keeper) {
    pthread_mutex_lock(&keeper->mutex);
    keeper->cancelled = true;
    pthread_cond_broadcast(&keeper->changed);
    pthread_mutex_unlock(&keeper->mutex);
    saver_cancel(keeper->saver);
}

void keeper_close(struct keeper **where) {
    struct keeper *keeper = *where;
    *where = NULL;
    if (!keeper)
        return;
    saver_close(&keeper->saver);
    lender_close(&keeper->lender);
    checkpoint_reader_close(&keeper->reader);
    manifest_clear(&keeper->manifest);
    claim_release(&keeper->claim);
    if (keeper->descriptor >= 0)
        close(keeper->descriptor);
    pthread_mutex_destroy(&keeper->mutex);
    pthread_cond_destroy(&keeper->changed);
    free(keeper);
}

const struct reducer_keeper *keeper_calls(const struct keeper *keeper) {
    return &keeper->calls;
}

void keeper_attach(struct keeper *keeper, const struct keeper_callbacks *callbacks) {
    keeper->callbacks = *callbacks;
    lender_settle(keeper->lender);
}

static void tell_done(struct keeper *keeper, Capstan__CutDone done) {
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    control.body_case = CAPSTAN__CONTROL__BODY_CUT_DONE;
    control.cut_done = &done;
    tell(keeper, &control);
}

/* The round under way may have told the others already what it is: only the
 * next one can still be one to save. */
static void ask(struct keeper *keeper, const Capstan__CutAsk *order) {
    Capstan__CutMark mark = CAPSTAN__CUT_MARK__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    uint64_t total = keeper->settings.plan->rounds.total;
    pthread_mutex_lock(&keeper->mutex);
    keeper->limit = keeper->entered;
    mark.highest = keeper->entered < total ? keeper->entered : total;
    pthread_mutex_unlock(&keeper->mutex);
    mark.id = order->id;
    control.body_case = CAPSTAN__CONTROL__BODY_CUT_MARK;
    control.cut_mark = &mark;
    tell(keeper, &control);
}

/* Nobody trains any more: reads are answered with the weights as they lie, and
 * what is to be written is handed over by all ranks now. */
static void cut_now(struct keeper *keeper, const Capstan__Cut *order) {
    lender_show(keeper->lender, order->id);
    if (!order->write) {
        tell_done(keeper,
                  cut_done_held(order->id, true,
                                keeper->callbacks.round(keeper->callbacks.context)));
        return;
    }
    pthread_mutex_lock(&keeper->mutex);
    keeper->asked_id = order->id;
    keeper->asked_round = keeper->callbacks.round(keeper->callbacks.context);
    keeper->asked_held = true;
    keeper->limit = UINT64_MAX;
    pthread_cond_broadcast(&keeper->changed);
    pthread_mutex_unlock(&keeper->mutex);
    keeper->callbacks.save_now(keeper->callbacks.context);
}

/* The id of a planned round says that the asked one falls on it: it only goes
 * on. */
static void cut(struct keeper *keeper, const Capstan__Cut *order) {
    if (order->id >= CUT_ASKED && !order->round) {
        cut_now(keeper, order);
        return;
    }
    if (order->id >= CUT_ASKED && order->write)
        keeper->callbacks.save(keeper->callbacks.context, order->round);
    pthread_mutex_lock(&keeper->mutex);
    if (order->id >= CUT_ASKED) {
        keeper->asked_id = order->id;
        keeper->asked_round = order->round;
        keeper->asked_held = false;
    }
    keeper->limit = UINT64_MAX;
    pthread_cond_broadcast(&keeper->changed);
    pthread_mutex_unlock(&keeper->mutex);
}

/* What the chief cannot reach, because the folder is not shared. */
static void keep(struct keeper *keeper, const Capstan__Keep *order) {
    const char *dir = keeper->settings.plan->checkpoint_dir;
    struct failure why;
    if (!keeper->shares_folder && dir && claim_holds(keeper->claim) &&
        checkpoint_keep(dir, order->steps, order->n_steps, &why))
        log_warning(keeper->settings.log,
                    "old checkpoints were not removed: %s", why.text);
}

void keeper_obey(struct keeper *keeper, const Capstan__Control *order) {
    if (order->body_case == CAPSTAN__CONTROL__BODY_KEEP)
        keep(keeper, order->keep);
    if (!keeper->callbacks.round)
        return;
    if (order->body_case == CAPSTAN__CONTROL__BODY_CUT_ASK)
        ask(keeper, order->cut_ask);
    else if (order->body_case == CAPSTAN__CONTROL__BODY_CUT)
        cut(keeper, order->cut);
    else if (order->body_case == CAPSTAN__CONTROL__BODY_CUT_END)
        lender_show(keeper->lender, 0);
}

void keeper_poll_items(struct keeper *keeper, zmq_pollitem_t *items) {
    items[0] = lender_poll_item(keeper->lender);
    items[1] = (zmq_pollitem_t){NULL, keeper->descriptor, ZMQ_POLLIN, 0};
    items[2] =
        (zmq_pollitem_t){NULL, saver_descriptor(keeper->saver), ZMQ_POLLIN, 0};
}

static void tell_written(struct keeper *keeper,
                         const struct saver_result *result) {
    const char *holder = keeper->shares_folder ? "" : keeper->host;
    Capstan__CutDone done =
        cut_done_written(result->id, &result->info, holder, result->seconds);
    Capstan__LossScaler scaler = plan_scaler_message(&result->scaler);
    done.scaler = &scaler;
    tell_done(keeper, done);
}

/* A round is told as held before it is told as written. */
static void tell_handed_over(struct keeper *keeper) {
    eventfd_t count;
    eventfd_read(keeper->descriptor, &count);
    pthread_mutex_lock(&keeper->mutex);
    uint64_t held = keeper->held, skipped = keeper->skipped;
    uint64_t round = keeper->asked_round; /* the next is asked after this */
    keeper->held = keeper->skipped = 0;
    pthread_mutex_unlock(&keeper->mutex);
    if (held)
        tell_done(keeper, cut_done_held(held, true, round));
    if (skipped)
        tell_done(
            keeper,
            cut_done_failed(skipped, "an earlier one was still being written"));
}

void keeper_step(struct keeper *keeper) {
    struct saver_result result;
    lender_step(keeper->lender);
    tell_handed_over(keeper);
    if (!saver_done(keeper->saver, &result))
        return;
    if (result.written) {
        tell_written(keeper, &result);
        return;
    }
    log_error(keeper->settings.log, "a checkpoint was not written: %s",
              result.why.text);
    tell_done(keeper, cut_done_failed(result.id, result.why.text));
}
