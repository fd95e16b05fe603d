/* SPDX-License-Identifier: Apache-2.0 */
/* The model of a step: cases whose time is a sum that fits on paper, and what
 * holds of every case, for random ones. */
#include "simulator/simulator.h"

#include "tests/lib/seed.h"
#include "tests/lib/test.h"

enum { MAX_PARAMETERS = 16 };

static struct philox_sequence chance;

/* A model of COUNT equal parameters and a case with no costs at all. */
static struct trial {
    struct simulator_config config;
    struct layout *layout;
    double forward[MAX_PARAMETERS], backward[MAX_PARAMETERS];
    struct simulator_result result;
} trial;

static int close_case(void **state) {
    (void)state;
    layout_free(&trial.layout);
    return 0;
}

FIXTURE(NULL, close_case);

static void open_case(uint32_t count, uint32_t elements) {
    struct parameter parameters[MAX_PARAMETERS] = {0};
    layout_free(&trial.layout);
    trial = (struct trial){0};
    for (uint32_t p = 0; p < count; p++) {
        parameters[p].num_dims = 1;
        parameters[p].dims[0] = elements;
        snprintf(parameters[p].name, sizeof parameters[p].name, "p%u", p);
    }
    assert_ok(layout_build(&trial.layout, parameters, count, &failure));
    trial.config = (struct simulator_config){.num_ps = 1,
                                             .num_workers = 1,
                                             .layout = trial.layout,
                                             .forward = trial.forward,
                                             .backward = trial.backward,
                                             .cores = 4,
                                             .group_bytes = 256 << 10,
                                             .parallel_efficiency = 1,
                                             .seed = 1,
                                             .warmup_steps = 2,
                                             .rounds = 8};
}

static void run(void) {
    assert_ok(simulator_run(&trial.config, &trial.result, &failure));
}

static double bytes_of(void) {
    return 4 * (double)trial.layout->elements;
}

static void compute(double forward, double backward) {
    for (uint32_t p = 0; p < trial.layout->num_parameters; p++) {
        trial.forward[p] = forward;
        trial.backward[p] = backward;
    }
}

static void expect_near(double found, double expected, double share) {
    if (!(found >= expected * (1 - share) && found <= expected * (1 + share)))
        fail_msg("found %g, expected %g within %g", found, expected, share);
}

TEST(compute_time_without_network_is_a_sum) {
    open_case(4, 100);
    compute(1e-3, 2e-3);
    trial.config.costs.step = 5e-4;
    run();
    expect_near(trial.result.mean, 4 * 3e-3 + 5e-4, 1e-6);
    expect_near(trial.result.rate, 1 / trial.result.mean, 1e-9);
    assert_int_equal(trial.result.bottleneck, SIMULATOR_WORKER_THREAD);
}

/* One block, one worker, one ps: nothing overlaps. A push passes four threads,
 * its answer as many; the update reads a gradient and the weights. */
TEST(one_block_is_a_serial_sum) {
    open_case(1, 10000);
    const double bytes = 40000, header = 128;
    compute(1e-3, 2e-3);
    trial.config.costs = (struct simulator_costs){.step = 1e-4,
                                                  .message = 1e-5,
                                                  .send_byte = 2e-9,
                                                  .receive_byte = 3e-9,
                                                  .copy_byte = 5e-9,
                                                  .update_byte = 7e-9,
                                                  .gradient_byte = 11e-9};
    trial.config.link_rate = 1e8;
    trial.config.latency = 5e-4;
    run();
    double wire = 2 * (5e-4 + (bytes + header) / 1e8);
    double messages = 8 * 1e-5;
    double moved = bytes * (2 * 2e-9 + 2 * 3e-9 + 5e-9);
    double updated = bytes * (7e-9 + 11e-9);
    expect_near(trial.result.mean,
                3e-3 + 1e-4 + wire + messages + moved + updated, 1e-5);
}

/* The same on one host: no link, and on one core even four threads are one
 * after the other. */
TEST(one_host_has_no_link) {
    open_case(1, 10000);
    trial.config.costs.message = 1e-5;
    trial.config.cores = 1;
    trial.config.colocation = SIMULATOR_COLOCATE_ALL;
    trial.config.link_rate = 1;
    trial.config.latency = 1;
    run();
    expect_near(trial.result.mean, 8 * 1e-5, 1e-3);
    assert_true(trial.result.bound == 0);
}

/* Each of the threads that a push and its answer pass slept before, and then
 * the one that computes. */
TEST(sleeping_threads_are_woken) {
    open_case(1, 10000);
    trial.config.costs.idle_wakeup = trial.config.costs.busy_wakeup = 1e-5;
    trial.config.cores = 1;
    trial.config.colocation = SIMULATOR_COLOCATE_ALL;
    run();
    expect_near(trial.result.mean, 8 * 1e-5, 1e-3);
}

TEST(many_workers_wait_for_the_link_of_one_ps) {
    open_case(8, 1 << 18);
    trial.config.num_workers = 8;
    trial.config.link_rate = 1e9;
    run();
    expect_near(trial.result.bound, 8 * bytes_of() / 1e9, 1e-9);
    expect_near(trial.result.mean, trial.result.bound, 0.1);
    assert_true(trial.result.bottleneck == SIMULATOR_PS_IN ||
                trial.result.bottleneck == SIMULATOR_PS_OUT);
}

TEST(a_worker_with_many_ps_waits_for_its_own_link) {
    open_case(8, 1 << 20);
    trial.config.num_ps = 8;
    trial.config.link_rate = 1e9;
    run();
    expect_near(trial.result.bound, bytes_of() / 1e9, 1e-9);
    expect_near(trial.result.mean, trial.result.bound, 0.15);
    assert_true(trial.result.bottleneck == SIMULATOR_WORKER_IN ||
                trial.result.bottleneck == SIMULATOR_WORKER_OUT);
}

/* Nothing is updated before everything is here. */
TEST(clipping_uses_one_direction_at_a_time) {
    open_case(8, 1 << 18);
    trial.config.num_ps = 2;
    trial.config.num_workers = 2;
    trial.config.link_rate = 1e9;
    trial.config.clip = true;
    run();
    expect_near(trial.result.bound, 2 * bytes_of() / 1e9, 1e-9);
    expect_near(trial.result.mean, trial.result.bound, 0.1);
    assert_true(trial.result.mean >= trial.result.bound);
}

/* 256 MiB to one ps, of which 64 MiB may be under way: the answer to the first
 * bytes comes a whole second later, so four times credit a round trip. */
TEST(credits_bound_the_bytes_in_flight) {
    open_case(1, 64 << 20);
    trial.config.latency = 0.5;
    trial.config.rounds = 2;
    run();
    expect_near(trial.result.mean, 4.0, 1e-3);
}

TEST(shared_cores_form_one_queue) {
    open_case(1, 100);
    compute(1e-3, 1e-3);
    trial.config.num_workers = 4;
    trial.config.cores = 2;
    trial.config.share_cores = true;
    run();
    expect_near(trial.result.mean, 4e-3, 1e-3);
    trial.config.share_cores = false;
    run();
    expect_near(trial.result.mean, 2e-3, 1e-3);
}

TEST(bytes_between_processes_of_one_host_use_no_link) {
    open_case(8, 1 << 18);
    trial.config.num_ps = 2;
    trial.config.num_workers = 2;
    trial.config.link_rate = 1e9;
    trial.config.colocation = SIMULATOR_COLOCATE_PAIRS;
    run();
    expect_near(trial.result.bound, bytes_of() / 1e9, 1e-9);
}

TEST(a_slow_worker_delays_only_its_waiters) {
    double rates[2];
    open_case(4, 1000);
    compute(1e-3, 2e-3);
    trial.config.num_workers = 16;
    trial.config.jitter = 0.3;
    trial.config.rounds = 100;
    run();
    rates[0] = 16 * trial.result.rate;
    trial.config.staleness = SIMULATOR_ASYNCHRONOUS;
    run();
    rates[1] = trial.result.rate;
    assert_true(rates[0] < 0.8 * rates[1]);
    expect_near(rates[1], 16 / 12e-3, 0.05);
}

static double random_share(void) {
    return philox_next(&chance) * 0x1p-32;
}

/* Staleness 0, asynchronous, or between. */
static void open_random(void) {
    uint32_t parameters = 1 + philox_below(&chance, 8);
    open_case(parameters, 1 + philox_below(&chance, 300000));
    uint32_t blocks = trial.layout->num_blocks;
    const uint64_t staleness[] = {0, 0, 2, SIMULATOR_ASYNCHRONOUS};
    trial.config.num_ps = 1 + philox_below(&chance, (blocks < 6 ? blocks : 6));
    trial.config.num_workers = 1 + philox_below(&chance, 6);
    trial.config.staleness = staleness[philox_below(&chance, 4)];
    trial.config.clip = philox_below(&chance, 4) == 0;
    trial.config.colocation = philox_below(&chance, 4)
                                  ? SIMULATOR_COLOCATE_NONE
                                  : SIMULATOR_COLOCATE_PAIRS;
    trial.config.share_cores = philox_below(&chance, 4) == 0;
    trial.config.link_rate = 1e8 + 1e9 * random_share();
    trial.config.latency = philox_below(&chance, 2) ? 0 : 1e-4 * random_share();
    trial.config.cores = 1 + philox_below(&chance, 4);
    trial.config.jitter = philox_below(&chance, 2) ? 0.2 * random_share() : 0;
    trial.config.rounds = 20;
    compute(1e-4 * random_share(), 2e-4 * random_share());
    trial.config.costs = (struct simulator_costs){
        .message = 1e-5 * random_share(),
        .send_byte = 1e-9 * random_share(),
        .receive_byte = 1e-9 * random_share(),
        .copy_byte = 1e-10 * random_share(),
        .update_byte = 1e-9 * random_share(),
        .gradient_byte = 1e-10 * random_share(),
    };
}

/* Nothing comes that did not leave; in a synchronous run the model goes to the
 * ps and back once a worker and step. */
static void check_bytes(void) {
    const struct simulator_config *config = &trial.config;
    const struct simulator_result *result = &trial.result;
    double whole = bytes_of() * config->num_workers;
    double steps = config->warmup_steps + config->rounds;
    assert_true(result->stored <= result->replied);
    assert_true(result->replied <= result->received * config->num_workers);
    assert_true(result->received <= result->pushed);
    if (config->staleness)
        return;
    assert_true((double)result->pushed <= whole * steps);
    assert_true((double)result->stored >= whole * (steps - 1));
}

/* When clipping, who has its weights may push again while others wait for
 * theirs: then half of that bound is the strict one. Begun and ended steps are
 * counted as whole ones, which makes up to one of them. */
TEST(no_case_beats_its_bound_or_loses_a_byte) {
    seed_open(&chance);
    for (int i = 0; i < 60; i++) {
        open_random();
        run();
        check_bytes();
        bool overlaps = trial.config.clip && !trial.config.staleness;
        double most = (overlaps ? 2 : 1) + 1.0 / trial.config.rounds;
        if (!(trial.result.share <= most))
            fail_msg("case %d: %g of the bound: %u ps, %u workers, place %d, "
                     "staleness %d, %zu elements, clip %d",
                     i, trial.result.share, trial.config.num_ps,
                     trial.config.num_workers, (int)trial.config.colocation,
                     (int)trial.config.staleness,
                     (size_t)trial.layout->elements, trial.config.clip);
    }
}

/* Where links are what limits. With cores that are short of time another order
 * of the same work may well take longer (Graham, Bounds on Multiprocessing
 * Timing Anomalies, 1969). */
TEST(a_faster_link_is_not_slower) {
    seed_open(&chance);
    for (int i = 0; i < 30; i++) {
        open_random();
        trial.config.jitter = 0;
        trial.config.share_cores = false;
        trial.config.costs = (struct simulator_costs){0};
        run();
        double before = trial.result.mean;
        trial.config.link_rate *= 2;
        run();
        if (!(trial.result.mean <= 1.02 * before))
            fail_msg("case %d: %g s, then %g s", i, before, trial.result.mean);
    }
}

TEST(the_same_case_gives_the_same_result) {
    seed_open(&chance);
    for (int i = 0; i < 10; i++) {
        open_random();
        trial.config.jitter = 0.1;
        run();
        struct simulator_result first = trial.result;
        run();
        assert_true(first.mean == trial.result.mean);
        assert_int_equal(first.events, trial.result.events);
        trial.config.seed++;
        run();
        assert_true(first.mean != trial.result.mean);
    }
}

TEST(an_unsupported_case_is_refused) {
    open_case(2, 100);
    trial.config.num_ps = 3;
    assert_error(simulator_run(&trial.config, &trial.result, &failure),
                 FAILURE_SIMULATION_INVALID);
    assert_contains(failure.text, "3 ps: the model has 2 blocks");
    trial.config.num_ps = 1;
    trial.config.num_workers = 0;
    assert_error(simulator_run(&trial.config, &trial.result, &failure),
                 FAILURE_SIMULATION_INVALID);
    trial.config.num_workers = 1;
    trial.forward[1] = -1;
    assert_error(simulator_run(&trial.config, &trial.result, &failure),
                 FAILURE_SIMULATION_INVALID);
}
