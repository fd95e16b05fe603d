/* SPDX-License-Identifier: Apache-2.0 */
/* The exchange decides, in the order in which messages come; what its actions
 * cost (sums, updates, encodings) is done as tasks, several at once. A block's
 * tasks keep their order. What a done task leaves is answered when it is taken
 * back, and before a snapshot all are: it shows what was decided before it and
 * nothing after. */
#include "ps/service.h"

#include "proto/base/time.h"
#include "ps/service_parts.h"

#include <stdlib.h>

static bool planned(const void *context, uint64_t round) {
    const struct service *service = context;
    return rounds_saves(&service->settings.rounds, round);
}

/* The pure core with what this run's job and plan say. */
static struct exchange *open_exchange(struct service *service) {
    const struct service_settings *s = &service->settings;
    bool synchronous = s->job->staleness == 0;
    struct exchange_settings exchange = {
        .num_blocks = s->num_blocks,
        .num_ranks = s->num_ranks,
        .staleness = s->job->staleness,
        .start = s->rounds.start,
        .clip = synchronous && s->job->gradient_clipping > 0,
        .fp16 = s->job->fp16,
        .scaler = loss_scaler_resumed(&s->job->fp16, &s->scaler),
        .planned = synchronous ? planned : NULL,
        .context = service,
    };
    return exchange_open(&exchange);
}

/* What the plan's first block is at, told with its weights. */
static void tell(struct service *service, uint64_t version,
                 const struct loss_scaler *scaler) {
    bool scales = service->settings.job->fp16.enabled;
    answers_step(service->answers, version);
    answers_scaler(service->answers, scales ? scaler->scale : 0,
                   scaler->skipped);
}

static enum status open_answers(struct service *service, struct failure *why) {
    const struct service_settings *s = &service->settings;
    struct answers_settings answers = {.link = s->link,
                                       .run = s->run,
                                       .incarnation = s->incarnation,
                                       .shard = service->shard,
                                       .ids = s->ids,
                                       .wire = s->job->wire,
                                       .loops = s->loops,
                                       .alike = s->job->staleness == 0 &&
                                                s->num_ranks > 1,
                                       .num_ranks = s->num_ranks};
    service->answers = answers_open(&answers);
    if (!service->answers)
        return status_fail(why, STATUS_RETRY, "no memory for answers");
    uint32_t first = service->holding.local[0];
    if (first == HOLDING_NOT_MINE)
        return STATUS_OK;
    struct loss_scaler scaler =
        exchange_scaler(service->exchange, first, s->rounds.start);
    tell(service, s->rounds.start, &scaler);
    return STATUS_OK;
}

enum status service_open(struct service **out,
                         const struct service_settings *settings,
                         struct failure *why) {
    struct service *service = calloc(1, sizeof *service);
    if (!service)
        return status_fail(why, STATUS_RETRY, "no memory for a ps");
    service->settings = *settings;
    service->schedule = settings->job->schedule;
    if (settings->job->scale_lr)
        schedule_scale(&service->schedule, settings->all_replicas
                                               ? settings->all_replicas
                                               : settings->num_ranks);
    size_t cells = (size_t)settings->num_blocks * settings->num_ranks;
    service->parcels = parcels_open(settings->num_blocks, settings->num_ranks);
    service->receipts = calloc(cells + 1, sizeof *service->receipts);
    service->sums = calloc(settings->num_blocks + 1, sizeof(double));
    service->exchange = open_exchange(service);
    enum status status = STATUS_RETRY;
    if (!service->parcels || !service->receipts || !service->sums ||
        !service->exchange ||
        !holding_open(&service->holding, settings->layout, settings->ids,
                      settings->num_blocks, settings->job->wire))
        status_fail(why, STATUS_RETRY, "no memory for %u blocks",
                    settings->num_blocks);
    else
        status =
            shard_open(&service->shard, settings->layout, settings->ids,
                       settings->num_blocks, &settings->job->optimizer, why);
    if (!status && settings->loops)
        shard_set_loops(service->shard, settings->loops);
    if (!status)
        status = open_answers(service, why);
    if (!status)
        status = tasks_open(&service->tasks, service->shard,
                            settings->num_ranks, settings->threads, why);
    if (status)
        service_close(&service);
    *out = service;
    return status;
}

/* Lets go what TASK has of its block. */
static void drop(struct service *service, struct task *task) {
    for (unsigned i = 0; i < task->num_parcels; i++)
        parcels_let_go(service->parcels, task->parcels[i]);
    buffer_release(&task->weights);
    tasks_give_back(service->tasks, task);
}

static void close_tasks(struct service *service) {
    struct task *task;
    if (!service->tasks)
        return;
    tasks_settle(service->tasks);
    while ((task = tasks_done(service->tasks)))
        drop(service, task);
    tasks_close(&service->tasks);
}

void service_close(struct service **where) {
    struct service *service = *where;
    *where = NULL;
    if (!service)
        return;
    close_tasks(service);
    parcels_close(&service->parcels);
    exchange_close(&service->exchange);
    shard_close(&service->shard);
    holding_close(&service->holding);
    free(service->receipts);
    answers_close(&service->answers);
    free(service->sums);
    free(service);
}

struct shard *service_shard(struct service *service) {
    return service->shard;
}

struct exchange *service_exchange(struct service *service) {
    return service->exchange;
}

void service_snapshots(struct service *service, struct snapshots *snapshots) {
    service->snapshots = snapshots;
}

/* What lies there for TASK's block: the mean over all replicas that it comes
 * from counts, or nothing. */
static void collect(struct service *service, struct task *task) {
    unsigned count = task->action.voided
                         ? 0
                         : parcels_gather(service->parcels, task->action.block,
                                          task->gradients);
    uint32_t weight = parcels_weight(service->parcels, task->action.block,
                                     service->settings.replicas);
    task->round = (struct shard_round){
        .gradients = task->gradients,
        .num_gradients = count,
        .wire = service->settings.job->wire,
        .scale = count ? 1.0f / (float)weight : 1.0f,
    };
}

/* Clipping by the global norm, as torch.nn.utils.clip_grad_norm_ does: the
 * gradient times limit / (norm + 1e-6) where that is below 1. The norm is of
 * the mean gradient of all blocks on all ps, which the chief has told. */
static float clipping_factor(const struct service *service) {
    double limit = service->settings.job->gradient_clipping;
    if (service->settings.job->staleness || limit <= 0)
        return 1.0f;
    double factor = limit / (service->norm + 1e-6);
    return factor < 1 ? (float)factor : 1.0f;
}

/* A reply to a request for a receipt has no weights. */
static bool wants_receipt(const struct service *service,
                          const struct exchange_action *action) {
    size_t cell =
        (size_t)action->block * service->settings.num_ranks + action->rank;
    return action->seq && service->receipts[cell] == action->seq;
}

/* Begins what ACTION wants done to the bytes of its block. SUM looks at the
 * parcels and leaves them; UPDATE, the last to need them, takes them along. */
static enum status begin(struct service *service,
                         const struct exchange_action *action,
                         struct failure *why) {
    struct task *task = tasks_take(service->tasks, action);
    if (!task)
        return status_fail(why, STATUS_RETRY, "no memory for an update");
    if (action->kind == EXCHANGE_REPLY) {
        task->receipt = wants_receipt(service, action);
    } else {
        collect(service, task);
        task->round.step = action->step;
    }
    if (action->kind == EXCHANGE_UPDATE) {
        task->round.rate = schedule_rate(&service->schedule, action->step);
        task->round.scale *= clipping_factor(service);
        /* Those of the block's next round may come while it is under way. */
        task->num_parcels =
            parcels_hand_over(service->parcels, action->block, task->parcels);
    }
    tasks_put(service->tasks, task);
    return STATUS_OK;
}

/* A round's square sums go to the chief together, once every block of this ps
 * has its own; the chief adds them in the plan's order, so that the norm does
 * not depend on who was done first. */
static void take_sum(struct service *service, const struct task *task) {
    service->sums[task->action.block] = task->sum;
    if (++service->num_summed < service->settings.num_blocks)
        return;
    service->num_summed = 0;
    service->settings.summed(service->settings.context, task->action.version,
                             service->sums);
}

static void answer(struct service *service, struct task *task) {
    struct buffer *weights = task->weights;
    task->weights = NULL;
    if (task->receipt)
        answers_taken(service->answers, &task->action);
    else
        answers_weights(service->answers, &task->action, weights);
}

static enum status take_back(struct service *service, struct task *task,
                             struct failure *why) {
    const struct exchange_action *action = &task->action;
    enum status status = task->status;
    if (status) {
        *why = *tasks_failure(service->tasks);
    } else if (action->kind == EXCHANGE_UPDATE) {
        service->update_ns += task->ns;
        if (action->block == service->holding.local[0])
            tell(service, action->version, &action->scaler);
    } else if (action->kind == EXCHANGE_SUM) {
        take_sum(service, task);
    } else {
        answer(service, task);
    }
    drop(service, task);
    return status;
}

/* Takes back what is done by now. */
static enum status take_all_back(struct service *service, struct failure *why) {
    struct task *task;
    enum status status = STATUS_OK;
    while (!status && (task = tasks_done(service->tasks)))
        status = take_back(service, task, why);
    return status;
}

/* A snapshot reads blocks as all that was decided before it has left them. */
static enum status snapshot(struct service *service,
                            const struct exchange_action *action,
                            struct failure *why) {
    tasks_settle(service->tasks);
    enum status status = take_all_back(service, why);
    if (!status)
        service->settings.snapshot(service->settings.context, action->block,
                                   action->version);
    return status;
}

/* What threads do is collected when they say so. */
static enum status carry_out(struct service *service, struct failure *why) {
    struct exchange_action action;
    enum status status = STATUS_OK;
    while (!status && exchange_next(service->exchange, &action))
        status = action.kind == EXCHANGE_SNAPSHOT
                     ? snapshot(service, &action, why)
                     : begin(service, &action, why);
    tasks_start(service->tasks);
    if (!status && service_descriptor(service) < 0)
        status = take_all_back(service, why);
    return status;
}

enum status service_settle(struct service *service, struct failure *why) {
    enum status status = carry_out(service, why);
    service_flush(service);
    return status;
}

void service_flush(struct service *service) {
    answers_flush(service->answers);
}

enum status service_collect(struct service *service, struct failure *why) {
    enum status status = take_all_back(service, why);
    answers_flush(service->answers);
    return status;
}

enum status service_finish(struct service *service, struct failure *why) {
    tasks_settle(service->tasks);
    return service_collect(service, why);
}

int service_descriptor(const struct service *service) {
    return tasks_descriptor(service->tasks);
}

enum status service_norm(struct service *service, uint64_t round, double norm,
                         struct failure *why) {
    service->norm = norm;
    exchange_norm(service->exchange, round);
    return service_settle(service, why);
}

void service_refuse(struct service *service, uint32_t peer,
                    const Capstan__DataHeader *header, const char *text) {
    Capstan__DataHeader answer = CAPSTAN__DATA_HEADER__INIT;
    answer.kind = CAPSTAN__DATA_HEADER__KIND__REFUSED;
    answer.seq = header->seq;
    answer.clock = header->clock;
    answer.text = (char *)text;
    answers_refuse(service->answers, peer, &answer);
    if (link_may_say(service->settings.link, text))
        log_warning(service->settings.log,
                    "a message in the name of trainer %u is refused: %s",
                    header->rank, text);
}

/* What it brings is kept by parcels, so the frame can go at once. Answers that
 * nothing more can join leave now; receipts wait for company. */
enum status service_handle(struct service *service, struct link_frame *frame,
                           const Capstan__DataHeader *header,
                           struct failure *why) {
    uint32_t peer = frame->peer;
    const char *problem =
        service_take(service, frame, (Capstan__DataHeader *)header);
    if (problem)
        service_refuse(service, peer, header, problem);
    link_release(frame);
    enum status status = carry_out(service, why);
    answers_flush_most(service->answers);
    return status;
}

double service_update_seconds(const struct service *service) {
    return time_to_seconds(service->update_ns);
}
