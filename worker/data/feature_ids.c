/* SPDX-License-Identifier: Apache-2.0 */
/* Ids of a record, and what its features say. Ids of a cross's parts are
 * appended as if they were its own, then its combinations behind them, which
 * move to the front: no other memory is needed. */
#include "worker/data/feature.h"
#include "worker/data/number_text.h"

#include <endian.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

enum { SHORT_WORD = 16 /* bytes */ };

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

static enum status reserve_ids(struct appending *to, uint64_t more) {
    return batch_ids_reserve(to->ids, to->used + more, to->weighted, to->why);
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
