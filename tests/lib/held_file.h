/* SPDX-License-Identifier: Apache-2.0 */
/* A file of a checkpoint that the disk of processes under test takes, or
 * refuses, when the test says so (tests/cluster/preload/held_disk.c). */
#ifndef CAPSTAN_HELD_FILE_H
#define CAPSTAN_HELD_FILE_H

#include "tests/cluster/cluster_run.h"

struct held_file {
    char path[PATH_MAX]; /* of the pipe between the two */
    int end;             /* ours, once somebody waits at the other; or -1 */
};

/* From now on whatever process of RUN is started waits when it syncs a file of
 * FOLDER whose name begins with FILE. One after the other, each until its own
 * held_file_let. */
void held_file_make(struct held_file *held, const struct cluster_run *run,
                    const char *folder, const char *file);

/* Until a process waits so. */
void held_file_await(struct held_file *held);

/* It goes on: the disk has TAKEN the file, or has an error. No other process
 * waits for it. */
void held_file_let(struct held_file *held, bool taken);

#endif
