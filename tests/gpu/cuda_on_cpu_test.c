/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/gpu/cuda_cases.h"
#include "tests/gpu/cuda_faults.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = CUDA_FAULTS_THREADS, SEEDS = 20 };

/* How many of SEEDS orders give the right answer. */
static int reversed(bool barrier) {
    float *x = cuda_floats(THREADS, 1, 1), *y = cuda_floats(THREADS, 2, 1);
    int right = 0;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        bool all = true;
        cuda_backend_set_order(seed, 0);
        assert_runs(cuda_faults_reverse(x, y, barrier));
        for (int i = 0; i < THREADS; i++)
            all &= y[i] == x[THREADS - 1 - i];
        right += all;
    }
    cuda_backend_release(x);
    cuda_backend_release(y);
    return right;
}

TEST(a_missing_barrier_is_detected_in_every_order) {
    assert_int_equal(reversed(true), SEEDS);
    assert_int_equal(reversed(false), 0);
}

static int with_neighbours(bool exchange) {
    float *y = cuda_floats(THREADS, 2, 1);
    int right = 0;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        bool all = true;
        cuda_backend_set_order(seed, 0);
        assert_runs(cuda_faults_neighbours(y, exchange));
        for (int i = 0; i < THREADS; i++)
            all &= y[i] == (float)(i + (i ^ 1));
        right += all;
    }
    cuda_backend_release(y);
    return right;
}

TEST(a_missing_warp_exchange_is_detected_in_every_order) {
    assert_int_equal(with_neighbours(true), SEEDS);
    assert_int_equal(with_neighbours(false), 0);
}

TEST(waiting_for_an_exited_thread_is_reported) {
    cuda_backend_set_order(0, 0);
    assert_int_not_equal(cuda_faults_wait_alone(7), 0);
    const char *why = cuda_backend_wait();
    assert_non_null(why);
    assert_non_null(strstr(why, "255 threads wait for the block"));
    assert_non_null(strstr(why, "1 have left"));
    assert_runs(cuda_faults_wait_alone(THREADS));
}

TEST(unwritten_shared_memory_is_nan) {
    float *y = cuda_floats(1, 1, 1);
    for (int time = 0; time < 2; time++) {
        y[0] = 0;
        assert_runs(cuda_faults_unset(y));
        assert_true(isnan(y[0]));
    }
    cuda_backend_release(y);
}

/* Whether a process lives that writes x[at] of COUNT floats. */
static bool survives(size_t count, ptrdiff_t at) {
    int ended;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
        if (!freopen("/dev/null", "w", stderr))
            _exit(EXIT_FAILURE);
        signal(SIGSEGV, SIG_DFL); /* cmocka reports it else */
        float *x = cuda_backend_allocate(count * sizeof *x);
        int error = cuda_faults_write(x, at);
        cuda_backend_release(x);
        _exit(error);
    }
    assert_int_equal(waitpid(child, &ended, 0), child);
    return WIFEXITED(ended) && WEXITSTATUS(ended) == 0;
}

TEST(an_out_of_bounds_write_is_detected) {
    static const size_t counts[] = {2, 6, 256, 1024, 100002};
    for (int i = 0; i < 5; i++) {
        assert_true(survives(counts[i], 0));
        assert_true(survives(counts[i], (ptrdiff_t)counts[i] - 1));
        assert_false(survives(counts[i], (ptrdiff_t)counts[i]));
        if (counts[i] != 1024) /* there the page before says how long it is */
            assert_false(survives(counts[i], -1));
    }
}
