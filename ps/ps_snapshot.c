/* SPDX-License-Identifier: Apache-2.0 */
/* A ps as the source of a snapshot agent: the shard's blocks with their ledger
 * rows, at rounds that the update core closes. */
#include "core/base/byte_size.h"
#include "core/base/free_memory.h"
#include "core/base/time.h"
#include "ps/buddy.h"

#include <inttypes.h>
#include <stdio.h>

enum {
    UNWRITTEN_BYTES = 64 << 20, /* of a file's pages in memory, at most */
    CHANGED_BYTES = 256 << 20,  /* of rows while a snapshot is agreed on */
    FIXED_BYTES = 24 << 20,     /* messages and the writer, whatever the rows */
    LOOK_BYTES = 1 << 20, /* of new rows after which memory is looked at */
};

/* What a checkpoint keeps of a block beside its tensors: num_ranks entries. */
struct saved_ledger {
    uint64_t version;
    struct ledger_entry entries[PLAN_MAX_TRAINERS];
};

/* Row and buffers are taken together, between two actions of the update core:
 * both are at VERSION. */
static void ps_snapshot_add(struct ps *ps, uint64_t id, uint32_t b,
                            uint64_t version) {
    struct update_core *core = server_update_core(ps->server);
    struct unit unit = units_find(server_units(ps->server), b);
    struct saved_ledger row = {.version = version};
    struct snapshots_block block = {
        .version = version,
        .row = &row,
        .rule_step = update_core_rule_step(core, b, version),
        .scaler = update_core_scaler(core, b, version),
    };
    struct snapshots *snapshots = snapshot_agent_snapshots(ps->snapshot_agent);
    struct unit_cut cut = {.id = id,
                           .step = version - block.scaler.skipped,
                           .form = snapshots_form(snapshots, id)};
    update_core_ledger_row(core, b, version, row.entries);
    unit.table->cut(unit.holder, unit.u, &cut, &block);
    snapshots_add(snapshots, id, b, &block);
    if (ps->added_id != id)
        ps->num_added = 0;
    ps->added_id = id;
    ps->num_added++;
}

void ps_snapshot_reached(void *context, uint32_t b, uint64_t version) {
    struct ps *ps = context;
    uint64_t id = ps->held_now;
    if (id || snapshot_agent_due(ps->snapshot_agent, version, &id))
        ps_snapshot_add(ps, id, b, version);
}

static uint64_t ps_snapshot_freeze(void *context) {
    struct ps *ps = context;
    return update_core_freeze(server_update_core(ps->server));
}

static enum status ps_snapshot_hold_at(void *context, uint64_t round,
                                       bool write, struct failure *why) {
    struct ps *ps = context;
    (void)write;
    ps->held_now = 0;
    update_core_set_snapshot_round(server_update_core(ps->server), round);
    return server_run_actions(ps->server, why);
}

/* With staleness, or after the last round, the snapshot is taken when the
 * command arrives. No other follows in a synchronous run. */
static enum status ps_snapshot_hold_now(void *context, uint64_t id,
                                        struct failure *why) {
    struct ps *ps = context;
    ps->held_now = id;
    update_core_hold_now(server_update_core(ps->server));
    return server_run_actions(ps->server, why);
}

static void ps_snapshot_set_base(void *context, uint64_t id) {
    struct ps *ps = context;
    if (server_units(ps->server)->rows)
        row_shard_set_base(server_units(ps->server)->rows, id);
}

static void ps_snapshot_send(void *control_client, Capstan__Control *control) {
    control_client_send_reliable(control_client, control);
}

enum status ps_snapshot_open(struct ps *ps, struct failure *why) {
    const struct plan *plan = ps->plan;
    char owner[32];
    snprintf(owner, sizeof owner, "ps %u", ps->member->index);
    struct snapshot_agent_settings settings = {
        .log = ps->process.log,
        .send = ps_snapshot_send,
        .send_context = ps->control_client,
        .run = ps->process.run,
        .plan = plan,
        .owner = owner,
        .index = ps->place,
        .count = plan->num_ps,
        .has_first_block = ps->num_blocks && ps->ids[0] == 0,
        .can_retain = true,
        .blocks = {.trace = ps->process.trace,
                   .layout = plan->layout,
                   .ids = ps->ids,
                   .num_units = ps->num_blocks,
                   .num_tensors = 1 + rule_slots(&ps->job->optimizer),
                   .groups = plan->groups,
                   .row_bytes =
                       offsetof(struct saved_ledger, entries[plan->num_ranks])},
        .source = {.context = ps,
                   .freeze = ps_snapshot_freeze,
                   .hold_at = ps_snapshot_hold_at,
                   .hold_now = ps_snapshot_hold_now,
                   .set_base = ps_snapshot_set_base,
                   .copied = buddy_copied},
    };
    return snapshot_agent_open(&ps->snapshot_agent, &settings, why);
}

void ps_snapshot_send_square_sums(void *context, uint64_t round,
                                  const double *sums) {
    struct ps *ps = context;
    Capstan__SquareSums message = CAPSTAN__SQUARE_SUMS__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    message.round = round;
    message.n_sums = ps->num_blocks;
    message.sums = (double *)sums;
    control.body_case = CAPSTAN__CONTROL__BODY_SQUARE_SUMS;
    control.square_sums = &message;
    control_client_send_reliable(ps->control_client, &control);
}

/* Does the snapshot with which the run ends wait for no push? With staleness it
 * is taken of what there is, else once all blocks of this ps are held. */
static bool needs_no_push(const struct ps *ps) {
    bool held = ps->added_id &&
                ps->added_id == snapshot_agent_last(ps->snapshot_agent) &&
                ps->num_added == ps->num_blocks;
    return ps->memory_short && (ps->job->staleness || held);
}

bool ps_snapshot_is_full(struct ps *ps) {
    if (needs_no_push(ps))
        return true;
    if (!snapshots_busy(snapshot_agent_snapshots(ps->snapshot_agent))) {
        ps->copies_full = false;
        return false;
    }
    if (!ps->copy_bytes) /* first here: the shard itself is allocated by now */
        ps->copy_bytes = ps->job->checkpoint.copy_mb
                             ? ps->job->checkpoint.copy_mb << 20
                             : free_memory_half();
    size_t copied = shard_copied_bytes(server_shard(ps->server));
    if (server_units(ps->server)->rows)
        copied += row_shard_copied_bytes(server_units(ps->server)->rows);
    if (copied < ps->copy_bytes)
        return false;
    if (!ps->copies_full)
        log_warning(ps->process.log, "updates_paused",
                    "copies for the checkpoint have reached %llu MB "
                    "(checkpoint.copy_mb): updates wait for the disk",
                    (unsigned long long)(ps->copy_bytes >> 20));
    ps->copies_full = true;
    return true;
}

/* What a checkpoint takes of LIMIT beside ROWS bytes of rows: a fixed part,
 * pages that are not yet written, those that change until all blocks are held,
 * and of addresses the map of the file, which grows by doubling. */
static uint64_t checkpoint_bytes(uint64_t rows,
                                 const struct free_memory_limit *limit) {
    uint64_t written = rows < UNWRITTEN_BYTES ? rows : UNWRITTEN_BYTES;
    uint64_t changed = rows / 4 < CHANGED_BYTES ? rows / 4 : CHANGED_BYTES;
    return FIXED_BYTES + written + changed +
           (limit->addresses ? 3 * rows + UNWRITTEN_BYTES : 0);
}

/* Of LIMIT, until the snapshot with which the run ends is held: what the next
 * rounds add, the floats of one on their ways, the next copies in memory, and
 * the checkpoint. Without
 * staleness it is taken at the round after the next at the latest. */
static uint64_t end_bytes(const struct ps *ps, uint64_t rows,
                          const struct free_memory_limit *limit) {
    struct server_round most = server_largest_round(ps->server);
    uint64_t added = (ps->job->staleness ? 1 : 2) * most.rows;
    uint64_t copies = ps->plan->run_schedule.buddy_steps ? 2 * rows : 0;
    return added + 2 * most.floats + copies +
           checkpoint_bytes(rows + added, limit);
}

static void end_for_memory(struct ps *ps, uint64_t bytes,
                           const struct free_memory_limit *limit) {
    const struct row_shard *rows = server_units(ps->server)->rows;
    Capstan__Interrupted interrupted = CAPSTAN__INTERRUPTED__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    char taken[16], added[16], left[16], text[400];
    uint64_t count = 0;
    for (uint32_t t = 0; t < ps->plan->layout->num_tables; t++)
        count += row_shard_rows(rows, t);
    byte_size_text(bytes, taken, sizeof taken);
    byte_size_text(server_largest_round(ps->server).rows, added, sizeof added);
    byte_size_text(limit->free, left, sizeof left);
    snprintf(
        text, sizeof text,
        "%" PRIu64
        " rows of tables take %s, a step adds up to %s, and there is %s (%s), "
        "which a checkpoint needs: more ps on other hosts, a higher limit, or "
        "max_rows, admit or expire of the tables",
        count, taken, added, left, limit->name);
    log_warning(ps->process.log, "row_memory_short", "%s", text);
    interrupted.code = FAILURE_TOO_LITTLE_MEMORY;
    interrupted.text = text;
    control.body_case = CAPSTAN__CONTROL__BODY_INTERRUPTED;
    control.interrupted = &interrupted;
    control_client_send_reliable(ps->control_client, &control);
    ps->memory_short = true;
    ps->added_id = 0;
}

/* Rows that trainers have looked up are pushed before a snapshot can be held,
 * and this ps could not end by itself while it takes them. */
static enum status fail_too_large_round(const struct server_round *most,
                                        const struct free_memory_limit *limit,
                                        struct failure *why) {
    char rows[16], floats[16], left[16];
    byte_size_text(most->rows, rows, sizeof rows);
    byte_size_text(2 * most->floats, floats, sizeof floats);
    byte_size_text(limit->free, left, sizeof left);
    return status_fail(why, FAILURE_TOO_LITTLE_MEMORY,
                       "the rows of tables that a step of all trainers reads "
                       "take up to %s if they are new, %s more on their ways, "
                       "and there is %s (%s): smaller batches, more ps on "
                       "other hosts, or a higher limit",
                       rows, floats, left, limit->name);
}

/* Others of the host take memory too, so it is looked at now and then even if
 * no row was added. */
enum status ps_snapshot_check_memory(struct ps *ps, struct failure *why) {
    const struct row_shard *rows =
        ps->server ? server_units(ps->server)->rows : NULL;
    if (!rows || ps->interrupted || ps->init_task)
        return STATUS_OK;
    struct free_memory_limit limits[FREE_MEMORY_LIMITS];
    struct server_round most = server_largest_round(ps->server);
    uint64_t bytes = row_shard_bytes(rows), seen = bytes + most.rows;
    int64_t now = time_now();
    bool grown = seen >= ps->memory_seen + ps->memory_seen / 64 + LOOK_BYTES;
    if (!seen ||
        (!grown && (ps->memory_short || now - ps->memory_seen_at < TIME_S)))
        return STATUS_OK;
    unsigned count = free_memory_unswapped(limits);
    for (unsigned i = 0; i < count; i++) {
        if (most.rows > ps->largest_round &&
            limits[i].free < most.rows + 2 * most.floats)
            return fail_too_large_round(&most, &limits[i], why);
        if (!ps->memory_short &&
            limits[i].free < end_bytes(ps, bytes, &limits[i]))
            end_for_memory(ps, bytes, &limits[i]);
    }
    ps->largest_round = most.rows;
    ps->memory_seen = seen;
    ps->memory_seen_at = now;
    return STATUS_OK;
}
