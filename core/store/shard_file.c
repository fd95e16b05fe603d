/* SPDX-License-Identifier: Apache-2.0 */
#include "core/store/shard_file.h"

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
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

enum { PIECE_BYTES = 1 << 20 };

static unsigned char *put_big_endian(unsigned char *at, uint64_t value,
                                     unsigned bytes) {
    for (unsigned i = 0; i < bytes; i++)
        at[i] = (unsigned char)(value >> (8 * (bytes - 1 - i)));
    return at + bytes;
}

void shard_file_key(struct shard_key key,
                    unsigned char bytes[SHARD_FILE_KEY_BYTES]) {
    bytes = put_big_endian(bytes, key.parameter, 4);
    bytes = put_big_endian(bytes, key.offset, 8);
    put_big_endian(bytes, key.slot, 2);
}

enum status shard_file_hash(int fd, const char *path, struct shard_info *info,
                            struct atomic_file *copy, struct failure *why) {
    XXH3_state_t *state = XXH3_createState();
    char *piece = malloc(PIECE_BYTES);
    enum status status = STATUS_OK;
    if (!state || !piece || XXH3_128bits_reset(state))
        status = status_errno(why, FAILURE_NO_MEMORY, ENOMEM, "%s", path);
    info->size = 0;
    ssize_t got = 1;
    while (!status && got) {
        got = pread(fd, piece, PIECE_BYTES, (off_t)info->size);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0) {
            status = status_errno(why, FAILURE_FILE_UNREADABLE, errno,
                                  "cannot read %s", path);
            break;
        }
        XXH3_128bits_update(state, piece, (size_t)got);
        info->size += (uint64_t)got;
        if (copy)
            status = atomic_file_write(copy, piece, (size_t)got, why);
    }
    if (!status) {
        XXH128_hash_t hash = XXH3_128bits_digest(state);
        info->hash[0] = hash.low64;
        info->hash[1] = hash.high64;
    }
    free(piece);
    XXH3_freeState(state);
    return status;
}

/* LMDB as a write-once format: without its locks and syncs, a map no larger
 * than the values need, a commit every 8 MiB to keep few dirty pages in
 * memory, ascending keys appended. At the end come one sync, the hash of the
 * whole file, and the rename: a file with its final name is complete. */

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
    bool in_memory;                 /* without a folder */
    bool has_temporary;             /* `temporary` is the name of a file */
    const char *name;               /* the last part of `path` */
    char path[PATH_MAX], temporary[PATH_MAX];
};

/* ERROR is LMDB's: an errno value if positive. */
static enum status write_failed(const struct shard_writer *writer, int error,
                                struct failure *why) {
    if (error > 0 && writer->in_memory)
        return status_errno(why, FAILURE_TOO_LITTLE_MEMORY, error,
                            "no memory for %s of %" PRIu64 " bytes",
                            writer->path, writer->bytes);
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

enum status shard_writer_open_memory(struct shard_writer **out,
                                     const char *name, uint64_t bytes,
                                     uint64_t entries, struct failure *why) {
    struct shard_writer *writer = NULL;
    enum status status = writer_new(&writer, name, bytes, why);
    *out = NULL;
    if (status)
        return status;
    writer->in_memory = true;
    writer->entries = entries;
    int fd = memfd_create(name, MFD_CLOEXEC);
    int error = fd < 0 ? errno : open_for_writing(writer, fd);
    if (fd >= 0)
        close(fd);
    if (error) {
        status = write_failed(writer, error, why);
        shard_writer_abort(&writer);
    }
    *out = writer;
    return status;
}

static int shard_writer_commit(struct shard_writer *writer) {
    int error = mdb_txn_commit(writer->txn);
    writer->txn = NULL; /* LMDB has freed it, even after a failure */
    writer->uncommitted = 0;
    mdb_filehandle_t fd;
    if (writer->in_memory)
        return error;
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
        writer->in_memory
            ? STATUS_OK
            : fs_info_parent_folder(writer->path, folder, sizeof folder, why);
    if (!status && !writer->in_memory)
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
    return atomic_file_finish(
        &copy, shard_file_hash(fd, writer->temporary, info, &copy, why), why);
}

/* All values are in the file, open as *FD, and on disk if it has a name.
 * Returns LMDB's error, and sets the name in INFO. */
static int shard_writer_end(struct shard_writer *writer,
                            struct shard_info *info, int *fd) {
    memset(info, 0, sizeof *info);
    memcpy(info->name, writer->name, strlen(writer->name) + 1);
    int error = shard_writer_commit(writer);
    if (!error && !writer->in_memory)
        error = mdb_env_sync(writer->env, 1);
    return error ? error : mdb_env_get_fd(writer->env, fd);
}

enum status shard_writer_finish(struct shard_writer **writer_in,
                                struct shard_info *info, struct failure *why) {
    struct shard_writer *writer = *writer_in;
    int fd = -1, error = shard_writer_end(writer, info, &fd);
    enum status status = error ? write_failed(writer, error, why)
                               : shard_writer_publish(writer, fd, info, why);
    if (!status)
        writer->has_temporary = false; /* renamed */
    shard_writer_abort(writer_in);
    return status;
}

enum status shard_writer_finish_memory(struct shard_writer **writer_in,
                                       int *out, struct shard_info *info,
                                       struct failure *why) {
    struct shard_writer *writer = *writer_in;
    int fd = -1, error = shard_writer_end(writer, info, &fd);
    *out = -1;
    if (!error && (*out = fcntl(fd, F_DUPFD_CLOEXEC, 0)) < 0)
        error = errno;
    enum status status =
        error ? write_failed(writer, error, why)
              : shard_file_hash(*out, writer->name, info, NULL, why);
    shard_writer_abort(writer_in);
    if (status && !error) {
        close(*out);
        *out = -1;
    }
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

struct shard_reader {
    MDB_env *env;
    MDB_txn *txn;
    MDB_dbi dbi;
    char path[PATH_MAX];
};

/* LMDB maps the file and trusts it: a truncated file would raise SIGBUS, a
 * flipped bit would be a wild pointer. So size and hash are checked first. */
static enum status open_regular(const char *path, uint64_t size, int *out,
                                struct failure *why) {
    /* Not blocking: a pipe of that name must not block the process. */
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return status_errno(why, FAILURE_FILE_UNREADABLE, errno,
                            "cannot open %s", path);
    struct stat st;
    enum status status = STATUS_OK;
    if (fstat(fd, &st) || !S_ISREG(st.st_mode))
        status = status_fail(why, FAILURE_CHECKPOINT_DAMAGED,
                             "%s is not a file", path);
    else if ((uint64_t)st.st_size != size)
        status = status_fail(why, FAILURE_CHECKPOINT_DAMAGED,
                             "%s has %" PRIu64 " bytes, its manifest says "
                             "%" PRIu64,
                             path, (uint64_t)st.st_size, size);
    if (status)
        close(fd);
    else
        *out = fd;
    return status;
}

enum status shard_file_check_size(const char *dir,
                                  const struct shard_info *info,
                                  struct failure *why) {
    char path[PATH_MAX];
    int fd = -1;
    if (snprintf(path, sizeof path, "%s/%s", dir, info->name) >=
        (int)sizeof path)
        return status_errno(why, FAILURE_NAME_TOO_LONG, ENAMETOOLONG, "%s",
                            dir);
    enum status status = open_regular(path, info->size, &fd, why);
    if (!status)
        close(fd);
    return status;
}

static enum status check_hash(const char *path, int fd,
                              const struct shard_info *info,
                              struct atomic_file *copy, struct failure *why) {
    struct shard_info found;
    enum status status = shard_file_hash(fd, path, &found, copy, why);
    if (status)
        return status;
    if (found.hash[0] != info->hash[0] || found.hash[1] != info->hash[1])
        return status_fail(why, FAILURE_CHECKPOINT_DAMAGED,
                           "%s is damaged: XXH3 %016" PRIx64 "%016" PRIx64
                           ", its manifest says %016" PRIx64 "%016" PRIx64,
                           path, found.hash[1], found.hash[0], info->hash[1],
                           info->hash[0]);
    return STATUS_OK;
}

static enum status out_of_memory(const char *path, struct failure *why) {
    return status_errno(why, FAILURE_NO_MEMORY, ENOMEM, "%s", path);
}

/* Opens FILE, already checked, with LMDB. */
static enum status shard_reader_open_checked(struct shard_reader *reader,
                                             const char *file,
                                             struct failure *why) {
    int error = mdb_env_create(&reader->env);
    if (!error)
        error = mdb_env_open(reader->env, file,
                             MDB_NOSUBDIR | MDB_NOLOCK | MDB_RDONLY, 0);
    if (!error)
        error = mdb_txn_begin(reader->env, NULL, MDB_RDONLY, &reader->txn);
    if (!error)
        error = mdb_dbi_open(reader->txn, NULL, 0, &reader->dbi);
    if (!error)
        return STATUS_OK;
    return status_fail(why, FAILURE_CHECKPOINT_DAMAGED,
                       "%s is not a shard file: %s", reader->path,
                       mdb_strerror(error));
}

/* Copies FD to a file in FOLDER, checks it and opens the copy. */
static enum status open_copy(struct shard_reader *reader, int fd,
                             const char *folder, const struct shard_info *info,
                             struct failure *why) {
    struct atomic_file copy;
    enum status status = fs_info_check_space(folder, folder, info->size, why);
    if (!status)
        status = atomic_file_open_temporary(&copy, folder, info->size, why);
    if (status)
        return status;
    status = check_hash(reader->path, fd, info, &copy, why);
    if (!status)
        status = shard_reader_open_checked(reader, copy.temporary, why);
    atomic_file_abort(&copy); /* LMDB has opened it: the name is not needed */
    return status;
}

/* LMDB's mapping is unsafe on a network mount, so a checked copy on a local
 * disk is read instead. */
enum status shard_reader_open(struct shard_reader **out, const char *dir,
                              const struct shard_info *info,
                              struct failure *why) {
    char folder[PATH_MAX];
    *out = NULL;
    if (!fs_info_is_network(dir))
        return shard_reader_open_in(out, NULL, dir, info, why);
    enum status status = fs_info_local_folder(folder, sizeof folder, why);
    return status ? status : shard_reader_open_in(out, folder, dir, info, why);
}

enum status shard_reader_open_in(struct shard_reader **out, const char *folder,
                                 const char *dir, const struct shard_info *info,
                                 struct failure *why) {
    *out = NULL;
    struct shard_reader *reader = calloc(1, sizeof *reader);
    if (!reader)
        return out_of_memory(dir, why);
    int fd = -1;
    enum status status = STATUS_OK;
    if ((size_t)snprintf(reader->path, sizeof reader->path, "%s/%s", dir,
                         info->name) >= sizeof reader->path)
        status =
            status_errno(why, FAILURE_NAME_TOO_LONG, ENAMETOOLONG, "%s", dir);
    if (!status)
        status = open_regular(reader->path, info->size, &fd, why);
    if (!status && folder)
        status = open_copy(reader, fd, folder, info, why);
    else if (!status) {
        status = check_hash(reader->path, fd, info, NULL, why);
        if (!status)
            status = shard_reader_open_checked(reader, reader->path, why);
    }
    if (fd >= 0)
        close(fd);
    *out = reader;
    if (status)
        shard_reader_close(out);
    return status;
}

void shard_reader_close(struct shard_reader **reader_in) {
    struct shard_reader *reader = *reader_in;
    if (!reader)
        return;
    if (reader->txn)
        mdb_txn_abort(reader->txn);
    if (reader->env)
        mdb_env_close(reader->env);
    free(reader);
    *reader_in = NULL;
}

const char *shard_reader_path(const struct shard_reader *reader) {
    return reader->path;
}

static int shard_reader_find(struct shard_reader *reader, struct shard_key key,
                             MDB_val *found) {
    unsigned char name[SHARD_FILE_KEY_BYTES];
    shard_file_key(key, name);
    MDB_val lmdb_key = {sizeof name, name};
    return mdb_get(reader->txn, reader->dbi, &lmdb_key, found);
}

bool shard_reader_has(struct shard_reader *reader, struct shard_key key) {
    MDB_val found;
    return shard_reader_find(reader, key, &found) != MDB_NOTFOUND;
}

enum status shard_reader_get(struct shard_reader *reader, struct shard_key key,
                             const void **value, size_t *bytes,
                             struct failure *why) {
    MDB_val found;
    XXH64_hash_t hash;
    int error = shard_reader_find(reader, key, &found);
    const char *wrong = NULL;
    bool is_rows = key.parameter & SHARD_ROWS;
    if (error) {
        wrong = mdb_strerror(error);
    } else if (found.mv_size < SHARD_FILE_HASH_BYTES) {
        wrong = "its value is too short";
    } else {
        *value = (const char *)found.mv_data + SHARD_FILE_HASH_BYTES;
        *bytes = found.mv_size - SHARD_FILE_HASH_BYTES;
        memcpy(&hash, found.mv_data, SHARD_FILE_HASH_BYTES);
        if (hash != XXH3_64bits(*value, *bytes))
            wrong = "its value is damaged";
    }
    if (!wrong)
        return STATUS_OK;
    return status_fail(
        why, FAILURE_CHECKPOINT_DAMAGED,
        "%s: %s %" PRIu32 ", %s %" PRIu64 ", slot %u: %s", reader->path,
        is_rows ? "partition" : "parameter", key.parameter & ~SHARD_ROWS,
        is_rows ? "value" : "element", key.offset, key.slot, wrong);
}
