/* SPDX-License-Identifier: Apache-2.0 */
/* Reads checkpoints: is one whole, which is the newest that is, what do its
 * blocks hold. */
#ifndef CAPSTAN_CHECKPOINT_READER_H
#define CAPSTAN_CHECKPOINT_READER_H

#include "proto/base/log.h"
#include "proto/base/status.h"
#include "proto/store/manifest.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CHECKPOINT_READER_ANY UINT64_MAX

/* Reads every file of STEP whole: sizes, hashes, and that each block has its
 * weights, state and row. STATUS_FAILED says the first thing wrong. Files that
 * checkpoint_reader_is_remote tells of are left out. */
enum status checkpoint_reader_verify(const char *dir, uint64_t step,
                                     struct failure *why) MUST_CHECK;

/* Reads the manifest of the newest checkpoint at or below UPTO
 * (CHECKPOINT_READER_ANY: of all) that verifies; the caller clears *OUT. LOG
 * (may be NULL) is warned of each that is passed over. *FOUND is false, and
 * *OUT empty, when DIR holds none at all; STATUS_FAILED when it holds some and
 * none verifies: nobody starts anew over them unknowingly. */
enum status checkpoint_reader_newest(const char *dir, uint64_t upto,
                                     struct manifest *out, bool *found,
                                     const struct log *log,
                                     struct failure *why) MUST_CHECK;

/* True when FILE of the checkpoint in FOLDER is not here and another host
 * holds it. */
bool checkpoint_reader_is_remote(const char *folder,
                                 const struct shard_info *file);

/* One reader belongs to one thread at a time. */
struct checkpoint_reader;

/* Borrows MANIFEST. The files in FOLDER are opened, and checked, when the
 * first block of each is wanted. */
enum status checkpoint_reader_open(struct checkpoint_reader **out,
                                   const char *folder,
                                   const struct manifest *manifest,
                                   struct failure *why) MUST_CHECK;

/* Ends *READER (may be NULL). */
void checkpoint_reader_close(struct checkpoint_reader **reader);

/* Copies SLOT (SHARD_WEIGHTS, or 1 + the number of a state slot) of block B of
 * the manifest's layout into FLOATS. */
enum status checkpoint_reader_block(struct checkpoint_reader *reader,
                                    uint32_t b, uint16_t slot, float *floats,
                                    struct failure *why) MUST_CHECK;

/* Views block B's row (SHARD_ROW) until the reader closes. */
enum status checkpoint_reader_row(struct checkpoint_reader *reader, uint32_t b,
                                  const void **row, size_t *bytes,
                                  struct failure *why) MUST_CHECK;

#endif
