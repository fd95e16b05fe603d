/* SPDX-License-Identifier: Apache-2.0 */
/* What a rank sends in a round is a directory, an entry for each partition with
 * rows, then their bytes, as a push to a ps has them: lists, then gradients,
 * then the rows that it sets.
 * The mutex guards the rows, which the compute thread reads while the reducer's
 * thread may save them, and what the two threads tell each other. */
#include "worker/exchange/allreduce/row_reducer.h"

#include "core/base/time.h"
#include "core/base/waiter.h"
#include "core/tensor/rule.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum {
    UNIT = 16,            /* floats: pieces of a gather end at these */
    MOST_BYTES = 1 << 24, /* of a number in one float */
};

/* Floats of the first gather, UNIT of each rank. */
enum { SIZE_LOW, SIZE_HIGH, WEIGHT, HAS_GRADIENTS };

struct entry {
    uint32_t partition, bytes; /* of gradients */
    uint32_t assigned;         /* bytes of rows that are set */
};

struct pushed {
    struct row_batch *rows;    /* NULL: no gradients */
    struct row_batch *written; /* NULL: no rows are set */
    uint64_t clock;
    enum contribution kind;
    bool waits; /* to be gathered */
};

struct row_reducer {
    struct row_reducer_settings settings;
    uint32_t *ids; /* [num_partitions]: units */
    struct row_shard *rows;
    struct row_list *lists;            /* [num_ranks], of one partition */
    struct row_part *parts, *assigned; /* [num_ranks] */

    /* The gathered round. */
    float *floats; /* [num_ranks, piece] */
    size_t piece, room;
    float *sizes;      /* [num_ranks, UNIT] */
    const char **next; /* [num_ranks]: where a rank's next partition begins */
    uint32_t *entries; /* [num_ranks]: its number in the directory */
    uint32_t weight;   /* replicas that count in the mean */
    uint64_t *rule_steps; /* [num_partitions]: of the rounds so far, those to
                             which some rank brought rows */

    struct waiter waiter;
    /* ns. Read without the mutex, which is held while rows are updated. */
    atomic_int_least64_t waited;
    struct pushed pushed;
    struct row_batch *written;     /* with the next push */
    struct row_batch *begins_with; /* rank 0's; NULL: not there yet */
    uint64_t last;                 /* clock of the last push */
    uint64_t applied;              /* the last round whose rows are here */
    bool loaded;
    atomic_int_least64_t update_ns;
    void (*fail)(void *context, const struct failure *why);
    void *context;
    struct row_batch *wanted; /* by a lookup */
    uint64_t wanted_after;
};

static enum status row_reducer_no_memory(struct failure *why) {
    return status_fail(why, FAILURE_NO_MEMORY,
                       "no memory for the rows of tables");
}

static uint32_t row_partitions(const struct row_reducer *reducer) {
    return reducer->settings.plan->layout->num_partitions;
}

static enum status open_row_shard(struct row_reducer *reducer,
                                  struct failure *why) {
    const struct row_reducer_settings *s = &reducer->settings;
    size_t variants;
    struct row_shard_settings rows = {
        .layout = s->plan->layout,
        .ids = reducer->ids,
        .count = row_partitions(reducer),
        .num_parts = s->num_ranks,
        .seed = s->job->seed,
        .optimizer = s->plan->groups ? &s->plan->groups[0].optimizer
                                     : &s->job->optimizer,
        .groups = s->plan->table_groups,
        .loops = s->loops ? s->loops : rule_variants(&variants)[0],
        .deltas = s->rank == 0 && s->job->checkpoint.delta_every_steps};
    return row_shard_open(&reducer->rows, &rows, why);
}

enum status row_reducer_open(struct row_reducer **out,
                             const struct row_reducer_settings *settings,
                             struct failure *why) {
    struct row_reducer *reducer = calloc(1, sizeof *reducer);
    uint32_t ranks = settings->num_ranks;
    *out = reducer;
    if (!reducer)
        return row_reducer_no_memory(why);
    reducer->settings = *settings;
    waiter_open(&reducer->waiter);
    reducer->applied = reducer->last = settings->plan->run_schedule.start;
    reducer->ids = calloc(row_partitions(reducer), sizeof *reducer->ids);
    reducer->rule_steps =
        calloc(row_partitions(reducer), sizeof *reducer->rule_steps);
    reducer->lists = calloc(ranks, sizeof *reducer->lists);
    reducer->parts = calloc(ranks, sizeof *reducer->parts);
    reducer->assigned = calloc(ranks, sizeof *reducer->assigned);
    reducer->next = calloc(ranks, sizeof *reducer->next);
    reducer->entries = calloc(ranks, sizeof *reducer->entries);
    reducer->sizes = aligned_alloc(64, ranks * UNIT * sizeof(float));
    enum status status = STATUS_OK;
    if (!reducer->ids || !reducer->rule_steps || !reducer->lists ||
        !reducer->parts || !reducer->assigned || !reducer->next ||
        !reducer->entries || !reducer->sizes)
        status = row_reducer_no_memory(why);
    for (uint32_t p = 0; !status && p < row_partitions(reducer); p++)
        reducer->ids[p] = settings->plan->layout->num_blocks + p;
    if (!status)
        status = open_row_shard(reducer, why);
    if (status)
        row_reducer_close(out);
    return status;
}

void row_reducer_close(struct row_reducer **where) {
    struct row_reducer *reducer = *where;
    *where = NULL;
    if (!reducer)
        return;
    row_shard_close(&reducer->rows);
    for (uint32_t r = 0; reducer->lists && r < reducer->settings.num_ranks; r++)
        row_list_free(&reducer->lists[r]);
    waiter_close(&reducer->waiter);
    free(reducer->floats);
    free(reducer->sizes);
    free(reducer->entries);
    free(reducer->next);
    free(reducer->assigned);
    free(reducer->parts);
    free(reducer->lists);
    free(reducer->rule_steps);
    free(reducer->ids);
    free(reducer);
}

void row_reducer_cancel(struct row_reducer *reducer) {
    waiter_cancel(&reducer->waiter);
}

void row_reducer_report(const struct row_reducer *reducer, uint64_t *counts,
                        Capstan__Heartbeat *heartbeat) {
    row_shard_report(reducer->rows, counts, heartbeat);
}

uint32_t row_reducer_peers(const struct row_reducer *reducer) {
    return reducer->settings.num_ranks - 1;
}

double row_reducer_waited(const struct row_reducer *reducer) {
    return time_to_seconds(atomic_load(&reducer->waited));
}

double row_reducer_update_seconds(const struct row_reducer *reducer) {
    return time_to_seconds(atomic_load(&reducer->update_ns));
}

void row_reducer_on_failure(struct row_reducer *reducer,
                            void (*fail)(void *context,
                                         const struct failure *why),
                            void *context) {
    reducer->fail = fail;
    reducer->context = context;
}

void row_reducer_set_base(struct row_reducer *reducer, uint64_t id) {
    waiter_enter(&reducer->waiter);
    row_shard_set_base(reducer->rows, id);
    waiter_leave(&reducer->waiter);
}

/* The compute thread. */

void row_reducer_lookup(struct row_reducer *reducer, uint64_t clock,
                        struct row_batch *rows) {
    reducer->wanted = rows;
    reducer->wanted_after = clock ? clock : reducer->last;
}

/* The mutex is held. */
static enum status look_rows_up(struct row_reducer *reducer,
                                const struct row_batch *batch,
                                struct failure *why) {
    struct row_list *list = &reducer->lists[reducer->settings.rank];
    enum status status = STATUS_OK;
    list->places = batch->places;
    for (uint32_t p = 0; !status && p < row_partitions(reducer); p++) {
        const struct row_batch_part *part = &batch->parts[p];
        if (!part->bytes)
            continue;
        status =
            row_shard_read(reducer->rows, p, batch->bytes + part->first_byte,
                           part->bytes, false, list, why);
        if (!status)
            row_shard_lookup(reducer->rows, p, NULL, list,
                             batch->weights + part->first_float);
    }
    list->places = false;
    return status;
}

static bool rows_may_be_read(const struct row_reducer *reducer) {
    return !reducer->wanted ||
           (reducer->loaded && reducer->applied >= reducer->wanted_after);
}

static bool is_gathered(const struct row_reducer *reducer) {
    return !reducer->pushed.waits;
}

/* Waits until IS_MET; the mutex is held. */
static bool await_round(struct row_reducer *reducer,
                        bool (*is_met)(const struct row_reducer *),
                        int64_t until) {
    int64_t waited = 0;
    while (!is_met(reducer) && waiter_wait(&reducer->waiter, until, &waited))
        ;
    if (waited)
        atomic_fetch_add(&reducer->waited, waited);
    return is_met(reducer) && !reducer->waiter.cancelled;
}

bool row_reducer_wait_rows(struct row_reducer *reducer, int64_t until) {
    struct failure why;
    enum status status = STATUS_OK;
    waiter_enter(&reducer->waiter);
    bool here = await_round(reducer, rows_may_be_read, until);
    if (here && reducer->wanted)
        status = look_rows_up(reducer, reducer->wanted, &why);
    if (here)
        reducer->wanted = NULL;
    waiter_leave(&reducer->waiter);
    if (status)
        reducer->fail(reducer->context, &why);
    return here && !status;
}

bool row_reducer_push(struct row_reducer *reducer, uint64_t clock,
                      enum contribution kind, struct row_batch *rows) {
    waiter_enter(&reducer->waiter);
    bool has_room = await_round(reducer, is_gathered, TIME_NEVER);
    if (has_room)
        reducer->pushed =
            (struct pushed){rows, reducer->written, clock, kind, true};
    reducer->written = NULL;
    reducer->last = clock;
    waiter_leave_changed(&reducer->waiter);
    return has_room;
}

void row_reducer_write(struct row_reducer *reducer, struct row_batch *rows) {
    waiter_enter(&reducer->waiter);
    reducer->written = rows;
    waiter_leave(&reducer->waiter);
}

void row_reducer_begin_with(struct row_reducer *reducer,
                            struct row_batch *rows) {
    waiter_enter(&reducer->waiter);
    reducer->begins_with = rows;
    waiter_leave_changed(&reducer->waiter);
}

bool row_reducer_wait_pushed(struct row_reducer *reducer, int64_t until) {
    waiter_enter(&reducer->waiter);
    bool gathered = await_round(reducer, is_gathered, until);
    waiter_leave(&reducer->waiter);
    return gathered;
}

/* The reducer's thread. */

/* Bytes of ROWS (NULL: none) in partition P. */
static uint32_t bytes_of(const struct row_batch *rows, uint32_t p) {
    const struct row_batch_part *part = rows ? &rows->parts[p] : NULL;
    return part && part->bytes
               ? part->bytes + part->floats * (uint32_t)sizeof(float)
               : 0;
}

static struct entry pushed_entry(const struct pushed *pushed, uint32_t p) {
    return (struct entry){p, bytes_of(pushed->rows, p),
                          bytes_of(pushed->written, p)};
}

static bool is_end(const struct entry *entry) {
    return !entry->bytes && !entry->assigned;
}

static size_t message_bytes(const struct row_reducer *reducer,
                            const struct pushed *pushed) {
    size_t bytes = sizeof(struct entry);
    for (uint32_t p = 0; p < row_partitions(reducer); p++) {
        struct entry entry = pushed_entry(pushed, p);
        if (!is_end(&entry))
            bytes += sizeof entry + entry.bytes + entry.assigned;
    }
    return bytes;
}

/* Copies partition P's lists and floats of ROWS (NULL: none); their end. */
static char *write_rows(const struct row_batch *rows, uint32_t p, char *to) {
    const struct row_batch_part *part = rows ? &rows->parts[p] : NULL;
    if (!part || !part->bytes)
        return to;
    memcpy(to, rows->bytes + part->first_byte, part->bytes);
    memcpy(to + part->bytes, rows->gradients + part->first_float,
           part->floats * sizeof(float));
    return to + bytes_of(rows, p);
}

/* The directory ends with an entry without bytes. */
static void write_message(const struct row_reducer *reducer,
                          const struct pushed *pushed, char *to) {
    struct entry entry;
    for (uint32_t p = 0; p < row_partitions(reducer); p++) {
        entry = pushed_entry(pushed, p);
        if (is_end(&entry))
            continue;
        memcpy(to, &entry, sizeof entry);
        to += sizeof entry;
    }
    entry = (struct entry){0};
    memcpy(to, &entry, sizeof entry);
    to += sizeof entry;
    for (uint32_t p = 0; p < row_partitions(reducer); p++) {
        to = write_rows(pushed->rows, p, to);
        to = write_rows(pushed->written, p, to);
    }
}

/* Has ROWS (NULL: none) any? */
static bool has_any(const struct row_batch *rows) {
    return rows && rows->num_rows;
}

/* How many bytes each rank sends, and which replicas count. */
static enum status gather_sizes(struct row_reducer *reducer,
                                struct group *ranks,
                                const struct pushed *pushed, size_t bytes,
                                struct failure *why) {
    const struct row_reducer_settings *s = &reducer->settings;
    float *own = reducer->sizes + (size_t)s->rank * UNIT;
    bool counts =
        pushed->kind == CONTRIBUTION_FULL || pushed->kind == CONTRIBUTION_ZERO;
    memset(own, 0, UNIT * sizeof *own);
    own[SIZE_LOW] = (float)(bytes % MOST_BYTES);
    own[SIZE_HIGH] = (float)(bytes / MOST_BYTES);
    own[HAS_GRADIENTS] = has_any(pushed->rows);
    own[WEIGHT] = counts ? (float)plan_replicas(s->plan, s->rank) : 0;
    enum status status = group_all_gather(ranks, reducer->sizes,
                                          (size_t)s->num_ranks * UNIT, why);
    reducer->weight = 0;
    for (uint32_t r = 0; !status && r < s->num_ranks; r++)
        reducer->weight += (uint32_t)reducer->sizes[r * UNIT + WEIGHT];
    return status;
}

static size_t size_of(const struct row_reducer *reducer, uint32_t rank) {
    const float *sizes = reducer->sizes + (size_t)rank * UNIT;
    return (size_t)sizes[SIZE_HIGH] * MOST_BYTES + (size_t)sizes[SIZE_LOW];
}

/* Has some rank brought rows to the gathered round? */
static bool has_rows(const struct row_reducer *reducer) {
    for (uint32_t r = 0; r < reducer->settings.num_ranks; r++)
        if (reducer->sizes[r * UNIT + HAS_GRADIENTS] != 0)
            return true;
    return false;
}

static enum status reserve_pieces(struct row_reducer *reducer,
                                  struct failure *why) {
    size_t most = 0;
    for (uint32_t r = 0; r < reducer->settings.num_ranks; r++)
        if (size_of(reducer, r) > most)
            most = size_of(reducer, r);
    reducer->piece =
        (most + UNIT * sizeof(float) - 1) / (UNIT * sizeof(float)) * UNIT;
    size_t floats = reducer->piece * reducer->settings.num_ranks;
    if (floats <= reducer->room)
        return STATUS_OK;
    floats += floats / 2 / UNIT * UNIT;
    free(reducer->floats);
    reducer->floats = aligned_alloc(64, floats * sizeof *reducer->floats);
    reducer->room = reducer->floats ? floats : 0;
    return reducer->floats ? STATUS_OK : row_reducer_no_memory(why);
}

static bool await_push(struct row_reducer *reducer, uint64_t round,
                       struct pushed *pushed) {
    waiter_enter(&reducer->waiter);
    while (!(reducer->pushed.waits && reducer->pushed.clock == round) &&
           waiter_wait(&reducer->waiter, TIME_NEVER, NULL))
        ;
    *pushed = reducer->pushed;
    bool cancelled = reducer->waiter.cancelled;
    waiter_leave(&reducer->waiter);
    return !cancelled;
}

static void end_push(struct row_reducer *reducer) {
    waiter_enter(&reducer->waiter);
    reducer->pushed = (struct pushed){0};
    waiter_leave_changed(&reducer->waiter);
}

enum status row_reducer_gather(struct row_reducer *reducer, struct group *ranks,
                               uint64_t round, bool *pushed,
                               struct failure *why) {
    struct pushed own;
    *pushed = await_push(reducer, round, &own);
    if (!*pushed)
        return STATUS_OK;
    size_t bytes = message_bytes(reducer, &own);
    enum status status = gather_sizes(reducer, ranks, &own, bytes, why);
    if (!status)
        status = reserve_pieces(reducer, why);
    if (!status)
        write_message(reducer, &own,
                      (char *)(reducer->floats +
                               reducer->settings.rank * reducer->piece));
    end_push(reducer);
    return status
               ? status
               : group_all_gather(ranks, reducer->floats,
                                  reducer->piece * reducer->settings.num_ranks,
                                  why);
}

static const char *message_of(const struct row_reducer *reducer,
                              uint32_t rank) {
    return (const char *)(reducer->floats + rank * reducer->piece);
}

static struct entry entry_of_rank(const struct row_reducer *reducer,
                                  uint32_t rank) {
    struct entry entry;
    memcpy(&entry,
           message_of(reducer, rank) + reducer->entries[rank] * sizeof entry,
           sizeof entry);
    return entry;
}

/* Before the first partition of a round. */
static enum status begin_parts(struct row_reducer *reducer,
                               struct failure *why) {
    for (uint32_t r = 0; r < reducer->settings.num_ranks; r++) {
        const char *message = message_of(reducer, r);
        size_t size = size_of(reducer, r), bytes = 0, read = 0;
        struct entry entry = {0, 1, 0};
        while (!is_end(&entry) && read + sizeof entry <= size) {
            memcpy(&entry, message + read, sizeof entry);
            read += sizeof entry;
            bytes += (size_t)entry.bytes + entry.assigned;
        }
        if (!is_end(&entry) || read + bytes != size)
            return status_fail(why, FAILURE_BAD_MESSAGE,
                               "rank %u: rows with other bytes than listed", r);
        reducer->next[r] = message + read;
        reducer->entries[r] = 0;
    }
    return STATUS_OK;
}

/* The rows of ENTRY that follow those of the partitions before: gradients, then
 * what is set. */
static enum status take_part(struct row_reducer *reducer, uint32_t rank,
                             const struct entry *entry, struct unit_round *of,
                             struct failure *why) {
    enum status status = STATUS_OK;
    const char *bytes = reducer->next[rank], *rows = bytes + entry->bytes;
    if (entry->bytes) {
        struct row_list *list = &reducer->lists[of->num_parts];
        status = row_shard_read(reducer->rows, entry->partition, bytes,
                                entry->bytes, true, list, why);
        reducer->parts[of->num_parts++] =
            (struct row_part){bytes, entry->bytes, list};
    }
    if (!status && entry->assigned) {
        status = row_shard_check(reducer->rows, entry->partition, rows,
                                 entry->assigned, why);
        reducer->assigned[of->num_assigned++] =
            (struct row_part){rows, entry->assigned, NULL};
    }
    reducer->next[rank] = rows + entry->assigned;
    reducer->entries[rank]++;
    return status;
}

/* The parts of partition P, of the ranks that have some, in rank order, to OF;
 * after those of the partitions before it. */
static enum status take_parts(struct row_reducer *reducer, uint32_t p,
                              struct unit_round *of, struct failure *why) {
    enum status status = STATUS_OK;
    of->num_parts = of->num_assigned = 0;
    for (uint32_t r = 0; !status && r < reducer->settings.num_ranks; r++) {
        struct entry entry = entry_of_rank(reducer, r);
        if (!is_end(&entry) && entry.partition == p)
            status = take_part(reducer, r, &entry, of, why);
    }
    return status;
}

/* After the last partition of a round. */
static enum status end_parts(const struct row_reducer *reducer,
                             struct failure *why) {
    for (uint32_t r = 0; r < reducer->settings.num_ranks; r++) {
        struct entry entry = entry_of_rank(reducer, r);
        if (!is_end(&entry))
            return status_fail(why, FAILURE_BAD_MESSAGE,
                               "rank %u: rows of partition %u, out of order or "
                               "of no partition",
                               r, entry.partition);
    }
    return STATUS_OK;
}

static float scale_of_rows(const struct row_reducer *reducer) {
    return reducer->weight ? 1.0f / (float)reducer->weight : 1.0f;
}

enum status row_reducer_square_sum(struct row_reducer *reducer, double *out,
                                   struct failure *why) {
    struct unit_round of = {.parts = reducer->parts,
                            .assigned = reducer->assigned,
                            .scale = scale_of_rows(reducer)};
    int64_t start = time_now();
    *out = 0;
    waiter_enter(&reducer->waiter);
    enum status status = begin_parts(reducer, why);
    for (uint32_t p = 0; !status && p < row_partitions(reducer); p++) {
        status = take_parts(reducer, p, &of, why);
        if (!status)
            *out += row_shard_units.square_sum(reducer->rows, p, &of);
    }
    waiter_leave(&reducer->waiter);
    atomic_fetch_add(&reducer->update_ns, time_now() - start);
    if (!status && !isfinite(*out))
        status = status_fail(why, FAILURE_LOSS_NOT_FINITE,
                             "the rows of tables have no norm to clip by: a "
                             "gradient is not finite, or memory is short");
    return status;
}

enum status row_reducer_apply(struct row_reducer *reducer,
                              const struct row_reducer_round *round,
                              const struct row_reducer_storage *storage,
                              struct failure *why) {
    struct unit_round of = {.parts = reducer->parts,
                            .assigned = reducer->assigned,
                            .step = round->step,
                            .rate = round->rate,
                            .factor = round->factor,
                            .optimizer = round->optimizer,
                            .scale = scale_of_rows(reducer) * round->clip};
    if (storage)
        storage->await(storage->context, reducer->rows);
    int64_t start = time_now();
    bool counts = has_rows(reducer) && !round->overflowed;
    waiter_enter(&reducer->waiter);
    enum status status = begin_parts(reducer, why);
    for (uint32_t p = 0; !status && p < row_partitions(reducer); p++) {
        status = take_parts(reducer, p, &of, why);
        if (round->overflowed)
            of.num_parts = 0;
        of.rule_step = reducer->rule_steps[p] += counts;
        if (!status)
            status = row_shard_units.update(reducer->rows, p, &of, why);
    }
    if (!status)
        status = end_parts(reducer, why);
    if (!status)
        reducer->applied = round->round;
    waiter_leave_changed(&reducer->waiter);
    atomic_fetch_add(&reducer->update_ns, time_now() - start);
    return status;
}

/* Copies rows, of a multiple of 8 bytes each, from rank 0 to all. */
static enum status send_bytes(struct group *ranks, void *data, size_t bytes,
                              struct failure *why) {
    return group_broadcast(ranks, data, bytes / sizeof(float), 0, why);
}

/* The rows of TABLE in partition P: rank 0's, page by page. */
static enum status broadcast_table(struct group *ranks, uint32_t p,
                                   struct row_table *table,
                                   struct failure *why) {
    size_t bytes = row_table_row_bytes(table), num_pages, page = 0;
    uint32_t page_rows = row_table_page_rows(table);
    bool is_source = ranks->rank == 0;
    uint64_t admitted;
    float header[UNIT] = {0};
    uint64_t rows = is_source ? row_table_rows(table, &admitted) : 0;
    struct buffer *const *pages =
        is_source ? row_table_pages(table, &num_pages) : NULL;
    header[SIZE_LOW] = (float)(rows % MOST_BYTES);
    header[SIZE_HIGH] = (float)(rows / MOST_BYTES);
    enum status status = group_broadcast(ranks, header, UNIT, 0, why);
    rows =
        (uint64_t)header[SIZE_HIGH] * MOST_BYTES + (uint64_t)header[SIZE_LOW];
    char *copy = is_source || !rows ? NULL : malloc(page_rows * bytes);
    if (!status && !is_source && rows && !copy)
        status = row_reducer_no_memory(why);
    for (; !status && rows; page++) {
        uint32_t count = rows < page_rows ? (uint32_t)rows : page_rows;
        void *data = is_source ? buffer_data(pages[page]) : copy;
        status = send_bytes(ranks, data, count * bytes, why);
        if (!status && !is_source)
            status = row_table_restore(table, data, count, p, why);
        rows -= count;
    }
    free(copy);
    return status;
}

/* Waits for rank 0's rows to begin with; false: it was cancelled. */
static bool await_begin(struct row_reducer *reducer) {
    waiter_enter(&reducer->waiter);
    while (!reducer->begins_with &&
           waiter_wait(&reducer->waiter, TIME_NEVER, NULL))
        ;
    bool cancelled = reducer->waiter.cancelled;
    waiter_leave(&reducer->waiter);
    return !cancelled;
}

/* Rank 0's rows of partition P. */
static enum status begin_partition(struct row_reducer *reducer, uint32_t p,
                                   struct failure *why) {
    const struct row_batch *rows = reducer->begins_with;
    uint32_t size = bytes_of(rows, p);
    char *bytes = size ? malloc(size) : NULL;
    if (!size)
        return STATUS_OK;
    if (!bytes)
        return row_reducer_no_memory(why);
    (void)write_rows(rows, p, bytes);
    const struct row_part part = {bytes, size, NULL};
    enum status status =
        row_shard_assign(reducer->rows, p, &part, reducer->applied, why);
    free(bytes);
    return status;
}

/* Partition P of rank 0, from a checkpoint or as it begins, to all RANKS. */
static enum status load_partition(struct row_reducer *reducer,
                                  struct group *ranks, uint32_t p,
                                  const struct row_reducer_storage *storage,
                                  struct failure *why) {
    const struct row_reducer_settings *s = &reducer->settings;
    enum status status = STATUS_OK;
    if (!s->plan->restore_folder && s->rank == 0)
        status = begin_partition(reducer, p, why);
    else if (storage && s->plan->restore_folder)
        status = storage->restore(storage->context, reducer->rows, p,
                                  &reducer->rule_steps[p], why);
    for (uint32_t k = 0;
         !status && s->num_ranks > 1 && k < s->plan->layout->num_stacks; k++)
        status = broadcast_table(ranks, p, row_shard_table(reducer->rows, p, k),
                                 why);
    return status;
}

enum status row_reducer_load(struct row_reducer *reducer, struct group *ranks,
                             const struct row_reducer_storage *storage,
                             struct failure *why) {
    const struct row_reducer_settings *s = &reducer->settings;
    bool resumes = s->plan->restore_folder != NULL;
    bool begins = !resumes && layout_assigns_rows(s->plan->layout);
    enum status status = STATUS_OK;
    if (begins && s->rank == 0 && !await_begin(reducer))
        return STATUS_OK; /* no round follows */
    for (uint32_t p = 0;
         (resumes || begins) && !status && p < row_partitions(reducer); p++)
        status = load_partition(reducer, ranks, p, storage, why);
    if (resumes && !status && s->num_ranks > 1)
        status = send_bytes(
            ranks, reducer->rule_steps,
            row_partitions(reducer) * sizeof *reducer->rule_steps, why);
    waiter_enter(&reducer->waiter);
    reducer->loaded = !status;
    waiter_leave_changed(&reducer->waiter);
    return status;
}

enum status row_reducer_save(struct row_reducer *reducer,
                             const struct row_reducer_storage *storage,
                             uint64_t round, uint64_t step,
                             struct failure *why) {
    enum status status = STATUS_OK;
    for (uint32_t p = 0; !status && p < row_partitions(reducer); p++) {
        const struct row_reducer_saved as = {round, step,
                                             reducer->rule_steps[p]};
        waiter_enter(&reducer->waiter);
        status = storage->save(storage->context, &as, reducer->rows, p, why);
        waiter_leave(&reducer->waiter);
    }
    return status;
}
