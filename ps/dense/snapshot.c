/* SPDX-License-Identifier: Apache-2.0 */
/* A snapshot holds references, not copies: while a block is held, an update
 * writes elsewhere (shard.h), so only blocks that change before they are on
 * disk cost a copy. One thread writes one snapshot at a time, the oldest
 * ordered one first. It writes blocks as they are added, first those that only
 * the snapshot still holds. */
#include "ps/dense/snapshot.h"

#include "proto/base/time.h"
#include "proto/store/checkpoint.h"
#include "proto/store/dir_lock.h"

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
 * missing. */
enum stage { HELD, ORDERED, WRITING, WRITTEN };

struct held_block {
    struct buffer *tensors[SHARD_MAX_TENSORS];
    unsigned char *row; /* version, then the ledger entries; view */
    bool added, written;
};

struct snapshot {
    struct snapshots *all;
    struct snapshot *next;
    uint64_t id;
    enum stage stage;
    bool retained, reported;
    uint32_t added, written;
    struct held_block *blocks;
    unsigned char *rows; /* one a block */
    struct dir_lock *dir_lock;
    char folder[4096], name[128];
    struct snapshot_result result;
};

/* The ps's thread alone changes the lists; the writer thread reads them. So
 * the ps's thread locks to change and the writer thread to read. The writer
 * releases a block once it is written, unless the snapshot is retained. */
struct snapshots {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    pthread_t thread;
    bool stopping;
    int descriptor;
    const struct shard *shard;
    const struct update_core *update_core;
    struct snapshot *first; /* newest */
};

static size_t row_bytes(const struct snapshots *all) {
    return sizeof(uint64_t) + update_core_num_ranks(all->update_core) *
                                  sizeof(struct ledger_entry);
}

static void release_tensors(struct snapshots *all, struct held_block *block) {
    for (unsigned t = 0; t < shard_tensors(all->shard); t++)
        buffer_release(&block->tensors[t]);
}

/* The mutex is held. */
static void snapshot_destroy(struct snapshots *all, struct snapshot *snapshot) {
    struct snapshot **where = &all->first;
    while (*where != snapshot)
        where = &(*where)->next;
    *where = snapshot->next;
    for (uint32_t b = 0; b < shard_blocks(all->shard); b++)
        release_tensors(all, &snapshot->blocks[b]);
    free(snapshot->blocks);
    free(snapshot->rows);
    free(snapshot);
    malloc_trim(0); /* a whole shard's copies: more than a step reuses */
}

/* Prefers a block that has been updated since: writing it frees its copy. The
 * mutex is held. */
static uint32_t next_block(const struct snapshots *all,
                           const struct snapshot *snapshot) {
    uint32_t count = shard_blocks(all->shard), found = UINT32_MAX;
    unsigned scanned = 0;
    for (uint32_t b = 0; b < count && scanned < LOOK_AHEAD; b++) {
        const struct held_block *block = &snapshot->blocks[b];
        if (!block->added || block->written)
            continue;
        if (buffer_is_unique(block->tensors[0]))
            return b;
        if (found == UINT32_MAX)
            found = b;
        scanned++;
    }
    return found;
}

/* The tensors and the ledger row are of one moment: the row says which
 * contributions the tensors include. */
static enum status put_block(struct snapshots *all, struct shard_writer *writer,
                             struct held_block *block, uint32_t b,
                             struct failure *why) {
    const struct block *where = shard_block(all->shard, b);
    struct shard_key key = {.parameter = where->parameter,
                            .offset = where->offset};
    enum status status = STATUS_OK;
    for (unsigned t = 0; !status && t < shard_tensors(all->shard); t++) {
        key.slot = (uint16_t)t;
        status = shard_writer_put(writer, key, buffer_data(block->tensors[t]),
                                  buffer_bytes(block->tensors[t]), why);
    }
    key.slot = SHARD_ROW;
    if (!status)
        status = shard_writer_put(writer, key, block->row, row_bytes(all), why);
    return status;
}

/* Waits for the next block to write; UINT32_MAX when all are written or the
 * thread must stop. The mutex is held. */
static uint32_t await_block(struct snapshots *all, struct snapshot *snapshot) {
    uint32_t count = shard_blocks(all->shard);
    while (!all->stopping && snapshot->written < count) {
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
        status = put_block(all, writer, block, b, why);
        pthread_mutex_lock(&all->mutex);
        block->written = true;
        snapshot->written++;
        if (!snapshot->retained)
            release_tensors(all, block);
    }
    if (!status && snapshot->written < shard_blocks(all->shard))
        status = status_fail(why, FAILURE_CHECKPOINT_NOT_WRITTEN,
                             "the ps is stopping");
    pthread_mutex_unlock(&all->mutex);
    return status;
}

static uint64_t total_bytes(const struct snapshots *all) {
    uint64_t bytes = 0;
    for (uint32_t b = 0; b < shard_blocks(all->shard); b++)
        bytes += shard_block_bytes(all->shard, b) * shard_tensors(all->shard) +
                 row_bytes(all);
    return bytes;
}

static void write_snapshot(struct snapshots *all, struct snapshot *snapshot) {
    struct snapshot_result *result = &snapshot->result;
    struct shard_writer *writer = NULL;
    int64_t start = time_now();
    char path[sizeof snapshot->folder + sizeof snapshot->name + 2];
    snprintf(path, sizeof path, "%s/%s", snapshot->folder, snapshot->name);
    uint64_t entries =
        (uint64_t)shard_blocks(all->shard) * (shard_tensors(all->shard) + 1);
    enum status status = STATUS_OK;
    if (snapshot->dir_lock)
        status = dir_lock_renew(snapshot->dir_lock, &result->why);
    if (!status)
        status = checkpoint_make_dir(snapshot->folder, &result->why);
    if (!status)
        status = shard_writer_open(&writer, path, total_bytes(all), entries,
                                   &result->why);
    if (!status)
        status = snapshot_write_blocks(all, snapshot, writer, &result->why);
    if (!status)
        status = shard_writer_finish(&writer, &result->info, &result->why);
    shard_writer_abort(&writer);
    result->written = !status;
    result->seconds = time_to_seconds(time_now() - start);
}

/* The mutex is held. */
static struct snapshot *next_ordered(struct snapshots *all) {
    struct snapshot *found = NULL;
    for (struct snapshot *s = all->first; s; s = s->next)
        if (s->stage == ORDERED)
            found = s; /* the list is newest first */
    return found;
}

static void *snapshot_write_all(void *argument) {
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
        write_snapshot(all, snapshot);
        pthread_mutex_lock(&all->mutex);
        snapshot->stage = WRITTEN;
        eventfd_write(all->descriptor, 1);
    }
    pthread_mutex_unlock(&all->mutex);
    return NULL;
}

enum status snapshots_open(struct snapshots **out, const struct shard *shard,
                           const struct update_core *update_core,
                           struct failure *why) {
    struct snapshots *all = calloc(1, sizeof *all);
    if (!all)
        return status_fail(why, FAILURE_NO_MEMORY, "no memory for snapshots");
    all->shard = shard;
    all->update_core = update_core;
    all->descriptor = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    pthread_mutex_init(&all->mutex, NULL);
    pthread_cond_init(&all->changed, NULL);
    int error = all->descriptor < 0 ? errno
                                    : pthread_create(&all->thread, NULL,
                                                     snapshot_write_all, all);
    *out = error ? NULL : all;
    if (!error)
        return STATUS_OK;
    if (all->descriptor >= 0)
        close(all->descriptor);
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
    free(all);
}

int snapshots_descriptor(const struct snapshots *all) {
    return all->descriptor;
}

struct snapshot *snapshots_begin(struct snapshots *all, uint64_t id) {
    struct snapshot *snapshot = calloc(1, sizeof *snapshot);
    if (!snapshot)
        return NULL;
    snapshot->all = all;
    snapshot->id = snapshot->result.id = id;
    snapshot->blocks =
        calloc(shard_blocks(all->shard) + 1, sizeof *snapshot->blocks);
    snapshot->rows = malloc(shard_blocks(all->shard) * row_bytes(all) + 1);
    if (!snapshot->blocks || !snapshot->rows) {
        free(snapshot->blocks);
        free(snapshot->rows);
        free(snapshot);
        return NULL;
    }
    pthread_mutex_lock(&all->mutex);
    snapshot->next = all->first;
    all->first = snapshot;
    pthread_mutex_unlock(&all->mutex);
    return snapshot;
}

/* Called by the thread that changes the list, so it needs no lock. */
struct snapshot *snapshots_find(struct snapshots *all, uint64_t id) {
    struct snapshot *snapshot = all->first;
    while (snapshot && snapshot->id != id)
        snapshot = snapshot->next;
    return snapshot;
}

bool snapshots_busy(const struct snapshots *all) {
    struct snapshots *unlocked = (struct snapshots *)all;
    bool busy = false;
    pthread_mutex_lock(&unlocked->mutex);
    for (struct snapshot *s = all->first; s; s = s->next)
        busy |= s->stage == ORDERED || s->stage == WRITING;
    pthread_mutex_unlock(&unlocked->mutex);
    return busy;
}

static void copy_row(struct snapshot *snapshot, uint32_t b, uint64_t version) {
    const struct snapshots *all = snapshot->all;
    size_t bytes = row_bytes(all);
    unsigned char *row = snapshot->rows + b * bytes;
    memcpy(row, &version, sizeof version);
    update_core_ledger_row(all->update_core, b, version,
                           (void *)(row + sizeof version));
    snapshot->blocks[b].row = row;
}

/* Row and buffers are taken together, between two actions of the update core:
 * both are at VERSION. */
void snapshot_add(struct snapshot *snapshot, uint32_t b, uint64_t version) {
    struct snapshots *all = snapshot->all;
    struct held_block *block = &snapshot->blocks[b];
    pthread_mutex_lock(&all->mutex);
    if (!block->added) {
        copy_row(snapshot, b, version);
        if (b == 0)
            snapshot->result.scaler =
                update_core_scaler(all->update_core, b, version);
        for (unsigned t = 0; t < shard_tensors(all->shard); t++)
            block->tensors[t] = buffer_hold(shard_tensor(all->shard, b, t));
        block->added = true;
        snapshot->added++;
    }
    pthread_cond_broadcast(&all->changed);
    pthread_mutex_unlock(&all->mutex);
}

bool snapshot_complete(const struct snapshot *snapshot) {
    return snapshot->added == shard_blocks(snapshot->all->shard);
}

struct buffer *snapshot_weights(const struct snapshot *snapshot, uint32_t b) {
    return snapshot->retained ? snapshot->blocks[b].tensors[0] : NULL;
}

void snapshot_write(struct snapshot *snapshot, struct dir_lock *dir_lock,
                    const char *folder, const char *name) {
    struct snapshots *all = snapshot->all;
    snapshot->dir_lock = dir_lock;
    snprintf(snapshot->folder, sizeof snapshot->folder, "%s", folder);
    snprintf(snapshot->name, sizeof snapshot->name, "%s", name);
    pthread_mutex_lock(&all->mutex);
    snapshot->stage = ORDERED;
    pthread_cond_broadcast(&all->changed);
    pthread_mutex_unlock(&all->mutex);
}

void snapshot_retain(struct snapshot *snapshot) {
    snapshot->retained = true;
}

void snapshot_release(struct snapshot *snapshot) {
    struct snapshots *all = snapshot->all;
    pthread_mutex_lock(&all->mutex);
    snapshot->retained = false;
    if (snapshot->stage == HELD ||
        (snapshot->stage == WRITTEN && snapshot->reported))
        snapshot_destroy(all, snapshot);
    pthread_mutex_unlock(&all->mutex);
}

bool snapshots_done(struct snapshots *all, struct snapshot_result *result) {
    eventfd_t count;
    eventfd_read(all->descriptor, &count);
    pthread_mutex_lock(&all->mutex);
    struct snapshot *snapshot = NULL;
    for (struct snapshot *s = all->first; s; s = s->next)
        if (s->stage == WRITTEN && !s->reported)
            snapshot = s; /* the list is newest first */
    if (snapshot) {
        *result = snapshot->result;
        snapshot->reported = true;
        if (!snapshot->retained)
            snapshot_destroy(all, snapshot);
    }
    pthread_mutex_unlock(&all->mutex);
    return snapshot;
}
