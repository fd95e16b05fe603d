/* SPDX-License-Identifier: Apache-2.0 */
#include "core/store/atomic_file.h"

#include "core/base/limits.h"
#include "core/store/fs_info.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static enum status atomic_file_check_length(const char *path, size_t length,
                                            struct failure *why) {
    if (length < PATH_MAX)
        return STATUS_OK;
    return status_errno(why, FAILURE_NAME_TOO_LONG, ENAMETOOLONG, "%s", path);
}

/* The name appears only in atomic_file_commit. A killed process leaves a .tmp
 * file, which no reader opens. Whatever has the temporary name is removed and
 * never opened: a link of another user would lead to any file of this one, and
 * a pipe would block. */
enum status atomic_file_create(struct atomic_file *file, const char *path,
                               uint64_t bytes, struct failure *why) {
    int length = snprintf(file->temporary, PATH_MAX, "%s.tmp", path);
    enum status status = atomic_file_check_length(path, (size_t)length, why);
    if (status)
        return status;
    memcpy(file->path, path, strlen(path) + 1);
    file->bytes = bytes;
    file->fd = -1;
    limits_await_descriptors();
    if (!unlink(file->temporary) || errno == ENOENT)
        file->fd =
            open(file->temporary,
                 O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (file->fd < 0)
        return fs_info_write_failure(path, bytes, errno, why);
    return STATUS_OK;
}

/* For a copy that is opened once by name and then discarded. */
enum status atomic_file_open_temporary(struct atomic_file *file,
                                       const char *folder, uint64_t bytes,
                                       struct failure *why) {
    int length =
        snprintf(file->temporary, PATH_MAX, "%s/capstan-XXXXXX", folder);
    enum status status = atomic_file_check_length(folder, (size_t)length, why);
    if (status)
        return status;
    file->bytes = bytes;
    file->fd = mkostemp(file->temporary, O_CLOEXEC);
    memcpy(file->path, file->temporary, PATH_MAX);
    if (file->fd < 0)
        return fs_info_write_failure(file->path, bytes, errno, why);
    return STATUS_OK;
}

enum status atomic_file_write(struct atomic_file *file, const void *data,
                              size_t bytes, struct failure *why) {
    const char *at = data;
    assert(file->fd >= 0);
    while (bytes) {
        ssize_t written = write(file->fd, at, bytes);
        if (written < 0 && errno == EINTR)
            continue;
        if (written < 0)
            return fs_info_write_failure(file->path, file->bytes, errno, why);
        at += written;
        bytes -= (size_t)written;
    }
    return STATUS_OK;
}

/* The order is content, name, directory entry: in another order a power failure
 * can leave the name without the content. */
enum status atomic_file_commit(struct atomic_file *file, struct failure *why) {
    assert(file->fd >= 0);
    int error = fsync(file->fd) ? errno : 0;
    if (close(file->fd) && !error)
        error = errno;
    file->fd = -1;
    enum status status =
        error ? fs_info_write_failure(file->path, file->bytes, error, why)
              : atomic_file_rename(file->temporary, file->path, why);
    if (status)
        atomic_file_abort(file);
    return status;
}

enum status atomic_file_finish(struct atomic_file *file, enum status status,
                               struct failure *why) {
    if (!status)
        return atomic_file_commit(file, why);
    atomic_file_abort(file);
    return status;
}

void atomic_file_abort(struct atomic_file *file) {
    if (file->fd >= 0)
        close(file->fd);
    file->fd = -1;
    unlink(file->temporary);
}

enum status atomic_file_rename(const char *temporary, const char *path,
                               struct failure *why) {
    if (rename(temporary, path))
        return status_errno(why, FAILURE_FILE_UNWRITABLE, errno,
                            "cannot rename %s to %s", temporary, path);
    char folder[PATH_MAX];
    enum status status =
        fs_info_parent_folder(path, folder, sizeof folder, why);
    return status ? status : fs_info_sync_folder(folder, why);
}
