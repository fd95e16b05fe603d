/* SPDX-License-Identifier: Apache-2.0 */
#include "chief/plan/bandwidth_probe.h"

#include "chief/run.h"
#include "chief/run_series.h"
#include "tests/lib/test.h"

#include <math.h>

static const struct log silent;

static const char *nothing(void *context, const char *name) {
    (void)context, (void)name;
    return NULL;
}

/* A run of 1 ps and 2 workers, worker 0 leading; PS and WORKERS as in flags. */
static struct run *listed(const char *ps, const char *workers) {
    static struct run run;
    static struct cluster *cluster;
    struct cluster_flags flags = {.job_name = "worker",
                                  .task_index = "0",
                                  .ps_hosts = ps,
                                  .worker_hosts = workers};
    cluster_free(&cluster);
    roster_close(&run.roster);
    memset(&run, 0, sizeof run);
    assert_ok(cluster_resolve(&cluster, &flags, nothing, NULL, &failure));
    run.cluster = cluster;
    run.log = &silent;
    run.phase = RUN_READYING;
    assert_true(roster_open(&run.roster, false, 2, 1, 1));
    return &run;
}

static bool settled(const char *ps, const char *workers) {
    return bandwidth_probe_is_done(listed(ps, workers), 1);
}

TEST(processes_that_share_a_host_are_not_measured) {
    assert_true(settled("localhost:1", "localhost:2,localhost:3"));
    assert_true(settled("127.0.0.1:1", "a:2,b:3"));
    assert_true(settled("a:1", "a:2,b:3"));
    assert_true(settled("p:1", "a:2,a:3"));
    assert_true(settled("[::1]:1", "a:2,b:3"));
}

TEST(workers_that_may_join_do_not_keep_it_from_being_measured) {
    struct run *run = listed("p:1", "a:2");
    run->num_beyond = 1;
    run->control_server =
        control_server_open(NULL, &run->roster, &silent, 1, 1);
    assert_false(bandwidth_probe_is_done(run, 1));
    assert_int_equal(run->bandwidth.requested_at, 1);
    control_server_close(&run->control_server);
}

TEST(a_given_rate_is_not_measured) {
    struct run *run = listed("p:1", "a:2,b:3");
    run->bandwidth.gbits = 10;
    assert_true(bandwidth_probe_is_done(run, 1));
    assert_int_equal(run->bandwidth.requested_at, 0);
}

TEST(a_rate_is_waited_for_at_most_a_second) {
    struct run *run = listed("p:1", "a:2,b:3");
    const int64_t second = 1000000000;
    run->bandwidth.requested_at = 5;
    assert_false(bandwidth_probe_is_done(run, 5 + second - 1));
    assert_true(bandwidth_probe_is_done(run, 5 + second));
}

TEST(only_a_requested_answer_counts) {
    Capstan__Measured measured = CAPSTAN__MEASURED__INIT;
    const double wrong[] = {0, -1, NAN, INFINITY, 1e300};
    measured.bytes_per_second = 119.55e6;
    struct run *run = listed("p:1", "a:2,b:3");
    bandwidth_probe_receive(run, &run->roster.slots[0], &measured);
    assert_true(run->bandwidth.gbits == 0);
    run->bandwidth.requested_at = 5;
    bandwidth_probe_receive(run, &run->roster.slots[1], &measured);
    assert_true(run->bandwidth.gbits == 0);
    bandwidth_probe_receive(run, &run->roster.slots[0], &measured);
    assert_true(run->bandwidth.gbits > 0.999 && run->bandwidth.gbits < 1.001);
    assert_true(bandwidth_probe_is_done(run, 6));
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        run->bandwidth.gbits = 0;
        run->bandwidth.logged = false;
        measured.bytes_per_second = wrong[i];
        bandwidth_probe_receive(run, &run->roster.slots[0], &measured);
        assert_true(run->bandwidth.gbits == 0);
        assert_true(
            bandwidth_probe_is_done(run, 6)); /* and nothing is awaited */
    }
}

/* Trainers' shares of what passes at ps 0, in a series; 2 trainers. */
static struct run *asked_together(void) {
    static struct run_series series;
    static struct run_trainer trainers[2];
    struct run *run = listed("p:1", "a:2,b:3");
    memset(trainers, 0, sizeof trainers);
    run->series = &series;
    run->trainers = trainers;
    run->bandwidth.gbits = 0.1;
    run->bandwidth.measured = true;
    run->bandwidth.aggregate_requested_at = 5;
    return run;
}

TEST(the_total_rate_is_the_sum_of_all_trainers_rates) {
    Capstan__Measured measured = CAPSTAN__MEASURED__INIT;
    struct run *run = asked_together();
    measured.bytes_per_second = 119.55e6;
    bandwidth_probe_receive(run, &run->roster.slots[0], &measured);
    bandwidth_probe_receive(run, &run->roster.slots[0], &measured); /* again */
    assert_false(bandwidth_probe_is_done(run, 6));
    assert_true(isnan(bandwidth_probe_aggregate_gbits(run)));
    bandwidth_probe_receive(run, &run->roster.slots[1], &measured);
    assert_true(bandwidth_probe_is_done(run, 6));
    assert_true(fabs(bandwidth_probe_aggregate_gbits(run) - 2) < 1e-3);
    assert_true(run->bandwidth.gbits == 0.1);
}

TEST(a_member_without_a_figure_leaves_the_sum_unknown) {
    Capstan__Measured measured = CAPSTAN__MEASURED__INIT;
    struct run *run = asked_together();
    measured.bytes_per_second = 119.55e6;
    bandwidth_probe_receive(run, &run->roster.slots[0], &measured);
    assert_true(bandwidth_probe_is_done(run, 5 + 1000000000));
    measured.bytes_per_second = 0;
    bandwidth_probe_receive(run, &run->roster.slots[1], &measured);
    assert_true(bandwidth_probe_is_done(run, 6));
    assert_true(isnan(bandwidth_probe_aggregate_gbits(run)));
}

TEST(a_single_run_probes_only_one_pair) {
    struct run *run = asked_together();
    run->series = NULL;
    assert_true(bandwidth_probe_is_done(run, 6));
}
