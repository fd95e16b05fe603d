/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/job/job.h"

#include "tests/lib/test.h"

struct sizes {
    uint32_t train, micro, accumulation;
};

static enum status solve(struct sizes *sizes, uint64_t staleness,
                         uint32_t trainers, struct failure *why) {
    struct job job = {.train_batch_size = sizes->train,
                      .micro_batch = sizes->micro,
                      .accumulation = sizes->accumulation,
                      .staleness = staleness};
    enum status status = job_solve_batch(&job, trainers, why);
    *sizes =
        (struct sizes){job.train_batch_size, job.micro_batch, job.accumulation};
    return status;
}

static void expect(struct sizes given, uint64_t staleness, uint32_t trainers,
                   struct sizes wanted) {
    assert_ok(solve(&given, staleness, trainers, &failure));
    assert_int_equal(given.train, wanted.train);
    assert_int_equal(given.micro, wanted.micro);
    assert_int_equal(given.accumulation, wanted.accumulation);
}

TEST(any_two_batch_sizes_determine_the_third) {
    expect((struct sizes){0, 64, 2}, 0, 3, (struct sizes){384, 64, 2});
    expect((struct sizes){384, 0, 2}, 0, 3, (struct sizes){384, 64, 2});
    expect((struct sizes){384, 64, 0}, 0, 3, (struct sizes){384, 64, 2});
    expect((struct sizes){384, 64, 2}, 0, 3, (struct sizes){384, 64, 2});
}

TEST(one_size_alone_means_no_accumulation) {
    expect((struct sizes){0, 64, 0}, 0, 3, (struct sizes){192, 64, 1});
    expect((struct sizes){192, 0, 0}, 0, 3, (struct sizes){192, 64, 1});
}

TEST(with_staleness_trainers_do_not_count) {
    expect((struct sizes){0, 64, 2}, 1, 3, (struct sizes){128, 64, 2});
    expect((struct sizes){128, 64, 0}, JOB_STALENESS_INF, 3,
           (struct sizes){128, 64, 2});
}

TEST(a_contradiction_prints_all_three) {
    struct sizes given = {100, 32, 1};
    assert_error(solve(&given, 0, 3, &failure), FAILURE_JOB_INVALID);
    assert_string_equal(
        failure.text, "batch: train_batch_size 100 is not "
                      "train_micro_batch_size_per_gpu 32 x "
                      "gradient_accumulation_steps 1 x 3 trainers; give two of "
                      "the three, or make them fit: train_batch_size 96 does");
    assert_int_equal(given.train, 100);
}

TEST(an_indivisible_batch_is_a_contradiction) {
    struct sizes uneven = {100, 0, 1}, small = {2, 0, 0}, rest = {100, 32, 0},
                 vast = {0, 1 << 24, 1 << 24};
    assert_error(solve(&uneven, 0, 3, &failure), FAILURE_JOB_INVALID);
    assert_contains(failure.text, "per_gpu 33 (not given) x");
    assert_contains(failure.text, "fit: train_batch_size 99 or 102 does");
    assert_error(solve(&small, 0, 3, &failure), FAILURE_JOB_INVALID);
    assert_contains(failure.text, "fit: train_batch_size 3 does");
    assert_error(solve(&rest, 0, 3, &failure), FAILURE_JOB_INVALID);
    assert_contains(failure.text, "fit: train_batch_size 96 or 192 does");
    assert_error(solve(&vast, 0, UINT32_MAX, &failure), FAILURE_JOB_INVALID);
}

static struct job job_of(struct sizes sizes, uint64_t staleness) {
    return (struct job){.train_batch_size = sizes.train,
                        .micro_batch = sizes.micro,
                        .accumulation = sizes.accumulation,
                        .staleness = staleness};
}

TEST(replicas_of_all_trainers_count) {
    struct job job = job_of((struct sizes){384, 0, 2}, 0);
    assert_ok(
        job_solve_replicas(&job, (struct job_replicas){2, 6, 3}, &failure));
    assert_int_equal(job.micro_batch, 32);
    job = job_of((struct sizes){384, 0, 2}, 0);
    assert_ok(/* with four and two devices */
              job_solve_replicas(&job, (struct job_replicas){2, 6, 2},
                                 &failure));
    assert_int_equal(job.micro_batch, 32);
    job = job_of((struct sizes){100, 32, 1}, 0);
    assert_error(
        job_solve_replicas(&job, (struct job_replicas){2, 6, 3}, &failure),
        FAILURE_JOB_INVALID);
    assert_contains(failure.text, "x 6 replicas (2 trainers x 3 devices)");
    assert_error(
        job_solve_replicas(&job, (struct job_replicas){2, 6, 0}, &failure),
        FAILURE_JOB_INVALID);
    assert_contains(failure.text, "x 6 replicas (2 trainers); give");
}

/* The most devices by which it fits, if there are any. */
TEST(a_smaller_device_count_that_works_is_named) {
    struct job job = job_of((struct sizes){256, 64, 1}, 0);
    assert_error(
        job_solve_replicas(&job, (struct job_replicas){1, 8, 8}, &failure),
        FAILURE_JOB_INVALID);
    assert_contains(failure.text, "fit: train_batch_size 512 does, or "
                                  "\"devices\": 4 does");
    assert_error(
        job_solve_replicas(&job, (struct job_replicas){3, 24, 8}, &failure),
        FAILURE_JOB_INVALID);
    assert_contains(failure.text, "fit: train_batch_size 1536 does");
    assert_null(strstr(failure.text, "devices\""));
    job = job_of((struct sizes){128, 64, 1}, 1);
    assert_error(
        job_solve_replicas(&job, (struct job_replicas){3, 24, 8}, &failure),
        FAILURE_JOB_INVALID);
    assert_contains(failure.text, "\"devices\": 2 does");
}

TEST(with_staleness_replicas_of_one_trainer_count) {
    struct job job = job_of((struct sizes){384, 0, 2}, 5);
    assert_ok(
        job_solve_replicas(&job, (struct job_replicas){2, 6, 3}, &failure));
    assert_int_equal(job.micro_batch, 64);
}

/* Four trainers of one device, or two of two, or one of four. */
TEST(a_batch_that_some_device_count_solves_is_accepted) {
    struct job job = job_of((struct sizes){256, 64, 1}, 0);
    for (uint32_t trainers = 1; trainers < 5; trainers++)
        assert_ok(job_check_batch(&job, trainers, &failure));
    assert_int_equal(job.train_batch_size, 256);
    assert_error(job_check_batch(&job, 5, &failure), FAILURE_JOB_INVALID);
    assert_contains(failure.text, "x 5 trainers");
    job.devices = 2;
    assert_ok(job_check_batch(&job, 2, &failure));
    assert_error(job_check_batch(&job, 1, &failure), FAILURE_JOB_INVALID);
    job.devices = 0;
    job.device = JOB_DEVICE_CPU;
    assert_ok(job_check_batch(&job, 4, &failure));
    assert_error(job_check_batch(&job, 2, &failure), FAILURE_JOB_INVALID);
    assert_contains(failure.text, "x 2 trainers");
    job = job_of((struct sizes){0, 64, 0}, 0);
    assert_ok(job_check_batch(&job, 3, &failure));
    assert_int_equal(job.accumulation, 0);
}
