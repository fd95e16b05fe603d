/* SPDX-License-Identifier: Apache-2.0 */
#include "chief/plan/table_memory.h"

#include "core/base/byte_size.h"
#include "core/tensor/row_keys.h"
#include "core/tensor/rule.h"

#include <stdio.h>
#include <string.h>

enum { INDEX_BYTES = 16 /* of a row in an index that has just grown */ };

/* 0: no bound is known. */
static uint64_t most_rows(const struct table *table) {
    uint64_t most = table->max_rows ? table->max_rows : table->num_ids;
    return table->num_ids && table->num_ids < most ? table->num_ids : most;
}

uint64_t table_memory_row_bytes(const struct run *run,
                                const struct table *table) {
    return row_keys_row_bytes(table->dim,
                              rule_slots(run_table_optimizer(run, table)));
}

struct table_memory table_memory_of(const struct run *run) {
    const struct layout *layout = run->plan.layout;
    struct table_memory memory = {0};
    for (uint32_t t = 0; layout && t < layout->num_tables; t++) {
        const struct table *table = &layout->tables[t];
        uint64_t most = most_rows(table);
        uint64_t rows = most ? most : run_table_rows(run, t);
        unsigned slots = rule_slots(run_table_optimizer(run, table));
        uint64_t floats = rows * table->dim;
        memory.rows += rows;
        memory.bytes +=
            rows * (table_memory_row_bytes(run, table) + INDEX_BYTES);
        memory.dense += floats * sizeof(float);
        memory.replicated += floats * (2 + slots) * sizeof(float);
        memory.unbounded += !most;
    }
    return memory;
}

static bool is_of_role(const struct run *run, uint32_t slot, bool trains) {
    return (run->roster.slots[slot].rank != ROSTER_NO_RANK) == trains;
}

/* How many of those that take part have the limit KEY. */
static uint64_t count_sharers(const struct run *run, const char *key,
                              bool trains) {
    uint64_t count = 0;
    for (uint32_t i = 0; i < run->roster.count; i++) {
        const struct memory_plan_limits *limits = &run->plan.limits[i];
        for (unsigned k = 0; k < limits->count && is_of_role(run, i, trains);
             k++)
            count += !strcmp(limits->limits[k].key, key);
    }
    return count;
}

/* The least of all shares of limits: of what is free, at least a byte, or if
 * WHOLE of what there is if nobody else has any. 0: unknown. */
static uint64_t least_share(const struct run *run, bool trains, bool whole) {
    uint64_t least = 0;
    for (uint32_t i = 0; i < run->roster.count; i++) {
        const struct memory_plan_limits *limits = &run->plan.limits[i];
        unsigned of_host = limits->count - limits->devices;
        for (unsigned k = 0; k < of_host && is_of_role(run, i, trains); k++) {
            const struct free_memory_limit *limit = &limits->limits[k];
            uint64_t all = whole ? limit->most : limit->free;
            uint64_t sharers = count_sharers(run, limit->key, trains);
            uint64_t share = !whole && all < sharers ? 1 : all / sharers;
            least = !least || (share && share < least) ? share : least;
        }
    }
    return least;
}

uint64_t table_memory_free(const struct run *run, bool trains) {
    return least_share(run, trains, false);
}

static const char *holder_name(const struct run *run) {
    return run->allreduce ? "each trainer" : "a ps";
}

/* "rows of tables take at most 4 MB on a ps; 2 tables, such as \"user\", have
 * no bound" */
static void describe_rows(const struct run *run,
                          const struct table_memory *memory, const char *most,
                          char *text, size_t size) {
    const struct layout *layout = run->plan.layout;
    uint32_t first = 0, bounded = layout->num_tables - memory->unbounded;
    int used =
        bounded
            ? snprintf(text, size, "rows of %u table%s take at most %s on %s%s",
                       bounded, log_plural(bounded), most, holder_name(run),
                       memory->unbounded ? "; " : "")
            : 0;
    if (!memory->unbounded)
        return;
    while (most_rows(&layout->tables[first]))
        first++;
    snprintf(
        text + used, size - (size_t)used,
        "%u table%s, such as \"%.64s\", ha%s no bound, which max_rows sets",
        memory->unbounded, log_plural(memory->unbounded),
        layout->tables[first].name, memory->unbounded == 1 ? "s" : "ve");
}

/* What the rows that there may be take of each of those that hold them. */
static uint64_t bytes_of_each(const struct run *run) {
    struct table_memory memory = table_memory_of(run);
    return run->allreduce ? memory.bytes : memory.bytes / run->roster.num_ps;
}

enum status table_memory_check(const struct run *run, struct failure *why) {
    char most[16], free[16];
    uint64_t there = table_memory_free(run, true);
    if (!run->allreduce || !there || bytes_of_each(run) <= there)
        return STATUS_OK;
    byte_size_text(bytes_of_each(run), most, sizeof most);
    byte_size_text(there, free, sizeof free);
    uint64_t most_there = least_share(run, true, true);
    return status_fail(
        why,
        most_there && bytes_of_each(run) > most_there ? FAILURE_JOB_TOO_LARGE
                                                      : FAILURE_NO_MEMORY,
        TABLE_MEMORY_TOO_LARGE
        " %s on each trainer, which has %s: start ps, which share them, or set "
        "a smaller max_rows, size or dim",
        most, free);
}

void table_memory_log(const struct run *run) {
    const struct layout *layout = run->plan.layout;
    struct table_memory memory = table_memory_of(run);
    uint64_t there = table_memory_free(run, run->allreduce);
    char most[16], free[16], rows[320];
    if (!layout->num_tables || (!run->allreduce && !run->roster.num_ps))
        return;
    byte_size_text(bytes_of_each(run), most, sizeof most);
    byte_size_text(there, free, sizeof free);
    describe_rows(run, &memory, most, rows, sizeof rows);
    log_info(run->log, "table_memory_planned",
             "memory: %s; %s has %s, and a checkpoint may take as much as its "
             "rows again",
             rows, holder_name(run), there ? free : "an unknown limit");
    if (there && bytes_of_each(run) > there)
        log_warning(run->log, "table_memory_short",
                    TABLE_MEMORY_TOO_LARGE
                    " %s on a ps, which has %s: a ps near that saves, and the "
                    "run ends; what helps is more ps on other hosts, or a "
                    "smaller max_rows, size or dim",
                    most, free);
}
