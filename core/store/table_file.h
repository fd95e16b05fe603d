/* SPDX-License-Identifier: Apache-2.0 */
/* The rows of a checkpoint's table for other tools: npz and CSV. */
#ifndef CAPSTAN_TABLE_FILE_H
#define CAPSTAN_TABLE_FILE_H

#include "core/base/status.h"
#include "core/store/checkpoint_reader.h"

#include <stdint.h>

enum table_format { TABLE_NPZ, TABLE_CSV };

/* The format by the ending of PATH; STATUS_CONFIG for any ending but .npz and
 * .csv. */
enum status table_format_of(const char *path, enum table_format *format,
                            struct failure *why) MUST_CHECK;

/* Which rows to write. All borrowed. */
struct table_source {
    struct checkpoint_reader *reader;
    const struct manifest *manifest; /* the reader's */
    uint32_t table;
};

/* Writes the weights of all admitted rows to PATH, ascending by id: a temporary
 * file, fsync, rename. As npz: `ids` uint64 [n] and `weights` float32 [n, dim];
 * as CSV a line with the names id,w0,w1,... and one a row. Of the table nothing
 * is in memory but what the kernel caches of its files.
 * FAILURE_CHECKPOINT_DAMAGED if there are not as many rows as the manifest
 * says. */
enum status table_file_write(const char *path, enum table_format format,
                             const struct table_source *source,
                             struct failure *why) MUST_CHECK;

#endif
