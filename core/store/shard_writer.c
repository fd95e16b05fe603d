/* SPDX-License-Identifier: Apache-2.0 */
/* LMDB as a write-once format: without its locks and syncs, a map no larger
 * than the values need, a commit every 8 MiB to keep few dirty pages in
 * memory, ascending keys appended. At the end come one sync, the hash of the
 * whole file, and the rename: a file with its final name is complete. */
#include "core/store/shard_writer.h"

#include "core/store/atomic_file.h"
#include "core/store/fs_info.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <lmdb.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

enum { COMMIT_BYTES = 8 << 20 };

struct shard_writer {
    MDB_env *env;
    MDB_txn *txn;
    MDB_dbi dbi;
    uint64_t bytes, entries; /* as announced */
    size_t map_bytes;
    uint64_t uncommitted;
    bool has_last;
    unsigned char
        last[SHARD_FILE_KEY_BYTES]; /* the highest key so far, if any */
    bool built_locally;             /* built in a local folder */
    bool has_temporary;             /* `temporary` is the name of a file */
    const char *name;               /* the last part of `path` */
    char path[PATH_MAX], temporary[PATH_MAX];
};

/* ERROR is LMDB's: an errno value if positive. */
static enum status write_failed(const struct shard_writer *writer, int error,
                                struct failure *why) {
    if (error > 0)
        return fs_info_write_failure(writer->temporary, writer->bytes, error,
                                     why);
    if (error == MDB_MAP_FULL)
        return status_fail(why, FAILURE_FILE_UNWRITABLE,
                           "%s: more values than the %" PRIu64
                           " bytes announced",
                           writer->path, writer->bytes);
    return status_fail(why, FAILURE_FILE_UNWRITABLE, "cannot write %s: %s",
                       writer->path, mdb_strerror(error));
}

/* Space for every value on pages of its own, half-full leaves, and pages that a
 * commit holds back. This is address space; the file takes only what it
 * needs. */
static size_t map_size(uint64_t bytes, uint64_t entries) {
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t size = bytes + entries * 4 * page + 2 * COMMIT_BYTES;
    return (size_t)((size + page - 1) / page * page);
}

/* Creates the empty file that LMDB will open, *FD: beside its final place, or
 * in FOLDER. The caller closes *FD. */
static enum status create_temporary(struct shard_writer *writer,
                                    const char *folder, int *fd,
                                    struct failure *why) {
    struct atomic_file file;
    enum status status =
        writer->built_locally
            ? atomic_file_open_temporary(&file, folder, writer->bytes, why)
            : atomic_file_create(&file, writer->path, writer->bytes, why);
    if (status)
        return status;
    *fd = file.fd;
    memcpy(writer->temporary, file.temporary, sizeof writer->temporary);
    writer->has_temporary = true;
    return STATUS_OK;
}

static void remove_temporary(struct shard_writer *writer) {
    if (writer->has_temporary)
        unlink(writer->temporary);
    writer->has_temporary = false;
}

/* By the number of FD, as the name may have become a link meanwhile. */
static int open_for_writing(struct shard_writer *writer, int fd) {
    char path[sizeof "/proc/self/fd/-2147483648"];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int error = mdb_env_create(&writer->env);
    writer->map_bytes = map_size(writer->bytes, writer->entries);
    if (!error)
        error = mdb_env_set_mapsize(writer->env, writer->map_bytes);
    if (!error)
        error = mdb_env_open(writer->env, path,
                             MDB_NOSUBDIR | MDB_NOLOCK | MDB_NOSYNC, 0666);
    if (!error)
        error = mdb_txn_begin(writer->env, NULL, 0, &writer->txn);
    if (!error)
        error = mdb_dbi_open(writer->txn, NULL, 0, &writer->dbi);
    return error;
}

enum status shard_writer_open(struct shard_writer **out, const char *path,
                              uint64_t bytes, uint64_t entries,
                              struct failure *why) {
    char folder[PATH_MAX];
    *out = NULL;
    enum status status =
        fs_info_parent_folder(path, folder, sizeof folder, why);
    if (status)
        return status;
    if (!fs_info_is_network(folder))
        return shard_writer_open_in(out, folder, path, bytes, entries, why);
    status = fs_info_check_space(folder, path, bytes, why);
    if (!status)
        status = fs_info_local_folder(folder, sizeof folder, why);
    if (status)
        return status;
    return shard_writer_open_in(out, folder, path, bytes, entries, why);
}

/* A writer of PATH that has opened nothing yet. */
static enum status writer_new(struct shard_writer **out, const char *path,
                              uint64_t bytes, struct failure *why) {
    struct shard_writer *writer = calloc(1, sizeof *writer);
    if (!writer)
        return status_errno(why, FAILURE_NO_MEMORY, ENOMEM, "%s", path);
    const char *slash = strrchr(path, '/');
    const char *name = slash ? slash + 1 : path;
    if (strlen(path) >= sizeof writer->path ||
        strlen(name) >= sizeof((struct shard_info *)0)->name) {
        free(writer);
        return status_errno(why, FAILURE_NAME_TOO_LONG, ENAMETOOLONG, "%s",
                            path);
    }
    memcpy(writer->path, path, strlen(path) + 1);
    writer->name = writer->path + (name - path);
    writer->bytes = bytes;
    *out = writer;
    return STATUS_OK;
}

enum status shard_writer_open_in(struct shard_writer **out, const char *folder,
                                 const char *path, uint64_t bytes,
                                 uint64_t entries, struct failure *why) {
    char own[PATH_MAX];
    *out = NULL;
    enum status status = fs_info_parent_folder(path, own, sizeof own, why);
    if (!status)
        status = fs_info_check_space(folder, path, bytes, why);
    struct shard_writer *writer = NULL;
    if (!status)
        status = writer_new(&writer, path, bytes, why);
    if (status)
        return status;
    writer->built_locally = strcmp(own, folder) != 0;
    writer->entries = entries;
    int fd = -1;
    status = create_temporary(writer, folder, &fd, why);
    int error = status ? 0 : open_for_writing(writer, fd);
    if (fd >= 0)
        close(fd);
    if (error)
        status = write_failed(writer, error, why);
    if (status) {
        shard_writer_abort(&writer);
        return status;
    }
    /* LMDB has opened it: without a name it disappears with the process. */
    if (writer->built_locally)
        remove_temporary(writer);
    *out = writer;
    return STATUS_OK;
}

static int shard_writer_commit(struct shard_writer *writer) {
    int error = mdb_txn_commit(writer->txn);
    writer->txn = NULL; /* LMDB has freed it, even after a failure */
    writer->uncommitted = 0;
    mdb_filehandle_t fd;
    /* Starts writing to disk now, so that the sync at the end is short. */
    if (!error && !mdb_env_get_fd(writer->env, &fd))
        sync_file_range(fd, 0, 0, SYNC_FILE_RANGE_WRITE);
    return error;
}

/* LMDB's map grows between transactions only, so it grows in large pieces. */
static int grow_map(struct shard_writer *writer) {
    size_t needed = map_size(writer->bytes, writer->entries);
    if (needed <= writer->map_bytes)
        return 0;
    int error = shard_writer_commit(writer);
    writer->map_bytes = needed + writer->map_bytes;
    if (!error)
        error = mdb_env_set_mapsize(writer->env, writer->map_bytes);
    return error ? error : mdb_txn_begin(writer->env, NULL, 0, &writer->txn);
}

enum status shard_writer_expect(struct shard_writer *writer, uint64_t bytes,
                                uint64_t entries, struct failure *why) {
    char folder[PATH_MAX];
    enum status status =
        fs_info_parent_folder(writer->path, folder, sizeof folder, why);
    if (!status)
        status = fs_info_check_space(folder, writer->path, bytes, why);
    if (status)
        return status;
    writer->bytes += bytes;
    writer->entries += entries;
    int error = grow_map(writer);
    return error ? write_failed(writer, error, why) : STATUS_OK;
}

/* Appends ascending keys: pages are filled completely, without a search. */
static unsigned put_flags(struct shard_writer *writer,
                          const unsigned char *key) {
    if (writer->has_last &&
        memcmp(key, writer->last, SHARD_FILE_KEY_BYTES) <= 0)
        return MDB_RESERVE | MDB_NOOVERWRITE;
    memcpy(writer->last, key, SHARD_FILE_KEY_BYTES);
    writer->has_last = true;
    return MDB_RESERVE | MDB_APPEND;
}

enum status shard_writer_put(struct shard_writer *writer, struct shard_key key,
                             const void *value, size_t bytes,
                             struct failure *why) {
    unsigned char name[SHARD_FILE_KEY_BYTES];
    shard_file_key(key, name);
    int error = 0;
    if (writer->uncommitted + bytes > COMMIT_BYTES && writer->uncommitted) {
        error = shard_writer_commit(writer);
        if (!error)
            error = mdb_txn_begin(writer->env, NULL, 0, &writer->txn);
    }
    MDB_val lmdb_key = {SHARD_FILE_KEY_BYTES, name},
            target = {SHARD_FILE_HASH_BYTES + bytes, NULL};
    if (!error)
        error = mdb_put(writer->txn, writer->dbi, &lmdb_key, &target,
                        put_flags(writer, name));
    if (error)
        return write_failed(writer, error, why);
    writer->uncommitted += bytes;
    XXH64_hash_t hash = XXH3_64bits(value, bytes);
    memcpy(target.mv_data, &hash, SHARD_FILE_HASH_BYTES);
    memcpy((char *)target.mv_data + SHARD_FILE_HASH_BYTES, value, bytes);
    return STATUS_OK;
}

/* Moves the synced file of WRITER, open as FD, to its final place and name. */
static enum status shard_writer_publish(struct shard_writer *writer, int fd,
                                        struct shard_info *info,
                                        struct failure *why) {
    enum status status;
    if (!writer->built_locally) {
        status = shard_file_hash(fd, writer->temporary, info, NULL, why);
        return status
                   ? status
                   : atomic_file_rename(writer->temporary, writer->path, why);
    }
    struct atomic_file copy;
    status = atomic_file_create(&copy, writer->path, writer->bytes, why);
    if (status)
        return status;
    status = shard_file_hash(fd, writer->temporary, info, &copy, why);
    if (!status)
        return atomic_file_commit(&copy, why);
    atomic_file_abort(&copy);
    return status;
}

enum status shard_writer_finish(struct shard_writer **writer_in,
                                struct shard_info *info, struct failure *why) {
    struct shard_writer *writer = *writer_in;
    memset(info, 0, sizeof *info);
    memcpy(info->name, writer->name, strlen(writer->name) + 1);
    mdb_filehandle_t fd = -1;
    int error = shard_writer_commit(writer);
    if (!error)
        error = mdb_env_sync(writer->env, 1);
    if (!error)
        error = mdb_env_get_fd(writer->env, &fd);
    enum status status = error ? write_failed(writer, error, why)
                               : shard_writer_publish(writer, fd, info, why);
    if (!status)
        writer->has_temporary = false; /* renamed */
    shard_writer_abort(writer_in);
    return status;
}

void shard_writer_abort(struct shard_writer **writer_in) {
    struct shard_writer *writer = *writer_in;
    if (!writer)
        return;
    if (writer->txn)
        mdb_txn_abort(writer->txn);
    if (writer->env)
        mdb_env_close(writer->env);
    remove_temporary(writer);
    free(writer);
    *writer_in = NULL;
}
