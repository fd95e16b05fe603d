/* SPDX-License-Identifier: Apache-2.0 */
/* Parses the records of any format into a label and what they have for some
 * columns. */
#ifndef CAPSTAN_RECORD_PARSER_H
#define CAPSTAN_RECORD_PARSER_H

#include "core/base/status.h"
#include "proto/job/job.h"
#include "worker/data/csv_format.h"
#include "worker/data/record_reader.h"

#include <stdbool.h>

/* What records are, by data.format; all is borrowed. */
struct record_schema {
    const struct job_data *data;
    bool unlabelled; /* labels are 0, weights 1: they are not read, and may be
                        missing, but for the label in JOB_LIBSVM */
    const char *const *names; /* [num_names] JOB_CSV: those of data.columns, or
                                 NULL; of values by name: what is read */
    uint32_t num_names;
    const char *const *missing; /* JOB_CSV: [num_missing] those of
                                   data.missing */
    uint32_t num_missing;
    struct record_cut cut; /* with which its reader opens files */
    struct record header;  /* JOB_CSV: the first record with the names; else no
                              bytes */
};

/* What cuts files into records. */
const struct record_reader *record_schema_reader(
    const struct record_schema *schema);

/* Have records values by name, so that the columns are not known before? */
bool record_schema_has_names(const struct record_schema *schema);

/* The fields of JOB_CSV and JOB_CRITEO. Fails as csv_format_open. */
enum status record_schema_open_csv(const struct record_schema *schema,
                                   struct csv_format **out,
                                   struct failure *why) MUST_CHECK;

/* What a sample is to be, and how much it counts: 0 or more. */
struct record_target {
    float label, weight;
    bool has_group; /* JOB_LIBSVM: a qid, which has no effect */
};

/* The column of JOB_LIBSVM: ids with weights. */
#define RECORD_PARSER_PAIRS "x"

struct record_parser;

/* For COLUMNS [COUNT], which the records of SCHEMA have. Borrows SCHEMA. */
enum status record_parser_open(struct record_parser **out,
                               const struct record_schema *schema,
                               const char *const *columns, uint32_t count,
                               struct failure *why) MUST_CHECK;

/* Frees *PARSER (may be NULL) and clears it. */
void record_parser_close(struct record_parser **parser);

/* Parses RECORD, whose bytes it may change: *TARGET, and *CELLS, one for each
 * of the columns, a view of RECORD and PARSER until the next call.
 * FAILURE_DATA_DAMAGED; WHY has the place in the record, what was found and
 * what is expected. */
enum status record_parser_read(struct record_parser *parser,
                               const struct record *record,
                               struct record_target *target,
                               const struct record_cell *const **cells,
                               struct failure *why) MUST_CHECK;

#endif
