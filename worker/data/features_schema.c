/* SPDX-License-Identifier: Apache-2.0 */
/* One feature of a job as a JSON Schema: every key, then, by the feature's
 * type, the keys that it does not have and those that it needs. */
#include "core/tensor/layout.h"
#include "proto/job/job_init.h"
#include "worker/data/feature.h"

#include <float.h>
#include <string.h>

#define COUNT(most)                                                            \
    json_pack("{s:[s, s], s:i, s:I}", "type", "integer", "null", "minimum", 1, \
              "maximum", (json_int_t)(most))

static json_t *text_leaf(void) {
    return json_pack("{s:[s, s]}", "type", "string", "null");
}

/* Numbers of a float32. */
static json_t *float_leaf(double least) {
    return json_pack("{s:[s, s], s:f, s:f}", "type", "number", "null",
                     "minimum", least, "maximum", (double)FLT_MAX);
}

static json_t *nested_count(const char *name, int64_t most) {
    return json_pack("{s:[s, s], s:{s:{s:s, s:i, s:I}}, s:[s], s:b}", "type",
                     "object", "null", "properties", name, "type", "integer",
                     "minimum", 1, "maximum", (json_int_t)most, "required",
                     name, "additionalProperties", 0);
}

static json_t *list_leaf(json_t *item, int most) {
    return json_pack("{s:[s, s], s:i, s:i, s:o}", "type", "array", "null",
                     "minItems", 1, "maxItems", most, "items", item);
}

static json_t *init_leaf(void) {
    json_t *init = job_init_schema(false);
    json_array_append_new(json_object_get(init, "anyOf"),
                          json_pack("{s:s}", "type", "null"));
    return init;
}

/* What each key of any type takes; `of` depends on the type. */
static json_t *feature_members(void) {
    json_t *types = json_array();
    for (int t = 0; t < FEATURE_TYPES; t++)
        json_array_append_new(types, json_string(feature_type_name(t)));
    return json_pack(
        "{s:{s:o}, s:{s:[s, s, s]}, s:{s:[s, n]}, s:o, s:o, s:o, s:{s:[s, s], "
        "s:i}, s:o, s:o, s:o, s:o, s:o, s:o, s:{s:[s, s, s, n]}, s:o, s:o}",
        "type", "enum", types, "of", "type", "string", "array", "null",
        "transform", "enum", "log1p", "shape", COUNT(FEATURE_MAX_WIDTH),
        "default_value", float_leaf(-(double)FLT_MAX), "boundaries",
        list_leaf(json_pack("{s:s}", "type", "number"), FEATURE_MAX_WIDTH - 1),
        "file", "type", "string", "null", "minLength", 1, "values",
        list_leaf(
            json_pack("{s:s, s:s}", "type", "string", "pattern", "^[^\r\n]+$"),
            INT32_MAX),
        "size", COUNT(INT64_MAX), "max_rows", COUNT(INT64_MAX), "admit",
        nested_count("count", LAYOUT_MAX_ADMIT), "expire",
        nested_count("steps", INT64_MAX), "dim", COUNT(LAYOUT_MAX_DIM),
        "combiner", "enum", "sum", "mean", "sqrtn", "init", init_leaf(),
        "init_range", float_leaf(0));
}

/* A sentence for editors; docs/data.md says more. */
static const struct {
    const char *name, *text;
} feature_meanings[] = {
    {"type", "what the feature gives: numbers, ids, or rows of a table by ids"},
    {"of", "the column that it reads, in place of its own name; of crossed "
           "and embedding: the features"},
    {"transform", "numeric: log1p gives log(1 + max(x, 0))"},
    {"shape", "numeric: how many values a list has"},
    {"default_value", "numeric, bucketized: the number where there is none"},
    {"boundaries", "bucketized: where buckets begin, ascending"},
    {"file", "vocabulary: a file of words, one a line, from data.dir"},
    {"values", "vocabulary: the words"},
    {"size", "the number of ids; without it they have 64 bits"},
    {"max_rows", "more rows of its table, on all ps, end the run"},
    {"admit", "pushes after which a row of its table begins to count"},
    {"expire", "updates without a push after which a row is removed"},
    {"dim", "embedding: floats of a row"},
    {"combiner", "embedding: how the rows of a sample's ids become one"},
    {"init", "embedding: initial rows"},
    {"init_range", "embedding: initial rows are uniform within it"},
};

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

static bool has_key(enum feature_type type, const char *name) {
    const char *const *keys = feature_keys(type);
    while (*keys && strcmp(*keys, name))
        keys++;
    return *keys;
}

static json_t *rule_of_type(enum feature_type type, json_t *members) {
    json_t *others = json_object(), *all = json_array();
    const char *name;
    json_t *value;
    json_object_foreach(members, name, value) if (!has_key(type, name))
        json_object_set_new(others, name, json_pack("{s:s}", "type", "null"));
    if (type < FEATURE_CROSSED)
        json_object_set_new(others, "of", text_leaf());
    json_array_append_new(all, json_pack("{s:o}", "properties", others));
    if (needs[type])
        json_array_append_new(all, json_loads(needs[type], 0, NULL));
    return json_pack("{s:{s:[s], s:{s:{s:s}}}, s:{s:o}}", "if", "required",
                     "type", "properties", "type", "const",
                     feature_type_name(type), "then", "allOf", all);
}

json_t *feature_schema(void) {
    json_t *members = feature_members(), *all = json_array();
    size_t count = sizeof feature_meanings / sizeof *feature_meanings;
    for (size_t m = 0; m < count; m++)
        describe(json_object_get(members, feature_meanings[m].name),
                 feature_meanings[m].text);
    for (int t = 0; t < FEATURE_TYPES; t++)
        json_array_append_new(all, rule_of_type(t, members));
    return json_pack("{s:[s, s], s:o, s:[s], s:b, s:o}", "type", "object",
                     "null", "properties", members, "required", "type",
                     "additionalProperties", 0, "allOf", all);
}
