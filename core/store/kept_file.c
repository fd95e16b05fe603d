/* SPDX-License-Identifier: Apache-2.0 */
/* The name says whose the file is: kept-RANK-KEY-RUN.bin. */
#include "core/store/kept_file.h"

#include "core/store/atomic_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

static const char KEY_CHARACTERS[] = "abcdefghijklmnopqrstuvwxyz0123456789_";

bool kept_file_is_key(const char *key) {
    size_t length = strspn(key, KEY_CHARACTERS);
    return length && length < KEPT_FILE_KEY_BYTES && !key[length];
}

/* The rank and key in NAME; false: it has none. */
static bool read_name(const char *name, uint32_t *rank,
                      char key[KEPT_FILE_KEY_BYTES]) {
    return sscanf(name, "kept-%" SCNu32 "-%31[a-z0-9_]-", rank, key) == 2;
}

static enum status kept_file_path(const char *folder, const char *name,
                                  char path[PATH_MAX], struct failure *why) {
    if (snprintf(path, PATH_MAX, "%s/%s", folder, name) < PATH_MAX)
        return STATUS_OK;
    return status_errno(why, FAILURE_NAME_TOO_LONG, ENAMETOOLONG, "%s", folder);
}

static void put_hash(struct shard_info *info, const void *data, size_t size) {
    XXH128_hash_t hash = XXH3_128bits(data, size);
    info->size = size;
    info->hash[0] = hash.low64;
    info->hash[1] = hash.high64;
}

enum status kept_file_write(const char *folder, uint32_t rank, const char *key,
                            uint64_t run, const void *data, size_t size,
                            struct shard_info *info, struct failure *why) {
    char path[PATH_MAX];
    struct atomic_file file;
    *info = (struct shard_info){0};
    snprintf(info->name, sizeof info->name,
             "kept-%" PRIu32 "-%s-%016" PRIx64 ".bin", rank, key, run);
    put_hash(info, data, size);
    enum status status = kept_file_path(folder, info->name, path, why);
    if (!status)
        status = atomic_file_create(&file, path, size, why);
    if (status)
        return status;
    return atomic_file_finish(&file, atomic_file_write(&file, data, size, why),
                              why);
}

const struct shard_info *kept_file_find(const struct manifest *manifest,
                                        uint32_t rank, const char *key) {
    const struct shard_info *found = NULL;
    uint32_t lowest = UINT32_MAX;
    for (uint32_t k = 0; k < manifest->num_kept; k++) {
        char of[KEPT_FILE_KEY_BYTES];
        uint32_t number;
        if (!read_name(manifest->kept[k].name, &number, of) || strcmp(of, key))
            continue;
        if (number == rank)
            return &manifest->kept[k];
        if (number < lowest)
            found = &manifest->kept[k];
        lowest = number < lowest ? number : lowest;
    }
    return found;
}

/* Reads SIZE bytes of FD, which is at PATH, into DATA. */
static enum status read_bytes(int fd, const char *path, char *data, size_t size,
                              struct failure *why) {
    size_t used = 0;
    while (used < size) {
        ssize_t got = read(fd, data + used, size - used);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return status_errno(why, FAILURE_FILE_UNREADABLE, errno,
                                "cannot read %s", path);
        if (!got)
            return status_fail(why, FAILURE_CHECKPOINT_DAMAGED,
                               "%s has %zu bytes, its manifest says %zu", path,
                               used, size);
        used += (size_t)got;
    }
    return STATUS_OK;
}

static enum status read_checked(int fd, const char *path,
                                const struct shard_info *info, char *bytes,
                                struct failure *why) {
    struct shard_info found = {0};
    struct stat st;
    if (fstat(fd, &st) || !S_ISREG(st.st_mode) ||
        (uint64_t)st.st_size != info->size)
        return status_fail(why, FAILURE_CHECKPOINT_DAMAGED,
                           "%s is not a file of %" PRIu64
                           " bytes, as its manifest says",
                           path, info->size);
    enum status status = read_bytes(fd, path, bytes, info->size, why);
    if (status)
        return status;
    put_hash(&found, bytes, info->size);
    return memcmp(found.hash, info->hash, sizeof found.hash)
               ? status_fail(why, FAILURE_CHECKPOINT_DAMAGED,
                             "%s is damaged: its XXH3 is not what its manifest "
                             "says",
                             path)
               : STATUS_OK;
}

enum status kept_file_read(const char *folder, const struct shard_info *info,
                           void **data, struct failure *why) {
    char path[PATH_MAX];
    enum status status = kept_file_path(folder, info->name, path, why);
    if (status)
        return status;
    /* Not blocking: a pipe of that name must not block the process. */
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return status_errno(why, FAILURE_FILE_UNREADABLE, errno,
                            "cannot open %s", path);
    char *bytes = malloc(info->size + 1);
    status = bytes ? read_checked(fd, path, info, bytes, why)
                   : status_errno(why, FAILURE_NO_MEMORY, ENOMEM, "%s", path);
    close(fd);
    if (status || !data)
        free(bytes);
    else
        *data = bytes;
    return status;
}

/* Before the bytes of an item. */
struct item_header {
    char key[KEPT_FILE_KEY_BYTES];
    uint64_t size;
};

static bool write_item(FILE *file, const struct kept_item *item) {
    struct item_header header = {.size = item->size};
    memcpy(header.key, item->key, sizeof header.key);
    return fwrite(&header, sizeof header, 1, file) == 1 &&
           (!item->size || fwrite(item->data, item->size, 1, file) == 1);
}

enum status kept_file_copy(struct copies *copies, uint64_t step, uint32_t rank,
                           const struct kept_item *items, uint32_t count,
                           struct failure *why) {
    struct copy copy = {.step = step, .part = rank};
    copy.fd = memfd_create("capstan-kept", MFD_CLOEXEC);
    int fd = copy.fd < 0 ? -1 : fcntl(copy.fd, F_DUPFD_CLOEXEC, 0);
    FILE *file = fd < 0 ? NULL : fdopen(fd, "w");
    bool written = file;
    for (uint32_t i = 0; i < count && written; i++) {
        copy.size += sizeof(struct item_header) + items[i].size;
        written = write_item(file, &items[i]);
    }
    if (file)
        written = !fclose(file) && written;
    else if (fd >= 0)
        close(fd);
    if (written) {
        copies_put(copies, copy);
        return STATUS_OK;
    }
    enum status status = status_errno(why, FAILURE_NO_MEMORY, errno,
                                      "no memory for a copy of what is kept");
    if (copy.fd >= 0)
        close(copy.fd);
    return status;
}

static enum status read_item(FILE *file, uint64_t size, void **data,
                             struct failure *why) {
    void *bytes = malloc(size + 1);
    if (!bytes || (size && fread(bytes, size, 1, file) != 1)) {
        free(bytes);
        return status_errno(why, FAILURE_NO_MEMORY, ENOMEM,
                            "no memory for what is kept");
    }
    *data = bytes;
    return STATUS_OK;
}

/* Duplicated descriptors have one place in the file. */
enum status kept_file_of_copy(struct copies *copies, uint64_t step,
                              uint32_t rank, const char *key, void **data,
                              size_t *size, struct failure *why) {
    struct copy copy;
    struct item_header header;
    enum status status = STATUS_OK;
    *data = NULL;
    *size = 0;
    if (!copies_open(copies, step, rank, &copy))
        return STATUS_OK;
    FILE *file = fdopen(copy.fd, "r");
    if (!file) {
        close(copy.fd);
        return status_errno(why, FAILURE_NO_MEMORY, errno,
                            "no memory for what is kept");
    }
    rewind(file);
    while (!*data && !status && fread(&header, sizeof header, 1, file) == 1) {
        bool found = !strcmp(header.key, key);
        *size = found ? header.size : 0;
        status = found ? read_item(file, header.size, data, why) : STATUS_OK;
        if (!found && fseeko(file, (off_t)header.size, SEEK_CUR))
            break;
    }
    fclose(file);
    return status;
}
