/* SPDX-License-Identifier: Apache-2.0 */
/* A file that appears whole or not at all: written under a temporary name,
 * synced and renamed; then its folder is synced. */
#ifndef CAPSTAN_ATOMIC_FILE_H
#define CAPSTAN_ATOMIC_FILE_H

#include "core/base/status.h"

#include <limits.h>
#include <stddef.h>
#include <stdint.h>

struct atomic_file {
    int fd;
    uint64_t bytes; /* expected size, for error texts */
    char path[PATH_MAX], temporary[PATH_MAX];
};

/* Creates PATH.tmp for BYTES bytes, in place of what has that name. The file is
 * new: no link is followed. */
enum status atomic_file_create(struct atomic_file *file, const char *path,
                               uint64_t bytes, struct failure *why) MUST_CHECK;

/* Creates a file with a unique name in FOLDER; close it with
 * atomic_file_abort. */
enum status atomic_file_open_temporary(struct atomic_file *file,
                                       const char *folder, uint64_t bytes,
                                       struct failure *why) MUST_CHECK;

/* Appends. After a failure only atomic_file_abort may be called. */
enum status atomic_file_write(struct atomic_file *file, const void *data,
                              size_t bytes, struct failure *why) MUST_CHECK;

/* Renames the file to PATH, durably. Closes FILE in every case. On failure the
 * temporary file is removed and the previous file at PATH remains, unless only
 * the sync of the folder failed. */
enum status atomic_file_commit(struct atomic_file *file,
                               struct failure *why) MUST_CHECK;

/* Commits FILE if STATUS, of writing it, is OK, else aborts. */
enum status atomic_file_finish(struct atomic_file *file, enum status status,
                               struct failure *why) MUST_CHECK;

/* Closes FILE and removes the temporary file. */
void atomic_file_abort(struct atomic_file *file);

/* Renames TEMPORARY, already synced, to PATH and syncs the folder. */
enum status atomic_file_rename(const char *temporary, const char *path,
                               struct failure *why) MUST_CHECK;

#endif
