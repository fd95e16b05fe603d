/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base/background_file.h"

#include "core/base/time.h"
#include "core/base/waiter.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const size_t MAX_WAITING = 16 << 20;

struct background_file {
    struct waiter waiter; /* of what follows */
    char *bytes;          /* that wait for the thread, */
    size_t size, capacity;
    bool closing, ended;
    bool abandoned; /* the thread frees all when it ends */
    enum status status;
    struct failure why;
    /* The thread's own. */
    int descriptor;
    char path[4096];
    background_file_prepare *prepare;
    uint64_t value;
};

static void background_file_free(struct background_file *file) {
    waiter_close(&file->waiter);
    close(file->descriptor);
    free(file->bytes);
    free(file);
}

static enum status write_bytes(const struct background_file *file,
                               const char *bytes, size_t size,
                               struct failure *why) {
    while (size) {
        ssize_t written = write(file->descriptor, bytes, size);
        if (written < 0 && errno == EINTR)
            continue;
        if (written < 0)
            return status_errno(why, FAILURE_FILE_UNWRITABLE, errno,
                                "writing %s", file->path);
        bytes += written;
        size -= (size_t)written;
    }
    return STATUS_OK;
}

/* The mutex is held: the bytes that wait, or NULL at the end. */
static char *take_bytes(struct background_file *file, size_t *size) {
    while (!file->size && !file->closing)
        waiter_wait(&file->waiter, TIME_NEVER, NULL);
    char *bytes = file->size ? file->bytes : NULL;
    *size = file->size;
    if (bytes) {
        file->bytes = NULL;
        file->size = file->capacity = 0;
    }
    return bytes;
}

static void *background_file_run(void *argument) {
    struct background_file *file = argument;
    struct failure why;
    enum status status =
        file->prepare
            ? file->prepare(file->descriptor, file->path, file->value, &why)
            : STATUS_OK;
    char *bytes;
    size_t size;
    waiter_enter(&file->waiter);
    while (!status && (bytes = take_bytes(file, &size))) {
        waiter_leave(&file->waiter);
        status = write_bytes(file, bytes, size, &why);
        free(bytes);
        waiter_enter(&file->waiter);
    }
    if (status) {
        file->status = status;
        file->why = why;
    }
    file->ended = true;
    bool abandoned = file->abandoned;
    waiter_leave_changed(&file->waiter);
    if (abandoned)
        background_file_free(file);
    return NULL;
}

/* A thread that nobody joins, and that takes no signal of the process. */
static int start_writer(struct background_file *file) {
    pthread_attr_t attributes;
    pthread_t thread;
    sigset_t all, before;
    sigfillset(&all);
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&thread, &attributes, background_file_run, file);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return error;
}

enum status background_file_open(struct background_file **out, int descriptor,
                                 const char *path,
                                 background_file_prepare *prepare,
                                 uint64_t value, struct failure *why) {
    struct background_file *file = calloc(1, sizeof *file);
    *out = NULL;
    if (!file) {
        close(descriptor);
        return status_fail(why, FAILURE_NO_MEMORY, "no memory to write %s",
                           path);
    }
    waiter_open(&file->waiter);
    file->descriptor = descriptor;
    snprintf(file->path, sizeof file->path, "%s", path);
    file->prepare = prepare;
    file->value = value;
    int error = start_writer(file);
    if (error) {
        background_file_free(file);
        return status_errno(why, FAILURE_SYSTEM_REFUSED, error,
                            "cannot start a thread to write %s", path);
    }
    *out = file;
    return STATUS_OK;
}

/* The mutex is held. */
static enum status queue_bytes(struct background_file *file, const void *bytes,
                               size_t size, struct failure *why) {
    size_t wanted = file->size + size;
    if (wanted > MAX_WAITING)
        return status_fail(why, FAILURE_FILE_UNWRITABLE,
                           "writing %s: its disk is too slow, or hangs: %zu "
                           "MiB wait for it",
                           file->path, MAX_WAITING >> 20);
    if (wanted > file->capacity) {
        char *grown = realloc(file->bytes, 2 * wanted);
        if (!grown)
            return status_fail(why, FAILURE_NO_MEMORY, "no memory to write %s",
                               file->path);
        file->bytes = grown;
        file->capacity = 2 * wanted;
    }
    memcpy(file->bytes + file->size, bytes, size);
    file->size = wanted;
    return STATUS_OK;
}

enum status background_file_append(struct background_file *file,
                                   const void *bytes, size_t size,
                                   struct failure *why) {
    waiter_enter(&file->waiter);
    if (!file->status)
        file->status = queue_bytes(file, bytes, size, &file->why);
    enum status status = file->status;
    if (status)
        *why = file->why;
    waiter_leave_changed(&file->waiter);
    return status;
}

enum status background_file_close(struct background_file **where, int64_t until,
                                  struct failure *why) {
    struct background_file *file = *where;
    *where = NULL;
    if (!file)
        return STATUS_OK;
    waiter_enter(&file->waiter);
    file->closing = true;
    pthread_cond_broadcast(&file->waiter.changed);
    while (!file->ended && waiter_wait(&file->waiter, until, NULL))
        ;
    bool ended = file->ended;
    if (!ended && !file->status)
        file->status = status_fail(&file->why, FAILURE_FILE_UNWRITABLE,
                                   "writing %s: its disk did not take the last "
                                   "bytes in time",
                                   file->path);
    enum status status = file->status;
    if (status)
        *why = file->why;
    file->abandoned = !ended;
    waiter_leave(&file->waiter);
    if (ended)
        background_file_free(file);
    return status;
}
