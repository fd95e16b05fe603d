/* SPDX-License-Identifier: Apache-2.0 */
#define STATE struct job_fixture *fixture

#include "proto/job/deepspeed.h"

#include "proto/job/job_schema.h"
#include "tests/lib/job_fixture.h"
#include "tests/lib/test.h"
#include "worker/models/model.h"

#include <jansson.h>

/* A configuration as projects write them for ZeRO stage 2 on one machine. */
static const char typical[] =
    "{\"train_batch_size\": 32, \"gradient_accumulation_steps\": 1,"
    " \"optimizer\": {\"type\": \"Adam\", \"params\": {\"lr\": 0.002,"
    "  \"betas\": [0.8, 0.999], \"eps\": 1e-8, \"torch_adam\": false}},"
    " \"scheduler\": {\"type\": \"WarmupLR\", \"params\": {"
    "  \"warmup_min_lr\": 0, \"warmup_max_lr\": 0.001,"
    "  \"warmup_num_steps\": 1000, \"last_batch_iteration\": -1}},"
    " \"steps_per_print\": 2000, \"gradient_clipping\": 1.0,"
    " \"prescale_gradients\": false, \"wall_clock_breakdown\": true,"
    " \"communication_data_type\": null, \"dump_state\": false,"
    " \"fp16\": {\"enabled\": false, \"loss_scale\": 0,"
    "  \"initial_scale_power\": 16}, \"bf16\": {\"enabled\": false},"
    " \"amp\": {\"enabled\": false, \"opt_level\": \"O1\"},"
    " \"zero_optimization\": {\"stage\": 2, \"allgather_partitions\": true,"
    "  \"allgather_bucket_size\": 2e8, \"overlap_comm\": true,"
    "  \"reduce_scatter\": true, \"reduce_bucket_size\": \"auto\","
    "  \"contiguous_gradients\": true, \"offload_optimizer\":"
    "  {\"device\": \"cpu\", \"pin_memory\": true}},"
    " \"zero_allow_untested_optimizer\": true,"
    " \"activation_checkpointing\": {\"partition_activations\": false,"
    "  \"number_checkpoints\": null},"
    " \"wandb\": {\"enabled\": false}, \"dataloader_drop_last\": true,"
    " \"checkpoint\": {\"tag_validation\": \"Warn\"}}";

static const char model_and_data[] =
    "{\"model\": {\"layers\": [4, 2]}, \"data\": {\"train\": [\"i\", \"l\"]},"
    " \"steps\": 10}";

static unsigned occurrences(const char *text, const char *part) {
    unsigned count = 0;
    while ((text = strstr(text, part))) {
        text += strlen(part);
        count++;
    }
    return count;
}

FIXTURE(job_fixture_setup, job_fixture_teardown);

TEST(a_configuration_loads_unchanged_by_the_flag) {
    job_fixture_expect_loaded(
        fixture, job_fixture_load(fixture, model_and_data, typical, NULL));
    const struct job *job = fixture->job;
    assert_int_equal(job->train_batch_size, 32);
    assert_int_equal(job->accumulation, 1);
    assert_true(job->optimizer.beta1 == 0.8 && job->schedule.lr == 0.002);
    assert_int_equal(job->schedule.type, SCHEDULE_WARMUP);
    assert_int_equal(job->steps_per_print, 2000);
    assert_true(job->gradient_clipping == 1);
    assert_true(job->data.drop_last);
    assert_int_equal(job->zero.stage, 2);
    assert_int_equal(job->zero.allgather_bucket, 200000000);
    assert_int_equal(job->zero.reduce_bucket, 500000000);
    assert_true(job->zero.overlap);
    assert_true(job->zero.offload);
    assert_int_equal(job->model.precision, JOB_PRECISION_FP32);
}

TEST(a_configuration_loads_unchanged_inside_the_job) {
    job_fixture_expect_loaded(
        fixture,
        job_fixture_load(fixture,
                         textf("%.*s, %s", (int)strlen(model_and_data) - 1,
                               model_and_data, typical + 1),
                         NULL, NULL));
    assert_int_equal(fixture->job->optimizer.type, OPTIMIZER_ADAM);
    assert_true(fixture->job->data.drop_last);
}

/* As projects write it for stage 2 with the state on the CPU. */
static const char offloaded[] =
    "{\"fp16\": {\"enabled\": false, \"loss_scale\": 0,"
    "  \"initial_scale_power\": 16},"
    " \"zero_optimization\": {\"stage\": 2, \"offload_optimizer\":"
    "  {\"device\": \"cpu\", \"pin_memory\": true},"
    "  \"allgather_partitions\": true, \"allgather_bucket_size\": 2e8,"
    "  \"overlap_comm\": true, \"reduce_scatter\": true,"
    "  \"reduce_bucket_size\": 2e8, \"contiguous_gradients\": true},"
    " \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.001}},"
    " \"train_batch_size\": 64}";

static void expect_offloaded(const struct job *job) {
    assert_int_equal(job->zero.stage, 2);
    assert_int_equal(job->zero.reduce_bucket, 200000000);
    assert_int_equal(job->zero.allgather_bucket, 200000000);
    assert_true(job->zero.overlap);
    assert_int_equal(job->optimizer.type, OPTIMIZER_ADAMW);
    assert_int_equal(job->train_batch_size, 64);
}

TEST(stage_2_with_the_state_on_the_cpu_loads_for_all_reduce) {
    const char *const allreduce[] = {"strategy.type=allreduce",
                                     "zero_optimization.reduce_scatter=false",
                                     NULL};
    job_fixture_expect_loaded(fixture, job_fixture_load(fixture, model_and_data,
                                                        offloaded, allreduce));
    expect_offloaded(fixture->job);
    assert_null(strstr(fixture->log, "with ps"));
    assert_true(fixture->job->zero.offload);
    struct job *again;
    job_fixture_expect_loaded(
        fixture,
        job_parse(&again, fixture->job->text, &model_schemas, &fixture->why));
    expect_offloaded(again);
    assert_string_equal(again->text, fixture->job->text);
    job_free(&again);
}

TEST(stage_2_is_satisfied_by_design_with_ps) {
    const char *const ps[] = {"strategy.type=ps", NULL};
    const char *const *const cases[] = {ps, NULL};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        job_fixture_expect_loaded(
            fixture,
            job_fixture_load(fixture, model_and_data, offloaded, cases[i]));
        expect_offloaded(fixture->job);
        assert_int_equal(occurrences(fixture->log, "with ps satisfied"), 3);
        assert_int_equal(occurrences(fixture->log, "without ps (all-reduce)"),
                         cases[i] ? 0 : 3);
    }
}

TEST(a_configuration_loads_with_fp16_enabled) {
    const char *const half[] = {"fp16.enabled=true", NULL};
    job_fixture_expect_loaded(
        fixture, job_fixture_load(fixture, model_and_data, offloaded, half));
    expect_offloaded(fixture->job);
    const struct job_fp16 *fp16 = &fixture->job->fp16;
    assert_int_equal(fixture->job->model.precision, JOB_PRECISION_FP16);
    assert_true(fp16->enabled && fp16->loss_scale == 0);
    assert_int_equal(fp16->initial_scale_power, 16);
    assert_int_equal(fp16->loss_scale_window, 1000);
    assert_int_equal(fp16->hysteresis, 2);
    assert_true(fp16->min_loss_scale == 1 && !fp16->consecutive_hysteresis);
}

TEST(the_old_name_of_bf16_is_accepted) {
    job_fixture_expect_loaded(
        fixture, job_fixture_set(fixture, "bfloat16.enabled=true"));
    assert_int_equal(fixture->job->model.precision, JOB_PRECISION_BF16);
}

TEST(zero_and_overlap_have_their_documented_defaults) {
    job_fixture_expect_loaded(
        fixture, job_fixture_load(fixture, job_fixture_least, NULL, NULL));
    assert_int_equal(fixture->job->zero.stage, 0);
    assert_int_equal(fixture->job->zero.reduce_bucket, 500000000);
    assert_int_equal(fixture->job->zero.allgather_bucket, 500000000);
    assert_true(fixture->job->zero.overlap);
    job_fixture_expect_loaded(
        fixture, job_fixture_load(fixture, job_fixture_least, "{}", NULL));
    assert_false(fixture->job->zero.overlap);
}

TEST(settings_satisfied_by_design_are_logged_once) {
    job_fixture_expect_loaded(
        fixture, job_fixture_load(fixture, model_and_data, typical, NULL));
    assert_int_equal(
        occurrences(fixture->log, "already hold the optimiser state"), 1);
    assert_int_equal(occurrences(fixture->log, "docs/job.md says how"), 1);
    assert_contains(fixture->log, "zero_optimization.allgather_partitions, "
                                  "zero_optimization.reduce_scatter, ");
    assert_int_equal(occurrences(fixture->log, "fp16"), 0);
    job_fixture_expect_loaded(
        fixture, job_fixture_set(fixture, "zero_optimization.stage=0"));
    assert_string_equal(fixture->log, "");
}

TEST(deepspeed_defaults_apply_with_only_the_flag) {
    const char *adamw = "{\"train_batch_size\": 8, \"optimizer\": {\"type\": "
                        "\"AdamW\"}, \"tensorboard\": {\"enabled\": true}}";
    job_fixture_expect_loaded(
        fixture, job_fixture_load(fixture, model_and_data, adamw, NULL));
    assert_true(fixture->job->optimizer.weight_decay == 0);
    assert_int_equal(fixture->job->steps_per_print, 10);
    assert_contains(fixture->job->events_dir, "/DeepSpeedJobName");
    assert_contains(fixture->log, "weight_decay: 0, the default of "
                                  "DeepSpeed (torch's is 0.01)");
    job_fixture_expect_loaded(fixture,
                              job_fixture_set(fixture, "optimizer.type=AdamW"));
    assert_true(fixture->job->optimizer.weight_decay == 0.01);
    assert_contains(fixture->log, "weight_decay: 0.01, the default of "
                                  "torch (DeepSpeed's is 0)");
}

/* The type of optimiser and the decay for DeepSpeed's optimizer.params. */
static void expect_adam(struct job_fixture *fixture, const char *params,
                        enum optimizer_type type, double decay) {
    job_fixture_expect_loaded(
        fixture,
        job_fixture_load(
            fixture, model_and_data,
            textf(
                "{\"train_batch_size\": 8, \"optimizer\": {\"type\": \"Adam\", "
                "\"params\": %s}}",
                params),
            NULL));
    assert_int_equal(fixture->job->optimizer.type, type);
    assert_true(fixture->job->optimizer.weight_decay == decay);
}

TEST(deepspeed_adam_is_adamw_unless_adam_w_mode_is_false) {
    expect_adam(fixture, "{}", OPTIMIZER_ADAMW, 0);
    expect_adam(fixture, "{\"adam_w_mode\": false}", OPTIMIZER_ADAM, 0);
    expect_adam(fixture, "{\"torch_adam\": true}", OPTIMIZER_ADAMW, 0.01);
    expect_adam(fixture, "{\"torch_adam\": true, \"weight_decay\": 0.5}",
                OPTIMIZER_ADAMW, 0.5);
    job_fixture_expect_loaded(fixture,
                              job_fixture_set(fixture, "optimizer.type=Adam"));
    assert_int_equal(fixture->job->optimizer.type, OPTIMIZER_ADAM);
    job_fixture_expect_set_refused(fixture, "optimizer.params.adam_w_mode=true",
                                   "goes with Adam and AdamW");
    job_fixture_expect_set_refused(
        fixture, "optimizer={\"type\":\"Adam\",\"params\":{\"adam_w_mode\":1}}",
        "adam_w_mode: found 1 (an integer); allowed: true or false");
}

/* One key by its two names. */
static const char drops[] =
    "{\"model\": {\"layers\": [4, 2]}, \"data\": {\"train\": [\"i\", \"l\"],"
    " \"drop_last\": true}, \"steps\": 10, \"optimizer\": {\"type\": \"SGD\"},"
    " \"train_batch_size\": 4}";
static const char keeps_none[] = "{\"dataloader_drop_last\": false}";

TEST(two_values_for_one_key_are_refused) {
    assert_fails(job_fixture_load(fixture, job_fixture_least,
                                  "{\"optimizer\": {\"type\": \"Adam\"}}",
                                  NULL),
                 &fixture->why, FAILURE_JOB_INVALID);
    assert_contains(fixture->why.text, "optimizer.type: the job and ");
    job_fixture_expect_loaded(
        fixture,
        job_fixture_load(fixture, job_fixture_least,
                         "{\"optimizer\": {\"type\": \"SGD\"}}", NULL));
    job_fixture_expect_loaded(
        fixture, job_fixture_load(fixture, job_fixture_least,
                                  "{\"optimizer\": {\"type\": null}}", NULL));
    assert_fails(job_fixture_load(fixture, drops, keeps_none, NULL),
                 &fixture->why, FAILURE_JOB_INVALID);
    assert_contains(fixture->why.text, "is data.drop_last in the job");
}

TEST(set_overrides_conflicting_files) {
    static const char theirs[] =
        "{\"optimizer\": {\"type\": \"Adam\", \"params\": {\"lr\": 2}}}";
    static const char *const sets[][2] = {{"optimizer.type=AdamW"},
                                          {"optimizer={\"type\":\"AdamW\"}"}};
    for (size_t i = 0; i < 2; i++) {
        job_fixture_expect_loaded(
            fixture,
            job_fixture_load(fixture, job_fixture_least, theirs, sets[i]));
        assert_int_equal(fixture->job->optimizer.type, OPTIMIZER_ADAMW);
        assert_true((fixture->job->schedule.lr == 2) == (i == 0));
    }
    assert_fails(
        job_fixture_load(fixture, job_fixture_least, theirs,
                         (const char *[]){"optimizer.params.lr=3", NULL}),
        &fixture->why, FAILURE_JOB_INVALID);
    job_fixture_expect_loaded(
        fixture,
        job_fixture_load(fixture, drops, keeps_none,
                         (const char *[]){"data.drop_last=true", NULL}));
    assert_true(fixture->job->data.drop_last);
    job_fixture_expect_loaded(
        fixture,
        job_fixture_load(fixture, drops, keeps_none,
                         (const char *[]){"dataloader_drop_last=true", NULL}));
    assert_true(fixture->job->data.drop_last);
    assert_fails(
        job_fixture_load(fixture, job_fixture_least, theirs,
                         (const char *[]){"optimizer.typ=AdamW", NULL}),
        &fixture->why, FAILURE_JOB_INVALID);
    assert_contains(fixture->why.text, "optimizer.type: the job and ");
}

TEST(unsupported_settings_are_refused_with_the_reason) {
    static const char *const cases[][2] = {
        {"zero_optimization.stage=3", "stage 3 cuts the weights"},
        {"zero_optimization.stage=false", "allowed: 0, 1, 2"},
        {"zero_optimization.offload_optimizer.device=nvme", "lives in the"},
        {"zero_optimization=true", "allowed: an object"},
        {"fp16.fp16_master_weights_and_grads=true", "no such feature"},
        {"bf16.bf16_optimizer_states=true", "set it to false"},
        {"amp.enabled=true", "fp16.enabled or bf16.enabled"},
        {"fp16=true", "fp16: found true (a boolean); allowed: an object"},
        {"fp16.enable=true", "nearest: fp16.enabled"},
        {"communication_data_type=fp16", "are float32"},
        {"sparse_gradients=true", "found true; refused"},
        {"optimizer.type=OneBitAdam", "allowed: \"SGD\""},
        {"optimizer.params.max_grad_norm=1.0", "gradient_clipping"},
        {"optimizer.params.bias_correction=false", "set it to true"},
        {"scheduler.params.last_batch_iteration=7", "checkpoint.resume"},
        {"sparse_attention={\"mode\":\"fixed\"}", "or leave it out"},
        {"elasticity.enabled=true", "elasticity.enabled: found true"},
        {"wandb.enabled=true", "tensorboard.enabled"},
        {"activation_checkpointing.cpu_checkpointing=true",
         "stays on the trainer's device"},
        {"activation_checkpointing.profile=true", "no such feature"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        job_fixture_expect_set_refused(fixture, cases[i][0], cases[i][1]);
}

TEST(number_checkpoints_sets_the_number_of_kept_outputs) {
    job_fixture_expect_loaded(
        fixture, job_fixture_set(
                     fixture, "activation_checkpointing.number_checkpoints=2"));
    assert_int_equal(fixture->job->model.kept, 2);
    job_fixture_expect_loaded(
        fixture,
        job_fixture_set(fixture,
                        "activation_checkpointing.number_checkpoints=null"));
    assert_int_equal(fixture->job->model.kept, 0);
    static const char *const harmless[] = {
        "activation_checkpointing.partition_activations=true",
        "activation_checkpointing.contiguous_memory_optimization=true",
        "activation_checkpointing.synchronize_checkpoint_boundary=true"};
    for (size_t i = 0; i < sizeof harmless / sizeof *harmless; i++) {
        job_fixture_expect_loaded(fixture,
                                  job_fixture_set(fixture, harmless[i]));
        assert_int_equal(fixture->job->model.kept, 0);
    }
}

static bool in_schema(const char *path) {
    size_t length = strlen(path);
    const struct job_key *key;
    for (size_t i = 0; (key = job_schema_row(&model_schemas, i)); i++)
        if (!strncmp(key->path, path, length) &&
            (!key->path[length] || key->path[length] == '.'))
            return true;
    return false;
}

TEST(each_row_of_the_table_is_complete) {
    size_t count;
    const struct deepspeed_key *keys = deepspeed_keys(&count);
    for (size_t i = 0; i < count; i++) {
        const struct deepspeed_key *key = &keys[i];
        bool adam = strstr(key->path, "adam_w_mode") != NULL;
        if (key->support == DEEPSPEED_SUPPORTED && !adam)
            assert_true(in_schema(key->path));
        else if (key->support == DEEPSPEED_RENAMED)
            assert_true(in_schema(key->text));
        else if (!adam)
            assert_false(in_schema(key->path));
        if (key->support == DEEPSPEED_REFUSED || key->allowed)
            assert_true(key->text && *key->text);
        json_t *allowed =
            key->allowed ? json_loads(key->allowed, 0, NULL) : NULL;
        assert_true(!key->allowed || json_is_array(allowed));
        json_decref(allowed);
        for (size_t j = 0; j < i; j++)
            assert_string_not_equal(keys[j].path, key->path);
    }
}

/* Sets the key of each row to VALUE; none may end without an answer. */
TEST(every_key_handles_any_value) {
    static const char *const values[] = {"true", "false", "null", "3",
                                         "auto", "{}",    "[1]"};
    size_t count;
    const struct deepspeed_key *keys = deepspeed_keys(&count);
    for (size_t i = 0; i < count; i++)
        for (size_t j = 0; j < 7; j++) {
            size_t length = strlen(keys[i].path);
            bool all = keys[i].path[length - 1] == '*';
            enum status status = job_fixture_set(
                fixture, textf("%.*s%s=%s", (int)length - all, keys[i].path,
                               all ? "x" : "", values[j]));
            assert_true(status == STATUS_OK || *fixture->why.text);
        }
}

/* As the documentation of transformers gives it for ZeRO stage 2. */
static const char huggingface[] =
    "{\"fp16\": {\"enabled\": \"auto\", \"loss_scale\": 0,"
    "  \"loss_scale_window\": 1000, \"initial_scale_power\": 16,"
    "  \"hysteresis\": 2, \"min_loss_scale\": 1},"
    " \"bf16\": {\"enabled\": \"auto\"},"
    " \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": \"auto\","
    "  \"betas\": \"auto\", \"eps\": \"auto\", \"weight_decay\": \"auto\"}},"
    " \"scheduler\": {\"type\": \"WarmupLR\", \"params\": {"
    "  \"warmup_min_lr\": \"auto\", \"warmup_max_lr\": \"auto\","
    "  \"warmup_num_steps\": \"auto\"}},"
    " \"zero_optimization\": {\"stage\": 2, \"offload_optimizer\":"
    "  {\"device\": \"cpu\", \"pin_memory\": true},"
    "  \"allgather_partitions\": true, \"allgather_bucket_size\": 2e8,"
    "  \"overlap_comm\": true, \"reduce_scatter\": true,"
    "  \"reduce_bucket_size\": \"auto\", \"contiguous_gradients\": true},"
    " \"gradient_accumulation_steps\": \"auto\","
    " \"gradient_clipping\": \"auto\", \"steps_per_print\": 2000,"
    " \"train_batch_size\": \"auto\","
    " \"train_micro_batch_size_per_gpu\": \"auto\","
    " \"wall_clock_breakdown\": false}";

static const struct job *load(struct job_fixture *fixture, const char *job,
                              const char *const *sets) {
    if (job_fixture_load(fixture, job, huggingface, sets))
        fail_msg("%s", fixture->why.text);
    return fixture->job;
}

static void expect_logged(const struct job_fixture *fixture, const char *text) {
    assert_contains(fixture->log, text);
}

TEST(auto_is_the_trainers_default_and_is_logged) {
    const struct job *job = load(fixture, model_and_data, NULL);
    assert_int_equal(job->micro_batch, 8);
    assert_int_equal(job->train_batch_size, 0);
    assert_int_equal(job->accumulation, 0);
    assert_true(job->gradient_clipping == 1);
    assert_true(job->schedule.lr == 5e-5);
    assert_true(job->optimizer.beta1 == 0.9 && job->optimizer.beta2 == 0.999);
    assert_true(job->optimizer.eps == 1e-8);
    assert_true(job->optimizer.weight_decay == 0);
    assert_true(job->schedule.warmup_max_lr == 5e-5);
    assert_int_equal(job->schedule.warmup_num_steps, 0);
    assert_int_equal(job->zero.reduce_bucket, 500000000);
    expect_logged(fixture, "optimizer.params.lr: \"auto\" is 5e-5: the "
                           "default of the Trainer's learning_rate");
    expect_logged(fixture, "train_micro_batch_size_per_gpu: \"auto\" is 8");
    expect_logged(fixture, "train_batch_size: \"auto\": the product");
}

TEST(auto_takes_the_jobs_value) {
    static const char mine[] =
        "{\"model\": {\"layers\": [4, 2]}, \"data\": {\"train\": [\"i\","
        " \"l\"]}, \"steps\": 10, \"train_batch_size\": 64,"
        " \"gradient_clipping\": 0.5,"
        " \"optimizer\": {\"params\": {\"lr\": 0.1, \"eps\": 1e-6}}}";
    const struct job *job = load(fixture, mine, NULL);
    assert_int_equal(job->train_batch_size, 64);
    assert_int_equal(job->micro_batch, 0);
    assert_true(job->gradient_clipping == 0.5);
    assert_true(job->schedule.lr == 0.1 && job->optimizer.eps == 1e-6);
    assert_true(job->schedule.warmup_max_lr == 0.1);
    assert_null(strstr(fixture->log, "gradient_clipping: \"auto\""));
}

TEST(auto_takes_the_value_of_set) {
    const char *const sets[] = {"train_micro_batch_size_per_gpu=32",
                                "optimizer.params.lr=0.2", NULL};
    const struct job *job = load(fixture, model_and_data, sets);
    assert_int_equal(job->micro_batch, 32);
    assert_true(job->schedule.lr == 0.2);
    assert_true(job->schedule.warmup_max_lr == 0.2);
}

TEST(an_auto_schedule_length_is_the_jobs_steps) {
    const char *const decays[] = {"scheduler.type=WarmupDecayLR",
                                  "scheduler.params.total_num_steps=auto",
                                  NULL};
    const char *const epochs[] = {"scheduler.type=WarmupDecayLR",
                                  "scheduler.params.total_num_steps=auto",
                                  "epochs=3", NULL};
    assert_int_equal(
        load(fixture, model_and_data, decays)->schedule.total_num_steps, 10);
    assert_fails(job_fixture_load(fixture, model_and_data, huggingface, epochs),
                 &fixture->why, FAILURE_JOB_INVALID);
    assert_contains(fixture->why.text,
                    "scheduler.params.total_num_steps: found \"auto\"");
    assert_contains(fixture->why.text, "use --set");
}

TEST(an_unknown_auto_is_refused_and_its_key_named) {
    assert_fails(
        job_fixture_load(fixture, model_and_data, huggingface,
                         (const char *[]){"steps_per_print=auto", NULL}),
        &fixture->why, FAILURE_JOB_INVALID);
    assert_contains(fixture->why.text, "steps_per_print: found \"auto\"");
}
