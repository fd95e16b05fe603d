/* SPDX-License-Identifier: Apache-2.0 */
#define STATE struct job_fixture *fixture

#include "proto/job/job_rules.h"

#include "tests/lib/job_fixture.h"
#include "tests/lib/test.h"

FIXTURE(job_fixture_setup, job_fixture_teardown);

TEST(only_one_precision_may_be_enabled) {
    const char *const both[] = {"fp16.enabled=true", "bf16.enabled=true", NULL};
    job_fixture_expect_refused(
        fixture, job_fixture_load(fixture, job_fixture_least, NULL, both),
        "fp16.enabled: found true beside bf16.enabled");
    job_fixture_expect_loaded(fixture,
                              job_fixture_set(fixture, "fp16.enabled=true"));
    assert_int_equal(fixture->job->model.precision, JOB_PRECISION_FP16);
    assert_contains(fixture->log, "products are rounded to fp16;");
    job_fixture_expect_loaded(fixture,
                              job_fixture_set(fixture, "bf16.enabled=true"));
    assert_int_equal(fixture->job->model.precision, JOB_PRECISION_BF16);
    job_fixture_expect_loaded(fixture,
                              job_fixture_set(fixture, "fp16.loss_scale=8"));
    assert_int_equal(fixture->job->model.precision, JOB_PRECISION_FP32);
}

TEST(tf32_is_for_float32_on_gpus) {
    static const char *const each[][2] = {
        {"bf16.enabled=true", "tf32: found true beside bf16.enabled"},
        {"fp16.enabled=true", "tf32: found true beside fp16.enabled"},
        {"device=CPU", "tf32: found true with device \"cpu\""},
        {"model={\"type\":\"external\"}", "tf32: "}};
    for (int i = 0; i < 4; i++) {
        const char *const both[] = {"tf32=true", each[i][0], NULL};
        job_fixture_expect_refused(
            fixture, job_fixture_load(fixture, job_fixture_least, NULL, both),
            each[i][1]);
    }
    const char *const gpu[] = {"tf32=true", "device=cuda", NULL};
    job_fixture_expect_loaded(
        fixture, job_fixture_load(fixture, job_fixture_least, NULL, gpu));
    assert_int_equal(fixture->job->model.precision, JOB_PRECISION_TF32);
    assert_contains(fixture->log, "products are rounded to TF32 on");
    job_fixture_expect_loaded(fixture, job_fixture_set(fixture, "tf32=true"));
    job_fixture_expect_loaded(fixture, job_fixture_set(fixture, "device=cpu"));
    assert_int_equal(fixture->job->model.precision, JOB_PRECISION_FP32);
}

TEST(each_optimizer_has_its_own_keys_and_defaults) {
    static const struct {
        const char *type, *params;
    } cases[] = {
        {"SGD", "\"params\":{\"lr\":0.001,\"momentum\":0.0,\"dampening\":0.0,"
                "\"nesterov\":false,\"weight_decay\":0.0,\"maximize\":false}"},
        {"Adagrad", "\"params\":{\"lr\":0.01,\"weight_decay\":0.0,"
                    "\"maximize\":false,\"lr_decay\":0.0,"
                    "\"initial_accumulator_value\":0.0,\"eps\":1e-10}"},
        {"RMSprop", "\"params\":{\"lr\":0.01,\"momentum\":0.0,"
                    "\"weight_decay\":0.0,\"maximize\":false,\"alpha\":0.98"},
        {"Adam", "\"params\":{\"lr\":0.001,\"weight_decay\":0.0,"
                 "\"maximize\":false,\"betas\":[0.90000000000000002,0.999],"
                 "\"eps\":1e-8,\"amsgrad\":false}"},
        {"AdamW", "\"params\":{\"lr\":0.001,\"weight_decay\":0.01,"
                  "\"maximize\":false,\"betas\":[0.90000000000000002,0.999],"
                  "\"eps\":1e-8,\"amsgrad\":false}"},
        {"Ftrl", "\"params\":{\"lr\":0.001,\"initial_accumulator_value\":0.1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        job_fixture_expect_loaded(
            fixture, job_fixture_set(
                         fixture, textf("optimizer.type=%s", cases[i].type)));
        assert_contains(fixture->job->text, cases[i].params);
    }
    assert_true(fixture->job->optimizer.learning_rate_power == -0.5);
    job_fixture_expect_set_refused(
        fixture, "optimizer={\"type\":\"Ftrl\",\"params\":{\"eps\":1}}",
        "optimizer.params.eps: not a key of Ftrl; allowed: lr, "
        "initial_accumulator_value, learning_rate_power, "
        "l1_regularization_strength, l2_regularization_strength");
    job_fixture_expect_set_refused(
        fixture, "optimizer={\"type\":\"Adam\",\"params\":{\"betas\":[0.9,1]}}",
        "optimizer.params.betas: found [0.9,1] (an array)");
    job_fixture_expect_set_refused(fixture,
                                   "optimizer={\"type\":\"Ftrl\",\"params\":"
                                   "{\"learning_rate_power\":0.5}}",
                                   "a number, at most 0");
}

/* The least job with a model whose parameters are in groups. */
static const char grouped_job[] =
    "{\"model\": {\"type\": \"deepfm\", \"dim\": 4, \"hidden\": [8]},"
    " \"data\": {\"train\": \"a.libsvm\", \"format\": \"libsvm\"},"
    " \"steps\": 10, \"train_micro_batch_size_per_gpu\": 8,"
    " \"optimizer\": {\"type\": \"SGD\"},"
    " \"optimizers\": {\"wide\": {\"type\": \"Ftrl\"}}}";

TEST(groups_have_optimizers_of_their_own) {
    const char *const sets[] = {
        "optimizers.wide.params.lr=0.25",
        "optimizers.deep={\"type\":\"Adagrad\",\"params\":{\"eps\":1e-5}}",
        NULL};
    job_fixture_expect_loaded(
        fixture, job_fixture_load(fixture, grouped_job, NULL, sets));
    const struct job_group_optimizer *wide, *deep;
    wide = &fixture->job->groups[JOB_GROUP_WIDE];
    deep = &fixture->job->groups[JOB_GROUP_DEEP];
    assert_int_equal(fixture->job->optimizer.type, OPTIMIZER_SGD);
    assert_int_equal(wide->optimizer.type, OPTIMIZER_FTRL);
    assert_true(wide->lr == 0.25 &&
                wide->optimizer.initial_accumulator_value == 0.1);
    assert_int_equal(deep->optimizer.type, OPTIMIZER_ADAGRAD);
    assert_true(deep->lr == 0.01 && deep->optimizer.eps == 1e-5);
    assert_int_equal(fixture->job->model.group[JOB_GROUP_WIDE], 1);
    assert_int_equal(fixture->job->model.group[JOB_GROUP_DEEP], 2);
    struct job *again;
    assert_int_equal(job_parse(&again, fixture->job->text, NULL, &fixture->why),
                     STATUS_OK);
    assert_string_equal(again->text, fixture->job->text);
    assert_memory_equal(again->groups, fixture->job->groups,
                        sizeof again->groups);
    job_free(&again);
}

TEST(a_job_with_an_optimizer_for_each_group_needs_no_other) {
    const char *const none[] = {"optimizer=null", NULL};
    const char *const all[] = {"optimizer=null", "optimizers.deep.type=Adagrad",
                               NULL};
    const char *const rate[] = {"optimizer=null",
                                "optimizers.deep.type=Adagrad",
                                "optimizer.params.lr=0.5", NULL};
    job_fixture_expect_refused(
        fixture, job_fixture_load(fixture, grouped_job, NULL, none),
        "optimizers.deep: missing");
    job_fixture_expect_loaded(
        fixture, job_fixture_load(fixture, grouped_job, NULL, all));
    assert_int_equal(fixture->job->optimizer.type, OPTIMIZER_FTRL);
    job_fixture_expect_refused(
        fixture, job_fixture_load(fixture, grouped_job, NULL, rate),
        "optimizer.params.lr: has no effect, as each group has an optimizer of "
        "its own; set optimizers.wide.params.lr (--learning_rate sets "
        "optimizer.params.lr)");
}

TEST(a_rate_that_no_group_takes_is_warned_of) {
    static const char *const warning =
        "warning: optimizer.params.lr: 0.5 is not used: each group";
    const char *const both[] = {"optimizers.deep.type=Adagrad",
                                "optimizer.params.lr=0.5", NULL};
    const char *const one[] = {"optimizer.params.lr=0.5", NULL};
    job_fixture_expect_loaded(
        fixture, job_fixture_load(fixture, grouped_job, NULL, both));
    assert_contains(fixture->log, warning);
    job_fixture_expect_loaded(
        fixture, job_fixture_load(fixture, grouped_job, NULL, one));
    assert_null(strstr(fixture->log, warning));
}

TEST(groups_that_a_model_lacks_are_refused) {
    static const struct {
        const char *set, *text;
    } cases[] = {
        {"optimizers.wdie.type=Ftrl",
         "optimizers.wdie: unknown key; nearest: optimizers.wide"},
        {"optimizers.rest.type=Ftrl",
         "optimizers.rest: unknown key; known in optimizers: wide, deep"},
        {"model={\"type\":\"dlrm\",\"bottom\":[4],\"top\":[4]}",
         "optimizers.wide: not a key of dlrm; allowed: deep"},
        {"model={\"type\":\"external\"}",
         "optimizers.wide: not a key of external; allowed: none"},
        {"optimizers.wide=Ftrl",
         "optimizers.wide: found \"Ftrl\" (a string); allowed: an object with "
         "the keys type, params"},
        {"optimizers.wide={}", "optimizers.wide.type: missing"},
        {"optimizers.wide.params.eps=1",
         "optimizers.wide.params.eps: not a key of Ftrl; allowed: lr, "
         "initial_accumulator_value"},
        {"optimizers.deep={\"type\":\"SGD\",\"params\":{\"nesterov\":true}}",
         "optimizers.deep.params.nesterov: found true"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *const sets[] = {cases[i].set, NULL};
        job_fixture_expect_refused(
            fixture, job_fixture_load(fixture, grouped_job, NULL, sets),
            cases[i].text);
    }
}

TEST(each_schedule_has_its_own_keys) {
    job_fixture_expect_loaded(
        fixture,
        job_fixture_set(
            fixture, "scheduler={\"type\":\"WarmupCosineLR\",\"params\":"
                     "{\"total_num_steps\":9e3,\"warmup_type\":\"linear\"}}"));
    const struct schedule *schedule = &fixture->job->schedule;
    assert_int_equal(schedule->type, SCHEDULE_WARMUP_COSINE);
    assert_int_equal(schedule->total_num_steps, 9000);
    assert_int_equal(schedule->warmup_num_steps, 1000);
    assert_true(schedule->cos_min_ratio == 0.0001 && schedule->warmup_linear);
    job_fixture_expect_set_refused(fixture, "scheduler.type=WarmupDecayLR",
                                   "scheduler.params.total_num_steps: missing");
    job_fixture_expect_set_refused(
        fixture,
        "scheduler={\"type\":\"WarmupLR\",\"params\":"
        "{\"cos_min_ratio\":1}}",
        "scheduler.params.cos_min_ratio: not a key of WarmupLR");
    job_fixture_expect_set_refused(
        fixture, "scheduler.params.warmup_min_lr=1",
        "scheduler.params.warmup_min_lr: not a key of none");
    job_fixture_expect_set_refused(
        fixture,
        "scheduler={\"type\":\"WarmupLR\",\"params\":"
        "{\"warmup_type\":\"auto\"}}",
        "write the value itself");
}

TEST(decays_have_the_keys_of_tensorflow_and_torch) {
    static const char *const loaded[] = {
        "{\"type\":\"ExponentialDecay\",\"params\":{\"decay_steps\":9,"
        "\"decay_rate\":0.5,\"staircase\":true}}",
        "{\"type\":\"PiecewiseConstantDecay\",\"params\":"
        "{\"boundaries\":[5,9],\"values\":[1,0.5,0.1]}}",
        "{\"type\":\"CosineAnnealingWarmRestarts\",\"params\":{\"T_0\":9}}",
    };
    static const char *const refused[][2] = {
        {"{\"type\":\"ExponentialDecay\",\"params\":{\"decay_steps\":9}}",
         "scheduler.params.decay_rate: missing"},
        {"{\"type\":\"PiecewiseConstantDecay\",\"params\":"
         "{\"boundaries\":[5,9],\"values\":[1,0.5]}}",
         "scheduler.params.values: found 2 with 2 boundaries"},
        {"{\"type\":\"PiecewiseConstantDecay\",\"params\":"
         "{\"boundaries\":[9,9],\"values\":[1,0.5,0.1]}}",
         "scheduler.params.boundaries: found 9 after 9"},
        {"{\"type\":\"MultiStepLR\",\"params\":{\"milestones\":[9,5]}}",
         "scheduler.params.milestones: found 5 after 9"},
        {"{\"type\":\"StepLR\",\"params\":{\"step_size\":9,\"T_0\":9}}",
         "scheduler.params.T_0: not a key of StepLR"},
    };
    char set[256];
    for (size_t i = 0; i < sizeof loaded / sizeof *loaded; i++) {
        snprintf(set, sizeof set, "scheduler=%s", loaded[i]);
        job_fixture_expect_loaded(fixture, job_fixture_set(fixture, set));
    }
    assert_int_equal(fixture->job->schedule.period, 9);
    assert_true(fixture->job->schedule.t_mul == 1);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        snprintf(set, sizeof set, "scheduler=%s", refused[i][0]);
        job_fixture_expect_set_refused(fixture, set, refused[i][1]);
    }
}

/* Those of tf.keras.optimizers of TensorFlow 2.15. */
TEST(keys_left_out_may_have_the_defaults_of_keras) {
    static const struct {
        const char *type;
        double lr, eps, accumulator, alpha, weight_decay;
    } rules[] = {
        {"optimizer.type=SGD", 0.01, 0, 0, 0, 0},
        {"optimizer.type=Adagrad", 0.001, 1e-7, 0.1, 0, 0},
        {"optimizer.type=RMSprop", 0.001, 1e-7, 0, 0.9, 0},
        {"optimizer.type=Adam", 0.001, 1e-7, 0, 0, 0},
        {"optimizer.type=AdamW", 0.001, 1e-7, 0, 0, 0.004},
        {"optimizer.type=Ftrl", 0.001, 0, 0.1, 0, 0},
    };
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        const char *const sets[] = {"defaults=tf", rules[i].type,
                                    "optimizer.params=null", NULL};
        job_fixture_expect_loaded(
            fixture, job_fixture_load(fixture, job_fixture_least, NULL, sets));
        const struct optimizer *rule = &fixture->job->optimizer;
        assert_true(fixture->job->schedule.lr == rules[i].lr);
        assert_true(rule->eps == rules[i].eps);
        assert_true(rule->initial_accumulator_value == rules[i].accumulator);
        assert_true(rule->alpha == rules[i].alpha);
        assert_true(rule->weight_decay == rules[i].weight_decay);
        assert_null(strstr(fixture->log, "default of torch"));
    }
    const char *const given[] = {"defaults=tf", "optimizer.type=Adam",
                                 "optimizer.params={\"eps\":1e-4}", NULL};
    job_fixture_expect_loaded(
        fixture, job_fixture_load(fixture, job_fixture_least, NULL, given));
    assert_true(fixture->job->optimizer.eps == 1e-4);
}

/* As TensorFlow's schedules do. */
TEST(an_initial_learning_rate_replaces_the_optimizers) {
    const char *sets[] = {"optimizer.params.lr=1e-9",
                          "scheduler={\"type\":\"InverseTimeDecay\","
                          "\"params\":{\"decay_steps\":9,\"decay_rate\":0.5,"
                          "\"initial_learning_rate\":0.1}}",
                          NULL};
    job_fixture_expect_loaded(
        fixture, job_fixture_load(fixture, job_fixture_least, NULL, sets));
    assert_contains(fixture->log,
                    "scheduler.params.initial_learning_rate, 0.1");
    assert_true(fixture->job->schedule.initial_lr == 0.1);
    job_fixture_expect_loaded(
        fixture, job_fixture_load(fixture, job_fixture_least, NULL, sets + 1));
    assert_null(strstr(fixture->log, "optimizer.params.lr"));
}

TEST(keys_that_contradict_each_other_are_refused) {
    job_fixture_expect_set_refused(fixture, "steps=null", "epochs: missing");
    job_fixture_expect_set_refused(fixture,
                                   "train_micro_batch_size_per_gpu=null",
                                   "it or train_batch_size");
    const char *const bf16[] = {"strategy.type=allreduce", "wire=bf16", NULL};
    job_fixture_expect_refused(
        fixture, job_fixture_load(fixture, job_fixture_least, NULL, bf16),
        "wire: found \"bf16\" with strategy.type \"allreduce\"");
    job_fixture_expect_set_refused(
        fixture, "strategy={\"type\":\"allreduce\",\"staleness\":1}",
        "strategy.staleness: found with type \"allreduce\"");
    job_fixture_expect_set_refused(fixture, "checkpoint.resume=500",
                                   "without checkpoint.dir");
    job_fixture_expect_set_refused(fixture, "optimizer.params.nesterov=true",
                                   "momentum over 0");
    job_fixture_expect_set_refused(fixture, "optimizer={\"type\":\"None\"}",
                                   "only with model.type \"external\"");
    const char *const scaled[] = {"scale_lr=linear", "strategy.staleness=2",
                                  NULL};
    job_fixture_expect_refused(
        fixture, job_fixture_load(fixture, job_fixture_least, NULL, scaled),
        "scale_lr: found \"linear\" with strategy.staleness");
    job_fixture_expect_refused(
        fixture,
        job_fixture_load(fixture,
                         textf("{\"epochs\": 1, %s", job_fixture_least + 1),
                         NULL, NULL),
        "epochs: found beside steps; allowed: one of the two");
}

TEST(what_backup_workers_do_not_go_with_is_named) {
    static const char *const others[][2] = {
        {"strategy.staleness=1", "with strategy.staleness"},
        {"strategy.staleness=inf", "with strategy.staleness"},
        {"strategy.type=allreduce", "with strategy.type \"allreduce\""},
        {"gradient_clipping=0.5", "with gradient_clipping"},
        {"optimizer.type=None", "with optimizer \"None\""},
        {"model={\"type\": \"dlrm\"}", "with a built-in model other than"},
    };
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        const char *const sets[] = {"strategy.backup_workers=1", others[i][0],
                                    NULL};
        job_fixture_expect_refused(
            fixture, job_fixture_load(fixture, job_fixture_least, NULL, sets),
            textf("strategy.backup_workers: found %s", others[i][1]));
    }
    const char *const none[] = {"strategy.backup_workers=0",
                                "strategy.staleness=1", "gradient_clipping=0.5",
                                NULL};
    job_fixture_expect_loaded(
        fixture, job_fixture_load(fixture, job_fixture_least, NULL, none));
    const char *const zeros[] = {"strategy.backup_workers=1",
                                 "gradient_clipping=0.0", NULL};
    job_fixture_expect_loaded(
        fixture, job_fixture_load(fixture, job_fixture_least, NULL, zeros));
}

TEST(errors_name_the_batch_key_that_was_given) {
    static const struct {
        const char *sets[3], *key;
    } cases[] = {
        {{"train_micro_batch_size_per_gpu=8"},
         "train_micro_batch_size_per_gpu"},
        {{"train_micro_batch_size_per_gpu=null", "train_batch_size=8"},
         "train_batch_size"},
        {{"train_micro_batch_size_per_gpu=8", "train_batch_size=8"},
         "train_batch_size and train_micro_batch_size_per_gpu"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        job_fixture_expect_loaded(
            fixture,
            job_fixture_load(fixture, job_fixture_least, NULL, cases[i].sets));
        assert_string_equal(fixture->job->batch_key, cases[i].key);
    }
}

/* DeepSpeed's schedules of this kind take no notice of the optimizer's rate. */
TEST(a_rate_that_a_scheduler_replaces_warns) {
    const char *sets[] = {"optimizer.params.lr=1e-9", "scheduler.type=WarmupLR",
                          "scheduler.params.warmup_max_lr=0.1", NULL};
    job_fixture_expect_loaded(
        fixture, job_fixture_load(fixture, job_fixture_least, NULL, sets));
    assert_contains(fixture->log,
                    "warning: optimizer.params.lr: 1e-09 is not used");
    assert_contains(fixture->log, "scheduler.params.warmup_max_lr, 0.1");
    sets[0] = "optimizer.params.lr=0.1";
    job_fixture_expect_loaded(
        fixture, job_fixture_load(fixture, job_fixture_least, NULL, sets));
    assert_null(strstr(fixture->log, "optimizer.params.lr"));
    job_fixture_expect_loaded(
        fixture, job_fixture_load(fixture, job_fixture_least, NULL, sets + 1));
    assert_null(strstr(fixture->log, "optimizer.params.lr"));
    const char *const cosine[] = {"optimizer.params.lr=0.1",
                                  "scheduler.type=WarmupCosineLR",
                                  "scheduler.params.total_num_steps=9", NULL};
    job_fixture_expect_loaded(
        fixture, job_fixture_load(fixture, job_fixture_least, NULL, cosine));
    assert_null(strstr(fixture->log, "optimizer.params.lr"));
}

TEST(scale_lr_without_a_warm_up_warns) {
    job_fixture_expect_loaded(fixture,
                              job_fixture_set(fixture, "scale_lr=linear"));
    assert_contains(fixture->log, "warning: scale_lr: ");
    const char *const warm[] = {"scale_lr=linear", "scheduler.type=WarmupLR",
                                NULL};
    job_fixture_expect_loaded(
        fixture, job_fixture_load(fixture, job_fixture_least, NULL, warm));
    assert_null(strstr(fixture->log, "scale_lr"));
}

TEST(checkpoints_default_to_time_only_without_other_intervals) {
    job_fixture_expect_loaded(
        fixture, job_fixture_set(fixture, "checkpoint.every_epochs=1"));
    assert_true(fixture->job->checkpoint.every_seconds == 0);
    job_fixture_expect_loaded(
        fixture, job_fixture_set(fixture, "checkpoint.every_seconds=0"));
    assert_true(fixture->job->checkpoint.every_seconds == 0);
    const char *const both[] = {"checkpoint.every_steps=9",
                                "checkpoint.every_seconds=60", NULL};
    job_fixture_expect_loaded(
        fixture, job_fixture_load(fixture, job_fixture_least, NULL, both));
    assert_true(fixture->job->checkpoint.every_steps == 9 &&
                fixture->job->checkpoint.every_seconds == 60);
}
