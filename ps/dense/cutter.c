/* SPDX-License-Identifier: Apache-2.0 */
/* A cut has an id: of a round that stands in the plan its number, of one that
 * the chief asks for a number from 2^63 on. Snapshots begin with the first of
 * their blocks that the exchange says is there, and are complete with the
 * last. A planned one is written at once and told when its file stands; an
 * asked one is told as held first, and written if and when the chief orders
 * it, as with staleness it is known by then at which step it is. */
#include "ps/dense/cutter.h"

#include "proto/base/free_memory.h"
#include "proto/store/checkpoint.h"
#include "proto/store/claim.h"
#include "proto/store/cut_done.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Snapshots of planned rounds have the round as their id; the chief numbers
 * the others from CUT_ASKED on. */
#define CUT_ASKED (UINT64_C(1) << 63)
enum { PATH_BYTES = 4096 };

/* A ps decides nothing about cuts but to leave out a planned one: it answers
 * the chief's orders, and each answer is counted there (cut_round.h). */
struct cutter {
    struct cutter_settings settings;
    struct service *service;
    struct snapshots *snapshots;
    uint64_t asked_id, asked_round; /* synchronous cut under way */
    bool asked_keep, asked_write;
    uint64_t skipped; /* planned round that found the writer busy, or failed */
    bool said_full;
    char host[256];
    bool shares_folder;
    struct claim *claim; /* NULL: there is no directory */
};

/* Without a directory nobody looks for anything. */
static enum status find_folder(struct cutter *cutter, struct failure *why) {
    const struct cutter_settings *settings = &cutter->settings;
    const char *dir = settings->plan->checkpoint_dir;
    char who[32];
    cutter->shares_folder = true;
    if (!dir)
        return STATUS_OK;
    snprintf(who, sizeof who, "ps %u", settings->index);
    struct claim_settings claim = {.dir = dir,
                                   .run = member_run(settings->member),
                                   .who = who,
                                   .log = settings->log};
    return claim_take_beside(&cutter->claim, &cutter->shares_folder, &claim,
                             why);
}

enum status cutter_open(struct cutter **out,
                        const struct cutter_settings *settings,
                        struct failure *why) {
    struct cutter *cutter = calloc(1, sizeof *cutter);
    if (!cutter)
        return status_fail(why, STATUS_RETRY, "no memory for checkpoints");
    cutter->settings = *settings;
    if (!cutter->settings.copy_bytes)
        cutter->settings.copy_bytes = free_memory_half();
    gethostname(cutter->host, sizeof cutter->host - 1);
    enum status status = find_folder(cutter, why);
    if (status)
        cutter_close(&cutter);
    *out = cutter;
    return status;
}

enum status cutter_attach(struct cutter *cutter, struct service *service,
                          struct failure *why) {
    cutter->service = service;
    enum status status =
        snapshots_open(&cutter->snapshots, service_shard(service),
                       service_exchange(service), why);
    if (!status)
        service_snapshots(service, cutter->snapshots);
    return status;
}

void cutter_close(struct cutter **where) {
    if (!*where)
        return;
    snapshots_close(&(*where)->snapshots);
    claim_release(&(*where)->claim);
    free(*where);
    *where = NULL;
}

bool cutter_shares_folder(const struct cutter *cutter) {
    return cutter->shares_folder;
}

static void tell_done(struct cutter *cutter, Capstan__CutDone done) {
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    control.body_case = CAPSTAN__CONTROL__BODY_CUT_DONE;
    control.cut_done = &done;
    member_tell(cutter->settings.member, &control);
}

static void tell_failed(struct cutter *cutter, uint64_t id, const char *text) {
    tell_done(cutter, cut_done_failed(id, text));
}

static bool holds_first(const struct cutter *cutter) {
    return cutter->settings.plan->block_ps[0] == cutter->settings.index;
}

/* The snapshot is held: with STEP, that of its first block, if the plan's first
 * is mine. */
static void tell_held(struct cutter *cutter, uint64_t id, uint64_t step) {
    tell_done(cutter, cut_done_held(id, holds_first(cutter), step));
}

static void order_write(struct cutter *cutter, struct snapshot *snapshot,
                        uint64_t step) {
    char folder[PATH_BYTES], name[128];
    const struct plan *plan = cutter->settings.plan;
    checkpoint_folder(plan->checkpoint_dir, step, folder, sizeof folder);
    checkpoint_shard_name(cutter->settings.index, plan->num_ps,
                          member_run(cutter->settings.member), name,
                          sizeof name);
    snapshot_write(snapshot, cutter->claim, folder, name);
}

/* A checkpoint that is due while one is being written is left out, but never
 * the last one. */
static struct snapshot *begin_planned(struct cutter *cutter, uint64_t round) {
    if (cutter->skipped == round)
        return NULL;
    if (snapshots_busy(cutter->snapshots) &&
        round != cutter->settings.plan->rounds.total) {
        cutter->skipped = round;
        log_warning(cutter->settings.log,
                    "the checkpoint of step %llu is left out: an earlier one "
                    "is still being written",
                    (unsigned long long)round);
        tell_failed(cutter, round, "an earlier one was still being written");
        return NULL;
    }
    struct snapshot *snapshot = snapshots_begin(cutter->snapshots, round);
    if (snapshot)
        order_write(cutter, snapshot, round);
    return snapshot;
}

/* The first of its blocks has closed the round that was agreed on. */
static struct snapshot *begin_asked(struct cutter *cutter) {
    struct snapshot *snapshot =
        snapshots_begin(cutter->snapshots, cutter->asked_id);
    if (snapshot && cutter->asked_keep)
        snapshot_keep(snapshot);
    if (snapshot && cutter->asked_write)
        order_write(cutter, snapshot, cutter->asked_round);
    return snapshot;
}

void cutter_snapshot(void *context, uint32_t block, uint64_t version) {
    struct cutter *cutter = context;
    bool asked = version == cutter->asked_round;
    uint64_t id = asked ? cutter->asked_id : version;
    struct snapshot *snapshot = snapshots_find(cutter->snapshots, id);
    if (!snapshot)
        snapshot = asked ? begin_asked(cutter) : begin_planned(cutter, version);
    if (!snapshot)
        return;
    snapshot_add(snapshot, block, version);
    /* By now the exchange may have closed the round after it. */
    if (asked && snapshot_complete(snapshot))
        tell_held(cutter, id, version);
}

void cutter_summed(void *context, uint64_t round, const double *sums) {
    struct cutter *cutter = context;
    Capstan__SquareSums message = CAPSTAN__SQUARE_SUMS__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    message.round = round;
    message.n_sums = shard_blocks(service_shard(cutter->service));
    message.sums = (double *)sums;
    control.body_case = CAPSTAN__CONTROL__BODY_SQUARE_SUMS;
    control.square_sums = &message;
    member_tell(cutter->settings.member, &control);
}

/* From now on no block closes above one more than the answer. */
enum status cutter_ask(struct cutter *cutter, const Capstan__CutAsk *order) {
    if (!shard_blocks(service_shard(cutter->service)))
        return STATUS_OK; /* the chief knows that nothing is here */
    Capstan__CutMark mark = CAPSTAN__CUT_MARK__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    mark.id = order->id;
    mark.highest = exchange_freeze(service_exchange(cutter->service));
    control.body_case = CAPSTAN__CONTROL__BODY_CUT_MARK;
    control.cut_mark = &mark;
    member_tell(cutter->settings.member, &control);
    return STATUS_OK;
}

/* With staleness a cut is the moment it is heard: when the weights have all
 * that the rows count. */
static enum status cut_now(struct cutter *cutter, const Capstan__Cut *order,
                           struct failure *why) {
    enum status status = service_finish(cutter->service, why);
    if (status)
        return status;
    struct snapshot *snapshot = snapshots_begin(cutter->snapshots, order->id);
    if (!snapshot)
        return status_fail(why, STATUS_RETRY, "no memory for a snapshot");
    if (order->keep)
        snapshot_keep(snapshot);
    struct exchange *exchange = service_exchange(cutter->service);
    uint32_t count = shard_blocks(service_shard(cutter->service));
    for (uint32_t b = 0; b < count; b++)
        snapshot_add(snapshot, b, exchange_version(exchange, b));
    tell_held(cutter, order->id, exchange_version(exchange, 0));
    return STATUS_OK;
}

/* The id of a planned round says that the asked cut falls on it, begun here or
 * not: it only goes on. */
enum status cutter_cut(struct cutter *cutter, const Capstan__Cut *order,
                       struct failure *why) {
    if (!shard_blocks(service_shard(cutter->service)))
        return STATUS_OK; /* nothing of mine is in it */
    struct snapshot *held = snapshots_find(cutter->snapshots, order->id);
    if (held && order->write) {
        order_write(cutter, held, order->step);
        return STATUS_OK;
    }
    if (held && order->id >= CUT_ASKED)
        return STATUS_OK;
    if (order->id >= CUT_ASKED && !order->round)
        return cut_now(cutter, order, why);
    cutter->asked_id = order->id;
    cutter->asked_round = order->round;
    cutter->asked_keep = order->keep;
    cutter->asked_write = order->write;
    exchange_cut(service_exchange(cutter->service), order->round);
    return service_settle(cutter->service, why);
}

enum status cutter_end(struct cutter *cutter, const Capstan__CutEnd *order) {
    struct snapshot *snapshot = snapshots_find(cutter->snapshots, order->id);
    if (snapshot)
        snapshot_end(snapshot);
    return STATUS_OK;
}

/* What the chief cannot reach, because the folder is not shared. */
enum status cutter_keep(struct cutter *cutter, const Capstan__Keep *order) {
    const char *dir = cutter->settings.plan->checkpoint_dir;
    struct failure why;
    if (cutter->shares_folder || !dir || !claim_holds(cutter->claim))
        return STATUS_OK;
    if (checkpoint_keep(dir, order->steps, order->n_steps, &why))
        log_warning(cutter->settings.log,
                    "old checkpoints were not removed: %s", why.text);
    return STATUS_OK;
}

int cutter_descriptor(const struct cutter *cutter) {
    return cutter->snapshots ? snapshots_descriptor(cutter->snapshots) : -1;
}

static void tell_written(struct cutter *cutter,
                         const struct snapshot_result *result) {
    const char *holder = cutter->shares_folder ? "" : cutter->host;
    Capstan__CutDone done =
        cut_done_written(result->id, &result->info, holder, result->seconds);
    Capstan__LossScaler scaler = plan_scaler_message(&result->scaler);
    if (holds_first(cutter))
        done.scaler = &scaler;
    tell_done(cutter, done);
}

enum status cutter_step(struct cutter *cutter, struct failure *why) {
    struct snapshot_result result;
    (void)why;
    while (cutter->snapshots && snapshots_done(cutter->snapshots, &result)) {
        cutter->said_full = false;
        if (result.written) {
            tell_written(cutter, &result);
            continue;
        }
        log_error(cutter->settings.log, "a checkpoint was not written: %s",
                  result.why.text);
        cutter->skipped = result.id; /* its other blocks begin no new one */
        tell_failed(cutter, result.id, result.why.text);
    }
    return STATUS_OK;
}

bool cutter_full(struct cutter *cutter) {
    if (!cutter->snapshots || !snapshots_busy(cutter->snapshots) ||
        shard_copied_bytes(service_shard(cutter->service)) <
            cutter->settings.copy_bytes)
        return false;
    if (!cutter->said_full)
        log_warning(cutter->settings.log,
                    "copies for the checkpoint have reached %llu MB "
                    "(checkpoint.copy_mb): updates wait for the disk",
                    (unsigned long long)(cutter->settings.copy_bytes >> 20));
    cutter->said_full = true;
    return true;
}
