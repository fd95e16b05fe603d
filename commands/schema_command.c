/* SPDX-License-Identifier: Apache-2.0 */
#include "commands/verbs.h"

#include "core/base/log.h"
#include "core/base/time.h"
#include "proto/job/deepspeed.h"
#include "proto/job/job_schema.h"
#include "proto/job/job_tree.h"
#include "proto/job/job_value.h"
#include "proto/plan/run_schedule.h"
#include "worker/data/dataset.h"
#include "worker/models/model.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

/* The job file's JSON Schema (draft 7), made from the tables that check it:
 * job_schema.h, its kinds of values (job_value.h), DeepSpeed's keys
 * (deepspeed.h). What it cannot say is refused only by the program: an order
 * of numbers (of an array, of two keys), and names of features and columns.
 *
 * Each key has one schema in a tree of "properties", and DeepSpeed's keys that
 * have no effect are "patternProperties", which editors do not offer. Keys that
 * apply only to some types of model, data, optimizer or scheduler follow as
 * conditions: one for each word of such a type, with the keys that it refuses
 * and those that it needs. Rules between keys are the last ones. null is a key
 * left out. */

/* A key of a type, the object that has the keys it decides on, and where their
 * rows have the bit of its word. */
static const struct decider {
    const char *base, *path; /* PATH below BASE */
    enum decider_mask { OF_MODEL, OF_FORMAT, OF_OPTIMIZER, OF_SCHEDULE } mask;
} deciders[] = {
    {"", "model.type", OF_MODEL},
    {"", "data.format", OF_FORMAT},
    {"optimizer", "type", OF_OPTIMIZER},
    {"optimizers.wide", "type", OF_OPTIMIZER},
    {"optimizers.deep", "type", OF_OPTIMIZER},
    {"scheduler", "type", OF_SCHEDULE},
};

/* How the objects on the way to a key are made. */
enum way {
    WAY_OPTIONAL, /* any of them may be missing */
    WAY_NEEDED,   /* they and the key are there */
    WAY_CLOSED    /* they have no keys but those of the schema */
};

/* A sentence for editors. */
static const struct {
    const char *path, *meaning;
} objects[] = {
    {"model", "the model that is trained"},
    {"data", "the samples, and how they are read"},
    {"bf16", "matrix products of bf16 operands"},
    {"bfloat16", "DeepSpeed's older name of bf16"},
    {"fp16", "matrix products of fp16 operands, with a scaled loss"},
    {"optimizer", "the update rule and its parameters"},
    {"optimizer.params", "the parameters of optimizer.type"},
    {"optimizers",
     "models with two groups of parameters: an optimizer for each, in place of optimizer"},
    {"optimizers.wide", "the optimizer of the group wide"},
    {"optimizers.deep", "the optimizer of the group deep"},
    {"optimizers.wide.params", "the parameters of optimizers.wide.type"},
    {"optimizers.deep.params", "the parameters of optimizers.deep.type"},
    {"scheduler", "how the learning rate changes"},
    {"scheduler.params", "the parameters of scheduler.type"},
    {"strategy", "how trainers combine their gradients"},
    {"zero_optimization",
     "DeepSpeed's ZeRO: what trainers of all-reduce keep of the optimiser's state"},
    {"zero_optimization.offload_optimizer", "where that state is kept"},
    {"activation_checkpointing",
     "activations that the backward pass recomputes"},
    {"checkpoint", "what a run saves of itself, and where it resumes from"},
    {"tensorboard", "event files for TensorBoard"},
    {"metrics", "the points of the run in a file"},
    {"mlflow", "the server of MLflow that gets the metrics"},
    {"security", "who takes part in the run"},
    {"export", "the trained weights in one file"},
    {"timeouts", "how long processes wait for each other"},
    {"compare", "the cases that capstan compare measures"},
};

/* A row of the job's table, or DeepSpeed's name for it. */
struct named_row {
    const char *path;
    const struct job_key *key; /* NULL: there is no row I */
};

static struct named_row named_row_at(const struct job_models *models,
                                     size_t i) {
    size_t count, rows = 0;
    const struct job_key *key;
    const struct deepspeed_key *foreign = deepspeed_keys(&count);
    for (; (key = job_schema_row(models, rows)); rows++)
        if (rows == i)
            return (struct named_row){key->path, key};
    i -= rows;
    for (size_t k = 0; k < count; k++)
        if (foreign[k].support == DEEPSPEED_RENAMED && !i--)
            return (struct named_row){foreign[k].path,
                                      job_schema_find(models, foreign[k].text)};
    return (struct named_row){NULL, NULL};
}

/* The bits of DECIDER's words to which ROW applies, 0: all. */
static unsigned mask_of(const struct decider *decider, struct named_row row) {
    const struct job_key *key = row.key;
    switch (decider->mask) {
    case OF_MODEL:
        return key->group ? 0 : key->models;
    case OF_FORMAT:
        return key->formats;
    case OF_OPTIMIZER:
        return job_tree_below(row.path, decider->base) ? key->optimizers : 0;
    default:
        return key->schedules;
    }
}

static bool is_masked(struct named_row row) {
    const struct job_key *key = row.key;
    return (key->models && !key->group) || key->formats || key->optimizers ||
           key->schedules;
}

/* The member NAME of OBJECT, made if it is not there. */
static json_t *member(json_t *object, const char *name) {
    json_t *found = json_object_get(object, name);
    if (found)
        return found;
    json_object_set_new(object, name, json_object());
    return json_object_get(object, name);
}

static void require(json_t *schema, const char *name) {
    json_t *list = json_object_get(schema, "required"), *other;
    size_t i;
    if (!list) {
        list = json_array();
        json_object_set_new(schema, "required", list);
    }
    json_array_foreach(
        list, i, other) if (!strcmp(json_string_value(other), name)) return;
    json_array_append_new(list, json_string(name));
}

static json_t *with_meaning(json_t *leaf, const char *meaning) {
    json_object_set_new(leaf, "description", json_string(meaning));
    return leaf;
}

/* SCHEMA, of the object at PATH, gets no keys but those that are put into it.
 */
static void close_object(json_t *schema, const char *path) {
    if (json_object_get(schema, "type"))
        return;
    json_object_set_new(schema, "type", json_pack("[s, s]", "object", "null"));
    json_object_set_new(schema, "additionalProperties", json_false());
    for (size_t i = 0; i < sizeof objects / sizeof *objects; i++)
        if (!strcmp(objects[i].path, path))
            with_meaning(schema, objects[i].meaning);
}

/* Puts LEAF (keeps it) for PATH into SCHEMA. */
static void put_leaf(json_t *schema, const char *path, json_t *leaf,
                     enum way way) {
    char part[JOB_TREE_PATH];
    const char *whole = path;
    for (;;) {
        size_t length = strcspn(path, ".");
        snprintf(part, sizeof part, "%.*s", (int)length, path);
        if (way == WAY_NEEDED)
            require(schema, part);
        json_t *properties = member(schema, "properties");
        if (!path[length]) {
            json_object_set_new(properties, part, leaf);
            return;
        }
        schema = member(properties, part);
        if (way == WAY_NEEDED)
            json_object_set_new(schema, "type", json_string("object"));
        if (way == WAY_CLOSED) {
            char object[JOB_TREE_PATH];
            snprintf(object, sizeof object, "%.*s",
                     (int)(path + length - whole), whole);
            close_object(schema, object);
        }
        path += length + 1;
    }
}

static json_t *path_leaf(const char *path, json_t *leaf, enum way way) {
    json_t *schema = json_object();
    put_leaf(schema, path, leaf, way);
    return schema;
}

/* SCHEMA (keeps it), or OTHER (keeps it). */
static json_t *or_else(json_t *schema, json_t *other) {
    json_t *any = json_object_get(schema, "anyOf");
    if (!any)
        return json_pack("{s:[o, o]}", "anyOf", schema, other);
    json_array_append_new(any, other);
    return schema;
}

static json_t *or_null(json_t *schema) {
    const char *type = json_string_value(json_object_get(schema, "type"));
    if (!type || json_object_get(schema, "anyOf"))
        return or_else(schema, json_pack("{s:s}", "type", "null"));
    json_object_set_new(schema, "type", json_pack("[s, s]", type, "null"));
    return schema;
}

static json_t *loaded(const char *text) {
    return json_loads(text, JSON_DECODE_ANY, NULL);
}

/* What ROW allows; DeepSpeed's list of values is the shorter one. */
static json_t *values_schema(struct named_row row) {
    size_t count;
    const struct deepspeed_key *foreign = deepspeed_keys(&count);
    for (size_t k = 0; k < count; k++)
        if (foreign[k].support == DEEPSPEED_SUPPORTED && foreign[k].allowed &&
            !strcmp(foreign[k].path, row.path))
            return json_pack("{s:o}", "enum", loaded(foreign[k].allowed));
    return job_value_schema(row.key);
}

static json_t *finished_leaf(struct named_row row, json_t *values,
                             bool nullable, const char *default_value) {
    json_t *leaf = nullable ? or_null(values) : values;
    if (deepspeed_takes_auto(row.path))
        leaf = or_else(leaf, json_pack("{s:s}", "const", "auto"));
    if (default_value)
        json_object_set_new(leaf, "default", loaded(default_value));
    return leaf;
}

static json_t *row_leaf(struct named_row row) {
    return finished_leaf(row, values_schema(row), !row.key->required,
                         row.key->default_value);
}

/* The leaf of every row that has the path of ROW, the first of them. */
static json_t *merged_leaf(const struct job_models *models,
                           struct named_row row) {
    json_t *values = json_array(), *own;
    const char *usual = row.key->default_value;
    struct named_row other;
    for (size_t i = 0; (other = named_row_at(models, i)).key; i++) {
        size_t k;
        const json_t *known;
        bool found = false;
        if (strcmp(other.path, row.path))
            continue;
        if (usual && (!other.key->default_value ||
                      strcmp(usual, other.key->default_value)))
            usual = NULL;
        own = values_schema(other);
        json_array_foreach(values, k, known) found |= json_equal(known, own);
        if (!found)
            json_array_append(values, own);
        json_decref(own);
    }
    if (json_array_size(values) == 1) {
        own = json_incref(json_array_get(values, 0));
        json_decref(values);
    } else
        own = json_pack("{s:o}", "anyOf", values);
    return finished_leaf(row, own, !row.key->required || is_masked(row), usual);
}

/* True if no row before number I has its path. */
static bool is_first(const struct job_models *models, size_t i,
                     const char *path) {
    while (i--)
        if (!strcmp(named_row_at(models, i).path, path))
            return false;
    return true;
}

static void put_job_keys(json_t *schema, const struct job_models *models) {
    struct named_row row;
    for (size_t i = 0; (row = named_row_at(models, i)).key; i++) {
        if (!is_first(models, i, row.path))
            continue;
        put_leaf(schema, row.path,
                 with_meaning(merged_leaf(models, row), row.key->meaning),
                 WAY_CLOSED);
        const char *dot = strrchr(row.path, '.');
        if (!row.key->required || is_masked(row) || !dot)
            continue;
        char base[JOB_TREE_PATH];
        snprintf(base, sizeof base, "%.*s", (int)(dot - row.path), row.path);
        json_t *object = schema;
        for (char *part, *rest = base; (part = strsep(&rest, "."));)
            object = member(member(object, "properties"), part);
        require(object, dot + 1);
    }
}

static json_t *foreign_leaf(const struct deepspeed_key *key) {
    json_t *leaf = json_object();
    if (key->support == DEEPSPEED_REFUSED) {
        json_t *allowed = loaded(key->allowed ? key->allowed : "[false]");
        json_array_append_new(allowed, json_null());
        if (deepspeed_takes_auto(key->path))
            json_array_append_new(allowed, json_string("auto"));
        json_object_set_new(leaf, "enum", allowed);
    }
    return leaf;
}

/* The schema of PATH in SCHEMA, a view, or NULL. */
static json_t *schema_at(json_t *schema, const char *path) {
    char copy[JOB_TREE_PATH], *rest = copy;
    snprintf(copy, sizeof copy, "%s", path);
    for (char *part; schema && (part = strsep(&rest, "."));)
        schema = json_object_get(json_object_get(schema, "properties"), part);
    return schema;
}

/* As put_leaf, but no editor offers what is made of PATH. Below "x.*" any key
 * is allowed. */
static void put_silent_leaf(json_t *schema, const char *path, json_t *leaf) {
    char name[JOB_TREE_PATH + 2];
    for (size_t length;; path += length + 1) {
        length = strcspn(path, ".");
        snprintf(name, sizeof name, "%.*s", (int)length, path);
        json_t *below =
            json_object_get(json_object_get(schema, "properties"), name);
        if (!strcmp(name, "*")) {
            json_object_set_new(schema, "additionalProperties", json_true());
            json_decref(leaf);
            return;
        }
        snprintf(name, sizeof name, "^%.*s$", (int)length, path);
        if (!path[length]) {
            json_object_set_new(member(schema, "patternProperties"), name,
                                leaf);
            return;
        }
        if (!below)
            below = member(member(schema, "patternProperties"), name);
        close_object(below, "");
        schema = below;
    }
}

static void put_foreign_keys(json_t *schema) {
    size_t count;
    const struct deepspeed_key *keys = deepspeed_keys(&count);
    for (size_t i = 0; i < count; i++) {
        const char *path = keys[i].path;
        if (schema_at(schema, path))
            continue;
        if (keys[i].support == DEEPSPEED_SUPPORTED) /* adam_w_mode */
            put_leaf(
                schema, path,
                with_meaning(json_pack("{s:[s, s]}", "type", "boolean", "null"),
                             "DeepSpeed's: true means AdamW, false Adam"),
                WAY_CLOSED);
        else
            put_silent_leaf(schema, path, foreign_leaf(&keys[i]));
    }
}

/* The keys that word BIT of DECIDER refuses, changes and needs. */
static json_t *word_outcome(const struct decider *decider, unsigned bit,
                            const struct job_models *models) {
    json_t *then = json_object();
    struct named_row row, other;
    for (size_t i = 0; (row = named_row_at(models, i)).key; i++) {
        unsigned mask = mask_of(decider, row), all = mask;
        const char *path = job_tree_below(row.path, decider->base);
        bool several = !is_first(models, i, row.path);
        for (size_t k = i + 1; (other = named_row_at(models, k)).key; k++)
            if (!strcmp(other.path, row.path)) {
                several = true;
                all |= mask_of(decider, other);
            }
        if (mask && mask >> bit & 1 && (several || row.key->required))
            put_leaf(then, path, row_leaf(row),
                     row.key->required ? WAY_NEEDED : WAY_OPTIONAL);
        else if (!(all >> bit & 1) && mask && is_first(models, i, row.path))
            put_leaf(then, path, loaded(JOB_LEFT_OUT), WAY_OPTIONAL);
    }
    return then;
}

/* Either key of a pair, of which a model that Capstan computes needs one. */
static json_t *one_of_two(const char *one, const char *other,
                          const char *other_is) {
    return json_pack("{s:[o, o]}", "anyOf",
                     path_leaf(one, loaded(JOB_GIVEN), WAY_NEEDED),
                     path_leaf(other, loaded(other_is), WAY_NEEDED));
}

/* What a model of TYPE needs that no row says. */
static void add_model_needs(json_t *then, enum job_model_type type) {
    json_t *all = json_array(), *groups = json_object();
    bool any = false;
    for (int g = JOB_GROUP_WIDE; g < JOB_GROUPS; g++) {
        const char *name = job_schema_group((enum job_group)g, type);
        char path[JOB_TREE_PATH];
        snprintf(path, sizeof path, "optimizers.%s",
                 g == JOB_GROUP_WIDE ? "wide" : "deep");
        put_leaf(name ? groups : then, path,
                 loaded(name ? JOB_GIVEN : JOB_LEFT_OUT),
                 name ? WAY_NEEDED : WAY_OPTIONAL);
        any |= name != NULL;
    }
    json_t *own = path_leaf("optimizer", loaded(JOB_GIVEN), WAY_NEEDED);
    json_array_append_new(all, any ? or_else(own, json_incref(groups)) : own);
    json_decref(groups);
    if (type != JOB_EXTERNAL) {
        json_array_append_new(all, one_of_two("epochs", "steps", JOB_GIVEN));
        json_array_append_new(
            all,
            one_of_two("train_micro_batch_size_per_gpu", "train_batch_size",
                       "{\"not\": {\"enum\": [null, \"auto\"]}}"));
    }
    json_object_set_new(then, "allOf", all);
}

/* True where PATH has a word of WORDS, or, if that is the default, no value. */
static json_t *word_condition(const char *path, const char *words,
                              bool is_default) {
    json_t *is = path_leaf(path, job_value_condition(words), WAY_NEEDED);
    if (!is_default)
        return is;
    return or_else(is,
                   json_pack("{s:o}", "not",
                             path_leaf(path, loaded(JOB_GIVEN), WAY_NEEDED)));
}

static bool is_default_word(const struct job_key *key, const char *word) {
    json_t *value = key->default_value ? loaded(key->default_value) : NULL;
    bool same =
        json_is_string(value) && !strcmp(json_string_value(value), word);
    json_decref(value);
    return same;
}

static void add_decider(json_t *schema, const struct decider *decider,
                        const struct job_models *models) {
    char path[JOB_TREE_PATH];
    bool root = !*decider->base;
    snprintf(path, sizeof path, "%s%s%s", decider->base, root ? "" : ".",
             decider->path);
    const struct job_key *key = job_schema_find(models, path);
    json_t *object = root ? schema : schema_at(schema, decider->base);
    if (!json_object_get(object, "allOf"))
        json_object_set_new(object, "allOf", json_array());
    for (unsigned bit = 0; key->words[bit]; bit++) {
        if (!*key->words[bit])
            continue;
        json_t *then = word_outcome(decider, bit, models);
        if (decider->mask == OF_MODEL)
            add_model_needs(then, (enum job_model_type)bit);
        json_t *condition =
            word_condition(decider->path, key->words[bit],
                           is_default_word(key, key->words[bit]));
        json_array_append_new(
            json_object_get(object, "allOf"),
            json_pack("{s:o, s:o}", "if", condition, "then", then));
    }
}

static void add_rules(json_t *schema, const struct job_models *models) {
    json_t *all = json_object_get(schema, "allOf");
    for (const struct job_rule *rule = job_schema_rules; rule->path; rule++) {
        const struct job_key *key = job_schema_find(models, rule->path);
        json_t *is = word_condition(rule->path, rule->is,
                                    key && is_default_word(key, rule->is));
        json_t *must = path_leaf(rule->other, job_value_condition(rule->must),
                                 rule->needed ? WAY_NEEDED : WAY_OPTIONAL);
        if (rule->or_other)
            must = or_else(must, path_leaf(rule->or_other, loaded(JOB_IS_ONE),
                                           WAY_NEEDED));
        json_array_append_new(all,
                              json_pack("{s:o, s:o}", "if", is, "then", must));
    }
}

/* The schema of jobs with MODELS, which the caller frees; NULL: no memory. */
static json_t *job_json_schema(const struct job_models *models) {
    json_t *schema = json_pack("{s:s, s:s, s:s, s:b}", "$schema",
                               "http://json-schema.org/draft-07/schema#",
                               "title", "A job of Capstan", "type", "object",
                               "additionalProperties", 0);
    put_job_keys(schema, models);
    json_object_set_new(schema_at(schema, "features"), "additionalProperties",
                        models->feature_schema());
    put_foreign_keys(schema);
    for (size_t i = 0; i < sizeof deciders / sizeof *deciders; i++)
        add_decider(schema, &deciders[i], models);
    add_rules(schema, models);
    return schema;
}

static const double counting_seconds = 2;

static bool counted_long_enough(void *start) {
    return time_to_seconds(time_now() - *(int64_t *)start) > counting_seconds;
}

/* The samples of JOB's training data; 0, with WHY, if that is not known. */
static uint64_t count_samples(const struct job *job, const struct log *log,
                              struct failure *why) {
    int64_t start = time_now();
    struct dataset *dataset;
    struct dataset_options options = {.job = job,
                                      .files = &job->data.train,
                                      .key = "data.train",
                                      .num_ranks = 1,
                                      .count = true,
                                      .is_cancelled = counted_long_enough,
                                      .cancel_context = &start,
                                      .log = log};
    if (dataset_open(&dataset, &options, why)) {
        if (counted_long_enough(&start))
            snprintf(why->text, sizeof why->text,
                     "counting the samples takes longer than %g s",
                     counting_seconds);
        return 0;
    }
    uint64_t count = dataset->count;
    dataset_free(&dataset);
    return count;
}

/* Steps of JOB with one replica, whose micro batch is MICRO; 0, with WHY, if
 * that is not known. */
static uint64_t count_steps(const struct job *job, uint32_t micro,
                            const struct log *log, struct failure *why) {
    uint32_t passes = job->accumulation ? job->accumulation : 1;
    struct run_schedule schedule = {
        .accumulation = passes, .epoch_batches = job->steps_per_epoch * passes};
    if (job->has_steps)
        return job->steps;
    if (!job->steps_per_epoch)
        schedule.epoch_batches = run_schedule_share_batches(
            count_samples(job, log, why), 1, micro, job->data.drop_last);
    return schedule.epoch_batches ? run_schedule_total(&schedule, job->epochs)
                                  : 0;
}

/* "ok, 2820 steps of 256", as far as the job and its data say it. */
static void show_size(const struct job *job, const struct log *log) {
    uint32_t passes = job->accumulation ? job->accumulation : 1;
    uint32_t batch = job->train_batch_size, micro = job->micro_batch;
    const char *of = batch            ? ""
                     : job->has_steps ? " a replica"
                                      : " with one replica";
    struct failure why = {.text = "the samples are not counted"};
    if (!micro)
        micro = batch > passes ? batch / passes : 1;
    if (!batch)
        batch = job->micro_batch * passes;
    bool ends = job->has_steps || job->epochs;
    uint64_t steps = ends ? count_steps(job, micro, log, &why) : 0;
    fputs("ok", stdout);
    if (steps || job->has_steps)
        printf(", %" PRIu64 " step%s", steps, steps == 1 ? "" : "s");
    else if (ends)
        printf(", %" PRIu64 " epoch%s, steps", job->epochs,
               job->epochs == 1 ? "" : "s");
    if (batch && ends)
        printf(" of %" PRIu32 "%s", batch, of);
    if (ends && !steps && !job->has_steps)
        printf("; how many steps is not known: %s", why.text);
    putchar('\n');
}

static enum status schema_command_check(const char *path, struct failure *why) {
    struct log log;
    struct job *job;
    struct job_source source = {.models = &model_schemas, .path = path};
    log_open(&log, "schema", -1);
    enum status status = job_load(&job, &source, &log, why);
    if (!status)
        show_size(job, &log);
    job_free(&job);
    return status;
}

enum status schema_command(const struct options *options, struct failure *why) {
    if (options->job)
        return schema_command_check(options->job, why);
    json_t *schema = job_json_schema(&model_schemas);
    if (!schema)
        return status_fail(why, FAILURE_NO_MEMORY, "no memory for the schema");
    json_dumpf(schema, stdout, JSON_INDENT(1));
    putchar('\n');
    json_decref(schema);
    return STATUS_OK;
}
