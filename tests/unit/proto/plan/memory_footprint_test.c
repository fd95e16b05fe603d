/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/plan/memory_footprint.h"

#include "tests/lib/test.h"
#include "worker/models/mlp.h"

/* [100, 50, 30, 10]: 6890 values, micro batches of 1000. */
static struct job small_job(void) {
    static const struct mlp_settings model = {.layers = {4, {100, 50, 30, 10}}};
    return (struct job){
        .model.settings = &model,
        .data = {.num_workers = 1, .prefetch_factor = 2, .shuffle = true},
        .micro_batch = 1000,
        .accumulation = 1,
        .optimizer = {.type = OPTIMIZER_ADAM},
    };
}

static struct memory_footprint_case case_of(const struct job *job) {
    return (struct memory_footprint_case){.job = job,
                                          .model = model_mlp.memory,
                                          .trainers = 4,
                                          .elements = 6890,
                                          .train_samples = 5000,
                                          .test_samples = 700};
}

TEST(a_trainers_memory_is_the_sum_of_its_parts) {
    struct job job = small_job();
    struct memory_footprint_case given = case_of(&job);
    struct memory_footprint found;
    memory_footprint_trainer(&found, &given, MEMORY_FOOTPRINT_ALL);
    assert_int_equal(found.bytes[MEMORY_FOOTPRINT_WEIGHTS], 6890 * 4);
    assert_int_equal(found.bytes[MEMORY_FOOTPRINT_GRADIENTS], 6890 * 4);
    assert_int_equal(found.bytes[MEMORY_FOOTPRINT_STATE], 0);
    assert_int_equal(found.bytes[MEMORY_FOOTPRINT_ACTIVATIONS],
                     1000 * (50 + 30 + 10 + 2 * 50) * 4);
    assert_int_equal(found.bytes[MEMORY_FOOTPRINT_BATCHES],
                     (3 * 1000 + 256) * (100 * 4 + 4));
    assert_int_equal(found.bytes[MEMORY_FOOTPRINT_DATA], 5700 * 104 + 5000 * 4);
    job.data.shuffle = false;
    memory_footprint_trainer(&found, &given, MEMORY_FOOTPRINT_ALL);
    assert_int_equal(found.bytes[MEMORY_FOOTPRINT_DATA], 5700 * 104);
    uint64_t sum = 0;
    for (int kind = 0; kind < MEMORY_FOOTPRINT_KINDS; kind++)
        sum += found.bytes[kind];
    assert_int_equal(memory_footprint_sum(&found), sum);
}

TEST(small_batches_reserve_memory_for_evaluations) {
    struct job job = small_job();
    struct memory_footprint_case given = case_of(&job);
    struct memory_footprint found;
    job.micro_batch = 10;
    memory_footprint_trainer(&found, &given, MEMORY_FOOTPRINT_ALL);
    assert_int_equal(found.bytes[MEMORY_FOOTPRINT_ACTIVATIONS], 256 * 190 * 4);
    given.test_samples = 0;
    memory_footprint_trainer(&found, &given, MEMORY_FOOTPRINT_ALL);
    assert_int_equal(found.bytes[MEMORY_FOOTPRINT_ACTIVATIONS], 10 * 190 * 4);
}

TEST(fewer_kept_outputs_are_fewer_activations) {
    struct job job = small_job();
    struct memory_footprint_case given = case_of(&job);
    struct memory_footprint found;
    const struct mlp_settings deep = {
        .layers = {9, {8, 5, 5, 5, 5, 5, 5, 5, 2}}};
    job.model = (struct job_model){.settings = &deep, .kept = 2};
    memory_footprint_trainer(&found, &given, MEMORY_FOOTPRINT_ALL);
    assert_int_equal(found.bytes[MEMORY_FOOTPRINT_ACTIVATIONS],
                     1000 * (5 * 4 + 2 + 2 * 5) * 4);
}

TEST(in_all_reduce_trainers_hold_the_optimizer_state) {
    struct job job = small_job();
    struct memory_footprint_case given = case_of(&job);
    struct memory_footprint found;
    given.allreduce = true;
    memory_footprint_trainer(&found, &given, MEMORY_FOOTPRINT_ALL);
    assert_int_equal(found.bytes[MEMORY_FOOTPRINT_STATE], 2 * 6890 * 4);
    job.zero.stage = 1;
    memory_footprint_trainer(&found, &given, MEMORY_FOOTPRINT_ALL);
    assert_int_equal(found.bytes[MEMORY_FOOTPRINT_STATE], 2 * 1723 * 4);
    job.optimizer.type = OPTIMIZER_SGD;
    memory_footprint_trainer(&found, &given, MEMORY_FOOTPRINT_ALL);
    assert_int_equal(found.bytes[MEMORY_FOOTPRINT_STATE], 0);
}

/* The left operand is at most 1000 rows of 100, the right one the first layer's
 * weights or inputs, here as much. */
TEST(rounded_operands_are_copies_on_a_cpu) {
    struct job job = small_job();
    struct memory_footprint_case given = case_of(&job);
    struct memory_footprint found;
    job.model.precision = JOB_PRECISION_BF16;
    memory_footprint_trainer(&found, &given, MEMORY_FOOTPRINT_ALL);
    assert_int_equal(found.bytes[MEMORY_FOOTPRINT_ROUNDED], 2 * 1000 * 100 * 4);
    job.micro_batch = 3;
    given.test_samples = 0;
    memory_footprint_trainer(&found, &given, MEMORY_FOOTPRINT_ALL);
    assert_int_equal(found.bytes[MEMORY_FOOTPRINT_ROUNDED],
                     (3 * 100 + 100 * 50) * 4);
    memory_footprint_trainer(&found, &given, MEMORY_FOOTPRINT_HOST);
    assert_int_equal(found.bytes[MEMORY_FOOTPRINT_ROUNDED], 0);
}

TEST(replicas_have_batches_an_order_and_gradients_each) {
    struct job job = small_job();
    struct memory_footprint_case given = case_of(&job);
    struct memory_footprint found;
    given.replicas = 4;
    memory_footprint_trainer(&found, &given, MEMORY_FOOTPRINT_HOST);
    assert_int_equal(found.bytes[MEMORY_FOOTPRINT_WEIGHTS], 6890 * 4);
    assert_int_equal(found.bytes[MEMORY_FOOTPRINT_GRADIENTS], 6890 * 4);
    assert_int_equal(found.bytes[MEMORY_FOOTPRINT_BATCHES],
                     (4 * 3 * 1000 + 256) * (100 * 4 + 4));
    assert_int_equal(found.bytes[MEMORY_FOOTPRINT_DATA],
                     5700 * 104 + 4 * 5000 * 4);
    given.adds_on_host = true;
    memory_footprint_trainer(&found, &given, MEMORY_FOOTPRINT_HOST);
    assert_int_equal(found.bytes[MEMORY_FOOTPRINT_GRADIENTS], 4 * 6890 * 4);
}

TEST(a_device_holds_the_compute_buffers) {
    struct job job = small_job();
    struct memory_footprint_case given = case_of(&job);
    struct memory_footprint all, host, device;
    given.allreduce = true;
    memory_footprint_trainer(&all, &given, MEMORY_FOOTPRINT_ALL);
    memory_footprint_trainer(&host, &given, MEMORY_FOOTPRINT_HOST);
    memory_footprint_trainer(&device, &given, MEMORY_FOOTPRINT_DEVICE);
    assert_int_equal(host.bytes[MEMORY_FOOTPRINT_ACTIVATIONS], 0);
    assert_int_equal(host.bytes[MEMORY_FOOTPRINT_STATE], 2 * 6890 * 4);
    assert_int_equal(device.bytes[MEMORY_FOOTPRINT_ACTIVATIONS],
                     all.bytes[MEMORY_FOOTPRINT_ACTIVATIONS]);
    assert_int_equal(device.bytes[MEMORY_FOOTPRINT_WEIGHTS], 6890 * 4);
    assert_int_equal(device.bytes[MEMORY_FOOTPRINT_GRADIENTS], 6890 * 4);
    assert_int_equal(device.bytes[MEMORY_FOOTPRINT_STATE], 0);
    assert_int_equal(device.bytes[MEMORY_FOOTPRINT_BATCHES],
                     1256 * (2 * (100 * 4 + 4) + 100 + 4));
    assert_int_equal(device.bytes[MEMORY_FOOTPRINT_DATA], 0);
}

TEST(memory_on_a_device_is_not_counted_on_its_host) {
    struct job job = small_job();
    struct memory_footprint_case given = case_of(&job);
    struct memory_footprint all, host, device;
    given.allreduce = given.resident = true;
    job.zero.stage = 1;
    memory_footprint_trainer(&all, &given, MEMORY_FOOTPRINT_ALL);
    memory_footprint_trainer(&host, &given, MEMORY_FOOTPRINT_HOST);
    memory_footprint_trainer(&device, &given, MEMORY_FOOTPRINT_DEVICE);
    uint64_t share = (6890 + 3) / 4;
    assert_int_equal(device.bytes[MEMORY_FOOTPRINT_STATE], 2 * share * 4);
    assert_int_equal(device.bytes[MEMORY_FOOTPRINT_GRADIENTS], 6890 * 4);
    assert_int_equal(host.bytes[MEMORY_FOOTPRINT_STATE], 0);
    assert_int_equal(host.bytes[MEMORY_FOOTPRINT_GRADIENTS], 0);
    assert_int_equal(host.bytes[MEMORY_FOOTPRINT_WEIGHTS], 6890 * 4);
    assert_int_equal(all.bytes[MEMORY_FOOTPRINT_STATE], 2 * share * 4);
    assert_int_equal(all.bytes[MEMORY_FOOTPRINT_GRADIENTS], 6890 * 4);
}

TEST(a_ps_holds_its_blocks_and_their_state) {
    struct job job = small_job();
    struct memory_footprint_case given = case_of(&job);
    struct memory_footprint found;
    memory_footprint_ps(&found, &given, 1000, 3);
    assert_int_equal(found.bytes[MEMORY_FOOTPRINT_WEIGHTS], 4000);
    assert_int_equal(found.bytes[MEMORY_FOOTPRINT_STATE], 8000);
    assert_int_equal(memory_footprint_sum(&found), 12000);
}

TEST(with_clipping_a_ps_keeps_the_gradients_of_a_round) {
    struct job job = small_job();
    struct memory_footprint_case given = case_of(&job);
    struct memory_footprint found;
    job.gradient_clipping = 1;
    memory_footprint_ps(&found, &given, 1000, 3);
    assert_int_equal(found.bytes[MEMORY_FOOTPRINT_GRADIENTS], 12000);
    job.wire = JOB_WIRE_BF16;
    memory_footprint_ps(&found, &given, 1000, 3);
    assert_int_equal(found.bytes[MEMORY_FOOTPRINT_GRADIENTS], 6000);
    job.staleness = 1;
    memory_footprint_ps(&found, &given, 1000, 3);
    assert_int_equal(found.bytes[MEMORY_FOOTPRINT_GRADIENTS], 0);
}

TEST(the_log_line_names_each_part) {
    struct memory_footprint footprint = {{[MEMORY_FOOTPRINT_WEIGHTS] = 3 << 20,
                                          [MEMORY_FOOTPRINT_STATE] = 1 << 19}};
    char text[160], small[8];
    memory_footprint_text(&footprint, text, sizeof text);
    assert_string_equal(text, "3.5 MB: weights 3 MB, state 512 KB");
    memory_footprint_text(&footprint, small, sizeof small);
    assert_string_equal(small, "3.5 MB:");
}
