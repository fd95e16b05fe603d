/* SPDX-License-Identifier: Apache-2.0 */
/* A snapshot holds references, not copies: while a block is held, an update
 * writes elsewhere (shard.h), so only blocks that change before they are on
 * disk cost a copy. One thread writes one snapshot at a time, the oldest
 * ordered one first. It writes blocks as they are added, first those that only
 * the snapshot still holds. */
#include "proto/holder/snapshots.h"

#include "core/base/limits.h"
#include "core/base/time.h"
#include "core/base/trace.h"
#include "core/store/checkpoint.h"
#include "core/store/dir_lock.h"
#include "core/store/shard_file.h"
#include "core/store/shard_rows.h"
#include "proto/messages/message.h"

#include <assert.h>
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { LOOK_AHEAD = 64 };

/* HELD from the first block on; ORDERED once it is to be written. In WRITING
 * the thread writes blocks as they are added; the last ones may still be
 * missing. ENDED: written, or failed. */
enum stage { HELD, ORDERED, WRITING, ENDED };

struct held_block {
    struct buffer *tensors[SNAPSHOTS_MAX_TENSORS];
    struct shard_rows_source *rows; /* of a partition: pages too are its own */
    unsigned char *row;             /* view */
    uint64_t rule_step;
    bool added, written;
};

struct snapshot {
    struct snapshot *next;
    uint64_t id;
    enum stage stage;
    bool retained;
    bool held, held_reported, end_reported;
    bool abandoned; /* released before all its blocks were held */
    uint32_t added, written;
    struct held_block *blocks; /* NULL: there was no memory for them */
    unsigned char *rows;       /* one a block */
    struct dir_lock *dir_lock;
    char folder[4096], name[128];
    struct snapshots_report report;
};

/* The writer works on a snapshot without the mutex: nobody else frees one in
 * WRITING, a block's fields do not change between its addition and its release
 * by the writer, and until it has ended the report's file, seconds and failure
 * are the writer's. */
struct snapshots {
    struct snapshots_settings settings;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    pthread_t thread;
    bool stopping;
    int descriptor;
    struct snapshot *first;   /* newest */
    struct snapshot *reserve; /* to report that memory lacks; NULL: in use */
};

/* The layout's unit. */
static uint32_t layout_unit(const struct snapshots *all, uint32_t b) {
    assert(b < all->settings.num_units);
    return all->settings.ids ? all->settings.ids[b] : b;
}

/* NULL: it is a partition, which has no tensors. */
static const struct block *block_of(const struct snapshots *all, uint32_t b) {
    return layout_block(all->settings.layout, layout_unit(all, b));
}

static unsigned tensors_of(const struct snapshots *all, uint32_t b) {
    const struct snapshots_settings *s = &all->settings;
    const struct block *block = block_of(all, b);
    if (!block)
        return 0;
    uint32_t group = s->layout->parameters[block->parameter].group;
    return s->groups ? 1 + rule_slots(&s->groups[group].optimizer)
                     : s->num_tensors;
}

static bool snapshot_is_requested(const struct snapshot *snapshot) {
    return snapshot->id >= MESSAGE_REQUESTED_SNAPSHOT;
}

static bool is_copy(const struct snapshot *snapshot) {
    return snapshot->report.form == CAPSTAN__SNAPSHOT__FORM__COPY;
}

static void release_tensors(struct snapshots *all, struct held_block *block) {
    for (unsigned t = 0; t < SNAPSHOTS_MAX_TENSORS; t++)
        buffer_release(&block->tensors[t]);
    for (uint32_t s = 0; block->rows && s < all->settings.layout->num_stacks;
         s++) {
        buffer_release(&block->rows[s].removed);
        for (size_t p = 0; p < block->rows[s].num_pages; p++) {
            struct buffer *page = block->rows[s].pages[p];
            buffer_release(&page);
        }
    }
    free(block->rows);
    block->rows = NULL;
}

/* The mutex is held. */
static void release_blocks(struct snapshots *all, struct snapshot *snapshot) {
    for (uint32_t b = 0; snapshot->blocks && b < all->settings.num_units; b++)
        release_tensors(all, &snapshot->blocks[b]);
}

/* The mutex is held. */
static void snapshot_destroy(struct snapshots *all, struct snapshot *snapshot) {
    struct snapshot **where = &all->first;
    while (*where != snapshot)
        where = &(*where)->next;
    *where = snapshot->next;
    bool has_blocks = snapshot->blocks;
    release_blocks(all, snapshot);
    free(snapshot->blocks);
    free(snapshot->rows);
    free(snapshot->report.counts);
    if (snapshot->report.fd >= 0)
        close(snapshot->report.fd);
    if (all->reserve)
        free(snapshot);
    else
        all->reserve = snapshot;
    if (has_blocks)
        malloc_trim(0); /* a whole shard's copies: more than a step reuses */
}

/* The mutex is held. */
static struct snapshot *find_snapshot(const struct snapshots *all,
                                      uint64_t id) {
    struct snapshot *snapshot = all->first;
    while (snapshot && snapshot->id != id)
        snapshot = snapshot->next;
    return snapshot;
}

/* Has block B been updated since? Writing it then frees its copy. Of a
 * partition the first page of each stack stands for all. */
static bool is_alone(const struct snapshots *all,
                     const struct held_block *block, uint32_t b) {
    if (block_of(all, b))
        return !block->tensors[0] || buffer_is_unique(block->tensors[0]);
    for (uint32_t s = 0; block->rows && s < all->settings.layout->num_stacks;
         s++)
        if (block->rows[s].num_pages &&
            buffer_is_unique(block->rows[s].pages[0]))
            return true;
    return !block->rows;
}

/* Prefers a block that has been updated since. The mutex is held. */
static uint32_t next_block(const struct snapshots *all,
                           const struct snapshot *snapshot) {
    uint32_t count = all->settings.num_units, found = UINT32_MAX;
    unsigned scanned = 0;
    for (uint32_t b = 0; b < count && scanned < LOOK_AHEAD; b++) {
        const struct held_block *block = &snapshot->blocks[b];
        if (!block->added || block->written)
            continue;
        if (is_alone(all, block, b))
            return b;
        if (found == UINT32_MAX)
            found = b;
        scanned++;
    }
    return found;
}

/* What BLOCK, with the keys of KEY, has beside its tensors or rows. */
static enum status put_numbers(struct snapshots *all,
                               struct shard_writer *writer,
                               const struct held_block *block,
                               struct shard_key key, struct failure *why) {
    key.slot = SHARD_RULE_STEP;
    enum status status = shard_writer_put(writer, key, &block->rule_step,
                                          sizeof block->rule_step, why);
    key.slot = SHARD_ROW;
    return status ? status
                  : shard_writer_put(writer, key, block->row,
                                     all->settings.row_bytes, why);
}

/* As put_block, of partition B, whose rows COUNTS takes. */
static enum status put_partition(struct snapshots *all,
                                 struct shard_writer *writer,
                                 const struct held_block *block, uint32_t b,
                                 struct shard_rows_count *counts,
                                 struct failure *why) {
    const struct layout *layout = all->settings.layout;
    uint32_t partition = layout_unit(all, b) - layout->num_blocks;
    if (!block->rows)
        return status_fail(why, FAILURE_TOO_LITTLE_MEMORY,
                           "no memory for a copy of the rows of partition %u",
                           partition);
    enum status status =
        shard_rows_write(writer, layout, partition, block->rows, counts, why);
    struct shard_key key = {.parameter = SHARD_ROWS | partition};
    return status ? status : put_numbers(all, writer, block, key, why);
}

static enum status put_block(struct snapshots *all, struct shard_writer *writer,
                             const struct held_block *block, uint32_t b,
                             struct failure *why) {
    const struct block *where = block_of(all, b);
    size_t bytes = where->elements * sizeof(float);
    struct shard_key key = {.parameter = where->parameter,
                            .offset = where->offset};
    enum status status = STATUS_OK;
    if (!block->tensors[0])
        return status_fail(why, FAILURE_TOO_LITTLE_MEMORY,
                           "no memory for a copy of %zu bytes",
                           bytes * tensors_of(all, b));
    for (unsigned t = 0; !status && t < tensors_of(all, b); t++) {
        key.slot = (uint16_t)t;
        status = shard_writer_put(writer, key, buffer_data(block->tensors[t]),
                                  bytes, why);
    }
    return status ? status : put_numbers(all, writer, block, key, why);
}

/* Waits for the next block to write; UINT32_MAX when all are written or the
 * thread must stop. The mutex is held. */
static uint32_t await_block(struct snapshots *all, struct snapshot *snapshot) {
    while (!all->stopping && !snapshot->abandoned &&
           snapshot->written < all->settings.num_units) {
        uint32_t b = next_block(all, snapshot);
        if (b != UINT32_MAX)
            return b;
        pthread_cond_wait(&all->changed, &all->mutex);
    }
    return UINT32_MAX;
}

static enum status snapshot_write_blocks(struct snapshots *all,
                                         struct snapshot *snapshot,
                                         struct shard_writer *writer,
                                         struct failure *why) {
    enum status status = STATUS_OK;
    uint32_t b;
    pthread_mutex_lock(&all->mutex);
    while (!status && (b = await_block(all, snapshot)) != UINT32_MAX) {
        struct held_block *block = &snapshot->blocks[b];
        pthread_mutex_unlock(&all->mutex);
        status = block_of(all, b) ? put_block(all, writer, block, b, why)
                                  : put_partition(all, writer, block, b,
                                                  snapshot->report.counts, why);
        pthread_mutex_lock(&all->mutex);
        block->written = true;
        snapshot->written++;
        if (!snapshot->retained)
            release_tensors(all, block);
    }
    if (!status && snapshot->written < all->settings.num_units)
        status = status_fail(why, FAILURE_RUN_ENDED,
                             snapshot->abandoned ? "the chief gave it up"
                                                 : "the run has ended");
    pthread_mutex_unlock(&all->mutex);
    return status;
}

/* Without the rows of tables, which are announced as they are written: some may
 * not be here yet. */
static uint64_t total_bytes(const struct snapshots *all) {
    const struct snapshots_settings *settings = &all->settings;
    uint64_t bytes =
        all->settings.num_units * (settings->row_bytes + sizeof(uint64_t));
    for (uint32_t b = 0; b < settings->num_units; b++)
        if (block_of(all, b))
            bytes += (uint64_t)block_of(all, b)->elements * sizeof(float) *
                     tensors_of(all, b);
    return bytes;
}

static enum status write_snapshot(struct snapshots *all,
                                  struct snapshot *snapshot) {
    struct snapshots_report *report = &snapshot->report;
    struct shard_writer *writer = NULL;
    int64_t start = time_now();
    int64_t traced = trace_begin(all->settings.trace, report->ordered);
    char path[sizeof snapshot->folder + sizeof snapshot->name + 2];
    snprintf(path, sizeof path, "%s/%s", snapshot->folder, snapshot->name);
    uint64_t entries = 2 * (uint64_t)all->settings.num_units;
    for (uint32_t b = 0; b < all->settings.num_units; b++)
        entries += tensors_of(all, b);
    bool in_memory = is_copy(snapshot);
    enum status status = STATUS_OK;
    if (snapshot->dir_lock)
        status = dir_lock_renew(snapshot->dir_lock, &report->why);
    if (!status && !in_memory)
        status = checkpoint_make_dir(snapshot->folder, &report->why);
    if (!status)
        status = in_memory ? shard_writer_open_memory(&writer, snapshot->name,
                                                      total_bytes(all), entries,
                                                      &report->why)
                           : shard_writer_open(&writer, path, total_bytes(all),
                                               entries, &report->why);
    if (!status)
        status = snapshot_write_blocks(all, snapshot, writer, &report->why);
    if (!status)
        status =
            in_memory
                ? shard_writer_finish_memory(&writer, &report->fd,
                                             &report->info, &report->why)
                : shard_writer_finish(&writer, &report->info, &report->why);
    shard_writer_abort(&writer);
    report->seconds = time_to_seconds(time_now() - start);
    trace_end(all->settings.trace, traced, TRACE_CHECKPOINT, report->ordered,
              0);
    return status;
}

/* The mutex is held. */
static void snapshot_end(struct snapshots *all, struct snapshot *snapshot,
                         Capstan__SnapshotReport__Outcome outcome) {
    snapshot->stage = ENDED;
    snapshot->report.outcome = outcome;
    if (!snapshot->retained)
        release_blocks(all, snapshot);
    eventfd_write(all->descriptor, 1);
}

/* The mutex is held. */
static struct snapshot *next_ordered(struct snapshots *all) {
    struct snapshot *found = NULL;
    for (struct snapshot *s = all->first; s; s = s->next)
        if (s->stage == ORDERED)
            found = s; /* the list is newest first */
    return found;
}

static void *snapshots_run_writer(void *argument) {
    struct snapshots *all = argument;
    pthread_mutex_lock(&all->mutex);
    while (!all->stopping) {
        struct snapshot *snapshot = next_ordered(all);
        if (!snapshot) {
            pthread_cond_wait(&all->changed, &all->mutex);
            continue;
        }
        snapshot->stage = WRITING;
        pthread_mutex_unlock(&all->mutex);
        enum status status = write_snapshot(all, snapshot);
        pthread_mutex_lock(&all->mutex);
        if (snapshot->abandoned)
            snapshot_destroy(all, snapshot);
        else
            snapshot_end(all, snapshot,
                         status ? CAPSTAN__SNAPSHOT_REPORT__OUTCOME__NOT_WRITTEN
                                : CAPSTAN__SNAPSHOT_REPORT__OUTCOME__WRITTEN);
    }
    pthread_mutex_unlock(&all->mutex);
    return NULL;
}

enum status snapshots_open(struct snapshots **out,
                           const struct snapshots_settings *settings,
                           struct failure *why) {
    struct snapshots *all = calloc(1, sizeof *all);
    *out = NULL;
    if (all)
        all->reserve = malloc(sizeof *all->reserve);
    if (!all || !all->reserve) {
        free(all);
        return status_fail(why, FAILURE_NO_MEMORY, "no memory for snapshots");
    }
    all->settings = *settings;
    limits_await_descriptors();
    all->descriptor = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    pthread_mutex_init(&all->mutex, NULL);
    pthread_cond_init(&all->changed, NULL);
    int error = all->descriptor < 0 ? errno
                                    : pthread_create(&all->thread, NULL,
                                                     snapshots_run_writer, all);
    if (!error) {
        *out = all;
        return STATUS_OK;
    }
    if (all->descriptor >= 0)
        close(all->descriptor);
    free(all->reserve);
    free(all);
    return status_errno(why, FAILURE_SYSTEM_REFUSED, error,
                        "cannot start the thread that writes checkpoints");
}

void snapshots_close(struct snapshots **where) {
    struct snapshots *all = *where;
    *where = NULL;
    if (!all)
        return;
    pthread_mutex_lock(&all->mutex);
    all->stopping = true;
    pthread_cond_broadcast(&all->changed);
    pthread_mutex_unlock(&all->mutex);
    pthread_join(all->thread, NULL);
    while (all->first)
        snapshot_destroy(all, all->first);
    pthread_mutex_destroy(&all->mutex);
    pthread_cond_destroy(&all->changed);
    close(all->descriptor);
    free(all->reserve);
    free(all);
}

int snapshots_descriptor(const struct snapshots *all) {
    return all->descriptor;
}

unsigned snapshots_unwritten(struct snapshots *all, bool copies) {
    unsigned count = 0;
    pthread_mutex_lock(&all->mutex);
    for (struct snapshot *s = all->first; s; s = s->next)
        count += (s->stage == ORDERED || s->stage == WRITING) &&
                 is_copy(s) == copies;
    pthread_mutex_unlock(&all->mutex);
    return count;
}

bool snapshots_busy(struct snapshots *all) {
    return snapshots_unwritten(all, false) || snapshots_unwritten(all, true);
}

/* Failed ones are kept only for their later blocks. All blocks of a planned
 * round have come before the first of the next planned round; a requested
 * snapshot ID may begin while some are still to come. The mutex is held. */
static void destroy_failed(struct snapshots *all, uint64_t id) {
    struct snapshot *next;
    for (struct snapshot *s = all->first; s; s = next) {
        next = s->next;
        bool expects_blocks = id >= MESSAGE_REQUESTED_SNAPSHOT &&
                              !snapshot_is_requested(s) &&
                              s->added < all->settings.num_units;
        if (s->end_reported && !s->retained && !expects_blocks)
            snapshot_destroy(all, s);
    }
}

/* A new entry, from the reserve if memory lacks; NULL: the reserve is in use.
 * The mutex is held. */
static struct snapshot *insert_snapshot(struct snapshots *all, uint64_t id) {
    destroy_failed(all, id);
    struct snapshot *snapshot = malloc(sizeof *snapshot);
    if (!snapshot) {
        snapshot = all->reserve;
        all->reserve = NULL;
    }
    if (!snapshot)
        return NULL;
    memset(snapshot, 0, sizeof *snapshot);
    snapshot->id = snapshot->report.id = id;
    snapshot->report.ordered = id; /* of a planned one */
    snapshot->report.fd = -1;
    snapshot->next = all->first;
    all->first = snapshot;
    return snapshot;
}

/* The mutex is held. */
static bool allocate_blocks(const struct snapshots *all,
                            struct snapshot *snapshot) {
    const struct snapshots_settings *settings = &all->settings;
    size_t count = (size_t)all->settings.num_units + 1;
    uint32_t num_tables = settings->layout->num_tables;
    struct shard_rows_count **counts = &snapshot->report.counts;
    snapshot->blocks = calloc(count, sizeof *snapshot->blocks);
    if (num_tables)
        *counts = calloc(num_tables, sizeof **counts);
    if (settings->row_bytes <= SIZE_MAX / count)
        snapshot->rows = malloc(count * settings->row_bytes);
    if (snapshot->blocks && snapshot->rows && (*counts || !num_tables))
        return true;
    free(snapshot->blocks);
    free(snapshot->rows);
    snapshot->blocks = NULL;
    snapshot->rows = NULL;
    return false;
}

bool snapshots_begin(struct snapshots *all, uint64_t id, bool retain,
                     Capstan__Snapshot__Form form) {
    pthread_mutex_lock(&all->mutex);
    struct snapshot *snapshot = insert_snapshot(all, id);
    if (snapshot)
        snapshot->report.form = form;
    if (snapshot && allocate_blocks(all, snapshot)) {
        snapshot->retained = retain;
    } else if (snapshot) {
        status_fail(&snapshot->report.why, FAILURE_NO_MEMORY,
                    "no memory for a snapshot");
        snapshot_end(all, snapshot,
                     snapshot_is_requested(snapshot)
                         ? CAPSTAN__SNAPSHOT_REPORT__OUTCOME__NOT_HELD
                         : CAPSTAN__SNAPSHOT_REPORT__OUTCOME__NOT_WRITTEN);
    }
    pthread_mutex_unlock(&all->mutex);
    return snapshot;
}

void snapshots_skip(struct snapshots *all, uint64_t id,
                    Capstan__Snapshot__Form form, const char *why) {
    pthread_mutex_lock(&all->mutex);
    struct snapshot *snapshot = insert_snapshot(all, id);
    if (snapshot) {
        snapshot->report.skipped = true;
        snapshot->report.form = form;
        status_fail(&snapshot->report.why, FAILURE_CHECKPOINT_NOT_WRITTEN, "%s",
                    why);
        snapshot_end(all, snapshot,
                     CAPSTAN__SNAPSHOT_REPORT__OUTCOME__NOT_WRITTEN);
    }
    pthread_mutex_unlock(&all->mutex);
}

bool snapshots_has(struct snapshots *all, uint64_t id) {
    pthread_mutex_lock(&all->mutex);
    bool has = find_snapshot(all, id);
    pthread_mutex_unlock(&all->mutex);
    return has;
}

Capstan__Snapshot__Form snapshots_form(struct snapshots *all, uint64_t id) {
    pthread_mutex_lock(&all->mutex);
    const struct snapshot *snapshot = find_snapshot(all, id);
    Capstan__Snapshot__Form form =
        snapshot ? snapshot->report.form : CAPSTAN__SNAPSHOT__FORM__UNSAVED;
    pthread_mutex_unlock(&all->mutex);
    return form;
}

/* A requested snapshot that was not written can still be held and read. */
bool snapshots_accepts(struct snapshots *all, uint64_t id) {
    pthread_mutex_lock(&all->mutex);
    const struct snapshot *snapshot = find_snapshot(all, id);
    bool accepts =
        snapshot && snapshot->blocks &&
        (snapshot->stage != ENDED || snapshot_is_requested(snapshot));
    pthread_mutex_unlock(&all->mutex);
    return accepts;
}

/* A copy of SOURCE [num_stacks] with its lists of pages in one piece of memory,
 * and the pages held; NULL: no memory. */
static struct shard_rows_source *hold_rows(
    const struct snapshots *all, const struct shard_rows_source *source) {
    uint32_t num_stacks = all->settings.layout->num_stacks;
    size_t pages = 0;
    for (uint32_t s = 0; s < num_stacks; s++)
        pages += source[s].num_pages;
    struct shard_rows_source *rows =
        malloc(num_stacks * sizeof *rows + pages * sizeof *rows->pages);
    if (!rows)
        return NULL;
    struct buffer **page = (struct buffer **)(rows + num_stacks);
    for (uint32_t s = 0; s < num_stacks; s++) {
        rows[s] = source[s];
        rows[s].pages = page;
        if (source[s].removed)
            rows[s].removed = buffer_hold(source[s].removed);
        for (size_t p = 0; p < source[s].num_pages; p++)
            *page++ = buffer_hold(source[s].pages[p]);
    }
    return rows;
}

/* The mutex is held. */
static void hold_block(struct snapshots *all, struct snapshot *snapshot,
                       uint32_t b, const struct snapshots_block *source) {
    struct held_block *block = &snapshot->blocks[b];
    size_t bytes = all->settings.row_bytes;
    block->row = snapshot->rows + b * bytes;
    memcpy(block->row, source->row, bytes);
    block->rule_step = source->rule_step;
    if (!block_of(all, b))
        block->rows = source->rows ? hold_rows(all, source->rows) : NULL;
    else
        for (unsigned t = 0; source->tensors[0] && t < tensors_of(all, b); t++)
            block->tensors[t] = buffer_hold(source->tensors[t]);
    block->added = true;
    if (source->base)
        snapshot->report.base = source->base;
    if (b == 0) {
        snapshot->report.scaler = source->scaler;
        snapshot->report.step = source->version;
    }
    snapshot->held |= ++snapshot->added == all->settings.num_units;
    if (snapshot->held && snapshot_is_requested(snapshot))
        eventfd_write(all->descriptor, 1);
}

void snapshots_add(struct snapshots *all, uint64_t id, uint32_t b,
                   const struct snapshots_block *block) {
    assert(b < all->settings.num_units);
    pthread_mutex_lock(&all->mutex);
    struct snapshot *snapshot = find_snapshot(all, id);
    if (snapshot && snapshot->blocks && !snapshot->blocks[b].added) {
        hold_block(all, snapshot, b, block);
        if (snapshot->stage == ENDED && !snapshot->retained)
            release_tensors(all, &snapshot->blocks[b]);
    }
    pthread_cond_broadcast(&all->changed);
    pthread_mutex_unlock(&all->mutex);
}

void snapshots_promise(struct snapshots *all, uint64_t id, uint64_t step) {
    pthread_mutex_lock(&all->mutex);
    struct snapshot *snapshot = find_snapshot(all, id);
    if (snapshot) {
        snapshot->held = true;
        snapshot->report.step = step;
        eventfd_write(all->descriptor, 1);
    }
    pthread_mutex_unlock(&all->mutex);
}

/* Block B of a retained snapshot, or NULL. The mutex is held. */
static const struct held_block *retained_block(const struct snapshots *all,
                                               uint64_t id, uint32_t b) {
    const struct snapshot *snapshot = find_snapshot(all, id);
    assert(b < all->settings.num_units);
    return snapshot && snapshot->blocks && snapshot->retained
               ? &snapshot->blocks[b]
               : NULL;
}

struct buffer *snapshots_weights(struct snapshots *all, uint64_t id,
                                 uint32_t b) {
    pthread_mutex_lock(&all->mutex);
    const struct held_block *block = retained_block(all, id, b);
    struct buffer *weights = block ? block->tensors[0] : NULL;
    pthread_mutex_unlock(&all->mutex);
    return weights;
}

const struct shard_rows_source *snapshots_rows(struct snapshots *all,
                                               uint64_t id, uint32_t b) {
    pthread_mutex_lock(&all->mutex);
    const struct held_block *block = retained_block(all, id, b);
    const struct shard_rows_source *rows = block ? block->rows : NULL;
    pthread_mutex_unlock(&all->mutex);
    return rows;
}

void snapshots_write(struct snapshots *all, uint64_t id, uint64_t step,
                     struct dir_lock *lock, const char *folder,
                     const char *name) {
    pthread_mutex_lock(&all->mutex);
    struct snapshot *snapshot = find_snapshot(all, id);
    if (snapshot && snapshot->stage == HELD) {
        snapshot->report.ordered = step;
        snapshot->dir_lock = lock;
        snprintf(snapshot->folder, sizeof snapshot->folder, "%s",
                 folder ? folder : "");
        snprintf(snapshot->name, sizeof snapshot->name, "%s", name);
        snapshot->stage = ORDERED;
        pthread_cond_broadcast(&all->changed);
    }
    pthread_mutex_unlock(&all->mutex);
}

/* The mutex is held. */
static void end_retention(struct snapshots *all, struct snapshot *snapshot) {
    snapshot->retained = false;
    snapshot->abandoned = !snapshot->held;
    pthread_cond_broadcast(&all->changed);
    if (snapshot->stage == HELD || snapshot->end_reported)
        snapshot_destroy(all, snapshot);
}

void snapshots_release(struct snapshots *all, uint64_t id) {
    pthread_mutex_lock(&all->mutex);
    struct snapshot *snapshot = find_snapshot(all, id);
    if (snapshot)
        end_retention(all, snapshot);
    pthread_mutex_unlock(&all->mutex);
}

void snapshots_release_requested(struct snapshots *all) {
    struct snapshot *next;
    pthread_mutex_lock(&all->mutex);
    for (struct snapshot *snapshot = all->first; snapshot; snapshot = next) {
        next = snapshot->next;
        if (snapshot_is_requested(snapshot))
            end_retention(all, snapshot);
    }
    pthread_mutex_unlock(&all->mutex);
}

static bool is_held_due(const struct snapshot *snapshot) {
    return snapshot_is_requested(snapshot) && snapshot->blocks &&
           snapshot->held && !snapshot->held_reported;
}

static bool is_end_due(const struct snapshot *snapshot) {
    return snapshot->stage == ENDED && !snapshot->end_reported &&
           (!snapshot_is_requested(snapshot) || !snapshot->blocks ||
            snapshot->held_reported);
}

/* A failed one stays (snapshots_has). The mutex is held. */
static void report_end(struct snapshots *all, struct snapshot *snapshot) {
    snapshot->end_reported = true;
    if (snapshot->retained)
        return;
    if (snapshot->report.outcome == CAPSTAN__SNAPSHOT_REPORT__OUTCOME__WRITTEN)
        snapshot_destroy(all, snapshot);
    else
        release_blocks(all, snapshot);
}

bool snapshots_next(struct snapshots *all, struct snapshots_report *report) {
    eventfd_t count;
    eventfd_read(all->descriptor, &count);
    pthread_mutex_lock(&all->mutex);
    struct snapshot *snapshot = NULL;
    for (struct snapshot *s = all->first; s; s = s->next)
        if (is_held_due(s) || is_end_due(s))
            snapshot = s; /* the list is newest first */
    if (snapshot && is_held_due(snapshot)) {
        *report = (struct snapshots_report){
            .id = snapshot->id,
            .outcome = CAPSTAN__SNAPSHOT_REPORT__OUTCOME__HELD,
            .step = snapshot->report.step,
            .fd = -1};
        snapshot->held_reported = true;
    } else if (snapshot) {
        *report = snapshot->report;
        snapshot->report.counts = NULL;
        snapshot->report.fd = -1;
        report_end(all, snapshot);
    }
    pthread_mutex_unlock(&all->mutex);
    return snapshot;
}
