/* SPDX-License-Identifier: Apache-2.0 */
/* One IDX file of bytes, gzip-compressed or plain, read whole. */
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
    uint8_t *data;     /* from malloc; whoever reads the file owns it */
    uint64_t trailing; /* bytes behind the last gzip member, which are none of
                          gzip's: not read */
};

/* Fills FILE with what PATH holds, which must have MIN_DIMS to MAX_DIMS
 * dimensions (1 .. IDX_FILE_MAX_DIMS); WHAT ("images") names it to people. On
 * failure STATUS_CONFIG names path, place, found and expected (STATUS_RETRY
 * what the machine lacks: a descriptor, memory), and FILE owns nothing. Memory
 * follows what the file holds, not what its header claims. */
enum status idx_file_read(struct idx_file *file, const char *path,
                          const char *content, uint32_t min_dims,
                          uint32_t max_dims, struct failure *why) MUST_CHECK;

/* Opens the file and closes it: one that cannot be opened fails as above. */
enum status idx_file_check(const char *path, const char *content,
                           struct failure *why) MUST_CHECK;

#endif
