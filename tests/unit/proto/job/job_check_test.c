/* SPDX-License-Identifier: Apache-2.0 */
#define STATE struct job_fixture *fixture

#include "proto/job/job.h"

#include "tests/lib/job_fixture.h"
#include "tests/lib/test.h"

FIXTURE(job_fixture_setup, job_fixture_teardown);

TEST(an_unknown_backend_is_answered_with_the_known_ones) {
    job_fixture_expect_set_refused(
        fixture, "strategy.backend=mpi",
        "strategy.backend: found \"mpi\" (a string); allowed: "
        "\"auto\", \"gloo\", \"nccl\"");
}

TEST(an_unknown_key_is_answered_with_the_nearest) {
    static const char *const cases[][2] = {
        {"optimizer.params.mometum=1", "nearest: optimizer.params.momentum"},
        {"optimizer.parms.lr=1", "optimizer.parms: unknown key; nearest: "
                                 "optimizer.params"},
        {"lr=1", "lr: unknown key; nearest: optimizer.params.lr"},
        {"epoch=1", "epoch: unknown key; nearest: epochs"},
        {"num_epochs=1", "num_epochs: unknown key; nearest: epochs"},
        {"max_steps=1", "max_steps: unknown key; nearest: steps"},
        {"learning_rate=1", "nearest: optimizer.params.lr"},
        {"optimizer.learning_rate=1", "nearest: optimizer.params.lr"},
        {"data.batch_size=8", "nearest: train_batch_size"},
        {"train_micro_batch_size=1", "nearest: train_micro_batch_size_per_gpu"},
        {"batch_size=32", "batch_size: unknown key; nearest: train_batch_size"},
        {"data.suffle=true", "nearest: data.shuffle"},
        {"zero_optimisation.stage=1", "nearest: zero_optimization"},
        {"data.blurb=null", "known in data: format, dir, train, test"},
        {"blurb=1", "blurb: unknown key; known: defaults, model, data, seed"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        job_fixture_expect_set_refused(fixture, cases[i][0], cases[i][1]);
    job_fixture_expect_refused(
        fixture, job_fixture_load(fixture, "{\"data.dir\": \"x\"}", NULL, NULL),
        "data.dir: unknown key; a name has no dot");
}

TEST(all_errors_are_reported_together) {
    job_fixture_expect_refused(
        fixture,
        job_fixture_load(fixture, "{\"model\": 3, \"seed\": -1, \"a\": 1}",
                         NULL, NULL),
        "job.json: 7 errors\n  data.train: missing");
    assert_contains(fixture->why.text, "\n  seed: found -1");
    assert_contains(fixture->why.text, "\n  optimizer.type: missing");
    assert_contains(fixture->why.text, "\n  model: found 3");
    assert_contains(fixture->why.text, "\n  a: unknown key");
    char many[1024] = "{";
    for (int i = 0; i < 30; i++)
        sprintf(many + strlen(many), "\"unknown%d\": 1, ", i);
    strcat(many, "\"seed\": 1}");
    job_fixture_expect_refused(
        fixture, job_fixture_load(fixture, many, NULL, NULL), " more");
}

/* Keys that depend on it are neither missing nor misplaced. */
TEST(an_unknown_type_is_the_only_error) {
    static const char wide[] =
        "{\"model\": {\"type\": \"wide_deep\", \"wide\": [\"C1\"], \"deep\":"
        " [\"I1\"], \"hidden\": [8]}, \"data\": {\"format\": \"csv\", \"header\":"
        " true, \"train\": \"d.csv\"}, \"features\": {\"I1\": {\"type\":"
        " \"numeric\"}, \"C1\": {\"type\": \"hash_bucket\"}}, \"optimizers\":"
        " {\"wide\": {\"type\": \"SGD\"}, \"deep\": {\"type\": \"SGD\"}},"
        " \"steps\": 1, \"train_batch_size\": 8}";
    static const char *const sets[][2] = {{"model.type=wide"},
                                          {"data.format=cvs"},
                                          {"optimizers.wide.type=Ftlr"}};
    job_fixture_expect_loaded(fixture,
                              job_fixture_load(fixture, wide, NULL, NULL));
    for (int i = 0; i < 3; i++) {
        job_fixture_expect_refused(
            fixture, job_fixture_load(fixture, wide, NULL, sets[i]), "found");
        assert_null(strstr(fixture->why.text, " errors"));
    }
}
