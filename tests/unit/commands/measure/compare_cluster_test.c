/* SPDX-License-Identifier: Apache-2.0 */
/* Comparisons across a cluster that only pretends to run: which jobs are made
 * of the one that is given, and what a cluster must have. */
#define STATE struct fake *fake

#include "commands/measure/compare_cluster.h"
#include "tests/lib/assert_fails.h"
#include "tests/lib/job_fixture.h"
#include "tests/lib/test.h"

#include <stdio.h>
#include <string.h>

enum { MAXIMUM = 32 };

struct fake {
    struct job_fixture *fixture;
    struct options options;
    char path[128];
    struct compare_cluster members;
    unsigned count, last; /* runs; the one that ends the comparison, or 0 */
    struct run_series series[MAXIMUM];
    bool kept; /* a run had something that it leaves behind */
    uint32_t micro_batch;
};

static enum status run_chief(void *context, struct job *job,
                             struct run_series *series, struct failure *why) {
    struct fake *fake = context;
    assert_true(fake->count < MAXIMUM);
    fake->series[fake->count++] = *series;
    fake->kept |= job->checkpoint.dir || job->export_path || job->events_dir ||
                  job->compare.on;
    fake->micro_batch = job->micro_batch;
    job_free(&job);
    if (fake->count == fake->last)
        return status_fail(why, FAILURE_PEER_LOST, "worker 1 is gone");
    series->measured =
        json_pack("{s:i,s:f,s:f,s:{}}", "steps", 20, "steps_per_second", 10.0,
                  "examples_per_second", 640.0, "seconds_per_step");
    return STATUS_OK;
}

static int setup(void **state) {
    static struct fake fake;
    void *fixture;
    fake = (struct fake){0};
    if (job_fixture_setup(&fixture))
        return -1;
    fake.fixture = fixture;
    *state = &fake;
    return 0;
}

static int teardown(void **state) {
    struct fake *fake = *state;
    void *fixture = fake->fixture;
    return job_fixture_teardown(&fixture);
}

FIXTURE(setup, teardown);

static enum status settle(struct fake *fake, const char *setting,
                          struct strategy_case topology, struct failure *why) {
    const char *const settings[] = {setting, "checkpoint.dir=kept",
                                    "export.path=kept.npz", NULL};
    if (job_fixture_load(fake->fixture, job_fixture_least, NULL, settings))
        fail_msg("%s", fake->fixture->why.text);
    options_open(&fake->options, CLI_COMMAND_COMPARE);
    fake->options.job = fake->path;
    snprintf(fake->path, sizeof fake->path, "%s/job.json",
             fake->fixture->folder);
    for (unsigned i = 0; settings[i]; i++)
        fake->options.sets[fake->options.num_sets++] = settings[i];
    fake->options.repeats = 1;
    fake->options.ps = fake->fixture->job->compare.ps;
    fake->options.workers = fake->fixture->job->compare.workers;
    fake->members = (struct compare_cluster){.flags = &fake->options,
                                             .job = fake->fixture->job,
                                             .topology = topology,
                                             .run_chief = run_chief,
                                             .context = fake};
    return compare_cluster_resolve(&fake->members, &fake->options, why);
}

TEST(runs_are_of_the_job_and_leave_nothing_behind) {
    json_t *result;
    assert_ok(settle(fake, "compare={}", (struct strategy_case){2, 2, false, 0},
                     &failure));
    assert_ok(compare_cluster_run(&result, &fake->members, &failure));
    assert_int_equal(fake->count, 2 * 5 + 1);
    assert_false(fake->kept);
    assert_int_equal(fake->micro_batch, fake->fixture->job->micro_batch);
    assert_true(fake->series[0].first && !fake->series[1].first);
    assert_int_equal(fake->series[0].ps, 0);
    assert_int_equal(fake->series[1].ps, 1);
    assert_int_equal(fake->series[3].ps, 2);
    assert_true(fake->series[9].continues[true]);
    assert_false(fake->series[10].continues[true]);
    json_decref(result);
}

TEST(a_lost_member_ends_the_comparison_with_the_runs_error) {
    json_t *result;
    fake->last = 3;
    assert_ok(settle(fake, "compare={}", (struct strategy_case){2, 1, false, 0},
                     &failure));
    assert_error(compare_cluster_run(&result, &fake->members, &failure),
                 FAILURE_PEER_LOST);
    assert_null(result);
}

TEST(without_ps_only_all_reduce_is_compared) {
    assert_ok(settle(fake, "compare={}", (struct strategy_case){3, 0, false, 0},
                     &failure));
    assert_int_equal(fake->options.ps.count, 0);
    assert_int_equal(fake->options.workers.values[0], 3);
}

TEST(many_ps_are_counted_by_doubling) {
    assert_ok(settle(fake, "compare={}",
                     (struct strategy_case){3, 24, false, 0}, &failure));
    const struct job_counts *ps = &fake->options.ps;
    static const unsigned wanted[] = {1, 2, 4, 8, 16, 24};
    assert_int_equal(ps->count, 6);
    assert_memory_equal(ps->values, wanted, sizeof wanted);
}

TEST(missing_resources_of_the_cluster_are_named) {
    static const struct {
        const char *setting;
        struct strategy_case topology;
        const char *text;
    } cases[] = {
        {"compare.ps=[1,3]",
         {2, 2, false, 0},
         "compare.ps: found 3; allowed: 1 "
         "to 2"},
        {"compare.ps=1", {2, 0, false, 0}, "lists no ps"},
        {"compare.workers=[1,2]",
         {2, 2, false, 0},
         "compare.workers: found 1, "
         "...; allowed: 2"},
        {"compare={}", {1, 0, true, 0}, "trains alone"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_error(
            settle(fake, cases[i].setting, cases[i].topology, &failure),
            FAILURE_JOB_UNFIT);
        assert_contains(failure.text, cases[i].text);
    }
}
