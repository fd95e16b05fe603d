/* SPDX-License-Identifier: Apache-2.0 */
/* File system of a folder: network or local, and its free space. */
#ifndef CAPSTAN_FS_INFO_H
#define CAPSTAN_FS_INFO_H

#include "core/base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* True for the statfs(2) f_type of a file system whose data may be on another
 * machine (NFS, SMB, FUSE, 9p, Lustre, GPFS, ...). */
bool fs_info_type_is_network(uint64_t type);

/* True if FOLDER is on such a file system; false if it is unknown. */
bool fs_info_is_network(const char *folder);

/* Writes the first of $TMPDIR, /var/tmp and /tmp that is writable and not a
 * network mount. */
enum status fs_info_local_folder(char *folder, size_t size,
                                 struct failure *why) MUST_CHECK;

/* STATUS_FAILED if FOLDER has fewer than BYTES free; PATH is the file to be
 * written. The disk may still be full later. */
enum status fs_info_check_space(const char *folder, const char *path,
                                uint64_t bytes, struct failure *why) MUST_CHECK;

/* The failure of writing PATH, BYTES in total, with errno value ERROR: names
 * the path, the bytes needed and the bytes free. */
enum status fs_info_write_failure(const char *path, uint64_t bytes, int error,
                                  struct failure *why);

/* Makes the directory entries of FOLDER durable. */
enum status fs_info_sync_folder(const char *folder,
                                struct failure *why) MUST_CHECK;

/* Makes the folder PATH and missing parents, whose names are then durable.
 * STATUS_FAILED names the first that cannot be made. */
enum status fs_info_make_folder(const char *path,
                                struct failure *why) MUST_CHECK;

/* Writes the folder of PATH, "." if PATH has none. STATUS_FAILED if it does not
 * fit. */
enum status fs_info_parent_folder(const char *path, char *folder, size_t size,
                                  struct failure *why) MUST_CHECK;

#endif
