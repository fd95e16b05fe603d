/* SPDX-License-Identifier: Apache-2.0 */
/* libzmq does not tell its descriptors, so a child looks at all of its own. The
 * mutex is held over the fork: the child finds the lists whole. */
#include "core/base/fork_guard.h"

#include <dirent.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MAX_ENTRIES = 256 };

struct entries {
    int values[MAX_ENTRIES];
    unsigned count;
};

static struct {
    pthread_mutex_t mutex;
    struct entries ports, files;
    unsigned generation;
} guard = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static void add_entry(struct entries *entries, int value) {
    pthread_mutex_lock(&guard.mutex);
    if (entries->count < MAX_ENTRIES)
        entries->values[entries->count++] = value;
    pthread_mutex_unlock(&guard.mutex);
}

static void remove_entry(struct entries *entries, int value) {
    pthread_mutex_lock(&guard.mutex);
    for (unsigned i = 0; i < entries->count; i++)
        if (entries->values[i] == value) {
            entries->values[i] = entries->values[--entries->count];
            break;
        }
    pthread_mutex_unlock(&guard.mutex);
}

void fork_guard_add_port(uint16_t port) {
    add_entry(&guard.ports, port);
}

void fork_guard_remove_port(uint16_t port) {
    remove_entry(&guard.ports, port);
}

void fork_guard_add_file(int file) {
    add_entry(&guard.files, file);
}

void fork_guard_remove_file(int file) {
    remove_entry(&guard.files, file);
}

static bool has_entry(const struct entries *entries, int value) {
    for (unsigned i = 0; i < entries->count; i++)
        if (entries->values[i] == value)
            return true;
    return false;
}

/* 0: FILE is no socket of TCP. */
static int local_port(int file) {
    union {
        struct sockaddr any;
        struct sockaddr_in four;
        struct sockaddr_in6 six;
    } address;
    socklen_t size = sizeof address;
    if (getsockname(file, &address.any, &size))
        return 0;
    if (address.any.sa_family == AF_INET)
        return ntohs(address.four.sin_port);
    return address.any.sa_family == AF_INET6 ? ntohs(address.six.sin6_port) : 0;
}

static void close_inherited(void) {
    DIR *folder = opendir("/proc/self/fd");
    struct dirent *entry;
    while (folder && (entry = readdir(folder))) {
        int file = atoi(entry->d_name), port;
        if (file <= STDERR_FILENO || file == dirfd(folder))
            continue;
        port = local_port(file);
        if ((port && has_entry(&guard.ports, port)) ||
            has_entry(&guard.files, file))
            close(file);
    }
    if (folder)
        closedir(folder);
}

static void before_fork(void) {
    pthread_mutex_lock(&guard.mutex);
}

static void after_fork_in_parent(void) {
    pthread_mutex_unlock(&guard.mutex);
}

/* A child of the child has nothing more to close. */
static void after_fork_in_child(void) {
    close_inherited();
    guard.ports.count = guard.files.count = 0;
    guard.generation++;
    pthread_mutex_unlock(&guard.mutex);
}

static void install(void) {
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

void fork_guard_install(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, install);
}

unsigned fork_guard_generation(void) {
    return guard.generation;
}
