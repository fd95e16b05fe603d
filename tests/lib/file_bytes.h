/* SPDX-License-Identifier: Apache-2.0 */
/* Whole files of data for tests, plain and packed. What fails, fails the
 * test. */
#ifndef CAPSTAN_FILE_BYTES_H
#define CAPSTAN_FILE_BYTES_H

#include <stddef.h>
#include <stdint.h>

/* Writes PATH with COUNT bytes of content: as they are, as a member of gzip,
 * as a frame of Zstandard with its checksum. */
typedef void file_bytes_writer(const char *path, const uint8_t *bytes,
                               size_t count);
file_bytes_writer file_bytes_write, file_bytes_gzip, file_bytes_zstd;

/* The content of PATH as it is, and *COUNT of its bytes; the caller's. */
uint8_t *file_bytes_read(const char *path, size_t *count);

/* Writes the content of FROM as that of TO, by WRITER. */
void file_bytes_copy(const char *from, const char *to,
                     file_bytes_writer *writer);

#endif
