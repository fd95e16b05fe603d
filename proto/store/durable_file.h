/* SPDX-License-Identifier: Apache-2.0 */
/* A file that is there whole or not at all: written under a temporary name,
 * synced, renamed, its folder synced. */
#ifndef CAPSTAN_DURABLE_FILE_H
#define CAPSTAN_DURABLE_FILE_H

#include "proto/base/status.h"

#include <limits.h>
#include <stddef.h>
#include <stdint.h>

struct durable_file {
    int fd;
    uint64_t bytes; /* expected in all, for what a failure says */
    char path[PATH_MAX], temporary[PATH_MAX];
};

/* Starts PATH.tmp for BYTES bytes. */
enum status durable_file_create(struct durable_file *file, const char *path,
                                uint64_t bytes, struct failure *why) MUST_CHECK;

/* Starts a file of a name of its own in FOLDER, to be ended by
 * durable_file_abandon. */
enum status durable_file_scratch(struct durable_file *file, const char *folder,
                                 uint64_t bytes,
                                 struct failure *why) MUST_CHECK;

/* Appends. After a failure only durable_file_abandon may follow. */
enum status durable_file_write(struct durable_file *file, const void *data,
                               size_t bytes, struct failure *why) MUST_CHECK;

/* Makes PATH this file, durably. Ends FILE either way; on failure the
 * temporary file is gone and what was at PATH before still there (unless it is
 * the folder's sync that failed). */
enum status durable_file_publish(struct durable_file *file,
                                 struct failure *why) MUST_CHECK;

/* Ends FILE and removes the temporary file. */
void durable_file_abandon(struct durable_file *file);

/* Renames TEMPORARY, synced already, to PATH and syncs the folder. */
enum status durable_file_rename(const char *temporary, const char *path,
                                struct failure *why) MUST_CHECK;

/* Makes the names in FOLDER durable. */
enum status durable_file_sync_folder(const char *folder,
                                     struct failure *why) MUST_CHECK;

#endif
