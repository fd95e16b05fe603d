/* SPDX-License-Identifier: Apache-2.0 */
/* A kind of value has functions and a count: read it into its field, write it
 * back, describe the allowed values for a person and as JSON Schema (or a text
 * of each), and the number of strings that the field owns. A refused value
 * leaves its field unchanged. Kinds that many keys share come first. */
#include "proto/job/job_value.h"

#include "core/base/amount.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* FIELD is the key's field, of the type that the kind has there. */
struct job_value_kind {
    bool (*read)(const struct job_key *key, const json_t *value, void *field,
                 const struct job_reader *reader);
    json_t *(*write)(const struct job_key *key, const void *field);
    void (*allowed)(const struct job_key *key, char *text, size_t size);
    json_t *(*schema)(const struct job_key *key);
    unsigned owned; /* strings that the field owns */
    /* Instead of `allowed` and `schema`, where all keys have the same. */
    const char *all_allow, *all_schema;
};

/* The definition of one of a kind's functions. */
#define UNUSED __attribute__((unused))
#define READ(NAME)                                                             \
    static bool NAME(UNUSED const struct job_key *key, const json_t *value,    \
                     void *field, UNUSED const struct job_reader *reader)
#define WRITE(NAME)                                                            \
    static json_t *NAME(UNUSED const struct job_key *key, const void *field)
#define ALLOW(NAME)                                                            \
    static void NAME(UNUSED const struct job_key *key, char *text, size_t size)
#define SCHEMA(NAME) static json_t *NAME(UNUSED const struct job_key *key)

_Static_assert(sizeof(enum job_loss) == sizeof(unsigned), "JOB_KIND_CHOICE");

/* Reads an integer, or a real with a whole value, within the bounds of KEY;
 * else false. */
static bool job_value_read_integer(const struct job_key *key,
                                   const json_t *value, uint64_t *integer) {
    double number = json_number_value(value);
    if (!json_is_number(value) || floor(number) != number ||
        number < key->min || number > key->max)
        return false;
    *integer = json_is_integer(value) ? (uint64_t)json_integer_value(value)
                                      : (uint64_t)number;
    return true;
}

/* NULL for 0 if KEY has no default: 0 means not given. */
static json_t *job_value_write_integer(const struct job_key *key,
                                       uint64_t integer) {
    return integer || key->default_value ? json_integer((json_int_t)integer)
                                         : NULL;
}

ALLOW(job_value_allow_integer) {
    snprintf(text, size, "an integer from %.0f to %.0f", key->min, key->max);
}

SCHEMA(job_value_integer_schema) {
    return json_pack("{s:s, s:I, s:I}", "type", "integer", "minimum",
                     (json_int_t)key->min, "maximum", (json_int_t)key->max);
}

READ(read_u32) {
    uint64_t integer;
    if (!job_value_read_integer(key, value, &integer))
        return false;
    *(uint32_t *)field = (uint32_t)integer;
    return true;
}

WRITE(write_u32) {
    return job_value_write_integer(key, *(const uint32_t *)field);
}

READ(read_u64) {
    return job_value_read_integer(key, value, field);
}

WRITE(write_u64) {
    return job_value_write_integer(key, *(const uint64_t *)field);
}

READ(read_bool) {
    if (!json_is_boolean(value))
        return false;
    *(bool *)field = json_is_true(value);
    return true;
}

WRITE(write_bool) {
    return json_boolean(*(const bool *)field);
}

READ(read_real) {
    double number = json_number_value(value);
    if (!json_is_number(value) || number < key->min || number > key->max)
        return false;
    *(double *)field = number;
    return true;
}

WRITE(write_real) {
    double number = *(const double *)field;
    return number != 0 || key->default_value ? json_real(number) : NULL;
}

ALLOW(allow_real) {
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

SCHEMA(job_value_real_schema) {
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

READ(read_choice) {
    int index = find_word(key, value);
    if (index < 0)
        return false;
    *(unsigned *)field = (unsigned)index;
    return true;
}

/* The empty word means that no choice is made. */
WRITE(write_choice) {
    const char *word = key->words[*(const unsigned *)field];
    return *word ? json_string(word) : NULL;
}

READ(read_bool_word) {
    int index = find_word(key, value);
    if (index < 0)
        return false;
    *(bool *)field = index == 1;
    return true;
}

WRITE(write_bool_word) {
    return json_string(key->words[*(const bool *)field]);
}

ALLOW(allow_words) {
    size_t used = 0;
    for (const char *const *word = key->words; *word && used < size; word++)
        if (**word)
            used += (size_t)snprintf(text + used, size - used, "%s\"%s\"",
                                     used ? ", " : "", *word);
}

/* The JSON Schema of the words of WORDS, separated by "|", in upper or lower
 * case, or of exactly these words; the caller frees both. */
static json_t *job_value_word_schema(const char *words) {
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
SCHEMA(words_schema) {
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

READ(job_value_read_text) {
    if (!json_is_string(value))
        return false;
    free(*(char **)field);
    *(char **)field = strdup(json_string_value(value));
    return *(char **)field;
}

WRITE(job_value_write_text) {
    char *const *text = field;
    return *text ? json_string(*text) : NULL;
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

READ(read_path) {
    char *path = job_value_join(reader->folder, json_string_value(value));
    if (!path || !has_allowed_suffix(key, path)) {
        free(path);
        return false;
    }
    free(*(char **)field);
    *(char **)field = path;
    return true;
}

ALLOW(allow_path) {
    size_t used = (size_t)snprintf(text, size, "a path");
    for (const char *const *end = key->words; end && *end && used < size; end++)
        used += (size_t)snprintf(text + used, size - used, "%s%s",
                                 end == key->words ? " that ends in " : " or ",
                                 *end);
}

SCHEMA(path_schema) {
    char *pattern = job_value_join_words(key->words, "\\", "$");
    json_t *schema = json_pack("{s:s, s:i}", "type", "string", "minLength", 1);
    if (pattern)
        json_object_set_new(schema, "pattern", json_string(pattern));
    free(pattern);
    return schema;
}

/* Kinds of values that belong to one key or a few: arrays, and numbers with an
 * alternative word. */

static void free_files(struct job_files *files) {
    for (size_t i = 0; i < JOB_MAX_FILES; i++)
        free(files->paths[i]);
}

/* One path, or several; images and labels are two. The format is read before
 * them. */
READ(read_files) {
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

WRITE(write_files) {
    const struct job_files *files = field;
    json_t *array = files->paths[0] ? json_array() : NULL;
    for (size_t i = 0; i < JOB_MAX_FILES && files->paths[i]; i++)
        json_array_append_new(array, json_string(files->paths[i]));
    return array;
}

ALLOW(allow_files) {
    snprintf(text, size,
             "an array of two paths, images and labels; of records a path, a "
             "pattern such as \"day_*.csv\", or an array of up to %d of them",
             JOB_MAX_FILES - 1);
}

/* One or several; the rule of idx, two, is that of its format. */
SCHEMA(files_schema) {
    return json_pack("{s:[{s:s, s:i}, {s:s, s:i, s:i, s:{s:s, s:i}}]}", "anyOf",
                     "type", "string", "minLength", 1, "type", "array",
                     "minItems", 1, "maxItems", JOB_MAX_FILES - 1, "items",
                     "type", "string", "minLength", 1);
}

static bool keep_json(const json_t *value, void *field) {
    char *text = json_dumps(value, JSON_COMPACT);
    if (!text)
        return false;
    free(*(char **)field);
    *(char **)field = text;
    return true;
}

WRITE(write_kept) {
    char *const *text = field;
    return *text ? json_loads(*text, 0, NULL) : NULL;
}

READ(read_names) {
    size_t i;
    const json_t *name;
    bool texts = json_array_size(value) > 0;
    json_array_foreach(value, i, name) texts =
        texts && json_string_length(name) > 0;
    return texts && keep_json(value, field);
}

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

READ(read_named_objects) {
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

READ(read_widths) {
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

WRITE(write_widths) {
    const struct job_widths *widths = field;
    json_t *array = json_array();
    for (uint32_t i = 0; i < widths->count; i++)
        json_array_append_new(array, json_integer(widths->items[i]));
    return array;
}

ALLOW(allow_widths) {
    snprintf(text, size, "an array of %u to %u integers from %.0f to %.0f",
             key->least, key->most, key->min, key->max);
}

static json_t *items_schema(const struct job_key *key, json_t *item) {
    return json_pack("{s:s, s:i, s:i, s:o}", "type", "array", "minItems",
                     (int)key->least, "maxItems", (int)key->most, "items",
                     item);
}

SCHEMA(widths_schema) {
    return items_schema(key, job_value_integer_schema(key));
}

READ(read_reals) {
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

WRITE(write_reals) {
    const struct job_reals *reals = field;
    json_t *array = reals->count ? json_array() : NULL;
    for (uint32_t i = 0; i < reals->count; i++)
        json_array_append_new(array, json_real(reals->items[i]));
    return array;
}

ALLOW(allow_reals) {
    snprintf(text, size, "an array of %u to %u numbers, at least %g",
             key->least, key->most, key->min);
}

SCHEMA(reals_schema) {
    return items_schema(key, job_value_real_schema(key));
}

READ(read_betas) {
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

WRITE(write_betas) {
    const struct optimizer *optimizer = field;
    return json_pack("[f, f]", optimizer->beta1, optimizer->beta2);
}

READ(read_steps) {
    struct job *job = field;
    return job->has_steps = job_value_read_integer(key, value, &job->steps);
}

WRITE(write_steps) {
    const struct job *job = field;
    return job->has_steps ? json_integer((json_int_t)job->steps) : NULL;
}

static bool is_word(const json_t *value, const char *word) {
    const char *text = json_string_value(value);
    return text && !strcmp(text, word);
}

READ(read_staleness) {
    if (!is_word(value, "inf"))
        return job_value_read_integer(key, value, field);
    *(uint64_t *)field = JOB_STALENESS_INF;
    return true;
}

WRITE(write_staleness) {
    uint64_t staleness = *(const uint64_t *)field;
    if (staleness == JOB_STALENESS_INF)
        return json_string("inf");
    return job_value_write_integer(key, staleness);
}

ALLOW(allow_staleness) {
    snprintf(text, size, "an integer from 0 to %.0f, or \"inf\"", key->max);
}

SCHEMA(staleness_schema) {
    return json_pack("{s:[o, {s:[s]}]}", "anyOf", job_value_integer_schema(key),
                     "enum", "inf");
}

READ(read_parameters) {
    struct amount amount = {AMOUNT_PARAMETERS, (uint64_t)key->min,
                            (uint64_t)key->max, 1};
    const char *text = json_string_value(value);
    return text ? amount_parse(&amount, text, field)
                : job_value_read_integer(key, value, field);
}

ALLOW(allow_parameters) {
    snprintf(text, size,
             "an integer from %.0f to %.0f, or a text such as \"25.6M\", in "
             "which K, M, G (or B) and T are powers of 1000",
             key->min, key->max);
}

SCHEMA(parameters_schema) {
    return json_pack("{s:[o, {s:s, s:s}]}", "anyOf",
                     job_value_integer_schema(key), "type", "string", "pattern",
                     "^(?=.*[1-9])[0-9]+(\\.[0-9]+)?[kKmMgGbBtT]?$");
}

READ(read_resume) {
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

WRITE(write_resume) {
    const struct job_checkpoint *checkpoint = field;
    if (checkpoint->resume == JOB_RESUME_STEP)
        return json_integer((json_int_t)checkpoint->resume_step);
    bool never = checkpoint->resume == JOB_RESUME_NEVER;
    return json_string(never ? "never" : "auto");
}

SCHEMA(resume_schema) {
    return json_pack("{s:[{s:[s, s]}, o]}", "anyOf", "enum", "auto", "never",
                     job_value_integer_schema(key));
}

/* One number, or several in ascending order. */
READ(read_counts) {
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

WRITE(write_counts) {
    const struct job_counts *counts = field;
    json_t *list = counts->count ? json_array() : NULL;
    for (unsigned i = 0; i < counts->count; i++)
        json_array_append_new(list, json_integer(counts->values[i]));
    return list;
}

ALLOW(allow_counts) {
    snprintf(text, size,
             "an integer from %.0f to %.0f, or an array of up to %d of them "
             "that ascend",
             key->min, key->max, JOB_MAX_COUNTS);
}

SCHEMA(counts_schema) {
    json_t *one = job_value_integer_schema(key);
    return json_pack("{s:[o, {s:s, s:i, s:i, s:b, s:O}]}", "anyOf", one, "type",
                     "array", "minItems", 1, "maxItems", JOB_MAX_COUNTS,
                     "uniqueItems", 1, "items", one);
}

/* Initial values, by torch's and Keras's names. */

/* The names of a and b; the first of two that is `optional` is 0 by default. */
static const struct init_word {
    const char *word, *a, *b;
    bool optional;
} init_words[JOB_INIT_KINDS] = {
    [JOB_INIT_DEFAULT] = {""},
    [JOB_INIT_ZEROS] = {"zeros"},
    [JOB_INIT_ONES] = {"ones"},
    [JOB_INIT_CONSTANT] = {"constant", "value"},
    [JOB_INIT_UNIFORM] = {"uniform", "a", "b"},
    [JOB_INIT_NORMAL] = {"normal", "mean", "std", true},
    [JOB_INIT_TRUNCATED_NORMAL] = {"truncated_normal", "mean", "std", true},
    [JOB_INIT_XAVIER_UNIFORM] = {"xavier_uniform"},
    [JOB_INIT_GLOROT_UNIFORM] = {"glorot_uniform"},
    [JOB_INIT_XAVIER_NORMAL] = {"xavier_normal"},
    [JOB_INIT_GLOROT_NORMAL] = {"glorot_normal"},
    [JOB_INIT_KAIMING_UNIFORM] = {"kaiming_uniform"},
    [JOB_INIT_HE_UNIFORM] = {"he_uniform"},
    [JOB_INIT_KAIMING_NORMAL] = {"kaiming_normal"},
    [JOB_INIT_HE_NORMAL] = {"he_normal"},
};

/* Numbers that float32 holds. */
static bool read_init_number(double *out, const json_t *value) {
    *out = json_number_value(value);
    return json_is_number(value) && fabs(*out) <= JOB_UNBOUNDED;
}

/* The numbers of INIT's kind, the only ones in OBJECT beside its type. */
static bool read_numbers(struct job_init *init, const json_t *object) {
    const struct init_word *word = &init_words[init->kind];
    const json_t *a = word->a ? json_object_get(object, word->a) : NULL;
    const json_t *b = word->b ? json_object_get(object, word->b) : NULL;
    size_t numbers = (a != NULL) + (b != NULL);
    bool complete = (!word->a || a || word->optional) && (!word->b || b);
    if (!complete || (object && json_object_size(object) != 1 + numbers))
        return false;
    if ((a && !read_init_number(&init->a, a)) ||
        (b && !read_init_number(&init->b, b)))
        return false;
    return init->kind == JOB_INIT_UNIFORM ? init->a < init->b : init->b >= 0;
}

static int last_kind(bool by_fans) {
    return by_fans ? JOB_INIT_KINDS - 1 : JOB_INIT_TRUNCATED_NORMAL;
}

bool job_init_read(struct job_init *out, const json_t *value, bool by_fans) {
    const json_t *object = json_is_object(value) ? value : NULL;
    const json_t *type = object ? json_object_get(object, "type") : value;
    const char *name = json_string_value(type);
    int last = last_kind(by_fans);
    for (int kind = JOB_INIT_ZEROS; name && kind <= last; kind++) {
        struct job_init init = {.kind = (enum job_init_kind)kind};
        if (strcasecmp(name, init_words[kind].word))
            continue;
        if (!read_numbers(&init, object))
            return false;
        *out = init;
        return true;
    }
    return false;
}

/* INIT as JSON, which the caller frees; NULL if it is not given. */
static json_t *job_init_write(const struct job_init *init) {
    const struct init_word *word = &init_words[init->kind];
    if (init->kind == JOB_INIT_DEFAULT)
        return NULL;
    if (!word->a)
        return json_string(word->word);
    json_t *object =
        json_pack("{s:s, s:f}", "type", word->word, word->a, init->a);
    if (word->b)
        json_object_set_new(object, word->b, json_real(init->b));
    return object;
}

void job_init_allowed(bool by_fans, char *text, size_t size) {
    snprintf(text, size,
             "\"zeros\", \"ones\", {\"type\": \"constant\", \"value\"}, "
             "\"uniform\" with \"a\", \"b\", \"normal\" or "
             "\"truncated_normal\" with \"mean\", \"std\"%s",
             by_fans ? ", \"xavier_\", \"glorot_\", \"kaiming_\" or \"he_\" "
                       "and \"uniform\" or \"normal\""
                     : "");
}

/* {"type": WORD} and its numbers, each one that is not optional. */
static json_t *init_object_schema(const struct init_word *word) {
    json_t *members =
        json_pack("{s:o}", "type", job_value_word_schema(word->word));
    json_t *required = json_pack("[s]", "type");
    const char *const names[] = {word->a, word->b};
    for (int i = 0; i < 2 && names[i]; i++) {
        bool deviation = word->optional && i;
        json_object_set_new(members, names[i],
                            json_pack("{s:s, s:f, s:f}", "type", "number",
                                      "minimum", deviation ? 0 : -JOB_UNBOUNDED,
                                      "maximum", JOB_UNBOUNDED));
        if (!word->optional || i)
            json_array_append_new(required, json_string(names[i]));
    }
    return json_pack("{s:s, s:o, s:o, s:b}", "type", "object", "properties",
                     members, "required", required, "additionalProperties", 0);
}

json_t *job_init_schema(bool by_fans) {
    json_t *any = json_array();
    for (int kind = JOB_INIT_ZEROS; kind <= last_kind(by_fans); kind++) {
        if (!init_words[kind].a)
            json_array_append_new(any,
                                  job_value_word_schema(init_words[kind].word));
        json_array_append_new(any, init_object_schema(&init_words[kind]));
    }
    return json_pack("{s:o}", "anyOf", any);
}

READ(read_init) {
    return job_init_read(field, value, key->kind == JOB_KIND_INIT);
}

WRITE(write_init) {
    return job_init_write(field);
}

ALLOW(allow_init) {
    job_init_allowed(key->kind == JOB_KIND_INIT, text, size);
}

SCHEMA(init_schema) {
    return job_init_schema(key->kind == JOB_KIND_INIT);
}

static const struct job_value_kind kinds[JOB_KINDS] = {
    [JOB_KIND_BOOL] = {read_bool, write_bool, .all_allow = "true or false",
                       .all_schema = "{\"type\": \"boolean\"}"},
    [JOB_KIND_U32] = {read_u32, write_u32, job_value_allow_integer,
                      job_value_integer_schema},
    [JOB_KIND_U64] = {read_u64, write_u64, job_value_allow_integer,
                      job_value_integer_schema},
    [JOB_KIND_REAL] = {read_real, write_real, allow_real,
                       job_value_real_schema},
    [JOB_KIND_CHOICE] = {read_choice, write_choice, allow_words, words_schema},
    [JOB_KIND_BOOL_WORD] = {read_bool_word, write_bool_word, allow_words,
                            words_schema},
    [JOB_KIND_TEXT] = {job_value_read_text, job_value_write_text, .owned = 1,
                       .all_allow = "a string",
                       .all_schema = "{\"type\": \"string\"}"},
    [JOB_KIND_PATH] = {read_path, job_value_write_text, allow_path, path_schema,
                       1},
    [JOB_KIND_FILES] = {read_files, write_files, allow_files, files_schema,
                        JOB_MAX_FILES},
    [JOB_KIND_NAMES] = {read_names, write_kept, .owned = 1,
                        .all_allow = "an array of names",
                        .all_schema =
                            "{\"type\": \"array\", \"minItems\": 1, \"items\": "
                            "{\"type\": \"string\", \"minLength\": 1}}"},
    /* What a member is, its models say (struct job_models). */
    [JOB_KIND_OBJECT] =
        {read_named_objects, write_kept, .owned = 1,
         .all_allow =
             "an object with an object for each name, whose \"file\" is a path",
         .all_schema = "{\"type\": \"object\", \"minProperties\": 1}"},
    [JOB_KIND_WIDTHS] = {read_widths, write_widths, allow_widths,
                         widths_schema},
    [JOB_KIND_REALS] = {read_reals, write_reals, allow_reals, reals_schema},
    [JOB_KIND_BETAS] =
        {read_betas, write_betas,
         .all_allow = "an array of two numbers, at least 0, less than 1",
         .all_schema =
             "{\"type\": \"array\", \"minItems\": 2, \"maxItems\": 2, \"items\": "
             "{\"type\": \"number\", \"minimum\": 0, \"exclusiveMaximum\": 1}}"},
    [JOB_KIND_STEPS] = {read_steps, write_steps, job_value_allow_integer,
                        job_value_integer_schema},
    [JOB_KIND_STALENESS] = {read_staleness, write_staleness, allow_staleness,
                            staleness_schema},
    [JOB_KIND_PARAMETERS] = {read_parameters, write_u64, allow_parameters,
                             parameters_schema},
    [JOB_KIND_RESUME] = {read_resume, write_resume, .schema = resume_schema,
                         .all_allow =
                             "\"auto\", \"never\" or the number of a step"},
    [JOB_KIND_COUNTS] = {read_counts, write_counts, allow_counts,
                         counts_schema},
    [JOB_KIND_INIT] = {read_init, write_init, allow_init, init_schema},
    [JOB_KIND_ROW_INIT] = {read_init, write_init, allow_init, init_schema},
};

/* The struct of a model is the job's own. */
static void *job_value_field(const struct job_key *key, const struct job *job) {
    const void *base = key->of_model ? job->model.settings : job;
    return (char *)base + key->field;
}

bool job_value_read(const struct job_key *key, const json_t *value,
                    const struct job_reader *reader) {
    void *field = job_value_field(key, reader->job);
    errno = 0;
    bool read = kinds[key->kind].read(key, value, field, reader);
    reader->job->is_cut |= !read && errno == ENOMEM;
    return read;
}

json_t *job_value_write(const struct job_key *key, const struct job *job) {
    return kinds[key->kind].write(key, job_value_field(key, job));
}

void job_value_free(const struct job_key *key, struct job *job) {
    if (key->of_model &&
        (!job->model.settings || !job_schema_applies(key, job)))
        return; /* another model's */
    char **owned = job_value_field(key, job);
    for (unsigned i = 0; i < kinds[key->kind].owned; i++) {
        free(owned[i]);
        owned[i] = NULL;
    }
}

void job_value_allowed(const struct job_key *key, char *text, size_t size) {
    const struct job_value_kind *kind = &kinds[key->kind];
    if (kind->all_allow)
        snprintf(text, size, "%s", kind->all_allow);
    else
        kind->allowed(key, text, size);
}

json_t *job_value_schema(const struct job_key *key) {
    const struct job_value_kind *kind = &kinds[key->kind];
    return kind->all_schema ? json_loads(kind->all_schema, 0, NULL)
                            : kind->schema(key);
}
