/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/store/manifest.h"

#include "proto/store/atomic_file.h"

#include <errno.h>
#include <fcntl.h>
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

enum status manifest_write(const struct manifest *manifest, const char *folder,
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

enum status manifest_read(struct manifest *out, const char *folder,
                          struct failure *why) {
    char path[PATH_MAX], *text = NULL;
    memset(out, 0, sizeof *out);
    enum status status = path_in(folder, "manifest.json", path, why);
    if (status)
        return status;
    /* Not blocking: a pipe of that name must not block the process. */
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return status_errno(why, FAILURE_FILE_UNREADABLE, errno,
                            "cannot open %s", path);
    status = manifest_read_text(fd, path, &text, why);
    close(fd);
    if (status)
        return status;
    status = manifest_parse(out, text, why);
    free(text);
    return status ? status_context(why, "%s", path) : STATUS_OK;
}
