/* SPDX-License-Identifier: Apache-2.0 */
/* How many records a file has, and where each 65536th of them begins: found by
 * reading the file once, and kept for other processes of this host. */
#ifndef CAPSTAN_RECORD_INDEX_H
#define CAPSTAN_RECORD_INDEX_H

#include "core/base/status.h"
#include "worker/data/record_reader.h"

#include <stdbool.h>
#include <stdint.h>

enum { RECORD_INDEX_STEP = 65536 };

struct record_index {
    uint64_t records; /* with a header */
    uint64_t size;    /* of the file in bytes, as it was then; 0: unknown */
    uint64_t num_marks;
    struct record_position *marks; /* [num_marks]: mark i is where record
                                      i * RECORD_INDEX_STEP begins; none if the
                                      reader cannot go there */
};

struct record_index_options {
    const char *path;
    const struct record_reader *reader;
    struct record_cut cut; /* as it is opened with */
    const char *kept_in;   /* a folder; NULL: capstan/records in the cache of
                              the user (XDG Base Directory Specification) */
    bool (*is_cancelled)(void *cancel_context); /* NULL, or ends long reading */
    void *cancel_context;
};

/* Reads the file, or what this or another process has kept of it as long as its
 * size and time are the same. One process at a time reads it, the others of
 * this host wait; FAILURE_TERMINATED: is_cancelled. Without a folder that can
 * be written nothing is kept. Fails as record_reader.next. */
enum status record_index_open(struct record_index **out,
                              const struct record_index_options *options,
                              struct failure *why) MUST_CHECK;

/* FAILURE_DATA_MISMATCH if PATH no longer has the size that it had when INDEX
 * was made. */
enum status record_index_check(const struct record_index *index,
                               const char *path,
                               struct failure *why) MUST_CHECK;

/* Frees *INDEX (may be NULL) and clears it. */
void record_index_close(struct record_index **index);

#endif
