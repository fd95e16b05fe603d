/* SPDX-License-Identifier: Apache-2.0 */
/* Translates DeepSpeed's configuration by the table in deepspeed_keys.c. Each
 * key has the same meaning here, or another name, or is satisfied by design
 * (said once for each reason), or is refused with the reason. No key is ignored
 * silently. */
#include "proto/config/job/deepspeed.h"

#include "proto/config/job/deepspeed_auto.h"
#include "proto/config/job/job_tree.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_REASONS = 64 }; /* more than the table has */

struct translation {
    json_t *tree;
    const struct log *log;
    struct diagnostics *diagnostics;
    const char *logged[MAX_REASONS]; /* reasons already logged */
    size_t num_logged;
};

static bool is_equal(const json_t *a, const json_t *b) {
    if (json_is_number(a) && json_is_number(b))
        return json_number_value(a) == json_number_value(b);
    return json_equal(a, b);
}

static bool is_allowed(const struct deepspeed_key *key, const json_t *value) {
    if (!key->allowed)
        return json_is_false(value);
    json_t *allowed = json_loads(key->allowed, 0, NULL);
    bool found = false;
    for (size_t i = 0; i < json_array_size(allowed) && !found; i++)
        found = is_equal(value, json_array_get(allowed, i));
    json_decref(allowed);
    return found;
}

/* False, stage 0 and device "none" request nothing. */
static bool is_requested(const json_t *value) {
    const char *text = json_string_value(value);
    bool none = text && !strcmp(text, "none");
    bool zero = json_is_number(value) && json_number_value(value) == 0;
    return !json_is_false(value) && !none && !zero;
}

static void log_once(struct translation *translation, const char *path,
                     const char *reason) {
    for (size_t i = 0; i < translation->num_logged; i++)
        if (translation->logged[i] == reason)
            return;
    if (translation->num_logged < MAX_REASONS)
        translation->logged[translation->num_logged++] = reason;
    log_info(translation->log, "key_satisfied_by_design",
             "%s: satisfied by design: %s", path, reason);
}

static void rename_key(struct translation *translation,
                       const struct deepspeed_key *key, json_t *value) {
    const json_t *present = job_tree_get(translation->tree, key->text);
    if (present ? !json_equal(present, value)
                : !job_tree_put(translation->tree, key->text, value))
        diagnostics_add(translation->diagnostics, key->path,
                        "is %s in the job file; leave one of them out",
                        key->text);
}

static void add_rejection(struct translation *translation,
                          const struct deepspeed_key *key,
                          const json_t *value) {
    char *found = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
    diagnostics_add(translation->diagnostics, key->path,
                    "found %.60s; refused from DeepSpeed's configuration: %s",
                    found ? found : "?", key->text);
    free(found);
}

static void reject(struct translation *translation,
                   const struct deepspeed_key *key, const json_t *value) {
    if (!is_allowed(key, value))
        add_rejection(translation, key, value);
}

static void apply_key(struct translation *translation,
                      const struct deepspeed_key *key, json_t *value) {
    switch (key->support) {
    case DEEPSPEED_RENAMED:
        rename_key(translation, key, value);
        break;
    case DEEPSPEED_BY_DESIGN:
        if (is_requested(value))
            log_once(translation, key->path, key->text);
        break;
    case DEEPSPEED_REFUSED:
        reject(translation, key, value);
        break;
    default:
        break;
    }
}

/* Empties the object that a row "object.*" covers. */
static void remove_object(struct translation *translation,
                          const struct deepspeed_key *key) {
    char path[JOB_TREE_PATH];
    snprintf(path, sizeof path, "%.*s", (int)strlen(key->path) - 2, key->path);
    json_t *object = job_tree_get(translation->tree, path);
    if (json_object_size(object) == 0)
        return;
    apply_key(translation, key, object);
    json_object_clear(object);
}

static void apply_and_remove(struct translation *translation,
                             const struct deepspeed_key *key) {
    json_t *value = json_incref(job_tree_get(translation->tree, key->path));
    job_tree_remove(translation->tree, key->path);
    if (value)
        apply_key(translation, key, value);
    json_decref(value);
}

/* Removes a value that the key does not accept for DeepSpeed's reason, so that
 * the job file's check does not report it again. */
static void remove_unsupported(struct translation *translation,
                               const struct deepspeed_key *key) {
    json_t *value = json_incref(job_tree_get(translation->tree, key->path));
    if (value && !is_allowed(key, value)) {
        add_rejection(translation, key, value);
        job_tree_remove(translation->tree, key->path);
    }
    json_decref(value);
}

static bool is_type(const json_t *type, const char *name) {
    const char *text = json_string_value(type);
    return text && !strcasecmp(text, name);
}

/* Removes the boolean at PATH and returns it; USUAL if there is none. */
static bool remove_bool(struct translation *translation, const char *path,
                        bool default_value) {
    const json_t *value = job_tree_get(translation->tree, path);
    if (!value)
        return default_value;
    bool flag = json_is_true(value);
    if (!json_is_boolean(value))
        diagnostics_value(translation->diagnostics, path, value,
                          "true or false");
    job_tree_remove(translation->tree, path);
    return flag;
}

static void deepspeed_set(json_t *tree, const char *path, json_t *value) {
    bool done = job_tree_put(tree, path, value);
    (void)done; /* a conflict is reported later as a problem */
    json_decref(value);
}

/* DeepSpeed's Adam is AdamW unless adam_w_mode is false; with torch_adam the
 * defaults are torch's (deepspeed/runtime/engine.py,
 * _configure_basic_optimizer). */
static void choose_adam(struct translation *translation, bool defaults) {
    json_t *tree = translation->tree;
    const json_t *type = job_tree_get(tree, "optimizer.type");
    bool adam = is_type(type, "Adam"), adamw = is_type(type, "AdamW");
    const char *mode = "optimizer.params.adam_w_mode";
    const char *decay = "optimizer.params.weight_decay";
    if (!adam && !adamw) {
        if (remove_bool(translation, mode, false))
            diagnostics_add(translation->diagnostics, mode,
                            "goes with Adam and AdamW only; leave it out");
        return;
    }
    bool decoupled = remove_bool(translation, mode, defaults) || adamw;
    bool torch =
        json_is_true(job_tree_get(tree, "optimizer.params.torch_adam"));
    if (adam && decoupled) {
        log_info(translation->log, "key_translated",
                 "optimizer.type: Adam means AdamW, as DeepSpeed's adam_w_mode "
                 "says");
        deepspeed_set(tree, "optimizer.type", json_string("AdamW"));
    }
    if (decoupled && defaults && torch && !job_tree_get(tree, decay))
        deepspeed_set(tree, decay, json_real(0.01));
}

void deepspeed_remove_alias(json_t *tree, const char *path) {
    size_t count;
    const struct deepspeed_key *keys = deepspeed_keys(&count);
    for (size_t i = 0; i < count; i++) {
        if (keys[i].support != DEEPSPEED_RENAMED)
            continue;
        if (!strcmp(path, keys[i].text))
            job_tree_remove(tree, keys[i].path);
        if (!strcmp(path, keys[i].path))
            job_tree_remove(tree, keys[i].text);
    }
}

static bool is_wildcard(const struct deepspeed_key *key) {
    size_t length = strlen(key->path);
    return length > 2 && !strcmp(key->path + length - 2, ".*");
}

void deepspeed_translate(json_t *tree, bool defaults, const struct log *log,
                         struct diagnostics *diagnostics) {
    struct translation translation = {
        .tree = tree, .log = log, .diagnostics = diagnostics};
    deepspeed_auto_fill(tree, log);
    choose_adam(&translation, defaults);
    size_t count;
    const struct deepspeed_key *keys = deepspeed_keys(&count);
    for (size_t i = 0; i < count; i++)
        if (is_wildcard(&keys[i]))
            remove_object(&translation, &keys[i]);
        else if (keys[i].support != DEEPSPEED_SUPPORTED)
            apply_and_remove(&translation, &keys[i]);
        else if (keys[i].allowed)
            remove_unsupported(&translation, &keys[i]);
}
