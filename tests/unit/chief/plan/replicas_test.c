/* SPDX-License-Identifier: Apache-2.0 */
#include "chief/plan/replicas.h"

#include "proto/base/time.h"
#include "tests/lib/run_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORKERS = 3 };

/* Three workers, whose declarations come. */
static int setup(void **state) {
    run_fixture_setup(state, WORKERS);
    struct run_fixture *fixture = *state;
    fixture->run.train_samples = 600;
    return 0;
}

/* Worker INDEX has COUNT devices, each with so many bytes free. */
static bool declare(struct run_fixture *fixture, uint32_t index,
                    uint32_t count) {
    Capstan__Declaration declaration = CAPSTAN__DECLARATION__INIT;
    Capstan__MemoryLimit devices[8], *list[8];
    for (uint32_t i = 0; i < count; i++) {
        capstan__memory_limit__init(&devices[i]);
        devices[i].key = i ? "device b" : "device a";
        devices[i].name = "free on a device";
        devices[i].free = 1000 + i;
        list[i] = &devices[i];
    }
    declaration.replicas = count;
    declaration.n_devices = count;
    declaration.devices = list;
    declaration.adds_on_host = count > 1;
    return replicas_declare(&fixture->run, &fixture->run.roster.slots[index],
                            &declaration);
}

static void declare_all(struct run_fixture *fixture, uint32_t a, uint32_t b,
                        uint32_t c) {
    assert_true(declare(fixture, 0, a));
    assert_true(declare(fixture, 1, b));
    assert_true(declare(fixture, 2, c));
}

static void expect_text(const struct run *run, const char *expected) {
    char text[256];
    replicas_text(run, text, sizeof text);
    assert_string_equal(text, expected);
}

static void equal_ones_are_told_as_a_product(void **state) {
    struct run_fixture *fixture = *state;
    struct run *run = &fixture->run;
    uint32_t list[WORKERS];
    declare_all(fixture, 4, 4, 4);
    wire_fixture_listen(fixture->wire);
    assert_true(replicas_settle(run));
    assert_non_null(strstr(wire_fixture_said(fixture->wire),
                           "replicas: 12 (3 workers x 4 devices)"));
    assert_int_equal(run->num_replicas, 12);
    assert_int_equal(run_step_replicas(run), 12);
    assert_int_equal(fixture->job.train_batch_size, 120);
    assert_int_equal(run->batches_per_epoch, 5);
    assert_int_equal(replicas_list(run, list), WORKERS);
    assert_int_equal(list[2], 4);
    assert_int_equal(run->limits[1].devices, 4);
    assert_true(run->limits[1].adds_on_host);
}

static void others_are_told_one_by_one(void **state) {
    struct run_fixture *fixture = *state;
    struct run *run = &fixture->run;
    declare_all(fixture, 2, 1, 3);
    assert_true(replicas_settle(run));
    expect_text(run, "replicas: 6 (3 workers with 2 + 1 + 3 devices)");
    run->trains = true;
    expect_text(run, "replicas: 6 (3 trainers with 2 + 1 + 3 devices)");
    assert_int_equal(fixture->job.train_batch_size, 60);
}

/* Worker 1 has come back to the machine of worker 0, who had it for itself. */
static void who_shares_a_machine_by_now_has_one(void **state) {
    struct run_fixture *fixture = *state;
    struct run *run = &fixture->run;
    for (uint32_t r = 0; r < 2; r++) {
        run->trainers[r].sight.count = 1;
        strcpy(run->trainers[r].sight.ids[0], "a");
    }
    declare_all(fixture, 4, 1, 2);
    assert_true(replicas_settle(run));
    expect_text(run, "replicas: 4 (3 workers with 1 + 1 + 2 devices)");
}

static void of_processors_nothing_is_said(void **state) {
    struct run_fixture *fixture = *state;
    Capstan__Declaration none = CAPSTAN__DECLARATION__INIT;
    for (uint32_t i = 0; i < WORKERS; i++)
        assert_true(replicas_declare(&fixture->run,
                                     &fixture->run.roster.slots[i], &none));
    wire_fixture_listen(fixture->wire);
    assert_true(replicas_settle(&fixture->run));
    assert_string_equal(wire_fixture_said(fixture->wire), "");
    assert_int_equal(fixture->run.num_replicas, WORKERS);
}

static void with_staleness_they_are_equal_or_the_run_ends(void **state) {
    struct run_fixture *fixture = *state;
    struct run *run = &fixture->run;
    fixture->job.staleness = 1;
    declare_all(fixture, 4, 4, 2);
    assert_false(replicas_settle(run));
    assert_int_equal(run->phase, RUN_STOPPING);
    assert_int_equal(run->status, STATUS_CONFIG);
    assert_non_null(strstr(run->text, "worker 0 on host h0 computes on 4 "
                                      "devices, worker 2 on host h2 on 2;"));
    run->phase = RUN_JOINING;
    assert_true(declare(fixture, 2, 4));
    assert_true(replicas_settle(run));
    assert_int_equal(run_step_replicas(run), 4);
    assert_int_equal(fixture->job.train_batch_size, 40);
}

static void a_batch_that_they_do_not_solve_ends_the_run(void **state) {
    struct run_fixture *fixture = *state;
    struct run *run = &fixture->run;
    fixture->job.train_batch_size = 100;
    declare_all(fixture, 2, 2, 2);
    assert_false(replicas_settle(run));
    assert_int_equal(run->status, STATUS_CONFIG);
    assert_non_null(strstr(run->text, "6 replicas (3 trainers x 2 devices)"));
}

static void an_epoch_without_a_batch_ends_the_run(void **state) {
    struct run_fixture *fixture = *state;
    struct run *run = &fixture->run;
    fixture->job.data.drop_last = true;
    run->train_samples = 59;
    declare_all(fixture, 2, 2, 2);
    assert_true(replicas_settle(run));
    run->batches_per_epoch = 0;
    run->train_samples = 53;
    assert_false(replicas_settle(run));
    assert_int_equal(run->status, STATUS_CONFIG);
    assert_non_null(strstr(run->text, "a replica's share is 9 samples (53 over "
                                      "6 replicas), the micro batch 10"));
}

/* Memory is reckoned for what the run counts on, whatever a peer says. */
static void no_peer_has_more_than_a_trainer_may(void **state) {
    struct run_fixture *fixture = *state;
    Capstan__Declaration hostile = CAPSTAN__DECLARATION__INIT;
    declare_all(fixture, 1, 1, 1);
    hostile.replicas = UINT32_MAX;
    hostile.adds_on_host = true;
    assert_true(replicas_declare(&fixture->run, &fixture->run.roster.slots[1],
                                 &hostile));
    assert_int_equal(fixture->run.limits[1].replicas, JOB_MOST_DEVICES);
    assert_true(replicas_settle(&fixture->run));
    assert_int_equal(fixture->run.num_replicas, 2 + JOB_MOST_DEVICES);
}

/* It may bring more, which it does not use. */
static void who_comes_back_with_fewer_is_not_taken(void **state) {
    struct run_fixture *fixture = *state;
    struct run *run = &fixture->run;
    declare_all(fixture, 2, 2, 2);
    assert_true(replicas_settle(run));
    run->phase = RUN_TRAINING;
    wire_fixture_listen(fixture->wire);
    assert_false(declare(fixture, 1, 1));
    assert_non_null(strstr(wire_fixture_said(fixture->wire),
                           "worker 1 on host h1 has 1 device to compute on, "
                           "and this run counts on 2 of it"));
    assert_int_equal(run->phase, RUN_TRAINING);
    assert_true(declare(fixture, 1, 3));
    assert_int_equal(run->trainers[1].replicas, 2);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, run_fixture_teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(equal_ones_are_told_as_a_product),
        TEST(others_are_told_one_by_one),
        TEST(who_shares_a_machine_by_now_has_one),
        TEST(of_processors_nothing_is_said),
        TEST(with_staleness_they_are_equal_or_the_run_ends),
        TEST(a_batch_that_they_do_not_solve_ends_the_run),
        TEST(an_epoch_without_a_batch_ends_the_run),
        TEST(no_peer_has_more_than_a_trainer_may),
        TEST(who_comes_back_with_fewer_is_not_taken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
