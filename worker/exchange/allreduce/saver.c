/* SPDX-License-Identifier: Apache-2.0 */
/* Block after block of one file goes from thread to thread: the caller copies
 * the next one to copies[added], the saver's thread writes copies[taken] and
 * frees it. `copied` bytes are held in between; at the limit the caller waits
 * for the disk. A file that has failed takes its blocks all the same, so that
 * nobody waits for it, and fails when it is told. */
#include "worker/exchange/allreduce/saver.h"

#include "proto/base/time.h"
#include "proto/store/checkpoint.h"
#include "proto/store/claim.h"
#include "proto/store/shard_writer.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { PATH_BYTES = 4096 };

/* FILLING until the file stands or has failed; OVER until that was told. */
enum stage { IDLE, FILLING, OVER };

struct saver {
    struct saver_settings settings;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    pthread_t thread;
    bool started, stopping;
    int descriptor;

    enum stage stage;
    uint64_t step;
    uint32_t added, taken; /* blocks */
    float **copies;        /* [blocks]: NULL: failed, or taken */
    uint64_t copied;       /* bytes in them */
    int64_t began;
    struct saver_result result;
};

static size_t copy_bytes(const struct saver *saver, uint32_t b) {
    return saver->settings.layout->blocks[b].elements * sizeof(float) *
           saver->settings.num_tensors;
}

/* Every block carries a row; here it is the block's update number alone, as no
 * push is to be recognised again. */
static enum status put(const struct saver *saver, struct shard_writer *writer,
                       uint32_t b, const float *copy, struct failure *why) {
    const struct block *block = &saver->settings.layout->blocks[b];
    struct shard_key key = {.parameter = block->parameter,
                            .offset = block->offset};
    enum status status = STATUS_OK;
    if (!copy)
        return status_fail(why, STATUS_FAILED,
                           "no memory for a copy of %zu bytes",
                           copy_bytes(saver, b));
    for (unsigned t = 0; !status && t < saver->settings.num_tensors; t++) {
        key.slot = (uint16_t)t;
        status =
            shard_writer_put(writer, key, copy + (size_t)t * block->elements,
                             block->elements * sizeof(float), why);
    }
    key.slot = SHARD_ROW;
    if (!status)
        status = shard_writer_put(writer, key, &saver->step, sizeof saver->step,
                                  why);
    return status;
}

/* The mutex is held. The next block's copy, or NULL when it was cancelled. */
static float *take(struct saver *saver) {
    while (saver->taken == saver->added && !saver->stopping)
        pthread_cond_wait(&saver->changed, &saver->mutex);
    return saver->stopping ? NULL : saver->copies[saver->taken];
}

static void drop(struct saver *saver, uint32_t b) {
    if (!saver->copies[b])
        return;
    free(saver->copies[b]);
    saver->copies[b] = NULL;
    saver->copied -= copy_bytes(saver, b);
}

/* All blocks go through, also after a failure: the rounds do not wait. */
static enum status write_blocks(struct saver *saver,
                                struct shard_writer *writer, enum status status,
                                struct failure *why) {
    uint32_t count = saver->settings.layout->num_blocks;
    for (uint32_t b = 0; b < count; b++) {
        pthread_mutex_lock(&saver->mutex);
        float *copy = take(saver);
        bool stopping = saver->stopping;
        pthread_mutex_unlock(&saver->mutex);
        if (stopping)
            return status ? status
                          : status_fail(why, STATUS_RETRY, "the run has ended");
        if (!status)
            status = put(saver, writer, b, copy, why);
        pthread_mutex_lock(&saver->mutex);
        drop(saver, b);
        saver->taken++;
        pthread_cond_broadcast(&saver->changed);
        pthread_mutex_unlock(&saver->mutex);
    }
    return status;
}

static enum status open_file(struct saver *saver, struct shard_writer **writer,
                             char *name, size_t size, struct failure *why) {
    const struct saver_settings *settings = &saver->settings;
    const struct layout *layout = settings->layout;
    char folder[PATH_BYTES - 128], path[PATH_BYTES];
    checkpoint_folder(settings->checkpoint_dir, saver->step, folder,
                      sizeof folder);
    checkpoint_shard_name(0, 1, settings->run, name, size);
    snprintf(path, sizeof path, "%s/%s", folder, name);
    enum status status =
        settings->claim ? claim_renew(settings->claim, why) : STATUS_OK;
    if (!status)
        status =
            checkpoint_make_folder(settings->checkpoint_dir, saver->step, why);
    uint64_t bytes = settings->num_tensors * layout->elements * sizeof(float) +
                     layout->num_blocks * sizeof saver->step;
    uint64_t entries =
        (uint64_t)layout->num_blocks * (settings->num_tensors + 1);
    return status ? status
                  : shard_writer_open(writer, path, bytes, entries, why);
}

static void write_file(struct saver *saver) {
    struct shard_writer *writer = NULL;
    struct saver_result *result = &saver->result;
    struct failure *why = &result->why;
    char name[sizeof result->info.name];
    enum status status = open_file(saver, &writer, name, sizeof name, why);
    status = write_blocks(saver, writer, status, why);
    if (status)
        shard_writer_abandon(&writer);
    else
        status = shard_writer_finish(&writer, &result->info, why);
    result->written = !status;
    result->seconds = time_to_seconds(time_now() - saver->began);
}

static void *run_thread(void *argument) {
    struct saver *saver = argument;
    pthread_mutex_lock(&saver->mutex);
    for (;;) {
        while (saver->stage != FILLING && !saver->stopping)
            pthread_cond_wait(&saver->changed, &saver->mutex);
        if (saver->stopping)
            break;
        pthread_mutex_unlock(&saver->mutex);
        write_file(saver);
        pthread_mutex_lock(&saver->mutex);
        saver->stage = OVER;
        eventfd_write(saver->descriptor, 1);
        pthread_cond_broadcast(&saver->changed);
    }
    pthread_mutex_unlock(&saver->mutex);
    return NULL;
}

enum status saver_open(struct saver **out,
                       const struct saver_settings *settings,
                       struct failure *why) {
    struct saver *saver = calloc(1, sizeof *saver);
    *out = NULL;
    if (!saver)
        return status_fail(why, STATUS_RETRY, "no memory for checkpoints");
    saver->settings = *settings;
    pthread_mutex_init(&saver->mutex, NULL);
    pthread_cond_init(&saver->changed, NULL);
    saver->copies = calloc(settings->layout->num_blocks, sizeof *saver->copies);
    saver->descriptor = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    int error = !saver->copies ? ENOMEM
                : saver->descriptor < 0
                    ? errno
                    : pthread_create(&saver->thread, NULL, run_thread, saver);
    saver->started = !error;
    if (error) {
        saver_close(&saver);
        return status_errno(why, STATUS_FAILED, error,
                            "cannot start a thread for checkpoints");
    }
    *out = saver;
    return STATUS_OK;
}

void saver_cancel(struct saver *saver) {
    pthread_mutex_lock(&saver->mutex);
    saver->stopping = true;
    pthread_cond_broadcast(&saver->changed);
    pthread_mutex_unlock(&saver->mutex);
}

void saver_close(struct saver **where) {
    struct saver *saver = *where;
    *where = NULL;
    if (!saver)
        return;
    saver_cancel(saver);
    if (saver->started)
        pthread_join(saver->thread, NULL);
    for (uint32_t b = 0;
         saver->copies && b < saver->settings.layout->num_blocks; b++)
        free(saver->copies[b]);
    free(saver->copies);
    if (saver->descriptor >= 0)
        close(saver->descriptor);
    pthread_mutex_destroy(&saver->mutex);
    pthread_cond_destroy(&saver->changed);
    free(saver);
}

bool saver_busy(struct saver *saver) {
    pthread_mutex_lock(&saver->mutex);
    bool busy = saver->stage == FILLING;
    pthread_mutex_unlock(&saver->mutex);
    return busy;
}

bool saver_begin(struct saver *saver, uint64_t id, uint64_t step,
                 const struct loss_scaler *scaler) {
    pthread_mutex_lock(&saver->mutex);
    while (saver->stage != IDLE && !saver->stopping)
        pthread_cond_wait(&saver->changed, &saver->mutex);
    bool begun = !saver->stopping;
    if (begun) {
        saver->stage = FILLING;
        saver->step = step;
        saver->added = saver->taken = 0;
        saver->began = time_now();
        saver->result = (struct saver_result){.id = id, .scaler = *scaler};
        pthread_cond_broadcast(&saver->changed);
    }
    pthread_mutex_unlock(&saver->mutex);
    return begun;
}

static float *copy_block(const struct saver *saver, uint32_t b,
                         const float *const *tensors) {
    size_t elements = saver->settings.layout->blocks[b].elements;
    float *copy = malloc(copy_bytes(saver, b));
    for (unsigned t = 0; copy && t < saver->settings.num_tensors; t++)
        memcpy(copy + t * elements, tensors[t], elements * sizeof(float));
    return copy;
}

/* The mutex is held. A block larger than the limit goes alone. */
static bool has_room(const struct saver *saver, size_t bytes) {
    return !saver->copied ||
           saver->copied + bytes <= saver->settings.copy_bytes;
}

/* Memory that is not there now is there when the earlier copies are written:
 * only where nothing is held any more is a refusal the last word. */
void saver_add(struct saver *saver, const float *const *tensors, bool *waited) {
    uint32_t b = saver->added;
    size_t bytes = copy_bytes(saver, b);
    float *copy = NULL;
    pthread_mutex_lock(&saver->mutex);
    while (!saver->stopping) {
        if (has_room(saver, bytes))
            copy = copy_block(saver, b, tensors);
        if (copy || !saver->copied)
            break;
        *waited = true;
        pthread_cond_wait(&saver->changed, &saver->mutex);
    }
    saver->copies[b] = copy; /* NULL: no memory, though nothing else is held */
    saver->copied += copy ? bytes : 0;
    saver->added++;
    pthread_cond_broadcast(&saver->changed);
    pthread_mutex_unlock(&saver->mutex);
}

bool saver_done(struct saver *saver, struct saver_result *result) {
    eventfd_t count;
    eventfd_read(saver->descriptor, &count);
    pthread_mutex_lock(&saver->mutex);
    bool over = saver->stage == OVER;
    if (over) {
        *result = saver->result;
        saver->stage = IDLE;
        pthread_cond_broadcast(&saver->changed);
    }
    pthread_mutex_unlock(&saver->mutex);
    return over;
}

int saver_descriptor(const struct saver *saver) {
    return saver->descriptor;
}
