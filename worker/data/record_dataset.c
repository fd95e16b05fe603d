/* SPDX-License-Identifier: Apache-2.0 */
/* A source takes records in order, one thread at a time, and copies their bytes
 * into the claim; the thread that has claimed them parses them. */
#include "worker/data/record_dataset.h"

#include "core/base/input_file.h"
#include "worker/data/example_format.h"
#include "worker/data/feature.h"
#include "worker/data/record_parser.h"
#include "worker/data/record_stream.h"

#include <errno.h>
#include <glob.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { SHOWN_BAD_LINES = 10, EXAMPLES_READ = 1000, MAX_SEEN = 256 };

struct record_dataset {
    struct dataset dataset;
    struct dataset_options options;
    const struct record_reader *reader;
    glob_t files;
    struct record_index **indices; /* of the files that were counted */
    struct record_schema schema;   /* owns its header's bytes */
    const char **names;            /* of SCHEMA, or of what its records have */
    json_t *columns;               /* owns NAMES' texts */
    const char **missing;          /* of SCHEMA */
    json_t *missing_words;         /* owns MISSING's texts */
    struct features *features;
    atomic_uint shown_bad_lines;
    atomic_bool shown_groups;
};

/* A record in a claim's memory; its bytes follow those of all. */
struct claimed {
    struct record record;
    const char *path;
    size_t begin;
};

struct batch_source {
    const struct record_dataset *dataset;
    struct batch_spec spec;
    uint32_t label_column;
    uint32_t twins[BATCH_MAX_COLUMNS]; /* the first with a column's features */
    struct record_stream *stream;
    struct csv_format *header; /* what the files' headers are compared with */
    struct record_window window;
    uint32_t buffer;  /* records of a window */
    bool loaded;      /* WINDOW is */
    uint32_t size;    /* of a batch */
    uint64_t counted; /* records of the dataset's share; 0: not known */

    /* A range: records NEXT to END - 1 of an epoch. */
    bool in_order;
    uint64_t next, end;

    /* A share: every STRIDE-th record from OFFSET on. */
    uint32_t offset, stride;
    bool drop_last;
    uint64_t share;         /* records of an epoch; 0: not counted */
    uint64_t epoch_batches; /* of the plan; 0: epochs follow each other */
    uint64_t epoch, record; /* the next one, if not counted */
};

static enum status record_no_memory(struct failure *why) {
    return status_fail(why, FAILURE_NO_MEMORY, "no memory to read records");
}

static enum status no_records(const struct record_dataset *dataset,
                              struct failure *why) {
    size_t files = dataset->files.gl_pathc;
    const char *first = dataset->files.gl_pathv[0];
    if (dataset->options.num_ranks > 1)
        return status_fail(
            why, FAILURE_DATA_TOO_SMALL,
            "found no record for trainer %u of %u in %zu file%s, %s "
            "first; expected one or more for each trainer",
            dataset->options.rank + 1, dataset->options.num_ranks, files,
            log_plural(files), first);
    return status_fail(why, FAILURE_DATA_TOO_SMALL,
                       files > 1 ? "%s and %zu more: found no record"
                                 : "%s: found no record",
                       first, files - 1);
}

static enum status find_files(glob_t *found, const struct job_files *files,
                              struct failure *why) {
    for (size_t i = 0; i < JOB_MAX_FILES && files->paths[i]; i++) {
        const char *path = files->paths[i];
        int flags = i ? GLOB_APPEND : 0;
        struct stat about;
        bool is_name = !stat(path, &about); /* with brackets, maybe */
        int problem = errno;
        int error =
            glob(path, is_name ? flags | GLOB_NOCHECK : flags, NULL, found);
        if (!is_name && strstr(path, "**")) /* glob() reads it as one `*` */
            return status_fail(why, FAILURE_DATA_UNREADABLE,
                               "%s: found **, which no pattern has here; write "
                               "a pattern for each depth of folders, such as "
                               "[\"*.csv\", \"*/*.csv\"]",
                               path);
        if (error == GLOB_NOMATCH && problem != ENOENT)
            return status_errno(why, FAILURE_DATA_UNREADABLE, problem, "%s",
                                path);
        if (error == GLOB_NOMATCH)
            return status_fail(why, FAILURE_DATA_UNREADABLE, "%s: no such file",
                               path);
        if (error)
            return status_fail(why, FAILURE_DATA_UNREADABLE,
                               "%s: its files cannot be listed", path);
    }
    for (size_t i = 0; i < found->gl_pathc; i++)
        for (size_t j = 0; j < i; j++)
            if (!strcmp(found->gl_pathv[i], found->gl_pathv[j]))
                return status_fail(why, FAILURE_DATA_MISMATCH,
                                   "%s: found twice, by two patterns",
                                   found->gl_pathv[i]);
    return STATUS_OK;
}

/* The first record of the first file. */
static enum status read_header(struct record_dataset *dataset,
                               struct failure *why) {
    const struct record_reader *reader = dataset->reader;
    const char *path = dataset->files.gl_pathv[0];
    struct record_file *file;
    struct record record = {0};
    enum status status = reader->open(&file, path, &dataset->schema.cut, why);
    if (!status)
        status = reader->next(file, &record, why);
    if (!status && !record.bytes)
        status = status_fail(why, FAILURE_DATA_DAMAGED,
                             "%s: found no line, expected a header", path);
    if (!status) {
        dataset->schema.header = record;
        dataset->schema.header.bytes = malloc(record.size + 1);
        if (dataset->schema.header.bytes)
            memcpy(dataset->schema.header.bytes, record.bytes, record.size);
        else
            status = record_no_memory(why);
    }
    reader->close(&file);
    return status;
}

/* The COUNT strings of TEXT, a JSON array, which *OWNER keeps. */
static enum status take_texts(const char *text, json_t **owner,
                              const char ***texts, uint32_t *count,
                              struct failure *why) {
    size_t i;
    const json_t *item;
    *owner = json_loads(text, 0, NULL);
    *count = (uint32_t)json_array_size(*owner);
    *texts = calloc(*count + 1, sizeof **texts);
    if (!*owner || !*texts)
        return record_no_memory(why);
    json_array_foreach(*owner, i, item)(*texts)[i] = json_string_value(item);
    return STATUS_OK;
}

/* What the job says of a table's fields, or the first file's header. */
static enum status describe_fields(struct record_dataset *dataset,
                                   struct failure *why) {
    const struct job_data *data = &dataset->options.job->data;
    struct record_schema *schema = &dataset->schema;
    enum status status = STATUS_OK;
    if (data->missing)
        status = take_texts(data->missing, &dataset->missing_words,
                            &dataset->missing, &schema->num_missing, why);
    schema->missing = dataset->missing;
    if (status || data->format == JOB_CRITEO)
        return status;
    if (data->header)
        return read_header(dataset, why);
    status = take_texts(data->columns, &dataset->columns, &dataset->names,
                        &schema->num_names, why);
    schema->names = dataset->names;
    return status;
}

/* Opens the features for fields with names. */
static enum status open_field_features(struct record_dataset *dataset,
                                       struct failure *why) {
    const struct job *job = dataset->options.job;
    struct csv_format *csv = NULL;
    uint32_t count;
    enum status status = describe_fields(dataset, why);
    if (status)
        return status;
    status = record_schema_open_csv(&dataset->schema, &csv, why);
    if (status) {
        status = status_context(why, "%s", dataset->files.gl_pathv[0]);
    } else {
        const char *const *columns = csv_format_columns(csv, &count);
        status = features_open(
            &dataset->features, job->features, columns, count,
            job->data.header ? dataset->files.gl_pathv[0] : NULL, why);
        if (!status)
            dataset->features->decimal_comma = job->data.decimal_comma;
    }
    csv_format_close(&csv);
    return status;
}

/* Of values by name those are read that the job names: files of arrays may have
 * others, which do not have to fit. */
static enum status name_values(struct record_dataset *dataset,
                               struct failure *why) {
    struct record_schema *schema = &dataset->schema;
    uint32_t count = dataset->dataset.num_columns;
    dataset->names = calloc(count + 2, sizeof *dataset->names);
    if (!dataset->names)
        return record_no_memory(why);
    memcpy(dataset->names, dataset->dataset.columns,
           count * sizeof *dataset->names);
    if (!schema->unlabelled)
        dataset->names[count++] = schema->data->label;
    if (!schema->unlabelled && schema->data->weight)
        dataset->names[count++] = schema->data->weight;
    schema->names = dataset->names;
    schema->num_names = count;
    if (dataset->reader->names)
        schema->cut =
            (struct record_cut){schema->cut.delimiter, dataset->names, count};
    return STATUS_OK;
}

static enum status open_features(struct record_dataset *dataset,
                                 struct failure *why) {
    const struct job *job = dataset->options.job;
    struct features **features = &dataset->features;
    enum job_data_format format = job->data.format;
    enum status status =
        record_schema_has_names(&dataset->schema)
            ? features_open(features, job->features, NULL, 0, NULL, why)
        : format == JOB_LIBSVM ? features_open_pairs(features, job->features,
                                                     RECORD_PARSER_PAIRS, why)
                               : open_field_features(dataset, why);
    if (status)
        return status;
    dataset->dataset.features = features_width(dataset->features);
    dataset->dataset.feature_set = dataset->features;
    dataset->dataset.columns =
        features_columns(dataset->features, &dataset->dataset.num_columns);
    return record_schema_has_names(&dataset->schema) ? name_values(dataset, why)
                                                     : STATUS_OK;
}

static enum status open_parser(const struct record_dataset *dataset,
                               struct record_parser **out,
                               struct failure *why) {
    return record_parser_open(out, &dataset->schema, dataset->dataset.columns,
                              dataset->dataset.num_columns, why);
}

/* Names file and line; TFRecord's records are numbered from 0. */
static enum status bad_record(const struct claimed *claimed,
                              const struct failure *wrong,
                              struct failure *why) {
    const struct record *record = &claimed->record;
    if (wrong->code != FAILURE_DATA_DAMAGED) {
        *why = *wrong;
        return status_context(why, "%s", claimed->path);
    }
    return record->line
               ? status_fail(why, FAILURE_BAD_RECORD, "%s:%" PRIu64 ": %s",
                             claimed->path, record->line, wrong->text)
               : status_fail(why, FAILURE_BAD_RECORD,
                             "%s: record %" PRIu64 ": %s", claimed->path,
                             record->number, wrong->text);
}

/* A bad line is left out if the job says so. */
static bool skips(struct record_dataset *dataset, const struct failure *why) {
    const struct dataset_options *options = &dataset->options;
    if (!options->job->data.skip_bad_lines || why->code != FAILURE_BAD_RECORD)
        return false;
    if (atomic_load(&dataset->shown_bad_lines) >= SHOWN_BAD_LINES)
        return true;
    unsigned shown = atomic_fetch_add(&dataset->shown_bad_lines, 1) + 1;
    if (shown <= SHOWN_BAD_LINES)
        log_warning(
            options->log, "bad_line_skipped", "%s: skipped%s", why->text,
            shown == SHOWN_BAD_LINES ? "; later ones are only counted" : "");
    return true;
}

/* Says once that the groups of a ranking have no effect. */
static void show_groups(struct record_dataset *dataset) {
    if (atomic_load(&dataset->shown_groups) ||
        atomic_exchange(&dataset->shown_groups, true))
        return;
    log_warning(dataset->options.log, "groups_left_out",
                "%s: found qid:N, the group of a record in a ranking: it is "
                "left out, no model here reads it",
                dataset->options.key);
}

/* Files of LIBSVM name two classes -1 and 1. */
static float named_class(const struct batch_source *source,
                         const struct batch_column *column, float label) {
    bool libsvm = source->dataset->schema.data->format == JOB_LIBSVM;
    bool two = column->type == BATCH_FLOATS
                   ? column->min == 0 && column->max == 1
                   : column->num_classes == 2;
    return libsvm && two && label == -1 ? 0 : label;
}

/* The first column of floats that has the features of column C. */
static uint32_t first_twin(const struct batch_spec *spec, uint32_t c) {
    const struct batch_column *column = &spec->columns[c];
    uint32_t t = 0;
    for (; t < c; t++) {
        const struct batch_column *twin = &spec->columns[t];
        if (twin->type == column->type &&
            twin->num_features == column->num_features &&
            !memcmp(&spec->features[twin->first_feature],
                    &spec->features[column->first_feature],
                    column->num_features * sizeof *spec->features))
            break;
    }
    return t;
}

/* Makes VALUES [COUNT], the numbers of CELLS, those of an image: one list, or a
 * cell for each. */
static enum status take_pixels(const struct record_dataset *dataset,
                               const struct record_cell *const *cells,
                               float *values, uint32_t count,
                               struct failure *why) {
    bool bytes = (*cells)->type != RECORD_FLOATS;
    float most = bytes ? 255 : 1;
    uint64_t found = 0;
    for (uint32_t c = 0; c < dataset->dataset.num_columns; c++)
        found += cells[c]->count;
    if (found != count)
        return status_fail(why, FAILURE_DATA_DAMAGED,
                           "found %" PRIu64 " values, expected %u pixels",
                           found, count);
    for (uint32_t i = 0; !dataset->options.unscaled && i < count; i++) {
        if (!(values[i] >= 0 && values[i] <= most) ||
            (bytes && values[i] != floorf(values[i])))
            return status_fail(
                why, FAILURE_DATA_DAMAGED,
                bytes ? "value %u: found %g, expected an integer from 0 to "
                        "255, a pixel: only arrays of floats have them "
                        "divided by 255"
                      : "value %u: found %g, expected 0 to 1, as the pixels "
                        "that the model was trained with are divided by 255",
                i, (double)values[i]);
        values[i] /= most;
    }
    return STATUS_OK;
}

/* Writes the floats of column C as sample BATCH->count. */
static enum status put_floats(const struct batch_source *source, uint32_t c,
                              const struct record_cell *const *cells,
                              const struct batch *batch, struct failure *why) {
    const struct batch_spec *spec = &source->spec;
    const struct features *features = source->dataset->features;
    const struct batch_column *column = &spec->columns[c];
    size_t begin = (size_t)batch->count * column->width;
    float *values = (float *)batch->columns[c] + begin;
    if (source->twins[c] != c) {
        memcpy(values, (float *)batch->columns[source->twins[c]] + begin,
               column->width * sizeof *values);
        return STATUS_OK;
    }
    if (source->dataset->options.pixels) {
        enum status status = features_read(features, cells, values, why);
        return status ? status
                      : take_pixels(source->dataset, cells, values,
                                    column->width, why);
    }
    if (!column->num_features)
        return features_read(features, cells, values, why);
    return features_read_some(features, &spec->features[column->first_feature],
                              column->num_features, cells, values, why);
}

/* Writes what the features give of CELLS as sample BATCH->count. */
static enum status put_features(const struct batch_source *source,
                                const struct record_cell *const *cells,
                                struct batch *batch, struct failure *why) {
    const struct batch_spec *spec = &source->spec;
    const struct features *features = source->dataset->features;
    enum status status = STATUS_OK;
    for (uint32_t c = 0; !status && c < source->label_column; c++)
        if (spec->columns[c].type == BATCH_FLOATS)
            status = put_floats(source, c, cells, batch, why);
    for (uint32_t i = 0; !status && i < spec->num_ids; i++)
        status = features_ids(features, spec->id_features[i], cells,
                              &batch->ids[i], batch->count, why);
    return status;
}

/* Appends RECORD to BATCH; what a bad one has written is overwritten by the
 * next. */
static enum status put_record(const struct batch_source *source,
                              struct record_parser *parser,
                              const struct record *record, struct batch *batch,
                              struct failure *why) {
    uint32_t place = source->label_column;
    const struct batch_column *column = &source->spec.columns[place];
    const struct record_cell *const *cells;
    struct record_target target;
    uint32_t weights = batch_weights_column(&source->spec);
    enum status status =
        record_parser_read(parser, record, &target, &cells, why);
    if (!status)
        status = put_features(source, cells, batch, why);
    if (!status)
        status =
            batch_put_label(column, named_class(source, column, target.label),
                            batch->columns[place], batch->count, why);
    if (!status && weights)
        ((float *)batch->columns[weights])[batch->count] = target.weight;
    batch->count += !status;
    if (!status && target.has_group)
        show_groups((struct record_dataset *)source->dataset);
    return status;
}

static enum status record_batches_fill(struct batch_source *source,
                                       struct batch_claim *claim,
                                       struct batch *batch,
                                       struct failure *why) {
    struct record_dataset *dataset = (struct record_dataset *)source->dataset;
    const struct claimed *all = claim->memory;
    struct failure wrong = {0}, bad;
    enum status status = STATUS_OK;
    if (!claim->scratch)
        status =
            open_parser(dataset, (struct record_parser **)&claim->scratch, why);
    batch->count = 0;
    batch->bad_lines = 0;
    for (uint32_t i = 0; !status && i < claim->count; i++) {
        struct record record = all[i].record;
        record.bytes = (char *)claim->memory + all[i].begin;
        if (!put_record(source, claim->scratch, &record, batch, &wrong))
            continue;
        status = bad_record(&all[i], &wrong, &bad);
        if (skips(dataset, &bad)) {
            status = STATUS_OK;
            batch->bad_lines++;
        } else if (why) {
            *why = bad;
        }
    }
    return status;
}

/* Names the file whose size is another, if there is one. */
static enum status data_changed(const struct batch_source *source,
                                const char *found, struct failure *why) {
    const struct record_dataset *dataset = source->dataset;
    enum status status = STATUS_OK;
    for (size_t f = 0; !status && f < dataset->files.gl_pathc; f++)
        if (dataset->indices && dataset->indices[f])
            status = record_index_check(dataset->indices[f],
                                        dataset->files.gl_pathv[f], why);
    if (!status)
        status = status_fail(why, FAILURE_DATA_MISMATCH,
                             "found %s records than when they were counted: "
                             "has a file changed?",
                             found);
    return status_context(why, "%s", dataset->options.key);
}

/* Moves to record INDEX of EPOCH's order and views it; no bytes: the epoch has
 * fewer. */
static enum status move_to_record(struct batch_source *source, uint64_t epoch,
                                  uint64_t index, struct record *record,
                                  const char **path, struct failure *why) {
    uint64_t number = index / source->buffer;
    uint32_t place = (uint32_t)(index % source->buffer);
    struct record_window *window = &source->window;
    bool next = source->loaded ? window->epoch == epoch && window->count &&
                                     number == window->number + 1
                               : !epoch && !number;
    enum status status = STATUS_OK;
    *record = (struct record){0};
    if (!source->loaded || window->epoch != epoch || window->number != number) {
        if (!next)
            status = record_stream_seek(source->stream, epoch, number, why);
        if (!status)
            status = record_stream_next(source->stream, window, why);
        source->loaded = !status;
        uint64_t last = number * source->buffer + window->count;
        if (!status && source->counted && last > source->counted)
            return data_changed(source, "more", why);
    }
    if (!status && place < window->count)
        *record = record_window_get(window, place, path);
    return status;
}

/* Copies RECORD into CLAIM, which has USED bytes. */
static enum status add_record(struct batch_claim *claim,
                              const struct record *record, const char *path,
                              size_t *used, struct failure *why) {
    if (*used + record->size > claim->bytes) {
        enum status status =
            batch_claim_reserve(claim, (*used + record->size) * 3 / 2, why);
        if (status)
            return status;
    }
    struct claimed *all = claim->memory;
    all[claim->count++] = (struct claimed){*record, path, *used};
    memcpy((char *)claim->memory + *used, record->bytes, record->size);
    *used += record->size;
    return STATUS_OK;
}

/* COUNT records of EPOCH from number FIRST of the order on, each STRIDE-th. */
static enum status claim_records(struct batch_source *source,
                                 struct batch_claim *claim, uint64_t epoch,
                                 uint64_t first, uint64_t count, size_t *used,
                                 struct failure *why) {
    enum status status = STATUS_OK;
    for (uint64_t i = 0; !status && i < count; i++) {
        struct record record;
        const char *path;
        status = move_to_record(source, epoch, first + i * source->stride,
                                &record, &path, why);
        if (!status && !record.bytes)
            status = data_changed(source, "fewer", why);
        if (!status)
            status = add_record(claim, &record, path, used, why);
    }
    return status;
}

/* Where epochs are not counted they follow each other within a batch. */
static enum status claim_uncounted(struct batch_source *source,
                                   struct batch_claim *claim, size_t *used,
                                   struct failure *why) {
    enum status status = STATUS_OK;
    while (!status && claim->count < source->size) {
        struct record record;
        const char *path;
        status = move_to_record(source, source->epoch, source->record, &record,
                                &path, why);
        if (status)
            break;
        if (!record.bytes && source->record == source->offset)
            status = no_records(source->dataset, why);
        if (status)
            return status_context(why, "%s", source->dataset->options.key);
        if (record.bytes) {
            status = add_record(claim, &record, path, used, why);
            source->record += source->stride;
        } else {
            source->epoch++;
            source->record = source->offset;
        }
    }
    return status;
}

/* Samples of batch NUMBER of an epoch of SHARE records. */
static uint64_t batch_samples(const struct batch_source *source,
                              uint64_t number) {
    uint64_t first = number * source->size;
    uint64_t left = source->share > first ? source->share - first : 0;
    if (left < source->size && source->drop_last)
        left = 0;
    return left < source->size ? left : source->size;
}

static uint32_t record_batches_size(struct batch_source *source,
                                    uint64_t number) {
    if (!source->share)
        return source->size;
    return (uint32_t)batch_samples(source, number % source->epoch_batches);
}

static enum status record_batches_claim(struct batch_source *source,
                                        struct batch_claim *claim,
                                        struct failure *why) {
    size_t used = source->size * sizeof(struct claimed);
    enum status status = batch_claim_reserve(claim, used, why);
    claim->count = 0;
    if (status)
        return status;
    if (source->in_order) {
        uint64_t left = source->end - source->next;
        left = left < source->size ? left : source->size;
        status =
            claim_records(source, claim, 0, source->next, left, &used, why);
        source->next += left;
        return status;
    }
    if (!source->share)
        return claim_uncounted(source, claim, &used, why);
    uint64_t number = claim->number % source->epoch_batches;
    return claim_records(source, claim, claim->number / source->epoch_batches,
                         source->offset +
                             number * source->size * source->stride,
                         batch_samples(source, number), &used, why);
}

static void record_batches_forget(struct batch_claim *claim) {
    record_parser_close((struct record_parser **)&claim->scratch);
}

static void record_batches_close(struct batch_source **where) {
    struct batch_source *source = *where;
    if (!source)
        return;
    record_stream_close(&source->stream);
    csv_format_close(&source->header);
    record_window_free(&source->window);
    free(source);
    *where = NULL;
}

static enum status compare_header_line(void *context,
                                       const struct record *record,
                                       struct failure *why) {
    return csv_format_take_header(context, record, why);
}

/* In windows of the job, shuffled as it says, or in order BUFFER records at a
 * time. */
static enum status record_batches_open(struct batch_source **out,
                                       const struct dataset *of,
                                       const struct batch_spec *spec,
                                       uint32_t buffer, struct failure *why) {
    const struct record_dataset *dataset = (const struct record_dataset *)of;
    const struct job *job = dataset->options.job;
    struct batch_source *source = calloc(1, sizeof *source);
    *out = source;
    if (!source)
        return record_no_memory(why);
    source->dataset = dataset;
    source->spec = *spec;
    source->label_column = batch_label_column(spec);
    for (uint32_t c = 0; c < spec->num_columns; c++)
        source->twins[c] = first_twin(spec, c);
    source->in_order = buffer > 0;
    source->buffer = buffer ? buffer : job->data.shuffle_buffer;
    source->stride = 1;
    source->counted = of->count;
    enum status status = STATUS_OK;
    if (dataset->schema.header.bytes)
        status = record_schema_open_csv(&dataset->schema, &source->header, why);
    struct record_stream_options options = {
        .paths = (const char *const *)dataset->files.gl_pathv,
        .num_paths = (uint32_t)dataset->files.gl_pathc,
        .reader = dataset->reader,
        .cut = dataset->schema.cut,
        .rank = dataset->options.rank,
        .num_ranks = dataset->options.num_ranks,
        .buffer = source->buffer,
        .shuffle = job->data.shuffle && !source->in_order,
        .seed = job->seed,
        .header = dataset->schema.header.bytes ? compare_header_line : NULL,
        .context = source->header,
        .is_cancelled = dataset->options.is_cancelled,
        .cancel_context = dataset->options.cancel_context,
        .indices = dataset->indices,
        .may_change = !of->count,
        .log = dataset->options.log};
    if (!status)
        status = record_stream_open(&source->stream, &options, why);
    if (status)
        record_batches_close(out);
    return status;
}

/* Counts the share if a run goes on where its place is not known. */
static enum status find_place(struct batch_source *source, uint64_t first,
                              struct failure *why) {
    uint64_t all, before = first * source->size;
    enum status status = record_stream_count(source->stream, &all, why);
    if (status)
        return status;
    uint64_t share = all > source->offset
                         ? (all - source->offset - 1) / source->stride + 1
                         : 0;
    if (!share)
        return STATUS_OK; /* the first claim fails */
    source->epoch = before / share;
    source->record = source->offset + before % share * source->stride;
    return STATUS_OK;
}

static enum status record_share(struct batch_source **out,
                                const struct dataset *dataset,
                                const struct batch_spec *spec,
                                const struct sampler_options *options,
                                uint64_t first, struct failure *why) {
    enum status status = record_batches_open(out, dataset, spec, 0, why);
    if (status)
        return status;
    struct batch_source *source = *out;
    source->size = options->micro_batch;
    source->offset = options->device;
    source->stride = options->num_devices ? options->num_devices : 1;
    source->drop_last = options->drop_last;
    source->share = dataset->count / source->stride;
    source->epoch_batches = options->epoch_batches;
    source->record = source->offset;
    uint64_t own = source->share / source->size;
    if (!source->drop_last && source->share % source->size)
        own++;
    if (!source->epoch_batches)
        source->epoch_batches = own;
    if (dataset->count && !own)
        status = status_fail(why, FAILURE_DATA_TOO_SMALL,
                             "%s: this trainer's share of the records, %" PRIu64
                             ", gives no batch of %u",
                             source->dataset->options.key, dataset->count,
                             source->size);
    else if (!dataset->count && first)
        status = find_place(source, first, why);
    if (status)
        record_batches_close(out);
    return status;
}

static enum status record_range(struct batch_source **out,
                                const struct dataset *dataset,
                                const struct batch_spec *spec, uint64_t first,
                                uint64_t end, uint32_t size,
                                struct failure *why) {
    enum status status = record_batches_open(out, dataset, spec, size, why);
    if (status)
        return status;
    (*out)->size = size;
    (*out)->next = first;
    (*out)->end = end;
    return STATUS_OK;
}

static void record_dataset_free(struct dataset **out) {
    struct record_dataset *dataset = (struct record_dataset *)*out;
    features_close(&dataset->features);
    json_decref(dataset->columns);
    json_decref(dataset->missing_words);
    free(dataset->names);
    free(dataset->missing);
    free(dataset->schema.header.bytes);
    for (size_t f = 0; dataset->indices && f < dataset->files.gl_pathc; f++)
        record_index_close(&dataset->indices[f]);
    free(dataset->indices);
    globfree(&dataset->files);
    free(dataset);
    *out = NULL;
}

static json_t *value_json(const struct record_cell *cell, uint32_t i) {
    char pair[64];
    if (cell->type == RECORD_INTEGERS)
        return json_integer(cell->integers[i]);
    if (cell->type == RECORD_FLOATS)
        return json_real((double)cell->floats[i]);
    if (cell->type == RECORD_TEXTS) {
        json_t *text = json_stringn(cell->texts[i].bytes, cell->texts[i].size);
        return text ? text : json_string("(no UTF-8)");
    }
    snprintf(pair, sizeof pair, "%" PRIu64 ":%.9g", (uint64_t)cell->integers[i],
             (double)cell->floats[i]);
    return json_string(pair);
}

/* What a record has for a column: nothing, one value, or several. */
static json_t *cell_json(const struct record_cell *cell) {
    if (cell->count == 1)
        return value_json(cell, 0);
    json_t *list = cell->count ? json_array() : json_null();
    for (uint32_t i = 0; i < cell->count; i++)
        json_array_append_new(list, value_json(cell, i));
    return list;
}

/* *LABEL becomes what batches of SOURCE would have of it. */
static enum status see_label(const struct batch_source *source, float *label,
                             struct failure *why) {
    uint32_t place = source->label_column, class;
    const struct batch_column *column = &source->spec.columns[place];
    if (!source->spec.num_columns)
        return STATUS_OK;
    *label = named_class(source, column, *label);
    return batch_put_label(
        column, *label, column->type == BATCH_FLOATS ? (void *)label : &class,
        0, why);
}

/* RECORD's columns, features and label, or what is wrong. */
static void describe_record(const struct batch_source *source,
                            struct record_parser *parser, struct record *record,
                            json_t *object) {
    const struct record_dataset *dataset = source->dataset;
    struct failure wrong;
    const struct record_cell *const *cells;
    struct record_target target;
    json_t *columns = json_object(), *features = json_object();
    enum status status =
        record_parser_read(parser, record, &target, &cells, &wrong);
    for (uint32_t c = 0; !status && c < dataset->dataset.num_columns; c++)
        json_object_set_new(columns, dataset->dataset.columns[c],
                            cell_json(cells[c]));
    if (!status) {
        json_object_set(object, "columns", columns);
        status = features_describe(dataset->features, cells, features, &wrong);
    }
    if (!status && target.has_group)
        show_groups((struct record_dataset *)dataset);
    if (!status)
        status = see_label(source, &target.label, &wrong);
    if (!status) {
        json_object_set(object, "features", features);
        json_object_set_new(object, "label", json_real((double)target.label));
        if (dataset->schema.data->weight)
            json_object_set_new(object, "weight",
                                json_real((double)target.weight));
    } else {
        json_object_set_new(object, "error", json_string(wrong.text));
    }
    json_decref(columns);
    json_decref(features);
}

static enum status record_peek(const struct dataset *of,
                               const struct batch_spec *spec, uint64_t rows,
                               json_t *list, struct failure *why) {
    const struct record_dataset *dataset = (const struct record_dataset *)of;
    static const struct batch_spec none;
    struct batch_source *source;
    struct record_parser *parser = NULL;
    enum status status =
        record_batches_open(&source, of, spec ? spec : &none, 1, why);
    if (!status)
        status = open_parser(dataset, &parser, why);
    for (uint64_t row = 0; !status && row < rows; row++) {
        struct record record;
        const char *path;
        char place[64];
        status = move_to_record(source, 0, row, &record, &path, why);
        if (status || !record.bytes)
            break;
        snprintf(
            place, sizeof place, record.line ? ":%llu" : ": record %llu",
            (unsigned long long)(record.line ? record.line : record.number));
        json_t *object = json_pack("{s:s+}", "at", path, place);
        if (!object) /* no UTF-8 */
            object = json_pack("{s:s+}", "at", dataset->options.key, place);
        describe_record(source, parser, &record, object);
        json_array_append_new(list, object);
    }
    if (!status && !json_array_size(list))
        status = no_records(dataset, why);
    record_parser_close(&parser);
    record_batches_close(&source);
    return status;
}

/* Names or words that the first records have. */
struct seen_names {
    char **names; /* [MAX_SEEN], of which COUNT are there */
    uint32_t count;
};

static bool name_is_seen(const struct seen_names *seen, const char *name,
                         size_t size) {
    for (uint32_t i = 0; i < seen->count; i++)
        if (strlen(seen->names[i]) == size &&
            !memcmp(seen->names[i], name, size))
            return true;
    return false;
}

static void see_name(void *context, const struct record_text *name) {
    struct seen_names *seen = context;
    if (seen->count == MAX_SEEN || name_is_seen(seen, name->bytes, name->size))
        return;
    seen->names[seen->count] = strndup(name->bytes, name->size);
    seen->count += seen->names[seen->count] != NULL;
}

/* Records without the column NAME of KEY are bad ones: with none the job's key
 * is wrong. */
static enum status check_target(const struct record_dataset *dataset,
                                const struct seen_names *seen, const char *key,
                                const char *name, struct failure *why) {
    char list[512];
    if (!name || dataset->options.unlabelled ||
        name_is_seen(seen, name, strlen(name)))
        return STATUS_OK;
    status_list_names(list, sizeof list, seen->names, seen->count);
    return status_fail(why, FAILURE_DATA_MISMATCH,
                       "%s: %s: found \"%s\", which none of the first "
                       "%d records has; they have %s",
                       dataset->files.gl_pathv[0], key, name, EXAMPLES_READ,
                       list);
}

static void report_absent(const struct record_dataset *dataset,
                          const struct seen_names *seen, const char *name) {
    const struct dataset_options *options = &dataset->options;
    char list[512];
    status_list_names(list, sizeof list, seen->names, seen->count);
    log_warning(options->log, "feature_not_found",
                "%s: none of the first %d records of %s has %s; they have %s",
                options->key, EXAMPLES_READ, dataset->files.gl_pathv[0], name,
                list);
}

/* Checks the names that the first Examples have: one may lack any feature, so a
 * wrong name would go unnoticed, and a wrong label's would name whichever
 * record is read first. */
static enum status check_example_names(const struct record_dataset *dataset,
                                       const struct seen_names *seen,
                                       struct failure *why) {
    const struct job_data *data = dataset->schema.data;
    if (!seen->count || seen->count == MAX_SEEN) /* there may be others */
        return STATUS_OK;
    enum status status =
        check_target(dataset, seen, "data.label", data->label, why);
    if (!status)
        status = check_target(dataset, seen, "data.weight", data->weight, why);
    for (uint32_t c = 0; !status && c < dataset->dataset.num_columns; c++)
        if (!name_is_seen(seen, dataset->dataset.columns[c],
                          strlen(dataset->dataset.columns[c])))
            report_absent(dataset, seen, dataset->dataset.columns[c]);
    return status;
}

/* What the first records of the first file have. */
struct first_records {
    const struct record_dataset *dataset;
    struct record_parser *parser;
    struct seen_names names;  /* of Examples */
    struct seen_names *words; /* [features]: of a vocabulary's column, those
                                 that are none of the vocabulary's; NAMES are
                                 NULL where one was, and of other features */
};

static void free_names(struct seen_names *seen) {
    for (uint32_t i = 0; i < seen->count; i++)
        free(seen->names[i]);
    free(seen->names);
    *seen = (struct seen_names){0};
}

/* Is a word of CELL one of the VOCABULARY's? Adds those that are not. */
static bool see_words(const struct vocabulary *vocabulary,
                      const struct record_cell *cell, struct seen_names *seen) {
    uint32_t place;
    for (uint32_t i = 0; cell->type != RECORD_FLOATS && i < cell->count; i++) {
        struct feature_digits digits;
        struct record_text word = feature_text(cell, i, &digits);
        if (vocabulary_find(vocabulary, &word, &place))
            return true;
        see_name(seen, &word);
    }
    return false;
}

/* Looks at RECORD, which it may change. What is wrong with a record, who reads
 * it says; but a file of SequenceExamples has no other records. */
static enum status see_record(struct first_records *first,
                              const struct record *record,
                              struct failure *why) {
    const struct features *features = first->dataset->features;
    const struct record_cell *const *cells;
    struct record_target target;
    enum status status = STATUS_OK;
    if (first->dataset->schema.data->format == JOB_TFRECORD &&
        !record->is_damaged)
        status = example_format_names(record, see_name, &first->names, why);
    if (status && why->code == FAILURE_DATA_MISMATCH)
        return status;
    if (status ||
        record_parser_read(first->parser, record, &target, &cells, why))
        return STATUS_OK;
    for (uint32_t f = 0; f < features->count; f++) {
        const struct feature *feature = &features->items[f];
        if (first->words[f].names &&
            see_words(feature->vocabulary, cells[feature->column],
                      &first->words[f]))
            free_names(&first->words[f]);
    }
    return STATUS_OK;
}

static enum status see_first_records(struct first_records *first,
                                     struct failure *why) {
    const struct record_dataset *dataset = first->dataset;
    const struct record_reader *reader = dataset->reader;
    struct record_file *file;
    struct record record = {.bytes = ""};
    struct failure ignored; /* who reads the record names it */
    enum status status = reader->open(&file, dataset->files.gl_pathv[0],
                                      &dataset->schema.cut, why);
    for (int i = dataset->schema.header.bytes ? -1 : 0;
         !status && i < EXAMPLES_READ; i++) {
        if (reader->next(file, &record, &ignored) || !record.bytes)
            break;
        if (i >= 0)
            status = see_record(first, &record, why);
        if (status)
            status_context(why, "%s", dataset->files.gl_pathv[0]);
    }
    reader->close(&file);
    return status;
}

/* A vocabulary none of whose words the records have is 0 for all of them. */
static void report_words(const struct first_records *first, uint32_t f) {
    const struct record_dataset *dataset = first->dataset;
    const struct feature *feature = &dataset->features->items[f];
    char list[512];
    status_list_names(list, sizeof list, first->words[f].names,
                      first->words[f].count);
    log_warning(dataset->options.log, "words_not_found",
                "%s: features.%s: none of the first %d records of %s has one "
                "of its words in column %s; they have %s",
                dataset->options.key, feature->name, EXAMPLES_READ,
                dataset->files.gl_pathv[0],
                dataset->features->columns[feature->column], list);
}

static bool allocate_words(struct first_records *first) {
    const struct features *features = first->dataset->features;
    bool complete = true;
    first->names.names = calloc(MAX_SEEN, sizeof *first->names.names);
    first->words = calloc(features->count + 1, sizeof *first->words);
    for (uint32_t f = 0; first->words && f < features->count; f++)
        if (features->items[f].type == FEATURE_VOCABULARY)
            complete &= (first->words[f].names = calloc(
                             MAX_SEEN, sizeof *first->words[f].names)) != NULL;
    return complete && first->names.names && first->words;
}

static enum status look_at_records(const struct record_dataset *dataset,
                                   struct failure *why) {
    struct first_records first = {.dataset = dataset};
    const struct features *features = dataset->features;
    enum status status =
        allocate_words(&first) ? STATUS_OK : record_no_memory(why);
    if (!status)
        status = open_parser(dataset, &first.parser, why);
    if (!status)
        status = see_first_records(&first, why);
    if (!status && record_schema_has_names(&dataset->schema))
        status = check_example_names(dataset, &first.names, why);
    for (uint32_t f = 0; first.words && f < features->count; f++) {
        if (!status && first.words[f].count)
            report_words(&first, f);
        free_names(&first.words[f]);
    }
    record_parser_close(&first.parser);
    free_names(&first.names);
    free(first.words);
    return status;
}

static bool has_vocabulary(const struct features *features) {
    uint32_t f = 0;
    while (f < features->count && features->items[f].type != FEATURE_VOCABULARY)
        f++;
    return f < features->count;
}

static enum status count_share(struct record_dataset *dataset,
                               struct failure *why) {
    struct batch_source *source;
    struct batch_spec none = {0};
    enum status status =
        record_batches_open(&source, &dataset->dataset, &none, 1, why);
    if (!status) {
        log_info(dataset->options.log, "counting_records",
                 "%s: counting the records of %zu file%s", dataset->options.key,
                 dataset->files.gl_pathc, log_plural(dataset->files.gl_pathc));
        status =
            record_stream_count(source->stream, &dataset->dataset.count, why);
    }
    record_batches_close(&source);
    if (!status && !dataset->dataset.count)
        status = no_records(dataset, why);
    return status;
}

static const struct batch_source_table record_batches = {
    .size = record_batches_size,
    .claim = record_batches_claim,
    .fill = record_batches_fill,
    .forget = record_batches_forget,
    .close = record_batches_close,
};

static const struct dataset_table record_dataset_table = {
    .batches = &record_batches,
    .share = record_share,
    .range = record_range,
    .peek = record_peek,
    .free = record_dataset_free,
};

enum status record_dataset_open(struct dataset **out,
                                const struct dataset_options *options,
                                struct failure *why) {
    struct record_dataset *dataset = calloc(1, sizeof *dataset);
    *out = NULL;
    if (!dataset)
        return record_no_memory(why);
    dataset->dataset.table = &record_dataset_table;
    dataset->options = *options;
    dataset->schema.data = &options->job->data;
    dataset->schema.unlabelled = options->unlabelled;
    dataset->schema.cut.delimiter =
        options->job->data.delimiter ? *options->job->data.delimiter : ',';
    dataset->reader = record_schema_reader(&dataset->schema);
    enum status status = find_files(&dataset->files, options->files, why);
    if (!status && !(dataset->indices = calloc(dataset->files.gl_pathc,
                                               sizeof *dataset->indices)))
        status = record_no_memory(why);
    if (!status)
        status = open_features(dataset, why);
    if (!status && (record_schema_has_names(&dataset->schema) ||
                    has_vocabulary(dataset->features)))
        status = look_at_records(dataset, why);
    if (!status && options->count)
        status = count_share(dataset, why);
    *out = &dataset->dataset;
    if (status)
        record_dataset_free(out);
    return status;
}

enum status record_dataset_check_files(const struct job_files *files,
                                       struct failure *why) {
    glob_t found = {0};
    enum status status = find_files(&found, files, why);
    if (!status)
        status = input_file_check(found.gl_pathv[0], "the file of records",
                                  FAILURE_DATA_UNREADABLE, why);
    globfree(&found);
    return status;
}
