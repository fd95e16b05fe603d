/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the state after a round to a checkpoint's shard file on its own
 * thread. The caller's blocks are copied, and training waits only when the
 * copies reach their limit. */
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
    unsigned num_tensors;       /* per block: weights and state slots */
    const char *checkpoint_dir; /* NULL: nothing is ever written */
    struct dir_lock *dir_lock;  /* lock on it, or NULL: not checked */
    uint64_t run;
    uint64_t copy_bytes; /* limit of copies */
};

struct async_shard_writer;

/* Starts the writer thread. STATUS_RETRY: no memory or no thread. */
enum status async_shard_writer_open(
    struct async_shard_writer **out,
    const struct async_shard_writer_settings *settings,
    struct failure *why) MUST_CHECK;

/* Ends the thread, removes a half-written file and clears *ASYNC_SHARD_WRITER
 * (may be NULL). */
void async_shard_writer_close(struct async_shard_writer **async_shard_writer);

/* Ends current and future waits in async_shard_writer_begin and
 * async_shard_writer_add. */
void async_shard_writer_cancel(struct async_shard_writer *async_shard_writer);

/* True while a file is being written. */
bool async_shard_writer_busy(struct async_shard_writer *async_shard_writer);

/* Begins the file of STEP under the name ID; waits for the end of an earlier
 * file. SCALER is returned with the result. False: cancelled. */
bool async_shard_writer_begin(struct async_shard_writer *async_shard_writer,
                              uint64_t id, uint64_t step,
                              const struct loss_scaler *scaler);

/* Adds the layout's next block, beginning with the first: each of TENSORS holds
 * its elements, which are copied. If the copies are at their limit, sets
 * *WAITED and waits for the disk. Only async_shard_writer_done reports
 * failures. */
void async_shard_writer_add(struct async_shard_writer *async_shard_writer,
                            const float *const *tensors, bool *waited);

struct async_shard_writer_result {
    uint64_t id;
    bool written; /* false: `why` has the reason */
    struct shard_info info;
    double seconds;
    struct loss_scaler scaler;
    struct failure why;
};

/* The result of the file that has ended since the last call, if any. */
bool async_shard_writer_done(struct async_shard_writer *async_shard_writer,
                             struct async_shard_writer_result *result);

/* Polls readable when async_shard_writer_done has a result. */
int async_shard_writer_descriptor(
    const struct async_shard_writer *async_shard_writer);

#endif
