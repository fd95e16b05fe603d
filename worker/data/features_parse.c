/* SPDX-License-Identifier: Apache-2.0 */
/* Features from the job's object: first each for itself, then those that name
 * others, which may follow them. */
#include "core/tensor/layout.h"
#include "proto/job/job_value.h"
#include "worker/data/feature.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

unsigned feature_gives(enum feature_type type) {
    static const unsigned gives[FEATURE_TYPES] = {
        [FEATURE_NUMERIC] = FEATURE_FLOATS,
        [FEATURE_BUCKETIZED] = FEATURE_FLOATS | FEATURE_IDS,
        [FEATURE_VOCABULARY] = FEATURE_FLOATS | FEATURE_IDS,
        [FEATURE_HASH_BUCKET] = FEATURE_IDS,
        [FEATURE_IDENTITY] = FEATURE_IDS,
        [FEATURE_CROSSED] = FEATURE_IDS,
        [FEATURE_EMBEDDING] = FEATURE_ROWS,
    };
    return gives[type];
}

uint32_t features_find(const struct features *features, const char *name) {
    for (uint32_t f = 0; f < features->count; f++)
        if (!strcmp(features->items[f].name, name))
            return f;
    return UINT32_MAX;
}

enum { MAX_CROSS_DEPTH = 8 };

static const char *const type_names[] = {
    "numeric",  "bucketized", "vocabulary", "hash_bucket",
    "identity", "crossed",    "embedding"};

enum {
    NUMERIC = 1 << FEATURE_NUMERIC,
    BUCKETIZED = 1 << FEATURE_BUCKETIZED,
    VOCABULARY = 1 << FEATURE_VOCABULARY,
    IDS =
        1 << FEATURE_HASH_BUCKET | 1 << FEATURE_IDENTITY | 1 << FEATURE_CROSSED,
    ROWS = 1 << FEATURE_EMBEDDING,
    ALL = (1 << FEATURE_TYPES) - 1
};

#define LARGEST "3.4028234663852886e+38" /* a float32 */
#define FLOATS(least)                                                          \
    "{\"type\": [\"number\", \"null\"], \"minimum\": " least                   \
    ", \"maximum\": " LARGEST "}"

const struct feature_key feature_keys[] = {
    {"type", ALL,
     .meaning =
         "what the feature gives: numbers, ids, or rows of a table by ids"},
    {"of", ALL,
     "the column that it reads, in place of its own name; of crossed and embedding: the features",
     .schema = "{\"type\": [\"string\", \"array\", \"null\"]}"},
    {"transform", NUMERIC, "numeric: log1p gives log(1 + max(x, 0))",
     .schema = "{\"enum\": [\"log1p\", null]}"},
    {"shape", NUMERIC, "numeric: how many values a list has",
     .most = FEATURE_MAX_WIDTH},
    {"default_value", NUMERIC | BUCKETIZED,
     "numeric, bucketized: the number where there is none",
     .schema = FLOATS("-" LARGEST)},
    {"boundaries", BUCKETIZED, "bucketized: where buckets begin, ascending",
     .most = FEATURE_MAX_WIDTH - 1, .items = "{\"type\": \"number\"}"},
    {"file", VOCABULARY,
     "vocabulary: a file of words, one a line, from data.dir",
     .schema = "{\"type\": [\"string\", \"null\"], \"minLength\": 1}"},
    {"values", VOCABULARY, "vocabulary: the words", .most = INT32_MAX,
     .items = "{\"type\": \"string\", \"pattern\": \"^[^\\r\\n]+$\"}"},
    {"size", IDS, "the number of ids; without it they have 64 bits",
     .most = INT64_MAX},
    {"max_rows", IDS | ROWS, "more rows of its table, on all ps, end the run",
     .most = INT64_MAX},
    {"admit", IDS | ROWS,
     "pushes after which a row of its table begins to count",
     .most = LAYOUT_MAX_ADMIT, .inner = "count"},
    {"expire", IDS | ROWS,
     "updates without a push after which a row is removed", .most = INT64_MAX,
     .inner = "steps"},
    {"dim", ROWS, "embedding: floats of a row", .most = LAYOUT_MAX_DIM},
    {"combiner", ROWS, "embedding: how the rows of a sample's ids become one",
     .schema = "{\"enum\": [\"sum\", \"mean\", \"sqrtn\", null]}"},
    {"init", ROWS, .meaning = "embedding: initial rows"},
    {"init_range", ROWS, "embedding: initial rows are uniform within it",
     .schema = FLOATS("0.0")},
    {.name = NULL},
};

/* The key NAME, or the end. */
static const struct feature_key *find_feature_key(const char *name) {
    const struct feature_key *key = feature_keys;
    while (key->name && strcmp(key->name, name))
        key++;
    return key;
}

static bool feature_has_key(enum feature_type type, const char *name) {
    return find_feature_key(name)->types >> type & 1;
}

/* Where features are being read from JSON. */
struct reading {
    struct features *features;
    const struct features_source *source;
    struct diagnostics *diagnostics;
    enum status status; /* of no memory, or of a file */
    struct failure *why;
};

static void features_no_memory(struct reading *reading) {
    reading->status = status_fail(reading->why, FAILURE_NO_MEMORY,
                                  "no memory for the features");
}

static void features_report(struct reading *reading, const char *name,
                            const char *key, const json_t *value,
                            const char *allowed) {
    char path[256];
    snprintf(path, sizeof path, "features.%.100s%s%s", name, *key ? "." : "",
             key);
    if (value)
        diagnostics_value(reading->diagnostics, path, value, allowed);
    else
        diagnostics_add(reading->diagnostics, path, "missing; allowed: %s",
                        allowed);
}

/* The integer of SETTINGS at NAME, which may be a whole real; 0 if there is
 * none, or with a report if it is not allowed. */
static uint64_t count_at(struct reading *reading, const struct feature *feature,
                         const json_t *settings, const char *name) {
    const struct feature_key *key = find_feature_key(name);
    const json_t *value = json_object_get(settings, name), *whole = value;
    char path[64], allowed[64];
    snprintf(path, sizeof path, "%s%s%s", name, key->inner ? "." : "",
             key->inner ? key->inner : "");
    if (key->inner && json_object_size(whole) == 1)
        value = json_object_get(whole, key->inner);
    if (key->inner && (!value || value == whole)) {
        snprintf(allowed, sizeof allowed, "{\"%s\": N}", key->inner);
        if (whole)
            features_report(reading, feature->name, name, whole, allowed);
        return 0;
    }
    double number = json_number_value(value);
    if (number == floor(number) && number >= 1 && number <= (double)key->most)
        return json_is_integer(value) ? (uint64_t)json_integer_value(value)
                                      : (uint64_t)number;
    snprintf(allowed, sizeof allowed, "an integer from 1 to %" PRIu64,
             key->most);
    if (value)
        features_report(reading, feature->name, path, value, allowed);
    return 0;
}

/* The place of NAME among the columns that are read; false: there is none. */
static bool use_column(struct reading *reading, const char *name,
                       uint32_t *place) {
    const struct features_source *source = reading->source;
    struct features *features = reading->features;
    bool known = !source->columns;
    for (uint32_t i = 0; i < source->num_columns && !known; i++)
        known = !strcmp(source->columns[i], name);
    for (*place = 0; *place < features->num_columns; ++*place)
        if (!strcmp(features->columns[*place], name))
            return true;
    if (!known)
        return false;
    char **columns =
        realloc(features->columns, (*place + 1) * sizeof *features->columns);
    features->columns = columns ? columns : features->columns;
    char *copy = columns ? strdup(name) : NULL;
    if (!copy)
        features_no_memory(reading);
    else
        features->columns[features->num_columns++] = copy;
    return true;
}

/* Writes what is allowed to TEXT, behind BEFORE. */
static void list_columns(const struct reading *reading, const char *before,
                         char *text, size_t size) {
    const struct features_source *source = reading->source;
    size_t used = (size_t)snprintf(text, size, "%sa column%s%.200s%s", before,
                                   source->file ? " of " : "",
                                   source->file ? source->file : "",
                                   source->num_columns ? ": " : "'s name");
    if (source->num_columns)
        status_list_names(text + used, size - used,
                          (char *const *)source->columns, source->num_columns);
}

static void read_column(struct reading *reading, struct feature *feature,
                        const json_t *settings) {
    const json_t *of = json_object_get(settings, "of");
    const char *column = of ? json_string_value(of) : feature->name;
    char allowed[512];
    if (column && use_column(reading, column, &feature->column))
        return;
    list_columns(reading, "", allowed, sizeof allowed);
    json_t *found = json_string(feature->name);
    features_report(reading, feature->name, of ? "of" : "", of ? of : found,
                    allowed);
    json_decref(found);
}

static void read_missing(struct reading *reading, struct feature *feature,
                         const json_t *settings) {
    const json_t *missing = json_object_get(settings, "default_value");
    bool none = !missing && feature->type == FEATURE_BUCKETIZED;
    feature->missing = none ? NAN : (float)json_number_value(missing);
    if (missing && (!json_is_number(missing) || !isfinite(feature->missing)))
        features_report(reading, feature->name, "default_value", missing,
                        "a number");
}

static void read_numeric(struct reading *reading, struct feature *feature,
                         const json_t *settings) {
    const json_t *transform = json_object_get(settings, "transform");
    const char *word = json_string_value(transform);
    feature->log1p = word && !strcmp(word, "log1p");
    if (transform && !feature->log1p)
        features_report(reading, feature->name, "transform", transform,
                        "\"log1p\"");
    feature->width = 1;
    if (json_object_get(settings, "shape"))
        feature->width =
            (uint32_t)count_at(reading, feature, settings, "shape");
    read_missing(reading, feature, settings);
}

static void read_boundaries(struct reading *reading, struct feature *feature,
                            const json_t *settings) {
    const json_t *list = json_object_get(settings, "boundaries");
    size_t count = json_array_size(list), i;
    const json_t *item;
    bool ascend = count > 0 && count < FEATURE_MAX_WIDTH;
    feature->width = (uint32_t)count + 1;
    feature->boundaries = calloc(count + 1, sizeof *feature->boundaries);
    if (!feature->boundaries) {
        features_no_memory(reading);
        return;
    }
    json_array_foreach(list, i, item) {
        feature->boundaries[i] = (float)json_number_value(item);
        ascend = ascend && json_is_number(item) &&
                 (!i || feature->boundaries[i] > feature->boundaries[i - 1]);
    }
    if (!ascend)
        features_report(reading, feature->name, "boundaries", list,
                        "an array of numbers that ascend");
    read_missing(reading, feature, settings);
}

/* Reports a vocabulary without words, or with one twice. */
static void check_vocabulary(struct reading *reading,
                             const struct feature *feature, const char *key,
                             const json_t *value) {
    struct record_text twin;
    uint64_t lines[2];
    char allowed[512];
    bool file = !strcmp(key, "file");
    if (!feature->width)
        features_report(reading, feature->name, key, value,
                        file ? "a file with a word a line"
                             : "an array of strings, each of one line");
    if (!vocabulary_twin(feature->vocabulary, &twin, lines))
        return;
    if (file)
        snprintf(allowed, sizeof allowed,
                 "each word once; %.400s:%" PRIu64 " and line %" PRIu64
                 " have this one",
                 json_string_value(value), lines[1], lines[0]);
    else
        snprintf(allowed, sizeof allowed,
                 "each word once; word %" PRIu64 " and word %" PRIu64
                 " are this one",
                 lines[0], lines[1]);
    json_t *found = json_stringn(twin.bytes, twin.size);
    if (!found)
        found = json_string("(a word that is not UTF-8)");
    features_report(reading, feature->name, key, found, allowed);
    json_decref(found);
}

static void read_vocabulary(struct reading *reading, struct feature *feature,
                            const json_t *settings) {
    const json_t *file = json_object_get(settings, "file");
    const json_t *list = json_object_get(settings, "values");
    const char *path = json_string_value(file);
    if (!file == !list) {
        features_report(reading, feature->name, "values", list,
                        "it or \"file\": an array of strings, or a path");
        return;
    }
    if (path && !reading->source->opens_files)
        return;
    reading->status =
        vocabulary_open(&feature->vocabulary, path, list, reading->why);
    if (reading->status) {
        status_context(reading->why, "features.%s.file", feature->name);
        return;
    }
    feature->width = vocabulary_count(feature->vocabulary);
    check_vocabulary(reading, feature, file ? "file" : "values",
                     file ? file : list);
}

/* Of the table of its rows. */
static void read_table(struct reading *reading, struct feature *feature,
                       const json_t *settings) {
    feature->admit = (uint32_t)count_at(reading, feature, settings, "admit");
    feature->expire = count_at(reading, feature, settings, "expire");
    feature->max_rows = count_at(reading, feature, settings, "max_rows");
}

static void read_ids(struct reading *reading, struct feature *feature,
                     const json_t *settings) {
    feature->seed = XXH3_64bits(feature->name, strlen(feature->name));
    feature->size = count_at(reading, feature, settings, "size");
    feature->reciprocal = feature->size ? UINT64_MAX / feature->size : 0;
    feature->weighted =
        reading->source->pairs && feature->type != FEATURE_CROSSED;
    read_table(reading, feature, settings);
}

static void read_cross(struct reading *reading, struct feature *feature,
                       const json_t *settings) {
    read_ids(reading, feature, settings);
    if (!json_object_get(settings, "size"))
        features_report(reading, feature->name, "size", NULL,
                        "an integer, the number of ids");
}

/* What an embedding's rows begin with, by one of two keys or by its width. */
static void read_rows_init(struct reading *reading, struct feature *feature,
                           const json_t *settings) {
    const json_t *range = json_object_get(settings, "init_range");
    const json_t *value = json_object_get(settings, "init");
    struct job_init init;
    char allowed[512];
    feature->init.bound =
        range ? (float)json_number_value(range)
              : 1 / sqrtf(feature->width ? (float)feature->width : 1);
    if (range && (!json_is_number(range) || !(feature->init.bound >= 0) ||
                  !isfinite(feature->init.bound)))
        features_report(reading, feature->name, "init_range", range,
                        "a number from 0 on");
    job_init_allowed(false, allowed, sizeof allowed);
    if (value && range)
        features_report(reading, feature->name, "init_range", range,
                        "it or \"init\"");
    else if (value && job_init_read(&init, value, false))
        feature->init = initializer_of_job(&init, 1, 1);
    else if (value)
        features_report(reading, feature->name, "init", value, allowed);
}

static void read_embedding(struct reading *reading, struct feature *feature,
                           const json_t *settings) {
    static const char *const combiners[] = {
        [BATCH_SUM] = "sum", [BATCH_MEAN] = "mean", [BATCH_SQRTN] = "sqrtn"};
    const json_t *combiner = json_object_get(settings, "combiner");
    const char *word = combiner ? json_string_value(combiner) : "mean";
    int c = BATCH_SQRTN;
    feature->width = (uint32_t)count_at(reading, feature, settings, "dim");
    if (!json_object_get(settings, "dim"))
        features_report(reading, feature->name, "dim", NULL,
                        "an integer, the floats of a row");
    while (c > 0 && (!word || strcmp(word, combiners[c])))
        c--;
    if (!word || strcmp(word, combiners[c]))
        features_report(reading, feature->name, "combiner", combiner,
                        "\"mean\", \"sum\", \"sqrtn\"");
    feature->combiner = c;
    read_rows_init(reading, feature, settings);
    read_table(reading, feature, settings);
}

/* Its word in the job. */
static const char *feature_type_name(enum feature_type type) {
    return type_names[type];
}

static void check_settings(struct reading *reading, enum feature_type type,
                           const char *name, const json_t *settings) {
    const char *word;
    json_t *value;
    char path[256], list[128];
    size_t used = 0;
    for (const struct feature_key *key = feature_keys; key->name; key++)
        if (key->types >> type & 1)
            used += (size_t)snprintf(list + used, sizeof list - used, "%s%s",
                                     used ? ", " : "", key->name);
    json_object_foreach((json_t *)settings, word, value) {
        snprintf(path, sizeof path, "features.%.100s.%.100s", name, word);
        if (!feature_has_key(type, word))
            diagnostics_add(reading->diagnostics, path,
                            "unknown key; known of %s: %s", type_names[type],
                            list);
    }
}

/* All but the last two have a column. */
static void (*const read_type[FEATURE_TYPES])(struct reading *reading,
                                              struct feature *feature,
                                              const json_t *settings) = {
    [FEATURE_NUMERIC] = read_numeric,
    [FEATURE_BUCKETIZED] = read_boundaries,
    [FEATURE_VOCABULARY] = read_vocabulary,
    [FEATURE_HASH_BUCKET] = read_ids,
    [FEATURE_IDENTITY] = read_ids,
    [FEATURE_CROSSED] = read_cross,
    [FEATURE_EMBEDDING] = read_embedding,
};

static void features_read_one(struct reading *reading, struct feature *feature,
                              const json_t *settings) {
    const json_t *type = json_object_get(settings, "type");
    const char *word = json_string_value(type);
    bool pairs = reading->source->pairs;
    int t = 0;
    while (word && t < FEATURE_TYPES && strcmp(word, type_names[t]))
        t++;
    bool none = !word || t == FEATURE_TYPES;
    feature->type = none ? FEATURE_NUMERIC : (enum feature_type)t;
    if (none || (pairs && t < FEATURE_HASH_BUCKET)) {
        features_report(reading, feature->name, "type", type,
                        pairs ? "\"hash_bucket\", \"identity\", \"crossed\", "
                                "\"embedding\""
                              : "\"numeric\", \"bucketized\", \"vocabulary\", "
                                "\"hash_bucket\", \"identity\", \"crossed\", "
                                "\"embedding\"");
        return;
    }
    check_settings(reading, t, feature->name, settings);
    if (t < FEATURE_CROSSED)
        read_column(reading, feature, settings);
    read_type[t](reading, feature, settings);
}

/* The feature NAME that gives ids, or else a hash bucket of the column NAME;
 * UINT32_MAX: there is none. */
static uint32_t part_of(struct reading *reading, const char *name) {
    struct features *features = reading->features;
    uint32_t f = features_find(features, name);
    if (f != UINT32_MAX &&
        (feature_gives(features->items[f].type) & (FEATURE_IDS | FEATURE_ROWS)))
        return features->items[f].type == FEATURE_EMBEDDING ? UINT32_MAX : f;
    for (f = features->count; f < features->num_items; f++)
        if (!strcmp(features->items[f].name, name))
            return f;
    struct feature *feature = &features->items[f];
    if (!use_column(reading, name, &feature->column))
        return UINT32_MAX;
    feature->type = FEATURE_HASH_BUCKET;
    feature->seed = XXH3_64bits(name, strlen(name));
    feature->name = strdup(name);
    features->num_items++;
    if (!feature->name)
        features_no_memory(reading);
    return f;
}

static void find_parts(struct reading *reading, struct feature *feature,
                       const json_t *settings) {
    const json_t *of = json_object_get(settings, "of"), *item;
    size_t count = json_array_size(of), i;
    char allowed[512];
    if (count < 2 || count > FEATURE_MAX_PARTS) {
        features_report(reading, feature->name, "of", of,
                        "an array of 2 to 16 names");
        return;
    }
    feature->parts = calloc(count, sizeof *feature->parts);
    if (!feature->parts) {
        features_no_memory(reading);
        return;
    }
    json_array_foreach(of, i, item) {
        const char *name = json_string_value(item);
        uint32_t part = name ? part_of(reading, name) : UINT32_MAX;
        if (part != UINT32_MAX) {
            feature->parts[feature->num_parts++] = part;
            continue;
        }
        list_columns(reading, "a feature that gives ids, or ", allowed,
                     sizeof allowed);
        features_report(reading, feature->name, "of", item, allowed);
    }
}

static void find_ids(struct reading *reading, struct feature *feature,
                     const json_t *settings) {
    const struct features *features = reading->features;
    const json_t *of = json_object_get(settings, "of");
    const char *name = json_string_value(of);
    uint32_t f = name ? features_find(features, name) : UINT32_MAX;
    char list[512];
    feature->of = f;
    if (f != UINT32_MAX &&
        (feature_gives(features->items[f].type) & FEATURE_IDS))
        return;
    size_t used =
        (size_t)snprintf(list, sizeof list, "a feature that gives ids");
    for (uint32_t i = 0, n = 0; i < features->count && used < sizeof list; i++)
        if (feature_gives(features->items[i].type) & FEATURE_IDS)
            used +=
                (size_t)snprintf(list + used, sizeof list - used, "%s%s",
                                 n++ ? ", " : ": ", features->items[i].name);
    features_report(reading, feature->name, "of", of, list);
}

/* A cross that contains itself is deeper than any depth. */
static void check_depths(struct reading *reading, const json_t *object) {
    struct features *features = reading->features;
    struct feature *deepest = NULL;
    for (int round = 0; round <= MAX_CROSS_DEPTH; round++) {
        deepest = NULL;
        for (uint32_t f = 0; f < features->count; f++) {
            struct feature *feature = &features->items[f];
            uint32_t before = feature->depth;
            for (uint32_t p = 0; p < feature->num_parts; p++) {
                uint32_t depth = features->items[feature->parts[p]].depth + 1;
                if (depth > feature->depth)
                    feature->depth = depth;
            }
            if (feature->depth > before)
                deepest = feature;
        }
    }
    if (deepest)
        features_report(
            reading, deepest->name, "of",
            json_object_get(json_object_get(object, deepest->name), "of"),
            "crosses in crosses up to 8 deep, none that contains itself");
}

/* Names that features have for each other. */
static void resolve_names(struct reading *reading, const json_t *object) {
    struct features *features = reading->features;
    features->num_items = features->count;
    for (uint32_t f = 0; f < features->count && !reading->status; f++) {
        struct feature *feature = &features->items[f];
        const json_t *settings = json_object_get(object, feature->name);
        if (feature->type == FEATURE_CROSSED)
            find_parts(reading, feature, settings);
        else if (feature->type == FEATURE_EMBEDDING)
            find_ids(reading, feature, settings);
    }
    check_depths(reading, object);
}

/* Room for the features of OBJECT and those that crosses make of columns. */
static size_t count_items(const json_t *object) {
    size_t count = json_object_size(object) + 1;
    const char *name;
    json_t *settings;
    json_object_foreach((json_t *)object, name, settings) count +=
        json_array_size(json_object_get(settings, "of"));
    return count;
}

static void features_read_object(struct reading *reading,
                                 const json_t *object) {
    struct features *features = reading->features;
    const char *name;
    json_t *settings;
    uint64_t width = 0;
    features->items = calloc(count_items(object), sizeof *features->items);
    if (!features->items) {
        features_no_memory(reading);
        return;
    }
    json_object_foreach((json_t *)object, name, settings) {
        struct feature *feature = &features->items[features->count];
        feature->name = strdup(name);
        features->num_items = ++features->count;
        if (!feature->name) {
            features_no_memory(reading);
            return;
        }
        features_read_one(reading, feature, settings);
        if (feature_gives(feature->type) & FEATURE_FLOATS)
            width += feature->width;
        if (reading->status)
            return;
    }
    resolve_names(reading, object);
    if (width > FEATURE_MAX_WIDTH)
        diagnostics_add(reading->diagnostics, "features",
                        "found %" PRIu64 " numbers of all together; allowed: "
                        "up to %d",
                        width, FEATURE_MAX_WIDTH);
    else
        features->width = (uint32_t)width;
}

/* A feature for each column: its number, or its ids and their weights. */
static json_t *features_of_columns(struct reading *reading) {
    const struct features_source *source = reading->source;
    const char *type =
        type_names[source->pairs ? FEATURE_IDENTITY : FEATURE_NUMERIC];
    json_t *object = json_object();
    for (uint32_t i = 0; !reading->status && i < source->num_columns; i++)
        if (json_object_set_new(object, source->columns[i],
                                json_pack("{s: s}", "type", type)))
            reading->status = status_fail(
                reading->why, FAILURE_DATA_DAMAGED,
                "the name of column %u besides the label is not UTF-8", i + 1);
    return object;
}

enum status features_parse(struct features *features,
                           const struct features_source *source,
                           struct diagnostics *diagnostics,
                           struct failure *why) {
    struct reading reading = {.features = features,
                              .source = source,
                              .diagnostics = diagnostics,
                              .why = why};
    json_t *object = source->text ? json_loads(source->text, 0, NULL)
                                  : features_of_columns(&reading);
    if (!object)
        features_no_memory(&reading);
    else if (!reading.status)
        features_read_object(&reading, object);
    json_decref(object);
    return reading.status;
}

/* One feature of a job as a JSON Schema: every key, then, by the feature's
 * type, the keys that it does not have and those that it needs. */

static json_t *count_leaf(const struct feature_key *key) {
    json_t *count = json_pack("{s:s, s:i, s:I}", "type", "integer", "minimum",
                              1, "maximum", (json_int_t)key->most);
    if (key->inner)
        return json_pack("{s:[s, s], s:{s:o}, s:[s], s:b}", "type", "object",
                         "null", "properties", key->inner, count, "required",
                         key->inner, "additionalProperties", 0);
    json_object_set_new(count, "type", json_pack("[s, s]", "integer", "null"));
    return count;
}

static json_t *list_leaf(const struct feature_key *key) {
    return json_pack("{s:[s, s], s:i, s:I, s:o}", "type", "array", "null",
                     "minItems", 1, "maxItems", (json_int_t)key->most, "items",
                     json_loads(key->items, 0, NULL));
}

static json_t *init_leaf(void) {
    json_t *init = job_init_schema(false);
    json_array_append_new(json_object_get(init, "anyOf"),
                          json_pack("{s:s}", "type", "null"));
    return init;
}

static json_t *types_leaf(void) {
    json_t *types = json_array();
    for (int t = 0; t < FEATURE_TYPES; t++)
        json_array_append_new(types, json_string(feature_type_name(t)));
    return json_pack("{s:o}", "enum", types);
}

static json_t *leaf_of(const struct feature_key *key) {
    return key->items                   ? list_leaf(key)
           : key->most                  ? count_leaf(key)
           : key->schema                ? json_loads(key->schema, 0, NULL)
           : !strcmp(key->name, "type") ? types_leaf()
                                        : init_leaf();
}

/* The members of LEAF, an object, have its sentence, too. */
static void describe(json_t *leaf, const char *text) {
    const char *name;
    json_t *below;
    json_object_set_new(leaf, "description", json_string(text));
    json_object_foreach(json_object_get(leaf, "properties"), name, below)
        describe(below, text);
}

/* Keys that a type needs beside its own, and how: a JSON Schema each. */
static const char *const needs[FEATURE_TYPES] = {
    [FEATURE_BUCKETIZED] = "{\"required\": [\"boundaries\"], \"properties\": "
                           "{\"boundaries\": {\"type\": \"array\"}}}",
    [FEATURE_VOCABULARY] =
        "{\"oneOf\": [{\"required\": [\"file\"], \"properties\": {\"file\": "
        "{\"type\": \"string\"}}}, {\"required\": [\"values\"], "
        "\"properties\": {\"values\": {\"type\": \"array\", \"uniqueItems\": "
        "true}}}]}",
    [FEATURE_CROSSED] =
        "{\"required\": [\"of\", \"size\"], \"properties\": {\"size\": "
        "{\"type\": \"integer\"}, \"of\": {\"type\": \"array\", \"minItems\": "
        "2, \"maxItems\": 16, \"items\": {\"type\": \"string\"}}}}",
    [FEATURE_EMBEDDING] =
        "{\"required\": [\"of\", \"dim\"], \"properties\": {\"of\": "
        "{\"type\": \"string\"}, \"dim\": {\"type\": \"integer\"}}, \"not\": "
        "{\"required\": [\"init\", \"init_range\"], \"properties\": "
        "{\"init\": {\"not\": {\"type\": \"null\"}}, \"init_range\": "
        "{\"not\": {\"type\": \"null\"}}}}}",
};

static json_t *rule_of_type(enum feature_type type, json_t *members) {
    json_t *others = json_object(), *all = json_array();
    const char *name;
    json_t *value;
    json_object_foreach(members, name, value) if (!feature_has_key(type, name))
        json_object_set_new(others, name, json_pack("{s:s}", "type", "null"));
    if (type < FEATURE_CROSSED)
        json_object_set_new(others, "of",
                            json_pack("{s:[s, s]}", "type", "string", "null"));
    json_array_append_new(all, json_pack("{s:o}", "properties", others));
    if (needs[type])
        json_array_append_new(all, json_loads(needs[type], 0, NULL));
    return json_pack("{s:{s:[s], s:{s:{s:s}}}, s:{s:o}}", "if", "required",
                     "type", "properties", "type", "const",
                     feature_type_name(type), "then", "allOf", all);
}

json_t *feature_schema(void) {
    json_t *members = json_object(), *all = json_array();
    for (const struct feature_key *key = feature_keys; key->name; key++) {
        json_object_set_new(members, key->name, leaf_of(key));
        describe(json_object_get(members, key->name), key->meaning);
    }
    for (int t = 0; t < FEATURE_TYPES; t++)
        json_array_append_new(all, rule_of_type(t, members));
    return json_pack("{s:[s, s], s:o, s:[s], s:b, s:o}", "type", "object",
                     "null", "properties", members, "required", "type",
                     "additionalProperties", 0, "allOf", all);
}
