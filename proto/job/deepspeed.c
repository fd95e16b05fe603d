/* SPDX-License-Identifier: Apache-2.0 */
/* Translates DeepSpeed's configuration by the table in deepspeed_keys.c. Each
 * key has the same meaning here, or another name, or is satisfied by design
 * (one line names those), or is refused. No key is ignored silently.
 *
 * Hugging Face's Trainer replaces "auto" with its own arguments (transformers,
 * integrations/deepspeed.py, HfTrainerDeepSpeedConfig; defaults of
 * training_args.py), so the same is done here first. */
#include "proto/job/deepspeed.h"

#include "proto/job/job_tree.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct translation {
    json_t *tree;
    const struct log *log;
    struct diagnostics *diagnostics;
    char by_design[3000]; /* ", KEY" for each key satisfied by design */
};

/* VALUE is JSON; NULL: the key is removed. */
struct known_auto {
    const char *path, *value, *how;
};

static const char trainers[] = "the default of the Trainer's ";

static const struct known_auto known_autos[] = {
    {"train_batch_size", NULL, "the product of the other sizes"},
    {"gradient_accumulation_steps", NULL,
     "the value that follows from the other sizes, else 1"},
    {"gradient_clipping", "1.0", "max_grad_norm"},
    {"optimizer.params.lr", "5e-5", "learning_rate"},
    {"optimizer.params.betas", "[0.9, 0.999]", "adam_beta1 and adam_beta2"},
    {"optimizer.params.eps", "1e-8", "adam_epsilon"},
    {"optimizer.params.weight_decay", "0.0", "weight_decay"},
    {"scheduler.params.warmup_min_lr", "0", "warm-up"},
    {"scheduler.params.warmup_num_steps", "0", "warmup_steps"},
    {"fp16.enabled", "false", "fp16"},
    {"bf16.enabled", "false", "bf16"},
    {"amp.enabled", "false", "fp16_backend"},
    {"amp.opt_level", NULL, "amp is off"},
    {"zero_optimization.reduce_bucket_size", NULL, "DeepSpeed's default"},
    {"zero_optimization.allgather_bucket_size", NULL, "DeepSpeed's default"},
};

static bool is_auto(const json_t *tree, const char *path) {
    const char *text = json_string_value(job_tree_get(tree, path));
    return text && !strcmp(text, "auto");
}

/* Takes ownership of VALUE. */
static void fill_key(json_t *tree, const char *path, json_t *value,
                     const char *from, const char *how, const struct log *log) {
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT |
                                       JSON_REAL_PRECISION(15));
    if (job_tree_put(tree, path, value))
        log_info(log, "auto_resolved", "%s: \"auto\" is %s: %s%s", path,
                 text ? text : "?", from, how);
    free(text);
    json_decref(value);
}

static void remove_auto(json_t *tree, const char *path, const char *how,
                        const struct log *log) {
    job_tree_remove(tree, path);
    log_info(log, "auto_resolved", "%s: \"auto\": %s", path, how);
}

static void fill_known(json_t *tree, const struct known_auto *known_auto,
                       const struct log *log) {
    if (known_auto->value)
        fill_key(tree, known_auto->path,
                 json_loads(known_auto->value, JSON_DECODE_ANY, NULL), trainers,
                 known_auto->how, log);
    else
        remove_auto(tree, known_auto->path, known_auto->how, log);
}

/* Keys whose "auto" follows from other keys. */
static const char micro_batch[] = "train_micro_batch_size_per_gpu",
                  max_lr[] = "scheduler.params.warmup_max_lr",
                  total_steps[] = "scheduler.params.total_num_steps";

bool deepspeed_takes_auto(const char *path) {
    for (size_t i = 0; i < sizeof known_autos / sizeof *known_autos; i++)
        if (!strcmp(path, known_autos[i].path))
            return true;
    return !strcmp(path, micro_batch) || !strcmp(path, max_lr) ||
           !strcmp(path, total_steps);
}

/* It follows from the batch size of all trainers, if that is given. */
static void fill_micro_batch(json_t *tree, const struct log *log) {
    const char *path = micro_batch;
    if (!is_auto(tree, path))
        return;
    if (job_tree_get(tree, "train_batch_size"))
        remove_auto(tree, path, "the value that follows from the other sizes",
                    log);
    else
        fill_key(tree, path, json_integer(8), trainers,
                 "per_device_train_batch_size", log);
}

/* The Trainer has one learning rate, which is also the maximum of the
 * warm-up. */
static void fill_max_lr(json_t *tree, const struct log *log) {
    const char *path = max_lr;
    json_t *rate = job_tree_get(tree, "optimizer.params.lr");
    if (!is_auto(tree, path))
        return;
    if (rate)
        fill_key(tree, path, json_incref(rate), "",
                 "that of optimizer.params.lr", log);
    else
        fill_key(tree, path, json_real(5e-5), trainers, "learning_rate", log);
}

/* The data determine how many steps an epoch has, and only trainers read the
 * data. */
static void fill_total_steps(json_t *tree, const struct log *log) {
    const char *path = total_steps;
    json_t *steps = job_tree_get(tree, "steps");
    if (is_auto(tree, path) && steps)
        fill_key(tree, path, json_incref(steps), "", "that of steps", log);
}

/* Replaces each "auto" with a known meaning by the job's value, else by the
 * default of the Trainer's argument. Any other "auto" stays, and its key is
 * refused. */
static void fill_auto(json_t *tree, const struct log *log) {
    for (size_t i = 0; i < sizeof known_autos / sizeof *known_autos; i++)
        if (is_auto(tree, known_autos[i].path))
            fill_known(tree, &known_autos[i], log);
    fill_micro_batch(tree, log);
    fill_max_lr(tree, log);
    fill_total_steps(tree, log);
}

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

static void add_by_design(struct translation *translation, const char *path) {
    size_t used = strlen(translation->by_design);
    snprintf(translation->by_design + used,
             sizeof translation->by_design - used, ", %s", path);
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
            add_by_design(translation, key->path);
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
    bool flag = value ? json_is_true(value) : default_value;
    if (value && !json_is_boolean(value))
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
    fill_auto(tree, log);
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
    if (translation.by_design[0])
        log_info(log, "key_satisfied_by_design",
                 "satisfied by design: %s (docs/job.md says how)",
                 translation.by_design + 2);
}
