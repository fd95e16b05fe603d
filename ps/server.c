/* SPDX-License-Identifier: Apache-2.0 */
/* The update core decides, in the order in which messages arrive. The costly
 * parts of its actions (sums, updates, held weights) are work items, several of
 * which run at once; the items of one block run in order. The results of an
 * item are sent when it is collected. All items are collected before a
 * snapshot, so it shows what was decided before it and nothing after. */
#include "ps/server.h"

#include "core/base/time.h"
#include "core/base/trace.h"
#include "proto/plan/plan.h"
#include "ps/server_internal.h"

#include <assert.h>
#include <stdlib.h>

enum { ITEMS_AT_ONCE = 32 };

static bool planned(const void *context, uint64_t round) {
    const struct server *server = context;
    const struct run_schedule *schedule = &server->settings.run_schedule;
    return run_schedule_saves(schedule, round) ||
           run_schedule_copies(schedule, round);
}

/* The parameter of local block B; NULL: it is a partition. */
static const struct parameter *parameter_of(const struct server *server,
                                            uint32_t b) {
    const struct layout *layout = server->settings.layout;
    const struct block *block = layout_block(layout, server->settings.ids[b]);
    return block ? &layout->parameters[block->parameter] : NULL;
}

static bool awaits_values(const void *context, uint32_t block) {
    const struct server *server = context;
    const struct parameter *parameter = parameter_of(server, block);
    return server->settings.awaits_values &&
           (parameter ? parameter->values
                      : layout_assigns_rows(server->settings.layout));
}

static bool kept_by_trainers(const void *context, uint32_t block) {
    const struct server *server = context;
    const struct parameter *parameter = parameter_of(server, block);
    return server->settings.job->optimizer.type == OPTIMIZER_NONE &&
           parameter && parameter->kind == PARAMETER_TRAINED;
}

/* The update core with the settings of this run's job and plan. */
static struct update_core *open_update_core(struct server *server) {
    const struct server_settings *s = &server->settings;
    bool synchronous = s->job->staleness == 0;
    struct update_core_settings settings = {
        .num_blocks = s->num_blocks,
        .num_ranks = s->num_ranks,
        .staleness = s->job->staleness,
        .backup_workers = s->job->backup_workers,
        .start = s->run_schedule.start,
        .clip = synchronous && s->job->gradient_clipping > 0,
        .fp16 = s->job->fp16,
        .scaler = loss_scaler_restore(&s->job->fp16, &s->scaler),
        .planned = synchronous ? planned : NULL,
        .awaits_values = awaits_values,
        .kept_by_trainers = kept_by_trainers,
        .context = server,
    };
    return update_core_open(&settings);
}

/* The state of the plan's first block, sent with its weights. */
static void set_first_block(struct server *server, uint64_t version,
                            const struct loss_scaler *scaler) {
    bool scales = server->settings.job->fp16.enabled;
    reply_queue_set_step(server->reply_queue, version);
    reply_queue_set_scaler(server->reply_queue, scales ? scaler->scale : 0,
                           scaler->skipped);
}

static enum status open_reply_queue(struct server *server,
                                    struct failure *why) {
    const struct server_settings *s = &server->settings;
    struct reply_queue_settings settings = {
        .link = s->link,
        .process = s->process,
        .shard = server->units.shard,
        .ids = s->ids,
        .wire = s->job->wire,
        .same_weights = s->job->staleness == 0 && s->num_ranks > 1,
        .tells_rounds = s->job->backup_workers > 0,
        .num_ranks = s->num_ranks};
    server->reply_queue = reply_queue_open(&settings);
    if (!server->reply_queue)
        return status_fail(why, FAILURE_NO_MEMORY, "no memory for replies");
    uint32_t first = server->block_index.local[0];
    if (first == BLOCK_INDEX_NOT_LOCAL)
        return STATUS_OK;
    struct loss_scaler scaler =
        update_core_scaler(server->update_core, first, s->run_schedule.start);
    set_first_block(server, s->run_schedule.start, &scaler);
    return STATUS_OK;
}

enum status server_open(struct server **out,
                        const struct server_settings *settings,
                        struct failure *why) {
    struct server *server = calloc(1, sizeof *server);
    if (!server)
        return status_fail(why, FAILURE_NO_MEMORY, "no memory for a ps");
    assert(settings->num_ranks <= PLAN_MAX_TRAINERS);
    server->settings = *settings;
    server->schedule = settings->job->schedule;
    if (settings->job->scale_lr)
        schedule_scale(&server->schedule, settings->all_replicas
                                              ? settings->all_replicas
                                              : settings->num_ranks);
    size_t cells = (size_t)settings->num_blocks * settings->num_ranks;
    server->gradient_inbox = gradient_inbox_open(
        settings->num_blocks, settings->num_ranks, settings->num_groups);
    server->last_ack_request =
        calloc(cells + 1, sizeof *server->last_ack_request);
    server->sums = calloc(settings->num_blocks + 1, sizeof(double));
    server->update_core = open_update_core(server);
    enum status status = STATUS_RETRY;
    if (!server->gradient_inbox || !server->last_ack_request || !server->sums ||
        !server->update_core ||
        !block_index_open(&server->block_index, settings->layout, settings->ids,
                          settings->num_blocks, settings->job->wire))
        status_fail(why, FAILURE_NO_MEMORY, "no memory for %u blocks",
                    settings->num_blocks);
    else
        status = shard_open(
            &server->units.shard,
            &(struct shard_settings){.layout = settings->layout,
                                     .ids = settings->ids,
                                     .count = settings->num_blocks,
                                     .optimizer = &settings->job->optimizer,
                                     .groups = settings->groups},
            why);
    if (!status && settings->process->loops)
        shard_set_loops(server->units.shard, settings->process->loops);
    if (!status)
        status = open_reply_queue(server, why);
    if (!status)
        status = server_open_rows(server, why);
    struct work_items_settings work = {.units = server->units,
                                       .histograms =
                                           settings->process->histograms,
                                       .layout = settings->layout,
                                       .num_ranks = settings->num_ranks,
                                       .threads = settings->threads};
    if (!status)
        status = work_items_open(&server->work_items, &work, why);
    if (status)
        server_close(&server);
    *out = server;
    return status;
}

/* Releases what ITEM holds of its block. */
static void release_item(struct server *server, struct work_item *item) {
    for (unsigned i = 0; i < item->num_payloads; i++)
        gradient_inbox_release(server->gradient_inbox, item->payloads[i]);
    buffer_release(&item->weights);
    for (unsigned i = 0; i < item->num_lookups; i++)
        row_lookups_drop(server->row_lookups, item->lookups[i]);
    row_lookups_drop(server->row_lookups, item->lookup);
    work_items_recycle(server->work_items, item);
}

static void close_work_items(struct server *server) {
    struct work_item *item;
    if (!server->work_items)
        return;
    work_items_wait(server->work_items);
    while ((item = work_items_completed(server->work_items)))
        release_item(server, item);
    work_items_close(&server->work_items);
}

void server_close(struct server **where) {
    struct server *server = *where;
    *where = NULL;
    if (!server)
        return;
    close_work_items(server);
    server_close_rows(server);
    gradient_inbox_close(&server->gradient_inbox);
    update_core_close(&server->update_core);
    shard_close(&server->units.shard);
    block_index_close(&server->block_index);
    free(server->last_ack_request);
    reply_queue_close(&server->reply_queue);
    free(server->sums);
    free(server);
}

struct shard *server_shard(struct server *server) {
    return server->units.shard;
}

const struct units *server_units(const struct server *server) {
    return &server->units;
}

struct update_core *server_update_core(struct server *server) {
    return server->update_core;
}

void server_set_snapshots(struct server *server, struct snapshots *snapshots) {
    server->snapshots = snapshots;
}

/* Callers set the rates of groups; those of a job follow its schedule. */
static bool has_set_rates(const struct server *server) {
    return server->settings.groups &&
           server->settings.job->model.type == JOB_EXTERNAL;
}

/* The partitions of a message are mostly at one step. */
static double factor_of(struct server *server, uint64_t step) {
    if (step != server->factor_step)
        server->factor = schedule_factor(&server->schedule, step);
    server->factor_step = step;
    return server->factor;
}

/* The optimizer of ITEM's block, or of the tables that name none, with the
 * values of the round, and its rate. */
static void set_rule(const struct server *server, struct work_item *item) {
    const struct server_settings *s = &server->settings;
    const struct parameter *parameter =
        parameter_of(server, item->action.block);
    uint32_t g = parameter ? parameter->group : 0;
    item->round.rate = schedule_rate(&server->schedule, item->round.step);
    if (parameter && parameter->kind == PARAMETER_AVERAGED)
        item->round.rate = s->job->staleness ? 1.0 / s->num_ranks : 1;
    if (!s->groups)
        return;
    struct optimizer_group group = s->groups[g];
    const double *values =
        gradient_inbox_values(server->gradient_inbox, item->action.block, g);
    if (values)
        optimizer_group_put(&group, values);
    item->optimizer = group.optimizer;
    item->round.optimizer = &item->optimizer;
    if (parameter && parameter->kind != PARAMETER_TRAINED)
        return;
    if (has_set_rates(server))
        item->round.rate = group.lr;
    else if (g)
        item->round.rate =
            group.lr * schedule_factor(&server->schedule, item->round.step);
}

/* Those of an overflowed round count too. */
static void collect_assigned(struct server *server, struct work_item *item) {
    struct link_bytes rows[PLAN_MAX_TRAINERS];
    unsigned count = gradient_inbox_assigned(server->gradient_inbox,
                                             item->action.block, rows);
    for (unsigned i = 0; i < count; i++)
        item->assigned[i] = (struct row_part){rows[i].data, rows[i].size, NULL};
    item->round.assigned = item->assigned;
    item->round.num_assigned = count;
}

/* Sets ITEM's round to the pending gradients of its block or partition, scaled
 * to the mean over all device replicas behind them. An overflowed round has
 * none. */
static void collect_gradients(struct server *server, struct work_item *item) {
    const struct server_settings *s = &server->settings;
    const struct update_core_action *action = &item->action;
    struct gradient_inbox *inbox = server->gradient_inbox;
    uint32_t b = action->block;
    uint32_t sizes[PLAN_MAX_TRAINERS], ranks[PLAN_MAX_TRAINERS];
    uint32_t weight = gradient_inbox_weight(inbox, b, s->replicas);
    unsigned count =
        action->overflowed
            ? 0
            : gradient_inbox_gather(inbox, b, item->gradients, sizes, ranks);
    struct unit_round *round = &item->round;
    *round = (struct unit_round){.num_parts = count,
                                 .step = action->step,
                                 .rule_step = action->rule_step,
                                 .scale = count ? 1.0f / (float)weight : 1.0f};
    if (parameter_of(server, b)) {
        round->gradients = item->gradients;
        round->wire = shard_wire(server->units.shard, b, s->job->wire);
        round->checked = s->job->model.type == JOB_EXTERNAL;
        return;
    }
    for (unsigned i = 0; i < count; i++) {
        item->parts[i] = (struct row_part){item->gradients[i], sizes[i], NULL};
        server_use_lookup(server, item, ranks[i], &item->parts[i]);
    }
    round->parts = item->parts;
    collect_assigned(server, item);
    round->factor = factor_of(server, action->step);
}

/* Clipping by the global norm, as torch.nn.utils.clip_grad_norm_ does: the
 * gradient times limit / (norm + 1e-6) where that is below 1. The chief
 * computes the norm of the mean gradient over all blocks of all ps. */
static float clipping_factor(const struct server *server, uint32_t block) {
    double limit = server->settings.job->gradient_clipping;
    if (server->settings.job->staleness || limit <= 0)
        return 1.0f;
    const struct parameter *parameter = parameter_of(server, block);
    if (parameter && parameter->kind != PARAMETER_TRAINED)
        return 1.0f;
    double factor = limit / (server->norm + 1e-6);
    return factor < 1 ? (float)factor : 1.0f;
}

/* Does the request that ACTION answers want an ack only? */
static bool wants_ack(const struct server *server,
                      const struct update_core_action *action) {
    assert(action->rank < server->settings.num_ranks);
    size_t cell =
        (size_t)action->block * server->settings.num_ranks + action->rank;
    return action->seq && server->last_ack_request[cell] == action->seq;
}

/* Does ACTION answer a push, and not the read before the first one? */
static bool answers_push(const struct server *server,
                         const struct update_core_action *action) {
    const struct gate *gate = update_core_gate(server->update_core);
    return action->clock >= gate->slots[action->rank].from;
}

/* Submits ACTION to the threads. SUM reads the received gradients and leaves
 * them; UPDATE, the last to need them, takes them. */
static enum status submit_action(struct server *server,
                                 const struct update_core_action *action,
                                 struct failure *why) {
    struct work_item *item = work_items_alloc(server->work_items, action);
    if (!item)
        return status_fail(why, FAILURE_NO_MEMORY, "no memory for an update");
    bool rows = !parameter_of(server, action->block);
    if (action->kind == UPDATE_CORE_LOOKUP) {
        if (!server_take_lookup(server, item)) {
            work_items_recycle(server->work_items, item);
            return STATUS_OK;
        }
    } else if (action->kind == UPDATE_CORE_REPLY) {
        bool answers = answers_push(server, action);
        item->ack_only = rows || wants_ack(server, action);
        item->mean = rows || (shard_means(server->units.shard, action->block) &&
                              answers);
        /* With staleness, or to a late push, a reply may bring several rounds.
         */
        item->if_set = answers && !server->settings.job->staleness &&
                       action->version == action->clock;
    } else {
        collect_gradients(server, item);
    }
    if (action->kind == UPDATE_CORE_UPDATE) {
        reply_queue_set_brought(server->reply_queue,
                                update_core_brought(server->update_core));
        set_rule(server, item);
        item->round.scale *= clipping_factor(server, action->block);
        /* Gradients of the block's next round may arrive while it runs. */
        item->num_payloads = gradient_inbox_detach(
            server->gradient_inbox, action->block, item->payloads);
        assert(item->num_payloads <= server->settings.num_ranks);
    }
    work_items_submit(server->work_items, item);
    return STATUS_OK;
}

/* Sends a round's square sums to the chief once every block of this ps has its
 * own. The chief adds them in the plan's order, so that the norm does not
 * depend on which block is done first. */
static void record_sum(struct server *server, const struct work_item *item) {
    server->sums[item->action.block] = item->sum;
    if (++server->num_summed < server->settings.num_blocks)
        return;
    server->num_summed = 0;
    server->settings.on_square_sums(server->settings.context,
                                    item->action.version, server->sums);
}

static void server_reply(struct server *server, struct work_item *item) {
    struct buffer *weights = item->weights;
    item->weights = NULL;
    if (item->ack_only)
        reply_queue_put_ack(server->reply_queue, &item->action, item->mean);
    else
        reply_queue_put_weights(server->reply_queue, &item->action, weights,
                                item->mean);
}

/* An update has a record for each contribution, as has its wait, so that the
 * flows of all pushes pass through it. */
static void trace_update(struct server *server, const struct work_item *item) {
    struct trace *trace = server->settings.process->trace;
    for (unsigned i = 0; i < item->num_payloads; i++) {
        struct gradient_origin origin =
            gradient_inbox_origin(item->payloads[i]);
        struct trace_record record = {
            .start = origin.received,
            .duration = item->start - origin.received,
            .step = origin.clock,
            .block = server->settings.ids[item->action.block],
            .rank = (uint16_t)origin.rank,
            .kind = TRACE_QUEUE};
        if (!origin.received)
            continue;
        trace_add(trace, &record);
        record.start = item->start;
        record.duration = item->ns;
        record.kind = TRACE_APPLY;
        trace_add(trace, &record);
    }
}

static void trace_item(struct server *server, const struct work_item *item) {
    const struct update_core_action *action = &item->action;
    struct trace *trace = server->settings.process->trace;
    bool sum = action->kind == UPDATE_CORE_SUM;
    uint64_t step = sum ? action->version : action->clock;
    if (action->kind == UPDATE_CORE_UPDATE)
        trace_update(server, item);
    else if (trace_wants(trace, step) && action->kind != UPDATE_CORE_REPLY)
        trace_add(trace, &(struct trace_record){
                             .start = item->start,
                             .duration = item->ns,
                             .step = step,
                             .block = server->settings.ids[action->block],
                             .rank = (uint16_t)(sum ? 0 : action->rank),
                             .kind = sum ? TRACE_SUM : TRACE_LOOKUP});
}

static enum status complete_item(struct server *server, struct work_item *item,
                                 struct failure *why) {
    const struct update_core_action *action = &item->action;
    enum status status = item->status;
    if (server->settings.process->trace)
        trace_item(server, item);
    if (status) {
        *why = *work_items_failure(server->work_items);
    } else if (action->kind == UPDATE_CORE_UPDATE) {
        server->update_ns += item->ns;
        if (action->block == server->block_index.local[0])
            set_first_block(server, action->version, &action->scaler);
    } else if (action->kind == UPDATE_CORE_SUM) {
        record_sum(server, item);
    } else if (action->kind == UPDATE_CORE_LOOKUP) {
        server_answer_lookup(server, item);
    } else {
        server_reply(server, item);
    }
    release_item(server, item);
    return status;
}

/* Collects the items completed so far. */
static enum status complete_items(struct server *server, struct failure *why) {
    struct work_item *item;
    enum status status = STATUS_OK;
    while (!status && (item = work_items_completed(server->work_items)))
        status = complete_item(server, item, why);
    return status;
}

/* A snapshot must see every update decided before it and none after. */
static enum status server_snapshot(struct server *server,
                                   const struct update_core_action *action,
                                   struct failure *why) {
    work_items_wait(server->work_items);
    enum status status = complete_items(server, why);
    if (!status)
        server->settings.snapshot(server->settings.context, action->block,
                                  action->version);
    return status;
}

static void server_want(struct server *server,
                        const struct update_core_action *action) {
    uint32_t block = server->settings.ids[action->block];
    Capstan__DataHeader header = CAPSTAN__DATA_HEADER__INIT;
    header.kind = CAPSTAN__DATA_HEADER__KIND__WANTED;
    header.clock = action->version;
    header.n_blocks = 1;
    header.blocks = &block;
    server->wanted_at = time_now();
    reply_queue_send_to(server->reply_queue, action->rank, &header);
}

static enum status server_carry_out(struct server *server,
                                    const struct update_core_action *action,
                                    struct failure *why) {
    if (action->kind == UPDATE_CORE_SNAPSHOT)
        return server_snapshot(server, action, why);
    if (action->kind != UPDATE_CORE_WANT)
        return submit_action(server, action, why);
    server_want(server, action);
    return STATUS_OK;
}

/* Starts the queued items. With threads, the caller collects their results when
 * server_descriptor is readable. */
static enum status start_items(struct server *server, struct failure *why) {
    work_items_dispatch(server->work_items);
    return server_descriptor(server) < 0 ? complete_items(server, why)
                                         : STATUS_OK;
}

/* Few items at a time, so that those of a message with many blocks stay in the
 * cache. */
static enum status server_run_queued_actions(struct server *server,
                                             struct failure *why) {
    struct update_core_action action;
    enum status status = STATUS_OK;
    struct update_core *core = server->update_core;
    if (server->assigned) {
        *why = server->assigned_why;
        return server->assigned;
    }
    if (!server->settings.job->staleness)
        reply_queue_set_due(
            server->reply_queue, update_core_due(core),
            gate_lead(update_core_gate(core), update_core_highest(core)));
    for (unsigned i = 1; !status && update_core_next(core, &action); i++) {
        status = server_carry_out(server, &action, why);
        if (!status && i % ITEMS_AT_ONCE == 0)
            status = start_items(server, why);
    }
    return status ? status : start_items(server, why);
}

enum status server_run_actions(struct server *server, struct failure *why) {
    enum status status = server_run_queued_actions(server, why);
    server_flush(server);
    return status;
}

/* The message, or what came of it, may have been lost with a connection. */
enum status server_repeat_wants(struct server *server, int64_t now,
                                struct failure *why) {
    static const int64_t interval = 5 * TIME_S;
    if (now - server->wanted_at < interval)
        return STATUS_OK;
    server->wanted_at = now;
    return update_core_want_again(server->update_core)
               ? server_run_actions(server, why)
               : STATUS_OK;
}

void server_flush(struct server *server) {
    reply_queue_flush(server->reply_queue);
}

enum status server_collect(struct server *server, struct failure *why) {
    enum status status = complete_items(server, why);
    reply_queue_flush(server->reply_queue);
    return status;
}

enum status server_drain(struct server *server, struct failure *why) {
    work_items_wait(server->work_items);
    return server_collect(server, why);
}

int server_descriptor(const struct server *server) {
    return work_items_descriptor(server->work_items);
}

enum status server_set_norm(struct server *server, uint64_t round, double norm,
                            struct failure *why) {
    server->norm = norm;
    update_core_set_norm(server->update_core, round);
    return server_run_actions(server, why);
}

void server_set_chief(struct server *server, uint64_t incarnation) {
    server->settings.chief = incarnation;
}

/* Tells PEER why its message was refused. */
static void server_refuse(struct server *server, uint32_t peer,
                          const Capstan__DataHeader *header, const char *text) {
    Capstan__DataHeader reply = CAPSTAN__DATA_HEADER__INIT;
    reply.kind = CAPSTAN__DATA_HEADER__KIND__REFUSED;
    reply.seq = header->seq;
    reply.clock = header->clock;
    reply.text = (char *)text;
    reply_queue_refuse(server->reply_queue, peer, &reply);
    if (link_may_log(server->settings.link, text))
        log_warning(server->settings.process->log, "message_refused",
                    "a message in the name of trainer %u is refused: %s",
                    header->rank, text);
}

/* The gradient inbox holds the payload, so the frame can be released at once.
 * Complete weight replies leave now; acks wait to be batched. */
enum status server_handle(struct server *server, struct link_frame *frame,
                          const Capstan__DataHeader *header,
                          struct failure *why) {
    uint32_t peer = frame->peer;
    const char *problem =
        server_receive(server, frame, (Capstan__DataHeader *)header);
    if (problem)
        server_refuse(server, peer, header, problem);
    link_release(frame);
    enum status status = server_run_queued_actions(server, why);
    reply_queue_flush_ready(server->reply_queue);
    return status;
}

double server_update_seconds(const struct server *server) {
    return time_to_seconds(server->update_ns);
}

uint32_t server_queue(const struct server *server) {
    return work_items_in_use(server->work_items);
}
