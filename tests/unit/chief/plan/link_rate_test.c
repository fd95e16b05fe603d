/* SPDX-License-Identifier: Apache-2.0 */
#include "chief/plan/link_rate.h"

#include "chief/series.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <string.h>

static const struct log silent;

static const char *nothing(void *context, const char *name) {
    (void)context;
    (void)name;
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
    struct failure why;
    cluster_free(&cluster);
    roster_close(&run.roster);
    memset(&run, 0, sizeof run);
    if (cluster_resolve(&cluster, &flags, nothing, NULL, &why))
        fail_msg("%s", why.text);
    run.cluster = cluster;
    run.log = &silent;
    run.phase = RUN_READYING;
    assert_true(roster_open(&run.roster, false, 2, 1, 1));
    return &run;
}

static bool settled(const char *ps, const char *workers) {
    return link_rate_settled(listed(ps, workers), 1);
}

static void processes_that_share_a_host_are_not_measured(void **state) {
    (void)state;
    assert_true(settled("localhost:1", "localhost:2,localhost:3"));
    assert_true(settled("127.0.0.1:1", "a:2,b:3"));
    assert_true(settled("a:1", "a:2,b:3"));
    assert_true(settled("p:1", "a:2,a:3"));
    assert_true(settled("[::1]:1", "a:2,b:3"));
}

static void a_given_rate_is_not_measured(void **state) {
    (void)state;
    struct run *run = listed("p:1", "a:2,b:3");
    run->link_gbits = 10;
    assert_true(link_rate_settled(run, 1));
    assert_int_equal(run->link_asked, 0);
}

static void nobody_waits_for_a_rate_longer_than_a_second(void **state) {
    (void)state;
    struct run *run = listed("p:1", "a:2,b:3");
    const int64_t second = 1000000000;
    run->link_asked = 5;
    assert_false(link_rate_settled(run, 5 + second - 1));
    assert_true(link_rate_settled(run, 5 + second));
}

static void only_an_answer_that_was_asked_for_counts(void **state) {
    (void)state;
    Capstan__Measured measured = CAPSTAN__MEASURED__INIT;
    const double wrong[] = {0, -1, NAN, INFINITY, 1e300};
    measured.bytes_per_second = 119.55e6;
    struct run *run = listed("p:1", "a:2,b:3");
    link_rate_take(run, &run->roster.slots[0], &measured);
    assert_true(run->link_gbits == 0);
    run->link_asked = 5;
    link_rate_take(run, &run->roster.slots[1], &measured);
    assert_true(run->link_gbits == 0);
    link_rate_take(run, &run->roster.slots[0], &measured);
    assert_true(run->link_gbits > 0.999 && run->link_gbits < 1.001);
    assert_true(link_rate_settled(run, 6));
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        run->link_gbits = 0;
        run->link_told = false;
        measured.bytes_per_second = wrong[i];
        link_rate_take(run, &run->roster.slots[0], &measured);
        assert_true(run->link_gbits == 0);
        assert_true(link_rate_settled(run, 6)); /* and nothing is awaited */
    }
}

/* Trainers' shares of what passes at ps 0, in a series; 2 trainers. */
static struct run *asked_together(void) {
    static struct series series;
    static struct run_trainer trainers[2];
    struct run *run = listed("p:1", "a:2,b:3");
    memset(trainers, 0, sizeof trainers);
    run->series = &series;
    run->trainers = trainers;
    run->link_gbits = 0.1;
    run->link_measured = true;
    run->together_asked = 5;
    return run;
}

static void what_all_trainers_pass_at_once_is_the_sum_of_their_shares(
    void **state) {
    (void)state;
    Capstan__Measured measured = CAPSTAN__MEASURED__INIT;
    struct run *run = asked_together();
    measured.bytes_per_second = 119.55e6;
    link_rate_take(run, &run->roster.slots[0], &measured);
    link_rate_take(run, &run->roster.slots[0], &measured); /* again */
    assert_false(link_rate_settled(run, 6));
    assert_true(isnan(link_rate_together(run)));
    link_rate_take(run, &run->roster.slots[1], &measured);
    assert_true(link_rate_settled(run, 6));
    assert_true(fabs(link_rate_together(run) - 2) < 1e-3);
    assert_true(run->link_gbits == 0.1);
}

static void who_cannot_tell_its_share_leaves_the_sum_unknown(void **state) {
    (void)state;
    Capstan__Measured measured = CAPSTAN__MEASURED__INIT;
    struct run *run = asked_together();
    measured.bytes_per_second = 119.55e6;
    link_rate_take(run, &run->roster.slots[0], &measured);
    assert_true(link_rate_settled(run, 5 + 1000000000));
    measured.bytes_per_second = 0;
    link_rate_take(run, &run->roster.slots[1], &measured);
    assert_true(link_rate_settled(run, 6));
    assert_true(isnan(link_rate_together(run)));
}

static void a_run_that_stands_alone_asks_one_pair_only(void **state) {
    (void)state;
    struct run *run = asked_together();
    run->series = NULL;
    assert_true(link_rate_settled(run, 6));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(processes_that_share_a_host_are_not_measured),
        cmocka_unit_test(a_given_rate_is_not_measured),
        cmocka_unit_test(nobody_waits_for_a_rate_longer_than_a_second),
        cmocka_unit_test(only_an_answer_that_was_asked_for_counts),
        cmocka_unit_test(
            what_all_trainers_pass_at_once_is_the_sum_of_their_shares),
        cmocka_unit_test(who_cannot_tell_its_share_leaves_the_sum_unknown),
        cmocka_unit_test(a_run_that_stands_alone_asks_one_pair_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
