/* SPDX-License-Identifier: Apache-2.0 */
/* Setting a large shard takes seconds, in which its ps must send heartbeats and
 * answer messages, so a thread of its own does it. Until shard_init_done
 * returns true, that thread alone touches the shard. */
#include "ps/dense/shard_init.h"

#include "proto/store/checkpoint_reader.h"
#include "proto/store/manifest.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct shard_init {
    struct shard_init_settings settings;
    pthread_t thread;
    bool started;
    atomic_bool stop;
    int done; /* eventfd: the thread has finished */
    enum status status;
    struct failure why;
};

static bool shard_init_should_continue(const struct shard_init *shard_init,
                                       uint32_t b) {
    return b < shard_blocks(shard_init->settings.shard) &&
           !atomic_load(&shard_init->stop);
}

/* The reader verifies every block; if a shard file lies on another host's disk,
 * its error names that host. */
static enum status restore(struct shard_init *shard_init, struct failure *why) {
    const struct shard_init_settings *settings = &shard_init->settings;
    struct checkpoint_reader *reader = NULL;
    struct manifest manifest;
    enum status status = manifest_parse(&manifest, settings->manifest, why);
    if (status)
        return status;
    status = checkpoint_reader_open(&reader, settings->folder, &manifest, why);
    for (uint32_t b = 0; !status && shard_init_should_continue(shard_init, b);
         b++)
        status = shard_restore(settings->shard, b, reader, why);
    checkpoint_reader_close(&reader);
    manifest_clear(&manifest);
    return status;
}

static void *run_init(void *argument) {
    struct shard_init *shard_init = argument;
    const struct shard_init_settings *settings = &shard_init->settings;
    if (settings->folder)
        shard_init->status = restore(shard_init, &shard_init->why);
    for (uint32_t b = 0;
         !settings->folder && shard_init_should_continue(shard_init, b); b++)
        shard_initialise_block(settings->shard, b, settings->seed);
    eventfd_write(shard_init->done, 1);
    return NULL;
}

enum status shard_init_open(struct shard_init **out,
                            const struct shard_init_settings *settings,
                            struct failure *why) {
    struct shard_init *shard_init = calloc(1, sizeof *shard_init);
    *out = NULL;
    if (!shard_init)
        return status_fail(why, FAILURE_NO_MEMORY, "no memory for a thread");
    shard_init->settings = *settings;
    shard_init->done = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    int error = shard_init->done < 0 ? errno
                                     : pthread_create(&shard_init->thread, NULL,
                                                      run_init, shard_init);
    shard_init->started = !error;
    if (!error)
        *out = shard_init;
    else
        shard_init_close(&shard_init);
    return error ? status_errno(why, FAILURE_SYSTEM_REFUSED, error,
                                "cannot start a thread")
                 : STATUS_OK;
}

void shard_init_close(struct shard_init **where) {
    struct shard_init *shard_init = *where;
    *where = NULL;
    if (!shard_init)
        return;
    atomic_store(&shard_init->stop, true);
    if (shard_init->started)
        pthread_join(shard_init->thread, NULL);
    if (shard_init->done >= 0)
        close(shard_init->done);
    free(shard_init);
}

int shard_init_descriptor(const struct shard_init *shard_init) {
    return shard_init->done;
}

bool shard_init_done(struct shard_init *shard_init, enum status *status,
                     struct failure *why) {
    eventfd_t count;
    if (eventfd_read(shard_init->done, &count))
        return false;
    *status = shard_init->status;
    *why = shard_init->why;
    return true;
}
