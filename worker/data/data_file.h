/* SPDX-License-Identifier: Apache-2.0 */
/* The content of a data file from its begin to its end: plain, or compressed by
 * gzip (RFC 1952, also several members) or Zstandard (RFC 8878, also several
 * frames), which its first bytes tell. */
#ifndef CAPSTAN_DATA_FILE_H
#define CAPSTAN_DATA_FILE_H

#include "core/base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct data_file;

/* CONTENT ("images") names it in error texts, as PATH does; both are borrowed.
 * Fails with FAILURE_DATA_UNREADABLE, also for what other programs pack, or
 * with STATUS_RETRY if the machine lacks a descriptor or memory. */
enum status data_file_open(struct data_file **out, const char *path,
                           const char *content, struct failure *why) MUST_CHECK;

/* The same for a content that is one stream of zlib (RFC 1950): its first bytes
 * may be those of other files. */
enum status data_file_open_zlib(struct data_file **out, const char *path,
                                const char *content,
                                struct failure *why) MUST_CHECK;

/* Frees *FILE (may be NULL) and clears it. */
void data_file_close(struct data_file **file);

/* Reads COUNT bytes of the content into BYTES, fewer only at its end; *GOT says
 * how many. The read that finds the end has verified the checksums.
 * STATUS_CONFIG for a truncated or damaged file. */
enum status data_file_read(struct data_file *file, void *bytes, size_t count,
                           size_t *got, struct failure *why) MUST_CHECK;

/* Whether data_file_seek works: the file is not compressed. */
bool data_file_seeks(const struct data_file *file);

/* The next byte to read is that at POSITION, of the content. */
enum status data_file_seek(struct data_file *file, uint64_t position,
                           struct failure *why) MUST_CHECK;

/* Bytes of the content read so far. */
uint64_t data_file_position(const struct data_file *file);

/* Bytes after the last gzip member, which are not read; known at the end. */
uint64_t data_file_trailing(const struct data_file *file);

/* At the end: FAILURE_DATA_DAMAGED if there are such bytes and they are not all
 * 0, as a member whose begin is damaged would be left out. */
enum status data_file_check_end(const struct data_file *file,
                                struct failure *why) MUST_CHECK;

/* Are BYTES, the SIZE first ones of the content, lines of text?
 * FAILURE_DATA_UNREADABLE for other texts, and for what tar makes of some. */
enum status data_file_check_text(const struct data_file *file,
                                 const char *bytes, size_t size,
                                 struct failure *why) MUST_CHECK;

#endif
