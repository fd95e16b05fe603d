/* SPDX-License-Identifier: Apache-2.0 */
/* A trainer's share of the records of files, a window at a time: memory
 * does not grow with the files. By file where there are at least twice as many
 * as trainers, each RANKth of them; else by record, each RANKth of all. Windows
 * of BUFFER records are shuffled each for itself by (seed, epoch, window), so
 * what is read depends on nothing but the place in the data. */
#ifndef CAPSTAN_RECORD_STREAM_H
#define CAPSTAN_RECORD_STREAM_H

#include "core/base/status.h"
#include "worker/data/record_index.h"

#include <stdbool.h>

struct record_stream_options {
    const char *const *paths; /* [num_paths] > 0, in the order of reading */
    uint32_t num_paths;
    const struct record_reader *reader;
    struct record_cut cut; /* as it is opened with */
    uint32_t rank, num_ranks;
    uint32_t buffer; /* records of a window, > 0 */
    bool shuffle;
    uint64_t seed;
    /* Takes the first record of a file, which is none of the share; NULL: files
     * have no header. */
    enum status (*header)(void *context, const struct record *record,
                          struct failure *why);
    void *context;
    bool (*is_cancelled)(void *cancel_context); /* NULL, or ends long reading */
    void *cancel_context;
    struct record_index **indices; /* [num_paths]: those of the files that were
                                      counted; others NULL */
    bool may_change; /* files may have changed since they were counted, which
                        only served to find a place */
    const char *indices_kept_in; /* as record_index_options.kept_in */
    const struct log *log;
};

struct record_stream;

/* Borrows OPTIONS' paths. Opens no file yet. */
enum status record_stream_open(struct record_stream **out,
                               const struct record_stream_options *options,
                               struct failure *why) MUST_CHECK;

/* Frees *STREAM (may be NULL) and clears it. */
void record_stream_close(struct record_stream **stream);

/* All zero: empty. */
struct record_window {
    uint64_t epoch, number;      /* from 0 */
    uint32_t count;              /* of records; 0: the epoch has no more */
    struct record_place *places; /* [room], in the order of reading */
    uint32_t *order;             /* [room]: what is read i-th */
    uint32_t room;
    char *bytes; /* of all records */
    size_t used, capacity;
};

/* Fills WINDOW, whose memory is used again, with the next records of the share.
 * After one without records comes the first of the next epoch. Fails as
 * record_reader.next, and as OPTIONS' header with the file's name and line. */
enum status record_stream_next(struct record_stream *stream,
                               struct record_window *window,
                               struct failure *why) MUST_CHECK;

/* The next window is NUMBER of EPOCH. Reads what is before it, of files that
 * were counted only what has no mark. */
enum status record_stream_seek(struct record_stream *stream, uint64_t epoch,
                               uint64_t number, struct failure *why) MUST_CHECK;

/* Counts the records of the share by the indices of its files, which it opens
 * where they are not yet in OPTIONS' indices, which own them; the next window
 * is the first of epoch 0. */
enum status record_stream_count(struct record_stream *stream, uint64_t *count,
                                struct failure *why) MUST_CHECK;

/* WINDOW's record I, as shuffled, and the path of its file; views until WINDOW
 * changes. */
struct record record_window_get(const struct record_window *window, uint32_t i,
                                const char **path);

/* Frees what WINDOW owns. */
void record_window_free(struct record_window *window);

#endif
