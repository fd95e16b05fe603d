/* SPDX-License-Identifier: Apache-2.0 */
/* A large shard takes seconds to fill, in which its ps has to beat and to
 * answer calls: so a thread of its own does it. Until filler_done says so, that
 * thread alone touches the shard. */
#include "ps/dense/filler.h"

#include "proto/store/checkpoint_reader.h"
#include "proto/store/manifest.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct filler {
    struct filler_settings settings;
    pthread_t thread;
    bool started;
    atomic_bool stop;
    int done; /* eventfd: the thread's results are here */
    enum status status;
    struct failure why;
};

static bool goes_on(const struct filler *filler, uint32_t b) {
    return b < shard_blocks(filler->settings.shard) &&
           !atomic_load(&filler->stop);
}

/* Nothing is restored from disk but what verifies; a shard on another host's
 * disk is named with that host. */
static enum status restore(struct filler *filler, struct failure *why) {
    const struct filler_settings *settings = &filler->settings;
    struct checkpoint_reader *reader = NULL;
    struct manifest manifest;
    enum status status = manifest_parse(&manifest, settings->manifest, why);
    if (status)
        return status;
    status = checkpoint_reader_open(&reader, settings->folder, &manifest, why);
    for (uint32_t b = 0; !status && goes_on(filler, b); b++)
        status = shard_restore(settings->shard, b, reader, why);
    checkpoint_reader_close(&reader);
    manifest_clear(&manifest);
    return status;
}

static void *fill(void *argument) {
    struct filler *filler = argument;
    const struct filler_settings *settings = &filler->settings;
    if (settings->folder)
        filler->status = restore(filler, &filler->why);
    for (uint32_t b = 0; !settings->folder && goes_on(filler, b); b++)
        shard_initialise_block(settings->shard, b, settings->seed);
    eventfd_write(filler->done, 1);
    return NULL;
}

enum status filler_open(struct filler **out,
                        const struct filler_settings *settings,
                        struct failure *why) {
    struct filler *filler = calloc(1, sizeof *filler);
    *out = NULL;
    if (!filler)
        return status_fail(why, STATUS_RETRY, "no memory for a thread");
    filler->settings = *settings;
    filler->done = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    int error = filler->done < 0
                    ? errno
                    : pthread_create(&filler->thread, NULL, fill, filler);
    filler->started = !error;
    if (!error)
        *out = filler;
    else
        filler_close(&filler);
    return error ? status_errno(why, STATUS_FAILED, error,
                                "cannot start a thread")
                 : STATUS_OK;
}

void filler_close(struct filler **where) {
    struct filler *filler = *where;
    *where = NULL;
    if (!filler)
        return;
    atomic_store(&filler->stop, true);
    if (filler->started)
        pthread_join(filler->thread, NULL);
    if (filler->done >= 0)
        close(filler->done);
    free(filler);
}

int filler_descriptor(const struct filler *filler) {
    return filler->done;
}

bool filler_done(struct filler *filler, enum status *status,
                 struct failure *why) {
    eventfd_t count;
    if (eventfd_read(filler->done, &count))
        return false;
    *status = filler->status;
    *why = filler->why;
    return true;
}
