/* SPDX-License-Identifier: Apache-2.0 */
#include "core/store/manifest.h"

#include "core/store/atomic_file.h"
#include "core/store/checkpoint.h"
#include "core/store/manifest_text.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static enum status path_in(const char *folder, const char *name, char *path,
                           struct failure *why) {
    if (snprintf(path, PATH_MAX, "%s/%s", folder, name) < PATH_MAX)
        return STATUS_OK;
    return status_errno(why, FAILURE_NAME_TOO_LONG, ENAMETOOLONG, "%s", folder);
}

static enum status manifest_write_text(const char *path, const char *text,
                                       struct failure *why) {
    struct atomic_file file;
    size_t bytes = strlen(text);
    enum status status = atomic_file_create(&file, path, bytes, why);
    if (status)
        return status;
    status = atomic_file_write(&file, text, bytes, why);
    if (!status)
        return atomic_file_commit(&file, why);
    atomic_file_abort(&file);
    return status;
}

enum status manifest_write(struct manifest *manifest, const char *folder,
                           struct failure *why) {
    char path[PATH_MAX], parent[PATH_MAX];
    enum status status = path_in(folder, "manifest.json", path, why);
    if (!status)
        status = path_in(folder, "..", parent, why);
    /* The folder may be new, so its own name is synced first. */
    if (!status)
        status = atomic_file_sync_folder(parent, why);
    if (status)
        return status;
    char *text = manifest_text(manifest);
    if (!text)
        return status_fail(
            why, FAILURE_CHECKPOINT_NOT_WRITTEN,
            "%s: cannot write it as text: memory is short, or its job is not a "
            "JSON object",
            path);
    manifest->hash = manifest_text_hash(text);
    status = manifest_write_text(path, text, why);
    free(text);
    return status;
}

/* Reads FD, the file at PATH, into a string that the caller frees. */
static enum status manifest_read_text(int fd, const char *path, char **text,
                                      struct failure *why) {
    struct stat st;
    if (fstat(fd, &st) || !S_ISREG(st.st_mode))
        return status_fail(why, FAILURE_CHECKPOINT_DAMAGED, "%s is not a file",
                           path);
    if (st.st_size > MANIFEST_MAX_BYTES)
        return status_fail(why, FAILURE_CHECKPOINT_DAMAGED,
                           "%s has %lld bytes, a manifest has at most %d", path,
                           (long long)st.st_size, (int)MANIFEST_MAX_BYTES);
    size_t size = (size_t)st.st_size, used = 0;
    char *bytes = malloc(size + 1);
    if (!bytes)
        return status_errno(why, FAILURE_NO_MEMORY, ENOMEM, "%s", path);
    ssize_t got = 1;
    while (used < size && got > 0) {
        got = read(fd, bytes + used, size - used);
        used += got > 0 ? (size_t)got : 0;
    }
    bytes[used] = '\0';
    if (got >= 0 && strlen(bytes) == size) {
        *text = bytes;
        return STATUS_OK;
    }
    free(bytes);
    if (got < 0)
        return status_errno(why, FAILURE_FILE_UNREADABLE, errno,
                            "cannot read %s", path);
    return status_fail(why, FAILURE_CHECKPOINT_DAMAGED,
                       "%s is damaged: it is not text", path);
}

/* PATH [PATH_MAX] is that of the manifest in FOLDER. */
static enum status manifest_open(const char *folder, char *path, char **text,
                                 struct failure *why) {
    enum status status = path_in(folder, "manifest.json", path, why);
    if (status)
        return status;
    /* Not blocking: a pipe of that name must not block the process. */
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return status_errno(why, FAILURE_FILE_UNREADABLE, errno,
                            "cannot open %s", path);
    status = manifest_read_text(fd, path, text, why);
    close(fd);
    return status;
}

static enum status read_base(struct manifest *manifest, const char *folder,
                             struct failure *why) {
    const struct manifest_name *name = &manifest->base_name;
    char base[PATH_MAX], path[PATH_MAX], *text;
    checkpoint_sibling(folder, name->step, base, sizeof base);
    enum status status = manifest_open(base, path, &text, why);
    if (status)
        return status;
    status = manifest_parse_base(manifest, text, why);
    free(text);
    if (status)
        return status_context(why, "%s", path);
    if (manifest->base->hash == name->hash)
        return STATUS_OK;
    return status_fail(why, FAILURE_CHECKPOINT_DAMAGED,
                       "%s is another one: its XXH3 is %016" PRIx64
                       ", not %016" PRIx64,
                       path, manifest->base->hash, name->hash);
}

enum status manifest_read_alone(struct manifest *out, const char *folder,
                                struct failure *why) {
    char path[PATH_MAX], *text = NULL;
    memset(out, 0, sizeof *out);
    enum status status = manifest_open(folder, path, &text, why);
    if (status)
        return status;
    status = manifest_parse(out, text, why);
    free(text);
    return status ? status_context(why, "%s", path) : STATUS_OK;
}

enum status manifest_read(struct manifest *out, const char *folder,
                          struct failure *why) {
    enum status status = manifest_read_alone(out, folder, why);
    if (status)
        return status;
    struct failure wrong;
    if (!out->is_delta || !read_base(out, folder, &wrong))
        return STATUS_OK;
    uint64_t step = out->base_name.step;
    manifest_clear(out);
    return status_fail(
        why,
        wrong.code == FAILURE_FILE_UNREADABLE ? FAILURE_CHECKPOINT_DAMAGED
                                              : wrong.code,
        "%s: a delta, and its base of step %" PRIu64 " cannot be read: %.1500s",
        folder, step, wrong.text);
}
