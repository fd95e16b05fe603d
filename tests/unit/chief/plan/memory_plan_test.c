/* SPDX-License-Identifier: Apache-2.0 */
#define STATE struct fixture *fixture

#include "chief/plan/memory_plan.h"

#include "tests/lib/test.h"
#include "worker/models/mlp.h"

enum { MAXIMUM = 8 };
static const uint64_t mib = 1 << 20;

/* A job of 64 MiB of weights in 64 hidden layers, and who plays it. */
struct fixture {
    struct job job;
    struct mlp_settings model;
    struct memory_footprint_case given;
    struct memory_plan_member members[MAXIMUM];
    struct memory_plan_limits reported[MAXIMUM];
    uint32_t count;
};

static int setup(void **state) {
    struct fixture *fixture = calloc(1, sizeof *fixture);
    fixture->job = (struct job){
        .model.settings = &fixture->model,
        .data = {.num_workers = 1, .prefetch_factor = 1},
        .micro_batch = 1024,
        .accumulation = 1,
        .optimizer = {.type = OPTIMIZER_SGD, .momentum = 0.9},
    };
    fixture->model.layers.count = 34;
    for (uint32_t l = 0; l < 34; l++)
        fixture->model.layers.items[l] = 512;
    fixture->given = (struct memory_footprint_case){.job = &fixture->job,
                                                    .model = model_mlp.memory,
                                                    .trainers = 2,
                                                    .elements = 64 * mib / 4,
                                                    .train_samples = 2048};
    *state = fixture;
    return 0;
}

static int teardown(void **state) {
    free(*state);
    return 0;
}

FIXTURE(setup, teardown);

static void tell(struct fixture *fixture, uint32_t member, const char *key,
                 const char *name, uint64_t free) {
    struct memory_plan_limits *reported = &fixture->reported[member];
    struct free_memory_limit *limit = &reported->limits[reported->count++];
    limit->free = free;
    snprintf(limit->key, sizeof limit->key, "%s", key);
    snprintf(limit->name, sizeof limit->name, "%s", name);
}

/* ELEMENTS 0: a trainer. */
static void add(struct fixture *fixture, const char *name, const char *host,
                uint64_t elements, uint64_t free) {
    uint32_t member = fixture->count++;
    fixture->members[member] =
        (struct memory_plan_member){.name = name,
                                    .host = host,
                                    .reported = &fixture->reported[member],
                                    .trains = !elements,
                                    .elements = elements};
    tell(fixture, member, host, "free memory", free);
}

static enum status check(struct fixture *fixture) {
    return memory_plan_check(fixture->members, fixture->count, &fixture->given,
                             &failure);
}

static void expect_text(const char *part) {
    assert_contains(failure.text, part);
}

static void expect_no_text(const char *part) {
    if (strstr(failure.text, part))
        fail_msg("\"%s\" in: %s", part, failure.text);
}

/* 64 weights, 64 gradients, 33 * 2 activations and 2 * 2 of gradients, 4 of
 * batches, 1 of data: in MiB, and a little for labels. */
static const uint64_t trainers_need = 203;

TEST(a_plan_that_fits_is_accepted) {
    add(fixture, "worker 0", "a", 0, trainers_need * mib);
    add(fixture, "ps 0", "b", 16 * mib, 128 * mib);
    assert_ok(check(fixture));
}

/* The sum is right within an eighth. */
TEST(a_plan_that_may_still_fit_is_accepted) {
    add(fixture, "worker 0", "a", 0, trainers_need * mib * 89 / 100);
    assert_ok(check(fixture));
    fixture->reported[0].limits[0].free = trainers_need * mib * 86 / 100;
    assert_error(check(fixture), FAILURE_JOB_TOO_LARGE);
}

/* As where a run goes back, and its workers have their data already. */
TEST(what_trainers_hold_already_counts_as_free) {
    add(fixture, "worker 0", "a", 0, 150 * mib);
    assert_error(check(fixture), FAILURE_JOB_TOO_LARGE);
    fixture->reported[0].limits[0].held = 50 * mib;
    assert_ok(check(fixture));
    add(fixture, "worker 1", "a", 0, 150 * mib);
    assert_error(check(fixture), FAILURE_JOB_TOO_LARGE);
    fixture->reported[1].limits[0].held = trainers_need * mib;
    assert_ok(check(fixture));
}

/* 100 MB of 300 MB are free; 203 MB are wanted. */
TEST(memory_held_by_others_may_become_free) {
    struct free_memory_limit *limit = &fixture->reported[0].limits[0];
    add(fixture, "worker 0", "a", 0, 100 * mib);
    limit->most = 300 * mib;
    assert_error(check(fixture), FAILURE_NO_MEMORY);
    expect_text("where there is 100 MB (free memory), as others hold "
                "the rest of 300 MB: worker 0 takes 203 MB");
    limit->most = 150 * mib;
    assert_error(check(fixture), FAILURE_JOB_TOO_LARGE);
    expect_no_text("others");
}

TEST(the_largest_reported_figure_is_the_capacity) {
    struct free_memory_limit again = {.free = 90 * mib, .key = "a"};
    struct free_memory_limit other = {.free = 900 * mib, .key = "b"};
    add(fixture, "worker 0", "a", 0, 100 * mib);
    fixture->reported[0].limits[0].most = 300 * mib;
    memory_plan_update_limits(&fixture->reported[0], &again, 1);
    memory_plan_update_limits(&fixture->reported[0], &other, 1);
    assert_error(check(fixture), FAILURE_NO_MEMORY);
    expect_text("there is 100 MB");
    again.free = 250 * mib;
    memory_plan_update_limits(&fixture->reported[0], &again, 1);
    assert_ok(check(fixture));
}

TEST(an_error_has_need_capacity_owner_and_parts) {
    add(fixture, "worker 0", "node7", 0, 100 * mib);
    add(fixture, "ps 0", "b", 16 * mib, 1000 * mib);
    assert_error(check(fixture), FAILURE_JOB_TOO_LARGE);
    expect_text("the job takes 203 MB on host node7, where there is "
                "100 MB (free memory)");
    expect_text("worker 0 takes 203 MB: weights 64 MB, gradients 64 "
                "MB, activations 70 MB");
    expect_no_text("ps 0");
}

TEST(roles_on_one_host_add_up) {
    add(fixture, "worker 0", "a", 0, 500 * mib);
    add(fixture, "worker 1", "a", 0, 490 * mib);
    add(fixture, "worker 2", "b", 0, 500 * mib);
    assert_ok(check(fixture));
    add(fixture, "ps 0", "a", 32 * mib, 480 * mib);
    assert_error(check(fixture), FAILURE_JOB_TOO_LARGE);
    expect_text("takes 662 MB on host a, where there is 500 MB");
    expect_text("ps 0 takes 256 MB: weights 128 MB, state 128 MB");
    expect_text("worker 0 and 1 more take 203 MB: weights");
    expect_text("; more ps, on other hosts; fewer of the 2 trainers "
                "on this host.");
    expect_no_text("worker 2");
}

/* Containers of one host have the host's memory together and each its own. */
TEST(the_most_exceeded_limit_is_reported) {
    add(fixture, "worker 0", "a", 0, 4000 * mib);
    add(fixture, "worker 1", "a", 0, 4000 * mib);
    tell(fixture, 0, "a group 1", "left by control group /one, memory.max",
         300 * mib);
    tell(fixture, 1, "a group 2", "left by control group /two, memory.max",
         300 * mib);
    assert_ok(check(fixture));
    fixture->reported[1].limits[1].free = 150 * mib;
    assert_error(check(fixture), FAILURE_JOB_TOO_LARGE);
    expect_text("takes 203 MB on host a, where there is 150 MB (left "
                "by control group /two, memory.max)");
    expect_no_text("worker 0");
}

TEST(device_and_host_memory_are_counted_separately) {
    struct memory_plan_limits *reported = &fixture->reported[0];
    add(fixture, "worker 0", "a", 0, 133 * mib);
    memory_plan_add_device(reported, "device 7", "free on device cuda 0",
                           100 * mib);
    memory_plan_clear_devices(reported); /* it declares again */
    memory_plan_add_device(reported, "device 7", "free on device cuda 0",
                           203 * mib);
    assert_ok(check(fixture));
    assert_int_equal(reported->count, 2);
    reported->limits[1].free = 150 * mib;
    assert_error(check(fixture), FAILURE_JOB_TOO_LARGE);
    expect_text("takes 203 MB on host a, where there is 150 MB (free "
                "on device cuda 0)");
    expect_text("worker 0 takes 203 MB: weights 64 MB, gradients 64 "
                "MB, activations 70 MB, batches 4.5 MB");
    reported->limits[1].free = 203 * mib;
    reported->limits[0].free = 100 * mib;
    assert_error(check(fixture), FAILURE_JOB_TOO_LARGE);
    expect_text("takes 133 MB on host a, where there is 100 MB");
    expect_no_text("activations 7");
}

TEST(a_member_without_figures_is_accepted) {
    add(fixture, "worker 0", "a", 0, 1);
    fixture->reported[0].count = 0;
    assert_ok(check(fixture));
}

TEST(only_remedies_that_help_are_suggested) {
    add(fixture, "worker 0", "a", 0, 120 * mib);
    assert_error(check(fixture), FAILURE_JOB_TOO_LARGE);
    expect_text("train_micro_batch_size_per_gpu 512 with "
                "gradient_accumulation_steps 2, the same batch (166 MB);");
    expect_text("activation_checkpointing.number_checkpoints 6 (159 MB).");
    expect_no_text("zero_optimization");
    expect_no_text("strategy.type");
    expect_no_text("trainers on this host");
    fixture->job.micro_batch = 1023; /* has no half */
    fixture->job.model.kept = 5;
    assert_error(check(fixture), FAILURE_JOB_TOO_LARGE);
    expect_no_text("train_micro_batch_size_per_gpu");
    expect_no_text("number_checkpoints");
    expect_text(". It takes a host with more memory, or a "
                "smaller model.");
}

/* 64 weights, 64 gradients and data are left of a trainer, whatever the keys
 * say: moving others away does not make it fit. */
TEST(a_change_that_does_not_make_it_fit_is_no_remedy) {
    add(fixture, "worker 0", "a", 0, 100 * mib);
    add(fixture, "worker 1", "a", 0, 100 * mib);
    add(fixture, "ps 0", "a", 16 * mib, 100 * mib);
    assert_error(check(fixture), FAILURE_JOB_TOO_LARGE);
    expect_no_text("more ps");
    expect_no_text("fewer of");
    expect_no_text("train_micro_batch_size_per_gpu");
    expect_text(". A trainer alone takes at least 1");
    expect_text(", whatever the keys say: it takes a host with more "
                "memory, or a smaller model.");
}

TEST(in_all_reduce_the_state_can_be_elsewhere) {
    fixture->given.allreduce = true;
    add(fixture, "worker 0", "a", 0, 120 * mib);
    assert_error(check(fixture), FAILURE_JOB_TOO_LARGE);
    expect_text("state 64 MB");
    expect_text("zero_optimization.stage 2 (235 MB);");
    expect_text("strategy.type \"ps\", with ps on hosts of their own "
                "(203 MB).");
    fixture->job.optimizer.momentum = 0;
    assert_error(check(fixture), FAILURE_JOB_TOO_LARGE);
    expect_no_text("zero_optimization");
    expect_no_text("strategy.type");
}

TEST(members_with_equal_needs_are_reported_together) {
    for (int i = 0; i < MAXIMUM - 1; i++)
        add(fixture, "worker 0", "a", 0, 100 * mib);
    add(fixture, "ps 0", "a", 16 * mib, 100 * mib);
    assert_error(check(fixture), FAILURE_JOB_TOO_LARGE);
    expect_text(": worker 0 and 6 more take 203 MB: weights 64 MB");
    expect_text(" each; ps 0 takes 128 MB: weights 64 MB");
    assert_true(strlen(failure.text) < 1000);
}

TEST(the_log_line_has_the_sums) {
    char text[640];
    add(fixture, "worker 0", "a", 0, 1000 * mib);
    add(fixture, "ps 0", "b", 16 * mib, 800 * mib);
    memory_plan_describe(fixture->members, fixture->count, &fixture->given,
                         text, sizeof text);
    assert_contains(text, "memory: a trainer 203 MB: weights 64 MB");
    assert_contains(text, "; a ps 128 MB: weights 64 MB, state 64 MB");
    assert_contains(text, "; 203 MB in all on host a, of 1000 MB");
    memory_plan_describe(fixture->members + 1, 1, &fixture->given, text,
                         sizeof text);
    assert_string_equal(text, "memory: a ps 128 MB: weights 64 MB, state 64 "
                              "MB; 128 MB in all on host b, of 800 MB");
}

/* 64 weights, 64 gradients, 33 * 2 + 2 * 2 of activations, 4 of batches on each
 * device; on the host the first's places and a place for the gradients of each
 * other one, and batches of each. */
TEST(each_device_is_counted_separately) {
    struct memory_plan_limits *reported = &fixture->reported[0];
    add(fixture, "worker 0", "a", 0, 500 * mib);
    for (int i = 0; i < 3; i++) {
        const char *key = textf("device %d", i);
        memory_plan_add_device(reported, key,
                               textf("free on device cuda %d", i), 203 * mib);
    }
    reported->replicas = 3;
    assert_ok(check(fixture));
    reported->limits[2].free = 150 * mib;
    assert_error(check(fixture), FAILURE_JOB_TOO_LARGE);
    expect_text("takes 203 MB on host a, where there is 150 MB (free "
                "on device cuda 1)");
    reported->limits[2].free = 203 * mib;
    reported->limits[0].free = 130 * mib; /* of 64 + 64 + 3 * 4 + 1 */
    assert_ok(check(fixture));
    reported->adds_on_host = true;
    assert_error(check(fixture), FAILURE_JOB_TOO_LARGE);
    expect_text("weights 64 MB, gradients 192 MB, batches 12.0 MB");
}

/* The others evaluate nothing. */
TEST(only_the_first_device_holds_the_test_set) {
    struct memory_plan_limits *reported = &fixture->reported[0];
    fixture->job.micro_batch = 16;
    fixture->given.test_samples = 1000;
    add(fixture, "worker 0", "a", 0, 500 * mib);
    memory_plan_add_device(reported, "device 0", "free on device cuda 0",
                           148 * mib);
    memory_plan_add_device(reported, "device 1", "free on device cuda 1",
                           120 * mib);
    reported->replicas = 2;
    assert_ok(check(fixture));
    reported->limits[2].free = 112 * mib;
    assert_error(check(fixture), FAILURE_JOB_TOO_LARGE);
    expect_text("(free on device cuda 1)");
}
