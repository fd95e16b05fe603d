/* SPDX-License-Identifier: Apache-2.0 */
/* Reads one IDX file of bytes, plain or compressed (data_file.h). */
#ifndef CAPSTAN_IDX_FILE_H
#define CAPSTAN_IDX_FILE_H

#include "proto/base/status.h"

#include <stdint.h>

enum { IDX_FILE_MAX_DIMS = 4 };
#define IDX_FILE_MAX_BYTES (UINT64_C(1) << 40)

/* dims[0] samples of dims[1] x dims[2] x ... bytes; none of the sizes is 0. */
struct idx_file {
    uint32_t num_dims, dims[IDX_FILE_MAX_DIMS];
    uint64_t bytes;    /* product of dims */
    uint8_t *data;     /* from malloc; the caller owns it */
    uint64_t trailing; /* bytes after the last gzip member, not part of it: not
                          read */
};

/* Reads PATH into FILE; it must have MIN_DIMS to MAX_DIMS dimensions (1 ..
 * IDX_FILE_MAX_DIMS). CONTENT ("images") names it in error texts. STATUS_CONFIG
 * on a bad file: WHY has path, position, found and expected. STATUS_RETRY if
 * the machine lacks a descriptor or memory. On failure FILE owns nothing.
 * Allocations follow the file's actual content, not its header. */
enum status idx_file_read(struct idx_file *file, const char *path,
                          const char *content, uint32_t min_dims,
                          uint32_t max_dims, struct failure *why) MUST_CHECK;

#endif
