/* SPDX-License-Identifier: Apache-2.0 */
/* Whether an update may write a tensor in place depends on its buffer alone: it
 * may if the shard holds the only reference. So no caller has to tell the shard
 * when a snapshot begins or ends or a reply has left. Blocks are touched by the
 * thread that opened the shard and by the thread pool, never by two threads at
 * a time for one block (work_item.h). */
#include "ps/units/shard.h"

#include "core/base/byte_size.h"
#include "core/net/shm/buffer.h"
#include "proto/plan/encoding.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { SPARE = 32 }; /* blocks with room for a second shared copy */

struct cell {
    unsigned num_tensors;
    struct buffer *tensors[SHARD_MAX_TENSORS];
    struct buffer *mean; /* of the last round, in place of new weights */
    bool left;           /* assigned, and the last round had no bytes */
};

struct shard {
    const struct layout *layout;
    struct optimizer optimizer;
    const struct optimizer_group *groups;
    const struct rule_loops *loops;
    bool means; /* optimizer None */
    uint32_t count;
    const struct block **blocks;
    uint32_t *ids;
    struct cell *cells;
    struct buffer_pool *buffer_pool;
    size_t bytes; /* of all tensors, without copies */
};

/* Shared memory for all weights, and for a second copy of some: readers on this
 * host map them instead of copying. */
static void add_shared_weights(struct shard *shard, const uint32_t *ids) {
    size_t total = 0, largest = 0;
    for (uint32_t b = 0; b < shard->count; b++) {
        size_t bytes = shard->layout->blocks[ids[b]].elements * sizeof(float);
        size_t size = (bytes + 63) / 64 * 64;
        total += size;
        largest = size > largest ? size : largest;
    }
    size_t spare = largest * SPARE < total ? largest * SPARE : total;
    if (total)
        buffer_pool_add_shared(shard->buffer_pool, total + spare);
}

/* Takes what trainers read, weights or means, from shared memory while there is
 * room. */
static struct buffer *shard_take_buffer(struct shard *shard, bool is_read,
                                        size_t bytes) {
    struct buffer *shared =
        is_read ? buffer_pool_take_shared(shard->buffer_pool, bytes) : NULL;
    return shared ? shared : buffer_pool_take(shard->buffer_pool, bytes);
}

/* The optimizer of block B. */
static const struct optimizer *shard_optimizer(const struct shard *shard,
                                               uint32_t b) {
    return optimizer_group_find(shard->groups, shard_parameter(shard, b)->group,
                                &shard->optimizer);
}

static enum status shard_no_memory(const struct shard *shard,
                                   struct failure *why) {
    uint64_t wanted = 0;
    char all[16], allocated[16];
    for (uint32_t b = 0; b < shard->count; b++)
        wanted += shard_block_bytes(shard, b) * shard_tensors(shard, b);
    byte_size_text(wanted, all, sizeof all);
    byte_size_text(shard->bytes, allocated, sizeof allocated);
    return status_fail(
        why, FAILURE_NO_MEMORY,
        "no memory for %s of weights and state in %u blocks, "
        "of which %s were allocated: list more ps, on other hosts, "
        "or give this one more memory",
        all, shard->count, allocated);
}

static enum status shard_allocate(struct shard *shard, const uint32_t *ids,
                                  struct failure *why) {
    add_shared_weights(shard, ids);
    for (uint32_t b = 0; b < shard->count; b++) {
        shard->ids[b] = ids[b];
        shard->blocks[b] = &shard->layout->blocks[ids[b]];
        shard->cells[b].num_tensors = 1 + rule_slots(shard_optimizer(shard, b));
        assert(shard->cells[b].num_tensors <= SHARD_MAX_TENSORS);
    }
    for (uint32_t b = 0; b < shard->count; b++) {
        size_t bytes = shard_block_bytes(shard, b);
        for (unsigned t = 0; t < shard_tensors(shard, b); t++) {
            shard->cells[b].tensors[t] =
                shard_take_buffer(shard, t == 0 && !shard->means, bytes);
            if (!shard->cells[b].tensors[t])
                return shard_no_memory(shard, why);
            shard->bytes += bytes;
        }
        shard->bytes += shard_means(shard, b) ? bytes : 0;
    }
    return STATUS_OK;
}

enum status shard_open(struct shard **out,
                       const struct shard_settings *settings,
                       struct failure *why) {
    struct shard *shard = calloc(1, sizeof *shard);
    uint32_t count = 0;
    if (!shard)
        return status_fail(why, FAILURE_NO_MEMORY, "no memory for a shard");
    while (count < settings->count &&
           layout_block(settings->layout, settings->ids[count]))
        count++;
    size_t variants;
    shard->layout = settings->layout;
    shard->optimizer = *settings->optimizer;
    shard->groups = settings->groups;
    shard->loops = rule_variants(&variants)[0];
    shard->count = count;
    shard->means = settings->optimizer->type == OPTIMIZER_NONE;
    shard->blocks = calloc(count + 1, sizeof *shard->blocks);
    shard->ids = calloc(count + 1, sizeof *shard->ids);
    shard->cells = calloc(count + 1, sizeof *shard->cells);
    shard->buffer_pool = buffer_pool_open();
    enum status status = STATUS_RETRY;
    if (!shard->blocks || !shard->ids || !shard->cells || !shard->buffer_pool)
        status_fail(why, FAILURE_NO_MEMORY, "no memory for %u blocks", count);
    else
        status = shard_allocate(shard, settings->ids, why);
    if (status)
        shard_close(&shard);
    *out = shard;
    return status;
}

void shard_set_loops(struct shard *shard, const struct rule_loops *loops) {
    shard->loops = loops;
}

void shard_close(struct shard **where) {
    struct shard *shard = *where;
    *where = NULL;
    if (!shard)
        return;
    for (uint32_t b = 0; shard->cells && b < shard->count; b++)
        for (unsigned t = 0; t < shard_tensors(shard, b); t++)
            buffer_release(&shard->cells[b].tensors[t]);
    for (uint32_t b = 0; shard->cells && b < shard->count; b++)
        buffer_release(&shard->cells[b].mean);
    buffer_pool_close(&shard->buffer_pool);
    free(shard->blocks);
    free(shard->ids);
    free(shard->cells);
    free(shard);
}

static void shard_fill(struct buffer *buffer, float value) {
    float *floats = buffer_data(buffer);
    size_t count = buffer_bytes(buffer) / sizeof *floats;
    for (size_t i = 0; i < count; i++)
        floats[i] = value;
}

void shard_initialise_block(struct shard *shard, uint32_t b, uint64_t seed) {
    struct cell *cell = &shard->cells[b];
    layout_init_block(shard->layout, shard->ids[b], seed,
                      buffer_data(cell->tensors[0]));
    for (unsigned t = 1; t < cell->num_tensors; t++)
        shard_fill(cell->tensors[t],
                   rule_slot_start(shard_optimizer(shard, b), t - 1));
}

void shard_initialise(struct shard *shard, uint64_t seed) {
    for (uint32_t b = 0; b < shard->count; b++)
        shard_initialise_block(shard, b, seed);
}

static enum status shard_restore(void *holder, uint32_t b,
                                 struct checkpoint_reader *reader,
                                 struct failure *why) {
    const struct shard *shard = holder;
    enum status status = STATUS_OK;
    for (unsigned t = 0; !status && t < shard_tensors(shard, b); t++)
        status = checkpoint_reader_block(
            reader, shard->ids[b], (uint16_t)t,
            buffer_data(shard->cells[b].tensors[t]), why);
    return status;
}

/* The buffer that an update of tensor T writes: its own if the shard alone
 * holds it, else a new one. NULL: no memory. */
static struct buffer *target(struct shard *shard, uint32_t b, unsigned t) {
    struct buffer *own = shard->cells[b].tensors[t];
    struct buffer *shared = NULL;
    if (!buffer_is_unique(own))
        return shard_take_buffer(shard, t == 0 && !shard->means,
                                 buffer_bytes(own));
    /* Left shared memory while it was full of copies: return to it. */
    if (t == 0 && !shard->means && !buffer_segment(own))
        shared = buffer_pool_take_shared(shard->buffer_pool, buffer_bytes(own));
    return shared ? shared : own;
}

static void replace(struct shard *shard, uint32_t b, unsigned t,
                    struct buffer *with) {
    assert(buffer_bytes(with) == buffer_bytes(shard->cells[b].tensors[t]));
    if (shard->cells[b].tensors[t] == with)
        return;
    buffer_release(&shard->cells[b].tensors[t]);
    shard->cells[b].tensors[t] = with;
}

bool shard_assign(struct shard *shard, uint32_t b, const void *floats) {
    struct buffer *out = target(shard, b, 0);
    if (!out)
        return false;
    memcpy(buffer_data(out), floats, shard_block_bytes(shard, b));
    replace(shard, b, 0, out);
    shard->cells[b].left = false;
    return true;
}

/* The update without its weights and state. */
static struct rule_update update_of(const struct shard *shard, uint32_t b,
                                    const struct unit_round *round) {
    return (struct rule_update){
        .step = round->rule_step,
        .rate = round->rate,
        .scale = round->scale,
        .elements = shard->blocks[b]->elements,
        .num_gradients = round->num_parts,
        .gradients = round->gradients,
        .wire = round->wire,
    };
}

/* Replies in flight may hold the mean of the round before. */
static enum status update_mean(struct shard *shard, uint32_t b,
                               const struct unit_round *round,
                               struct failure *why) {
    struct cell *cell = &shard->cells[b];
    struct rule_update update = update_of(shard, b, round);
    if (cell->mean && (!round->num_parts || !buffer_is_unique(cell->mean)))
        buffer_release(&cell->mean);
    if (round->num_parts && !cell->mean)
        cell->mean =
            shard_take_buffer(shard, true, shard_block_bytes(shard, b));
    if (!cell->mean)
        return round->num_parts
                   ? status_fail(why, FAILURE_NO_MEMORY,
                                 "no memory for the mean of a block")
                   : STATUS_OK;
    update.rate = 1;
    update.weights = update.weights_out = buffer_data(cell->mean);
    rule_average(shard->loops, &update);
    return STATUS_OK;
}

/* A snapshot or a reply in flight may hold any of the tensors; the update
 * leaves those unchanged and writes new ones. It takes all buffers first, so
 * that a failure changes nothing. */
static enum status shard_update(void *holder, uint32_t b,
                                const struct unit_round *round,
                                struct failure *why) {
    struct shard *shard = holder;
    struct buffer *out[SHARD_MAX_TENSORS];
    assert(b < shard->count);
    struct cell *cell = &shard->cells[b];
    bool nonfinite = false;
    uint32_t kind = shard_parameter(shard, b)->kind;
    unsigned count = kind == PARAMETER_TRAINED ? cell->num_tensors : 1;
    if (shard_means(shard, b))
        return update_mean(shard, b, round, why);
    for (unsigned t = 0; t < count; t++) {
        out[t] = target(shard, b, t);
        if (out[t])
            continue;
        while (t-- > 0)
            if (out[t] != cell->tensors[t])
                buffer_release(&out[t]);
        return status_fail(why, FAILURE_NO_MEMORY,
                           "no memory for a copy of a block while a "
                           "checkpoint is written (checkpoint.copy_mb)");
    }
    struct rule_update update = update_of(shard, b, round);
    update.nonfinite = round->checked ? &nonfinite : NULL;
    update.weights = buffer_data(cell->tensors[0]);
    update.weights_out = buffer_data(out[0]);
    for (unsigned t = 1; t < count; t++) {
        update.state[t - 1] = buffer_data(cell->tensors[t]);
        update.state_out[t - 1] = buffer_data(out[t]);
    }
    switch ((enum parameter_kind)kind) {
    case PARAMETER_AVERAGED:
        rule_average(shard->loops, &update);
        break;
    case PARAMETER_ASSIGNED:
        rule_assign(&update);
        cell->left = !round->num_parts;
        break;
    default:
        rule_apply(shard->loops,
                   round->optimizer ? round->optimizer
                                    : shard_optimizer(shard, b),
                   &update);
    }
    for (unsigned t = 0; t < count; t++)
        replace(shard, b, t, out[t]);
    return nonfinite ? rule_nonfinite(shard_parameter(shard, b)->name,
                                      round->step, why)
                     : STATUS_OK;
}

static double shard_square_sum(void *holder, uint32_t b,
                               const struct unit_round *round) {
    const struct shard *shard = holder;
    double pieces[(1 << 20) / sizeof(float) /
                  RULE_PIECE]; /* of the largest block */
    struct rule_update update = update_of(shard, b, round);
    size_t count = (update.elements + RULE_PIECE - 1) / RULE_PIECE;
    if (shard_parameter(shard, b)->kind != PARAMETER_TRAINED)
        return 0;
    assert(count <= sizeof pieces / sizeof *pieces);
    rule_square_sums(shard->loops, &update, pieces);
    double sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += pieces[i];
    return sum;
}

bool shard_weights_histogram(const struct shard *shard, uint32_t b,
                             struct histogram *histogram) {
    if (shard_means(shard, b))
        return false;
    histogram_clear(histogram);
    histogram_add(histogram, buffer_data(shard_tensor(shard, b, 0)),
                  shard->blocks[b]->elements);
    return true;
}

bool shard_gradient_histogram(const struct shard *shard, uint32_t b,
                              const struct unit_round *round,
                              struct histogram *histogram) {
    float mean[512];
    const size_t most = sizeof mean / sizeof *mean;
    struct rule_update update = update_of(shard, b, round);
    if (shard_parameter(shard, b)->kind != PARAMETER_TRAINED ||
        !round->num_parts)
        return false;
    histogram_clear(histogram);
    for (size_t first = 0; first < update.elements; first += most) {
        size_t left = update.elements - first;
        size_t count = left < most ? left : most;
        rule_mean(shard->loops, &update, first, count, mean);
        histogram_add(histogram, mean, count);
    }
    return true;
}

static void shard_cut(void *holder, uint32_t b, const struct unit_cut *cut,
                      struct snapshots_block *block) {
    const struct shard *shard = holder;
    (void)cut;
    block->tensors = shard->cells[b].tensors;
}

const struct unit_table shard_units = {shard_update, shard_square_sum,
                                       shard_restore, shard_cut};

struct buffer *shard_tensor(const struct shard *shard, uint32_t b,
                            unsigned tensor) {
    assert(b < shard->count && tensor < shard->cells[b].num_tensors);
    return shard->cells[b].tensors[tensor];
}

bool shard_is_left(const struct shard *shard, uint32_t b) {
    assert(b < shard->count);
    return shard->cells[b].left;
}

bool shard_means(const struct shard *shard, uint32_t b) {
    return shard->means && shard_parameter(shard, b)->kind == PARAMETER_TRAINED;
}

struct buffer *shard_mean(const struct shard *shard, uint32_t b) {
    assert(b < shard->count);
    return shard->cells[b].mean;
}

unsigned shard_tensors(const struct shard *shard, uint32_t b) {
    return shard->cells[b].num_tensors;
}

uint32_t shard_blocks(const struct shard *shard) {
    return shard->count;
}

const struct parameter *shard_parameter(const struct shard *shard, uint32_t b) {
    return &shard->layout->parameters[shard->blocks[b]->parameter];
}

const struct block *shard_block(const struct shard *shard, uint32_t b) {
    return shard->blocks[b];
}

enum job_wire shard_wire(const struct shard *shard, uint32_t b,
                         enum job_wire wire) {
    return encoding_of_block(shard->layout, shard->ids[b], wire);
}

size_t shard_block_bytes(const struct shard *shard, uint32_t b) {
    return shard->blocks[b]->elements * sizeof(float);
}

/* Copies that only snapshots and replies keep alive. */
size_t shard_copied_bytes(const struct shard *shard) {
    size_t taken = buffer_pool_used_bytes(shard->buffer_pool);
    return taken > shard->bytes ? taken - shard->bytes : 0;
}
