/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/data/record_stream.h"

#include "core/base/log.h"
#include "core/tensor/philox.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Philox streams of windows; idx_dataset.c has those of whole epochs. */
#define WINDOW_STREAMS (UINT64_C(1) << 63)

enum { READS_UNCHECKED = 65536 };
enum { HUGE_PAGE = 2 << 20, COPIED = 256 << 20 /* bytes of a window */ };
enum { AHEAD = 4, PREFETCHED = 512 /* records, and bytes of one */ };

/* A record in a window's bytes. */
struct record_place {
    const char *path;
    size_t begin, size;
    uint64_t number, line;
    bool is_damaged;
};

struct record_stream {
    struct record_stream_options options;
    bool by_file;
    struct record_file *file;
    uint32_t next_path; /* to open next */
    const char *path;   /* of FILE */
    uint64_t index;     /* of the next record of all files that are read */
    uint64_t epoch, window;
    uint64_t reads; /* of records, also of others' shares */
};

enum status record_stream_open(struct record_stream **out,
                               const struct record_stream_options *options,
                               struct failure *why) {
    struct record_stream *stream = calloc(1, sizeof *stream);
    *out = stream;
    if (!stream)
        return status_fail(why, FAILURE_NO_MEMORY, "no memory for a reader");
    stream->options = *options;
    stream->by_file =
        options->num_paths / 2 >= options->num_ranks; /* 2 or more each */
    stream->next_path = stream->by_file ? options->rank : 0;
    return STATUS_OK;
}

void record_stream_close(struct record_stream **stream) {
    if (!stream || !*stream)
        return;
    (*stream)->options.reader->close(&(*stream)->file);
    free(*stream);
    *stream = NULL;
}

/* The files begin again. */
static void rewind_stream(struct record_stream *stream, uint64_t epoch) {
    stream->options.reader->close(&stream->file);
    stream->next_path = stream->by_file ? stream->options.rank : 0;
    stream->index = 0;
    stream->epoch = epoch;
    stream->window = 0;
}

static enum status take_header(struct record_stream *stream,
                               struct failure *why) {
    const struct record_stream_options *options = &stream->options;
    struct record record;
    if (!options->header)
        return STATUS_OK;
    enum status status = options->reader->next(stream->file, &record, why);
    if (status)
        return status;
    if (!record.bytes)
        return status_fail(why, FAILURE_DATA_DAMAGED,
                           "%s: found no line, expected a header",
                           stream->path);
    status = options->header(options->context, &record, why);
    return status
               ? status_context(why, "%s:%" PRIu64, stream->path, record.line)
               : status;
}

/* Opens the share's next file, if there is one. */
static enum status open_next(struct record_stream *stream,
                             struct failure *why) {
    const struct record_stream_options *options = &stream->options;
    stream->options.reader->close(&stream->file);
    if (stream->next_path >= options->num_paths)
        return STATUS_OK;
    const struct record_index *index =
        options->indices ? options->indices[stream->next_path] : NULL;
    stream->path = options->paths[stream->next_path];
    stream->next_path += stream->by_file ? options->num_ranks : 1;
    enum status status = index && !options->may_change
                             ? record_index_check(index, stream->path, why)
                             : STATUS_OK;
    if (!status)
        status = options->reader->open(&stream->file, stream->path,
                                       &options->cut, why);
    return status ? status : take_header(stream, why);
}

/* The next record of the open file; ends if the reading is cancelled. */
static enum status read_one(struct record_stream *stream, struct record *record,
                            struct failure *why) {
    const struct record_stream_options *options = &stream->options;
    if (!(++stream->reads % READS_UNCHECKED) && options->is_cancelled &&
        options->is_cancelled(options->cancel_context))
        return status_fail(why, FAILURE_TERMINATED, "%s: reading it was ended",
                           stream->path);
    return options->reader->next(stream->file, record, why);
}

/* The share's next record; RECORD->bytes is NULL at the end of the files. */
static enum status next_of_share(struct record_stream *stream,
                                 struct record *record, struct failure *why) {
    const struct record_stream_options *options = &stream->options;
    enum status status = STATUS_OK;
    *record = (struct record){0};
    if (!stream->file)
        status = open_next(stream, why);
    while (!status && stream->file) {
        status = read_one(stream, record, why);
        if (!status && !record->bytes)
            status = open_next(stream, why);
        else if (!status &&
                 (stream->by_file ||
                  stream->index++ % options->num_ranks == options->rank))
            break;
    }
    return status;
}

static bool grow_places(struct record_window *window, uint32_t room) {
    if (window->room >= room)
        return true;
    room += room / 2;
    struct record_place *places =
        realloc(window->places, room * sizeof *places);
    window->places = places ? places : window->places;
    uint32_t *order = realloc(window->order, room * sizeof *order);
    window->order = order ? order : window->order;
    if (!places || !order)
        return false;
    window->room = room;
    return true;
}

/* In huge pages, if the system has some: shuffled records are read from
 * anywhere in them, and translations of small ones would be missed nearly each
 * time. Copying is left to realloc where there would be much memory twice. */
static bool grow_bytes(struct record_window *window, size_t capacity) {
    bool small = capacity < COPIED;
    capacity = (capacity + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    char *bytes = small ? aligned_alloc(HUGE_PAGE, capacity)
                        : realloc(window->bytes, capacity);
    if (!bytes)
        return false;
    if (small) {
        (void)madvise(bytes, capacity, MADV_HUGEPAGE);
        if (window->used)
            memcpy(bytes, window->bytes, window->used);
        free(window->bytes);
    }
    window->bytes = bytes;
    window->capacity = capacity;
    return true;
}

static bool append_record(struct record_window *window, const char *path,
                          const struct record *record) {
    size_t wanted = window->used + record->size;
    if (!grow_places(window, window->count + 1))
        return false;
    if (wanted > window->capacity || !window->bytes) {
        if (!grow_bytes(window, wanted + wanted / 2 + 1))
            return false;
    }
    memcpy(window->bytes + window->used, record->bytes, record->size);
    window->places[window->count++] =
        (struct record_place){.path = path,
                              .begin = window->used,
                              .size = record->size,
                              .number = record->number,
                              .line = record->line,
                              .is_damaged = record->is_damaged};
    window->used = wanted;
    return true;
}

/* Fisher-Yates, as an epoch's order in idx_dataset.c. */
static void order_window(struct record_window *window, bool shuffle,
                         uint64_t seed) {
    struct philox_sequence sequence;
    philox_sequence_open(&sequence, seed,
                         WINDOW_STREAMS + (window->epoch << 32) +
                             window->number);
    for (uint32_t i = 0; i < window->count; i++) {
        uint32_t j = shuffle ? philox_below(&sequence, i + 1) : i;
        window->order[i] = window->order[j];
        window->order[j] = i;
    }
}

enum status record_stream_next(struct record_stream *stream,
                               struct record_window *window,
                               struct failure *why) {
    const struct record_stream_options *options = &stream->options;
    struct record record = {.bytes = ""};
    enum status status = STATUS_OK;
    window->epoch = stream->epoch;
    window->number = stream->window++;
    window->count = 0;
    window->used = 0;
    bool complete = true;
    while (complete && window->count < options->buffer) {
        status = next_of_share(stream, &record, why);
        if (status || !record.bytes)
            break;
        complete = append_record(window, stream->path, &record);
    }
    if (!complete)
        return status_fail(why, FAILURE_TOO_LITTLE_MEMORY,
                           "no memory for %u records, of %zu bytes so far: "
                           "lower data.shuffle_buffer",
                           options->buffer, window->used);
    if (!status && !window->count)
        rewind_stream(stream, stream->epoch + 1);
    order_window(window, options->shuffle, options->seed);
    return status;
}

/* Records of file F, without its header; it has an index. */
static uint64_t records_of(const struct record_stream *stream, uint32_t f) {
    uint64_t records = stream->options.indices[f]->records;
    return records - (stream->options.header && records);
}

/* Goes to RECORD, a number without the header, of the file that was opened,
 * which has index INDEX: to the last mark before it, then record by record. */
static enum status go_to_record(struct record_stream *stream, uint64_t record,
                                const struct record_index *index,
                                struct failure *why) {
    const struct record_reader *reader = stream->options.reader;
    uint64_t at = stream->options.header != NULL; /* the file's next record */
    uint64_t mark = (record + at) / RECORD_INDEX_STEP;
    struct record skipped = {.bytes = ""};
    enum status status = STATUS_OK;
    record += at;
    if (mark && !index->num_marks)
        log_info(stream->options.log, "reading_again",
                 "%s: cannot be entered in the middle, so it is read from its "
                 "begin to record %" PRIu64,
                 stream->path, record);
    if (mark && mark < index->num_marks) {
        status = reader->seek(stream->file, &index->marks[mark], why);
        at = mark * RECORD_INDEX_STEP;
    }
    for (; !status && skipped.bytes && at < record; at++)
        status = read_one(stream, &skipped, why);
    return status;
}

/* Goes to RECORD of all files that are read, or behind their end: by the
 * indices of those before it. *FOUND: there was an index of each. */
static enum status go_by_index(struct record_stream *stream, uint64_t record,
                               bool *found, struct failure *why) {
    const struct record_stream_options *options = &stream->options;
    uint32_t step = stream->by_file ? options->num_ranks : 1;
    uint64_t before = 0;
    *found = true;
    for (uint32_t f = stream->next_path; f < options->num_paths; f += step) {
        if (!options->indices || !options->indices[f]) {
            *found = false;
            return STATUS_OK;
        }
        uint64_t records = records_of(stream, f);
        if (record - before < records) {
            stream->next_path = f;
            stream->index = record;
            enum status status = open_next(stream, why);
            return status ? status
                          : go_to_record(stream, record - before,
                                         options->indices[f], why);
        }
        before += records;
    }
    stream->next_path = options->num_paths;
    return STATUS_OK;
}

enum status record_stream_seek(struct record_stream *stream, uint64_t epoch,
                               uint64_t number, struct failure *why) {
    const struct record_stream_options *options = &stream->options;
    struct record record = {.bytes = ""};
    uint64_t before = number * options->buffer;
    bool found;
    rewind_stream(stream, epoch);
    stream->window = number;
    if (!before)
        return STATUS_OK;
    enum status status = go_by_index(
        stream,
        stream->by_file ? before : before * options->num_ranks + options->rank,
        &found, why);
    for (; !found && before && record.bytes && !status; before--)
        status = next_of_share(stream, &record, why);
    return status;
}

enum status record_stream_count(struct record_stream *stream, uint64_t *count,
                                struct failure *why) {
    const struct record_stream_options *options = &stream->options;
    uint32_t step = stream->by_file ? options->num_ranks : 1;
    enum status status = STATUS_OK;
    uint64_t all = 0;
    rewind_stream(stream, 0);
    for (uint32_t f = stream->next_path; !status && f < options->num_paths;
         f += step) {
        struct record_index_options of = {.path = options->paths[f],
                                          .reader = options->reader,
                                          .cut = options->cut,
                                          .kept_in = options->indices_kept_in,
                                          .is_cancelled = options->is_cancelled,
                                          .cancel_context =
                                              options->cancel_context};
        status = open_next(stream, why); /* checks its header */
        if (!status && !options->indices[f])
            status = record_index_open(&options->indices[f], &of, why);
        if (!status)
            all += records_of(stream, f);
    }
    rewind_stream(stream, 0);
    if (!stream->by_file)
        all = all > options->rank
                  ? (all - options->rank - 1) / options->num_ranks + 1
                  : 0;
    *count = all;
    return status;
}

/* Records in the window's order lie anywhere in its memory. */
static void prefetch_record(const struct record_window *window, uint32_t i) {
    const struct record_place *place = &window->places[i];
    size_t end = place->size < PREFETCHED ? place->size : PREFETCHED;
    for (size_t byte = 0; byte < end; byte += 64)
        __builtin_prefetch(window->bytes + place->begin + byte);
}

struct record record_window_get(const struct record_window *window, uint32_t i,
                                const char **path) {
    const struct record_place *place = &window->places[window->order[i]];
    if (i + 2 * AHEAD < window->count)
        __builtin_prefetch(&window->places[window->order[i + 2 * AHEAD]]);
    if (i + AHEAD < window->count)
        prefetch_record(window, window->order[i + AHEAD]);
    *path = place->path;
    return (struct record){.bytes = window->bytes + place->begin,
                           .size = place->size,
                           .number = place->number,
                           .line = place->line,
                           .is_damaged = place->is_damaged};
}

void record_window_free(struct record_window *window) {
    free(window->places);
    free(window->order);
    free(window->bytes);
    *window = (struct record_window){0};
}
