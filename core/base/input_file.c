/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base/input_file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *kind_of(mode_t mode) {
    return S_ISFIFO(mode)   ? "a pipe"
           : S_ISDIR(mode)  ? "a directory"
           : S_ISSOCK(mode) ? "a socket"
                            : "a device";
}

enum status input_file_open(int *out, const char *path, const char *what,
                            enum failure_code code, struct failure *why) {
    struct stat about;
    int file = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    *out = file;
    if (file >= 0 && !fstat(file, &about) && S_ISREG(about.st_mode))
        return STATUS_OK;
    *out = -1;
    if (file < 0 || fstat(file, &about)) {
        int problem = errno;
        if (file >= 0)
            close(file);
        return status_errno(why, code, problem, "%s: cannot open %s", path,
                            what);
    }
    close(file);
    return status_fail(
        why, code,
        "%s: found %s, expected a regular file as %s: write what "
        "is to be read to a file first",
        path, kind_of(about.st_mode), what);
}

enum status input_file_check(const char *path, const char *what,
                             enum failure_code code, struct failure *why) {
    int file;
    enum status status = input_file_open(&file, path, what, code, why);
    if (!status)
        close(file);
    return status;
}
