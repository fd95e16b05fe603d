/* SPDX-License-Identifier: Apache-2.0 */
/* A kind of value has four functions and a count: read it into its field,
 * write it back, describe the allowed values for a person and as JSON Schema,
 * and the number of strings that the field owns. A refused value leaves its
 * field unchanged. Kinds that many keys share are here, kinds of one key in
 * job_value_kinds.c. */
#include "proto/job/job_value.h"

#include "proto/job/job_value_internal.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(sizeof(enum job_loss) == sizeof(unsigned), "JOB_KIND_CHOICE");

bool job_value_read_integer(const struct job_key *key, const json_t *value,
                            uint64_t *integer) {
    double number = json_number_value(value);
    if (!json_is_number(value) || floor(number) != number ||
        number < key->min || number > key->max)
        return false;
    *integer = json_is_integer(value) ? (uint64_t)json_integer_value(value)
                                      : (uint64_t)number;
    return true;
}

json_t *job_value_write_integer(const struct job_key *key, uint64_t integer) {
    return integer || key->default_value ? json_integer((json_int_t)integer)
                                         : NULL;
}

void job_value_allow_integer(const struct job_key *key, char *text,
                             size_t size) {
    snprintf(text, size, "an integer from %.0f to %.0f", key->min, key->max);
}

json_t *job_value_integer_schema(const struct job_key *key) {
    return json_pack("{s:s, s:I, s:I}", "type", "integer", "minimum",
                     (json_int_t)key->min, "maximum", (json_int_t)key->max);
}

static bool read_u32(const struct job_key *key, const json_t *value,
                     void *field, const struct job_reader *reader) {
    (void)reader;
    uint64_t integer;
    if (!job_value_read_integer(key, value, &integer))
        return false;
    *(uint32_t *)field = (uint32_t)integer;
    return true;
}

static json_t *write_u32(const struct job_key *key, const void *field) {
    return job_value_write_integer(key, *(const uint32_t *)field);
}

static bool read_u64(const struct job_key *key, const json_t *value,
                     void *field, const struct job_reader *reader) {
    (void)reader;
    return job_value_read_integer(key, value, field);
}

static json_t *write_u64(const struct job_key *key, const void *field) {
    return job_value_write_integer(key, *(const uint64_t *)field);
}

static bool read_bool(const struct job_key *key, const json_t *value,
                      void *field, const struct job_reader *reader) {
    (void)key, (void)reader;
    if (!json_is_boolean(value))
        return false;
    *(bool *)field = json_is_true(value);
    return true;
}

static json_t *write_bool(const struct job_key *key, const void *field) {
    (void)key;
    return json_boolean(*(const bool *)field);
}

static void allow_bool(const struct job_key *key, char *text, size_t size) {
    (void)key;
    snprintf(text, size, "true or false");
}

static json_t *bool_schema(const struct job_key *key) {
    (void)key;
    return json_pack("{s:s}", "type", "boolean");
}

static bool read_real(const struct job_key *key, const json_t *value,
                      void *field, const struct job_reader *reader) {
    (void)reader;
    double number = json_number_value(value);
    if (!json_is_number(value) || number < key->min || number > key->max)
        return false;
    *(double *)field = number;
    return true;
}

static json_t *write_real(const struct job_key *key, const void *field) {
    double number = *(const double *)field;
    return number != 0 || key->default_value ? json_real(number) : NULL;
}

static void allow_real(const struct job_key *key, char *text, size_t size) {
    bool floor_given = key->min > -JOB_UNBOUNDED;
    bool ceiling_given = key->max < JOB_UNBOUNDED;
    if (floor_given && ceiling_given)
        snprintf(text, size, "a number from %g to %g", key->min, key->max);
    else if (floor_given)
        snprintf(text, size, "a number, at least %g", key->min);
    else if (ceiling_given)
        snprintf(text, size, "a number, at most %g", key->max);
    else
        snprintf(text, size, "a number");
}

json_t *job_value_real_schema(const struct job_key *key) {
    return json_pack("{s:s, s:f, s:f}", "type", "number", "minimum", key->min,
                     "maximum", key->max);
}

/* The index of VALUE among the words of KEY, or -1. Case is ignored, as
 * DeepSpeed ignores it in optimizer names. */
static int find_word(const struct job_key *key, const json_t *value) {
    const char *text = json_string_value(value);
    if (!text || !*text)
        return -1;
    for (int i = 0; key->words[i]; i++)
        if (!strcasecmp(text, key->words[i]))
            return i;
    return -1;
}

static bool read_choice(const struct job_key *key, const json_t *value,
                        void *field, const struct job_reader *reader) {
    (void)reader;
    int index = find_word(key, value);
    if (index < 0)
        return false;
    *(unsigned *)field = (unsigned)index;
    return true;
}

/* The empty word means that no choice is made. */
static json_t *write_choice(const struct job_key *key, const void *field) {
    const char *word = key->words[*(const unsigned *)field];
    return *word ? json_string(word) : NULL;
}

static bool read_bool_word(const struct job_key *key, const json_t *value,
                           void *field, const struct job_reader *reader) {
    (void)reader;
    int index = find_word(key, value);
    if (index < 0)
        return false;
    *(bool *)field = index == 1;
    return true;
}

static json_t *write_bool_word(const struct job_key *key, const void *field) {
    return json_string(key->words[*(const bool *)field]);
}

static void allow_words(const struct job_key *key, char *text, size_t size) {
    size_t used = 0;
    for (const char *const *word = key->words; *word && used < size; word++)
        if (**word)
            used += (size_t)snprintf(text + used, size - used, "%s\"%s\"",
                                     used ? ", " : "", *word);
}

json_t *job_value_word_schema(const char *words) {
    size_t size, length = strlen(words);
    char *pattern = malloc(4 * length + sizeof "^()$"); /* "[aA]" of each */
    if (!pattern)
        return NULL;
    size = (size_t)sprintf(pattern, "^(");
    for (const char *c = words; *c; c++)
        if (isalpha(*c))
            size += (size_t)sprintf(pattern + size, "[%c%c]", tolower(*c),
                                    toupper(*c));
        else if (*c == '.')
            size += (size_t)sprintf(pattern + size, "\\.");
        else
            pattern[size++] = *c;
    strcpy(pattern + size, ")$");
    json_t *schema =
        json_pack("{s:s, s:s}", "type", "string", "pattern", pattern);
    free(pattern);
    return schema;
}

json_t *job_value_condition(const char *text) {
    return *text == '{' ? json_loads(text, 0, NULL)
                        : job_value_word_schema(text);
}

/* WORDS that are not empty, each with its ends, separated by "|"; the caller
 * frees it. NULL: there are none, or no memory. */
static char *job_value_join_words(const char *const *words, const char *before,
                                  const char *after) {
    char *joined = NULL;
    for (const char *const *word = words; word && *word; word++) {
        char *longer = NULL;
        if (!**word)
            continue;
        if (asprintf(&longer, "%s%s%s%s%s", joined ? joined : "",
                     joined ? "|" : "", before, *word, after) < 0)
            longer = NULL;
        free(joined);
        if (!(joined = longer))
            return NULL;
    }
    return joined;
}

/* Editors offer the words of "enum"; the pattern has them in any case. */
static json_t *words_schema(const struct job_key *key) {
    char *words = job_value_join_words(key->words, "", "");
    json_t *list = json_array();
    for (const char *const *word = key->words; *word; word++)
        if (**word)
            json_array_append_new(list, json_string(*word));
    json_t *schema = json_pack("{s:[{s:o}, o]}", "anyOf", "enum", list,
                               job_value_word_schema(words ? words : ""));
    free(words);
    return schema;
}

static bool job_value_read_text(const struct job_key *key, const json_t *value,
                                void *field, const struct job_reader *reader) {
    (void)key, (void)reader;
    if (!json_is_string(value))
        return false;
    free(*(char **)field);
    *(char **)field = strdup(json_string_value(value));
    return *(char **)field;
}

static json_t *job_value_write_text(const struct job_key *key,
                                    const void *field) {
    (void)key;
    char *const *text = field;
    return *text ? json_string(*text) : NULL;
}

static void allow_text(const struct job_key *key, char *text, size_t size) {
    (void)key;
    snprintf(text, size, "a string");
}

static json_t *text_schema(const struct job_key *key) {
    (void)key;
    return json_pack("{s:s}", "type", "string");
}

static bool has_allowed_suffix(const struct job_key *key, const char *path) {
    if (!key->words)
        return true;
    size_t length = strlen(path);
    for (const char *const *end = key->words; *end; end++) {
        size_t tail = strlen(*end);
        if (length > tail && !strcmp(path + length - tail, *end))
            return true;
    }
    return false;
}

char *job_value_join(const char *folder, const char *path) {
    if (!path || !*path || (*path != '/' && !folder))
        return NULL;
    if (*path == '/')
        return strdup(path);
    char *joined;
    bool root = !strcmp(folder, "/");
    if (asprintf(&joined, "%s/%s", root ? "" : folder, path) < 0)
        return NULL;
    return joined;
}

static bool read_path(const struct job_key *key, const json_t *value,
                      void *field, const struct job_reader *reader) {
    char *path = job_value_join(reader->folder, json_string_value(value));
    if (!path || !has_allowed_suffix(key, path)) {
        free(path);
        return false;
    }
    free(*(char **)field);
    *(char **)field = path;
    return true;
}

static void allow_path(const struct job_key *key, char *text, size_t size) {
    size_t used = (size_t)snprintf(text, size, "a path");
    for (const char *const *end = key->words; end && *end && used < size; end++)
        used += (size_t)snprintf(text + used, size - used, "%s%s",
                                 end == key->words ? " that ends in " : " or ",
                                 *end);
}

static json_t *path_schema(const struct job_key *key) {
    char *pattern = job_value_join_words(key->words, "\\", "$");
    json_t *schema = json_pack("{s:s, s:i}", "type", "string", "minLength", 1);
    if (pattern)
        json_object_set_new(schema, "pattern", json_string(pattern));
    free(pattern);
    return schema;
}

static const struct job_value_kind truth_kind = {read_bool, write_bool,
                                                 allow_bool, bool_schema, 0};
static const struct job_value_kind u32_kind = {
    read_u32, write_u32, job_value_allow_integer, job_value_integer_schema, 0};
static const struct job_value_kind u64_kind = {
    read_u64, write_u64, job_value_allow_integer, job_value_integer_schema, 0};
static const struct job_value_kind real_kind = {
    read_real, write_real, allow_real, job_value_real_schema, 0};
static const struct job_value_kind choice_kind = {read_choice, write_choice,
                                                  allow_words, words_schema, 0};
static const struct job_value_kind either_kind = {
    read_bool_word, write_bool_word, allow_words, words_schema, 0};
static const struct job_value_kind text_kind = {
    job_value_read_text, job_value_write_text, allow_text, text_schema, 1};
static const struct job_value_kind path_kind = {read_path, job_value_write_text,
                                                allow_path, path_schema, 1};

static const struct job_value_kind *const kinds[JOB_KINDS] = {
    [JOB_KIND_BOOL] = &truth_kind,
    [JOB_KIND_U32] = &u32_kind,
    [JOB_KIND_U64] = &u64_kind,
    [JOB_KIND_REAL] = &real_kind,
    [JOB_KIND_CHOICE] = &choice_kind,
    [JOB_KIND_BOOL_WORD] = &either_kind,
    [JOB_KIND_TEXT] = &text_kind,
    [JOB_KIND_PATH] = &path_kind,
    [JOB_KIND_FILES] = &job_value_files,
    [JOB_KIND_NAMES] = &job_value_names,
    [JOB_KIND_OBJECT] = &job_value_object,
    [JOB_KIND_WIDTHS] = &job_value_widths,
    [JOB_KIND_REALS] = &job_value_reals,
    [JOB_KIND_BETAS] = &job_value_betas,
    [JOB_KIND_STEPS] = &job_value_steps,
    [JOB_KIND_STALENESS] = &job_value_staleness,
    [JOB_KIND_PARAMETERS] = &job_value_parameters,
    [JOB_KIND_RESUME] = &job_value_resume,
    [JOB_KIND_COUNTS] = &job_value_counts,
    [JOB_KIND_INIT] = &job_value_init,
    [JOB_KIND_ROW_INIT] = &job_value_init,
};

/* The struct of a model is the job's own. */
static void *job_value_field(const struct job_key *key, const struct job *job) {
    const void *base = key->of_model ? job->model.settings : job;
    return (char *)base + key->field;
}

bool job_value_read(const struct job_key *key, const json_t *value,
                    const struct job_reader *reader) {
    void *field = job_value_field(key, reader->job);
    return kinds[key->kind]->read(key, value, field, reader);
}

json_t *job_value_write(const struct job_key *key, const struct job *job) {
    return kinds[key->kind]->write(key, job_value_field(key, job));
}

void job_value_free(const struct job_key *key, struct job *job) {
    if (key->of_model &&
        (!job->model.settings || !job_schema_applies(key, job)))
        return; /* another model's */
    char **owned = job_value_field(key, job);
    for (unsigned i = 0; i < kinds[key->kind]->owned; i++) {
        free(owned[i]);
        owned[i] = NULL;
    }
}

void job_value_allowed(const struct job_key *key, char *text, size_t size) {
    kinds[key->kind]->allowed(key, text, size);
}

json_t *job_value_schema(const struct job_key *key) {
    return kinds[key->kind]->schema(key);
}
