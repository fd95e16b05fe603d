/* SPDX-License-Identifier: Apache-2.0 */
/* Appends to a file from a thread of its own, so that a full, slow or hung disk
 * holds no caller up. */
#ifndef CAPSTAN_BACKGROUND_FILE_H
#define CAPSTAN_BACKGROUND_FILE_H

#include "core/base/status.h"

#include <stddef.h>
#include <stdint.h>

struct background_file;

/* Readies the file before its first bytes, on the thread. */
typedef enum status background_file_prepare(int descriptor, const char *path,
                                            uint64_t value,
                                            struct failure *why);

/* Takes DESCRIPTOR, also on failure. PATH (copied) names it to people; PREPARE
 * (may be NULL) is called with VALUE. */
enum status background_file_open(struct background_file **out, int descriptor,
                                 const char *path,
                                 background_file_prepare *prepare,
                                 uint64_t value,
                                 struct failure *why) MUST_CHECK;

/* Hands BYTES to the thread. Fails if the thread has failed, or is so far
 * behind that it waits with 16 MiB; the file takes nothing more then. */
enum status background_file_append(struct background_file *file,
                                   const void *bytes, size_t size,
                                   struct failure *why) MUST_CHECK;

/* Waits for the thread until UNTIL, and clears *FILE (may be NULL). A thread
 * that hangs is left to itself, and what it has not written is lost. The status
 * is that of all writes, also if an append has returned it. */
enum status background_file_close(struct background_file **file, int64_t until,
                                  struct failure *why) MUST_CHECK;

#endif
