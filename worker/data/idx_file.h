/* SPDX-License-Identifier: Apache-2.0 */
/* Reads one IDX file, plain or compressed (data_file.h), in LeCun's format
 * (yann.lecun.com/exdb/mnist): two bytes of 0, the type, the number of
 * dimensions, one 32-bit size per dimension, then the elements; all of it
 * big-endian. */
#ifndef CAPSTAN_IDX_FILE_H
#define CAPSTAN_IDX_FILE_H

#include "core/base/status.h"

#include <stddef.h>
#include <stdint.h>

enum { IDX_FILE_MAX_DIMS = 4 };
#define IDX_FILE_MAX_BYTES (UINT64_C(1) << 40)

/* Of elements: the third byte of the file. */
enum idx_file_type {
    IDX_FILE_UBYTE = 0x08,
    IDX_FILE_SBYTE = 0x09,
    IDX_FILE_SHORT = 0x0B,
    IDX_FILE_INT = 0x0C,
    IDX_FILE_FLOAT = 0x0D,
    IDX_FILE_DOUBLE = 0x0E,
};

/* dims[0] samples of dims[1] x dims[2] x ... elements; none of the sizes is 0.
 */
struct idx_file {
    enum idx_file_type type;
    uint32_t num_dims, dims[IDX_FILE_MAX_DIMS];
    uint64_t bytes;    /* of all elements */
    uint8_t *data;     /* as in the file, from malloc; the caller owns it */
    uint64_t trailing; /* bytes after the last gzip member, not part of it: not
                          read */
};

/* Reads PATH into FILE; it must have MIN_DIMS to MAX_DIMS dimensions (1 ..
 * IDX_FILE_MAX_DIMS). CONTENT ("images") names it in error texts. STATUS_CONFIG
 * on a bad file, also one with an element that is no finite float32: WHY has
 * path, position, found and expected. STATUS_RETRY if the machine lacks a
 * descriptor or memory. On failure FILE owns nothing.
 * Allocations follow the file's actual content, not its header. */
enum status idx_file_read(struct idx_file *file, const char *path,
                          const char *content, uint32_t min_dims,
                          uint32_t max_dims, struct failure *why) MUST_CHECK;

/* Reads the type in PATH's first bytes into *TYPE; it may be none that there
 * is. Fails as idx_file_read if there are no four bytes. */
enum status idx_file_peek_type(enum idx_file_type *type, const char *path,
                               struct failure *why) MUST_CHECK;

/* Bytes of an element; 0: there is no such TYPE. */
size_t idx_file_element(enum idx_file_type type);

/* Writes the COUNT elements of TYPE in BYTES, each rounded to float32, into
 * VALUES. */
void idx_file_decode(enum idx_file_type type, const uint8_t *bytes,
                     size_t count, float *values);

#endif
