/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/data/features.h"

#include "worker/data/data_file.h"
#include "worker/data/number_text.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_WIDTH = 1 << 24, MAX_WORDS_BYTES = 1 << 30 };

enum feature_type { NUMERIC, BUCKETIZED, VOCABULARY, FEATURE_TYPES };

static const char *const type_names[] = {"numeric", "bucketized", "vocabulary"};

/* A word of a vocabulary and its place. */
struct word {
    const char *bytes;
    size_t size;
    uint32_t place;
};

struct feature {
    char *name;
    enum feature_type type;
    uint32_t column;
    uint32_t width; /* floats */
    bool log1p;
    float missing;      /* NUMERIC, BUCKETIZED: in place of no value */
    float *boundaries;  /* [width - 1], ascending */
    char *text;         /* of the words */
    struct word *words; /* [width], sorted */
};

struct features {
    struct feature *items;
    uint32_t count, width;
    char **columns; /* [num_columns], those that they read */
    uint32_t num_columns;
};

/* Where features are being read from JSON. */
struct reading {
    struct features *features;
    const char *const *known; /* [num_known] */
    uint32_t num_known;
    bool opens_files;
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

/* The place of NAME among the columns that are read. */
static bool use_column(struct reading *reading, const char *name,
                       uint32_t *place) {
    struct features *features = reading->features;
    bool known = !reading->known;
    for (uint32_t i = 0; i < reading->num_known && !known; i++)
        known = !strcmp(reading->known[i], name);
    for (*place = 0; *place < features->num_columns; ++*place)
        if (!strcmp(features->columns[*place], name))
            return true;
    char **columns =
        realloc(features->columns, (*place + 1) * sizeof *features->columns);
    features->columns = columns ? columns : features->columns;
    char *copy = columns ? strdup(name) : NULL;
    if (!copy)
        features_no_memory(reading);
    else
        features->columns[features->num_columns++] = copy;
    return known;
}

static void list_columns(const struct reading *reading, char *list,
                         size_t size) {
    size_t used = (size_t)snprintf(
        list, size, reading->num_known ? "a column: " : "a column's name");
    for (uint32_t i = 0; i < reading->num_known && used < size; i++)
        used += (size_t)snprintf(list + used, size - used, "%s%s",
                                 i ? ", " : "", reading->known[i]);
}

static void read_column(struct reading *reading, struct feature *feature,
                        const char *name, const json_t *settings) {
    const json_t *of = json_object_get(settings, "of");
    const char *column = of ? json_string_value(of) : name;
    char allowed[512];
    if (column && use_column(reading, column, &feature->column))
        return;
    list_columns(reading, allowed, sizeof allowed);
    json_t *found = json_string(name);
    features_report(reading, name, of ? "of" : "", of ? of : found, allowed);
    json_decref(found);
}

static void read_numeric(struct reading *reading, struct feature *feature,
                         const char *name, const json_t *settings) {
    const json_t *transform = json_object_get(settings, "transform");
    const json_t *shape = json_object_get(settings, "shape");
    const char *word = json_string_value(transform);
    feature->log1p = word && !strcmp(word, "log1p");
    if (transform && !feature->log1p)
        features_report(reading, name, "transform", transform, "\"log1p\"");
    feature->width = 1;
    if (!shape)
        return;
    json_int_t width = json_integer_value(shape);
    if (width >= 1 && width <= MAX_WIDTH)
        feature->width = (uint32_t)width;
    else
        features_report(reading, name, "shape", shape,
                        "an integer from 1 to 16777216, the number of values");
}

static void read_missing(struct reading *reading, struct feature *feature,
                         const char *name, const json_t *settings) {
    const json_t *missing = json_object_get(settings, "default_value");
    double value = json_number_value(missing);
    feature->missing = (float)value;
    if (missing && (!json_is_number(missing) || !isfinite(feature->missing)))
        features_report(reading, name, "default_value", missing, "a number");
}

static void read_boundaries(struct reading *reading, struct feature *feature,
                            const char *name, const json_t *settings) {
    const json_t *list = json_object_get(settings, "boundaries");
    size_t count = json_array_size(list), i;
    const json_t *item;
    bool ascend = count > 0 && count < MAX_WIDTH;
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
        features_report(reading, name, "boundaries", list,
                        "an array of numbers that ascend");
}

static int compare_words(const void *left, const void *right) {
    const struct word *a = left, *b = right;
    size_t size = a->size < b->size ? a->size : b->size;
    int order = memcmp(a->bytes, b->bytes, size);
    return order ? order : (a->size > b->size) - (a->size < b->size);
}

/* Sorts the words; the first twin, or NULL. */
static const struct word *sort_words(struct feature *feature) {
    qsort(feature->words, feature->width, sizeof *feature->words,
          compare_words);
    for (uint32_t i = 1; i < feature->width; i++)
        if (!compare_words(&feature->words[i - 1], &feature->words[i]))
            return &feature->words[i];
    return NULL;
}

/* The whole of PATH, SIZE bytes; the caller's. */
static enum status read_words_file(const char *path, char **text, size_t *size,
                                   struct failure *why) {
    struct data_file *file;
    size_t room = 0, got = 1;
    *text = NULL;
    *size = 0;
    enum status status = data_file_open(&file, path, "words", why);
    while (!status && got) {
        if (*size == room) {
            room = room ? 2 * room : 1 << 16;
            char *more = room <= MAX_WORDS_BYTES ? realloc(*text, room) : NULL;
            if (!more) {
                status = status_fail(why, FAILURE_TOO_LITTLE_MEMORY,
                                     "%s: no memory for its words", path);
                break;
            }
            *text = more;
        }
        status = data_file_read(file, *text + *size, room - *size, &got, why);
        *size += got;
    }
    data_file_close(&file);
    return status;
}

/* A word a line; TEXT stays. */
static bool cut_words(struct feature *feature, char *text, size_t size) {
    size_t lines = 1;
    for (size_t i = 0; i < size; i++)
        lines += text[i] == '\n';
    feature->words = calloc(lines, sizeof *feature->words);
    feature->width = 0;
    char *first =
        text + (size >= 3 && !memcmp(text, "\xef\xbb\xbf", 3) ? 3 : 0);
    for (char *at = first, *end = text + size; feature->words && at < end;) {
        char *stop = memchr(at, '\n', (size_t)(end - at));
        stop = stop ? stop : end;
        size_t length = (size_t)(stop - at);
        length -= length && at[length - 1] == '\r';
        if (length) {
            feature->words[feature->width] =
                (struct word){at, length, feature->width};
            feature->width++;
        }
        at = stop + 1;
    }
    return feature->words;
}

/* The strings of LIST, one behind the other. */
static char *join_words(const json_t *list, size_t *size) {
    size_t i;
    const json_t *item;
    *size = 0;
    json_array_foreach(list, i, item) {
        const char *word = json_string_value(item);
        if (!word || !*word || strpbrk(word, "\r\n"))
            return NULL;
        *size += json_string_length(item) + 1;
    }
    char *text = *size ? malloc(*size) : NULL, *at = text;
    json_array_foreach(list, i, item) {
        if (!text)
            break;
        size_t length = json_string_length(item);
        memcpy(at, json_string_value(item), length);
        at[length] = '\n';
        at += length + 1;
    }
    return text;
}

static void read_vocabulary(struct reading *reading, struct feature *feature,
                            const char *name, const json_t *settings) {
    const json_t *file = json_object_get(settings, "file");
    const json_t *list = json_object_get(settings, "values");
    const char *path = json_string_value(file);
    size_t size = 0;
    if (!file == !list) {
        features_report(reading, name, "values", list,
                        "it or \"file\": an array of strings, or a path");
        return;
    }
    if (path && !reading->opens_files) {
        feature->width = 0;
        return;
    }
    if (path)
        reading->status =
            read_words_file(path, &feature->text, &size, reading->why);
    else if (list)
        feature->text = join_words(list, &size);
    if (reading->status) {
        status_context(reading->why, "features.%s.file", name);
        return;
    }
    if (!feature->text || !cut_words(feature, feature->text, size) ||
        !feature->width) {
        features_report(reading, name, path ? "file" : "values",
                        path ? file : list,
                        path ? "a file with a word a line"
                             : "an array of strings, each of one line");
        feature->width = 0;
        return;
    }
    const struct word *twin = sort_words(feature);
    json_t *found = twin ? json_stringn(twin->bytes, twin->size) : NULL;
    if (twin && !found)
        found = json_string("(a word that is not UTF-8)");
    if (twin)
        features_report(reading, name, path ? "file" : "values", found,
                        "each word once");
    json_decref(found);
}

static void check_settings(struct reading *reading, enum feature_type type,
                           const char *name, const json_t *settings) {
    static const char *const known[FEATURE_TYPES][8] = {
        [NUMERIC] = {"type", "of", "transform", "shape", "default_value"},
        [BUCKETIZED] = {"type", "of", "boundaries", "default_value"},
        [VOCABULARY] = {"type", "of", "file", "values"},
    };
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)settings, key, value) {
        char path[256], list[128];
        size_t used = 0;
        bool found = false;
        for (size_t i = 0; known[type][i]; i++) {
            found = found || !strcmp(known[type][i], key);
            used += (size_t)snprintf(list + used, sizeof list - used, "%s%s",
                                     used ? ", " : "", known[type][i]);
        }
        snprintf(path, sizeof path, "features.%.100s.%.100s", name, key);
        if (!found)
            diagnostics_add(reading->diagnostics, path,
                            "unknown key; known of %s: %s", type_names[type],
                            list);
    }
}

static void features_read_one(struct reading *reading, struct feature *feature,
                              const char *name, const json_t *settings) {
    const json_t *type = json_object_get(settings, "type");
    const char *word = json_string_value(type);
    int t = 0;
    while (word && t < FEATURE_TYPES && strcmp(word, type_names[t]))
        t++;
    if (!word || t == FEATURE_TYPES) {
        features_report(reading, name, "type", type,
                        "\"numeric\", \"bucketized\", \"vocabulary\"");
        return;
    }
    feature->type = t;
    check_settings(reading, t, name, settings);
    read_column(reading, feature, name, settings);
    if (t == NUMERIC)
        read_numeric(reading, feature, name, settings);
    if (t == BUCKETIZED)
        read_boundaries(reading, feature, name, settings);
    if (t == VOCABULARY)
        read_vocabulary(reading, feature, name, settings);
    else
        read_missing(reading, feature, name, settings);
}

static void features_read_object(struct reading *reading,
                                 const json_t *object) {
    struct features *features = reading->features;
    const char *name;
    json_t *settings;
    uint64_t width = 0;
    features->items =
        calloc(json_object_size(object) + 1, sizeof *features->items);
    if (!features->items) {
        features_no_memory(reading);
        return;
    }
    json_object_foreach((json_t *)object, name, settings) {
        struct feature *feature = &features->items[features->count++];
        feature->name = strdup(name);
        if (!feature->name) {
            features_no_memory(reading);
            return;
        }
        features_read_one(reading, feature, name, settings);
        width += feature->width;
        if (reading->status)
            return;
    }
    if (width > MAX_WIDTH)
        diagnostics_add(reading->diagnostics, "features",
                        "found %" PRIu64 " numbers of all together; allowed: "
                        "up to %d",
                        width, MAX_WIDTH);
    else
        features->width = (uint32_t)width;
}

/* Each column is a number. */
static void read_columns(struct reading *reading) {
    json_t *object = json_object();
    for (uint32_t i = 0; !reading->status && i < reading->num_known; i++)
        if (json_object_set_new(object, reading->known[i],
                                json_pack("{s: s}", "type", "numeric")))
            reading->status = status_fail(
                reading->why, FAILURE_DATA_DAMAGED,
                "the name of column %u besides the label is not UTF-8", i + 1);
    if (!reading->status)
        features_read_object(reading, object);
    json_decref(object);
}

enum status features_open(struct features **out, const char *text,
                          const char *const *columns, uint32_t count,
                          struct failure *why) {
    struct features *features = calloc(1, sizeof *features);
    struct diagnostics diagnostics = {.where = "job"};
    struct reading reading = {.features = features,
                              .known = columns,
                              .num_known = count,
                              .opens_files = true,
                              .diagnostics = &diagnostics,
                              .why = why};
    json_t *object = text ? json_loads(text, 0, NULL) : NULL;
    *out = NULL;
    if (!features || (text && !object))
        features_no_memory(&reading);
    else if (object)
        features_read_object(&reading, object);
    else
        read_columns(&reading);
    json_decref(object);
    if (!reading.status)
        reading.status = diagnostics_status(&diagnostics, why);
    if (reading.status)
        features_close(&features);
    *out = features;
    return reading.status;
}

void features_check(const char *text, struct diagnostics *diagnostics) {
    struct features *features = calloc(1, sizeof *features);
    struct reading reading = {.features = features, .diagnostics = diagnostics};
    json_t *object = json_loads(text, 0, NULL);
    if (features && object)
        features_read_object(&reading, object);
    if (!features || !object || reading.status)
        diagnostics_add(diagnostics, "features", "out of memory");
    json_decref(object);
    features_close(&features);
}

void features_close(struct features **where) {
    struct features *features = where ? *where : NULL;
    if (!features)
        return;
    for (uint32_t i = 0; i < features->count; i++) {
        free(features->items[i].name);
        free(features->items[i].boundaries);
        free(features->items[i].text);
        free(features->items[i].words);
    }
    for (uint32_t i = 0; i < features->num_columns; i++)
        free(features->columns[i]);
    free(features->items);
    free(features->columns);
    free(features);
    *where = NULL;
}

uint32_t features_width(const struct features *features) {
    return features->width;
}

uint32_t features_count(const struct features *features) {
    return features->count;
}

struct feature_info features_info(const struct features *features, uint32_t f) {
    const struct feature *feature = &features->items[f];
    return (struct feature_info){.name = feature->name,
                                 .gives = FEATURE_FLOATS,
                                 .width = feature->width};
}

uint32_t features_find(const struct features *features, const char *name) {
    for (uint32_t f = 0; f < features->count; f++)
        if (!strcmp(features->items[f].name, name))
            return f;
    return UINT32_MAX;
}

const char *const *features_columns(const struct features *features,
                                    uint32_t *count) {
    *count = features->num_columns;
    return (const char *const *)features->columns;
}

/* Value I of CELL. */
static enum status cell_number(const struct features *features,
                               const struct feature *feature,
                               const struct record_cell *cell, uint32_t i,
                               float *out, struct failure *why) {
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
    else if (!number_text_float(text->bytes, text->size, out))
        return status_fail(why, FAILURE_DATA_DAMAGED,
                           "column %s: found \"%.*s\", expected a number",
                           features->columns[feature->column],
                           text->size < 80 ? (int)text->size : 80, text->bytes);
    return STATUS_OK;
}

static enum status check_value_count(const struct features *features,
                                     const struct feature *feature,
                                     const struct record_cell *cell,
                                     uint32_t count, struct failure *why) {
    if (cell->count == count || !cell->count)
        return STATUS_OK;
    return status_fail(why, FAILURE_DATA_DAMAGED,
                       "column %s: found %u values, expected %u",
                       features->columns[feature->column], cell->count, count);
}

/* log1p as for counts, of which some logs have negative ones. */
static float transformed(const struct feature *feature, float value) {
    return feature->log1p ? log1pf(value > 0 ? value : 0) : value;
}

static enum status numeric_values(const struct features *features,
                                  const struct feature *feature,
                                  const struct record_cell *cell, float *values,
                                  struct failure *why) {
    enum status status =
        check_value_count(features, feature, cell, feature->width, why);
    for (uint32_t i = 0; !status && i < feature->width; i++) {
        float value = feature->missing;
        if (cell->count)
            status = cell_number(features, feature, cell, i, &value, why);
        values[i] = transformed(feature, value);
    }
    return status;
}

/* The bucket of a value, as in TensorFlow: a boundary begins the next one. */
static enum status bucketized_values(const struct features *features,
                                     const struct feature *feature,
                                     const struct record_cell *cell,
                                     float *values, struct failure *why) {
    float value = feature->missing;
    uint32_t bucket = 0;
    enum status status = check_value_count(features, feature, cell, 1, why);
    if (!status && cell->count)
        status = cell_number(features, feature, cell, 0, &value, why);
    while (bucket < feature->width - 1 && value >= feature->boundaries[bucket])
        bucket++;
    values[bucket] = 1;
    return status;
}

/* Counts each value's word; words that are not in the vocabulary are left
 * out. */
static enum status vocabulary_values(const struct features *features,
                                     const struct feature *feature,
                                     const struct record_cell *cell,
                                     float *values, struct failure *why) {
    if (cell->count && cell->type == RECORD_FLOATS)
        return status_fail(why, FAILURE_DATA_DAMAGED,
                           "column %s: found floats, expected words or "
                           "integers",
                           features->columns[feature->column]);
    for (uint32_t i = 0; i < cell->count; i++) {
        char digits[24];
        struct word word = {.bytes = digits};
        if (cell->type == RECORD_TEXTS) {
            word.bytes = cell->texts[i].bytes;
            word.size = cell->texts[i].size;
        } else if (cell->type == RECORD_INTEGERS) {
            word.size = (size_t)snprintf(digits, sizeof digits, "%" PRId64,
                                         cell->integers[i]);
        }
        const struct word *found = bsearch(
            &word, feature->words, feature->width, sizeof word, compare_words);
        if (found)
            values[found->place] += 1;
    }
    return STATUS_OK;
}

enum status features_read(const struct features *features,
                          const struct record_cell *const *cells, float *values,
                          struct failure *why) {
    enum status status = STATUS_OK;
    memset(values, 0, features->width * sizeof *values);
    for (uint32_t f = 0; !status && f < features->count; f++) {
        const struct feature *feature = &features->items[f];
        const struct record_cell *cell = cells[feature->column];
        if (feature->type == NUMERIC)
            status = numeric_values(features, feature, cell, values, why);
        else if (feature->type == BUCKETIZED)
            status = bucketized_values(features, feature, cell, values, why);
        else
            status = vocabulary_values(features, feature, cell, values, why);
        values += feature->width;
    }
    return status;
}

json_t *features_describe(const struct features *features,
                          const float *values) {
    json_t *object = json_object();
    for (uint32_t f = 0; f < features->count; f++) {
        const struct feature *feature = &features->items[f];
        bool list = feature->type != NUMERIC || feature->width > 1;
        json_t *numbers = list ? json_array() : json_real((double)*values);
        for (uint32_t i = 0; list && i < feature->width; i++)
            json_array_append_new(numbers, json_real((double)values[i]));
        json_object_set_new(object, feature->name, numbers);
        values += feature->width;
    }
    return object;
}
