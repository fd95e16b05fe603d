/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/data/record_parser.h"

#include "worker/data/example_format.h"
#include "worker/data/libsvm_format.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* One of the formats is open, or it is JOB_LIBSVM, or of arrays. */
struct record_parser {
    const struct record_schema *schema;
    struct csv_format *csv;
    struct example_format *example;
    struct libsvm_format libsvm;
    struct npz_row row;
    uint32_t *places;                 /* [columns]: among the format's cells */
    const struct record_cell **cells; /* [columns], of ALL */
    const struct record_cell *all;    /* the format's, of the record before */
    uint32_t num_columns;
    uint32_t label_place, weight_place; /* among cells that have names */
};

static enum status parser_no_memory(struct failure *why) {
    return status_fail(why, FAILURE_NO_MEMORY, "no memory to parse records");
}

const struct record_reader *record_schema_reader(
    const struct record_schema *schema) {
    static const struct record_reader *const readers[] = {
        [JOB_CSV] = &quoted_line_reader,
        [JOB_CRITEO] = &line_reader,
        [JOB_TFRECORD] = &tfrecord_reader,
        [JOB_LIBSVM] = &commented_line_reader,
        [JOB_NPZ] = &npz_reader,
        [JOB_SAFETENSORS] = &safetensors_reader,
        [JOB_NPY] = &npy_reader};
    _Static_assert(sizeof readers / sizeof *readers == JOB_DATA_FORMATS,
                   "each format has its reader");
    enum job_data_format format = schema->data->format;
    return format == JOB_CSV && schema->data->trim ? &trimmed_line_reader
                                                   : readers[format];
}

bool record_schema_has_names(const struct record_schema *schema) {
    return JOB_FORMATS_OF_VALUES >> schema->data->format & 1;
}

enum status record_schema_open_csv(const struct record_schema *schema,
                                   struct csv_format **out,
                                   struct failure *why) {
    const struct job_data *data = schema->data;
    struct csv_format_options options = {.criteo = data->format == JOB_CRITEO,
                                         .delimiter = schema->cut.delimiter,
                                         .trim = data->trim,
                                         .missing = schema->missing,
                                         .num_missing = schema->num_missing,
                                         .decimal_comma = data->decimal_comma,
                                         .names = schema->names,
                                         .num_names = schema->num_names,
                                         .label = data->label,
                                         .weight = data->weight,
                                         .unlabelled = schema->unlabelled};
    enum status status = csv_format_open(out, &options, why);
    if (status || !schema->header.bytes)
        return status;
    struct record header = schema->header; /* which is changed */
    header.bytes = malloc(header.size + 1);
    if (!header.bytes)
        return parser_no_memory(why);
    memcpy(header.bytes, schema->header.bytes, header.size);
    status = csv_format_take_header(*out, &header, why);
    free(header.bytes);
    return status;
}

/* The place of NAME among NAMES, of which it is one. */
static uint32_t place_among(const char *const *names, const char *name) {
    uint32_t place = 0;
    while (strcmp(names[place], name) != 0)
        place++;
    return place;
}

static void place_columns(struct record_parser *parser,
                          const char *const *names,
                          const char *const *columns) {
    for (uint32_t c = 0; c < parser->num_columns; c++)
        parser->places[c] = place_among(names, columns[c]);
}

static enum status open_named(struct record_parser *parser,
                              const char *const *columns, struct failure *why) {
    const struct record_schema *schema = parser->schema;
    const struct job_data *data = schema->data;
    place_columns(parser, schema->names, columns);
    if (!schema->unlabelled)
        parser->label_place = place_among(schema->names, data->label);
    if (!schema->unlabelled && data->weight)
        parser->weight_place = place_among(schema->names, data->weight);
    return schema->cut.names
               ? STATUS_OK
               : example_format_open(&parser->example, schema->names,
                                     schema->num_names, why);
}

static enum status open_fields(struct record_parser *parser,
                               const char *const *columns,
                               struct failure *why) {
    enum status status =
        record_schema_open_csv(parser->schema, &parser->csv, why);
    if (status)
        return status;
    uint32_t count;
    place_columns(parser, csv_format_columns(parser->csv, &count), columns);
    return STATUS_OK;
}

enum status record_parser_open(struct record_parser **out,
                               const struct record_schema *schema,
                               const char *const *columns, uint32_t count,
                               struct failure *why) {
    struct record_parser *parser = calloc(1, sizeof *parser);
    enum status status = STATUS_OK;
    *out = parser;
    if (!parser)
        return parser_no_memory(why);
    parser->schema = schema;
    parser->num_columns = count;
    parser->places = calloc(count + 1, sizeof *parser->places);
    parser->cells = calloc(count + 1, sizeof *parser->cells);
    if (!parser->places || !parser->cells)
        status = parser_no_memory(why);
    else if (record_schema_has_names(schema))
        status = open_named(parser, columns, why);
    else if (schema->data->format != JOB_LIBSVM)
        status = open_fields(parser, columns, why);
    if (status)
        record_parser_close(out);
    return status;
}

void record_parser_close(struct record_parser **where) {
    struct record_parser *parser = *where;
    if (!parser)
        return;
    csv_format_close(&parser->csv);
    example_format_close(&parser->example);
    libsvm_format_close(&parser->libsvm);
    free(parser->row.cells);
    free(parser->places);
    free(parser->cells);
    free(parser);
    *where = NULL;
}

/* The one number of CELL, which is the KEY ("label") NAME. */
static enum status example_number(const char *key, const char *name,
                                  const struct record_cell *cell, float *out,
                                  struct failure *why) {
    if (cell->count == 1 && cell->type == RECORD_FLOATS)
        *out = cell->floats[0];
    else if (cell->count == 1 && cell->type == RECORD_INTEGERS)
        *out = (float)cell->integers[0];
    else
        return status_fail(
            why, FAILURE_DATA_DAMAGED,
            "%s %s: found %u %s, expected one number", key, name, cell->count,
            cell->count && cell->type == RECORD_TEXTS ? "values of bytes"
                                                      : "values");
    if (!isfinite(*out))
        return status_fail(why, FAILURE_DATA_DAMAGED,
                           "%s %s: found %g, expected a finite number", key,
                           name, (double)*out);
    return STATUS_OK;
}

static enum status example_target(const struct record_parser *parser,
                                  const struct record_cell *cells,
                                  struct record_target *target,
                                  struct failure *why) {
    const struct job_data *data = parser->schema->data;
    enum status status = example_number(
        "label", data->label, &cells[parser->label_place], &target->label, why);
    return status || !data->weight
               ? status
               : example_number("weight", data->weight,
                                &cells[parser->weight_place], &target->weight,
                                why);
}

/* *CELLS has all columns of the format. */
static enum status parse(struct record_parser *parser,
                         const struct record *record,
                         struct record_target *target,
                         const struct record_cell **cells,
                         struct failure *why) {
    struct csv_format_row row;
    enum status status;
    bool labelled = !parser->schema->unlabelled;
    *target = (struct record_target){.weight = 1};
    if (parser->csv) {
        status = csv_format_read(parser->csv, record, &row, why);
        *cells = row.cells;
        *target =
            (struct record_target){.label = row.label, .weight = row.weight};
    } else if (parser->example || parser->schema->cut.names) {
        status = parser->schema->cut.names
                     ? npz_row_read(&parser->row, parser->schema->num_names,
                                    record, cells, why)
                     : example_format_read(parser->example, record, cells, why);
        if (!status && labelled)
            status = example_target(parser, *cells, target, why);
    } else {
        bool empty; /* never: the reader leaves such lines out */
        status = libsvm_format_read(&parser->libsvm, record, &empty, why);
        *cells = &parser->libsvm.pairs;
        target->label = labelled ? parser->libsvm.label : 0;
        target->has_group = parser->libsvm.has_group;
    }
    if (!status && target->weight < 0)
        status =
            status_fail(why, FAILURE_DATA_DAMAGED,
                        "weight %s: found %g, expected 0 or more",
                        parser->schema->data->weight, (double)target->weight);
    return status;
}

enum status record_parser_read(struct record_parser *parser,
                               const struct record *record,
                               struct record_target *target,
                               const struct record_cell *const **cells,
                               struct failure *why) {
    const struct record_cell *all = parser->all;
    enum status status = record->is_damaged
                             ? status_fail(why, FAILURE_DATA_DAMAGED,
                                           "its checksum differs (TFRecord)")
                             : parse(parser, record, target, &all, why);
    for (uint32_t c = 0; all != parser->all && c < parser->num_columns; c++)
        parser->cells[c] = &all[parser->places[c]];
    parser->all = all;
    *cells = parser->cells;
    return status;
}
