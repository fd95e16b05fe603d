/* SPDX-License-Identifier: Apache-2.0 */
/* Snapshots of a holder's blocks (a ps's, or rank 0's in all-reduce), the
 * partitions of its tables among them: the state of every block, by reference,
 * at one round (with staleness at one moment), and a thread that writes them to
 * disk while training goes on. A snapshot is named by its ID: a planned one has
 * its round's number, a requested one the chief's (MESSAGE_REQUESTED_SNAPSHOT).
 * Any thread may call. */
#ifndef CAPSTAN_SNAPSHOTS_H
#define CAPSTAN_SNAPSHOTS_H

#include "core/base/status.h"
#include "core/net/shm/buffer.h"
#include "core/store/shard_file.h"
#include "core/store/shard_rows.h"
#include "core/tensor/layout.h"
#include "core/tensor/loss_scaler.h"
#include "core/tensor/rule.h"
#include "proto/messages/control.pb-c.h"
#include "proto/plan/optimizer_group.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SNAPSHOTS_MAX_TENSORS = 1 + RULE_MAX_SLOTS };

struct dir_lock;
struct snapshots;
struct trace;

/* Block or partition b of the holder is unit ids[b] of LAYOUT, or b if there
 * are no ids; both borrowed. */
struct snapshots_settings {
    const struct layout *layout;
    const uint32_t *ids; /* [num_units] or NULL */
    uint32_t num_units;
    unsigned num_tensors; /* of a block: weights, then state by slot */
    const struct optimizer_group *groups; /* borrowed: by parameter, whose slots
                                             count instead; NULL: none */
    size_t row_bytes;    /* of a block's row: its version and ledger entries */
    struct trace *trace; /* borrowed; NULL: nothing is recorded */
};

/* Starts the writer thread. */
enum status snapshots_open(struct snapshots **out,
                           const struct snapshots_settings *settings,
                           struct failure *why) MUST_CHECK;

/* Ends the thread, removes unfinished files and clears *SNAPSHOTS (may be
 * NULL). */
void snapshots_close(struct snapshots **snapshots);

/* Readable when snapshots_next has a report. */
int snapshots_descriptor(const struct snapshots *snapshots);

/* Is one waiting to be written or being written? */
bool snapshots_busy(struct snapshots *snapshots);

/* How many of those are COPIES, or are none. */
unsigned snapshots_unwritten(struct snapshots *snapshots, bool copies);

/* Begins snapshot ID. With RETAIN its blocks stay readable until
 * snapshots_release; else each is released once it is written. If memory lacks,
 * the next report says so, and what is added is ignored; false: there is no
 * memory even for the report. */
bool snapshots_begin(struct snapshots *snapshots, uint64_t id, bool retain,
                     Capstan__Snapshot__Form form);

/* The form of ID; UNSAVED also if it has not begun. */
Capstan__Snapshot__Form snapshots_form(struct snapshots *snapshots,
                                       uint64_t id);

/* Begins planned snapshot ID of FORM and ends it, for the reason WHY. */
void snapshots_skip(struct snapshots *snapshots, uint64_t id,
                    Capstan__Snapshot__Form form, const char *why);

/* Has ID begun? One that has failed exists until another begins, so that its
 * later blocks do not begin it again. */
bool snapshots_has(struct snapshots *snapshots, uint64_t id);

/* Are further blocks of ID of use? */
bool snapshots_accepts(struct snapshots *snapshots, uint64_t id);

/* A block's state at one moment; all borrowed. The row says which contributions
 * the tensors, or the rows of a partition, include. */
struct snapshots_block {
    uint64_t version;
    struct buffer *const *tensors; /* first NULL: no memory for a copy; not of a
                                      partition */
    const struct shard_rows_source *rows; /* of a partition, [num_stacks]; NULL:
                                          no memory for a copy */
    const void *row;
    uint64_t rule_step; /* updates that the block's rule has counted */
    uint64_t base;      /* of a COPY: the step of the one that the rows of a
                           partition are what changed since; 0: they are all */
    struct loss_scaler scaler;
};

/* Holds the tensors or pages of block B for ID and copies the row; the first
 * call for a block counts. */
void snapshots_add(struct snapshots *snapshots, uint64_t id, uint32_t b,
                   const struct snapshots_block *block);

/* Reports ID as held at STEP now, although its blocks are added only when it is
 * to be written. */
void snapshots_promise(struct snapshots *snapshots, uint64_t id, uint64_t step);

/* Block B's weights, a view until snapshots_release; NULL if it was not added,
 * or if ID is not retained: the writer may release its blocks at any time. */
struct buffer *snapshots_weights(struct snapshots *snapshots, uint64_t id,
                                 uint32_t b);

/* The rows of partition B in the same way: [num_stacks]. */
const struct shard_rows_source *snapshots_rows(struct snapshots *snapshots,
                                               uint64_t id, uint32_t b);

/* Orders ID to be written to FOLDER/NAME, as the checkpoint of STEP, a
 * COPY in memory. LOCK (dir_lock.h; borrowed, or NULL) is renewed first. Blocks
 * may still be added. */
void snapshots_write(struct snapshots *snapshots, uint64_t id, uint64_t step,
                     struct dir_lock *lock, const char *folder,
                     const char *name);

/* Ends the retention of ID and frees it: now, or once it is written. One whose
 * blocks are not all held is not written, and not reported. */
void snapshots_release(struct snapshots *snapshots, uint64_t id);

/* The same for all that a chief has requested. */
void snapshots_release_requested(struct snapshots *snapshots);

struct snapshots_report {
    uint64_t id;
    Capstan__SnapshotReport__Outcome outcome;
    bool skipped; /* not written, by snapshots_skip */
    int fd;       /* of a COPY that is written: the file, the caller's; else
                     -1 */
    Capstan__Snapshot__Form form;
    uint64_t step;          /* held: version of the first block */
    uint64_t ordered;       /* written or not: the checkpoint's step */
    uint64_t base;          /* a block's: of no other one is it newer */
    struct shard_info info; /* written */
    struct shard_rows_count
        *counts;    /* written: [num_tables], of this holder; the caller frees
                       them. NULL: there are no tables */
    double seconds; /* written: that it took */
    struct loss_scaler scaler; /* of the first block */
    struct failure why;        /* not held or not written */
};

/* The next report, if any, of the oldest snapshot first: when the chief learns
 * of a newer checkpoint, it removes the leftovers of older ones. A requested
 * snapshot is reported as held before it is written or not; a planned one only
 * as written or not. */
bool snapshots_next(struct snapshots *snapshots,
                    struct snapshots_report *report);

#endif
