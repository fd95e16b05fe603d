/* SPDX-License-Identifier: Apache-2.0 */
/* Snapshots of a shard: the state of every block, by reference,
 * at one round (with staleness at one moment), and a thread that writes them to
 * disk while training goes on. The ps's thread calls these functions. */
#ifndef CAPSTAN_SNAPSHOT_H
#define CAPSTAN_SNAPSHOT_H

#include "proto/base/status.h"
#include "proto/store/shard_file.h"
#include "proto/store/shard_writer.h"
#include "ps/consistency/update_core.h"
#include "ps/dense/shard.h"

#include <stdbool.h>
#include <stdint.h>

struct dir_lock;
struct snapshot;
struct snapshots;

/* Starts the writer thread. Borrows SHARD and UPDATE_CORE. */
enum status snapshots_open(struct snapshots **out, const struct shard *shard,
                           const struct update_core *update_core,
                           struct failure *why) MUST_CHECK;

/* Ends the thread and removes unfinished files. */
void snapshots_close(struct snapshots **snapshots);

/* Readable when snapshots_done has a result. */
int snapshots_descriptor(const struct snapshots *snapshots);

/* Begins snapshot ID (unique). NULL: no memory. */
struct snapshot *snapshots_begin(struct snapshots *snapshots, uint64_t id);

/* The snapshot of ID, or NULL. */
struct snapshot *snapshots_find(struct snapshots *snapshots, uint64_t id);

/* Is one waiting to be written or being written? */
bool snapshots_busy(const struct snapshots *snapshots);

/* Holds block B in its present state, at VERSION, with its ledger row. */
void snapshot_add(struct snapshot *snapshot, uint32_t b, uint64_t version);

/* Has every block been added? */
bool snapshot_complete(const struct snapshot *snapshot);

/* Block B's weights, view; NULL if it was not added, or if the snapshot is not
 * retained: the writer may release its blocks at any time. */
struct buffer *snapshot_weights(const struct snapshot *snapshot, uint32_t b);

/* Orders it to be written to FOLDER/NAME. DIR_LOCK (dir_lock.h; borrowed, or
 * NULL) is renewed first. Blocks may still be added. Written blocks are
 * released unless retained. */
void snapshot_write(struct snapshot *snapshot, struct dir_lock *dir_lock,
                    const char *folder, const char *name);

/* Keeps its blocks readable until snapshot_release. */
void snapshot_retain(struct snapshot *snapshot);

/* Ends snapshot_retain: frees it now, or when it is written. */
void snapshot_release(struct snapshot *snapshot);

struct snapshot_result {
    uint64_t id;
    bool written; /* else `why` says what failed */
    struct shard_info info;
    double seconds;
    struct loss_scaler scaler; /* of the first block */
    struct failure why;
};

/* The next finished snapshot, if any, the oldest first: when the chief learns
 * of a newer checkpoint, it removes the leftovers of older ones. */
bool snapshots_done(struct snapshots *snapshots,
                    struct snapshot_result *result);

#endif
