/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base/yaml_json.h"

#include "core/base/input_file.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <yaml.h>

enum { MAX_DEPTH = 64, MAX_VALUES = 100000, MAX_BYTES = 1 << 24 };

static const char too_many[] = "more values or levels than a job has";

struct yaml_reader {
    const char *path;
    yaml_document_t document;
    unsigned depth, values;
    struct failure *why;
};

static json_t *yaml_refuse(struct yaml_reader *reader, const yaml_mark_t *mark,
                           const char *what) {
    enum status status =
        status_fail(reader->why, FAILURE_CLUSTER_INVALID, "%s:%zu:%zu: %s",
                    reader->path, mark->line + 1, mark->column + 1, what);
    (void)status;
    return NULL;
}

static bool is_one_of(const char *text, const char *const *words) {
    while (*words && strcmp(text, *words))
        words++;
    return *words;
}

/* NULL: a number that is too large, or text that is not UTF-8. */
static json_t *yaml_plain_word(const char *text) {
    static const char *const nulls[] = {"", "~", "null", "Null", "NULL", NULL};
    static const char *const yes[] = {"true", "True", "TRUE", NULL};
    static const char *const no[] = {"false", "False", "FALSE", NULL};
    const char *digits = text + strspn(text, "+-");
    char *end;
    if (is_one_of(text, nulls))
        return json_null();
    if (is_one_of(text, yes) || is_one_of(text, no))
        return json_boolean(is_one_of(text, yes));
    if (digits - text > 1 || !*digits || !strchr("0123456789.", *digits) ||
        strspn(digits, "0123456789.eE+-") != strlen(digits))
        return json_string(text);
    errno = 0;
    long long integer = strtoll(text, &end, 10);
    if (!*end)
        return errno ? NULL : json_integer(integer);
    double real = strtod(text, &end);
    if (*end)
        return json_string(text);
    return isfinite(real) ? json_real(real) : NULL;
}

static json_t *yaml_value(struct yaml_reader *reader, int number);

static json_t *yaml_sequence(struct yaml_reader *reader,
                             const yaml_node_t *node) {
    json_t *array = json_array();
    const yaml_node_item_t *item = node->data.sequence.items.start;
    for (; item < node->data.sequence.items.top; item++) {
        json_t *value = yaml_value(reader, *item);
        if (!value) {
            json_decref(array);
            return NULL;
        }
        json_array_append_new(array, value);
    }
    return array;
}

/* As of {"key"} and {"key":}, which in JSON are mistakes. */
static bool yaml_is_empty(const yaml_node_t *node) {
    return node->type == YAML_SCALAR_NODE && !node->data.scalar.length &&
           node->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
}

/* Adds PAIR of MAPPING to OBJECT; false: it is refused. */
static bool yaml_add_pair(struct yaml_reader *reader, json_t *object,
                          const yaml_node_t *mapping,
                          const yaml_node_pair_t *pair) {
    yaml_document_t *document = &reader->document;
    const yaml_node_t *key = yaml_document_get_node(document, pair->key);
    if (mapping->data.mapping.style == YAML_FLOW_MAPPING_STYLE &&
        yaml_is_empty(yaml_document_get_node(document, pair->value)))
        return yaml_refuse(reader, &key->start_mark, "a key without a value");
    if (key->type != YAML_SCALAR_NODE)
        return yaml_refuse(reader, &key->start_mark, "a key that is no word");
    const char *name = (const char *)key->data.scalar.value;
    if (json_object_get(object, name))
        return yaml_refuse(reader, &key->start_mark, "a key that occurs twice");
    json_t *value = yaml_value(reader, pair->value);
    if (value && json_object_set_new(object, name, value))
        return yaml_refuse(reader, &key->start_mark, "a key that is not UTF-8");
    return value;
}

static json_t *yaml_mapping(struct yaml_reader *reader,
                            const yaml_node_t *node) {
    json_t *object = json_object();
    const yaml_node_pair_t *pair = node->data.mapping.pairs.start;
    for (; pair < node->data.mapping.pairs.top; pair++)
        if (!yaml_add_pair(reader, object, node, pair)) {
            json_decref(object);
            return NULL;
        }
    return object;
}

static json_t *yaml_word(struct yaml_reader *reader, const yaml_node_t *node) {
    const char *text = (const char *)node->data.scalar.value;
    bool plain = node->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
    json_t *value = plain ? yaml_plain_word(text) : json_string(text);
    return value ? value
                 : yaml_refuse(reader, &node->start_mark,
                               "a number that is too large, or a value that "
                               "is not UTF-8");
}

/* An alias is the number of the node that it stands for, so nodes may contain
 * themselves. */
static json_t *yaml_value(struct yaml_reader *reader, int number) {
    yaml_node_t *node = yaml_document_get_node(&reader->document, number);
    json_t *value;
    if (++reader->values > MAX_VALUES || reader->depth == MAX_DEPTH)
        return yaml_refuse(reader, &node->start_mark, too_many);
    reader->depth++;
    if (node->type == YAML_MAPPING_NODE)
        value = yaml_mapping(reader, node);
    else
        value = node->type == YAML_SEQUENCE_NODE ? yaml_sequence(reader, node)
                                                 : yaml_word(reader, node);
    reader->depth--;
    return value;
}

/* Reads the document; NULL: it is refused. */
static json_t *yaml_document(struct yaml_reader *reader) {
    yaml_node_t *root = yaml_document_get_root_node(&reader->document);
    yaml_mark_t start = {0};
    if (root && root->type == YAML_MAPPING_NODE)
        return yaml_value(reader, 1);
    return yaml_refuse(reader, root ? &root->start_mark : &start,
                       "not a mapping of keys to values");
}

/* Refuses what follows the document; a document without a root is the end. */
static bool yaml_ends(struct yaml_reader *reader, yaml_parser_t *parser) {
    yaml_document_t next;
    if (!yaml_parser_load(parser, &next))
        return yaml_refuse(reader, &parser->problem_mark, "not YAML");
    const yaml_node_t *root = yaml_document_get_root_node(&next);
    bool end =
        !root || yaml_refuse(reader, &root->start_mark, "a second document");
    yaml_document_delete(&next);
    return end;
}

static enum status yaml_load(struct yaml_reader *reader, json_t **out,
                             yaml_parser_t *parser) {
    if (!yaml_parser_load(parser, &reader->document)) {
        yaml_refuse(reader, &parser->problem_mark,
                    parser->problem ? parser->problem : "not YAML");
    } else {
        *out = yaml_document(reader);
        yaml_document_delete(&reader->document);
        if (*out && !yaml_ends(reader, parser)) {
            json_decref(*out);
            *out = NULL;
        }
    }
    yaml_parser_delete(parser);
    return *out ? STATUS_OK : STATUS_CONFIG;
}

/* libyaml's time grows with the square of the levels, so they are counted
 * before it loads the document. True: TEXT has too many. Other mistakes are
 * left to the loader. */
static bool yaml_is_deep(struct yaml_reader *reader, const char *text,
                         size_t length) {
    yaml_parser_t parser;
    yaml_event_t event;
    unsigned depth = 0;
    bool ends = !yaml_parser_initialize(&parser);
    if (ends)
        return false;
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, length);
    while (!ends && yaml_parser_parse(&parser, &event)) {
        yaml_mark_t mark = event.start_mark;
        depth += event.type == YAML_SEQUENCE_START_EVENT ||
                 event.type == YAML_MAPPING_START_EVENT;
        depth -= event.type == YAML_SEQUENCE_END_EVENT ||
                 event.type == YAML_MAPPING_END_EVENT;
        ends = event.type == YAML_STREAM_END_EVENT || depth > MAX_DEPTH;
        yaml_event_delete(&event);
        if (depth > MAX_DEPTH)
            (void)yaml_refuse(reader, &mark, too_many);
    }
    yaml_parser_delete(&parser);
    return depth > MAX_DEPTH;
}

enum status yaml_json_parse(json_t **out, const char *text, size_t length,
                            const char *where, struct failure *why) {
    struct yaml_reader reader = {.path = where, .why = why};
    yaml_parser_t parser;
    *out = NULL;
    if (yaml_is_deep(&reader, text, length))
        return STATUS_CONFIG;
    if (!yaml_parser_initialize(&parser))
        return status_fail(why, FAILURE_NO_MEMORY, "%s: no memory", where);
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, length);
    return yaml_load(&reader, out, &parser);
}

/* Up to MAX_BYTES + 1 of FILE, the caller's; NULL: errno says why. */
static char *yaml_read(FILE *file, size_t *length) {
    char *text = NULL, piece[4096];
    size_t count;
    FILE *memory = open_memstream(&text, length);
    while (memory && (count = fread(piece, 1, sizeof piece, file)) &&
           (size_t)ftell(memory) <= MAX_BYTES)
        fwrite(piece, 1, count, memory);
    bool failed = ferror(file);
    if (memory && !fclose(memory) && !failed)
        return text;
    free(text);
    return NULL;
}

enum status yaml_json_load(json_t **out, const char *path,
                           struct failure *why) {
    int descriptor;
    size_t length;
    *out = NULL;
    enum status status = input_file_open(&descriptor, path, "the file",
                                         FAILURE_CLUSTER_INVALID, why);
    if (status)
        return status;
    FILE *file = fdopen(descriptor, "rb");
    char *text = file ? yaml_read(file, &length) : NULL;
    if (!text)
        status = status_errno(why, FAILURE_CLUSTER_INVALID, errno,
                              "%s: cannot read", path);
    else if (length > MAX_BYTES)
        status = status_fail(why, FAILURE_CLUSTER_INVALID,
                             "%s: found more than 16 MiB", path);
    else
        status = yaml_json_parse(out, text, length, path, why);
    free(text);
    if (file)
        fclose(file);
    else
        close(descriptor);
    return status;
}
