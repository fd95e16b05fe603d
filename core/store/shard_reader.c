/* SPDX-License-Identifier: Apache-2.0 */
#include "core/store/shard_reader.h"

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
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

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
