/* SPDX-License-Identifier: Apache-2.0 */
/* Cuts a file's content into records. */
#ifndef CAPSTAN_RECORD_READER_H
#define CAPSTAN_RECORD_READER_H

#include "core/base/status.h"
#include "worker/data/record.h"

#include <stdbool.h>

enum { RECORD_READER_MAX_BYTES = 64 << 20 /* of a record */ };

struct record_file; /* open; the reader's own type */

/* Where the next record begins in the content. */
struct record_position {
    uint64_t byte, number, line;
};

/* What a job says of how its files are cut; borrowed. */
struct record_cut {
    char delimiter;           /* between the fields of quoted lines */
    const char *const *names; /* [num_names]: those of the arrays, tensors or
                                 fields that a record is to have; NULL: all */
    uint32_t num_names;
};

struct record_reader {
    const char *name; /* no other reader's */

    /* PATH, and what CUT borrows, are borrowed. Fails as data_file_open, and
     * with FAILURE_DATA_MISMATCH if an array of CUT is not there. */
    enum status (*open)(struct record_file **out, const char *path,
                        const struct record_cut *cut, struct failure *why);

    /* The next record, a view until the next call. Fails as data_file_read, and
     * with FAILURE_DATA_DAMAGED for a record that does not end or has more than
     * RECORD_READER_MAX_BYTES; WHY has the file's name and the line or byte. */
    enum status (*next)(struct record_file *file, struct record *record,
                        struct failure *why);

    /* Frees *FILE (may be NULL) and clears it. */
    void (*close)(struct record_file **file);

    /* Where the next record begins; false if `seek` cannot go there. NULL, as
     * `seek`: never. */
    bool (*position)(const struct record_file *file,
                     struct record_position *position);

    /* The next record is that at POSITION. Fails as data_file_seek. */
    enum status (*seek)(struct record_file *file,
                        const struct record_position *position,
                        struct failure *why);

    /* Calls VISIT with the name of each of FILE's arrays, of which records have
     * a row; NULL where they have none. */
    void (*names)(const struct record_file *file,
                  void (*visit)(void *context, const struct record_text *name),
                  void *context);
};

/* Lines that end in LF or CRLF, without their ends; empty ones are left out. In
 * a quoted file a newline between the double quotes around a field is none (RFC
 * 4180); in a trimmed one, which is quoted, spaces may stand around a field's
 * quotes; in a commented one lines may have a comment from # on. Lines of
 * nothing but spaces or a comment, or of blanks where there may be comments,
 * are left out of the last two as well. */
extern const struct record_reader line_reader, quoted_line_reader,
    trimmed_line_reader, commented_line_reader;

/* TensorFlow's TFRecord: length, its checksum, bytes, their checksum, both
 * CRC-32C, rotated and with an offset (tensorflow/core/lib/io/record_writer.h).
 */
extern const struct record_reader tfrecord_reader;

/* Arrays in NumPy's .npz, compressed or not, those that are read all of as many
 * rows. A record has a row of each, for npz_row_read: floats are float32,
 * integers and booleans int64, texts and bytes bytes. Sizes of records are
 * multiples of 4. Memory is that of a row.
 */
extern const struct record_reader npz_reader;

/* The same of the tensors of a safetensors file: floats, integers and booleans,
 * whose first dimension is the samples. */
extern const struct record_reader safetensors_reader;

/* An array with fields in NumPy's .npy (a structured array): a record has the
 * fields of an element, in the same way. */
extern const struct record_reader npy_reader;

/* The cells of a record of these three. Zeroed at first. */
struct npz_row {
    struct record_cell *cells; /* the caller frees them */
    size_t room;               /* bytes: theirs, and of values behind them */
};

/* *CELLS [COUNT], those of the cut's names, are a view of ROW and of RECORD,
 * whose bytes are aligned to 4. Fails only for lack of memory. */
enum status npz_row_read(struct npz_row *row, uint32_t count,
                         const struct record *record,
                         const struct record_cell **cells,
                         struct failure *why) MUST_CHECK;

#endif
