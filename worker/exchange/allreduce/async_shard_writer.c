/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks of one file pass between two threads: the caller copies the next block
 * to copies[queued]; the writer thread writes copies[written_blocks] and frees
 * it. `copied` bytes are pending; at the limit the caller waits for the disk. A
 * file that has failed still accepts its blocks, so that the caller never
 * blocks, and reports the failure at the end. */
#include "worker/exchange/allreduce/async_shard_writer.h"

#include "proto/base/time.h"
#include "proto/store/checkpoint.h"
#include "proto/store/dir_lock.h"
#include "proto/store/shard_writer.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { PATH_BYTES = 4096 };

/* WRITING until the file is complete or has failed; FINISHED until the result
 * was read. */
enum stage { IDLE, WRITING, FINISHED };

struct async_shard_writer {
    struct async_shard_writer_settings settings;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    pthread_t thread;
    bool started, stopping;
    int descriptor;

    enum stage stage;
    uint64_t step;
    uint32_t queued, written_blocks; /* blocks */
    float **copies;                  /* [blocks]; NULL: failed, or written */
    uint64_t copied;                 /* bytes held in `copies` */
    int64_t started_at;
    struct async_shard_writer_result result;
};

static size_t copy_bytes(const struct async_shard_writer *async_shard_writer,
                         uint32_t b) {
    return async_shard_writer->settings.layout->blocks[b].elements *
           sizeof(float) * async_shard_writer->settings.num_tensors;
}

/* Every block's record has a ledger row; here it holds only the block's update
 * number, as there are no pushes to deduplicate. */
static enum status write_block(
    const struct async_shard_writer *async_shard_writer,
    struct shard_writer *writer, uint32_t b, const float *copy,
    struct failure *why) {
    const struct block *block = &async_shard_writer->settings.layout->blocks[b];
    struct shard_key key = {.parameter = block->parameter,
                            .offset = block->offset};
    enum status status = STATUS_OK;
    if (!copy)
        return status_fail(why, FAILURE_TOO_LITTLE_MEMORY,
                           "no memory for a copy of %zu bytes",
                           copy_bytes(async_shard_writer, b));
    for (unsigned t = 0;
         !status && t < async_shard_writer->settings.num_tensors; t++) {
        key.slot = (uint16_t)t;
        status =
            shard_writer_put(writer, key, copy + (size_t)t * block->elements,
                             block->elements * sizeof(float), why);
    }
    key.slot = SHARD_ROW;
    if (!status)
        status = shard_writer_put(writer, key, &async_shard_writer->step,
                                  sizeof async_shard_writer->step, why);
    return status;
}

/* The mutex is held. The next block's copy, or NULL if the writer was
 * cancelled. */
static float *wait_copy(struct async_shard_writer *async_shard_writer) {
    while (async_shard_writer->written_blocks == async_shard_writer->queued &&
           !async_shard_writer->stopping)
        pthread_cond_wait(&async_shard_writer->changed,
                          &async_shard_writer->mutex);
    return async_shard_writer->stopping
               ? NULL
               : async_shard_writer->copies[async_shard_writer->written_blocks];
}

static void free_copy(struct async_shard_writer *async_shard_writer,
                      uint32_t b) {
    if (!async_shard_writer->copies[b])
        return;
    free(async_shard_writer->copies[b]);
    async_shard_writer->copies[b] = NULL;
    async_shard_writer->copied -= copy_bytes(async_shard_writer, b);
}

/* All blocks pass through, also after a failure: the rounds do not wait. */
static enum status async_shard_writer_write_blocks(
    struct async_shard_writer *async_shard_writer, struct shard_writer *writer,
    enum status status, struct failure *why) {
    uint32_t count = async_shard_writer->settings.layout->num_blocks;
    for (uint32_t b = 0; b < count; b++) {
        pthread_mutex_lock(&async_shard_writer->mutex);
        float *copy = wait_copy(async_shard_writer);
        bool stopping = async_shard_writer->stopping;
        pthread_mutex_unlock(&async_shard_writer->mutex);
        if (stopping)
            return status ? status
                          : status_fail(why, FAILURE_RUN_ENDED,
                                        "the run has ended");
        if (!status)
            status = write_block(async_shard_writer, writer, b, copy, why);
        pthread_mutex_lock(&async_shard_writer->mutex);
        free_copy(async_shard_writer, b);
        async_shard_writer->written_blocks++;
        pthread_cond_broadcast(&async_shard_writer->changed);
        pthread_mutex_unlock(&async_shard_writer->mutex);
    }
    return status;
}

static enum status async_shard_writer_open_file(
    struct async_shard_writer *async_shard_writer, struct shard_writer **writer,
    char *name, size_t size, struct failure *why) {
    const struct async_shard_writer_settings *settings =
        &async_shard_writer->settings;
    const struct layout *layout = settings->layout;
    char folder[PATH_BYTES - 128], path[PATH_BYTES];
    checkpoint_folder(settings->checkpoint_dir, async_shard_writer->step,
                      folder, sizeof folder);
    checkpoint_shard_name(0, 1, settings->run, name, size);
    snprintf(path, sizeof path, "%s/%s", folder, name);
    enum status status = settings->dir_lock
                             ? dir_lock_renew(settings->dir_lock, why)
                             : STATUS_OK;
    if (!status)
        status = checkpoint_make_folder(settings->checkpoint_dir,
                                        async_shard_writer->step, why);
    uint64_t bytes = settings->num_tensors * layout->elements * sizeof(float) +
                     layout->num_blocks * sizeof async_shard_writer->step;
    uint64_t entries =
        (uint64_t)layout->num_blocks * (settings->num_tensors + 1);
    return status ? status
                  : shard_writer_open(writer, path, bytes, entries, why);
}

static void async_shard_writer_write_file(
    struct async_shard_writer *async_shard_writer) {
    struct shard_writer *writer = NULL;
    struct async_shard_writer_result *result = &async_shard_writer->result;
    struct failure *why = &result->why;
    char name[sizeof result->info.name];
    enum status status = async_shard_writer_open_file(
        async_shard_writer, &writer, name, sizeof name, why);
    status = async_shard_writer_write_blocks(async_shard_writer, writer, status,
                                             why);
    if (status)
        shard_writer_abort(&writer);
    else
        status = shard_writer_finish(&writer, &result->info, why);
    result->written = !status;
    result->seconds =
        time_to_seconds(time_now() - async_shard_writer->started_at);
}

static void *async_shard_writer_run_thread(void *argument) {
    struct async_shard_writer *async_shard_writer = argument;
    pthread_mutex_lock(&async_shard_writer->mutex);
    for (;;) {
        while (async_shard_writer->stage != WRITING &&
               !async_shard_writer->stopping)
            pthread_cond_wait(&async_shard_writer->changed,
                              &async_shard_writer->mutex);
        if (async_shard_writer->stopping)
            break;
        pthread_mutex_unlock(&async_shard_writer->mutex);
        async_shard_writer_write_file(async_shard_writer);
        pthread_mutex_lock(&async_shard_writer->mutex);
        async_shard_writer->stage = FINISHED;
        eventfd_write(async_shard_writer->descriptor, 1);
        pthread_cond_broadcast(&async_shard_writer->changed);
    }
    pthread_mutex_unlock(&async_shard_writer->mutex);
    return NULL;
}

enum status async_shard_writer_open(
    struct async_shard_writer **out,
    const struct async_shard_writer_settings *settings, struct failure *why) {
    struct async_shard_writer *async_shard_writer =
        calloc(1, sizeof *async_shard_writer);
    *out = NULL;
    if (!async_shard_writer)
        return status_fail(why, FAILURE_NO_MEMORY, "no memory for checkpoints");
    async_shard_writer->settings = *settings;
    pthread_mutex_init(&async_shard_writer->mutex, NULL);
    pthread_cond_init(&async_shard_writer->changed, NULL);
    async_shard_writer->copies = calloc(settings->layout->num_blocks,
                                        sizeof *async_shard_writer->copies);
    async_shard_writer->descriptor = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    int error =
        !async_shard_writer->copies ? ENOMEM
        : async_shard_writer->descriptor < 0
            ? errno
            : pthread_create(&async_shard_writer->thread, NULL,
                             async_shard_writer_run_thread, async_shard_writer);
    async_shard_writer->started = !error;
    if (error) {
        async_shard_writer_close(&async_shard_writer);
        return status_errno(why, FAILURE_SYSTEM_REFUSED, error,
                            "cannot start a thread for checkpoints");
    }
    *out = async_shard_writer;
    return STATUS_OK;
}

void async_shard_writer_cancel(struct async_shard_writer *async_shard_writer) {
    pthread_mutex_lock(&async_shard_writer->mutex);
    async_shard_writer->stopping = true;
    pthread_cond_broadcast(&async_shard_writer->changed);
    pthread_mutex_unlock(&async_shard_writer->mutex);
}

void async_shard_writer_close(struct async_shard_writer **where) {
    struct async_shard_writer *async_shard_writer = *where;
    *where = NULL;
    if (!async_shard_writer)
        return;
    async_shard_writer_cancel(async_shard_writer);
    if (async_shard_writer->started)
        pthread_join(async_shard_writer->thread, NULL);
    for (uint32_t b = 0; async_shard_writer->copies &&
                         b < async_shard_writer->settings.layout->num_blocks;
         b++)
        free(async_shard_writer->copies[b]);
    free(async_shard_writer->copies);
    if (async_shard_writer->descriptor >= 0)
        close(async_shard_writer->descriptor);
    pthread_mutex_destroy(&async_shard_writer->mutex);
    pthread_cond_destroy(&async_shard_writer->changed);
    free(async_shard_writer);
}

bool async_shard_writer_busy(struct async_shard_writer *async_shard_writer) {
    pthread_mutex_lock(&async_shard_writer->mutex);
    bool busy = async_shard_writer->stage == WRITING;
    pthread_mutex_unlock(&async_shard_writer->mutex);
    return busy;
}

bool async_shard_writer_begin(struct async_shard_writer *async_shard_writer,
                              uint64_t id, uint64_t step,
                              const struct loss_scaler *scaler) {
    pthread_mutex_lock(&async_shard_writer->mutex);
    while (async_shard_writer->stage != IDLE && !async_shard_writer->stopping)
        pthread_cond_wait(&async_shard_writer->changed,
                          &async_shard_writer->mutex);
    bool begun = !async_shard_writer->stopping;
    if (begun) {
        async_shard_writer->stage = WRITING;
        async_shard_writer->step = step;
        async_shard_writer->queued = async_shard_writer->written_blocks = 0;
        async_shard_writer->started_at = time_now();
        async_shard_writer->result =
            (struct async_shard_writer_result){.id = id, .scaler = *scaler};
        pthread_cond_broadcast(&async_shard_writer->changed);
    }
    pthread_mutex_unlock(&async_shard_writer->mutex);
    return begun;
}

static float *copy_block(const struct async_shard_writer *async_shard_writer,
                         uint32_t b, const float *const *tensors) {
    size_t elements = async_shard_writer->settings.layout->blocks[b].elements;
    float *copy = malloc(copy_bytes(async_shard_writer, b));
    for (unsigned t = 0; copy && t < async_shard_writer->settings.num_tensors;
         t++)
        memcpy(copy + t * elements, tensors[t], elements * sizeof(float));
    return copy;
}

/* The mutex is held. A block larger than the limit is copied when no other is
 * pending. */
static bool can_copy(const struct async_shard_writer *async_shard_writer,
                     size_t bytes) {
    return !async_shard_writer->copied ||
           async_shard_writer->copied + bytes <=
               async_shard_writer->settings.copy_bytes;
}

/* A failed allocation may succeed once earlier copies are written and freed; it
 * counts as a failure only if no copy is pending. */
void async_shard_writer_add(struct async_shard_writer *async_shard_writer,
                            const float *const *tensors, bool *waited) {
    uint32_t b = async_shard_writer->queued;
    size_t bytes = copy_bytes(async_shard_writer, b);
    float *copy = NULL;
    pthread_mutex_lock(&async_shard_writer->mutex);
    while (!async_shard_writer->stopping) {
        if (can_copy(async_shard_writer, bytes))
            copy = copy_block(async_shard_writer, b, tensors);
        if (copy || !async_shard_writer->copied)
            break;
        *waited = true;
        pthread_cond_wait(&async_shard_writer->changed,
                          &async_shard_writer->mutex);
    }
    async_shard_writer->copies[b] =
        copy; /* NULL: no memory although no other copy is pending */
    async_shard_writer->copied += copy ? bytes : 0;
    async_shard_writer->queued++;
    pthread_cond_broadcast(&async_shard_writer->changed);
    pthread_mutex_unlock(&async_shard_writer->mutex);
}

bool async_shard_writer_done(struct async_shard_writer *async_shard_writer,
                             struct async_shard_writer_result *result) {
    eventfd_t count;
    eventfd_read(async_shard_writer->descriptor, &count);
    pthread_mutex_lock(&async_shard_writer->mutex);
    bool over = async_shard_writer->stage == FINISHED;
    if (over) {
        *result = async_shard_writer->result;
        async_shard_writer->stage = IDLE;
        pthread_cond_broadcast(&async_shard_writer->changed);
    }
    pthread_mutex_unlock(&async_shard_writer->mutex);
    return over;
}

int async_shard_writer_descriptor(
    const struct async_shard_writer *async_shard_writer) {
    return async_shard_writer->descriptor;
}
