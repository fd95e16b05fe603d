/* SPDX-License-Identifier: Apache-2.0 */
/* One feature of a job as a JSON Schema: every key, then, by the feature's
 * type, the keys that it does not have and those that it needs. */
#include "proto/job/job_value.h"
#include "worker/data/feature.h"

#include <string.h>

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
