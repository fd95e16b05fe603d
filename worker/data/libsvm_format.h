/* SPDX-License-Identifier: Apache-2.0 */
/* Records of LIBSVM's format: a label, then ID:VALUE pairs with blanks between
 * them; the rest of a line after # is a comment. Ids have 64 bits. */
#ifndef CAPSTAN_LIBSVM_FORMAT_H
#define CAPSTAN_LIBSVM_FORMAT_H

#include "core/base/status.h"
#include "worker/data/record.h"

struct libsvm_format {
    float label;
    bool has_group;           /* a qid:N, as rankings have, which is left out */
    struct record_cell pairs; /* RECORD_PAIRS, in the order of the line */
    int64_t *ids;             /* [capacity], own */
    float *values;            /* [capacity], own */
    uint32_t capacity;
};

/* Frees what FORMAT (all zero, or used) owns. */
void libsvm_format_close(struct libsvm_format *format);

/* Fills FORMAT with RECORD's label and pairs, until the next call. *EMPTY: the
 * line has only a comment. FAILURE_DATA_DAMAGED; WHY has the byte of the line,
 * what was found and what is expected, without the file's name and line. */
enum status libsvm_format_read(struct libsvm_format *format,
                               const struct record *record, bool *empty,
                               struct failure *why) MUST_CHECK;

#endif
