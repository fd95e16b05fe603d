/* SPDX-License-Identifier: Apache-2.0 */
#include "core/store/shard_file.h"

#include "core/store/atomic_file.h"

#include <errno.h>
#include <stdlib.h>
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
