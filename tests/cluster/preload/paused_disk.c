/* SPDX-License-Identifier: Apache-2.0 */
/* Loaded before the C library: fsync and fdatasync of FOLDER/FILE first look
 * for a pipe in the folder that CAPSTAN_HELD_DISK names, whose own name is how
 * "FOLDER.FILE" begins (FOLDER without what is above it). There they wait until
 * who has made the pipe opens it and closes it again; what it writes before
 * makes the call fail with EIO. */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* "FOLDER.FILE" of what FD is. */
static bool name_of(int fd, char name[PATH_MAX]) {
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    path[length > 0 ? length : 0] = 0;
    char *file = strrchr(path, '/');
    if (!file)
        return false;
    *file = 0;
    char *folder = strrchr(path, '/');
    snprintf(name, PATH_MAX, "%s.%s", folder ? folder + 1 : "", file + 1);
    return true;
}

/* The pipe for FD; false: there is none. */
static bool find_pipe(int fd, char path[2 * PATH_MAX]) {
    const char *held = getenv("CAPSTAN_HELD_DISK");
    char name[PATH_MAX];
    DIR *folder = held && name_of(fd, name) ? opendir(held) : NULL;
    bool found = false;
    for (struct dirent *entry; folder && !found && (entry = readdir(folder));) {
        found = entry->d_name[0] != '.' &&
                !strncmp(name, entry->d_name, strlen(entry->d_name));
        snprintf(path, 2 * PATH_MAX, "%s/%s", held, entry->d_name);
    }
    if (folder)
        closedir(folder);
    return found;
}

/* Until the pipe is closed at its other end; false: refused. */
static bool wait_for(const char *path) {
    char byte;
    int pipe = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t count;
    do
        count = read(pipe, &byte, 1);
    while (count < 0 && errno == EINTR);
    close(pipe);
    return count <= 0;
}

static int take(int fd, const char *call) {
    char path[2 * PATH_MAX];
    if (find_pipe(fd, path) && !wait_for(path)) {
        errno = EIO;
        return -1;
    }
    int (*next)(int) = (int (*)(int))dlsym(RTLD_NEXT, call);
    return next(fd);
}

#define SHOWN __attribute__((visibility("default")))

SHOWN int fsync(int fd) {
    return take(fd, "fsync");
}

SHOWN int fdatasync(int fd) {
    return take(fd, "fdatasync");
}
