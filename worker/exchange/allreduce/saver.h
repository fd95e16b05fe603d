/* SPDX-License-Identifier: Apache-2.0 */
/* Writes what a round has left to a checkpoint's shard file, on a thread of its
 * own: blocks are copied as they are handed over, and training waits only when
 * the copies reach their limit. */
#ifndef CAPSTAN_SAVER_H
#define CAPSTAN_SAVER_H

#include "proto/base/status.h"
#include "proto/store/shard_file.h"
#include "proto/tensor/layout.h"
#include "proto/tensor/loss_scaler.h"

#include <stdbool.h>
#include <stdint.h>

/* All borrowed. */
struct saver_settings {
    const struct layout *layout;
    unsigned num_tensors;       /* of a block: weights and state */
    const char *checkpoint_dir; /* NULL: nothing is ever saved */
    struct claim *claim;        /* on it, or NULL: nobody looks */
    uint64_t run;
    uint64_t copy_bytes; /* limit of copies */
};

struct saver;

/* Starts the thread that writes. STATUS_RETRY when there is no memory or no
 * thread. */
enum status saver_open(struct saver **out,
                       const struct saver_settings *settings,
                       struct failure *why) MUST_CHECK;

/* Ends the thread and clears *SAVER (may be NULL); what is half written is
 * removed. */
void saver_close(struct saver **saver);

/* Ends every wait in saver_begin and saver_add, for good. */
void saver_cancel(struct saver *saver);

/* Is a file being written? */
bool saver_busy(struct saver *saver);

/* Begins the file of STEP under the name ID, after the end of an earlier one.
 * SCALER comes back with its result. False: it was cancelled. */
bool saver_begin(struct saver *saver, uint64_t id, uint64_t step,
                 const struct loss_scaler *scaler);

/* Adds the next block of the layout, from the first: each of TENSORS holds its
 * elements, copied here. Waits for the disk when copies are at their limit,
 * and sets *WAITED then. What fails is told by saver_done alone. */
void saver_add(struct saver *saver, const float *const *tensors, bool *waited);

struct saver_result {
    uint64_t id;
    bool written; /* else `why` says what failed */
    struct shard_info info;
    double seconds;
    struct loss_scaler scaler;
    struct failure why;
};

/* The file that has ended since the last call, if any. */
bool saver_done(struct saver *saver, struct saver_result *result);

/* Polls readable when saver_done has something. */
int saver_descriptor(const struct saver *saver);

#endif
