/* SPDX-License-Identifier: Apache-2.0 */
/* Replicas of one trainer on fake devices: their sum, and what one of them that
 * fails does to the step. */
#include "worker/train/team.h"

#include "tests/gpu/fake_nccl.h"
#include "tests/lib/team_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const uint32_t widths[] = {7, 12, 9, 5, 0};
enum {
    ELEMENTS = 7 * 12 + 12 + 12 * 9 + 9 + 9 * 5 + 5,
    PARAMETERS = 6,
    REPLICAS = 4,
    STEPS = 5
};

/* Trains STEPS with REPLICAS on fake devices; the last step's gradients. */
static void train(const struct fake_device_plan *gpus,
                  const struct collective_ops *nccl, float *gradients,
                  struct replica_result *result) {
    struct team_fixture fixture;
    struct failure why;
    team_fixture_open(&fixture, widths);
    if (team_fixture_begin(&fixture, gpus, nccl, REPLICAS, &why))
        fail_msg("%s", why.text);
    assert_int_equal(team_adds_on_host(&fixture.team), !nccl);
    team_fixture_load(&fixture, 0, REPLICAS);
    for (int step = 0; step < STEPS; step++) {
        if (team_fixture_compute(&fixture, result, &why) ||
            team_fixture_gather(&fixture, true, &why))
            fail_msg("%s", why.text);
        assert_int_equal(fixture.num_said, PARAMETERS);
        for (uint32_t i = 0; i < PARAMETERS; i++)
            assert_int_equal(fixture.said[i], PARAMETERS - 1 - i);
    }
    team_fixture_gradients(&fixture, gradients);
    team_fixture_close(&fixture);
}

static void gradients_are_the_sum_in_the_order_of_replicas(void **state) {
    const struct collective_ops *const by[] = {NULL, fake_nccl_ops()};
    float expected[ELEMENTS], found[ELEMENTS];
    struct replica_result wanted, result;
    (void)state;
    team_fixture_expect(widths, REPLICAS, STEPS, expected, &wanted);
    for (int i = 0; i < 2; i++)
        for (int order = 0; order < FAKE_DEVICE_ORDERS; order++)
            for (uint64_t seed = 0; seed < 5; seed++) {
                struct fake_device_plan gpus = {
                    .order = order, .seed = seed, .devices = REPLICAS};
                train(&gpus, by[i], found, &result);
                assert_memory_equal(found, expected, sizeof expected);
                assert_true(result.loss == wanted.loss);
                assert_true(result.finite == wanted.finite);
                assert_true(result.last_loss == wanted.last_loss);
                assert_int_equal(result.samples, wanted.samples);
                assert_int_equal(result.correct, wanted.correct);
                assert_int_equal(result.last_samples, wanted.last_samples);
            }
}

static void begin(struct team_fixture *fixture,
                  const struct fake_device_plan *gpus,
                  const struct collective_ops *nccl, uint32_t count) {
    struct failure why;
    team_fixture_open(fixture, widths);
    if (team_fixture_begin(fixture, gpus, nccl, count, &why))
        fail_msg("%s", why.text);
    team_fixture_load(fixture, 0, count);
}

/* Gradients that are not wanted leave no trace in the next step's. */
static void what_is_not_wanted_is_left(void **state) {
    struct fake_device_plan gpus = {.devices = REPLICAS};
    float expected[ELEMENTS], found[ELEMENTS];
    struct team_fixture fixture;
    struct replica_result result;
    struct failure why;
    (void)state;
    team_fixture_expect(widths, REPLICAS, 2, expected, &result);
    begin(&fixture, &gpus, NULL, REPLICAS);
    for (int step = 0; step < 2; step++) {
        assert_int_equal(team_fixture_compute(&fixture, &result, &why),
                         STATUS_OK);
        assert_int_equal(team_fixture_gather(&fixture, step, &why), STATUS_OK);
        assert_int_equal(fixture.num_said, step ? PARAMETERS : 0);
    }
    team_fixture_gradients(&fixture, found);
    assert_memory_equal(found, expected, sizeof expected);
    team_fixture_close(&fixture);
}

/* Only a sample with its first pixel set makes the model overflow. */
static void let_one_overflow(struct team_fixture *fixture, uint32_t sample) {
    uint8_t *images = (uint8_t *)fixture->data.images;
    for (uint32_t i = 0; i < TEAM_FIXTURE_SAMPLES; i++)
        images[i * widths[0]] = i == sample ? 255 : 0;
    fixture->arena.weight_of[0][0] = 3e38f;
    for (uint32_t u = 0; u < widths[2]; u++) {
        fixture->arena.weight_of[2][u * widths[1]] = 1;
        fixture->arena.weight_of[4][u] = 2;
    }
}

/* Of BATCH of replica RANK. */
static uint32_t first_sample(uint32_t rank, uint32_t ranks, uint64_t batch) {
    struct sampler_options options = {.num_samples = TEAM_FIXTURE_SAMPLES,
                                      .rank = rank,
                                      .num_ranks = ranks,
                                      .micro_batch = 3,
                                      .seed = 2,
                                      .shuffle = true};
    struct sampler *sampler;
    struct failure why;
    uint32_t indices[3];
    if (sampler_open(&sampler, &options, &why))
        fail_msg("%s", why.text);
    (void)sampler_batch(sampler, batch, indices);
    sampler_close(&sampler);
    return indices[0];
}

static void one_replica_poisons_the_step_of_all(void **state) {
    struct fake_device_plan gpus = {.devices = REPLICAS};
    struct team_fixture fixture;
    struct replica_result result;
    struct failure why;
    (void)state;
    begin(&fixture, &gpus, NULL, REPLICAS);
    team_close(&fixture.team); /* its readers have begun */
    let_one_overflow(&fixture, first_sample(2, REPLICAS, 0));
    if (team_fixture_begin(&fixture, &gpus, NULL, REPLICAS, &why))
        fail_msg("%s", why.text);
    team_fixture_load(&fixture, 0, REPLICAS);
    assert_int_equal(team_fixture_compute(&fixture, &result, &why), STATUS_OK);
    assert_true(result.poisoned);
    assert_int_equal(result.samples, REPLICAS * 6 - 3);
    assert_int_equal(team_fixture_gather(&fixture, false, &why), STATUS_OK);
    assert_int_equal(team_fixture_compute(&fixture, &result, &why), STATUS_OK);
    assert_false(result.poisoned);
    assert_int_equal(team_fixture_gather(&fixture, true, &why), STATUS_OK);
    team_fixture_close(&fixture);
}

/* They were on their way when the last batch turned out to have no loss. */
static void gradients_that_nobody_wants_do_not_land_later(void **state) {
    struct fake_device_plan gpus = {.devices = 1, .order = FAKE_DEVICE_LATE};
    struct team_fixture fixture;
    struct replica_result result;
    struct failure why;
    (void)state;
    begin(&fixture, &gpus, NULL, 1);
    team_close(&fixture.team); /* its readers have begun */
    let_one_overflow(&fixture, first_sample(0, 1, 1));
    if (team_fixture_begin(&fixture, &gpus, NULL, 1, &why))
        fail_msg("%s", why.text);
    team_fixture_load(&fixture, 0, 1);
    assert_int_equal(team_fixture_compute(&fixture, &result, &why), STATUS_OK);
    assert_true(result.poisoned);
    assert_int_equal(team_fixture_gather(&fixture, false, &why), STATUS_OK);
    float *bias = fixture.arena.gradient_of[fixture.layout->num_parameters - 1];
    bias[0] = 7;
    engine_rest(&fixture.team.members[0].replica.engine);
    assert_true(bias[0] == 7);
    team_fixture_close(&fixture);
}

/* Bytes of the first COUNT parameters. */
static uint64_t bytes_of(const struct layout *layout, uint32_t count) {
    uint64_t elements = 0;
    for (uint32_t p = 0; p < count; p++)
        elements += layout->parameters[p].elements;
    return elements * sizeof(float);
}

/* Two batches go up, and no weights that are not there. */
static void weights_that_do_not_come_hold_nobody_up(void **state) {
    struct fake_device_plan gpus = {.devices = REPLICAS};
    const uint64_t batches = 2 * 3 * (7 * sizeof(float) + sizeof(uint32_t));
    (void)state;
    for (uint32_t p = 1; p < PARAMETERS; p += 2) {
        struct team_fixture fixture;
        struct replica_result result;
        struct failure why;
        begin(&fixture, &gpus, NULL, REPLICAS);
        fixture.withholds = p;
        fixture.stops = true;
        assert_int_equal(team_fixture_compute(&fixture, &result, &why),
                         STATUS_OK);
        assert_int_equal(team_fixture_gather(&fixture, false, &why), STATUS_OK);
        for (uint32_t i = 0; i < REPLICAS; i++)
            assert_true(
                fake_device_uploaded(
                    fixture.team.members[i].replica.engine.device.handle) <=
                batches + bytes_of(fixture.layout, p));
        team_fixture_close(&fixture);
    }
}

/* Whichever it is, and wherever in its work. The others do not wait for it as
 * they leave their group. */
static void a_lost_device_ends_the_step_with_its_name(void **state) {
    const struct collective_ops *const by[] = {NULL, fake_nccl_ops()};
    (void)state;
    for (uint32_t loser = 0; loser < 3; loser++)
        for (uint64_t call = 1; call < 300; call += 23) {
            struct fake_device_plan gpus = {
                .devices = 3, .lose = call, .loser = loser};
            struct team_fixture fixture;
            struct replica_result result;
            struct failure why = {0};
            enum status status = STATUS_OK;
            unsigned left_whole = fake_nccl_left_whole();
            char name[32];
            begin(&fixture, &gpus, by[call % 2], 3);
            for (int step = 0; !status && step < 20; step++) {
                status = team_fixture_compute(&fixture, &result, &why);
                enum status gathered = team_fixture_gather(
                    &fixture, !status, status ? NULL : &why);
                status = status ? status : gathered;
            }
            assert_int_equal(status, STATUS_RETRY);
            snprintf(name, sizeof name, "device cuda %u ", loser);
            if (!strstr(why.text, name))
                fail_msg("no \"%s\" in: %s", name, why.text);
            team_fixture_close(&fixture);
            assert_int_equal(fake_nccl_left_whole(), left_whole);
        }
}

static void a_piece_of_memory_that_is_refused_closes_all(void **state) {
    (void)state;
    enum status status = STATUS_FAILED;
    for (uint64_t piece = 1; status; piece++) {
        struct fake_device_plan gpus = {.devices = 2, .refuse = piece};
        struct team_fixture fixture;
        struct failure why;
        assert_true(piece < 30);
        team_fixture_open(&fixture, widths);
        status = team_fixture_begin(&fixture, &gpus, NULL, 2, &why);
        assert_int_equal(status, status ? STATUS_FAILED : STATUS_OK);
        team_fixture_close(&fixture);
    }
}

/* Devices that cannot meet are added up by the host. */
static void without_a_meeting_the_host_adds(void **state) {
    struct fake_device_plan gpus = {.devices = REPLICAS};
    float expected[ELEMENTS], found[ELEMENTS];
    struct replica_result wanted, result;
    struct team_fixture fixture;
    struct failure why;
    (void)state;
    team_fixture_expect(widths, REPLICAS, 1, expected, &wanted);
    setenv("CAPSTAN_FAKE_DEVICE", "nccl=unmet", 1);
    begin(&fixture, &gpus, fake_nccl_ops(), REPLICAS);
    unsetenv("CAPSTAN_FAKE_DEVICE");
    assert_true(team_adds_on_host(&fixture.team));
    assert_int_equal(team_fixture_compute(&fixture, &result, &why), STATUS_OK);
    assert_int_equal(team_fixture_gather(&fixture, true, &why), STATUS_OK);
    team_fixture_gradients(&fixture, found);
    assert_memory_equal(found, expected, sizeof expected);
    team_fixture_close(&fixture);
}

static void a_plan_takes_no_more_than_there_are_and_may_take_fewer(
    void **state) {
    struct fake_device_plan gpus = {.devices = 3};
    struct team_fixture fixture;
    struct failure why;
    (void)state;
    team_fixture_open(&fixture, widths);
    assert_int_equal(team_fixture_begin(&fixture, &gpus, NULL, 4, &why),
                     STATUS_RETRY);
    assert_non_null(strstr(why.text, "counts on 4 devices here, where there "
                                     "are 3"));
    team_fixture_close(&fixture);
    begin(&fixture, &gpus, NULL, 2);
    assert_int_equal(fixture.team.count, 2);
    team_fixture_close(&fixture);
}

static uint32_t found(struct device_wish wish, bool alone, uint32_t most) {
    struct team_search search = {.wish = &wish, .alone = alone, .most = most};
    struct team team;
    struct failure why;
    if (team_find(&team, &search, &why))
        fail_msg("%s", why.text);
    uint32_t count = team.count;
    for (uint32_t i = 0; i < count; i++)
        assert_int_equal(team.members[i].replica.engine.device.index,
                         i + (alone ? 0 : wish.local_rank));
    team_close(&team);
    return count;
}

static void who_is_alone_takes_all_devices_it_sees(void **state) {
    struct device_wish wish = {.kind = JOB_DEVICE_AUTO,
                               .threads = 1,
                               .cuda = fake_device_ops(),
                               .timeout = 60};
    (void)state;
    fake_device_arrange(&(struct fake_device_plan){.devices = 4});
    assert_int_equal(found(wish, true, 0), 4);
    assert_int_equal(found(wish, true, 3), 3);
    assert_int_equal(found(wish, true, 9), 4);
    wish.local_rank = 2;
    assert_int_equal(found(wish, false, 0), 1);
    wish.local_rank = 0;
    wish.kind = JOB_DEVICE_CPU;
    assert_int_equal(found(wish, true, 0), 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_are_the_sum_in_the_order_of_replicas),
        cmocka_unit_test(what_is_not_wanted_is_left),
        cmocka_unit_test(one_replica_poisons_the_step_of_all),
        cmocka_unit_test(gradients_that_nobody_wants_do_not_land_later),
        cmocka_unit_test(weights_that_do_not_come_hold_nobody_up),
        cmocka_unit_test(a_lost_device_ends_the_step_with_its_name),
        cmocka_unit_test(a_piece_of_memory_that_is_refused_closes_all),
        cmocka_unit_test(without_a_meeting_the_host_adds),
        cmocka_unit_test(
            a_plan_takes_no_more_than_there_are_and_may_take_fewer),
        cmocka_unit_test(who_is_alone_takes_all_devices_it_sees),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
