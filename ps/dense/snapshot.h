/* SPDX-License-Identifier: Apache-2.0 */
/* Snapshots: what every block of a shard held at one round, by holding its
 * buffers, and their way to disk on a thread of their own while training goes
 * on. Functions are called by the ps's thread, except where said. */
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

/* Starts the writing thread. Borrows SHARD and EXCHANGE. */
enum status snapshots_open(struct snapshots **out, const struct shard *shard,
                           const struct update_core *update_core,
                           struct failure *why) MUST_CHECK;

/* Ends the thread; what is half written is removed. */
void snapshots_close(struct snapshots **snapshots);

/* A descriptor that polls readable when snapshots_done has something. */
int snapshots_descriptor(const struct snapshots *snapshots);

/* Begins snapshot ID (unique). NULL: no memory. */
struct snapshot *snapshots_begin(struct snapshots *snapshots, uint64_t id);

/* The snapshot of ID, or NULL. */
struct snapshot *snapshots_find(struct snapshots *snapshots, uint64_t id);

/* Is one on its way to disk? */
bool snapshots_busy(const struct snapshots *snapshots);

/* Holds block B as it is now, at VERSION, with its ledger row. */
void snapshot_add(struct snapshot *snapshot, uint32_t b, uint64_t version);

/* Has every block been added? */
bool snapshot_complete(const struct snapshot *snapshot);

/* Block B's weights in it, view; NULL when it was not added, or when the
 * snapshot is not kept: its blocks may be let go at any time. */
struct buffer *snapshot_weights(const struct snapshot *snapshot, uint32_t b);

/* Orders it to be written to FOLDER/NAME, where CLAIM (dir_lock.h; borrowed, or
 * NULL) stands; blocks may still be added. Written blocks are let go unless
 * kept. */
void snapshot_write(struct snapshot *snapshot, struct dir_lock *dir_lock,
                    const char *folder, const char *name);

/* Kept ones stay readable until snapshot_release. */
void snapshot_retain(struct snapshot *snapshot);

/* Not kept any more: let go now, or when it is written. */
void snapshot_release(struct snapshot *snapshot);

struct snapshot_result {
    uint64_t id;
    bool written; /* else `why` says what failed */
    struct shard_info info;
    double seconds;
    struct loss_scaler scaler; /* of the first block */
    struct failure why;
};

/* The next snapshot whose writing has ended, if any, the oldest first: a chief
 * that hears of a newer checkpoint removes what older ones have left. */
bool snapshots_done(struct snapshots *snapshots,
                    struct snapshot_result *result);

#endif
