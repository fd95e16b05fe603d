/* SPDX-License-Identifier: Apache-2.0 */
/* Records of fields with a delimiter between them: CSV (RFC 4180), and Criteo's
 * click logs: a label, 13 integers I1 .. I13 and 26 categories C1 .. C26, with
 * tabs between them and nothing where a value is missing. */
#ifndef CAPSTAN_CSV_FORMAT_H
#define CAPSTAN_CSV_FORMAT_H

#include "core/base/status.h"
#include "worker/data/record.h"

#include <stdbool.h>
#include <stdint.h>

enum { CSV_FORMAT_MAX_COLUMNS = 4096 };

struct csv_format_options {
    bool criteo; /* the others are not used */
    char delimiter;
    bool trim; /* spaces around a field that has no quotes, and around quotes,
                  are no part of it */
    const char *const *names; /* [num_names]; NULL: the first record has them */
    uint32_t num_names;
    const char *const *missing; /* [num_missing] words that mean no value */
    uint32_t num_missing;
    bool decimal_comma; /* of label and weight; features have their own */
    const char *label;  /* a column's name */
    bool unlabelled;    /* the label is 0, the weight 1: they are not read; the
                           names may lack them, and if the names are given, none
                           of a weight, all records may lack the label, as the
                           first one tells */
    const char *weight; /* a column's name; NULL: all weigh 1 */
};

struct csv_format;

/* STATUS_CONFIG if the names have no label or weight, or one of them twice;
 * without names csv_format_take_header fails so. Copies OPTIONS' texts. */
enum status csv_format_open(struct csv_format **out,
                            const struct csv_format_options *options,
                            struct failure *why) MUST_CHECK;

/* Frees *FORMAT (may be NULL) and clears it. */
void csv_format_close(struct csv_format **format);

/* Takes the names from RECORD, the first of a file. A later file's must be the
 * same. */
enum status csv_format_take_header(struct csv_format *format,
                                   const struct record *record,
                                   struct failure *why) MUST_CHECK;

/* The columns' names, without label and weight: a view. */
const char *const *csv_format_columns(const struct csv_format *format,
                                      uint32_t *count);

struct csv_format_row {
    float label, weight;
    const struct record_cell *cells; /* [columns], each of one text or none */
};

/* Reads RECORD, whose bytes it changes: ROW is a view of it and of FORMAT until
 * the next call. FAILURE_DATA_DAMAGED; WHY has the column, what was found and
 * what is expected, without the file's name and line. */
enum status csv_format_read(struct csv_format *format,
                            const struct record *record,
                            struct csv_format_row *row,
                            struct failure *why) MUST_CHECK;

#endif
