/* SPDX-License-Identifier: Apache-2.0 */
/* What the caller keeps: bytes that belong to a step. With the first push of
 * the next step, or at its end, the bytes of a step at which a checkpoint is
 * taken are written into its folder, and the chief is told. */
#include "worker/train/external_internal.h"

#include "core/base/time.h"
#include "core/store/checkpoint.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const int64_t POLL_TIME = 10 * TIME_MS;

static uint32_t index_of(const struct external *external, const char *key) {
    uint32_t k = 0;
    while (k < external->num_kept && strcmp(external->kept[k].key, key))
        k++;
    return k;
}

/* The first bytes: from now on checkpoints wait for this rank's. */
static void announce_first_kept(struct trainer *trainer) {
    struct trainer_report keeps = {.event = TRAINER_KEPT};
    event_queue_push(&trainer->event_queue, &keeps);
}

static void drop_item(struct external *external, uint32_t k) {
    if (k == external->num_kept)
        return;
    free(external->kept[k].data);
    external->kept[k] = external->kept[--external->num_kept];
}

static enum status set_item(struct external *external, struct trainer *trainer,
                            const char *key, const void *data, size_t size,
                            struct failure *why) {
    uint32_t k = index_of(external, key);
    if (!kept_file_is_key(key))
        return status_fail(why, FAILURE_WRONG_CALL,
                           "kept \"%.40s\": a name has 1 to %d of a-z, 0-9, _",
                           key, KEPT_FILE_KEY_BYTES - 1);
    if (!data) {
        drop_item(external, k);
        return STATUS_OK;
    }
    if (k == KEPT_FILE_KEYS)
        return status_fail(why, FAILURE_WRONG_CALL,
                           "kept \"%s\": a rank keeps at most %d names", key,
                           KEPT_FILE_KEYS);
    void *copy = malloc(size + 1);
    if (!copy)
        return status_fail(why, FAILURE_NO_MEMORY,
                           "no memory for %zu bytes to keep", size);
    memcpy(copy, data, size);
    struct kept_item *item = &external->kept[k];
    if (k == external->num_kept) {
        if (!external->keeps)
            announce_first_kept(trainer);
        external->keeps = true;
        external->num_kept++;
        snprintf(item->key, sizeof item->key, "%s", key);
        item->data = NULL;
    }
    free(item->data);
    item->data = copy;
    item->size = size;
    return STATUS_OK;
}

enum external_result external_keep(struct external *external, const char *key,
                                   const void *data, size_t size) {
    struct trainer *trainer = external_enter(external);
    struct failure why;
    if (!trainer)
        return EXTERNAL_OVER;
    pthread_mutex_lock(&external->kept_mutex);
    enum status status = set_item(external, trainer, key, data, size, &why);
    pthread_mutex_unlock(&external->kept_mutex);
    if (status)
        external_report(trainer, &why);
    external_leave(external);
    return status ? EXTERNAL_OVER : EXTERNAL_DONE;
}

bool external_keeps(struct external *external) {
    pthread_mutex_lock(&external->kept_mutex);
    bool keeps = external->keeps;
    pthread_mutex_unlock(&external->kept_mutex);
    return keeps;
}

/* Is a checkpoint taken of the state after the last step? *LEAD: is this the
 * lowest rank that trains? */
static bool is_due(const struct external *external,
                   const struct trainer *trainer, bool last, bool *lead) {
    uint64_t clock = trainer->clock;
    uint32_t lowest;
    uint64_t requested = exchange_due(trainer->exchange, &lowest);
    *lead = lowest == trainer->settings.rank;
    if (!trainer_is_synchronous(trainer))
        return external->must_save;
    return trainer->plan->checkpoint_dir && clock >= trainer->from &&
           (last || requested == clock ||
            run_schedule_saves(&trainer->plan->run_schedule, clock));
}

enum external_due external_due(struct external *external, bool ending) {
    struct trainer *trainer = external_enter(external);
    enum external_due due = EXTERNAL_NOT_DUE;
    bool lead;
    if (!trainer)
        return due;
    pthread_mutex_lock(&external->kept_mutex);
    if (external->started && is_due(external, trainer, ending, &lead)) {
        due = lead ? EXTERNAL_DUE_LEAD : EXTERNAL_DUE;
        external->due_as_lead = lead ? trainer->clock + 1 : 0;
    }
    pthread_mutex_unlock(&external->kept_mutex);
    external_leave(external);
    return due;
}

/* As a ps does; once a step, as the directory may be replaced. */
static enum status lock_own_folder(struct external *external,
                                   const struct trainer *trainer,
                                   struct failure *why) {
    char owner[32];
    struct dir_lock_settings settings = {.dir = trainer->plan->checkpoint_dir,
                                         .run = trainer->settings.run,
                                         .owner = owner,
                                         .log = trainer->settings.log};
    bool shares;
    if (external->dir_lock)
        return dir_lock_renew(external->dir_lock, why);
    snprintf(owner, sizeof owner, "rank %u", trainer->settings.rank);
    return dir_lock_join(&external->dir_lock, &shares, &settings, why);
}

static enum status write_items(struct external *external,
                               const struct trainer *trainer, uint64_t step,
                               struct kept_report *report,
                               struct failure *why) {
    const char *dir = trainer->plan->checkpoint_dir;
    char folder[PATH_MAX];
    checkpoint_folder(dir, step, folder, sizeof folder);
    enum status status = lock_own_folder(external, trainer, why);
    if (!status)
        status = checkpoint_make_folder(dir, step, why);
    for (uint32_t k = 0; !status && k < external->num_kept; k++) {
        const struct kept_item *item = &external->kept[k];
        struct shard_info *info = &report->files[report->count++];
        status = kept_file_write(folder, trainer->settings.rank, item->key,
                                 trainer->settings.run, item->data, item->size,
                                 info, why);
        if (external->dir_lock)
            gethostname(info->host, sizeof info->host - 1);
    }
    return status;
}

void external_save_kept(struct external *external, struct trainer *trainer,
                        bool last) {
    struct trainer_report saved = {.event = TRAINER_KEPT,
                                   .step = trainer->clock};
    bool lead, due = false, synchronous = trainer_is_synchronous(trainer);
    pthread_mutex_lock(&external->kept_mutex);
    if (!synchronous)
        saved.step = external->save_with;
    if (external->keeps &&
        (!synchronous || external->kept_checked != trainer->clock + last)) {
        external->kept_checked = trainer->clock + last;
        due = is_due(external, trainer, last, &lead) &&
              (!synchronous || external->saved_kept != saved.step);
    }
    if (due) {
        external->saved_kept = saved.step;
        external->must_save = false;
        saved.kept.lead =
            synchronous && external->due_as_lead == trainer->clock + 1;
        if (write_items(external, trainer, saved.step, &saved.kept, &saved.why))
            saved.kept.failed = true;
    }
    pthread_mutex_unlock(&external->kept_mutex);
    if (due)
        event_queue_push(&trainer->event_queue, &saved);
}

void external_save_with(struct external *external, uint64_t step) {
    struct trainer *trainer = external_enter(external);
    if (!trainer)
        return;
    pthread_mutex_lock(&external->kept_mutex);
    external->save_with = step;
    external->must_save = true;
    bool now = external->pushes_over;
    pthread_mutex_unlock(&external->kept_mutex);
    if (now)
        external_save_kept(external, trainer, true);
    external_leave(external);
}

void external_retain(struct external *external, const uint64_t *steps,
                     size_t count) {
    struct trainer *trainer = external_enter(external);
    struct failure why;
    if (!trainer)
        return;
    pthread_mutex_lock(&external->kept_mutex);
    if (external->dir_lock && dir_lock_is_held(external->dir_lock) &&
        checkpoint_retain(trainer->plan->checkpoint_dir, steps, count, &why))
        log_warning(trainer->settings.log, "checkpoint_removal_failed",
                    "old checkpoints were not removed: %s", why.text);
    pthread_mutex_unlock(&external->kept_mutex);
    external_leave(external);
}

/* A trainer that joins reads what was kept at the step before its first, once
 * the checkpoint is complete. */
static enum status await_manifest(struct external *external,
                                  struct trainer *trainer, const char *folder,
                                  struct manifest *manifest,
                                  struct failure *why) {
    int64_t until =
        time_now() + time_from_seconds(trainer->settings.job->timeouts.step);
    while (manifest_read(manifest, folder, why) ||
           manifest->run != trainer->settings.run) {
        manifest_clear(manifest);
        if (external_is_over(external) || trainer_is_leaving(trainer))
            return status_fail(why, FAILURE_RUN_ENDED,
                               "the run ends before the checkpoint in %s, "
                               "whose kept state this trainer joins with",
                               folder);
        if (time_now() > until)
            return status_fail(why, FAILURE_CHECKPOINT_MISSING,
                               "no checkpoint in %s within %g s "
                               "(timeouts.step), whose kept state this trainer "
                               "joins with",
                               folder, trainer->settings.job->timeouts.step);
        usleep((useconds_t)(POLL_TIME / TIME_US));
    }
    return STATUS_OK;
}

/* The manifest with what is given back, and its FOLDER; empty in a new run. */
static enum status open_restored(struct external *external,
                                 struct trainer *trainer, char folder[PATH_MAX],
                                 struct manifest *manifest,
                                 struct failure *why) {
    const struct plan *plan = trainer->plan;
    bool synchronous = trainer_is_synchronous(trainer);
    uint64_t begun = synchronous ? plan->run_schedule.start
                                 : plan->run_schedule.start_batch /
                                       trainer->settings.num_ranks;
    *manifest = (struct manifest){0};
    if (trainer->from > begun + 1) {
        if (!plan->checkpoint_dir || !synchronous)
            return STATUS_OK;
        checkpoint_folder(plan->checkpoint_dir, trainer->from - 1, folder,
                          PATH_MAX);
        return await_manifest(external, trainer, folder, manifest, why);
    }
    if (!plan->restore_manifest)
        return STATUS_OK;
    snprintf(folder, PATH_MAX, "%s", plan->restore_folder);
    return manifest_parse(manifest, plan->restore_manifest, why);
}

static enum status read_kept(struct external *external, struct trainer *trainer,
                             const char *key, const void **data, size_t *size,
                             struct failure *why) {
    struct manifest manifest;
    char folder[PATH_MAX];
    enum status status =
        open_restored(external, trainer, folder, &manifest, why);
    const struct shard_info *info =
        status ? NULL : kept_file_find(&manifest, trainer->settings.rank, key);
    void *read = NULL;
    *size = info ? info->size : 0;
    if (info)
        status = kept_file_read(folder, info, &read, why);
    manifest_clear(&manifest);
    pthread_mutex_lock(&external->kept_mutex);
    free(external->given);
    *data = external->given = read;
    pthread_mutex_unlock(&external->kept_mutex);
    return status;
}

enum external_result external_kept(struct external *external, const char *key,
                                   const void **data, size_t *size) {
    struct trainer *trainer = external_enter(external);
    struct failure why;
    *data = NULL;
    *size = 0;
    if (!trainer)
        return EXTERNAL_OVER;
    bool failed = !external->started;
    if (failed)
        external_misused(trainer, "kept state is read before the start");
    if (!failed && read_kept(external, trainer, key, data, size, &why)) {
        failed = true;
        if (why.code != FAILURE_RUN_ENDED)
            external_report(trainer, &why);
    }
    external_leave(external);
    return failed ? EXTERNAL_OVER : EXTERNAL_DONE;
}

enum external_result external_request_save(struct external *external) {
    struct trainer *trainer = external_enter(external);
    struct trainer_report request = {.event = TRAINER_SAVE_REQUESTED};
    if (!trainer)
        return EXTERNAL_OVER;
    event_queue_push(&trainer->event_queue, &request);
    external_leave(external);
    return EXTERNAL_DONE;
}
