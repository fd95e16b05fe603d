/* SPDX-License-Identifier: Apache-2.0 */
#include "commands/measure/compare_file.h"

#include "core/base/input_file.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LARGEST = 16 << 20 /* bytes of a file */ };

/* Numbers that doubles, and columns of a table, have room for. */
static const double MOST = 1e15;

enum kind { WORDS, DATE, MODE, COUNT, REAL, LOSS, BOOLEAN, COUNTS, OBJECT };

/* When a key is there. One that came in with a later release may be missing
 * from a file of an earlier one. */
enum need { ALWAYS, MEASURED, LATER };

struct field {
    const char *key;
    enum kind kind;
    enum need need;
    bool null;                   /* allowed */
    const struct field *members; /* of an object, or of the objects of a list;
                                    ends with a key NULL */
    bool list;
};

/* One of a kind, an object of MEMBERS, and a list of such objects; NULLS: null
 * is allowed too. */
#define VALUE(name, of, when, nulls)                                           \
    { .key = name, .kind = of, .need = when, .null = nulls }
#define INSIDE(name, inside, when, nulls)                                      \
    {                                                                          \
        .key = name, .kind = OBJECT, .need = when, .null = nulls,              \
        .members = inside                                                      \
    }
#define LIST(name, inside)                                                     \
    { .key = name, .kind = OBJECT, .members = inside, .list = true }

static const struct field rates[] = {
    VALUE("median", REAL, ALWAYS, true), VALUE("min", REAL, ALWAYS, true),
    VALUE("max", REAL, ALWAYS, true),    VALUE("mean", REAL, ALWAYS, true),
    VALUE("spread", REAL, ALWAYS, true), {0}};

static const struct field seconds[] = {
    VALUE("input", REAL, ALWAYS, true),
    VALUE("compute", REAL, ALWAYS, true),
    VALUE("waiting_for_weights", REAL, ALWAYS, true),
    VALUE("waiting_for_gradients", REAL, ALWAYS, true),
    VALUE("update", REAL, ALWAYS, true),
    {0}};

static const struct field tables[] = {
    VALUE("rows", REAL, ALWAYS, true),
    VALUE("unbounded", COUNT, LATER, true),
    VALUE("bytes", REAL, LATER, true),
    VALUE("trainer_free_bytes", REAL, LATER, true),
    VALUE("row_bytes_per_step", REAL, LATER, true),
    VALUE("dense_bytes", REAL, LATER, true),
    VALUE("replicated_bytes", REAL, LATER, true),
    VALUE("dense_bytes_per_step", REAL, LATER, true),
    {0}};

static const struct field cases[] = {
    VALUE("mode", MODE, ALWAYS, false),
    VALUE("workers", COUNT, ALWAYS, false),
    VALUE("ps", COUNT, ALWAYS, false),
    VALUE("processes", COUNT, ALWAYS, true),
    VALUE("runs", COUNT, ALWAYS, false),
    VALUE("error", WORDS, LATER, true),
    VALUE("replicas", COUNT, MEASURED, true),
    VALUE("devices", COUNT, LATER, true),
    INSIDE("examples_per_second", rates, MEASURED, true),
    INSIDE("steps_per_second", rates, MEASURED, true),
    VALUE("bytes_per_step", REAL, MEASURED, true),
    INSIDE("seconds_per_step", seconds, MEASURED, true),
    VALUE("link_gbits", REAL, MEASURED, true),
    VALUE("worker_link_gbits", REAL, MEASURED, true),
    VALUE("ps_link_gbits", REAL, MEASURED, true),
    VALUE("bound_examples_per_second", REAL, MEASURED, true),
    VALUE("reached", REAL, MEASURED, true),
    VALUE("limit", WORDS, MEASURED, true),
    VALUE("predicted_examples_per_second", REAL, MEASURED, true),
    INSIDE("tables", tables, LATER, false),
    VALUE("train_loss", LOSS, ALWAYS, true),
    VALUE("test_accuracy", REAL, ALWAYS, true),
    VALUE("test_auc", REAL, LATER, true),
    VALUE("test_logloss", LOSS, LATER, true),
    VALUE("diverged", BOOLEAN, ALWAYS, true),
    VALUE("speed_up", REAL, LATER, true),
    VALUE("ideal_speed_up", REAL, LATER, true),
    VALUE("efficiency", REAL, LATER, true),
    {0}};

static const struct field fastest[] = {
    VALUE("mode", MODE, ALWAYS, false), VALUE("ps", COUNT, ALWAYS, false), {0}};

static const struct field crossover[] = {
    VALUE("workers", COUNT, ALWAYS, false),
    VALUE("measured_ps", COUNT, LATER, true),
    VALUE("fast_ps", COUNTS, LATER, true),
    VALUE("faster_ps", COUNTS, LATER, true),
    VALUE("slower_ps", COUNTS, LATER, true),
    INSIDE("fastest", fastest, LATER, true),
    VALUE("measured_answer", WORDS, ALWAYS, true),
    VALUE("predicted_ps", COUNT, LATER, true),
    VALUE("formula", WORDS, LATER, true),
    VALUE("predicted_answer", WORDS, ALWAYS, true),
    {0}};

static const struct field machine[] = {
    VALUE("processor", WORDS, ALWAYS, false),
    VALUE("cores", COUNT, ALWAYS, false),
    VALUE("memory_bytes", REAL, ALWAYS, false),
    VALUE("kernel", WORDS, ALWAYS, false),
    {0}};

static const struct field fields[] = {
    VALUE("job", WORDS, LATER, true), /* no path that is not UTF-8 */
    VALUE("command", WORDS, ALWAYS, true),
    VALUE("date", DATE, ALWAYS, false),
    VALUE("rounds", COUNT, ALWAYS, true),
    VALUE("repeats", COUNT, ALWAYS, false),
    VALUE("unit", WORDS, ALWAYS, false),
    VALUE("samples_per_step", COUNT, ALWAYS, true),
    VALUE("cores", COUNT, ALWAYS, true),
    VALUE("members", COUNT, ALWAYS, true),
    VALUE("assumed_link_gbits", REAL, ALWAYS, true),
    VALUE("job_text", WORDS, LATER, true),
    INSIDE("machine", machine, LATER, false),
    VALUE("version", WORDS, LATER, false),
    VALUE("commit", WORDS, LATER, false),
    VALUE("equal_seconds", REAL, ALWAYS, true),
    VALUE("first_loss", LOSS, ALWAYS, true),
    LIST("cases", cases),
    LIST("crossover", crossover),
    {0}};

static const char *const allowed[] = {
    [WORDS] = "a text",
    [DATE] = "a time such as 2026-01-31T12:00:00Z",
    [MODE] = "ps, ps-async or allreduce",
    [COUNT] = "a whole number from 0 on, below 10^15",
    [REAL] = "a number from 0 on, below 10^15",
    [LOSS] = "a number",
    [BOOLEAN] = "true or false",
    [COUNTS] = "a list of whole numbers from 0 on",
    [OBJECT] = "an object"};

static bool is_count(const json_t *value) {
    return json_is_integer(value) && json_integer_value(value) >= 0 &&
           (double)json_integer_value(value) < MOST;
}

static bool is_counts(const json_t *value) {
    size_t i;
    const json_t *one;
    json_array_foreach(value, i, one) if (!is_count(one)) return false;
    return json_is_array(value);
}

/* It names a folder too. */
static bool is_date(const char *text) {
    static const char form[] = "0000-00-00T00:00:00Z";
    bool fits = text && strlen(text) == strlen(form);
    for (size_t i = 0; fits && form[i]; i++)
        fits = form[i] == '0' ? text[i] >= '0' && text[i] <= '9'
                              : text[i] == form[i];
    return fits;
}

static bool is_mode(const char *text) {
    return text && (!strcmp(text, "ps") || !strcmp(text, "ps-async") ||
                    !strcmp(text, "allreduce"));
}

static bool is_of(enum kind kind, const json_t *value) {
    double number = json_number_value(value);
    switch (kind) {
    case WORDS:
        return json_is_string(value);
    case DATE:
        return is_date(json_string_value(value));
    case MODE:
        return is_mode(json_string_value(value));
    case COUNT:
        return is_count(value);
    case REAL:
        return json_is_number(value) && number >= 0 && number < MOST;
    case LOSS:
        return json_is_number(value);
    case BOOLEAN:
        return json_is_boolean(value);
    case COUNTS:
        return is_counts(value);
    case OBJECT:
    default:
        return json_is_object(value);
    }
}

/* Where a value stands: the file, and the key that PATH leads to. */
struct place {
    const char *file;
    char path[128];
};

static enum status bad_value(const struct place *place, const char *key,
                             const json_t *value, const char *what, bool null,
                             struct failure *why) {
    char *found = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT |
                                        JSON_REAL_PRECISION(9));
    status_fail(why, FAILURE_BAD_FLAG_VALUE,
                "--from %s: %s%s: found %.80s%s; allowed: %s%s", place->file,
                place->path, key, found ? found : "nothing",
                found && strlen(found) > 80 ? "..." : "", what,
                null ? ", or null" : "");
    free(found);
    return STATUS_CONFIG;
}

static enum status compare_file_check_object(const struct place *place,
                                             const struct field *known,
                                             const json_t *object,
                                             struct failure *why);

static enum status compare_file_check_list(const struct place *place,
                                           const struct field *field,
                                           const json_t *value,
                                           struct failure *why) {
    enum status status = STATUS_OK;
    size_t i;
    const json_t *one;
    if (!json_is_array(value))
        return bad_value(place, field->key, value, "a list of objects", false,
                         why);
    json_array_foreach(value, i, one) {
        struct place inside = {.file = place->file};
        char name[64];
        snprintf(name, sizeof name, "%s[%zu]", field->key, i);
        snprintf(inside.path, sizeof inside.path, "%.40s%.64s.", place->path,
                 name);
        if (!status && !json_is_object(one))
            status = bad_value(place, name, one, allowed[OBJECT], false, why);
        if (!status)
            status =
                compare_file_check_object(&inside, field->members, one, why);
    }
    return status;
}

static enum status check_value(const struct place *place,
                               const struct field *field, const json_t *value,
                               struct failure *why) {
    struct place inside = {.file = place->file};
    if (field->null && json_is_null(value))
        return STATUS_OK;
    if (field->list)
        return compare_file_check_list(place, field, value, why);
    if (!is_of(field->kind, value))
        return bad_value(place, field->key, value, allowed[field->kind],
                         field->null, why);
    if (!field->members)
        return STATUS_OK;
    snprintf(inside.path, sizeof inside.path, "%.64s%.60s.", place->path,
             field->key);
    return compare_file_check_object(&inside, field->members, value, why);
}

static enum status compare_file_check_names(const struct place *place,
                                            const struct field *known,
                                            const json_t *object,
                                            struct failure *why) {
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)object, name, value) {
        const struct field *field = known;
        while (field->key && strcmp(field->key, name))
            field++;
        if (!field->key)
            return status_fail(
                why, FAILURE_BAD_FLAG_VALUE,
                "--from %s: %s%.80s: no such key is known; the file has to be "
                "what `capstan compare --json` of this release, or of an "
                "earlier one, has printed",
                place->file, place->path, name);
    }
    return STATUS_OK;
}

static enum status compare_file_check_object(const struct place *place,
                                             const struct field *known,
                                             const json_t *object,
                                             struct failure *why) {
    enum status status = compare_file_check_names(place, known, object, why);
    bool measured = json_integer_value(json_object_get(object, "runs")) > 0;
    for (const struct field *field = known; !status && field->key; field++) {
        const json_t *value = json_object_get(object, field->key);
        if (value)
            status = check_value(place, field, value, why);
        else if (field->need == ALWAYS || (field->need == MEASURED && measured))
            status = status_fail(
                why, FAILURE_BAD_FLAG_VALUE,
                "--from %s: %s%s: the key is missing; the file has to be what "
                "`capstan compare --json` has printed",
                place->file, place->path, field->key);
    }
    return status;
}

enum status compare_file_parse(json_t **out, const char *text, size_t size,
                               const char *path, struct failure *why) {
    struct place place = {.file = path};
    json_error_t error;
    enum status status;
    *out = json_loadb(text, size, JSON_REJECT_DUPLICATES, &error);
    if (!*out)
        return status_fail(why, FAILURE_BAD_FLAG_VALUE,
                           "--from %s: line %d, column %d: no JSON: %s", path,
                           error.line, error.column, error.text);
    if (json_is_object(*out))
        status = compare_file_check_object(&place, fields, *out, why);
    else
        status = status_fail(why, FAILURE_BAD_FLAG_VALUE,
                             "--from %s: found no object, which `capstan "
                             "compare --json` prints",
                             path);
    if (status) {
        json_decref(*out);
        *out = NULL;
    }
    return status;
}

enum status compare_file_read(json_t **out, const char *path,
                              struct failure *why) {
    int descriptor;
    *out = NULL;
    enum status status =
        input_file_open(&descriptor, path, "the file of a comparison (--from)",
                        FAILURE_BAD_FLAG_VALUE, why);
    if (status)
        return status;
    FILE *file = fdopen(descriptor, "r");
    char *text = malloc(LARGEST + 1);
    size_t size = file && text ? fread(text, 1, LARGEST + 1, file) : 0;
    if (!file || !text)
        status = status_fail(why, FAILURE_NO_MEMORY, "no memory for --from %s",
                             path);
    else if (ferror(file))
        status =
            status_errno(why, FAILURE_BAD_FLAG_VALUE, errno, "--from %s", path);
    else if (size > LARGEST)
        status = status_fail(why, FAILURE_BAD_FLAG_VALUE,
                             "--from %s: found more than %d MiB, which is no "
                             "comparison",
                             path, LARGEST >> 20);
    else
        status = compare_file_parse(out, text, size, path, why);
    if (file)
        fclose(file);
    free(text);
    return status;
}
