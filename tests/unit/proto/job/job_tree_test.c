/* SPDX-License-Identifier: Apache-2.0 */
#define STATE struct job_fixture *fixture

#include "proto/job/job_tree.h"

#include "tests/lib/job_fixture.h"
#include "tests/lib/test.h"
#include "worker/models/mlp.h"

FIXTURE(job_fixture_setup, job_fixture_teardown);

TEST(overrides_reach_into_objects_and_arrays) {
    const char *const overrides[] = {"model.layers.0=8",
                                     "model.layers.2=3",
                                     "checkpoint.dir=some/where",
                                     "data.train.1=/labels",
                                     "optimizer.params.lr=0.5",
                                     "seed=1",
                                     "seed=2",
                                     "init=a=b.safetensors",
                                     "tensorboard.job_name=7up",
                                     NULL};
    job_fixture_expect_loaded(
        fixture, job_fixture_load(fixture, job_fixture_least, NULL, overrides));
    const struct job *job = fixture->job;
    const struct mlp_settings *mlp = job->model.settings;
    assert_int_equal(mlp->layers.count, 3);
    assert_int_equal(mlp->layers.items[0], 8);
    assert_int_equal(mlp->layers.items[2], 3);
    assert_string_equal(job->data.train.paths[1], "/labels");
    assert_true(job->schedule.lr == 0.5);
    assert_int_equal(job->seed, 2);
    assert_string_equal(job->init + strlen(job->init) - 15, "a=b.safetensors");
    assert_string_equal(job->tensorboard_name, "7up");
    assert_string_equal(job->checkpoint.dir,
                        textf("%s/some/where", fixture->folder));
}

TEST(an_override_of_steps_replaces_epochs) {
    const char *const overrides[] = {"steps=7", NULL};
    job_fixture_expect_loaded(
        fixture,
        job_fixture_load(fixture, job_fixture_example, NULL, overrides));
    assert_true(fixture->job->has_steps && fixture->job->steps == 7);
    job_fixture_expect_loaded(fixture, job_fixture_set(fixture, "epochs=2"));
    assert_true(!fixture->job->has_steps && fixture->job->epochs == 2);
}

TEST(an_override_of_an_unknown_path_is_refused) {
    static const char *const wrong[] = {"seed",
                                        "=1",
                                        "steps.x=1",
                                        "model.layers.9=1",
                                        ".seed=1",
                                        "model..type=1",
                                        "seed.=1",
                                        "model.layers.x=1",
                                        "a.b.c.d.e.f.g.h.i.j.k.l.m.n.o.p.q=1"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        job_fixture_expect_set_refused(fixture, wrong[i], "--set: found ");
}

TEST(a_tilde_is_an_ordinary_name) {
    job_fixture_expect_loaded(fixture,
                              job_fixture_set(fixture, "checkpoint.dir=~/x"));
    assert_string_equal(fixture->job->checkpoint.dir,
                        textf("%s/~/x", fixture->folder));
}
