/* SPDX-License-Identifier: Apache-2.0 */
/* A file of a checkpoint that the disk of processes under test takes, or
 * refuses, when the test says so (tests/cluster/preload/paused_disk.c). */
#ifndef CAPSTAN_PAUSED_FILE_H
#define CAPSTAN_PAUSED_FILE_H

#include "tests/cluster/cluster_run.h"

struct paused_file {
    const char *path; /* of the pipe between the two */
    int signal_fd;    /* ours, once somebody waits at the other; or -1 */
};

/* From now on whatever process of RUN is started waits when it syncs a file of
 * FOLDER whose name begins with FILE. One after the other, each until its own
 * paused_file_resume. */
void paused_file_open(struct paused_file *held, const struct cluster_run *run,
                      const char *folder, const char *file);

/* Until a process waits so. */
void paused_file_await(struct paused_file *held);

/* It goes on: the disk has TAKEN the file, or has an error. No other process
 * waits for it. */
void paused_file_resume(struct paused_file *held, bool taken);

#endif
