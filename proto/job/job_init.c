/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/job/job_init.h"

#include "proto/job/job_schema.h"
#include "proto/job/job_value.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* The names of a and b; the first of two that is `optional` is 0 by default. */
static const struct init_word {
    const char *word, *a, *b;
    bool optional;
} words[JOB_INIT_KINDS] = {
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
    const struct init_word *word = &words[init->kind];
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
        if (strcasecmp(name, words[kind].word))
            continue;
        if (!read_numbers(&init, object))
            return false;
        *out = init;
        return true;
    }
    return false;
}

json_t *job_init_write(const struct job_init *init) {
    const struct init_word *word = &words[init->kind];
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
        if (!words[kind].a)
            json_array_append_new(any, job_value_word_schema(words[kind].word));
        json_array_append_new(any, init_object_schema(&words[kind]));
    }
    return json_pack("{s:o}", "anyOf", any);
}
