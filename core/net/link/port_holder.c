/* SPDX-License-Identifier: Apache-2.0 */
/* The tables of sockets have each local port with the number of its socket;
 * each process's folder of descriptors has the sockets that it holds. */
#include "core/net/link/port_holder.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LISTENING = 0x0a /* as the kernel numbers states of TCP */ };

/* One that listens on PORT, else one that has it for a connection, which holds
 * the port as well. 0: none, or TABLE cannot be read. */
static uint64_t find_socket_of(const char *table, uint16_t port) {
    char line[512];
    uint64_t number = 0;
    unsigned kind = 0;
    FILE *file = fopen(table, "re");
    while (file && kind != LISTENING && fgets(line, sizeof line, file)) {
        unsigned found, state;
        uint64_t inode;
        if (sscanf(line,
                   " %*d: %*[0-9A-Fa-f]:%x %*[0-9A-Fa-f]:%*x %x %*s %*s %*s "
                   "%*s %*s %" SCNu64,
                   &found, &state, &inode) == 3 &&
            found == port && inode && (state == LISTENING || !number)) {
            number = inode;
            kind = state;
        }
    }
    if (file)
        fclose(file);
    return number;
}

static bool holds_socket(const char *process, uint64_t number) {
    char path[512], target[64], expected[64];
    bool holds = false;
    snprintf(path, sizeof path, "/proc/%.32s/fd", process);
    snprintf(expected, sizeof expected, "socket:[%" PRIu64 "]", number);
    DIR *folder = opendir(path);
    struct dirent *entry;
    while (folder && !holds && (entry = readdir(folder))) {
        snprintf(path, sizeof path, "/proc/%.32s/fd/%.32s", process,
                 entry->d_name);
        ssize_t length = readlink(path, target, sizeof target - 1);
        target[length > 0 ? length : 0] = 0;
        holds = !strcmp(target, expected);
    }
    if (folder)
        closedir(folder);
    return holds;
}

static void describe_process(const char *process, char *text, size_t size) {
    char path[64], name[64] = "";
    snprintf(path, sizeof path, "/proc/%.32s/comm", process);
    FILE *file = fopen(path, "re");
    if (file) {
        if (!fgets(name, sizeof name, file))
            name[0] = 0;
        fclose(file);
    }
    name[strcspn(name, "\n")] = 0;
    snprintf(text, size, " (pid %.32s, %s)", process, name);
}

void port_holder_text(uint16_t port, char *text, size_t size) {
    uint64_t number = find_socket_of("/proc/net/tcp", port);
    struct dirent *entry;
    text[0] = 0;
    if (!number)
        number = find_socket_of("/proc/net/tcp6", port);
    DIR *folder = number ? opendir("/proc") : NULL;
    while (folder && !text[0] && (entry = readdir(folder)))
        if (atoi(entry->d_name) > 0 && holds_socket(entry->d_name, number))
            describe_process(entry->d_name, text, size);
    if (folder)
        closedir(folder);
}
