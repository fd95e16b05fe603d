/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/job_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

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

static const char model_and_data[] =
    "{\"model\": {\"layers\": [4, 2]}, \"data\": {\"train\": [\"i\", \"l\"]},"
    " \"steps\": 10}";

static const struct job *load(struct job_fixture *fixture, const char *job,
                              const char *const *sets) {
    if (job_fixture_load(fixture, job, huggingface, sets))
        fail_msg("%s", fixture->why.text);
    return fixture->job;
}

static void expect_logged(const struct job_fixture *fixture, const char *text) {
    if (!strstr(fixture->log, text))
        fail_msg("no \"%s\" in:\n%s", text, fixture->log);
}

static void auto_is_the_trainers_default_and_is_logged(void **state) {
    struct job_fixture *fixture = *state;
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

static void auto_takes_the_jobs_value(void **state) {
    struct job_fixture *fixture = *state;
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

static void auto_takes_the_value_of_set(void **state) {
    struct job_fixture *fixture = *state;
    const char *const sets[] = {"train_micro_batch_size_per_gpu=32",
                                "optimizer.params.lr=0.2", NULL};
    const struct job *job = load(fixture, model_and_data, sets);
    assert_int_equal(job->micro_batch, 32);
    assert_true(job->schedule.lr == 0.2);
    assert_true(job->schedule.warmup_max_lr == 0.2);
}

static void an_auto_schedule_length_is_the_jobs_steps(void **state) {
    struct job_fixture *fixture = *state;
    const char *const decays[] = {"scheduler.type=WarmupDecayLR",
                                  "scheduler.params.total_num_steps=auto",
                                  NULL};
    const char *const epochs[] = {"scheduler.type=WarmupDecayLR",
                                  "scheduler.params.total_num_steps=auto",
                                  "epochs=3", NULL};
    assert_int_equal(
        load(fixture, model_and_data, decays)->schedule.total_num_steps, 10);
    assert_int_equal(
        job_fixture_load(fixture, model_and_data, huggingface, epochs),
        STATUS_CONFIG);
    assert_non_null(strstr(fixture->why.text,
                           "scheduler.params.total_num_steps: found \"auto\""));
    assert_non_null(strstr(fixture->why.text, "use --set"));
}

static void an_unknown_auto_is_refused_and_its_key_named(void **state) {
    struct job_fixture *fixture = *state;
    assert_int_equal(
        job_fixture_load(fixture, model_and_data, huggingface,
                         (const char *[]){"steps_per_print=auto", NULL}),
        STATUS_CONFIG);
    assert_non_null(
        strstr(fixture->why.text, "steps_per_print: found \"auto\""));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        JOB_FIXTURE_TEST(auto_is_the_trainers_default_and_is_logged),
        JOB_FIXTURE_TEST(auto_takes_the_jobs_value),
        JOB_FIXTURE_TEST(auto_takes_the_value_of_set),
        JOB_FIXTURE_TEST(an_auto_schedule_length_is_the_jobs_steps),
        JOB_FIXTURE_TEST(an_unknown_auto_is_refused_and_its_key_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
