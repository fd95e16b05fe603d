/* SPDX-License-Identifier: Apache-2.0 */
/* A plan goes over the wire and back; each test spoils one thing of it. */
#define STATE struct fixture *fixture

#include "proto/plan/plan.h"

#include "tests/lib/test.h"

enum { BLOCKS = 4 };

/* Two parameters in four blocks on two ps; each test spoils one thing. */
struct fixture {
    struct job job;
    struct layout *layout;
    Capstan__Parameter **parameters;
    Capstan__PsEndpoint places[2], *place_of[2];
    uint16_t block_ps[BLOCKS];
    Capstan__Plan message;
};

static int setup(void **state) {
    static struct fixture fixture;
    struct parameter parameters[2] = {
        {.name = "weight", .num_dims = 2, .dims = {100, 400}, .init_bound = 1},
        {.name = "bias", .num_dims = 1, .dims = {100}}};
    fixture = (struct fixture){.job.accumulation = 3};
    fixture.job.checkpoint.every_steps = 50;
    fixture.job.checkpoint.every_epochs = 4;
    if (layout_build(&fixture.layout, parameters, 2, &failure))
        return -1;
    assert_int_equal(fixture.layout->num_blocks, BLOCKS);
    fixture.parameters = plan_parameters(fixture.layout);
    for (int p = 0; p < 2; p++) {
        capstan__ps_endpoint__init(&fixture.places[p]);
        fixture.places[p].address = p ? "[::1]:7" : "10.0.0.1:7";
        fixture.places[p].incarnation = 5 + (uint64_t)p;
        fixture.places[p].index = 2 * (uint32_t)p;
        fixture.place_of[p] = &fixture.places[p];
    }
    for (int b = 0; b < BLOCKS; b++)
        fixture.block_ps[b] = b % 2;
    Capstan__Plan *message = &fixture.message;
    capstan__plan__init(message);
    message->n_parameters = 2;
    message->parameters = fixture.parameters;
    message->block_ps = (ProtobufCBinaryData){sizeof fixture.block_ps,
                                              (uint8_t *)fixture.block_ps};
    message->n_ps = 2;
    message->ps = fixture.place_of;
    message->start_step = 10;
    message->start_batch = 33;
    message->total_steps = 100;
    message->epoch_batches = 7;
    message->trainers = 2;
    *state = &fixture;
    return 0;
}

TEARDOWN(teardown) {
    plan_free_parameters(&fixture->parameters);
    layout_free(&fixture->layout);
}

FIXTURE(setup, teardown);

TEST(a_plan_is_transmitted_unchanged) {
    struct plan *plan;
    fixture->message.checkpoint_dir = "/run/checkpoint";
    fixture->message.pull_first = true;
    assert_ok(plan_read(&plan, &fixture->message, &fixture->job, &failure));
    assert_int_equal(layout_digest(plan->layout),
                     layout_digest(fixture->layout));
    assert_string_equal(plan->ps[1].address, "[::1]:7");
    assert_int_equal(plan->ps[1].incarnation, 6);
    assert_int_equal(plan->num_ps, 2);
    assert_int_equal(plan->num_ranks, 2);
    assert_int_equal(plan->run_schedule.start, 10);
    assert_int_equal(plan->run_schedule.start_batch, 33);
    assert_int_equal(plan->run_schedule.total, 100);
    assert_int_equal(plan->run_schedule.accumulation, 3);
    assert_int_equal(plan->run_schedule.epoch_batches, 7);
    assert_int_equal(plan->run_schedule.every_steps, 50);
    assert_int_equal(plan->run_schedule.every_epochs, 4);
    assert_true(plan->run_schedule.checkpoints);
    assert_true(plan->pull_first);
    assert_false(plan->allreduce);
    assert_string_equal(plan->checkpoint_dir, "/run/checkpoint");
    assert_null(plan->restore_folder);
    uint32_t ids[BLOCKS];
    assert_int_equal(plan_units(plan, 1, ids), 2);
    assert_int_equal(ids[0], 1);
    assert_int_equal(ids[1], 3);
    assert_int_equal(plan_units(plan, 2, ids), 0);
    plan_close(&plan);
    assert_null(plan);
}

TEST(the_start_checkpoint_is_transmitted_too) {
    struct plan *plan;
    fixture->message.restore_folder = "/run/step-10";
    fixture->message.restore_manifest = "{}";
    assert_ok(plan_read(&plan, &fixture->message, &fixture->job, &failure));
    assert_string_equal(plan->restore_folder, "/run/step-10");
    assert_string_equal(plan->restore_manifest, "{}");
    assert_null(plan->checkpoint_dir);
    assert_false(plan->run_schedule.checkpoints);
    assert_false(plan->pull_first);
    plan_close(&plan);
}

/* Those that the cluster lists hold nothing, and there may be none. */
TEST(in_all_reduce_no_ps_holds_a_block) {
    struct plan *plan;
    uint32_t ids[BLOCKS];
    fixture->message.strategy = JOB_ALLREDUCE;
    fixture->message.backend = "gloo";
    fixture->message.block_ps.len = 0;
    for (size_t num_ps = 0; num_ps <= 2; num_ps += 2) {
        fixture->message.n_ps = num_ps;
        assert_ok(plan_read(&plan, &fixture->message, &fixture->job, &failure));
        assert_true(plan->allreduce);
        assert_string_equal(plan->backend, "gloo");
        assert_int_equal(plan_units(plan, 0, ids), 0);
        plan_close(&plan);
    }
}

static void refused(struct fixture *fixture, enum failure_code code,
                    const char *part) {
    struct plan *plan;
    assert_error(plan_read(&plan, &fixture->message, &fixture->job, &failure),
                 code);
    assert_null(plan);
    assert_contains(failure.text, part);
}

TEST(a_loss_scaler_is_transmitted_with_the_plan) {
    struct loss_scaler scaler = {
        .scale = 512, .good = 4, .hysteresis = 1, .skipped = 10};
    Capstan__LossScaler message = plan_scaler_message(&scaler);
    struct plan *plan;
    fixture->message.scaler = &message;
    assert_ok(plan_read(&plan, &fixture->message, &fixture->job, &failure));
    assert_true(plan->scaler.scale == 512);
    assert_int_equal(plan->scaler.good, 4);
    assert_int_equal(plan->scaler.hysteresis, 1);
    assert_int_equal(plan->scaler.skipped, 10);
    plan_close(&plan);
    message.skipped = 11;
    refused(fixture, FAILURE_BAD_MESSAGE, "11 steps skipped before step 10");
    message.skipped = 0;
    message.scale = -1;
    refused(fixture, FAILURE_BAD_MESSAGE, "a loss scale of -1");
}

TEST(fields_out_of_range_are_named) {
    Capstan__Plan sound = fixture->message, *message = &fixture->message;
    message->trainers = 0;
    refused(fixture, FAILURE_BAD_MESSAGE, "0 trainers");
    message->trainers = PLAN_MAX_TRAINERS + 1;
    refused(fixture, FAILURE_BAD_MESSAGE, "1025 trainers");
    *message = sound;
    message->epoch_batches = 0;
    refused(fixture, FAILURE_BAD_MESSAGE, "empty epochs");
    *message = sound;
    message->n_ps = 0;
    refused(fixture, FAILURE_BAD_MESSAGE, "0 ps");
    message->n_ps = UINT16_MAX + 1;
    refused(fixture, FAILURE_BAD_MESSAGE, "65536 ps");
    message->n_ps = 1;
    refused(fixture, FAILURE_BAD_MESSAGE, "block 1 on ps 1 of 1");
    *message = sound;
    message->ps[1]->index = 0;
    refused(fixture, FAILURE_BAD_MESSAGE, "ps 0 after ps 0");
    message->ps[1]->index = 2;
    message->block_ps.len -= 2;
    refused(fixture, FAILURE_BAD_MESSAGE, "3 places for 4 blocks");
    message->block_ps.len = 1;
    refused(fixture, FAILURE_BAD_MESSAGE, "0 places for 4 blocks");
    *message = sound;
    message->restore_folder = "/run/step-10";
    refused(fixture, FAILURE_BAD_MESSAGE, "without a manifest");
    *message = sound;
    message->n_parameters = 0;
    refused(fixture, FAILURE_MODEL_INVALID, "");
    message->n_parameters = LAYOUT_MAX_PARAMETERS + 1;
    refused(fixture, FAILURE_BAD_MESSAGE, "65537 parameters");
}

TEST(parameters_out_of_range_are_refused) {
    Capstan__Parameter *parameter = fixture->parameters[0];
    Capstan__Parameter sound = *parameter;
    uint32_t dims[9] = {1, 1, 1, 1, 1, 1, 1, 1, 1}, none[] = {0},
             many[] = {1u << 31, 1u << 31};
    char name[LAYOUT_MAX_NAME + 1] = {0};
    parameter->dims = dims;
    parameter->n_dims = 9;
    refused(fixture, FAILURE_BAD_MESSAGE, "9 dimensions");
    *parameter = sound;
    memset(name, 'n', LAYOUT_MAX_NAME);
    parameter->name = name;
    refused(fixture, FAILURE_BAD_MESSAGE, "128 bytes");
    *parameter = sound;
    parameter->name = "bias";
    refused(fixture, FAILURE_MODEL_INVALID, "bias");
    *parameter = sound;
    parameter->dims = none;
    parameter->n_dims = 1;
    refused(fixture, FAILURE_MODEL_INVALID, "");
    parameter->dims = many;
    parameter->n_dims = 2;
    refused(fixture, FAILURE_MODEL_INVALID, "");
    *parameter = sound;
    parameter->init_bound = -1;
    refused(fixture, FAILURE_MODEL_INVALID, "");
}

TEST(replicas_are_numbered_by_rank) {
    uint32_t replicas[] = {4, 2};
    struct plan *plan;
    fixture->message.replicas = replicas;
    fixture->message.n_replicas = 2;
    assert_ok(plan_read(&plan, &fixture->message, &fixture->job, &failure));
    assert_int_equal(plan_replicas(plan, 0), 4);
    assert_int_equal(plan_replicas(plan, 1), 2);
    assert_int_equal(plan_first_replica(plan, 0), 0);
    assert_int_equal(plan_first_replica(plan, 1), 4);
    assert_int_equal(plan_all_replicas(plan), 6);
    plan_close(&plan);
    fixture->message.n_replicas = 0; /* one each */
    assert_ok(plan_read(&plan, &fixture->message, &fixture->job, &failure));
    assert_int_equal(plan_replicas(plan, 1), 1);
    assert_int_equal(plan_first_replica(plan, 1), 1);
    assert_int_equal(plan_all_replicas(plan), 2);
    plan_close(&plan);
}

TEST(a_plan_is_of_the_trainers_that_were_counted) {
    struct plan *plan;
    assert_ok(plan_read(&plan, &fixture->message, &fixture->job, &failure));
    assert_ok(plan_check_trainers(plan, 2, &failure));
    assert_error(plan_check_trainers(plan, 3, &failure), FAILURE_BAD_MESSAGE);
    assert_contains(failure.text, "of 2 trainers, where the chief has "
                                  "counted 3");
    plan_close(&plan);
}

TEST(the_batch_is_solved_for_the_replicas_of_the_plan) {
    uint32_t replicas[] = {4, 2};
    struct job job = {.train_batch_size = 48, .accumulation = 2};
    fixture->message.replicas = replicas;
    fixture->message.n_replicas = 2;
    assert_ok(plan_settle_job(&job, &fixture->message, &failure));
    assert_int_equal(job.micro_batch, 4);
    job = (struct job){.train_batch_size = 48, .accumulation = 2};
    fixture->message.n_replicas = 0;
    assert_ok(plan_settle_job(&job, &fixture->message, &failure));
    assert_int_equal(job.micro_batch, 12);
    job =
        (struct job){.train_batch_size = 48, .accumulation = 2, .staleness = 1};
    fixture->message.n_replicas = 2;
    replicas[0] = 2;
    assert_ok(plan_settle_job(&job, &fixture->message, &failure));
    assert_int_equal(job.micro_batch, 12);
    replicas[1] = JOB_MAX_DEVICES + 1;
    assert_error(plan_settle_job(&job, &fixture->message, &failure),
                 FAILURE_BAD_MESSAGE);
    replicas[1] = 0;
    assert_error(plan_settle_job(&job, &fixture->message, &failure),
                 FAILURE_BAD_MESSAGE);
    refused(fixture, FAILURE_BAD_MESSAGE, "0 replicas");
    fixture->message.n_replicas = 1;
    refused(fixture, FAILURE_BAD_MESSAGE, "2 trainers with the replicas of 1");
}

/* The sum over several devices of a trainer is in its host's memory. */
TEST(device_gradients_need_exactly_one_device) {
    uint32_t replicas[] = {1, 2};
    struct plan *plan;
    fixture->message.resident = true;
    fixture->message.replicas = replicas;
    fixture->message.n_replicas = 2;
    refused(fixture, FAILURE_BAD_MESSAGE, "the device of a trainer that has 2");
    replicas[1] = 1;
    assert_ok(plan_read(&plan, &fixture->message, &fixture->job, &failure));
    assert_true(plan->resident);
    plan_close(&plan);
}

/* A batch is not divided by a number that no run can have. */
TEST(a_batch_is_not_solved_for_zero_trainers) {
    static const uint32_t wrong[] = {0, PLAN_MAX_TRAINERS + 1, UINT32_MAX};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct job job = {.train_batch_size = 48, .accumulation = 2};
        fixture->message.trainers = wrong[i];
        assert_error(plan_settle_job(&job, &fixture->message, &failure),
                     FAILURE_BAD_MESSAGE);
        assert_contains(failure.text, "trainers (1..");
    }
}
