/* SPDX-License-Identifier: Apache-2.0 */
/* A trainer's gradient exchange: with the ps through a client, or with the
 * other trainers through a reducer. */
#ifndef CAPSTAN_EXCHANGE_H
#define CAPSTAN_EXCHANGE_H

#include "core/base/status.h"
#include "core/net/shm/buffer.h"
#include "core/tensor/loss_scaler.h"

#include <stdbool.h>
#include <stdint.h>

/* A trainer's contribution to a round or to an asynchronous step. */
enum contribution {
    CONTRIBUTION_FULL,
    CONTRIBUTION_ZERO, /* no bytes: a gradient of zero, which counts in the mean
                        */
    CONTRIBUTION_EMPTY,      /* no bytes: the mean is over the other trainers */
    CONTRIBUTION_OVERFLOWED, /* no bytes: its gradients overflowed, so that the
                                round applies none */
};

struct exchange;
struct reducer_device_arena;
struct row_batch;
struct trace;

/* A gradient of a caller's model: PARAMETER's contribution of KIND to step
 * CLOCK, BYTES at DATA if it is full. GRADIENT is opened by
 * buffer_open_foreign. */
struct exchange_gradient {
    uint64_t clock;
    uint32_t parameter;
    enum contribution kind;
    const void *data;
    size_t bytes;
    struct buffer *gradient;
};

/* What a client and a reducer do, each all of it: the first member of both. The
 * compute thread calls; cancel is for any thread. */
struct exchange {
    /* Gradients and weights stay on the device: reducer.h. */
    bool resident;

    struct trace *trace; /* of this trainer; NULL: nothing is recorded */

    /* Begins to bring the weights after push CLOCK, the first that are read;
     * `wait` tells when they are here. False: they are those of the seed, which
     * the trainer computes itself. */
    bool (*fetch)(struct exchange *exchange, uint64_t clock);

    /* Requests all parameters. CLOCK: the reader's number of completed pushes.
     * SNAPSHOT: 0, or a snapshot's id. A reducer's weights are always current:
     * outside of a step those of all trainers are equal. */
    void (*pull)(struct exchange *exchange, uint64_t clock, uint64_t snapshot);

    /* Sends rank 0's initial weights, in place of a pull; CLOCK: as there. A
     * reducer broadcasts them itself. ROWS, by both: rows of tables with which
     * rank 0 begins, in place of gradients, if the plan's tables await them;
     * borrowed as those of a push. */
    void (*assign)(struct exchange *exchange, uint64_t clock,
                   struct row_batch *rows);

    /* Sets GROUP of the plan's optimizer to VALUES [OPTIMIZER_VALUES], copied,
     * from step CLOCK on; before its first announcement. Of ranks that reduce
     * rank 0's count. */
    void (*set_values)(struct exchange *exchange, uint64_t clock,
                       uint32_t group, const double *values);

    /* No step follows: the trainer has the weights of the last one, if it keeps
     * them itself. */
    void (*settle)(struct exchange *exchange);

    /* Takes GRADIENT of a caller's model, before it is announced. True: DATA is
     * lent with the buffer, of which the caller has one reference; it is given
     * back when the last message with it has left. */
    bool (*contribute)(struct exchange *exchange,
                       const struct exchange_gradient *gradient);

    /* The gradients of step CLOCK for COUNT parameters from FIRST on are
     * complete, and their weights are not read before `wait`; each once a step.
     * The bytes stay unchanged until then. Of a built-in model the last
     * parameters come first, and what is not full is announced with all
     * parameters at once, an overflow once the weights of the last step are
     * here. The sum is divided by the number of full replicas; if any has
     * overflowed, weights and state stay as they are. */
    void (*announce)(struct exchange *exchange, uint32_t first, uint32_t count,
                     uint64_t clock, enum contribution contribution_kind);

    /* Waits for PARAMETER's weights after its last announcement or pull, at
     * most until time UNTIL. False: they are not there by then, or no more
     * weights will come. By a reducer the wait ends for certain once the whole
     * round is announced, as a bucket waits for the gradients of all parameters
     * in it; resident, it orders later STREAM_COMPUTE work behind the weights
     * instead. */
    bool (*wait)(struct exchange *exchange, uint32_t parameter, int64_t until);

    /* After `wait`, of a caller's model: copies what the step left for
     * PARAMETER, weights or a mean, to TO [elements], unless it is there.
     * IF_BROUGHT: only if any rank has brought bytes. False: TO is unchanged.
     */
    bool (*take)(struct exchange *exchange, uint32_t parameter, bool if_brought,
                 float *to);

    /* Synchronous, after `wait`: the last round that is known to be snapshot
     * without being planned, 0: none; and the lowest live rank. */
    uint64_t (*due)(struct exchange *exchange, uint32_t *lead);

    /* Reads state SLOT of PARAMETER's optimizer, as it is after step CLOCK,
     * whose weights are here: it is at TO [elements] when `wait` returns.
     * False: this rank has a part of it only (ZeRO), and nothing is read. */
    bool (*read_state)(struct exchange *exchange, uint32_t parameter,
                       uint64_t clock, unsigned slot, float *to);

    /* How many updates the rule has counted of PARAMETER, whose state was read
     * last: those to which some rank brought bytes. */
    uint64_t (*rule_step)(struct exchange *exchange, uint32_t parameter);

    /* The epochs of a caller's model, for a trainer that joins: epoch NUMBER
     * begins after push FIRST. Until that is set: the epoch that the lowest
     * live rank was in when it pushed for the weights that were last read;
     * false: it has named none. A reducer's ranks all begin together. */
    void (*set_epoch)(struct exchange *exchange, uint64_t number,
                      uint64_t first);
    bool (*epoch)(struct exchange *exchange, uint64_t *number, uint64_t *first);

    /* Reads ROWS of tables, which is borrowed until `wait_rows` has brought
     * them, for a reader whose last push has CLOCK; that push may still be to
     * come, and is waited for unless the lookup is EARLY and the run has
     * staleness. SNAPSHOT: 0, or a snapshot's id. A lookup leaves when the one
     * before is answered. */
    void (*lookup)(struct exchange *exchange, uint64_t clock, bool early,
                   uint64_t snapshot, struct row_batch *rows);

    /* Waits until the last lookup's weights are here; as `wait`. */
    bool (*wait_rows)(struct exchange *exchange, int64_t until);

    /* Push CLOCK of all partitions of tables: the gradients in ROWS, which is
     * borrowed until `wait_pushed`, or until the push after the next one; NULL
     * unless CONTRIBUTION_FULL. It leaves once the push before is taken; waits
     * until the one before that is. False: none will be, as of `wait`. */
    bool (*push_rows)(struct exchange *exchange, uint64_t clock,
                      enum contribution contribution_kind,
                      struct row_batch *rows);

    /* The next push_rows also sets ROWS, which have weights in place of
     * gradients, whatever its contribution; borrowed as that one's rows. */
    void (*write_rows)(struct exchange *exchange, struct row_batch *rows);

    /* Waits until the last push of rows is taken; as `wait`. */
    bool (*wait_pushed)(struct exchange *exchange, int64_t until);

    /* Bytes that this trainer sends for ROWS: the lists to look them up and to
     * push them, and gradients; by a reducer lists and gradients to all other
     * ranks. */
    uint64_t (*row_bytes)(const struct exchange *exchange,
                          const struct row_batch *rows);

    /* Steps the run has completed, as of this trainer's last read. */
    uint64_t (*global_step)(struct exchange *exchange);

    /* With backup workers, after `wait` for all parameters: the lowest round
     * that any block's weights are of, 0: none was read; and whether the round
     * of any block has closed without this trainer's last push. */
    uint64_t (*round)(struct exchange *exchange, bool *late);

    /* Synchronous, of a caller's model, after `wait` for all parameters of step
     * CLOCK, the last: has any rank brought bytes to it, or an overflow? */
    bool (*had_batch)(struct exchange *exchange, uint64_t clock);

    /* True if gradients cross a network, so that each byte sent early saves
     * time. */
    bool (*over_network)(const struct exchange *exchange);

    /* Does the end of one rank end the others' steps? */
    bool (*needs_all)(const struct exchange *exchange);

    /* Seconds the compute thread has waited for weights. */
    double (*waited)(struct exchange *exchange);

    /* The loss scale of the next step and the steps skipped so far; read it
     * after `wait` for the last parameter and before the next announcement. */
    struct loss_scaler (*scaler)(struct exchange *exchange);

    /* For a resident exchange; others do nothing and succeed. */

    /* Before all else: connects to the other ranks and sets initial weights and
     * state in DEVICE_ARENA, which stays until `end`. STATUS_FAILED: not enough
     * device memory. */
    enum status (*begin)(struct exchange *exchange,
                         const struct reducer_device_arena *device_arena,
                         struct failure *why);

    /* Multiplies all gradients of the step, which are enqueued on
     * STREAM_COMPUTE, by BY if all are finite; else *FINITE is false. */
    enum status (*unscale)(struct exchange *exchange, float by, bool *finite,
                           struct failure *why);

    /* Waits until the last announced round is done; on rank 0 the host's arena
     * then holds its weights. */
    enum status (*download_weights)(struct exchange *exchange,
                                    struct failure *why);

    /* Saves if reducer_save_now has requested it. */
    void (*serve)(struct exchange *exchange);

    /* True if another rank is known to be lost; does not wait. Used while
     * waiting for the device. WHY (may be NULL) names the rank. */
    bool (*peer_lost)(struct exchange *exchange, struct failure *why);

    /* Releases the device arena. If another thread still trains, it is
     * cancelled first. */
    void (*end)(struct exchange *exchange);

    /* Ends every wait, and all later ones. */
    void (*cancel)(struct exchange *exchange);
};

#endif
