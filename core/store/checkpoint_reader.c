/* SPDX-License-Identifier: Apache-2.0 */
/* A checkpoint is a manifest and its shard files. Each file is checked whole
 * before LMDB opens it (shard_file.c). Verifying reads everything. Restoring
 * opens a file when its first block is read, so a ps reads and hashes only
 * files with blocks for it, whichever process wrote them. Files held by another
 * host are skipped in verification, because a process that resumes there checks
 * them itself. Reading one of their blocks is an error that names the host. */
#include "core/store/checkpoint_reader.h"

#include "core/store/checkpoint.h"
#include "core/store/kept_file.h"
#include "core/store/shard_file.h"
#include "core/store/shard_rows.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The lists of a stack in a partition; without values until they are read, or
 * if nothing was removed. */
struct stack_rows {
    struct shard_rows rows, removed;
    bool changes; /* they are what changed since a base */
};

struct checkpoint_reader {
    const struct manifest *manifest;
    char folder[PATH_MAX];
    bool in_memory;                 /* its files are */
    struct checkpoint_reader *base; /* of a delta, else NULL */
    struct stack_rows **rows;       /* [num_partitions][num_stacks]; each NULL
                                       until one is read */
    struct shard_reader *shards[];  /* manifest->num_files, NULL: not open */
};

static bool is_remote(const char *folder, const struct shard_info *file) {
    char path[PATH_MAX], host[sizeof file->host] = "";
    if (!*file->host || snprintf(path, sizeof path, "%s/%s", folder,
                                 file->name) >= (int)sizeof path)
        return false;
    gethostname(host, sizeof host - 1);
    return strcmp(host, file->host) != 0 && access(path, F_OK) != 0;
}

uint32_t checkpoint_reader_count_remote(const char *folder,
                                        const struct manifest *manifest,
                                        const struct shard_info **first) {
    char base[PATH_MAX];
    uint32_t count = 0;
    if (manifest->base) {
        checkpoint_sibling(folder, manifest->base->step, base, sizeof base);
        count = checkpoint_reader_count_remote(base, manifest->base, first);
    }
    for (uint32_t f = 0; f < manifest->num_files; f++) {
        if (!is_remote(folder, &manifest->files[f]))
            continue;
        if (first)
            *first = &manifest->files[f];
        count++;
    }
    return count;
}

static enum status open_base(struct checkpoint_reader *reader,
                             struct failure *why) {
    const struct manifest *manifest = reader->manifest;
    char folder[PATH_MAX];
    if (!manifest->is_delta)
        return STATUS_OK;
    if (!manifest->base)
        return status_fail(why, FAILURE_CHECKPOINT_DAMAGED,
                           "%s: a delta without its base", reader->folder);
    if (reader->in_memory)
        return checkpoint_reader_open(&reader->base, NULL, manifest->base, why);
    checkpoint_sibling(reader->folder, manifest->base->step, folder,
                       sizeof folder);
    return checkpoint_reader_open(&reader->base, folder, manifest->base, why);
}

enum status checkpoint_reader_open(struct checkpoint_reader **out,
                                   const char *where,
                                   const struct manifest *manifest,
                                   struct failure *why) {
    const char *folder = where ? where : "/proc/self/fd";
    *out = NULL;
    if (strlen(folder) >= PATH_MAX)
        return status_errno(why, FAILURE_NAME_TOO_LONG, ENAMETOOLONG, "%s",
                            folder);
    struct checkpoint_reader *reader = calloc(
        1, sizeof *reader + manifest->num_files * sizeof reader->shards[0]);
    if (!reader)
        return status_errno(why, FAILURE_NO_MEMORY, ENOMEM, "%s", folder);
    reader->manifest = manifest;
    reader->in_memory = !where;
    reader->rows =
        calloc(manifest->layout->num_partitions + 1, sizeof *reader->rows);
    if (!reader->rows) {
        free(reader);
        return status_errno(why, FAILURE_NO_MEMORY, ENOMEM, "%s", folder);
    }
    memcpy(reader->folder, folder, strlen(folder) + 1);
    *out = reader;
    enum status status = open_base(reader, why);
    if (status)
        checkpoint_reader_close(out);
    return status;
}

void checkpoint_reader_close(struct checkpoint_reader **reader_in) {
    struct checkpoint_reader *reader = *reader_in;
    if (!reader)
        return;
    checkpoint_reader_close(&reader->base);
    for (uint32_t f = 0; f < reader->manifest->num_files; f++)
        shard_reader_close(&reader->shards[f]);
    const struct layout *layout = reader->manifest->layout;
    for (uint32_t p = 0; p < layout->num_partitions; p++) {
        for (uint32_t s = 0; reader->rows[p] && s < layout->num_stacks; s++) {
            shard_rows_clear(&reader->rows[p][s].rows);
            shard_rows_clear(&reader->rows[p][s].removed);
        }
        free(reader->rows[p]);
    }
    free(reader->rows);
    free(reader);
    *reader_in = NULL;
}

/* A file is opened, and hashed whole, when the first of its blocks is read: a
 * ps that restores a part reads only the files with its blocks. */
static enum status checkpoint_reader_open_file(struct checkpoint_reader *reader,
                                               uint32_t f,
                                               struct failure *why) {
    const struct shard_info *file = &reader->manifest->files[f];
    if (reader->shards[f])
        return STATUS_OK;
    if (is_remote(reader->folder, file))
        return status_fail(why, FAILURE_CHECKPOINT_ELSEWHERE,
                           "%s/%s is not here: host %s holds it; start the ps "
                           "there, or copy the file",
                           reader->folder, file->name, file->host);
    return shard_reader_open(&reader->shards[f], reader->folder, file, why);
}

/* The key of SLOT of block or partition B. */
static struct shard_key reader_key_of(const struct layout *layout, uint32_t b,
                                      uint16_t slot) {
    if (b >= layout->num_blocks)
        return (struct shard_key){
            .parameter = SHARD_ROWS | (b - layout->num_blocks), .slot = slot};
    const struct block *block = &layout->blocks[b];
    return (struct shard_key){
        .parameter = block->parameter, .slot = slot, .offset = block->offset};
}

/* Views SLOT of block B. */
static enum status checkpoint_reader_view(struct checkpoint_reader *reader,
                                          uint32_t b, uint16_t slot,
                                          const void **value, size_t *bytes,
                                          struct failure *why) {
    uint32_t f = reader->manifest->block_file[b];
    enum status status = checkpoint_reader_open_file(reader, f, why);
    return status ? status
                  : shard_reader_get(
                        reader->shards[f],
                        reader_key_of(reader->manifest->layout, b, slot), value,
                        bytes, why);
}

/* Views SLOT of block B, which must be floats. */
static enum status view_floats(struct checkpoint_reader *reader, uint32_t b,
                               uint16_t slot, const void **floats,
                               struct failure *why) {
    const struct layout *layout = reader->manifest->layout;
    const struct block *block = &layout->blocks[b];
    size_t bytes, wanted = block->elements * sizeof(float);
    enum status status =
        checkpoint_reader_view(reader, b, slot, floats, &bytes, why);
    if (status || bytes == wanted)
        return status;
    return status_fail(
        why, FAILURE_CHECKPOINT_DAMAGED,
        "%s/%s: block at element %" PRIu64 " of %s, slot %u: %zu bytes, not "
        "%zu",
        reader->folder,
        reader->manifest->files[reader->manifest->block_file[b]].name,
        block->offset, layout->parameters[block->parameter].name, slot, bytes,
        wanted);
}

enum status checkpoint_reader_block(struct checkpoint_reader *reader,
                                    uint32_t b, uint16_t slot, float *floats,
                                    struct failure *why) {
    const void *value;
    enum status status = view_floats(reader, b, slot, &value, why);
    if (!status)
        memcpy(floats, value,
               reader->manifest->layout->blocks[b].elements * sizeof *floats);
    return status;
}

enum status checkpoint_reader_parameter(struct checkpoint_reader *reader,
                                        uint32_t p, uint16_t slot,
                                        float *floats, struct failure *why) {
    const struct layout *layout = reader->manifest->layout;
    uint32_t end = layout->first_block[p] + layout->num_blocks_of[p];
    enum status status = STATUS_OK;
    for (uint32_t b = layout->first_block[p]; b < end && !status; b++)
        status = checkpoint_reader_block(
            reader, b, slot, floats + layout->blocks[b].offset, why);
    return status;
}

enum status checkpoint_reader_row(struct checkpoint_reader *reader, uint32_t b,
                                  const void **row, size_t *bytes,
                                  struct failure *why) {
    return checkpoint_reader_view(reader, b, SHARD_ROW, row, bytes, why);
}

/* A run that resumes begins with the step of the manifest, also where a block
 * or partition was ahead of it. */
static uint64_t start_of(const struct manifest *manifest) {
    return manifest->step - manifest->scaler.skipped;
}

/* The uint64 in SLOT of block or partition B. */
static enum status view_number(struct checkpoint_reader *reader, uint32_t b,
                               uint16_t slot, uint64_t *number,
                               struct failure *why) {
    const void *value;
    size_t bytes;
    enum status status =
        checkpoint_reader_view(reader, b, slot, &value, &bytes, why);
    if (status)
        return status;
    if (bytes == sizeof *number)
        memcpy(number, value, sizeof *number);
    if (bytes == sizeof *number && *number <= INT64_MAX)
        return STATUS_OK;
    uint32_t blocks = reader->manifest->layout->num_blocks;
    return status_fail(why, FAILURE_CHECKPOINT_DAMAGED,
                       "%s: %s %" PRIu32
                       ": %zu bytes in slot %u are no update's number",
                       reader->folder, b < blocks ? "block" : "partition",
                       b < blocks ? b : b - blocks, bytes, slot);
}

enum status checkpoint_reader_rule_step(struct checkpoint_reader *reader,
                                        uint32_t b, uint64_t *step,
                                        struct failure *why) {
    const struct manifest *manifest = reader->manifest;
    uint32_t f = manifest->block_file[b];
    enum status status = checkpoint_reader_open_file(reader, f, why);
    *step = start_of(manifest);
    if (status ||
        !shard_reader_has(reader->shards[f],
                          reader_key_of(manifest->layout, b, SHARD_RULE_STEP)))
        return status;
    return view_number(reader, b, SHARD_RULE_STEP, step, why);
}

/* Opens the file of PARTITION. *CHANGES: it has what changed since a base. */
static enum status open_partition_file(struct checkpoint_reader *reader,
                                       uint32_t partition, bool *changes,
                                       struct failure *why) {
    const struct manifest *manifest = reader->manifest;
    uint32_t b = manifest->layout->num_blocks + partition;
    uint32_t f = manifest->block_file[b];
    enum status status = checkpoint_reader_open_file(reader, f, why);
    *changes =
        !status && manifest->is_delta &&
        shard_reader_has(reader->shards[f],
                         reader_key_of(manifest->layout, b, SHARD_SINCE));
    return status;
}

static enum status read_rows(struct checkpoint_reader *reader,
                             uint32_t partition, uint32_t stack,
                             struct stack_rows *rows, struct failure *why) {
    const struct manifest *manifest = reader->manifest;
    const struct layout *layout = manifest->layout;
    uint32_t f = manifest->block_file[layout->num_blocks + partition];
    uint32_t t = layout->stacked[layout->first_stacked[stack]];
    struct shard_rows_key key = {
        .layout = layout,
        .partition = partition,
        .stack = stack,
        .row_bytes = row_keys_row_bytes(layout->tables[t].dim,
                                        manifest->tables[t].num_slots)};
    enum status status =
        open_partition_file(reader, partition, &rows->changes, why);
    if (!status)
        status = shard_rows_read(&rows->rows, reader->shards[f], &key, why);
    key.removed = true;
    key.row_bytes = sizeof(struct row);
    if (!status && rows->changes &&
        shard_reader_has(reader->shards[f],
                         reader_key_of(layout, layout->num_blocks + partition,
                                       (uint16_t)(SHARD_REMOVED | stack))))
        status = shard_rows_read(&rows->removed, reader->shards[f], &key, why);
    if (status) {
        shard_rows_clear(&rows->rows);
        shard_rows_clear(&rows->removed);
    }
    return status;
}

enum status checkpoint_reader_rows(struct checkpoint_reader *reader,
                                   uint32_t partition, uint32_t stack,
                                   struct shard_rows_pair *rows,
                                   struct failure *why) {
    struct stack_rows **stacks = &reader->rows[partition];
    struct shard_rows_pair base = {NULL};
    enum status status = STATUS_OK;
    if (!*stacks)
        *stacks = calloc(reader->manifest->layout->num_stacks, sizeof **stacks);
    if (!*stacks)
        return status_errno(why, FAILURE_NO_MEMORY, ENOMEM, "%s",
                            reader->folder);
    struct stack_rows *own = &(*stacks)[stack];
    if (!own->rows.values)
        status = read_rows(reader, partition, stack, own, why);
    if (!status && own->changes)
        status =
            checkpoint_reader_rows(reader->base, partition, stack, &base, why);
    *rows = (struct shard_rows_pair){
        &own->rows, own->removed.values ? &own->removed : NULL, base.rows};
    return status;
}

enum status checkpoint_reader_since(struct checkpoint_reader *reader,
                                    uint32_t partition, bool *based,
                                    uint64_t *since, struct failure *why) {
    const struct manifest *manifest = reader->manifest;
    uint64_t start = start_of(manifest), written;
    bool changes;
    *since = start;
    *based = !manifest->is_delta;
    if (*based)
        return STATUS_OK;
    enum status status = open_partition_file(reader, partition, &changes, why);
    if (status || !changes)
        return status;
    status = view_number(reader, manifest->layout->num_blocks + partition,
                         SHARD_SINCE, &written, why);
    if (status)
        return status;
    *since = written < start ? written : start;
    *based = true;
    return STATUS_OK;
}

static void lookup_row(const struct manifest *manifest,
                       const struct shard_rows_pair *rows, uint32_t t,
                       uint64_t id, float *weights) {
    const struct table *table = &manifest->layout->tables[t];
    struct shard_rows_cursor cursor;
    shard_rows_seek(&cursor, rows, t, id);
    const struct row *row = shard_rows_step(&cursor);
    bool found = row && row->table == t && row->id == id;
    if (found ? row->count < table->admit : table->admit)
        memset(weights, 0, table->dim * sizeof *weights);
    else if (found)
        memcpy(weights, row + 1, table->dim * sizeof *weights);
    else
        layout_init_row(manifest->layout, t, id, manifest->seed, weights);
}

enum status checkpoint_reader_lookup(struct checkpoint_reader *reader,
                                     uint32_t partition, uint32_t stack,
                                     const struct row_keys *keys,
                                     float *weights, struct failure *why) {
    struct shard_rows_pair rows;
    uint32_t dim = row_keys_dim(reader->manifest->layout, stack);
    enum status status =
        checkpoint_reader_rows(reader, partition, stack, &rows, why);
    for (uint32_t i = 0; i < keys->count && !status; i++, weights += dim)
        lookup_row(reader->manifest, &rows, keys->tables[i], keys->ids[i],
                   weights);
    return status;
}

/* What block or partition B has beside its tensors or rows. */
static enum status verify_numbers(struct checkpoint_reader *reader, uint32_t b,
                                  struct failure *why) {
    const void *row;
    size_t bytes;
    uint64_t step;
    enum status status = checkpoint_reader_row(reader, b, &row, &bytes, why);
    return status ? status : checkpoint_reader_rule_step(reader, b, &step, why);
}

static enum status verify_partition(struct checkpoint_reader *reader,
                                    uint32_t partition, struct failure *why) {
    const struct layout *layout = reader->manifest->layout;
    uint64_t since;
    bool based;
    enum status status =
        checkpoint_reader_since(reader, partition, &based, &since, why);
    for (uint32_t s = 0; s < layout->num_stacks && !status; s++) {
        struct stack_rows rows = {0};
        status = read_rows(reader, partition, s, &rows, why);
        shard_rows_clear(&rows.rows);
        shard_rows_clear(&rows.removed);
    }
    return status ? status
                  : verify_numbers(reader, layout->num_blocks + partition, why);
}

static enum status verify_block(struct checkpoint_reader *reader, uint32_t b,
                                struct failure *why) {
    const struct manifest *manifest = reader->manifest;
    uint32_t p = manifest->layout->blocks[b].parameter;
    uint32_t slots = manifest_rule(manifest, p)->num_slots;
    const void *value;
    enum status status = STATUS_OK;
    for (uint32_t s = 0; s <= slots && !status; s++)
        status = view_floats(reader, b, (uint16_t)s, &value, why);
    return status ? status : verify_numbers(reader, b, why);
}

/* Every file, also one without blocks, then every block of the local files.
 * SIZES: of shard files no more. */
static enum status checkpoint_reader_verify_files(
    struct checkpoint_reader *reader, bool sizes, struct failure *why) {
    const struct manifest *manifest = reader->manifest;
    enum status status = STATUS_OK;
    for (uint32_t f = 0; f < manifest->num_files && !status; f++)
        if (!is_remote(reader->folder, &manifest->files[f]))
            status = sizes ? shard_file_check_size(reader->folder,
                                                   &manifest->files[f], why)
                           : checkpoint_reader_open_file(reader, f, why);
    for (uint32_t k = 0; k < manifest->num_kept && !status; k++)
        if (!is_remote(reader->folder, &manifest->kept[k]))
            status =
                kept_file_read(reader->folder, &manifest->kept[k], NULL, why);
    uint32_t num_blocks = manifest->layout->num_blocks;
    for (uint32_t b = 0; b < layout_units(manifest->layout) && !status; b++)
        if (reader->shards[manifest->block_file[b]])
            status = b < num_blocks
                         ? verify_block(reader, b, why)
                         : verify_partition(reader, b - num_blocks, why);
    return status;
}

/* READ (may be NULL) is a base whose files are known to be good. SIZES: of
 * shard files no more is looked at. */
static enum status verify(struct manifest *manifest, const char *dir,
                          uint64_t step, const struct manifest_name *read,
                          bool sizes, struct failure *why) {
    char folder[PATH_MAX];
    checkpoint_folder(dir, step, folder, sizeof folder);
    enum status status = manifest_read(manifest, folder, why);
    if (status)
        return status;
    if (manifest->step != step)
        return status_fail(why, FAILURE_CHECKPOINT_DAMAGED,
                           "%s: its manifest is of step %" PRIu64, folder,
                           manifest->step);
    struct checkpoint_reader *reader;
    status = checkpoint_reader_open(&reader, folder, manifest, why);
    if (status)
        return status;
    bool known = read && manifest->is_delta &&
                 read->step == manifest->base_name.step &&
                 read->hash == manifest->base_name.hash;
    status = checkpoint_reader_verify_files(reader, sizes, why);
    if (!status && reader->base && !known)
        status = checkpoint_reader_verify_files(reader->base, sizes, why);
    checkpoint_reader_close(&reader);
    return status;
}

enum status checkpoint_reader_verify(const char *dir, uint64_t step,
                                     struct failure *why) {
    struct manifest manifest;
    enum status status = verify(&manifest, dir, step, NULL, false, why);
    manifest_clear(&manifest);
    return status;
}

enum status checkpoint_reader_verify_next(const char *dir, uint64_t step,
                                          struct manifest_name *base,
                                          struct failure *why) {
    struct manifest manifest;
    enum status status = verify(&manifest, dir, step, base, false, why);
    if (!status && !manifest.is_delta)
        *base = (struct manifest_name){step, manifest.hash};
    manifest_clear(&manifest);
    return status;
}

struct search {
    const char *dir;
    uint64_t upto;
    bool sizes; /* of the newest's shard files no more is looked at */
    const struct log *log;
};

/* A user who resumes must know which checkpoints were skipped. If there are
 * checkpoints but none can be read, only the user may decide to start over. */
static enum status find_newest(const struct search *search,
                               struct manifest *out, bool *found,
                               struct failure *why) {
    const char *dir = search->dir;
    uint64_t *steps;
    size_t count, num_skipped = 0;
    struct failure first = {0}, wrong;
    memset(out, 0, sizeof *out);
    *found = false;
    enum status status = checkpoint_list(dir, &steps, &count, why);
    for (size_t i = count; i-- > 0 && !status && !*found;) {
        if (steps[i] > search->upto)
            continue;
        *found = !verify(out, dir, steps[i], NULL,
                         search->sizes && i == count - 1, &wrong);
        if (*found)
            break;
        manifest_clear(out);
        log_warning(search->log, "checkpoint_passed_over",
                    "checkpoint of step %" PRIu64 " passed over: %s", steps[i],
                    wrong.text);
        if (!num_skipped++)
            first = wrong;
    }
    free(steps);
    if (!status && num_skipped && !*found)
        status = status_fail(
            why, FAILURE_CHECKPOINT_DAMAGED,
            "%s: none of %zu checkpoints can be read, the newest because of "
            "%.1500s; restore a copy of one, or start a new run: --set "
            "checkpoint.resume=never, or another checkpoint.dir",
            dir, num_skipped, first.text);
    return status;
}

enum status checkpoint_reader_newest(const char *dir, uint64_t upto,
                                     struct manifest *out, bool *found,
                                     const struct log *log,
                                     struct failure *why) {
    struct search search = {.dir = dir, .upto = upto, .log = log};
    return find_newest(&search, out, found, why);
}

enum status checkpoint_reader_newest_sized(const char *dir,
                                           struct manifest *out, bool *found,
                                           const struct log *log,
                                           struct failure *why) {
    struct search search = {
        .dir = dir, .upto = CHECKPOINT_READER_ANY, .sizes = true, .log = log};
    return find_newest(&search, out, found, why);
}
