/* SPDX-License-Identifier: Apache-2.0 */
/* What stands under a folder: whose disk it is and how much of it is free. */
#ifndef CAPSTAN_FS_INFO_H
#define CAPSTAN_FS_INFO_H

#include "proto/base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* True for the statfs(2) f_type of a file system whose bytes may lie on
 * another machine (NFS, SMB, FUSE, 9p, Lustre, GPFS, ...). */
bool fs_info_type_is_network(uint64_t type);

/* True when FOLDER is on such a file system; false when nobody can tell. */
bool fs_info_is_network(const char *folder);

/* Writes the first of $TMPDIR, /var/tmp and /tmp that can be written and is
 * not a network mount. */
enum status fs_info_local_folder(char *folder, size_t size,
                                 struct failure *why) MUST_CHECK;

/* STATUS_FAILED when FOLDER has fewer than BYTES free; PATH is the file meant.
 * The disk may still be full later. */
enum status fs_info_check_space(const char *folder, const char *path,
                                uint64_t bytes, struct failure *why) MUST_CHECK;

/* The failure of writing PATH, BYTES in all, with errno value ERROR: names
 * path, bytes wanted and bytes free. */
enum status fs_info_write_failure(const char *path, uint64_t bytes, int error,
                                  struct failure *why);

/* Makes the folder PATH, and its parents where they are missing. STATUS_FAILED
 * names the first of them that cannot be made. */
enum status fs_info_make_folder(const char *path,
                                struct failure *why) MUST_CHECK;

/* Writes the folder of PATH, "." when it names none. STATUS_FAILED when it
 * does not fit. */
enum status fs_info_parent_folder(const char *path, char *folder, size_t size,
                                  struct failure *why) MUST_CHECK;

#endif
