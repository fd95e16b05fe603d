/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/data/features.h"

#include "core/base/log.h"
#include "worker/data/feature.h"
#include "worker/data/number_text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

/* By float64, whose log takes a third of log1pf's time and is exact enough from
 * the bound on. */
static float log_of_count(float value) {
    if (value < 0x1p-20f)
        return log1pf(value > 0 ? value : 0);
    return (float)log(1 + (double)value);
}

/* log1p as for counts, of which some logs have negative ones. Most are small
 * integers. */
static inline float transformed(const struct features *features,
                                const struct feature *feature, float value) {
    if (!feature->log1p)
        return value;
    if (value >= 0 && value < FEATURES_LOGS && value == (float)(int)value)
        return features->logs[(int)value];
    return log_of_count(value);
}

static enum status open_source(struct features **out,
                               const struct features_source *source,
                               struct failure *why) {
    struct features *features = calloc(1, sizeof *features);
    struct diagnostics diagnostics = {.where = NULL};
    enum status status =
        features
            ? features_parse(features, source, &diagnostics, why)
            : status_fail(why, FAILURE_NO_MEMORY, "no memory for the features");
    if (!status)
        status = diagnostics_status(&diagnostics, why);
    for (int i = 0; !status && i < FEATURES_LOGS; i++)
        features->logs[i] = log_of_count((float)i);
    for (uint32_t i = 0; !status && i < features->num_items; i++) {
        struct feature *feature = &features->items[i];
        feature->absent = transformed(features, feature, feature->missing);
    }
    if (status)
        features_close(&features);
    *out = features;
    return status;
}

enum status features_open(struct features **out, const char *text,
                          const char *const *columns, uint32_t count,
                          const char *file, struct failure *why) {
    struct features_source source = {.text = text,
                                     .columns = columns,
                                     .num_columns = count,
                                     .file = file,
                                     .opens_files = true};
    return open_source(out, &source, why);
}

enum status features_open_pairs(struct features **out, const char *text,
                                const char *column, struct failure *why) {
    struct features_source source = {.text = text,
                                     .columns = &column,
                                     .num_columns = 1,
                                     .pairs = true,
                                     .opens_files = true};
    return open_source(out, &source, why);
}

void features_check(struct features **out, const char *text,
                    const char *const *columns, uint32_t count, bool pairs,
                    struct diagnostics *diagnostics) {
    struct features *features = calloc(1, sizeof *features);
    struct features_source source = {
        .text = text, .columns = columns, .num_columns = count, .pairs = pairs};
    unsigned before = diagnostics->count;
    if (!features || features_parse(features, &source, diagnostics, NULL))
        diagnostics_add(diagnostics, "features", "out of memory");
    if (diagnostics->count > before)
        features_close(&features);
    *out = features;
}

void features_close(struct features **where) {
    struct features *features = where ? *where : NULL;
    if (!features)
        return;
    for (uint32_t i = 0; i < features->num_items; i++) {
        free(features->items[i].name);
        free(features->items[i].boundaries);
        free(features->items[i].parts);
        vocabulary_close(&features->items[i].vocabulary);
    }
    for (uint32_t i = 0; i < features->num_columns; i++)
        free(features->columns[i]);
    free(features->items);
    free(features->columns);
    free(features);
    *where = NULL;
}

/* Those that a feature is made of count by what they are, not by place. */
static uint64_t digest_feature(const struct features *features,
                               const struct feature *feature) {
    bool reads =
        feature->type != FEATURE_CROSSED && feature->type != FEATURE_EMBEDDING;
    const char *column = reads ? features->columns[feature->column] : "";
    const uint64_t numbers[] = {
        feature->type,      feature->width,    feature->log1p,   feature->size,
        feature->num_parts, feature->combiner, feature->weighted};
    uint64_t seed = XXH3_64bits(feature->name, strlen(feature->name));
    seed = XXH3_64bits_withSeed(column, strlen(column), seed);
    seed = XXH3_64bits_withSeed(numbers, sizeof numbers, seed);
    seed =
        XXH3_64bits_withSeed(&feature->missing, sizeof feature->missing, seed);
    if (feature->boundaries)
        seed = XXH3_64bits_withSeed(
            feature->boundaries,
            (feature->width - 1) * sizeof *feature->boundaries, seed);
    for (uint32_t p = 0; p < feature->num_parts; p++) {
        uint64_t part =
            digest_feature(features, &features->items[feature->parts[p]]);
        seed = XXH3_64bits_withSeed(&part, sizeof part, seed);
    }
    if (feature->type == FEATURE_EMBEDDING)
        seed += digest_feature(features, &features->items[feature->of]);
    return feature->vocabulary ? vocabulary_digest(feature->vocabulary, seed)
                               : seed;
}

/* Of the feature F, or of the floats of all, at a place of a column. */
static uint64_t digest_place(const struct features *features, uint32_t f,
                             uint32_t column, uint32_t place) {
    const uint32_t at[] = {column, place};
    return XXH3_64bits_withSeed(at, sizeof at,
                                digest_feature(features, &features->items[f]));
}

/* Of the floats of column C, in their order. */
static uint64_t digest_column(const struct features *features,
                              const struct batch_spec *spec, uint32_t c) {
    const struct batch_column *column = &spec->columns[c];
    uint64_t digest = 0;
    uint32_t place = 0;
    for (uint32_t i = 0; i < column->num_features; i++)
        digest += digest_place(features,
                               spec->features[column->first_feature + i], c, i);
    for (uint32_t f = 0; !column->num_features && f < features->count; f++)
        if (features_info(features, f).gives & FEATURE_FLOATS)
            digest += digest_place(features, f, c, place++);
    return digest;
}

uint64_t features_digest(const struct features *features,
                         const struct batch_spec *spec) {
    uint64_t digest = 0;
    for (uint32_t f = 0; f < features->count; f++)
        digest += digest_feature(features, &features->items[f]);
    for (uint32_t c = 0; spec && c < batch_label_column(spec); c++)
        if (spec->columns[c].type == BATCH_FLOATS)
            digest += digest_column(features, spec, c);
    for (uint32_t l = 0; spec && l < spec->num_lookups; l++)
        digest +=
            digest_place(features, spec->id_features[spec->lookups[l].ids],
                         spec->lookups[l].column, spec->lookups[l].offset);
    return digest ? digest : 1;
}

uint32_t features_width(const struct features *features) {
    return features->width;
}

uint32_t features_count(const struct features *features) {
    return features->count;
}

/* The ids of what gives some. */
static uint64_t features_num_ids(const struct feature *feature) {
    bool counts = feature->type == FEATURE_VOCABULARY ||
                  feature->type == FEATURE_BUCKETIZED;
    return counts ? feature->width : feature->size;
}

struct feature_info features_info(const struct features *features, uint32_t f) {
    const struct feature *feature = &features->items[f];
    return (struct feature_info){.name = feature->name,
                                 .gives = feature_gives(feature->type),
                                 .width = feature->width,
                                 .weighted = feature->weighted,
                                 .of = feature->of,
                                 .combiner = feature->combiner,
                                 .init = feature->init,
                                 .admit = feature->admit,
                                 .expire = feature->expire,
                                 .max_rows = feature->max_rows,
                                 .num_ids = features_num_ids(feature)};
}

const char *const *features_columns(const struct features *features,
                                    uint32_t *count) {
    *count = features->num_columns;
    return (const char *const *)features->columns;
}

/* Value I of CELL. */
static inline enum status cell_number(const struct features *features,
                                      const struct feature *feature,
                                      const struct record_cell *cell,
                                      uint32_t i, float *out,
                                      struct failure *why) {
    const struct record_text *text = &cell->texts[i];
    if (cell->type == RECORD_FLOATS && !isfinite(cell->floats[i]))
        return status_fail(why, FAILURE_DATA_DAMAGED,
                           "column %s: found %g, expected a finite number",
                           features->columns[feature->column],
                           (double)cell->floats[i]);
    if (cell->type == RECORD_FLOATS)
        *out = cell->floats[i];
    else if (cell->type == RECORD_INTEGERS)
        *out = (float)cell->integers[i];
    else if ((features->decimal_comma ||
              !number_text_float(text->bytes, text->size, out)) &&
             !number_text_field(text->bytes, text->size,
                                features->decimal_comma, out))
        return status_fail(why, FAILURE_DATA_DAMAGED,
                           "column %s: found \"%.*s\", expected a number",
                           features->columns[feature->column],
                           text->size < 80 ? (int)text->size : 80, text->bytes);
    return STATUS_OK;
}

static inline enum status check_value_count(const struct features *features,
                                            const struct feature *feature,
                                            const struct record_cell *cell,
                                            uint32_t count,
                                            struct failure *why) {
    if (cell->count == count || !cell->count)
        return STATUS_OK;
    return status_fail(why, FAILURE_DATA_DAMAGED,
                       "column %s: found %u value%s, expected %u",
                       features->columns[feature->column], cell->count,
                       log_plural(cell->count), count);
}

static inline enum status numeric_values(const struct features *features,
                                         const struct feature *feature,
                                         const struct record_cell *cell,
                                         float *values, struct failure *why) {
    enum status status =
        check_value_count(features, feature, cell, feature->width, why);
    for (uint32_t i = 0; !status && i < feature->width; i++) {
        if (!cell->count) {
            values[i] = feature->absent;
            continue;
        }
        status = cell_number(features, feature, cell, i, &values[i], why);
        if (!status)
            values[i] = transformed(features, feature, values[i]);
    }
    return status;
}

/* As in TensorFlow, a boundary begins the next bucket. */
enum status feature_bucket(const struct features *features,
                           const struct feature *feature,
                           const struct record_cell *cell, uint32_t *bucket,
                           struct failure *why) {
    float value = feature->missing;
    enum status status = check_value_count(features, feature, cell, 1, why);
    if (!status && cell->count)
        status = cell_number(features, feature, cell, 0, &value, why);
    *bucket = isnan(value) ? feature->width : 0;
    while (*bucket < feature->width - 1 &&
           value >= feature->boundaries[*bucket])
        ++*bucket;
    return status;
}

struct record_text feature_text(const struct record_cell *cell, uint32_t i,
                                struct feature_digits *digits) {
    if (cell->type == RECORD_TEXTS)
        return cell->texts[i];
    bool negative = cell->type == RECORD_INTEGERS && cell->integers[i] < 0;
    uint64_t rest = (uint64_t)cell->integers[i];
    size_t at = sizeof digits->bytes;
    rest = negative ? -rest : rest;
    do
        digits->bytes[--at] = (char)('0' + rest % 10);
    while (rest /= 10);
    if (negative)
        digits->bytes[--at] = '-';
    return (struct record_text){digits->bytes + at, sizeof digits->bytes - at};
}

enum status feature_check_words(const struct features *features,
                                const struct feature *feature,
                                const struct record_cell *cell,
                                struct failure *why) {
    if (!cell->count || cell->type != RECORD_FLOATS)
        return STATUS_OK;
    return status_fail(why, FAILURE_DATA_DAMAGED,
                       "column %s: found floats, expected words or integers",
                       features->columns[feature->column]);
}

/* Counts each value's word; words that are not in the vocabulary are left
 * out. */
static enum status vocabulary_values(const struct features *features,
                                     const struct feature *feature,
                                     const struct record_cell *cell,
                                     float *values, struct failure *why) {
    enum status status = feature_check_words(features, feature, cell, why);
    for (uint32_t i = 0; !status && i < cell->count; i++) {
        struct feature_digits digits;
        struct record_text word = feature_text(cell, i, &digits);
        uint32_t place;
        if (vocabulary_find(feature->vocabulary, &word, &place))
            values[place] += 1;
    }
    return status;
}

static inline enum status feature_values(const struct features *features,
                                         const struct feature *feature,
                                         const struct record_cell *cell,
                                         float *values, struct failure *why) {
    uint32_t bucket;
    if (feature->type == FEATURE_NUMERIC)
        return numeric_values(features, feature, cell, values, why);
    memset(values, 0, feature->width * sizeof *values);
    if (feature->type == FEATURE_VOCABULARY)
        return vocabulary_values(features, feature, cell, values, why);
    enum status status = feature_bucket(features, feature, cell, &bucket, why);
    if (bucket < feature->width)
        values[bucket] = 1;
    return status;
}

enum status features_read(const struct features *features,
                          const struct record_cell *const *cells, float *values,
                          struct failure *why) {
    enum status status = STATUS_OK;
    for (uint32_t f = 0; !status && f < features->count; f++) {
        const struct feature *feature = &features->items[f];
        if (!(feature_gives(feature->type) & FEATURE_FLOATS))
            continue;
        status = feature_values(features, feature, cells[feature->column],
                                values, why);
        values += feature->width;
    }
    return status;
}

enum status features_read_some(const struct features *features,
                               const uint32_t *selected, uint32_t count,
                               const struct record_cell *const *cells,
                               float *values, struct failure *why) {
    enum status status = STATUS_OK;
    for (uint32_t i = 0; !status && i < count; i++) {
        const struct feature *feature = &features->items[selected[i]];
        status = feature_values(features, feature, cells[feature->column],
                                values, why);
        values += feature->width;
    }
    return status;
}
