/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/config/job/deepspeed_auto.h"

#include "proto/config/job/job_tree.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

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

static bool deepspeed_auto_is_auto(const json_t *tree, const char *path) {
    const char *text = json_string_value(job_tree_get(tree, path));
    return text && !strcmp(text, "auto");
}

/* Takes ownership of VALUE. */
static void deepspeed_auto_fill_key(json_t *tree, const char *path,
                                    json_t *value, const char *from,
                                    const char *how, const struct log *log) {
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
        deepspeed_auto_fill_key(
            tree, known_auto->path,
            json_loads(known_auto->value, JSON_DECODE_ANY, NULL), trainers,
            known_auto->how, log);
    else
        remove_auto(tree, known_auto->path, known_auto->how, log);
}

/* It follows from the batch size of all trainers, if that is given. */
static void fill_micro_batch(json_t *tree, const struct log *log) {
    static const char path[] = "train_micro_batch_size_per_gpu";
    if (!deepspeed_auto_is_auto(tree, path))
        return;
    if (job_tree_get(tree, "train_batch_size"))
        remove_auto(tree, path, "the value that follows from the other sizes",
                    log);
    else
        deepspeed_auto_fill_key(tree, path, json_integer(8), trainers,
                                "per_device_train_batch_size", log);
}

/* The Trainer has one learning rate, which is also the maximum of the
 * warm-up. */
static void fill_max_lr(json_t *tree, const struct log *log) {
    static const char path[] = "scheduler.params.warmup_max_lr";
    json_t *rate = job_tree_get(tree, "optimizer.params.lr");
    if (!deepspeed_auto_is_auto(tree, path))
        return;
    if (rate)
        deepspeed_auto_fill_key(tree, path, json_incref(rate), "",
                                "that of optimizer.params.lr", log);
    else
        deepspeed_auto_fill_key(tree, path, json_real(5e-5), trainers,
                                "learning_rate", log);
}

/* The data determine how many steps an epoch has, and only trainers read the
 * data. */
static void fill_total_steps(json_t *tree, const struct log *log) {
    static const char path[] = "scheduler.params.total_num_steps";
    json_t *steps = job_tree_get(tree, "steps");
    if (deepspeed_auto_is_auto(tree, path) && steps)
        deepspeed_auto_fill_key(tree, path, json_incref(steps), "",
                                "that of steps", log);
}

void deepspeed_auto_fill(json_t *tree, const struct log *log) {
    for (size_t i = 0; i < sizeof known_autos / sizeof *known_autos; i++)
        if (deepspeed_auto_is_auto(tree, known_autos[i].path))
            fill_known(tree, &known_autos[i], log);
    fill_micro_batch(tree, log);
    fill_max_lr(tree, log);
    fill_total_steps(tree, log);
}
