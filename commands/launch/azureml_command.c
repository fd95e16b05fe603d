/* SPDX-License-Identifier: Apache-2.0 */
#include "commands/launch/azureml_command.h"

#include "core/base/diagnostics.h"
#include "core/base/yaml_json.h"
#include "proto/cluster/azureml.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct command_reader {
    struct azureml_command *command;
    const json_t *root;
    char base[PATH_MAX];     /* the file's folder */
    char stem[NAME_MAX + 1]; /* its name, without an ending */
    const char *const *inputs;
    unsigned num_inputs;
    struct diagnostics problems;
};

/* NAME's text in --input NAME=TEXT, or NULL. */
static const char *given_input(const struct command_reader *reader,
                               const char *name) {
    size_t length = strlen(name);
    for (unsigned i = 0; i < reader->num_inputs; i++)
        if (!strncmp(reader->inputs[i], name, length) &&
            reader->inputs[i][length] == '=')
            return reader->inputs[i] + length + 1;
    return NULL;
}

/* azureml:, https://, wasbs:// and the like. */
static bool is_remote_path(const char *path) {
    size_t scheme = strspn(path, "abcdefghijklmnopqrstuvwxyz0123456789+.-");
    return scheme && path[scheme] == ':';
}

/* A shell takes PATH as one word. */
static bool is_plain_path(const char *path) {
    return !strpbrk(path, " \t\n'\"\\$`&|;<>()*?[]{}!#");
}

/* The absolute path of PATH, which starts at FOLDER; the caller frees it. NULL:
 * there is no such file, or a shell would not take it as one word. */
static char *local_path(const char *folder, const char *path) {
    char whole[2 * PATH_MAX];
    snprintf(whole, sizeof whole, "%s%s%s", *path == '/' ? "" : folder,
             *path == '/' ? "" : "/", path);
    char *found = realpath(whole, NULL);
    if (found && !is_plain_path(found)) {
        free(found);
        return NULL;
    }
    return found;
}

/* VALUE as Azure ML's clients write it, by Python's str(); NULL: it is none.
 * The caller frees it. */
static char *scalar_text(const json_t *value) {
    if (json_is_string(value))
        return strdup(json_string_value(value));
    if (json_is_boolean(value))
        return strdup(json_is_true(value) ? "True" : "False");
    if (json_is_number(value))
        return json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(15));
    return NULL;
}

/* The path of an input that is a file or a folder. */
static char *input_path(struct command_reader *reader, const char *name,
                        const json_t *declared) {
    const json_t *path = azureml_find_key(declared, "path");
    const char *given = given_input(reader, name);
    const char *text = given ? given : json_string_value(path);
    char key[128], allowed[256];
    char *found = text ? local_path(given ? "." : reader->base, text) : NULL;
    if (found)
        return found;
    snprintf(key, sizeof key, given ? "--input %s" : "inputs.%s.path", name);
    snprintf(allowed, sizeof allowed,
             "a path that exists on this machine, without blanks and "
             "characters that a shell reads%s%s%s",
             given ? "" : "; --input ", given ? "" : name,
             given ? "" : "=PATH replaces it");
    json_t *shown = text ? json_string(text) : json_null();
    diagnostics_value(&reader->problems, key, shown, allowed);
    json_decref(shown);
    return NULL;
}

static char *input_text(struct command_reader *reader, const char *name) {
    const json_t *inputs = azureml_find_key(reader->root, "inputs");
    const json_t *declared = json_object_get(inputs, name);
    const char *given = given_input(reader, name);
    const json_t *value = azureml_find_key(declared, "value");
    char key[128];
    snprintf(key, sizeof key, "inputs.%s", name);
    if (!declared) {
        diagnostics_add(&reader->problems, key,
                        "missing; ${{inputs.%s}} names it", name);
        return NULL;
    }
    if (json_is_object(declared) && !value)
        return input_path(reader, name, declared);
    char *text = given ? strdup(given) : scalar_text(value ? value : declared);
    if (!text)
        diagnostics_value(&reader->problems, key, declared,
                          "a text, a number, true, false, or a path with its "
                          "type");
    return text;
}

/* The folder of output NAME: that of the file if it is a local path. */
static char *output_text(struct command_reader *reader, const char *name) {
    const json_t *outputs = azureml_find_key(reader->root, "outputs");
    const json_t *declared = json_object_get(outputs, name);
    const json_t *path = azureml_find_key(declared, "path");
    const char *own = json_string_value(path);
    char key[128], *text = NULL;
    snprintf(key, sizeof key, "outputs.%s", name);
    if (!declared)
        diagnostics_add(&reader->problems, key,
                        "missing; ${{outputs.%s}} names it", name);
    else if (!own || is_remote_path(own))
        (void)!asprintf(&text, "%s/outputs/%s/%s", reader->command->folder,
                        reader->stem, name);
    else if (*own == '/')
        text = strdup(own);
    else
        (void)!asprintf(&text, "%s/%s", reader->base, own);
    if (text && !is_plain_path(text))
        diagnostics_add(&reader->problems, key,
                        "found %s; allowed: a path without blanks and "
                        "characters that a shell reads",
                        text);
    if (text)
        json_array_append_new(reader->command->outputs, json_string(text));
    return text;
}

/* The text of EXPRESSION, what stands between ${{ and }} at key KEY. */
static char *expression_text(struct command_reader *reader, const char *key,
                             const char *expression) {
    char kind[16], name[80], rest;
    if (sscanf(expression, " %15[a-z].%79[A-Za-z0-9_-] %c", kind, name,
               &rest) == 2) {
        if (!strcmp(kind, "inputs"))
            return input_text(reader, name);
        if (!strcmp(kind, "outputs"))
            return output_text(reader, name);
    }
    diagnostics_add(&reader->problems, key,
                    "found ${{%.60s}}; allowed: ${{inputs.NAME}} and "
                    "${{outputs.NAME}}",
                    expression);
    return NULL;
}

/* TEXT of key KEY with its expressions replaced; the caller frees it. */
static char *expand_expressions(struct command_reader *reader, const char *key,
                                const char *text) {
    char *whole = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&whole, &size);
    while (out) {
        const char *start = strstr(text, "${{");
        const char *end = start ? strstr(start, "}}") : NULL;
        if (start && !end)
            diagnostics_add(&reader->problems, key, "${{ without }}");
        if (!end)
            break;
        fwrite(text, 1, (size_t)(start - text), out);
        char *expression = strndup(start + 3, (size_t)(end - start - 3));
        char *value =
            expression ? expression_text(reader, key, expression) : NULL;
        fputs(value ? value : "", out);
        free(value);
        free(expression);
        text = end + 2;
    }
    if (!out)
        return NULL;
    fputs(text, out);
    fclose(out);
    return whole;
}

static void read_variables(struct command_reader *reader, const char *key,
                           const json_t *variables) {
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)variables, name, value) {
        char path[128];
        char *text = json_is_null(value) ? strdup("") : scalar_text(value);
        snprintf(path, sizeof path, "%s.%s", key, name);
        if (!text || !*name || strchr(name, '='))
            diagnostics_value(&reader->problems, path, value,
                              "a text, a number, true or false");
        char *whole = text ? expand_expressions(reader, path, text) : NULL;
        if (whole)
            json_object_set_new(reader->command->environment, name,
                                json_string(whole));
        free(whole);
        free(text);
    }
}

/* SDK v1: `command`, a text or a list, else `script` and `arguments`. A shell
 * reads the words, as there ($LOCAL_RANK). The caller frees it. */
static char *v1_text(const struct command_reader *reader) {
    const json_t *command = azureml_find_key(reader->root, "command");
    const json_t *script = azureml_find_key(reader->root, "script");
    const json_t *environment = azureml_find_key(reader->root, "environment");
    const json_t *python = azureml_find_key(environment, "python");
    const char *interpreter =
        json_string_value(azureml_find_key(python, "interpreter_path"));
    const json_t *words = json_is_array(command) ? command : NULL, *word;
    char *whole = NULL;
    size_t size = 0, i;
    FILE *out = open_memstream(&whole, &size);
    if (!out)
        return NULL;
    if (json_string_length(command))
        fputs(json_string_value(command), out);
    else if (!words && json_string_length(script)) {
        fprintf(out, "%s %s", interpreter ? interpreter : "python",
                json_string_value(script));
        words = azureml_find_key(reader->root, "arguments");
    }
    json_array_foreach(words, i, word) {
        char *text = scalar_text(word);
        fprintf(out, "%s%s", ftell(out) ? " " : "", text ? text : "");
        free(text);
    }
    fclose(out);
    return whole;
}

/* Lists what the platform does and this machine does not. */
static void list_unused(struct command_reader *reader) {
    static const char *const names[][2] = {{NULL, "compute"},
                                           {NULL, "target"},
                                           {NULL, "environment"},
                                           {NULL, "limits"},
                                           {NULL, "max_run_duration_seconds"},
                                           {NULL, "identity"},
                                           {NULL, "services"},
                                           {NULL, "queue_settings"},
                                           {NULL, "data"},
                                           {NULL, "data_references"},
                                           {NULL, "output_data"},
                                           {"resources", "instance_type"},
                                           {"resources", "locations"},
                                           {"resources", "max_instance_count"},
                                           {"resources", "shm_size"},
                                           {"resources", "docker_args"}};
    char *unused = reader->command->unused;
    size_t used = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *object = names[i][0];
        const json_t *value = azureml_find_key(
            object ? azureml_find_key(reader->root, object) : reader->root,
            names[i][1]);
        bool empty = !value || json_is_null(value) ||
                     (json_is_object(value) && !json_object_size(value)) ||
                     (json_is_array(value) && !json_array_size(value));
        if (!empty)
            used += (size_t)snprintf(
                unused + used, sizeof reader->command->unused - used,
                "%s%s%s%s", used ? ", " : "", object ? object : "",
                object ? "." : "", names[i][1]);
    }
}

/* Finds the folder of the code: `code`, else the file's own; a .runconfig lies
 * in a folder of its own in that of the code. */
static void find_code_folder(struct command_reader *reader, bool v1) {
    const json_t *code = v1 ? NULL : azureml_find_key(reader->root, "code");
    const char *text = json_string_value(code);
    const char *name = strrchr(reader->base, '/');
    if (v1 && name &&
        (!strcmp(name, "/.azureml") || !strcmp(name, "/aml_config")))
        text = "..";
    char *folder = local_path(reader->base, text ? text : ".");
    reader->command->folder = folder;
    if (!folder)
        diagnostics_value(&reader->problems, "code", code,
                          "a folder that exists on this machine, without "
                          "blanks and characters that a shell reads");
}

static void check_given_inputs(struct command_reader *reader) {
    const json_t *inputs = azureml_find_key(reader->root, "inputs");
    for (unsigned i = 0; i < reader->num_inputs; i++) {
        char name[80], key[96];
        snprintf(name, sizeof name, "%.*s",
                 (int)strcspn(reader->inputs[i], "="), reader->inputs[i]);
        snprintf(key, sizeof key, "--input %s", name);
        if (!json_object_get(inputs, name))
            diagnostics_add(&reader->problems, key,
                            "the job has no input of that name");
    }
}

static void azureml_command_read_job(struct command_reader *reader) {
    const json_t *root = reader->root;
    bool v1 = azureml_find_key(root, "communicator");
    const json_t *environment = azureml_find_key(root, "environment");
    const char *text = json_string_value(azureml_find_key(root, "command"));
    find_code_folder(reader, v1);
    check_given_inputs(reader);
    if (v1)
        read_variables(reader, "environment.environmentVariables",
                       azureml_find_key(environment, "environment_variables"));
    read_variables(reader, "environment_variables",
                   azureml_find_key(root, "environment_variables"));
    char *own = v1 ? v1_text(reader) : NULL;
    reader->command->text = expand_expressions(reader, "command",
                                               v1 && own ? own
                                               : text    ? text
                                                         : "");
    free(own);
    if (!reader->command->text || !reader->command->text[0])
        diagnostics_add(&reader->problems, "command",
                        "missing; without it give JOB.json, which `capstan "
                        "run` gets in its place");
    list_unused(reader);
}

enum status azureml_command_read(struct azureml_command *command,
                                 const char *path, const char *const *inputs,
                                 unsigned num_inputs, struct failure *why) {
    json_t *root;
    enum status status = yaml_json_load(&root, path, why);
    if (status)
        return status;
    *command = (struct azureml_command){.environment = json_object(),
                                        .outputs = json_array()};
    struct command_reader reader = {.command = command,
                                    .root = root,
                                    .inputs = inputs,
                                    .num_inputs = num_inputs,
                                    .problems = {.where = path}};
    char *whole = realpath(path, NULL);
    snprintf(reader.base, sizeof reader.base, "%s", whole ? whole : path);
    free(whole);
    char *name = strrchr(reader.base, '/');
    snprintf(reader.stem, sizeof reader.stem, "%.*s",
             (int)strcspn(name + 1, "."), name + 1);
    *name = 0;
    azureml_command_read_job(&reader);
    json_decref(root);
    status = diagnostics_status(&reader.problems, why);
    if (status)
        azureml_command_free(command);
    return status;
}

void azureml_command_free(struct azureml_command *command) {
    free(command->text);
    free(command->folder);
    json_decref(command->environment);
    json_decref(command->outputs);
    *command = (struct azureml_command){0};
}
