/* SPDX-License-Identifier: Apache-2.0 */
/* What a trainer of an external model keeps with a checkpoint: opaque bytes
 * under a key, a file each in the checkpoint's folder, which the manifest
 * lists. */
#ifndef CAPSTAN_KEPT_FILE_H
#define CAPSTAN_KEPT_FILE_H

#include "core/base/status.h"
#include "core/store/copies.h"
#include "core/store/manifest.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    KEPT_FILE_KEYS = 8,       /* of a rank */
    KEPT_FILE_KEY_BYTES = 32, /* of a key, with its end */
};

struct kept_item {
    char key[KEPT_FILE_KEY_BYTES];
    void *data;
    size_t size;
};

/* 1 to 31 of a-z, 0-9 and "_". */
bool kept_file_is_key(const char *key);

/* Writes SIZE bytes at DATA durably as RANK's KEY of RUN in FOLDER, which
 * exists. *INFO describes the file; its host is the caller's to set. */
enum status kept_file_write(const char *folder, uint32_t rank, const char *key,
                            uint64_t run, const void *data, size_t size,
                            struct shard_info *info,
                            struct failure *why) MUST_CHECK;

/* RANK's KEY in MANIFEST, else that of the lowest rank that has it; view. NULL:
 * none has. */
const struct shard_info *kept_file_find(const struct manifest *manifest,
                                        uint32_t rank, const char *key);

/* Reads and checks the file that INFO describes. The caller frees *DATA; DATA
 * NULL: it is only checked. */
enum status kept_file_read(const char *folder, const struct shard_info *info,
                           void **data, struct failure *why) MUST_CHECK;

/* Puts ITEMS [COUNT] of RANK at STEP into COPIES, as one file. */
enum status kept_file_copy(struct copies *copies, uint64_t step, uint32_t rank,
                           const struct kept_item *items, uint32_t count,
                           struct failure *why) MUST_CHECK;

/* RANK's KEY of STEP from there; *DATA, which the caller frees, is NULL if it
 * kept none of that name. */
enum status kept_file_of_copy(struct copies *copies, uint64_t step,
                              uint32_t rank, const char *key, void **data,
                              size_t *size, struct failure *why) MUST_CHECK;

#endif
