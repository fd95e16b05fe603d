/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/cluster/cluster_case.h"
#include "tests/lib/test.h"

#include <jansson.h>

const char *cluster_case_lookup(void *context, const char *name) {
    const struct cluster_case_variable *variables = context;
    for (size_t i = 0; i < CLUSTER_CASE_VARIABLES; i++)
        if (variables[i].name && strcmp(variables[i].name, name) == 0)
            return variables[i].value;
    return NULL;
}

char *cluster_case_requote(const char *text) {
    char *copy = strdup(text);
    assert_non_null(copy);
    for (char *c = copy; *c; c++)
        if (*c == '\'')
            *c = '"';
    return copy;
}

static void check_fields(const struct cluster_case *form,
                         const struct cluster *cluster) {
    char *expect = cluster_case_requote(form->expect);
    char *printed = cluster_json(cluster);
    json_t *fields = json_loads(expect, 0, NULL);
    json_t *found = json_loads(printed, 0, NULL);
    const char *key;
    json_t *value;
    if (!fields || !found)
        fail_msg("%s: %s is no object", form->description,
                 fields ? printed : expect);
    json_object_foreach(fields, key, value) {
        if (!json_equal(value, json_object_get(found, key)))
            fail_msg("%s: %s is to be as in %s, and found is %s",
                     form->description, key, expect, printed);
    }
    json_decref(fields);
    json_decref(found);
    free(expect);
    free(printed);
}

static void check_class(const struct cluster_case *form,
                        const struct failure *why) {
    size_t length = strlen(form->expect);
    if (why->code != FAILURE_CLUSTER_INVALID ||
        strncmp(why->text, form->expect, length) != 0 ||
        strncmp(why->text + length, ": ", 2) != 0)
        fail_msg("%s: %s is expected, not: %s", form->description, form->expect,
                 why->text);
}

void cluster_case_check(const struct cluster_case *form) {
    struct cluster *cluster = NULL;
    struct failure why = {0};
    enum status status =
        cluster_resolve(&cluster, &form->flags, cluster_case_lookup,
                        (void *)form->environment, &why);
    if (form->expect[0] == '{') {
        if (status != STATUS_OK)
            fail_msg("%s: refused: %s", form->description, why.text);
        check_fields(form, cluster);
    } else {
        if (status == STATUS_OK)
            fail_msg("%s: taken, but %s is expected", form->description,
                     form->expect);
        assert_null(cluster);
        check_class(form, &why);
    }
    cluster_free(&cluster);
}

void cluster_case_check_texts(const char *name,
                              const struct cluster_case_text *texts,
                              size_t count) {
    for (size_t i = 0; i < count; i++) {
        char *value = cluster_case_requote(texts[i].value);
        struct cluster_case form = {.description = texts[i].description,
                                    .environment = {{name, value}},
                                    .expect = texts[i].expect};
        cluster_case_check(&form);
        free(value);
    }
}
