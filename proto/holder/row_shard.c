/* SPDX-License-Identifier: Apache-2.0 */
/* A round's parts are lists in one order, so one pass merges them: for each row
 * the gradients of those that have it, added in rank order, as a block's are. A
 * single part is applied from where it was received.
 *
 * A partition knows the number of its last update in its base, so rows that a
 * later one touched, or removed, are a delta against that base; and against any
 * base that was cut after it, which need not be on this ps. So one ps may learn
 * of a new base later than others do. */
#include "proto/holder/row_shard.h"

#include "core/store/copies.h"

#include "core/net/shm/buffer.h"
#include "core/store/shard_rows.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    CUTS_KEPT = COPIES_WAITING + 2 /* and the complete and the ordered one */
};

/* The rows of one stack of a round, and how many trainers pushed each. */
struct merged {
    struct row_keys keys;
    float *sums;       /* [room_sums] */
    uint16_t *pushes;  /* [room] */
    uint32_t *numbers; /* [room] */
    size_t room, room_sums;
};

/* One stack of a part: its rows, and their floats, which end at `end`. */
struct stack_part {
    const struct row_list *list; /* of all stacks */
    const struct row_keys *keys;
    const uint32_t *numbers, *numbers_end;
    const char *floats, *end;
};

/* What work on a partition needs from one round to the next. */
struct row_scratch {
    struct row_list *lists;   /* [num_parts], of parts without one */
    struct stack_part *parts; /* [num_parts] */
    uint32_t *next;           /* [num_parts] */
    struct merged merged;
};

struct row_partition {
    struct row_table **tables; /* [num_stacks] */
    struct row_scratch scratch;
    bool based; /* there is a base, after whose update `since` rows changed */
    uint64_t since;
    struct unit_cut full; /* the last full one: perhaps the next base */
    struct unit_cut copied[CUTS_KEPT]; /* the last whole copies likewise, newest
                                          first; id 0: there is none */
    uint64_t copy_base; /* the step of the copy that the next ones are against
                           (0: none), and of the last update before it */
    uint64_t copy_since;
};

struct row_shard {
    struct row_shard_settings settings;
    uint32_t num_stacks;
    struct row_partition *partitions;
    struct row_table_count *counts;  /* [num_tables] */
    struct row_list checking;        /* of row_shard_check */
    struct shard_rows_source *views; /* [num_stacks]: the last cut */
    struct buffer_pool *pool;        /* of all pages */
};

static enum status row_shard_no_memory(struct failure *why) {
    return status_fail(why, FAILURE_NO_MEMORY, "no memory for rows of tables");
}

static bool scratch_open(uint32_t parts, struct row_scratch *scratch) {
    scratch->lists = calloc(parts + 1, sizeof *scratch->lists);
    scratch->parts = calloc(parts + 1, sizeof *scratch->parts);
    scratch->next = calloc(parts + 1, sizeof *scratch->next);
    return scratch->lists && scratch->parts && scratch->next;
}

static void scratch_close(uint32_t parts, struct row_scratch *scratch) {
    for (uint32_t i = 0; scratch->lists && i < parts; i++)
        row_list_free(&scratch->lists[i]);
    free(scratch->lists);
    free(scratch->parts);
    free(scratch->next);
    row_keys_free(&scratch->merged.keys);
    free(scratch->merged.sums);
    free(scratch->merged.pushes);
    free(scratch->merged.numbers);
}

struct row_table_options row_shard_options(const struct row_shard *shard,
                                           uint32_t stack) {
    const struct row_shard_settings *s = &shard->settings;
    uint32_t group = layout_first_table(s->layout, stack)->optimizer;
    return (struct row_table_options){
        .layout = s->layout,
        .stack = stack,
        .seed = s->seed,
        .optimizer = group ? &s->groups[group - 1].optimizer : s->optimizer,
        .loops = s->loops,
        .counts = shard->counts,
        .pool = shard->pool,
        .lists_removed = (s->deltas || s->copies) &&
                         layout_first_table(s->layout, stack)->expire};
}

static enum status open_partition(struct row_shard *shard,
                                  struct row_partition *partition,
                                  struct failure *why) {
    enum status status = STATUS_OK;
    partition->tables = calloc(shard->num_stacks, sizeof *partition->tables);
    if (!partition->tables ||
        !scratch_open(shard->settings.num_parts, &partition->scratch))
        return row_shard_no_memory(why);
    for (uint32_t s = 0; !status && s < shard->num_stacks; s++) {
        struct row_table_options options = row_shard_options(shard, s);
        status = row_table_open(&partition->tables[s], &options, why);
    }
    return status;
}

/* No ps has more rows than all may have; the chief sums those of all. */
static bool open_counts(struct row_shard *shard) {
    const struct row_shard_settings *s = &shard->settings;
    shard->counts = calloc(s->layout->num_tables, sizeof *shard->counts);
    for (uint32_t t = 0; shard->counts && t < s->layout->num_tables; t++)
        shard->counts[t].most = s->layout->tables[t].max_rows;
    return shard->counts;
}

enum status row_shard_open(struct row_shard **out,
                           const struct row_shard_settings *settings,
                           struct failure *why) {
    struct row_shard *shard = calloc(1, sizeof *shard);
    *out = shard;
    if (!shard)
        return row_shard_no_memory(why);
    shard->settings = *settings;
    shard->num_stacks = settings->layout->num_stacks;
    shard->partitions = calloc(settings->count, sizeof *shard->partitions);
    shard->views = calloc(shard->num_stacks, sizeof *shard->views);
    shard->pool = buffer_pool_open();
    enum status status = STATUS_OK;
    if (!shard->partitions || !shard->views || !shard->pool ||
        !open_counts(shard))
        status = row_shard_no_memory(why);
    for (uint32_t p = 0; !status && p < settings->count; p++)
        status = open_partition(shard, &shard->partitions[p], why);
    if (status)
        row_shard_close(out);
    return status;
}

void row_shard_close(struct row_shard **where) {
    struct row_shard *shard = *where;
    *where = NULL;
    if (!shard)
        return;
    for (uint32_t p = 0; shard->partitions && p < shard->settings.count; p++) {
        struct row_partition *partition = &shard->partitions[p];
        for (uint32_t s = 0; partition->tables && s < shard->num_stacks; s++)
            row_table_close(&partition->tables[s]);
        free(partition->tables);
        scratch_close(shard->settings.num_parts, &partition->scratch);
    }
    row_list_free(&shard->checking);
    buffer_pool_close(&shard->pool);
    free(shard->partitions);
    free(shard->views);
    free(shard->counts);
    free(shard);
}

static bool are_of_partition(const struct row_shard *shard, uint32_t p,
                             const struct row_keys *keys) {
    const struct layout *layout = shard->settings.layout;
    uint32_t own = shard->settings.ids[p] - layout->num_blocks;
    for (uint32_t s = 0; s < shard->num_stacks; s++)
        for (uint32_t i = 0; i < keys[s].count; i++)
            if (layout_partition(layout, layout_row_hash(keys[s].tables[i],
                                                         keys[s].ids[i])) !=
                own)
                return false;
    return true;
}

static bool open_list(uint32_t num_stacks, struct row_list *list) {
    if (list->keys)
        return true;
    list->keys = calloc(num_stacks + 1, sizeof *list->keys);
    list->num_stacks = list->keys ? num_stacks : 0;
    return list->keys;
}

void row_list_free(struct row_list *list) {
    for (uint32_t s = 0; s < list->num_stacks; s++)
        row_keys_free(&list->keys[s]);
    free(list->keys);
    free(list->numbers);
    *list = (struct row_list){0};
}

/* Reads the lists; what follows them is not looked at. */
static enum status read_row_list(const struct row_shard *shard,
                                 const void *bytes, size_t size,
                                 struct row_list *list, struct failure *why) {
    const struct layout *layout = shard->settings.layout;
    if (!open_list(shard->num_stacks, list))
        return row_shard_no_memory(why);
    enum status status =
        row_keys_read(layout, bytes, size, list->keys, &list->size, why);
    list->rows = 0;
    for (uint32_t s = 0; !status && s < shard->num_stacks; s++)
        list->rows += list->keys[s].count;
    list->floats = status ? 0 : row_keys_floats(layout, list->keys);
    if (!status && list->places)
        list->floats = list->rows * ROW_FLOATS;
    return status;
}

static enum status check_list(const struct row_shard *shard, uint32_t p,
                              const void *bytes, size_t size, bool floats,
                              struct row_list *list, struct failure *why) {
    enum status status = read_row_list(shard, bytes, size, list, why);
    if (status)
        return status;
    if (size - list->size != (floats ? list->floats * sizeof(float) : 0))
        return status_fail(why, FAILURE_BAD_MESSAGE,
                           "rows with other bytes than their floats");
    return list->places || are_of_partition(shard, p, list->keys)
               ? STATUS_OK
               : status_fail(why, FAILURE_BAD_MESSAGE,
                             "a row of another partition");
}

enum status row_shard_read(const struct row_shard *shard, uint32_t p,
                           const void *bytes, size_t size, bool floats,
                           struct row_list *list, struct failure *why) {
    enum status status = check_list(shard, p, bytes, size, floats, list, why);
    list->looked_up = false;
    if (status)
        return status;
    if (list->rows > list->room) {
        free(list->numbers);
        list->numbers = malloc(list->rows * sizeof *list->numbers);
        list->room = list->numbers ? list->rows : 0;
        if (!list->numbers)
            return row_shard_no_memory(why);
    }
    return STATUS_OK;
}

enum status row_shard_check(struct row_shard *shard, uint32_t p,
                            const void *bytes, size_t size,
                            struct failure *why) {
    return check_list(shard, p, bytes, size, true, &shard->checking, why);
}

/* The numbers of LIST's rows; NULL: not known. */
static const uint32_t *list_numbers(const struct row_list *list) {
    return list->looked_up ? list->numbers : NULL;
}

/* The lists of all parts: those that come with them, or read now. */
static enum status read_parts(struct row_shard *shard, uint32_t p,
                              const struct unit_round *round,
                              struct failure *why) {
    struct row_scratch *scratch = &shard->partitions[p].scratch;
    enum status status = STATUS_OK;
    for (unsigned i = 0; !status && i < round->num_parts; i++) {
        const struct row_part *part = &round->parts[i];
        struct stack_part *of = &scratch->parts[i];
        of->list = part->list;
        if (!part->list) {
            of->list = &scratch->lists[i];
            status = read_row_list(shard, part->bytes, part->size,
                                   &scratch->lists[i], why);
        }
        of->numbers_end = list_numbers(of->list);
        of->end = (const char *)part->bytes + of->list->size;
    }
    return status;
}

static bool reserve_merged(struct merged *merged, size_t rows, uint32_t dim) {
    size_t floats = rows * dim;
    if (!row_keys_reserve(&merged->keys, rows))
        return false;
    if (rows > merged->room) {
        free(merged->pushes);
        free(merged->numbers);
        merged->pushes = malloc(rows * sizeof *merged->pushes);
        merged->numbers = malloc(rows * sizeof *merged->numbers);
        merged->room = merged->pushes && merged->numbers ? rows : 0;
    }
    if (floats > merged->room_sums) {
        free(merged->sums);
        merged->sums = malloc(floats * sizeof *merged->sums);
        merged->room_sums = merged->sums ? floats : 0;
    }
    return merged->room >= rows && merged->room_sums >= floats;
}

static bool comes_before(const struct row_keys *a, uint32_t i,
                         const struct row_keys *b, uint32_t j) {
    return a->tables[i] != b->tables[j] ? a->tables[i] < b->tables[j]
                                        : a->ids[i] < b->ids[j];
}

/* The part whose next row is the lowest; the first of equals. NUM_PARTS: none
 * is left. */
static unsigned lowest_part(const struct stack_part *parts, unsigned num_parts,
                            const uint32_t *next) {
    unsigned lowest = num_parts;
    for (unsigned i = 0; i < num_parts; i++) {
        if (next[i] == parts[i].keys->count)
            continue;
        if (lowest == num_parts ||
            comes_before(parts[i].keys, next[i], parts[lowest].keys,
                         next[lowest]))
            lowest = i;
    }
    return lowest;
}

/* Adds the gradient of part I's next row to SUM, or begins it. */
static void take_row(const struct stack_part *part, uint32_t *next,
                     uint32_t dim, float *sum, bool first) {
    const char *from = part->floats + (size_t)*next * dim * sizeof *sum;
    ++*next;
    if (first)
        memcpy(sum, from, dim * sizeof *sum);
    for (uint32_t d = 0; !first && d < dim; d++) {
        float value;
        memcpy(&value, from + d * sizeof value, sizeof value);
        sum[d] += value;
    }
}

/* Merges PARTS of one stack, of at most ROWS rows. */
static void merge_parts(const struct stack_part *parts, unsigned num_parts,
                        uint32_t dim, uint32_t *next, struct merged *out) {
    unsigned first;
    memset(next, 0, num_parts * sizeof *next);
    out->keys.count = 0;
    while ((first = lowest_part(parts, num_parts, next)) < num_parts) {
        uint32_t row = out->keys.count++;
        float *sum = out->sums + (size_t)row * dim;
        uint64_t id = parts[first].keys->ids[next[first]];
        uint16_t table = parts[first].keys->tables[next[first]];
        out->keys.ids[row] = id;
        out->keys.tables[row] = table;
        out->pushes[row] = 0;
        out->numbers[row] = parts[first].numbers
                                ? parts[first].numbers[next[first]]
                                : ROW_TABLE_NO_ROW;
        for (unsigned i = first; i < num_parts; i++) {
            const struct row_keys *keys = parts[i].keys;
            if (next[i] == keys->count || keys->ids[next[i]] != id ||
                keys->tables[next[i]] != table)
                continue;
            take_row(&parts[i], &next[i], dim, sum, !out->pushes[row]);
            out->pushes[row]++;
        }
    }
}

/* Fills UPDATE with the rows and gradients of STACK, the one after that of the
 * last call. */
static enum status gather_stack(struct row_shard *shard, uint32_t p,
                                uint32_t stack, unsigned num_parts,
                                struct row_table_update *update,
                                struct failure *why) {
    struct row_scratch *scratch = &shard->partitions[p].scratch;
    uint32_t dim = row_keys_dim(shard->settings.layout, stack);
    struct stack_part *parts = scratch->parts;
    size_t rows = 0;
    for (unsigned i = 0; i < num_parts; i++) {
        uint32_t count = parts[i].list->keys[stack].count;
        parts[i].keys = &parts[i].list->keys[stack];
        parts[i].numbers = parts[i].numbers_end;
        parts[i].numbers_end += parts[i].numbers ? count : 0;
        parts[i].floats = parts[i].end;
        parts[i].end += (size_t)count * dim * sizeof(float);
        rows += count;
    }
    update->keys = parts[0].keys;
    update->numbers = parts[0].numbers;
    update->gradients = parts[0].floats;
    update->pushes = NULL;
    if (num_parts == 1)
        return STATUS_OK;
    if (!reserve_merged(&scratch->merged, rows, dim))
        return row_shard_no_memory(why);
    merge_parts(parts, num_parts, dim, scratch->next, &scratch->merged);
    update->keys = &scratch->merged.keys;
    update->numbers = scratch->merged.numbers;
    update->gradients = scratch->merged.sums;
    update->pushes = scratch->merged.pushes;
    return STATUS_OK;
}

enum status row_shard_assign(struct row_shard *shard, uint32_t p,
                             const struct row_part *part, uint64_t step,
                             struct failure *why) {
    struct row_partition *partition = &shard->partitions[p];
    struct row_list *list = &partition->scratch.lists[0];
    /* Again, as its sender may write into a ring after the check. */
    enum status status =
        check_list(shard, p, part->bytes, part->size, true, list, why);
    const char *floats = (const char *)part->bytes + list->size;
    for (uint32_t s = 0; !status && s < shard->num_stacks; s++) {
        const struct row_keys *keys = &list->keys[s];
        status =
            row_table_assign(partition->tables[s], keys, floats, step, why);
        floats += (size_t)keys->count *
                  row_keys_dim(shard->settings.layout, s) * sizeof(float);
    }
    return status;
}

static void expire_rows(struct row_table *table, uint64_t expire,
                        uint64_t step) {
    uint64_t every = expire / 16 ? expire / 16 : 1;
    if (expire && step > expire && step % every == 0)
        (void)row_table_expire(table, step - expire, step);
}

static double row_shard_rate(const struct row_shard *shard,
                             const struct table *table,
                             const struct unit_round *round) {
    return table->optimizer
               ? shard->settings.groups[table->optimizer - 1].lr * round->factor
               : round->rate;
}

static enum status row_shard_update(void *holder, uint32_t p,
                                    const struct unit_round *round,
                                    struct failure *why) {
    struct row_shard *shard = holder;
    enum status status = STATUS_OK;
    /* An overflowed round has the step of the one before, after which a delta
     * may begin: its rows are of the next. */
    uint64_t step = round->step + !round->num_parts;
    for (unsigned i = 0; !status && i < round->num_assigned; i++)
        status = row_shard_assign(shard, p, &round->assigned[i], step, why);
    if (!status)
        status = read_parts(shard, p, round, why);
    for (uint32_t s = 0; !status && s < shard->num_stacks; s++) {
        struct row_table *table = shard->partitions[p].tables[s];
        const struct table *first =
            layout_first_table(shard->settings.layout, s);
        struct row_table_update update = {
            .step = round->step,
            .rule_step = round->rule_step,
            .optimizer = first->optimizer ? NULL : round->optimizer,
            .rate = row_shard_rate(shard, first, round),
            .scale = round->scale};
        if (round->num_parts)
            status = gather_stack(shard, p, s, round->num_parts, &update, why);
        if (!status && round->num_parts)
            status = row_table_apply(table, &update, why);
        expire_rows(table, first->expire, round->step);
    }
    return status;
}

static double squares(const struct row_table_update *update, uint32_t dim,
                      float scale) {
    const char *from = update->gradients;
    double sum = 0;
    for (size_t i = 0; i < (size_t)update->keys->count * dim; i++) {
        float value;
        memcpy(&value, from + i * sizeof value, sizeof value);
        value *= scale;
        sum += (double)value * (double)value;
    }
    return sum;
}

static double row_shard_square_sum(void *holder, uint32_t p,
                                   const struct unit_round *round) {
    struct row_shard *shard = holder;
    struct failure why;
    double sum = 0;
    if (!round->num_parts)
        return 0;
    if (read_parts(shard, p, round, &why))
        return NAN;
    for (uint32_t s = 0; s < shard->num_stacks; s++) {
        struct row_table_update update;
        if (gather_stack(shard, p, s, round->num_parts, &update, &why))
            return NAN;
        sum += squares(&update, row_keys_dim(shard->settings.layout, s),
                       round->scale);
    }
    return sum;
}

void row_shard_lookup(const struct row_shard *shard, uint32_t p,
                      struct row_table *const *held, struct row_list *list,
                      float *out) {
    uint32_t *numbers = held ? NULL : list->numbers;
    for (uint32_t s = 0; list->places && s < shard->num_stacks; s++) {
        row_table_at(held ? held[s] : shard->partitions[p].tables[s],
                     &list->keys[s], out);
        out += list->keys[s].count * ROW_FLOATS;
    }
    for (uint32_t s = 0; !list->places && s < shard->num_stacks; s++) {
        const struct row_keys *keys = &list->keys[s];
        row_table_lookup(held ? held[s] : shard->partitions[p].tables[s], keys,
                         numbers, out);
        out += (size_t)keys->count * row_keys_dim(shard->settings.layout, s);
        numbers += numbers ? keys->count : 0;
    }
    list->looked_up |= !held && !list->places;
}

void row_shard_prefetch(const struct row_shard *shard, uint32_t p) {
    for (uint32_t s = 0; s < shard->num_stacks; s++)
        row_table_prefetch(shard->partitions[p].tables[s]);
}

void row_shard_prefetch_rows(const struct row_shard *shard, uint32_t p,
                             const struct row_list *list) {
    const uint32_t *numbers = list_numbers(list);
    for (uint32_t s = 0; s < shard->num_stacks; s++) {
        row_table_prefetch_rows(shard->partitions[p].tables[s], &list->keys[s],
                                numbers);
        numbers += numbers ? list->keys[s].count : 0;
    }
}

uint64_t row_shard_list_bytes(const struct row_shard *shard, uint32_t p,
                              const struct row_list *list) {
    enum { INDEX_BYTES = 16 }; /* of a row, while the index is doubled too */
    uint64_t bytes = 0;
    for (uint32_t k = 0; k < list->num_stacks; k++)
        bytes +=
            list->keys[k].count *
            (INDEX_BYTES + row_table_row_bytes(shard->partitions[p].tables[k]));
    return bytes;
}

struct row_table *row_shard_table(const struct row_shard *shard, uint32_t p,
                                  uint32_t stack) {
    return shard->partitions[p].tables[stack];
}

/* What was removed since the base, after update SINCE, stays so in later deltas
 * against it. The numbers of the run before may be above those to come. */
static enum status restore_stack(struct row_table *table, uint32_t partition,
                                 const struct shard_rows_pair *rows,
                                 uint64_t since, struct failure *why) {
    struct shard_rows_cursor cursor;
    struct shard_rows_place place = {0};
    const struct row *row;
    enum status status = STATUS_OK;
    if (rows->rows->row_bytes != row_table_row_bytes(table))
        return status_fail(why, FAILURE_CHECKPOINT_DAMAGED,
                           "partition %u: rows of %zu bytes, not %zu",
                           partition, rows->rows->row_bytes,
                           row_table_row_bytes(table));
    shard_rows_seek(&cursor, rows, 0, 0);
    while (!status && (row = shard_rows_step(&cursor)))
        status = row_table_restore(table, row, 1, partition, why);
    while (!status && rows->removed &&
           (row = shard_rows_next(rows->removed, &place)))
        status = row_table_restore_removed(table, row, since, why);
    return status;
}

static enum status row_shard_restore(void *holder, uint32_t p,
                                     struct checkpoint_reader *reader,
                                     struct failure *why) {
    struct row_shard *shard = holder;
    const struct layout *layout = shard->settings.layout;
    uint32_t partition = shard->settings.ids[p] - layout->num_blocks;
    struct row_partition *own = &shard->partitions[p];
    enum status status = checkpoint_reader_since(reader, partition, &own->based,
                                                 &own->since, why);
    for (uint32_t s = 0; !status && s < shard->num_stacks; s++) {
        struct shard_rows_pair rows;
        status = checkpoint_reader_rows(reader, partition, s, &rows, why);
        if (!status)
            status = restore_stack(own->tables[s], partition, &rows, own->since,
                                   why);
    }
    return status;
}

uint32_t row_shard_partitions(const struct row_shard *shard) {
    return shard->settings.count;
}

static bool is_cut_of_copy(const struct unit_cut *cut) {
    return cut->form == CAPSTAN__SNAPSHOT__FORM__COPY;
}

/* May CUT have only what changed after update *SINCE? Numbers of updates are
 * compared within 2^31 of each other. */
static bool may_be_delta(const struct row_partition *own,
                         const struct unit_cut *cut, uint64_t *since) {
    bool based =
        is_cut_of_copy(cut)
            ? own->copy_base > 0
            : cut->form == CAPSTAN__SNAPSHOT__FORM__DELTA && own->based;
    *since = is_cut_of_copy(cut) ? own->copy_since : own->since;
    return based && cut->step - *since < INT32_MAX;
}

/* CUT is whole, and what comes later may be against it. */
static void note_whole(struct row_partition *own, const struct unit_cut *cut) {
    if (cut->form == CAPSTAN__SNAPSHOT__FORM__FULL)
        own->full = *cut;
    if (!is_cut_of_copy(cut))
        return;
    memmove(&own->copied[1], &own->copied[0],
            sizeof own->copied - sizeof own->copied[0]);
    own->copied[0] = *cut;
}

/* Rows that were removed before this update are missing in all that a delta is,
 * or may come to be, against. */
static uint64_t first_needed(const struct row_shard *shard,
                             const struct row_partition *own) {
    bool deltas = shard->settings.deltas;
    uint64_t first = deltas && own->based ? own->since : UINT64_MAX;
    if (deltas && own->full.id && own->full.step < first)
        first = own->full.step;
    if (own->copy_base && own->copy_since < first)
        first = own->copy_since;
    for (int i = 0; i < CUTS_KEPT; i++)
        if (own->copied[i].id && own->copied[i].step < first)
            first = own->copied[i].step;
    return first;
}

static void row_shard_cut(void *holder, uint32_t p, const struct unit_cut *cut,
                          struct snapshots_block *block) {
    struct row_shard *shard = holder;
    struct shard_rows_source *rows = shard->views;
    struct row_partition *own = &shard->partitions[p];
    uint64_t since;
    bool delta = may_be_delta(own, cut, &since);
    if (!delta)
        note_whole(own, cut);
    block->base = delta && is_cut_of_copy(cut) ? own->copy_base : 0;
    block->rows = rows;
    for (uint32_t s = 0; s < shard->num_stacks; s++) {
        struct row_table *table = own->tables[s];
        uint64_t admitted;
        rows[s] = (struct shard_rows_source){
            .rows = (uint32_t)row_table_rows(table, &admitted),
            .page_rows = row_table_page_rows(table),
            .row_bytes = row_table_row_bytes(table),
            .delta = delta,
            .since = since};
        rows[s].pages = row_table_pages(table, &rows[s].num_pages);
        if (delta || is_cut_of_copy(cut))
            row_table_forget_removed(table, first_needed(shard, own));
        if (!delta)
            continue;
        rows[s].removed = row_table_removed(table, &rows[s].num_removed);
    }
}

const struct unit_table row_shard_units = {
    row_shard_update, row_shard_square_sum, row_shard_restore, row_shard_cut};

void row_shard_set_base(struct row_shard *shard, uint64_t id) {
    for (uint32_t p = 0; p < shard->settings.count; p++) {
        struct row_partition *own = &shard->partitions[p];
        if (own->full.id != id)
            continue;
        own->based = true;
        own->since = own->full.step;
    }
}

void row_shard_set_copy_base(struct row_shard *shard, uint64_t id,
                             uint64_t step) {
    for (uint32_t p = 0; p < shard->settings.count; p++) {
        struct row_partition *own = &shard->partitions[p];
        int i = 0;
        while (i < CUTS_KEPT && (!id || own->copied[i].id != id))
            i++;
        own->copy_base = i < CUTS_KEPT ? step : 0;
        own->copy_since = i < CUTS_KEPT ? own->copied[i].step : 0;
        for (; i < CUTS_KEPT; i++)
            own->copied[i].id = 0; /* nothing is against older ones */
    }
}

size_t row_shard_copied_bytes(const struct row_shard *shard) {
    size_t own = 0, taken = buffer_pool_used_bytes(shard->pool);
    for (uint32_t p = 0; p < shard->settings.count; p++)
        for (uint32_t s = 0; s < shard->num_stacks; s++) {
            const struct row_table *table = shard->partitions[p].tables[s];
            own += row_table_num_pages(table) * row_table_page_bytes(table);
        }
    return taken > own ? taken - own : 0;
}

uint64_t row_shard_rows(const struct row_shard *shard, uint32_t table) {
    return atomic_load_explicit(&shard->counts[table].rows,
                                memory_order_relaxed);
}

void row_shard_report(const struct row_shard *shard, uint64_t *counts,
                      Capstan__Heartbeat *heartbeat) {
    uint32_t tables = shard->settings.layout->num_tables;
    heartbeat->n_table_rows = heartbeat->n_table_admitted =
        heartbeat->n_table_expired = tables;
    heartbeat->table_rows = counts;
    heartbeat->table_admitted = counts + tables;
    heartbeat->table_expired = counts + 2 * tables;
    for (uint32_t t = 0; t < tables; t++) {
        const struct row_table_count *count = &shard->counts[t];
        heartbeat->table_rows[t] =
            atomic_load_explicit(&count->rows, memory_order_relaxed);
        heartbeat->table_admitted[t] =
            atomic_load_explicit(&count->admitted, memory_order_relaxed);
        heartbeat->table_expired[t] =
            atomic_load_explicit(&count->expired, memory_order_relaxed);
    }
}

uint64_t row_shard_bytes(const struct row_shard *shard) {
    const struct layout *layout = shard->settings.layout;
    uint64_t bytes = 0;
    for (uint32_t t = 0; shard->settings.count && t < layout->num_tables; t++)
        bytes += row_shard_rows(shard, t) *
                 row_table_row_bytes(
                     row_shard_table(shard, 0, layout->tables[t].stack));
    return bytes;
}
