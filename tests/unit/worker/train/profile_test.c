/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/train/profile.h"

#include "tests/lib/job_fixture.h"
#include "tests/lib/test.h"

enum { LAYERS = 3, PARAMETERS = 2 * LAYERS };

static struct profile measure(struct job_fixture *fixture, double *forward,
                              double *backward) {
    struct profile profile = {forward, backward, 0};
    struct failure why = {0};
    const char *const model[] = {
        "model={\"type\":\"mlp\",\"layers\":[64,2048,64,10]}",
        "train_micro_batch_size_per_gpu=16", NULL};
    assert_int_equal(job_fixture_load(fixture, job_fixture_least, NULL, model),
                     STATUS_OK);
    assert_int_equal(job_solve_batch(fixture->job, 1, &why), STATUS_OK);
    if (profile_measure(&profile, fixture->job, 2, 0.1, &why))
        fail_msg("%s", why.text);
    return profile;
}

/* A layer of 2048 units takes longer than one of 10 does, each way; a weight's
 * gradient longer than its bias's. Backward the second layer is compared with
 * the third: the first one's interval has no gradient of its inputs. */
TEST_WITH(job_fixture_setup, job_fixture_teardown,
          larger_parameters_take_longer) {
    double forward[PARAMETERS] = {0}, backward[PARAMETERS] = {0};
    struct profile profile = measure(*state, forward, backward);
    for (int p = 0; p < PARAMETERS; p++)
        assert_true(forward[p] >= 0 && backward[p] > 0 && forward[p] < 10 &&
                    backward[p] < 10);
    assert_true(forward[0] + forward[1] > forward[4] + forward[5]);
    assert_true(backward[2] > backward[4]);
    assert_true(backward[2] > backward[3]);
    assert_true(profile.parallel_efficiency > 0 &&
                profile.parallel_efficiency <= 1);
}
