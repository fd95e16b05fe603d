/* SPDX-License-Identifier: Apache-2.0 */
#include "chief/report/summary.h"

#include "chief/plan/memory_plan.h"
#include "tests/lib/test.h"

#include <math.h>
#include <string.h>

enum { TRAINERS = 2, PS = 2 };

struct fixture {
    struct run run;
    struct job job;
    struct layout layout;
    struct run_trainer trainers[TRAINERS];
    struct run_ps ps[PS];
    struct memory_plan_limits limits[TRAINERS + PS];
};

/* 2 trainers and 2 ps, 1000 elements, 100 steps: each trainer has read 1 s and
 * 3 s, computed 10 s, waited 4 s; each ps has updated 2 s. */
static void prepare(struct fixture *fixture) {
    memset(fixture, 0, sizeof *fixture);
    struct run *run = &fixture->run;
    run->job = &fixture->job;
    run->plan.layout = &fixture->layout;
    run->trainers = fixture->trainers;
    run->ps = fixture->ps;
    run->plan.limits = fixture->limits;
    run->roster.num_ranks = TRAINERS;
    run->roster.num_ps = PS;
    run->plan.schedule.start = 50;
    run->end_step = 150;
    fixture->layout.elements = 1000;
    fixture->job.strategy = JOB_PS;
    for (int i = 0; i < TRAINERS; i++) {
        fixture->trainers[i].heartbeat.input_s = i ? 3 : 1;
        fixture->trainers[i].heartbeat.compute_s = 10;
        fixture->trainers[i].heartbeat.wire_s = 4;
        fixture->trainers[i].heartbeat.update_s = 0.5;
        fixture->ps[i].update_s = 2;
    }
}

static void expect(const struct run *run, const char *inside, const char *key,
                   double wanted) {
    json_t *object = json_object();
    time_breakdown_add(object, run);
    const json_t *at = inside ? json_object_get(object, inside) : object;
    double found = json_number_value(json_object_get(at, key));
    if (!(fabs(found - wanted) < 1e-12 * fmax(1, wanted)))
        fail_msg("%s: %.9g, not %.9g", key, found, wanted);
    json_decref(object);
}

TEST(a_round_counts_once_for_each_trainer) {
    struct fixture fixture;
    prepare(&fixture);
    expect(&fixture.run, NULL, "parameters", 1000);
    expect(&fixture.run, NULL, "wire_bytes", 4000);
    expect(&fixture.run, NULL, "bytes_per_step", 16000);
    expect(&fixture.run, "seconds_per_step", "input", 0.02);
    expect(&fixture.run, "seconds_per_step", "compute", 0.1);
    expect(&fixture.run, "seconds_per_step", "waiting_for_weights", 0.04);
    expect(&fixture.run, "seconds_per_step", "waiting_for_gradients", 0);
    expect(&fixture.run, "seconds_per_step", "update", 0.02);
}

/* 100 pushes are 50 of each. */
TEST(without_rounds_pushes_are_divided_among_trainers) {
    struct fixture fixture;
    prepare(&fixture);
    fixture.job.staleness = JOB_STALENESS_INF;
    expect(&fixture.run, NULL, "bytes_per_step", 8000);
    expect(&fixture.run, "seconds_per_step", "compute", 0.2);
    expect(&fixture.run, "seconds_per_step", "update", 0.04);
}

TEST(all_reduce_counts_gradient_waits_and_its_own_updates) {
    struct fixture fixture;
    prepare(&fixture);
    fixture.run.allreduce = true;
    expect(&fixture.run, NULL, "bytes_per_step", 8000);
    expect(&fixture.run, "seconds_per_step", "waiting_for_gradients", 0.04);
    expect(&fixture.run, "seconds_per_step", "waiting_for_weights", 0);
    expect(&fixture.run, "seconds_per_step", "update", 0.005);
}

TEST(a_callers_batch_and_its_reading_are_unknown) {
    struct fixture fixture;
    prepare(&fixture);
    fixture.job.model.type = JOB_EXTERNAL;
    fixture.job.micro_batch = fixture.job.accumulation = 1;
    fixture.run.plan.num_replicas = 2;
    json_t *object = json_object();
    time_breakdown_add(object, &fixture.run);
    const json_t *times = json_object_get(object, "seconds_per_step");
    assert_true(json_is_null(json_object_get(times, "input")));
    assert_true(json_is_null(json_object_get(object, "micro_batch")));
    assert_true(json_is_null(json_object_get(object, "accumulation")));
    json_decref(object);
    expect(&fixture.run, NULL, "replicas", 2);
    expect(&fixture.run, NULL, "devices", 0); /* null */
    expect(&fixture.run, "seconds_per_step", "compute", 0.1);
}

TEST(figures_not_yet_known_are_null) {
    struct fixture fixture;
    prepare(&fixture);
    json_t *object = json_object();
    fixture.run.end_step = fixture.run.plan.schedule.start;
    time_breakdown_add(object, &fixture.run);
    assert_true(json_is_null(json_object_get(object, "seconds_per_step")));
    fixture.run.plan.layout = NULL;
    time_breakdown_add(object, &fixture.run);
    assert_true(json_is_null(json_object_get(object, "parameters")));
    assert_true(json_is_null(json_object_get(object, "bytes_per_step")));
    json_decref(object);
}
