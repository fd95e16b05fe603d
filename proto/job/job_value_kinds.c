/* SPDX-License-Identifier: Apache-2.0 */
/* Kinds of values that belong to one key or a few: arrays, and numbers with an
 * alternative word. */
#include "core/base/amount.h"
#include "proto/job/job_init.h"
#include "proto/job/job_value_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void free_files(struct job_files *files) {
    for (size_t i = 0; i < JOB_MAX_FILES; i++)
        free(files->paths[i]);
}

/* One path, or several; images and labels are two. The format is read before
 * them. */
static bool read_files(const struct job_key *key, const json_t *value,
                       void *field, const struct job_reader *reader) {
    (void)key;
    const struct job_data *data = &reader->job->data;
    const char *folder = data->dir ? data->dir : reader->folder;
    size_t count = json_is_array(value) ? json_array_size(value) : 1;
    if (data->format == JOB_IDX ? !json_is_array(value) || count != 2
                                : !count || count >= JOB_MAX_FILES)
        return false;
    struct job_files files = {0};
    for (size_t i = 0; i < count; i++) {
        const json_t *path =
            json_is_array(value) ? json_array_get(value, i) : value;
        files.paths[i] = job_value_join(folder, json_string_value(path));
        if (!files.paths[i]) {
            free_files(&files);
            return false;
        }
    }
    *(struct job_files *)field = files;
    return true;
}

static json_t *write_files(const struct job_key *key, const void *field) {
    (void)key;
    const struct job_files *files = field;
    json_t *array = files->paths[0] ? json_array() : NULL;
    for (size_t i = 0; i < JOB_MAX_FILES && files->paths[i]; i++)
        json_array_append_new(array, json_string(files->paths[i]));
    return array;
}

static void allow_files(const struct job_key *key, char *text, size_t size) {
    (void)key;
    snprintf(text, size,
             "an array of two paths, images and labels; of records a path, a "
             "pattern such as \"day_*.csv\", or an array of up to %d of them",
             JOB_MAX_FILES - 1);
}

/* One or several; the rule of idx, two, is that of its format. */
static json_t *files_schema(const struct job_key *key) {
    (void)key;
    return json_pack("{s:[{s:s, s:i}, {s:s, s:i, s:i, s:{s:s, s:i}}]}", "anyOf",
                     "type", "string", "minLength", 1, "type", "array",
                     "minItems", 1, "maxItems", JOB_MAX_FILES - 1, "items",
                     "type", "string", "minLength", 1);
}

const struct job_value_kind job_value_files = {
    read_files, write_files, allow_files, files_schema, JOB_MAX_FILES};

static bool keep_json(const json_t *value, void *field) {
    char *text = json_dumps(value, JSON_COMPACT);
    if (!text)
        return false;
    free(*(char **)field);
    *(char **)field = text;
    return true;
}

static json_t *write_kept(const struct job_key *key, const void *field) {
    (void)key;
    char *const *text = field;
    return *text ? json_loads(*text, 0, NULL) : NULL;
}

static bool read_names(const struct job_key *key, const json_t *value,
                       void *field, const struct job_reader *reader) {
    (void)key, (void)reader;
    size_t i;
    const json_t *name;
    bool texts = json_array_size(value) > 0;
    json_array_foreach(value, i, name) texts =
        texts && json_string_length(name) > 0;
    return texts && keep_json(value, field);
}

static void allow_names(const struct job_key *key, char *text, size_t size) {
    (void)key;
    snprintf(text, size, "an array of names");
}

static json_t *names_schema(const struct job_key *key) {
    (void)key;
    return json_pack("{s:s, s:i, s:{s:s, s:i}}", "type", "array", "minItems", 1,
                     "items", "type", "string", "minLength", 1);
}

const struct job_value_kind job_value_names = {read_names, write_kept,
                                               allow_names, names_schema, 1};

/* Members that are null are as good as left out. */
static void drop_nulls(json_t *object) {
    const char *name;
    json_t *value;
    void *next;
    json_object_foreach_safe(object, next, name, value) {
        if (json_is_null(value))
            json_object_del(object, name);
        else
            drop_nulls(value);
    }
}

static bool read_named_objects(const struct job_key *key, const json_t *value,
                               void *field, const struct job_reader *reader) {
    (void)key;
    const char *folder = reader->job->data.dir, *name;
    json_t *own = json_deep_copy(value), *of_name;
    drop_nulls(own);
    bool whole = own && json_object_size(own) > 0;
    folder = folder ? folder : reader->folder;
    json_object_foreach(own, name, of_name) {
        json_t *file = json_object_get(of_name, "file");
        char *path = job_value_join(folder, json_string_value(file));
        whole = whole && json_is_object(of_name) && (path || !file) &&
                (!file || !json_string_set(file, path));
        free(path);
    }
    whole = whole && keep_json(own, field);
    json_decref(own);
    return whole;
}

static void allow_object(const struct job_key *key, char *text, size_t size) {
    (void)key;
    snprintf(text, size,
             "an object with an object for each name, whose \"file\" is a "
             "path");
}

/* What a member is, its models say (struct job_models). */
static json_t *object_schema(const struct job_key *key) {
    (void)key;
    return json_pack("{s:s, s:i}", "type", "object", "minProperties", 1);
}

const struct job_value_kind job_value_object = {read_named_objects, write_kept,
                                                allow_object, object_schema, 1};

static bool read_widths(const struct job_key *key, const json_t *value,
                        void *field, const struct job_reader *reader) {
    (void)reader;
    struct job_widths widths = {.count = (uint32_t)json_array_size(value)};
    if (widths.count < key->least || widths.count > key->most)
        return false;
    for (uint32_t i = 0; i < widths.count; i++) {
        uint64_t width;
        if (!job_value_read_integer(key, json_array_get(value, i), &width))
            return false;
        widths.items[i] = (uint32_t)width;
    }
    *(struct job_widths *)field = widths;
    return true;
}

static json_t *write_widths(const struct job_key *key, const void *field) {
    (void)key;
    const struct job_widths *widths = field;
    json_t *array = json_array();
    for (uint32_t i = 0; i < widths->count; i++)
        json_array_append_new(array, json_integer(widths->items[i]));
    return array;
}

static void allow_widths(const struct job_key *key, char *text, size_t size) {
    snprintf(text, size, "an array of %u to %u integers from %.0f to %.0f",
             key->least, key->most, key->min, key->max);
}

static json_t *items_schema(const struct job_key *key, json_t *item) {
    return json_pack("{s:s, s:i, s:i, s:o}", "type", "array", "minItems",
                     (int)key->least, "maxItems", (int)key->most, "items",
                     item);
}

static json_t *widths_schema(const struct job_key *key) {
    return items_schema(key, job_value_integer_schema(key));
}

const struct job_value_kind job_value_widths = {read_widths, write_widths,
                                                allow_widths, widths_schema, 0};

static bool read_reals(const struct job_key *key, const json_t *value,
                       void *field, const struct job_reader *reader) {
    (void)reader;
    struct job_reals reals = {.count = (uint32_t)json_array_size(value)};
    if (reals.count < key->least || reals.count > key->most)
        return false;
    for (uint32_t i = 0; i < reals.count; i++) {
        const json_t *real = json_array_get(value, i);
        reals.items[i] = json_number_value(real);
        if (!json_is_number(real) || reals.items[i] < key->min ||
            reals.items[i] > key->max)
            return false;
    }
    *(struct job_reals *)field = reals;
    return true;
}

static json_t *write_reals(const struct job_key *key, const void *field) {
    (void)key;
    const struct job_reals *reals = field;
    json_t *array = reals->count ? json_array() : NULL;
    for (uint32_t i = 0; i < reals->count; i++)
        json_array_append_new(array, json_real(reals->items[i]));
    return array;
}

static void allow_reals(const struct job_key *key, char *text, size_t size) {
    snprintf(text, size, "an array of %u to %u numbers, at least %g",
             key->least, key->most, key->min);
}

static json_t *reals_schema(const struct job_key *key) {
    return items_schema(key, job_value_real_schema(key));
}

const struct job_value_kind job_value_reals = {read_reals, write_reals,
                                               allow_reals, reals_schema, 0};

static bool read_betas(const struct job_key *key, const json_t *value,
                       void *field, const struct job_reader *reader) {
    (void)key, (void)reader;
    struct optimizer *optimizer = field;
    if (json_array_size(value) != 2)
        return false;
    double betas[2];
    for (size_t i = 0; i < 2; i++) {
        const json_t *beta = json_array_get(value, i);
        betas[i] = json_number_value(beta);
        if (!json_is_number(beta) || betas[i] < 0 || betas[i] >= 1)
            return false;
    }
    optimizer->beta1 = betas[0];
    optimizer->beta2 = betas[1];
    return true;
}

static json_t *write_betas(const struct job_key *key, const void *field) {
    (void)key;
    const struct optimizer *optimizer = field;
    return json_pack("[f, f]", optimizer->beta1, optimizer->beta2);
}

static void allow_betas(const struct job_key *key, char *text, size_t size) {
    (void)key;
    snprintf(text, size, "an array of two numbers, at least 0, less than 1");
}

static json_t *betas_schema(const struct job_key *key) {
    (void)key;
    return json_pack("{s:s, s:i, s:i, s:{s:s, s:i, s:i}}", "type", "array",
                     "minItems", 2, "maxItems", 2, "items", "type", "number",
                     "minimum", 0, "exclusiveMaximum", 1);
}

const struct job_value_kind job_value_betas = {read_betas, write_betas,
                                               allow_betas, betas_schema, 0};

static bool read_steps(const struct job_key *key, const json_t *value,
                       void *field, const struct job_reader *reader) {
    (void)reader;
    struct job *job = field;
    return job->has_steps = job_value_read_integer(key, value, &job->steps);
}

static json_t *write_steps(const struct job_key *key, const void *field) {
    (void)key;
    const struct job *job = field;
    return job->has_steps ? json_integer((json_int_t)job->steps) : NULL;
}

const struct job_value_kind job_value_steps = {read_steps, write_steps,
                                               job_value_allow_integer,
                                               job_value_integer_schema, 0};

static bool is_word(const json_t *value, const char *word) {
    const char *text = json_string_value(value);
    return text && !strcmp(text, word);
}

static bool read_staleness(const struct job_key *key, const json_t *value,
                           void *field, const struct job_reader *reader) {
    (void)reader;
    if (!is_word(value, "inf"))
        return job_value_read_integer(key, value, field);
    *(uint64_t *)field = JOB_STALENESS_INF;
    return true;
}

static json_t *write_staleness(const struct job_key *key, const void *field) {
    uint64_t staleness = *(const uint64_t *)field;
    if (staleness == JOB_STALENESS_INF)
        return json_string("inf");
    return job_value_write_integer(key, staleness);
}

static void allow_staleness(const struct job_key *key, char *text,
                            size_t size) {
    snprintf(text, size, "an integer from 0 to %.0f, or \"inf\"", key->max);
}

static json_t *staleness_schema(const struct job_key *key) {
    return json_pack("{s:[o, {s:[s]}]}", "anyOf", job_value_integer_schema(key),
                     "enum", "inf");
}

const struct job_value_kind job_value_staleness = {
    read_staleness, write_staleness, allow_staleness, staleness_schema, 0};

static bool read_parameters(const struct job_key *key, const json_t *value,
                            void *field, const struct job_reader *reader) {
    (void)reader;
    struct amount amount = {AMOUNT_PARAMETERS, (uint64_t)key->min,
                            (uint64_t)key->max, 1};
    const char *text = json_string_value(value);
    return text ? amount_parse(&amount, text, field)
                : job_value_read_integer(key, value, field);
}

static json_t *write_parameters(const struct job_key *key, const void *field) {
    return job_value_write_integer(key, *(const uint64_t *)field);
}

static void allow_parameters(const struct job_key *key, char *text,
                             size_t size) {
    snprintf(text, size,
             "an integer from %.0f to %.0f, or a text such as \"25.6M\", in "
             "which K, M, G (or B) and T are powers of 1000",
             key->min, key->max);
}

static json_t *parameters_schema(const struct job_key *key) {
    return json_pack("{s:[o, {s:s, s:s}]}", "anyOf",
                     job_value_integer_schema(key), "type", "string", "pattern",
                     "^(?=.*[1-9])[0-9]+(\\.[0-9]+)?[kKmMgGbBtT]?$");
}

const struct job_value_kind job_value_parameters = {
    read_parameters, write_parameters, allow_parameters, parameters_schema, 0};

static bool read_resume(const struct job_key *key, const json_t *value,
                        void *field, const struct job_reader *reader) {
    (void)reader;
    struct job_checkpoint *checkpoint = field;
    if (is_word(value, "auto"))
        checkpoint->resume = JOB_RESUME_AUTO;
    else if (is_word(value, "never"))
        checkpoint->resume = JOB_RESUME_NEVER;
    else if (job_value_read_integer(key, value, &checkpoint->resume_step))
        checkpoint->resume = JOB_RESUME_STEP;
    else
        return false;
    return true;
}

static json_t *write_resume(const struct job_key *key, const void *field) {
    (void)key;
    const struct job_checkpoint *checkpoint = field;
    if (checkpoint->resume == JOB_RESUME_STEP)
        return json_integer((json_int_t)checkpoint->resume_step);
    bool never = checkpoint->resume == JOB_RESUME_NEVER;
    return json_string(never ? "never" : "auto");
}

static void allow_resume(const struct job_key *key, char *text, size_t size) {
    (void)key;
    snprintf(text, size, "\"auto\", \"never\" or the number of a step");
}

static json_t *resume_schema(const struct job_key *key) {
    return json_pack("{s:[{s:[s, s]}, o]}", "anyOf", "enum", "auto", "never",
                     job_value_integer_schema(key));
}

const struct job_value_kind job_value_resume = {read_resume, write_resume,
                                                allow_resume, resume_schema, 0};

/* One number, or several in ascending order. */
static bool read_counts(const struct job_key *key, const json_t *value,
                        void *field, const struct job_reader *reader) {
    (void)reader;
    struct job_counts counts = {0};
    size_t many = json_is_array(value) ? json_array_size(value) : 1;
    if (!many || many > JOB_MAX_COUNTS)
        return false;
    for (size_t i = 0; i < many; i++) {
        uint64_t count;
        if (!job_value_read_integer(
                key, json_is_array(value) ? json_array_get(value, i) : value,
                &count) ||
            (i && count <= counts.values[i - 1]))
            return false;
        counts.values[counts.count++] = (unsigned)count;
    }
    *(struct job_counts *)field = counts;
    return true;
}

static json_t *write_counts(const struct job_key *key, const void *field) {
    (void)key;
    const struct job_counts *counts = field;
    json_t *list = counts->count ? json_array() : NULL;
    for (unsigned i = 0; i < counts->count; i++)
        json_array_append_new(list, json_integer(counts->values[i]));
    return list;
}

static void allow_counts(const struct job_key *key, char *text, size_t size) {
    snprintf(text, size,
             "an integer from %.0f to %.0f, or an array of up to %d of them "
             "that ascend",
             key->min, key->max, JOB_MAX_COUNTS);
}

static json_t *counts_schema(const struct job_key *key) {
    json_t *one = job_value_integer_schema(key);
    return json_pack("{s:[o, {s:s, s:i, s:i, s:b, s:O}]}", "anyOf", one, "type",
                     "array", "minItems", 1, "maxItems", JOB_MAX_COUNTS,
                     "uniqueItems", 1, "items", one);
}

const struct job_value_kind job_value_counts = {read_counts, write_counts,
                                                allow_counts, counts_schema, 0};

static bool read_init(const struct job_key *key, const json_t *value,
                      void *field, const struct job_reader *reader) {
    (void)reader;
    return job_init_read(field, value, key->kind == JOB_KIND_INIT);
}

static json_t *write_init(const struct job_key *key, const void *field) {
    (void)key;
    return job_init_write(field);
}

static void allow_init(const struct job_key *key, char *text, size_t size) {
    job_init_allowed(key->kind == JOB_KIND_INIT, text, size);
}

static json_t *init_schema(const struct job_key *key) {
    return job_init_schema(key->kind == JOB_KIND_INIT);
}

const struct job_value_kind job_value_init = {read_init, write_init, allow_init,
                                              init_schema, 0};
