/* SPDX-License-Identifier: Apache-2.0 */
#include "core/store/file_lock.h"

#include "core/base/fork_guard.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

bool file_lock_set(int file, short type) {
    struct flock all = {.l_type = type, .l_whence = SEEK_SET};
    return !fcntl(file, F_OFD_SETLK, &all);
}

enum status file_lock_take(int file, const char *path, const struct log *log,
                           struct failure *why) {
    bool locked = file_lock_set(file, F_WRLCK);
    if (!locked && (errno == EAGAIN || errno == EACCES)) {
        status_fail(why, FAILURE_OUTPUT_UNUSABLE,
                    "another run writes %s: end that run first, or give this "
                    "one another file",
                    path);
        return STATUS_CONFIG;
    }
    if (!locked)
        log_warning(log, "lock_unavailable",
                    "%s takes no lock (%s): a second run that writes it would "
                    "not be noticed",
                    path, strerror(errno));
    fork_guard_add_file(file);
    return STATUS_OK;
}

void file_lock_close(int *file) {
    if (*file < 0)
        return;
    fork_guard_remove_file(*file);
    close(*file);
    *file = -1;
}
