/* SPDX-License-Identifier: Apache-2.0 */
/* The contents of a checkpoint directory:
 *
 *   step-000001500/ps-0-of-2-RUN.mdb   one file for each holder of blocks
 *   step-000001500/manifest.json       written last, removed first
 *   .run-RUN                           while the chief of that run lives
 *   aside-RUN/step-...                 steps of earlier runs, moved aside
 *
 * A crash leaves a folder without a manifest, which readers do not accept as a
 * checkpoint; it is removed when a newer step is complete. Folders and files
 * with other names are left alone. */
#include "core/store/checkpoint.h"

#include "core/store/atomic_file.h"
#include "core/store/fs_info.h"
#include "core/store/manifest.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct step_entry {
    uint64_t step;
    bool complete; /* has a manifest */
};

/* Long enough for "step-" and any number. */
enum { NAME_BYTES = 32 };

static_assert(sizeof "step-18446744073709551615" <= NAME_BYTES,
              "any number fits");

static void step_name(uint64_t step, char name[NAME_BYTES]) {
    snprintf(name, NAME_BYTES, "step-%09" PRIu64, step);
}

void checkpoint_folder(const char *dir, uint64_t step, char *path,
                       size_t size) {
    char name[NAME_BYTES];
    step_name(step, name);
    if ((size_t)snprintf(path, size, "%s/%s", dir, name) >= size)
        *path = '\0';
}

void checkpoint_sibling(const char *folder, uint64_t step, char *path,
                        size_t size) {
    char dir[PATH_MAX];
    const char *slash = strrchr(folder, '/');
    int length = slash ? (int)(slash - folder) : 0;
    if (snprintf(dir, sizeof dir, "%.*s", length, folder) < (int)sizeof dir)
        checkpoint_folder(length ? dir : slash ? "/" : ".", step, path, size);
    else
        *path = '\0';
}

bool checkpoint_split_folder(char *dir, uint64_t *step) {
    uint64_t number;
    char path[PATH_MAX + 16], *end;
    struct stat about;
    size_t length = strlen(dir);
    snprintf(path, sizeof path, "%s/manifest.json", dir);
    while (length > 1 && dir[length - 1] == '/')
        dir[--length] = 0;
    char *slash = strrchr(dir, '/'), *name = slash ? slash + 1 : dir;
    if (stat(path, &about) || strncmp(name, "step-", 5) != 0)
        return false;
    number = strtoull(name + 5, &end, 10);
    if (*end || end == name + 5)
        return false;
    *step = number;
    if (slash)
        slash[slash == dir] = 0;
    else
        strcpy(dir, ".");
    return true;
}

void checkpoint_shard_name(uint32_t index, uint32_t count, uint64_t run,
                           bool delta, char *name, size_t size) {
    snprintf(name, size, "ps-%" PRIu32 "-of-%" PRIu32 "-%016" PRIx64 "%s.mdb",
             index, count, run, delta ? "-delta" : "");
}

void checkpoint_run_file(const char *dir, uint64_t run, char *path,
                         size_t size) {
    snprintf(path, size, "%s/.run-%016" PRIx64, dir, run);
}

static enum status checkpoint_check_length(const char *dir,
                                           struct failure *why) {
    if (strlen(dir) + 2 * NAME_BYTES < PATH_MAX)
        return STATUS_OK;
    return status_errno(why, FAILURE_NAME_TOO_LONG, ENAMETOOLONG, "%s", dir);
}

enum status checkpoint_make_dir(const char *dir, struct failure *why) {
    enum status status = checkpoint_check_length(dir, why);
    return status ? status : fs_info_make_folder(dir, why);
}

/* Files of the run are written into PATH, so it must not lead elsewhere. */
static enum status make_own_folder(const char *path, struct failure *why) {
    struct stat about;
    enum status status = fs_info_make_folder(path, why);
    if (!status && !lstat(path, &about) && S_ISLNK(about.st_mode))
        status = status_fail(why, FAILURE_FILE_UNWRITABLE,
                             "%s is a link: checkpoints are written to folders "
                             "only. Remove the link",
                             path);
    return status;
}

enum status checkpoint_make_folder(const char *dir, uint64_t step,
                                   struct failure *why) {
    char path[PATH_MAX];
    enum status status = checkpoint_check_length(dir, why);
    if (status)
        return status;
    checkpoint_folder(dir, step, path, sizeof path);
    return make_own_folder(path, why);
}

/* Names that Capstan does not write ("step-7", "step-7.bak") are neither listed
 * nor removed. */
static bool step_of(const char *name, uint64_t *step) {
    char written[NAME_BYTES];
    if (strncmp(name, "step-", 5) != 0)
        return false;
    *step = strtoull(name + 5, NULL, 10);
    step_name(*step, written);
    return strcmp(name, written) == 0;
}

static bool has_manifest(int dir, uint64_t step) {
    char name[NAME_BYTES], path[NAME_BYTES + sizeof "/manifest.json"];
    step_name(step, name);
    snprintf(path, sizeof path, "%s/manifest.json", name);
    /* If it cannot be examined it counts as present: reading it reports why. */
    return !faccessat(dir, path, F_OK, 0) ||
           (errno != ENOENT && errno != ENOTDIR);
}

static int compare_steps(const void *left, const void *right) {
    const struct step_entry *l = left, *r = right;
    return (l->step > r->step) - (l->step < r->step);
}

static enum status checkpoint_append(struct step_entry **all, size_t *count,
                                     struct step_entry one,
                                     struct failure *why) {
    if ((*count & (*count - 1)) == 0) {
        size_t capacity = *count ? 2 * *count : 1;
        struct step_entry *more = realloc(*all, capacity * sizeof *more);
        if (!more)
            return status_errno(why, FAILURE_NO_MEMORY, ENOMEM, "checkpoints");
        *all = more;
    }
    (*all)[(*count)++] = one;
    return STATUS_OK;
}

/* All step folders of DIR, ascending; the caller frees *ALL. */
static enum status scan(const char *dir, struct step_entry **all, size_t *count,
                        struct failure *why) {
    *all = NULL;
    *count = 0;
    enum status status = checkpoint_check_length(dir, why);
    if (status)
        return status;
    DIR *folder = opendir(dir);
    if (!folder && errno == ENOENT)
        return STATUS_OK;
    if (!folder)
        return status_errno(why, FAILURE_FILE_UNREADABLE, errno,
                            "cannot read %s", dir);
    const struct dirent *entry;
    while (!status && (errno = 0, entry = readdir(folder))) {
        struct step_entry one;
        if (!step_of(entry->d_name, &one.step))
            continue;
        one.complete = has_manifest(dirfd(folder), one.step);
        status = checkpoint_append(all, count, one, why);
    }
    if (!status && errno)
        status = status_errno(why, FAILURE_FILE_UNREADABLE, errno,
                              "cannot read %s", dir);
    closedir(folder);
    if (status) {
        free(*all);
        *all = NULL;
        *count = 0;
    } else if (*count) {
        qsort(*all, *count, sizeof **all, compare_steps);
    }
    return status;
}

/* The steps that have a manifest, or those that have none. */
static enum status list(const char *dir, bool complete, uint64_t **steps,
                        size_t *count, struct failure *why) {
    struct step_entry *all;
    size_t num_all;
    *steps = NULL;
    *count = 0;
    enum status status = scan(dir, &all, &num_all, why);
    if (status)
        return status;
    *steps = malloc((num_all + 1) * sizeof **steps);
    if (!*steps) {
        free(all);
        return status_errno(why, FAILURE_NO_MEMORY, ENOMEM, "checkpoints");
    }
    for (size_t i = 0; i < num_all; i++)
        if (all[i].complete == complete)
            (*steps)[(*count)++] = all[i].step;
    free(all);
    return STATUS_OK;
}

enum status checkpoint_list(const char *dir, uint64_t **steps, size_t *count,
                            struct failure *why) {
    return list(dir, true, steps, count, why);
}

enum status checkpoint_incomplete(const char *dir, uint64_t **steps,
                                  size_t *count, struct failure *why) {
    return list(dir, false, steps, count, why);
}

/* True also for temporary files (.tmp) left by a killed process; a user's files
 * stay. */
static bool is_capstan_file(const char *name) {
    return strncmp(name, "manifest.json", 13) == 0 ||
           (strncmp(name, "ps-", 3) == 0 && strstr(name, ".mdb")) ||
           (strncmp(name, "kept-", 5) == 0 && strstr(name, ".bin"));
}

/* Removes Capstan's files from the open FOLDER, whose path is PATH. */
static enum status remove_files(DIR *folder, const char *path,
                                struct failure *why) {
    const struct dirent *entry;
    while ((errno = 0, entry = readdir(folder)))
        if (is_capstan_file(entry->d_name) &&
            unlinkat(dirfd(folder), entry->d_name, 0) && errno != ENOENT)
            return status_errno(why, FAILURE_FILE_UNWRITABLE, errno,
                                "cannot remove %s/%s", path, entry->d_name);
    if (errno)
        return status_errno(why, FAILURE_FILE_UNREADABLE, errno,
                            "cannot read %s", path);
    return STATUS_OK;
}

/* Removes the manifest from the open FOLDER of PATH durably. */
static enum status remove_manifest(DIR *folder, const char *path,
                                   struct failure *why) {
    if (!unlinkat(dirfd(folder), "manifest.json", 0))
        return fs_info_sync_folder(path, why);
    if (errno == ENOENT)
        return STATUS_OK;
    return status_errno(why, FAILURE_FILE_UNWRITABLE, errno,
                        "cannot remove %s/manifest.json", path);
}

/* The manifest is removed first and durably. If the process is killed, a folder
 * without a manifest remains, never a checkpoint that lacks a file. A link is
 * no folder of a run: what it leads to stays. */
enum status checkpoint_remove(const char *dir, uint64_t step,
                              struct failure *why) {
    char path[PATH_MAX];
    enum status status = checkpoint_check_length(dir, why);
    if (status)
        return status;
    checkpoint_folder(dir, step, path, sizeof path);
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 && (errno == ENOENT || errno == ENOTDIR || errno == ELOOP))
        return STATUS_OK;
    DIR *folder = fd >= 0 ? fdopendir(fd) : NULL;
    if (!folder) {
        status = status_errno(why, FAILURE_FILE_UNREADABLE, errno,
                              "cannot read %s", path);
        if (fd >= 0)
            close(fd);
        return status;
    }
    status = remove_manifest(folder, path, why);
    if (!status)
        status = remove_files(folder, path, why);
    closedir(folder);
    if (status)
        return status;
    if (rmdir(path) && errno != ENOTEMPTY && errno != EEXIST && errno != ENOENT)
        return status_errno(why, FAILURE_FILE_UNWRITABLE, errno,
                            "cannot remove %s", path);
    return STATUS_OK;
}

static bool is_listed(uint64_t step, const uint64_t *steps, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (steps[i] == step)
            return true;
    return false;
}

/* Reads the manifest of STEP if it is a delta with its base; the caller clears
 * *OUT. */
static bool read_delta(const char *dir, uint64_t step, struct manifest *out) {
    char folder[PATH_MAX];
    checkpoint_folder(dir, step, folder, sizeof folder);
    return !manifest_read(out, folder, NULL) && out->is_delta;
}

/* Adds the base of STEP, if it has one, to BASES[*COUNT]. False: it cannot be
 * told, perhaps for the moment. */
static bool add_base_of(const char *dir, uint64_t step, uint64_t *bases,
                        size_t *count) {
    struct manifest manifest;
    char folder[PATH_MAX];
    checkpoint_folder(dir, step, folder, sizeof folder);
    bool known = !manifest_read_alone(&manifest, folder, NULL);
    if (known && manifest.is_delta)
        bases[(*count)++] = manifest.base_name.step;
    manifest_clear(&manifest);
    return known;
}

/* From the newest down: a step above the newest checkpoint may be in progress,
 * and no delta stays without its base. */
static enum status prune_steps(const char *dir, const struct step_entry *all,
                               size_t count, uint32_t keep,
                               struct failure *why) {
    uint64_t *bases = malloc((count + 1) * sizeof *bases);
    size_t kept = 0, num_bases = 0;
    bool known = true;
    enum status status =
        bases ? STATUS_OK
              : status_errno(why, FAILURE_NO_MEMORY, ENOMEM, "checkpoints");
    for (size_t i = count; i-- > 0 && !status;) {
        uint64_t step = all[i].step;
        bool old = all[i].complete ? keep && kept >= keep : kept > 0;
        if (all[i].complete && keep && !old)
            known &= add_base_of(dir, step, bases, &num_bases);
        kept += all[i].complete;
        if (old && known && !is_listed(step, bases, num_bases))
            status = checkpoint_remove(dir, step, why);
    }
    free(bases);
    return status;
}

enum status checkpoint_prune(const char *dir, uint32_t keep,
                             struct failure *why) {
    struct step_entry *all;
    size_t count;
    enum status status = scan(dir, &all, &count, why);
    if (!status)
        status = prune_steps(dir, all, count, keep, why);
    free(all);
    return status;
}

/* Only steps older than the newest in STEPS: a later folder may be in
 * progress. */
enum status checkpoint_retain(const char *dir, const uint64_t *steps,
                              size_t count, struct failure *why) {
    struct step_entry *all;
    size_t num_all;
    if (!count)
        return STATUS_OK;
    enum status status = scan(dir, &all, &num_all, why);
    for (size_t i = 0; !status && i < num_all; i++)
        if (all[i].step < steps[count - 1] &&
            !is_listed(all[i].step, steps, count))
            status = checkpoint_remove(dir, all[i].step, why);
    free(all);
    return status;
}

static enum status checkpoint_move(const char *dir, uint64_t step,
                                   const char *aside, struct failure *why) {
    char from[PATH_MAX], to[PATH_MAX];
    checkpoint_folder(dir, step, from, sizeof from);
    checkpoint_folder(aside, step, to, sizeof to);
    return atomic_file_rename(from, to, why);
}

static enum status copy_file(const char *from, const char *to,
                             struct failure *why) {
    struct atomic_file copy;
    struct shard_info info;
    struct stat about;
    /* Not blocking: a pipe of that name must not block the process. */
    int fd = open(from, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return status_errno(why, FAILURE_FILE_UNREADABLE, errno,
                            "cannot open %s", from);
    enum status status =
        fstat(fd, &about) || !S_ISREG(about.st_mode)
            ? status_fail(why, FAILURE_CHECKPOINT_DAMAGED, "%s is not a file",
                          from)
            : atomic_file_create(&copy, to, (uint64_t)about.st_size, why);
    if (!status)
        status = atomic_file_finish(
            &copy, shard_file_hash(fd, from, &info, &copy, why), why);
    close(fd);
    return status;
}

/* Files of a checkpoint do not change, so a further name is as good as a copy.
 * One that is missing is on another host's disk, or was linked before. */
static enum status link_file(const char *from_folder, const char *to_folder,
                             const char *name, struct failure *why) {
    char from[PATH_MAX + sizeof((struct shard_info *)0)->name], to[sizeof from];
    snprintf(from, sizeof from, "%s/%s", from_folder, name);
    snprintf(to, sizeof to, "%s/%s", to_folder, name);
    if (!link(from, to) || errno == EEXIST || errno == ENOENT)
        return STATUS_OK;
    return copy_file(from, to, why);
}

static bool is_aside(const char *aside, uint64_t step) {
    char folder[PATH_MAX], path[PATH_MAX + sizeof "/manifest.json"];
    checkpoint_folder(aside, step, folder, sizeof folder);
    snprintf(path, sizeof path, "%s/manifest.json", folder);
    return !access(path, F_OK);
}

/* Links the checkpoint of MANIFEST to its step below ASIDE, the manifest last.
 */
static enum status link_checkpoint(const char *dir, const char *aside,
                                   const struct manifest *manifest,
                                   struct failure *why) {
    char from[PATH_MAX], to[PATH_MAX];
    checkpoint_folder(dir, manifest->step, from, sizeof from);
    checkpoint_folder(aside, manifest->step, to, sizeof to);
    enum status status = make_own_folder(to, why);
    for (uint32_t f = 0; f < manifest->num_files && !status; f++)
        status = link_file(from, to, manifest->files[f].name, why);
    for (uint32_t k = 0; k < manifest->num_kept && !status; k++)
        status = link_file(from, to, manifest->kept[k].name, why);
    if (!status)
        status = link_file(from, to, "manifest.json", why);
    if (!status)
        status = fs_info_sync_folder(to, why);
    return status ? status : fs_info_sync_folder(aside, why);
}

/* The base of a delta is linked before the delta moves, whether it stays or
 * moves later: killed between the two, deltas in both folders have it. */
static enum status set_aside(const char *dir, uint64_t step, const char *aside,
                             struct failure *why) {
    struct manifest manifest;
    enum status status = STATUS_OK;
    if (read_delta(dir, step, &manifest) &&
        !is_aside(aside, manifest.base_name.step))
        status = link_checkpoint(dir, aside, manifest.base, why);
    manifest_clear(&manifest);
    if (status)
        return status;
    return is_aside(aside, step) ? checkpoint_remove(dir, step, why)
                                 : checkpoint_move(dir, step, aside, why);
}

/* From the newest down, so that a kill leaves no gap, and bases last. */
enum status checkpoint_set_aside(const char *dir, uint64_t from, uint64_t run,
                                 size_t *moved, struct failure *why) {
    struct step_entry *all;
    size_t count;
    *moved = 0;
    enum status status = scan(dir, &all, &count, why);
    if (status)
        return status;
    char aside[PATH_MAX];
    snprintf(aside, sizeof aside, "%s/aside-%016" PRIx64, dir, run);
    for (size_t i = count; i-- > 0 && !status && all[i].step >= from;) {
        if (!*moved)
            status = make_own_folder(aside, why);
        if (!status)
            status = set_aside(dir, all[i].step, aside, why);
        *moved += !status;
    }
    free(all);
    return status;
}
