/* SPDX-License-Identifier: Apache-2.0 */
#define XXH_INLINE_ALL
#include "worker/data/features.h"

#include "core/base/log.h"
#include "worker/data/feature.h"
#include "worker/data/number_text.h"

#include <endian.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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
static enum status feature_bucket(const struct features *features,
                                  const struct feature *feature,
                                  const struct record_cell *cell,
                                  uint32_t *bucket, struct failure *why) {
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

/* FAILURE_DATA_DAMAGED if CELL has floats, which are no words. */
static enum status feature_check_words(const struct features *features,
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

/* Ids of a record, and what its features say. Ids of a cross's parts are
 * appended as if they were its own, then its combinations behind them, which
 * move to the front: no other memory is needed. */

enum { SHORT_WORD = 16 /* bytes */, FIRST_ROOM = 1024 /* ids */ };

/* Ids that are being appended: `used` of them are there. */
struct appending {
    const struct features *features;
    const struct record_cell *const *cells;
    struct batch_ids *ids;
    uint32_t used;
    bool weighted;
    struct failure *why;
};

static enum status append_ids(struct appending *to,
                              const struct feature *feature);

/* Room for MORE ids, with weights if they have any. */
static enum status reserve_ids(const struct appending *to, uint64_t more) {
    struct batch_ids *ids = to->ids;
    uint64_t count = to->used + more;
    if (count <= ids->room)
        return STATUS_OK;
    size_t room = count < FIRST_ROOM ? FIRST_ROOM : count + count / 2;
    room = room < UINT32_MAX ? room : UINT32_MAX;
    uint64_t *larger = NULL;
    float *weights = NULL;
    if (count <= room)
        larger = realloc(ids->ids, room * sizeof *larger);
    if (larger)
        ids->ids = larger;
    if (larger && to->weighted)
        weights = realloc(ids->weights, room * sizeof *weights);
    if (weights)
        ids->weights = weights;
    if (!larger || (to->weighted && !weights))
        return status_fail(to->why, FAILURE_TOO_LITTLE_MEMORY,
                           "no memory for the %zu ids of a feature in a batch",
                           (size_t)count);
    ids->room = (uint32_t)room;
    return STATUS_OK;
}

/* ID of value I of CELL. */
static void append_id(struct appending *to, uint64_t id,
                      const struct record_cell *cell, uint32_t i) {
    if (to->weighted)
        to->ids->weights[to->used] = cell->floats[i];
    to->ids->ids[to->used++] = id;
}

static enum status append_hashes(struct appending *to,
                                 const struct feature *feature,
                                 const struct record_cell *cell) {
    enum status status =
        feature_check_words(to->features, feature, cell, to->why);
    for (uint32_t i = 0; !status && i < cell->count; i++) {
        struct feature_digits digits;
        struct record_text text = feature_text(cell, i, &digits);
        if (text.size)
            append_id(
                to, XXH3_64bits_withSeed(text.bytes, text.size, feature->seed),
                cell, i);
    }
    return status;
}

static enum status append_places(struct appending *to,
                                 const struct feature *feature,
                                 const struct record_cell *cell) {
    enum status status =
        feature_check_words(to->features, feature, cell, to->why);
    for (uint32_t i = 0; !status && i < cell->count; i++) {
        struct feature_digits digits;
        struct record_text text = feature_text(cell, i, &digits);
        uint32_t place;
        if (vocabulary_find(feature->vocabulary, &text, &place))
            append_id(to, place, cell, i);
    }
    return status;
}

/* Integers without `size` are ids with all their bits: a hash may have the
 * sign. */
static enum status append_values(struct appending *to,
                                 const struct feature *feature,
                                 const struct record_cell *cell) {
    enum status status =
        feature_check_words(to->features, feature, cell, to->why);
    if (!status && cell->type == RECORD_PAIRS && cell->count &&
        !feature->size) {
        memcpy(to->ids->ids + to->used, cell->integers,
               cell->count * sizeof *cell->integers);
        if (to->weighted)
            memcpy(to->ids->weights + to->used, cell->floats,
                   cell->count * sizeof *cell->floats);
        to->used += cell->count;
        return STATUS_OK;
    }
    for (uint32_t i = 0; !status && i < cell->count; i++) {
        struct feature_digits digits;
        struct record_text text = {0};
        uint64_t id = 0;
        bool good = true;
        if (cell->type == RECORD_TEXTS) {
            text = cell->texts[i];
            if (!text.size)
                continue;
            good = number_text_unsigned(text.bytes, text.size, &id);
        } else {
            id = (uint64_t)cell->integers[i];
        }
        if (good && (!feature->size || id < feature->size)) {
            append_id(to, id, cell, i);
            continue;
        }
        text = feature_text(cell, i, &digits);
        status = status_fail(
            to->why, FAILURE_DATA_DAMAGED,
            "column %s: found \"%.*s\", expected an id from 0 to %" PRIu64,
            to->features->columns[feature->column],
            text.size < 80 ? (int)text.size : 80, text.bytes,
            feature->size - 1); /* 2^64 - 1 without a size */
    }
    return status;
}

static enum status append_bucket(struct appending *to,
                                 const struct feature *feature,
                                 const struct record_cell *cell) {
    uint32_t bucket;
    enum status status =
        feature_bucket(to->features, feature, cell, &bucket, to->why);
    if (status || bucket == feature->width)
        return status;
    status = reserve_ids(to, 1);
    if (!status)
        append_id(to, bucket, cell, 0);
    return status;
}

/* Appends those of all parts; BEGIN [num_parts + 1] is where each begins. *ALL
 * combinations, or any number over the limit. */
static enum status append_parts(struct appending *to,
                                const struct feature *feature, uint32_t *begin,
                                uint64_t *all) {
    enum status status = STATUS_OK;
    *all = 1;
    for (uint32_t p = 0; !status && p < feature->num_parts; p++) {
        begin[p] = to->used;
        status = append_ids(to, &to->features->items[feature->parts[p]]);
        begin[p + 1] = to->used;
        uint64_t count = begin[p + 1] - begin[p];
        if (!count || *all <= FEATURE_MAX_IDS)
            *all *= count;
    }
    return status;
}

/* Combination C of the parts' ids. */
static uint64_t hash_combination(const struct feature *feature,
                                 const uint64_t *ids, const uint32_t *begin,
                                 uint32_t c) {
    uint64_t parts[FEATURE_MAX_PARTS] = {0}; /* gcc 13 does not see it filled */
    uint32_t count = feature->num_parts;
    for (uint32_t p = count; p--;) {
        uint32_t choices = begin[p + 1] - begin[p];
        uint32_t choice = c ? c % choices : 0;
        c = c ? c / choices : 0;
        parts[p] = htole64(ids[begin[p] + choice]);
    }
    return XXH3_64bits_withSeed(parts, count * sizeof *parts, feature->seed);
}

static enum status append_combinations(struct appending *to,
                                       const struct feature *feature) {
    uint32_t begin[FEATURE_MAX_PARTS + 1];
    uint32_t first = to->used;
    uint64_t all;
    enum status status = append_parts(to, feature, begin, &all);
    if (!status && all > FEATURE_MAX_IDS)
        status = status_fail(to->why, FAILURE_DATA_DAMAGED,
                             "feature %s: found a record with more than %d "
                             "combinations of its parts' values",
                             feature->name, FEATURE_MAX_IDS);
    if (!status)
        status = reserve_ids(to, all);
    if (status)
        return status;
    uint64_t *ids = to->ids->ids;
    for (uint32_t c = 0; c < all; c++)
        ids[to->used + c] = hash_combination(feature, ids, begin, c);
    if (all)
        memmove(ids + first, ids + to->used, all * sizeof *ids);
    to->used = first + (uint32_t)all;
    return STATUS_OK;
}

/* Before any modulo. */
static enum status append_ids(struct appending *to,
                              const struct feature *feature) {
    if (feature->type == FEATURE_CROSSED)
        return append_combinations(to, feature);
    const struct record_cell *cell = to->cells[feature->column];
    if (feature->type == FEATURE_BUCKETIZED)
        return append_bucket(to, feature, cell);
    enum status status = reserve_ids(to, cell->count);
    if (status)
        return status;
    return feature->type == FEATURE_HASH_BUCKET
               ? append_hashes(to, feature, cell)
           : feature->type == FEATURE_IDENTITY
               ? append_values(to, feature, cell)
               : append_places(to, feature, cell);
}

/* ID modulo the size by its reciprocal, a floor, with which the quotient is at
 * most 1 too small; a division would take as long as the hash. */
static uint64_t modulo_size(const struct feature *feature, uint64_t id) {
    uint64_t quotient =
        (uint64_t)((unsigned __int128)id * feature->reciprocal >> 64);
    uint64_t rest = id - quotient * feature->size;
    return rest >= feature->size ? rest - feature->size : rest;
}

/* Appends the only value of a sample if it is a short word to hash, as most
 * are; false: it is something else, or there is no room. Flattened: of few
 * bytes, the hash is shorter than a call. */
__attribute__((flatten)) static bool append_word(
    const struct feature *feature, const struct record_cell *const *cells,
    struct batch_ids *ids, uint32_t s) {
    uint32_t used = ids->offsets[s];
    if (feature->type != FEATURE_HASH_BUCKET || used == ids->room)
        return false;
    const struct record_cell *cell = cells[feature->column];
    if (cell->type != RECORD_TEXTS || cell->count > 1)
        return false;
    if (cell->count && cell->texts->size > SHORT_WORD)
        return false;
    if (cell->count && cell->texts->size) {
        uint64_t id = XXH3_64bits_withSeed(cell->texts->bytes,
                                           cell->texts->size, feature->seed);
        ids->ids[used++] = feature->size ? modulo_size(feature, id) : id;
    }
    ids->offsets[s + 1] = used;
    return true;
}

/* Apart from features_ids, so that words need no stack. */
__attribute__((noinline)) static enum status append_any(
    const struct features *features, const struct feature *feature,
    const struct record_cell *const *cells, struct batch_ids *ids, uint32_t s,
    struct failure *why) {
    struct appending to = {.features = features,
                           .cells = cells,
                           .ids = ids,
                           .used = ids->offsets[s],
                           .weighted = feature->weighted,
                           .why = why};
    enum status status = append_ids(&to, feature);
    if (status)
        return status;
    if (feature->size)
        for (uint32_t i = ids->offsets[s]; i < to.used; i++)
            ids->ids[i] = modulo_size(feature, ids->ids[i]);
    ids->offsets[s + 1] = to.used;
    return STATUS_OK;
}

enum status features_ids(const struct features *features, uint32_t f,
                         const struct record_cell *const *cells,
                         struct batch_ids *ids, uint32_t s,
                         struct failure *why) {
    const struct feature *feature = &features->items[f];
    return append_word(feature, cells, ids, s)
               ? STATUS_OK
               : append_any(features, feature, cells, ids, s, why);
}

static json_t *describe_numbers(const struct feature *feature,
                                const float *values) {
    if (feature->type == FEATURE_NUMERIC && feature->width == 1)
        return json_real((double)*values);
    json_t *list = json_array();
    for (uint32_t i = 0; i < feature->width; i++)
        json_array_append_new(list, json_real((double)values[i]));
    return list;
}

static json_t *describe_ids(const struct batch_ids *ids) {
    json_t *list = json_array();
    for (uint32_t i = 0; i < ids->offsets[1]; i++) {
        char text[64];
        int used = snprintf(text, sizeof text, "%" PRIu64, ids->ids[i]);
        if (ids->weights)
            snprintf(text + used, sizeof text - (size_t)used, ":%.9g",
                     (double)ids->weights[i]);
        json_array_append_new(list, json_string(text));
    }
    return list;
}

static json_t *describe_embedding(const struct features *features, uint32_t f,
                                  const struct batch_ids *ids) {
    const struct feature *feature = &features->items[f];
    return json_pack("{s:s, s:i, s:i}", "of", features->items[feature->of].name,
                     "dim", (int)feature->width, "ids", (int)ids->offsets[1]);
}

/* *OUT is the numbers of feature F, or else its ids, or which rows it reads. */
static enum status describe_feature(const struct features *features, uint32_t f,
                                    const struct record_cell *const *cells,
                                    json_t **out, struct failure *why) {
    const struct feature *feature = &features->items[f];
    bool numbers = feature_gives(feature->type) & FEATURE_FLOATS;
    bool rows = feature->type == FEATURE_EMBEDDING;
    float *values = calloc(feature->width + 1, sizeof *values);
    uint32_t offsets[2] = {0};
    struct batch_ids ids = {.offsets = offsets};
    enum status status =
        !values   ? status_fail(why, FAILURE_NO_MEMORY,
                                "no memory for the values of %s", feature->name)
        : numbers ? features_read_some(features, &f, 1, cells, values, why)
                  : features_ids(features, rows ? feature->of : f, cells, &ids,
                                 0, why);
    if (!status)
        *out = numbers ? describe_numbers(feature, values)
               : rows  ? describe_embedding(features, f, &ids)
                       : describe_ids(&ids);
    free(values);
    free(ids.ids);
    free(ids.weights);
    return status;
}

enum status features_describe(const struct features *features,
                              const struct record_cell *const *cells,
                              json_t *object, struct failure *why) {
    enum status status = STATUS_OK;
    for (uint32_t f = 0; !status && f < features->count; f++) {
        const struct feature *feature = &features->items[f];
        json_t *value = NULL;
        status = describe_feature(features, f, cells, &value, why);
        if (value)
            json_object_set_new(object, feature->name, value);
    }
    return status;
}
