/* SPDX-License-Identifier: Apache-2.0 */
#include "commands/bench_cluster.h"

#include "tests/lib/test.h"

#include <unistd.h>

static struct job *job_of(const char *checkpoints) {
    struct options options = {.checkpoint_dir = checkpoints};
    struct job *job;
    assert_ok(bench_cluster_job(&job, &options, &failure));
    return job;
}

TEST(the_bench_job_is_asynchronous_and_ends_with_its_client) {
    struct job *job = job_of(NULL);
    assert_true(job->staleness == JOB_STALENESS_INF);
    assert_int_equal(job->optimizer.type, OPTIMIZER_SGD);
    assert_int_equal(job->chief, JOB_CHIEF_COORDINATE);
    assert_true(job->has_steps && job->steps > UINT64_C(100000000000));
    assert_null(job->checkpoint.dir);
    job_free(&job);
}

TEST(the_checkpoint_folder_becomes_absolute) {
    char here[4096];
    assert_non_null(getcwd(here, sizeof here));
    const char *path = textf("%s/some/where", here);
    struct job *job = job_of("some/where");
    assert_string_equal(job->checkpoint.dir, path);
    assert_int_equal(job->checkpoint.resume, JOB_RESUME_NEVER);
    job_free(&job);
    job = job_of("/some/where");
    assert_string_equal(job->checkpoint.dir, "/some/where");
    job_free(&job);
}
