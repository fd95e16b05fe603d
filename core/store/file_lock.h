/* SPDX-License-Identifier: Apache-2.0 */
/* Locks on open files, by the kernel: they end with the process. */
#ifndef CAPSTAN_FILE_LOCK_H
#define CAPSTAN_FILE_LOCK_H

#include "core/base/log.h"
#include "core/base/status.h"

#include <stdbool.h>

/* Locks all of FILE: TYPE is F_RDLCK, which several share, or F_WRLCK. False:
 * errno says why; EAGAIN: another open file has a lock. */
bool file_lock_set(int file, short type);

/* Locks FILE, which is open for writing at PATH, for one writer. STATUS_CONFIG:
 * another has it, in this process or another. Without locks in the file system
 * the log says that a second writer would not be noticed. */
enum status file_lock_take(int file, const char *path, const struct log *log,
                           struct failure *why) MUST_CHECK;

/* Closes *FILE (may be -1), which ends its lock, and sets it to -1. */
void file_lock_close(int *file);

#endif
