/* SPDX-License-Identifier: Apache-2.0 */
#include "core/store/fs_info.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <unistd.h>

/* <linux/magic.h> lacks most of these; the values are from statfs(2) or the
 * sources of the file systems. */
static const uint32_t network_types[] = {
    0x6969,     /* NFS */
    0x517b,     /* SMB */
    0xfe534d42, /* SMB2 */
    0xff534d42, /* CIFS */
    0x65735546, /* FUSE: sshfs, gcsfuse, blobfuse, glusterfs, ... */
    0x01021997, /* 9p */
    0x0bd00bd0, /* Lustre */
    0x47504653, /* GPFS */
    0x00c36400, /* Ceph */
    0x5346414f, /* AFS */
    0x6b414653, /* AFS of the kernel */
    0x73757245, /* Coda */
    0x19830326, /* BeeGFS */
    0x20030528, /* OrangeFS */
    0xaad7aaea, /* PanFS */
    0x01161970, /* GFS2 */
    0x7461636f, /* OCFS2 */
    0x564c,     /* NCP */
    0x786f4256, /* VirtualBox shared folder */
};

bool fs_info_type_is_network(uint64_t type) {
    size_t count = sizeof network_types / sizeof network_types[0];
    for (size_t i = 0; i < count; i++)
        if ((uint32_t)type == network_types[i])
            return true;
    return false;
}

bool fs_info_is_network(const char *folder) {
    struct statfs st;
    return !statfs(folder, &st) && fs_info_type_is_network((uint64_t)st.f_type);
}

enum status fs_info_local_folder(char *folder, size_t size,
                                 struct failure *why) {
    const char *candidates[] = {getenv("TMPDIR"), "/var/tmp", "/tmp"};
    for (size_t i = 0; i < sizeof candidates / sizeof candidates[0]; i++) {
        const char *candidate = candidates[i];
        if (!candidate || access(candidate, W_OK | X_OK) ||
            fs_info_is_network(candidate) || strlen(candidate) >= size)
            continue;
        snprintf(folder, size, "%s", candidate);
        return STATUS_OK;
    }
    return status_fail(why, FAILURE_FILE_UNWRITABLE,
                       "no temporary folder on a disk of this machine: "
                       "$TMPDIR, /var/tmp and /tmp are network mounts or "
                       "cannot be written; set TMPDIR to one that can");
}

/* Bytes free in FOLDER for this user; false if unknown, as on file systems that
 * report no size. */
static bool free_bytes(const char *folder, uint64_t *bytes) {
    struct statvfs st;
    if (statvfs(folder, &st) || !st.f_blocks)
        return false;
    *bytes = (uint64_t)st.f_bavail * st.f_frsize;
    return true;
}

enum status fs_info_check_space(const char *folder, const char *path,
                                uint64_t bytes, struct failure *why) {
    uint64_t available;
    if (!free_bytes(folder, &available) || available >= bytes)
        return STATUS_OK;
    return status_errno(why, FAILURE_DISK_FULL, ENOSPC,
                        "cannot write %s: %" PRIu64 " bytes wanted, %" PRIu64
                        " free in %s",
                        path, bytes, available, folder);
}

enum status fs_info_write_failure(const char *path, uint64_t bytes, int error,
                                  struct failure *why) {
    char folder[PATH_MAX], room[PATH_MAX + 64] = "";
    uint64_t available;
    if (!fs_info_parent_folder(path, folder, sizeof folder, NULL) &&
        free_bytes(folder, &available)) {
        /* LMDB reports a truncated write as an I/O error. */
        if (error == EIO && available < bytes)
            error = ENOSPC;
        snprintf(room, sizeof room, ", %" PRIu64 " free in %s", available,
                 folder);
    }
    /* Not the code of ERROR: writing the file again would fail again. */
    enum failure_code code = error == ENOSPC || error == EDQUOT
                                 ? FAILURE_DISK_FULL
                                 : FAILURE_FILE_UNWRITABLE;
    (void)status_errno(why, code, error,
                       "cannot write %s: %" PRIu64 " bytes wanted%s", path,
                       bytes, room);
    if (why)
        why->code = code;
    return failure_code_status(code);
}

enum status fs_info_parent_folder(const char *path, char *folder, size_t size,
                                  struct failure *why) {
    const char *slash = strrchr(path, '/');
    if (!slash) {
        snprintf(folder, size, ".");
        return STATUS_OK;
    }
    size_t length = slash == path ? 1 : (size_t)(slash - path);
    if (length >= size)
        return status_errno(why, FAILURE_NAME_TOO_LONG, ENAMETOOLONG, "%s",
                            path);
    memcpy(folder, path, length);
    folder[length] = '\0';
    return STATUS_OK;
}

enum status fs_info_sync_folder(const char *folder, struct failure *why) {
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return status_errno(why, FAILURE_FILE_UNWRITABLE, errno,
                            "cannot open %s", folder);
    /* Some network mounts do not support fsync of a folder. */
    int error = fsync(fd) && errno != EINVAL && errno != ENOTSUP ? errno : 0;
    close(fd);
    if (error)
        return status_errno(why, FAILURE_FILE_UNWRITABLE, error,
                            "cannot sync %s", folder);
    return STATUS_OK;
}

/* A parent that cannot be read, as above where this user may write, holds back
 * nothing. */
static enum status make_one(const char *path, struct failure *why) {
    char parent[PATH_MAX];
    if (mkdir(path, 0777))
        return errno == EEXIST
                   ? STATUS_OK
                   : status_errno(why, FAILURE_FILE_UNWRITABLE, errno,
                                  "cannot make the folder %s", path);
    enum status status =
        fs_info_parent_folder(path, parent, sizeof parent, why);
    return status || access(parent, R_OK) ? status
                                          : fs_info_sync_folder(parent, why);
}

enum status fs_info_make_folder(const char *path, struct failure *why) {
    char part[PATH_MAX];
    enum status status = STATUS_OK;
    size_t length = strlen(path);
    if (length >= sizeof part)
        return status_errno(why, FAILURE_NAME_TOO_LONG, ENAMETOOLONG,
                            "cannot make the folder %s", path);
    memcpy(part, path, length + 1);
    for (size_t i = 1; i <= length && !status; i++) {
        if (path[i] != '/' && path[i])
            continue;
        part[i] = '\0';
        status = make_one(part, why);
        part[i] = path[i];
    }
    return status;
}
