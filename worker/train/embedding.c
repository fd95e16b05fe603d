/* SPDX-License-Identifier: Apache-2.0 */
/* Micro batches lie in a ring: those of the step, passed or not, one that is
 * requested ahead, and those of two pushes that are on their way; its lookups
 * are answered in order. */
#include "worker/train/embedding.h"

#include "worker/train/bags.h"

#include <stdlib.h>
#include <string.h>

enum { PAGE = 4096 };

struct embedding {
    struct embedding_settings settings;
    struct row_batch_index *index;
    struct row_batch *ring; /* [room], then `merged` and `evaluation` */
    uint32_t room;
    uint64_t begin;     /* of the step's first micro batch, */
    uint64_t passed;    /* of the next to pass, */
    uint64_t requested; /* of the next to request; a place is its number mod
                           room */
    struct row_batch *merged, *evaluation;
    uint64_t merged_until; /* `passed` for which `merged` is up to date */
    /* Of each column of rows, [max_batch, width]: its gradient on the device,
     * and its values, then its gradient, in pinned host memory, where that is
     * not the device's. */
    float *gradients[BATCH_MAX_COLUMNS];
    float *host[BATCH_MAX_COLUMNS];
    struct device_event *downloaded; /* the gradients; NULL: nothing is */
};

static enum status embedding_no_memory(struct failure *why) {
    return status_fail(why, FAILURE_NO_MEMORY,
                       "no memory for the rows of a batch");
}

static bool is_async(const struct embedding *embedding) {
    return embedding->settings.device->ops->async;
}

static bool embedding_open_host(struct embedding *embedding, uint32_t c,
                                size_t bytes) {
    const struct local_device *device = embedding->settings.device;
    bytes = (bytes + PAGE - 1) / PAGE * PAGE;
    embedding->host[c] = aligned_alloc(PAGE, bytes);
    if (embedding->host[c])
        local_device_pin(device, embedding->host[c], bytes);
    if (!embedding->downloaded)
        embedding->downloaded = device->ops->event_open(device->handle);
    return embedding->host[c] && embedding->downloaded;
}

static enum status allocate_columns(struct embedding *embedding,
                                    struct failure *why) {
    const struct embedding_settings *s = &embedding->settings;
    const struct local_device *device = s->device;
    for (uint32_t c = 0; c < s->spec->num_columns; c++) {
        const struct batch_column *column = &s->spec->columns[c];
        size_t bytes = batch_column_bytes(column, s->max_batch);
        if (column->type != BATCH_ROWS)
            continue;
        if (s->micro_batches)
            embedding->gradients[c] =
                device->ops->allocate(device->handle, bytes);
        if (s->micro_batches && !embedding->gradients[c])
            return status_fail(why, FAILURE_DEVICE_MEMORY,
                               "no memory on device %s for the gradients of "
                               "%u samples' rows, %zu bytes",
                               device->name, s->max_batch, bytes);
        if (is_async(embedding) && !embedding_open_host(embedding, c, bytes))
            return embedding_no_memory(why);
    }
    return STATUS_OK;
}

enum status embedding_open(struct embedding **out,
                           const struct embedding_settings *settings,
                           struct failure *why) {
    struct embedding *embedding = calloc(1, sizeof *embedding);
    *out = embedding;
    if (!embedding)
        return embedding_no_memory(why);
    embedding->settings = *settings;
    embedding->room = settings->micro_batches + 3;
    embedding->ring = calloc(embedding->room + 2, sizeof *embedding->ring);
    enum status status = STATUS_OK;
    if (embedding->ring) {
        embedding->merged = embedding->ring + embedding->room;
        embedding->evaluation = embedding->merged + 1;
    } else {
        status = embedding_no_memory(why);
    }
    if (!status)
        status = row_batch_index_open(&embedding->index, settings->layout, why);
    for (uint32_t i = 0; !status && i < embedding->room + 2; i++)
        status = row_batch_open(&embedding->ring[i], embedding->index, why);
    if (!status)
        status = allocate_columns(embedding, why);
    if (status)
        embedding_close(out);
    return status;
}

/* Copies of a pass that the run ended in may be under way. */
static void release_columns(struct embedding *embedding) {
    const struct local_device *device = embedding->settings.device;
    device->ops->synchronize(device->handle, NULL);
    for (uint32_t c = 0; c < BATCH_MAX_COLUMNS; c++) {
        if (embedding->gradients[c])
            device->ops->release(device->handle, embedding->gradients[c]);
        if (embedding->host[c])
            local_device_unpin(device, embedding->host[c]);
        free(embedding->host[c]);
    }
    if (embedding->downloaded)
        device->ops->event_close(device->handle, &embedding->downloaded);
}

void embedding_close(struct embedding **where) {
    struct embedding *embedding = *where;
    *where = NULL;
    if (!embedding)
        return;
    release_columns(embedding);
    for (uint32_t i = 0; embedding->ring && i < embedding->room + 2; i++)
        row_batch_close(&embedding->ring[i]);
    row_batch_index_close(&embedding->index);
    free(embedding->ring);
    free(embedding);
}

static struct row_batch *place_of(const struct embedding *embedding,
                                  uint64_t number) {
    return &embedding->ring[number % embedding->room];
}

/* Lists the rows of BATCH: those of each lookup, by sample. */
static enum status list_rows(const struct embedding *embedding,
                             const struct batch *batch, struct row_batch *rows,
                             struct failure *why) {
    const struct batch_spec *spec = embedding->settings.spec;
    enum status status = STATUS_OK;
    row_batch_begin(rows);
    for (uint32_t l = 0; !status && l < spec->num_lookups; l++) {
        const struct batch_ids *ids = &batch->ids[spec->lookups[l].ids];
        status = row_batch_add(rows, spec->lookups[l].table, ids->ids,
                               ids->offsets[batch->count], why);
    }
    return status ? status : row_batch_finish(rows, why);
}

enum status embedding_request(struct embedding *embedding,
                              const struct batch *batch, uint64_t clock,
                              bool early, struct failure *why) {
    struct row_batch *rows = place_of(embedding, embedding->requested);
    enum status status = list_rows(embedding, batch, rows, why);
    if (status)
        return status;
    embedding->requested++;
    embedding->settings.source.lookup(embedding->settings.source.context, clock,
                                      early, 0, rows);
    return STATUS_OK;
}

bool embedding_is_ahead(const struct embedding *embedding) {
    return embedding->requested > embedding->passed;
}

/* All lookups of BATCH. COLUMNS are host memory: the columns of rows; BACK:
 * their gradients. */
static void combine(const struct embedding *embedding,
                    const struct batch *batch, const struct row_batch *rows,
                    float *const *columns, bool back) {
    const struct batch_spec *spec = embedding->settings.spec;
    const uint32_t *positions = rows->positions;
    for (uint32_t l = 0; l < spec->num_lookups; l++) {
        const struct batch_lookup *lookup = &spec->lookups[l];
        const struct batch_ids *ids = &batch->ids[lookup->ids];
        float *sums = columns[lookup->column] + lookup->offset;
        struct bags bags = {
            .count = batch->count,
            .offsets = ids->offsets,
            .weights = ids->weights,
            .combiner = lookup->combiner,
            .dim = embedding->settings.layout->tables[lookup->table].dim,
            .width = spec->columns[lookup->column].width};
        if (back)
            bags_add_gradients(&bags, sums, positions, rows->gradients);
        else
            bags_add_rows(&bags, rows->weights, positions, sums);
        positions += ids->offsets[batch->count];
    }
}

/* Host memory of BATCH's column C. */
static float *host_column(const struct embedding *embedding,
                          const struct batch *batch, uint32_t c) {
    return is_async(embedding) ? embedding->host[c] : batch->columns[c];
}

static void fill_columns(struct embedding *embedding, struct batch *batch,
                         struct row_batch *rows) {
    const struct embedding_settings *s = &embedding->settings;
    const struct local_device *device = s->device;
    float *columns[BATCH_MAX_COLUMNS] = {NULL};
    for (uint32_t c = 0; c < s->spec->num_columns; c++) {
        if (s->spec->columns[c].type != BATCH_ROWS)
            continue;
        columns[c] = host_column(embedding, batch, c);
        memset(columns[c], 0,
               batch_column_bytes(&s->spec->columns[c], batch->count));
    }
    combine(embedding, batch, rows, columns, false);
    for (uint32_t c = 0; is_async(embedding) && c < s->spec->num_columns; c++)
        if (columns[c])
            device->ops->upload(
                device->handle, STREAM_COMPUTE, batch->columns[c], columns[c],
                batch_column_bytes(&s->spec->columns[c], batch->count));
}

bool embedding_forward(struct embedding *embedding, struct batch *batch) {
    const struct embedding_source *source = &embedding->settings.source;
    if (!source->wait(source->context))
        return false;
    fill_columns(embedding, batch, place_of(embedding, embedding->passed));
    memcpy(batch->gradients, embedding->gradients, sizeof batch->gradients);
    return true;
}

/* The columns' gradients in host memory. */
static enum status download_gradients(struct embedding *embedding,
                                      const struct batch *batch,
                                      float **columns, struct failure *why) {
    const struct embedding_settings *s = &embedding->settings;
    const struct local_device *device = s->device;
    for (uint32_t c = 0; c < s->spec->num_columns; c++) {
        columns[c] = embedding->gradients[c];
        if (!columns[c] || !is_async(embedding))
            continue;
        columns[c] = embedding->host[c];
        device->ops->download(
            device->handle, STREAM_COMPUTE, columns[c], embedding->gradients[c],
            batch_column_bytes(&s->spec->columns[c], batch->count));
    }
    if (!embedding->downloaded)
        return STATUS_OK;
    device->ops->record(device->handle, STREAM_COMPUTE, embedding->downloaded);
    return device->ops->event_sync(device->handle, embedding->downloaded, why);
}

enum status embedding_backward(struct embedding *embedding,
                               const struct batch *batch, struct failure *why) {
    float *columns[BATCH_MAX_COLUMNS] = {NULL};
    struct row_batch *rows = place_of(embedding, embedding->passed++);
    enum status status = download_gradients(embedding, batch, columns, why);
    if (status)
        return status;
    row_batch_clear_gradients(rows);
    combine(embedding, batch, rows, columns, true);
    return STATUS_OK;
}

/* Adds up the micro batches' gradients row by row, in their order. */
static enum status merge_micro_batches(struct embedding *embedding,
                                       struct failure *why) {
    struct row_batch *merged = embedding->merged;
    enum status status = STATUS_OK;
    row_batch_begin(merged);
    for (uint64_t k = embedding->begin; !status && k < embedding->passed; k++)
        status = row_batch_add_rows(merged, place_of(embedding, k), why);
    if (!status)
        status = row_batch_finish(merged, why);
    if (status)
        return status;
    row_batch_clear_gradients(merged);
    size_t first = 0;
    for (uint64_t k = embedding->begin; k < embedding->passed; k++)
        first = row_batch_add_gradients(merged, first, place_of(embedding, k));
    return STATUS_OK;
}

enum status embedding_gradients(struct embedding *embedding,
                                struct row_batch **out, struct failure *why) {
    uint64_t count = embedding->passed - embedding->begin;
    *out = count == 1 ? place_of(embedding, embedding->begin)
           : count    ? embedding->merged
                      : NULL;
    if (count < 2 || embedding->merged_until == embedding->passed)
        return STATUS_OK;
    if (!embedding_settle(embedding)) /* the last pushes may still read them */
        return STATUS_OK;
    embedding->merged_until = embedding->passed;
    return merge_micro_batches(embedding, why);
}

enum status embedding_push(struct embedding *embedding, uint64_t clock,
                           enum contribution kind, struct failure *why) {
    const struct embedding_source *source = &embedding->settings.source;
    struct row_batch *rows = NULL;
    enum status status = STATUS_OK;
    if (embedding->passed > embedding->begin + 1 &&
        !embedding_settle(embedding))
        return STATUS_OK; /* the run ends */
    if (kind == CONTRIBUTION_FULL)
        status = embedding_gradients(embedding, &rows, why);
    if (status)
        return status;
    source->push(source->context, clock, kind, rows);
    embedding->begin = embedding->passed;
    return STATUS_OK;
}

bool embedding_settle(struct embedding *embedding) {
    const struct embedding_source *source = &embedding->settings.source;
    return source->settle(source->context);
}

enum status embedding_evaluate(struct embedding *embedding, struct batch *batch,
                               uint64_t clock, uint64_t snapshot, bool *ready,
                               struct failure *why) {
    const struct embedding_source *source = &embedding->settings.source;
    *ready = source->wait(source->context); /* what was requested ahead */
    if (!*ready)
        return STATUS_OK;
    enum status status =
        list_rows(embedding, batch, embedding->evaluation, why);
    if (status)
        return status;
    source->lookup(source->context, clock, false, snapshot,
                   embedding->evaluation);
    *ready = source->wait(source->context);
    if (*ready)
        fill_columns(embedding, batch, embedding->evaluation);
    return STATUS_OK;
}
