/* SPDX-License-Identifier: Apache-2.0 */
/* The descriptor's number in the environment may be stale: a program between
 * the launcher and this one may have closed it, and the number may be another
 * file's now. So the inode is passed as well and compared. */
#include "proto/messages/launch_record.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static const char variable[] = "CAPSTAN_MEMBER_RECORD";

enum {
    WRITTEN = 512, /* bytes of a record, filled up with blanks */
    DEATHS = WRITTEN,
    LAUNCHER = DEATHS + sizeof(uint64_t),
    LAST = LAUNCHER + sizeof(uint64_t),
};

int launch_record_open(uint64_t launcher) {
    int file = memfd_create("capstan member", MFD_CLOEXEC);
    ssize_t written = 0;
    if (file >= 0)
        written = pwrite(file, &launcher, sizeof launcher, LAUNCHER);
    (void)written; /* on failure it is started by none */
    return file;
}

uint64_t launch_record_launcher(int file) {
    uint64_t launcher;
    bool known = file && pread(file, &launcher, sizeof launcher, LAUNCHER) ==
                             sizeof launcher;
    return known ? launcher : 0;
}

void launch_record_pass(int file) {
    char text[64];
    struct stat about;
    unsetenv(variable); /* set by an outer launcher */
    if (file < 0 || fstat(file, &about) || fcntl(file, F_SETFD, 0))
        return;
    snprintf(text, sizeof text, "%d:%ju", file, (uintmax_t)about.st_ino);
    setenv(variable, text, 1);
}

int launch_record_inherited(void) {
    const char *text = getenv(variable);
    uintmax_t inode;
    int file;
    struct stat about;
    if (!text || sscanf(text, "%d:%ju", &file, &inode) != 2 || file <= 2 ||
        fstat(file, &about) || !S_ISREG(about.st_mode) ||
        (uintmax_t)about.st_ino != inode)
        return 0;
    fcntl(file, F_SETFD, FD_CLOEXEC);
    return file;
}

void launch_record_write(int file, const struct launch_record *record) {
    char text[WRITTEN];
    if (!file)
        return;
    snprintf(text, sizeof text, "%-*s", WRITTEN - 1, "");
    int used = snprintf(
        text, sizeof text, "%016" PRIx64 " %016" PRIx64 " %016" PRIx64 " %s",
        record->run, record->incarnation, record->key, record->chief);
    text[used] = '\n';
    ssize_t written = pwrite(file, text, sizeof text, 0);
    (void)written; /* on failure the chief notices the death by the missing
                      heartbeats */
}

bool launch_record_has_joined(int file) {
    char first = 0;
    return file >= 0 && pread(file, &first, 1, 0) == 1 && first;
}

bool launch_record_read(int file, struct launch_record *record) {
    char text[WRITTEN + 1] = "";
    *record = (struct launch_record){0};
    return file >= 0 && pread(file, text, WRITTEN, 0) > 0 &&
           sscanf(text, "%" SCNx64 " %" SCNx64 " %" SCNx64 " %299[^\n]",
                  &record->run, &record->incarnation, &record->key,
                  record->chief) == 4;
}

bool launch_record_in_run(int file) {
    struct launch_record record;
    return launch_record_read(file, &record) || record.run;
}

void launch_record_write_deaths(int file, unsigned deaths) {
    uint64_t number = deaths;
    ssize_t written = 0;
    if (file)
        written = pwrite(file, &number, sizeof number, DEATHS);
    (void)written; /* on failure a drill kills nothing */
}

unsigned launch_record_deaths(int file) {
    uint64_t number;
    return file >= 0 &&
                   pread(file, &number, sizeof number, DEATHS) == sizeof number
               ? (unsigned)number
               : 0;
}

void launch_record_write_last(int file, const uint64_t *incarnations,
                              size_t count) {
    ssize_t written = 0;
    if (file)
        written =
            pwrite(file, incarnations, count * sizeof *incarnations, LAST);
    (void)written; /* on failure none was replaced */
}

bool launch_record_was_replaced(int file, uint64_t incarnation) {
    uint64_t last;
    off_t at = LAST;
    while (file >= 0 && pread(file, &last, sizeof last, at) == sizeof last) {
        if (last == incarnation)
            return false;
        at += (off_t)sizeof last;
    }
    return at > LAST;
}
