/* SPDX-License-Identifier: Apache-2.0 */
/* A file that is there whole or not at all: written under a temporary name,
 * synced, renamed, its folder synced. */
#ifndef CAPSTAN_ATOMIC_FILE_H
#define CAPSTAN_ATOMIC_FILE_H

#include "proto/base/status.h"

#include <limits.h>
#include <stddef.h>
#include <stdint.h>

struct atomic_file {
    int fd;
    uint64_t bytes; /* expected in all, for what a failure says */
    char path[PATH_MAX], temporary[PATH_MAX];
};

/* Starts PATH.tmp for BYTES bytes. */
enum status atomic_file_create(struct atomic_file *file, const char *path,
                               uint64_t bytes, struct failure *why) MUST_CHECK;

/* Starts a file of a name of its own in FOLDER, to be ended by
 * atomic_file_abort. */
enum status atomic_file_open_temporary(struct atomic_file *file,
                                       const char *folder, uint64_t bytes,
                                       struct failure *why) MUST_CHECK;

/* Appends. After a failure only atomic_file_abort may follow. */
enum status atomic_file_write(struct atomic_file *file, const void *data,
                              size_t bytes, struct failure *why) MUST_CHECK;

/* Makes PATH this file, durably. Ends FILE either way; on failure the
 * temporary file is gone and what was at PATH before still there (unless it is
 * the folder's sync that failed). */
enum status atomic_file_commit(struct atomic_file *file,
                               struct failure *why) MUST_CHECK;

/* Ends FILE and removes the temporary file. */
void atomic_file_abort(struct atomic_file *file);

/* Renames TEMPORARY, synced already, to PATH and syncs the folder. */
enum status atomic_file_rename(const char *temporary, const char *path,
                               struct failure *why) MUST_CHECK;

/* Makes the names in FOLDER durable. */
enum status atomic_file_sync_folder(const char *folder,
                                    struct failure *why) MUST_CHECK;

#endif
