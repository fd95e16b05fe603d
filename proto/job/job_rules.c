/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/job/job_rules.h"

#include "core/tensor/schedule.h"

#include "proto/job/job_schema.h"
#include "proto/job/job_tree.h"
#include "proto/job/job_value.h"
#include "proto/job/mlflow_uri.h"

#include <regex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is_given(const struct job_input *input, const char *path) {
    return job_tree_get(input->tree, path) != NULL;
}

static bool matches(const json_t *value, const char *pattern) {
    regex_t expression;
    if (!json_is_string(value) || regcomp(&expression, pattern, REG_EXTENDED))
        return false;
    bool found = !regexec(&expression, json_string_value(value), 0, NULL, 0);
    regfree(&expression);
    return found;
}

/* As JSON Schema has it, 0 is 0.0. */
static bool is_same(const json_t *a, const json_t *b) {
    return json_is_number(a) && json_is_number(b)
               ? json_number_value(a) == json_number_value(b)
               : json_equal(a, b);
}

/* Is VALUE, or NULL, what SCHEMA says in the keywords of rules with a text? */
static bool satisfies(const json_t *value, const json_t *schema) {
    const json_t *is = json_object_get(schema, "const"), *one;
    const json_t *other = json_object_get(schema, "not");
    const json_t *any = json_object_get(schema, "enum");
    const char *type = json_string_value(json_object_get(schema, "type"));
    json_t *pattern = json_object_get(schema, "pattern");
    bool among = !any;
    size_t i;
    json_array_foreach(any, i, one) among |= is_same(value, one);
    return among && (!is || json_equal(value, is)) &&
           (!other || !satisfies(value, other)) &&
           (pattern ? matches(value, json_string_value(pattern))
                    : !type || (strcmp(type, "null") ? json_is_integer(value)
                                                     : !value));
}

static bool is_so(struct job *job, const json_t *value, const char *condition) {
    json_t *schema = job_value_condition(condition);
    job->is_cut |= !schema;
    bool so = satisfies(value, schema);
    json_decref(schema);
    return so;
}

static void job_rules_check_length(const struct job *job,
                                   const struct job_input *input,
                                   struct diagnostics *diagnostics) {
    bool epochs = is_given(input, "epochs"), steps = is_given(input, "steps");
    if (epochs && steps)
        diagnostics_add(diagnostics, "epochs",
                        "found beside steps; allowed: one of the two");
    if (!epochs && !steps && job->model.type != JOB_EXTERNAL)
        diagnostics_add(diagnostics, "epochs",
                        "missing; allowed: epochs (at least 1) or steps (at "
                        "least 0), one of the two");
}

static void check_batch(struct job *job, const struct job_input *input,
                        struct diagnostics *diagnostics) {
    bool all = is_given(input, "train_batch_size");
    bool micro = is_given(input, "train_micro_batch_size_per_gpu");
    job->batch_key = !all    ? "train_micro_batch_size_per_gpu"
                     : micro ? "train_batch_size and "
                               "train_micro_batch_size_per_gpu"
                             : "train_batch_size";
    if (!all && !micro && job->model.type == JOB_EXTERNAL) {
        job->micro_batch = job->accumulation = 1;
        job->batch_key = "the caller's batch";
    }
    if (!all && !micro && job->model.type != JOB_EXTERNAL)
        diagnostics_add(diagnostics, "train_micro_batch_size_per_gpu",
                        "missing; allowed: it or train_batch_size or both, an "
                        "integer, at least 1");
}

static void check_nesterov(const struct optimizer *optimizer, const char *path,
                           struct diagnostics *diagnostics) {
    if (optimizer->nesterov &&
        (optimizer->momentum <= 0 || optimizer->dampening != 0))
        diagnostics_add(
            diagnostics, path,
            "found true with momentum %g and dampening %g; allowed: "
            "with momentum over 0 and no dampening",
            optimizer->momentum, optimizer->dampening);
}

/* Numbers the groups that have an optimizer. */
static void check_groups(struct job *job, struct diagnostics *diagnostics) {
    uint32_t number = 0;
    for (int g = JOB_GROUP_WIDE; g < JOB_GROUPS; g++) {
        char path[JOB_TREE_PATH];
        if (!job->groups[g].given)
            continue;
        job->model.group[g] = ++number;
        snprintf(path, sizeof path, "optimizers.%s.params.nesterov",
                 job_schema_group(g, job->model.type));
        check_nesterov(&job->groups[g].optimizer, path, diagnostics);
    }
}

/* Has the job a rate of an optimizer that no group takes? A schedule would
 * count from it. */
static bool is_rate_unused(const struct job *job,
                           const struct job_input *input) {
    bool any = false, each = true;
    for (int g = JOB_GROUP_WIDE; g < JOB_GROUPS; g++) {
        if (!job_schema_group(g, job->model.type))
            continue;
        any |= job->groups[g].given;
        each &= job->groups[g].given;
    }
    return any && each && !job->optimizer_is_groups &&
           job->schedule.type == SCHEDULE_CONSTANT &&
           is_given(input, SCHEDULE_LR);
}

/* As in DeepSpeed and TensorFlow, a schedule with its own rates ignores the
 * optimizer's rate. Without a warning a user who set that one would not see why
 * it has no effect. */
static void check_rates(const struct job *job, const struct job_input *input) {
    const char *key;
    double highest = schedule_highest_rate(&job->schedule, &key);
    if (is_given(input, SCHEDULE_LR) && job->schedule.lr != highest)
        log_warning(input->log, "key_ignored",
                    "%s: %g is not used: the scheduler sets the rate, up to "
                    "%s, %g; set that one, or take the scheduler out (--set "
                    "scheduler=null)",
                    SCHEDULE_LR, job->schedule.lr, key, highest);
    else if (is_rate_unused(job, input))
        log_warning(input->log, "key_ignored",
                    "%s: %g is not used: each group has an optimizer of its "
                    "own; set the rates of `optimizers`",
                    SCHEDULE_LR, job->schedule.lr);
}

static void check_bounds(const struct job *job,
                         struct diagnostics *diagnostics) {
    const struct schedule *schedule = &job->schedule;
    const struct job_reals *bounds = &schedule->bounds;
    bool pieces = schedule->type == SCHEDULE_PIECEWISE;
    for (uint32_t i = 1; i < bounds->count; i++)
        if (bounds->items[i] <= bounds->items[i - 1]) {
            diagnostics_add(diagnostics,
                            pieces ? "scheduler.params.boundaries"
                                   : "scheduler.params.milestones",
                            "found %g after %g; allowed: steps that ascend",
                            bounds->items[i], bounds->items[i - 1]);
            return;
        }
    if (pieces && schedule->values.count &&
        schedule->values.count != bounds->count + 1)
        diagnostics_add(diagnostics, "scheduler.params.values",
                        "found %u with %u boundaries; allowed: one more than "
                        "boundaries",
                        schedule->values.count, bounds->count);
}

static void job_rules_check_schedule(const struct job *job,
                                     const struct log *log) {
    const struct schedule *schedule = &job->schedule;
    if (schedule->total_num_steps > 0 &&
        schedule->total_num_steps < schedule->warmup_num_steps)
        log_warning(log, "warmup_cut_short",
                    "scheduler.params.total_num_steps: %llu is less than "
                    "warmup_num_steps, %llu: the rate never reaches its top",
                    (unsigned long long)schedule->total_num_steps,
                    (unsigned long long)schedule->warmup_num_steps);
}

static void warn_of_scaling(const struct job *job, const struct log *log) {
    if (job->scale_lr && !job->staleness &&
        job->schedule.type == SCHEDULE_CONSTANT)
        log_warning(
            log, "warmup_missing",
            "scale_lr: the rate is multiplied from the first step on; a "
            "scheduler with a warm-up is safer");
}

static void choose_precision(struct job *job) {
    job->model.precision = job->fp16.enabled   ? JOB_PRECISION_FP16
                           : job->bf16.enabled ? JOB_PRECISION_BF16
                           : job->tf32         ? JOB_PRECISION_TF32
                                               : JOB_PRECISION_FP32;
}

static void check_deltas(const struct job_checkpoint *checkpoint,
                         struct diagnostics *diagnostics) {
    if (checkpoint->every_steps &&
        checkpoint->delta_every_steps >= checkpoint->every_steps)
        diagnostics_add(diagnostics, "checkpoint.delta_every_steps",
                        "found %llu; allowed: fewer than "
                        "checkpoint.every_steps, between whose full "
                        "checkpoints deltas are",
                        (unsigned long long)checkpoint->delta_every_steps);
}

/* The default of every_seconds applies only if neither steps nor epochs are
 * given. */
static void fill_checkpoint(struct job *job, const struct job_input *input) {
    bool counted = is_given(input, "checkpoint.every_steps") ||
                   is_given(input, "checkpoint.every_epochs");
    if (counted && !is_given(input, "checkpoint.every_seconds"))
        job->checkpoint.every_seconds = 0;
}

static void fill_events(struct job *job, const struct job_input *input) {
    if (!job->tensorboard)
        return;
    const char *folder = input->folder ? input->folder : "";
    if (!job->tensorboard_path &&
        asprintf(&job->tensorboard_path, "%s/tensorboard", folder) < 0)
        job->tensorboard_path = NULL;
    job->is_cut |= !job->tensorboard_path;
    if (job->is_cut)
        return;
    const char *name = job->tensorboard_name ? job->tensorboard_name : "";
    if (asprintf(&job->events_dir, "%s%s%s", job->tensorboard_path,
                 *name ? "/" : "", name) < 0)
        job->events_dir = NULL;
    job->is_cut |= !job->events_dir;
}

static void check_mlflow(const struct job_mlflow *mlflow,
                         struct diagnostics *diagnostics) {
    char url[2048], problem[512];
    if (mlflow->tracking_uri && *mlflow->tracking_uri &&
        !mlflow_uri_read(mlflow->tracking_uri, url, sizeof url, problem,
                         sizeof problem))
        diagnostics_add(diagnostics, "mlflow.tracking_uri", "%s", problem);
    if (mlflow->experiment && !*mlflow->experiment)
        diagnostics_add(diagnostics, "mlflow.experiment",
                        "found \"\"; allowed: a name");
    if (mlflow->run_name && !*mlflow->run_name)
        diagnostics_add(diagnostics, "mlflow.run_name",
                        "found \"\"; allowed: a name");
}

static void check_defaults(const struct job *job, const struct job_input *input,
                           struct diagnostics *diagnostics) {
    if (job->tf_defaults && input->deepspeed)
        diagnostics_add(diagnostics, "defaults",
                        "found \"tf\" with --deepspeed_config; allowed there: "
                        "\"torch\", as that file has DeepSpeed's defaults");
}

/* The default that DeepSpeed and torch do not share, at KEY. */
static void log_weight_decay(const struct optimizer *optimizer, const char *key,
                             const struct job_input *input) {
    if (optimizer->type == OPTIMIZER_ADAMW && !is_given(input, key))
        log_info(input->log, "default_applied",
                 "%s: %g, the default of %s (%s)", key, optimizer->weight_decay,
                 input->deepspeed ? "DeepSpeed" : "torch",
                 input->deepspeed ? "torch's is 0.01" : "DeepSpeed's is 0");
}

static void log_defaults(const struct job *job, const struct job_input *input) {
    if (job->tf_defaults) /* the user has chosen */
        return;
    log_weight_decay(&job->optimizer, "optimizer.params.weight_decay", input);
    for (int g = JOB_GROUP_WIDE; g < JOB_GROUPS; g++) {
        char key[JOB_TREE_PATH];
        if (!job->groups[g].given)
            continue;
        snprintf(key, sizeof key, "optimizers.%s.params.weight_decay",
                 job_schema_group(g, job->model.type));
        log_weight_decay(&job->groups[g].optimizer, key, input);
    }
    if (input->deepspeed && !is_given(input, "gradient_clipping"))
        log_info(input->log, "default_applied",
                 "gradient_clipping: 0, DeepSpeed's default before 2026 (1.0 "
                 "since); write the value to be sure");
}

static void log_precision(const struct job *job,
                          const struct job_input *input) {
    static const struct {
        const char *key, *format;
    } all[] = {
        [JOB_PRECISION_BF16] = {"bf16.enabled", "bf16"},
        [JOB_PRECISION_FP16] = {"fp16.enabled", "fp16"},
        [JOB_PRECISION_TF32] = {"tf32", "TF32 on GPUs"},
    };
    enum job_precision precision = job->model.precision;
    if (all[precision].key)
        log_info(input->log, "precision_chosen",
                 "%s: operands of matrix products are rounded to %s; weights, "
                 "sums and updates stay float32",
                 all[precision].key, all[precision].format);
}

/* The effect depends on the cluster if the job does not set the strategy. */
static void log_zero(const struct job *job, const struct job_input *input) {
    const char *open = job->strategy == JOB_STRATEGY_UNSET
                           ? "; without ps (all-reduce) it is acted on"
                           : "";
    static const char *const buckets[] = {
        "zero_optimization.reduce_bucket_size",
        "zero_optimization.allgather_bucket_size",
        "zero_optimization.overlap_comm"};
    if (job->strategy == JOB_ALLREDUCE)
        return;
    if (job->zero.stage)
        log_info(input->log, "key_satisfied_by_design",
                 "zero_optimization.stage: with ps satisfied by design: they "
                 "already hold the optimiser state and the summed gradients, "
                 "each its own part%s",
                 open);
    if (job->zero.offload)
        log_info(input->log, "key_satisfied_by_design",
                 "zero_optimization.offload_optimizer: with ps satisfied by "
                 "design: the state is in their hosts' memory%s",
                 open);
    for (size_t i = 0; i < sizeof buckets / sizeof *buckets; i++) {
        if (!is_given(input, buckets[i]))
            continue;
        log_info(input->log, "key_satisfied_by_design",
                 "%s: with ps satisfied by design: a setting of DeepSpeed's "
                 "collectives; here pushes are cut into blocks and always "
                 "overlap the backward pass%s",
                 buckets[i], open);
        return;
    }
}

static void check_model_keys(const struct job *job, const struct log *log) {
    const struct job_model_schema *schema =
        job->models ? job->models->of_type[job->model.type] : NULL;
    if (schema && job->model.settings)
        schema->check(job, log);
}

static void check_delimiter(const char *delimiter,
                            struct diagnostics *diagnostics) {
    if (strlen(delimiter) == 1 && !strchr("\"\r\n", *delimiter))
        return;
    bool tab = !strcmp(delimiter, "\\t");
    diagnostics_add(diagnostics, "data.delimiter",
                    "found \"%s\"; allowed: one character of ASCII that is no "
                    "quote and no end of a line%s",
                    delimiter,
                    tab ? "; a tab is \"\\t\" in JSON, and on the command line "
                          "--set 'data.delimiter=\"\\t\"'"
                    : strlen(delimiter) > 1
                        ? ". Replace the delimiter in the files, for example "
                          "by sed 's/::/\\t/g'"
                        : "");
}

/* What files of records need. */
static void check_records(const struct job *job,
                          struct diagnostics *diagnostics) {
    const struct job_data *data = &job->data;
    bool csv = data->format == JOB_CSV;
    if (job->model.type == JOB_EXTERNAL || data->format == JOB_IDX ||
        job->model_unknown)
        return;
    if (csv && !data->columns && !data->header)
        diagnostics_add(diagnostics, "data.columns",
                        "missing; allowed: an array with the name of each "
                        "column, or \"header\": true if the first line of each "
                        "file has them");
    if (csv && data->columns && data->header)
        diagnostics_add(diagnostics, "data.columns",
                        "found beside \"header\": true; allowed: one of the "
                        "two");
    if (csv && data->delimiter)
        check_delimiter(data->delimiter, diagnostics);
    if ((job->features || data->format == JOB_LIBSVM) && job->models &&
        job->models->check_features)
        job->models->check_features(job, diagnostics);
}

void job_rules_check(struct job *job, const struct job_input *input,
                     struct diagnostics *diagnostics) {
    job_rules_check_length(job, input, diagnostics);
    check_batch(job, input, diagnostics);
    check_nesterov(&job->optimizer, "optimizer.params.nesterov", diagnostics);
    check_groups(job, diagnostics);
    check_records(job, diagnostics);
    check_defaults(job, input, diagnostics);
    check_rates(job, input);
    check_bounds(job, diagnostics);
    job_rules_check_schedule(job, input->log);
    warn_of_scaling(job, input->log);
    check_deltas(&job->checkpoint, diagnostics);
    check_mlflow(&job->mlflow, diagnostics);
    choose_precision(job);
    job->model.seed = job->seed;
    job->zero.offload |= job->zero.cpu_offload;
    fill_checkpoint(job, input);
    fill_events(job, input);
    log_defaults(job, input);
    log_zero(job, input);
    log_precision(job, input);
    job->compare.on = is_given(input, "compare");
    check_model_keys(job, input->log);
}

/* What depends on the format also depends on the model. */
void job_rules_check_values(struct job *job, const json_t *values,
                            struct diagnostics *diagnostics) {
    for (const struct job_rule *rule = job_schema_rules; rule->path; rule++)
        if (rule->text &&
            !(job->model_unknown && !strcmp(rule->path, "data.format")) &&
            is_so(job, job_tree_get(values, rule->path), rule->is) &&
            !is_so(job, job_tree_get(values, rule->other), rule->must) &&
            !(rule->or_other &&
              is_so(job, job_tree_get(values, rule->or_other), JOB_IS_ONE)))
            diagnostics_add(diagnostics,
                            rule->at_other ? rule->other : rule->path, "%s",
                            rule->text);
}
