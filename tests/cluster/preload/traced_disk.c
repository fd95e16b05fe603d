/* SPDX-License-Identifier: Apache-2.0 */
/* Loaded before the C library: what changes files below the folder that
 * CAPSTAN_TRACED_DISK names is numbered over all processes of a run, in the
 * file "count" of the folder CAPSTAN_TRACE, and told there in a file a call:
 * "BEGIN\nCALL\nPATH\nOTHER\n", the number of the last call when this one
 * began, and of a sync the file's content then (tests/cluster/power_cut.py).
 * With CAPSTAN_FAILS the call of that number fails, and no other. */
#define _LARGEFILE64_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define SHOWN __attribute__((visibility("default")))
#define NEXT(call) ((__typeof__(call) *)dlsym(RTLD_NEXT, #call))

struct change {
    const char *call;
    char path[PATH_MAX], other[PATH_MAX];
    unsigned begin, number;
    int content; /* a copy of the file, or -1 */
};

static _Atomic unsigned *count_of_run(void) {
    static _Atomic(_Atomic unsigned *) shared;
    _Atomic unsigned *count = shared;
    if (count)
        return count;
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/count", getenv("CAPSTAN_TRACE"));
    int fd = NEXT(open)(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0 || NEXT(ftruncate)(fd, sizeof *count))
        abort();
    void *at =
        mmap(NULL, sizeof *count, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED)
        abort();
    close(fd);
    shared = at;
    return at;
}

static bool is_below(const char *path) {
    const char *folder = getenv("CAPSTAN_TRACED_DISK");
    size_t length = folder ? strlen(folder) : 0;
    return length && !strncmp(path, folder, length) &&
           (path[length] == '/' || !path[length]);
}

/* PATH in FOLDER, a descriptor, without links above it. */
static void name_at(int folder, const char *path, char found[PATH_MAX]) {
    char link[64];
    snprintf(link, sizeof link,
             folder == AT_FDCWD ? "/proc/self/cwd" : "/proc/self/fd/%d",
             folder);
    ssize_t length = 0;
    if (*path != '/')
        length = readlink(link, found, PATH_MAX - 1);
    found[length > 0 ? length : 0] = 0;
    if (*path)
        snprintf(found + strlen(found), PATH_MAX - strlen(found), "%s%s",
                 *found ? "/" : "", path);
}

static bool is_failing(unsigned number) {
    const char *fails = getenv("CAPSTAN_FAILS");
    return fails && (unsigned)strtoul(fails, NULL, 10) == number;
}

/* False: the call is not traced. */
static bool begin(struct change *change, const char *call, int folder,
                  const char *path) {
    int error = errno;
    name_at(folder, path, change->path);
    change->other[0] = 0;
    change->call = call;
    change->content = -1;
    bool traced = is_below(change->path);
    if (traced)
        change->begin = *count_of_run();
    errno = error;
    return traced;
}

/* A rename and the like may be seen by others before it returns, and a sync
 * counts once it has returned. True: the call is to fail. */
static bool take_number(struct change *change) {
    change->number = ++*count_of_run();
    return is_failing(change->number);
}

static void tell(const struct change *change) {
    char path[PATH_MAX + 32], line[2 * PATH_MAX + 64], data[1 << 14];
    int error = errno;
    snprintf(path, sizeof path, "%s/%08u", getenv("CAPSTAN_TRACE"),
             change->number);
    int fd = NEXT(open)(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    int length = snprintf(line, sizeof line, "%u\n%s\n%s\n%s\n", change->begin,
                          change->call, change->path, change->other);
    if (fd < 0 || NEXT(write)(fd, line, (size_t)length) != length)
        abort();
    off_t at = 0;
    ssize_t bytes;
    while (change->content >= 0 &&
           (bytes = pread(change->content, data, sizeof data, at)) > 0) {
        if (NEXT(write)(fd, data, (size_t)bytes) != bytes)
            abort();
        at += bytes;
    }
    if (change->content >= 0)
        close(change->content);
    close(fd);
    errno = error;
}

/* Of a file; a folder's has none. */
static int copy_content(int fd) {
    struct stat about;
    char link[64], data[1 << 14];
    if (fstat(fd, &about) || !S_ISREG(about.st_mode))
        return -1;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    int from = NEXT(open)(link, O_RDONLY | O_CLOEXEC);
    int to = memfd_create("content", MFD_CLOEXEC);
    ssize_t bytes;
    while ((bytes = read(from, data, sizeof data)) > 0)
        if (NEXT(write)(to, data, (size_t)bytes) != bytes)
            abort();
    close(from);
    return to;
}

static int take_sync(int fd, const char *call, int (*next)(int)) {
    struct change change;
    if (!begin(&change, call, fd, ""))
        return next(fd);
    change.content = copy_content(fd);
    int result = next(fd);
    if (take_number(&change)) {
        change.call = "failed";
        errno = EIO;
        result = -1;
    }
    tell(&change);
    return result;
}

SHOWN int fsync(int fd) {
    return take_sync(fd, "sync", NEXT(fsync));
}

SHOWN int fdatasync(int fd) {
    return take_sync(fd, "sync", NEXT(fdatasync));
}

/* A call by name, told before it is made: what fails by itself changes nothing,
 * and is told as such. */
#define BY_NAME(CHANGE, MADE)                                                  \
    do {                                                                       \
        if (take_number(CHANGE)) {                                             \
            (CHANGE)->call = "failed";                                         \
            tell(CHANGE);                                                      \
            errno = EIO;                                                       \
            return -1;                                                         \
        }                                                                      \
        int result = (MADE);                                                   \
        if (result < 0)                                                        \
            (CHANGE)->call = "failed";                                         \
        tell(CHANGE);                                                          \
        return result;                                                         \
    } while (0)

static int take_open(int folder, const char *path, int flags, mode_t mode) {
    struct change change;
    __typeof__(openat) *next = NEXT(openat);
    if (!(flags & O_CREAT) || !begin(&change, "create", folder, path))
        return next(folder, path, flags, mode);
    BY_NAME(&change, next(folder, path, flags, mode));
}

static mode_t mode_of(int flags, va_list more) {
    return flags & O_CREAT ? va_arg(more, mode_t) : 0;
}

SHOWN int open(const char *path, int flags, ...) {
    va_list more;
    va_start(more, flags);
    mode_t mode = mode_of(flags, more);
    va_end(more);
    return take_open(AT_FDCWD, path, flags, mode);
}

SHOWN int openat(int folder, const char *path, int flags, ...) {
    va_list more;
    va_start(more, flags);
    mode_t mode = mode_of(flags, more);
    va_end(more);
    return take_open(folder, path, flags, mode);
}

SHOWN int mkdir(const char *path, mode_t mode) {
    struct change change;
    if (!begin(&change, "mkdir", AT_FDCWD, path))
        return NEXT(mkdir)(path, mode);
    BY_NAME(&change, NEXT(mkdir)(path, mode));
}

SHOWN int rename(const char *from, const char *to) {
    struct change change;
    if (!begin(&change, "rename", AT_FDCWD, from))
        return NEXT(rename)(from, to);
    name_at(AT_FDCWD, to, change.other);
    BY_NAME(&change, NEXT(rename)(from, to));
}

SHOWN int link(const char *from, const char *to) {
    struct change change;
    if (!begin(&change, "link", AT_FDCWD, from))
        return NEXT(link)(from, to);
    name_at(AT_FDCWD, to, change.other);
    BY_NAME(&change, NEXT(link)(from, to));
}

SHOWN int unlink(const char *path) {
    struct change change;
    if (!begin(&change, "remove", AT_FDCWD, path))
        return NEXT(unlink)(path);
    BY_NAME(&change, NEXT(unlink)(path));
}

SHOWN int unlinkat(int folder, const char *path, int flags) {
    struct change change;
    if (!begin(&change, "remove", folder, path))
        return NEXT(unlinkat)(folder, path, flags);
    BY_NAME(&change, NEXT(unlinkat)(folder, path, flags));
}

SHOWN int rmdir(const char *path) {
    struct change change;
    if (!begin(&change, "remove", AT_FDCWD, path))
        return NEXT(rmdir)(path);
    BY_NAME(&change, NEXT(rmdir)(path));
}

/* Writes are numbered where one is to fail, and not told. */
static bool fails_to_write(int fd) {
    struct change change;
    if (!getenv("CAPSTAN_FAILS") || !begin(&change, "write", fd, "") ||
        !take_number(&change))
        return false;
    change.call = "failed";
    tell(&change);
    errno = ENOSPC;
    return true;
}

SHOWN ssize_t write(int fd, const void *data, size_t bytes) {
    return fails_to_write(fd) ? -1 : NEXT(write)(fd, data, bytes);
}

SHOWN ssize_t writev(int fd, const struct iovec *data, int n) {
    return fails_to_write(fd) ? -1 : NEXT(writev)(fd, data, n);
}

SHOWN ssize_t pwrite(int fd, const void *data, size_t bytes, off_t at) {
    return fails_to_write(fd) ? -1 : NEXT(pwrite)(fd, data, bytes, at);
}

SHOWN int ftruncate(int fd, off_t bytes) {
    return fails_to_write(fd) ? -1 : NEXT(ftruncate)(fd, bytes);
}

/* Of the same types here, where offsets have 64 bits. */
#define SAME(call) SHOWN __attribute__((alias(#call)))
SAME(open) int open64(const char *path, int flags, ...);
SAME(openat) int openat64(int folder, const char *path, int flags, ...);
SAME(pwrite)
ssize_t pwrite64(int fd, const void *data, size_t bytes, off64_t at);
SAME(ftruncate) int ftruncate64(int fd, off64_t bytes);
