/* SPDX-License-Identifier: Apache-2.0 */
/* Writes what a round has left to a checkpoint's shard file, on a thread of its
 * own: blocks are copied as they are handed over, and training waits only when
 * the copies reach their limit. */
#ifndef CAPSTAN_ASYNC_SHARD_WRITER_H
#define CAPSTAN_ASYNC_SHARD_WRITER_H

#include "proto/base/status.h"
#include "proto/store/shard_file.h"
#include "proto/tensor/layout.h"
#include "proto/tensor/loss_scaler.h"

#include <stdbool.h>
#include <stdint.h>

/* All borrowed. */
struct async_shard_writer_settings {
    const struct layout *layout;
    unsigned num_tensors;       /* of a block: weights and state */
    const char *checkpoint_dir; /* NULL: nothing is ever saved */
    struct dir_lock *dir_lock;  /* on it, or NULL: nobody looks */
    uint64_t run;
    uint64_t copy_bytes; /* limit of copies */
};

struct async_shard_writer;

/* Starts the thread that writes. STATUS_RETRY when there is no memory or no
 * thread. */
enum status async_shard_writer_open(
    struct async_shard_writer **out,
    const struct async_shard_writer_settings *settings,
    struct failure *why) MUST_CHECK;

/* Ends the thread and clears *SAVER (may be NULL); what is half written is
 * removed. */
void async_shard_writer_close(struct async_shard_writer **async_shard_writer);

/* Ends every wait in async_shard_writer_begin and async_shard_writer_add, for
 * good. */
void async_shard_writer_cancel(struct async_shard_writer *async_shard_writer);

/* Is a file being written? */
bool async_shard_writer_busy(struct async_shard_writer *async_shard_writer);

/* Begins the file of STEP under the name ID, after the end of an earlier one.
 * SCALER comes back with its result. False: it was cancelled. */
bool async_shard_writer_begin(struct async_shard_writer *async_shard_writer,
                              uint64_t id, uint64_t step,
                              const struct loss_scaler *scaler);

/* Adds the next block of the layout, from the first: each of TENSORS holds its
 * elements, copied here. Waits for the disk when copies are at their limit,
 * and sets *WAITED then. What fails is told by async_shard_writer_done alone.
 */
void async_shard_writer_add(struct async_shard_writer *async_shard_writer,
                            const float *const *tensors, bool *waited);

struct async_shard_writer_result {
    uint64_t id;
    bool written; /* else `why` says what failed */
    struct shard_info info;
    double seconds;
    struct loss_scaler scaler;
    struct failure why;
};

/* The file that has ended since the last call, if any. */
bool async_shard_writer_done(struct async_shard_writer *async_shard_writer,
                             struct async_shard_writer_result *result);

/* Polls readable when async_shard_writer_done has something. */
int async_shard_writer_descriptor(
    const struct async_shard_writer *async_shard_writer);

#endif
