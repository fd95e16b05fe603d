/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/bench/bench_baseline.h"

#include "proto/base/time.h"
#include "worker/bench/bare_zmq.h"
#include "worker/bench/plain_socket.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <zmq.h>

enum { ROOM = 64 };
static const size_t sizes[] = {4, 64, 5000, 300 << 10, 3 << 20};

struct fixture {
    struct bench_baseline bench_baseline;
    void *zmq;
    int64_t latencies[ROOM];
};

/* The process of what is compared with is started before any thread. */
static int set_up(void **state) {
    struct fixture *fixture = calloc(1, sizeof *fixture);
    struct failure why;
    if (bench_baseline_start(&fixture->bench_baseline, &why))
        fail_msg("%s", why.text);
    fixture->zmq = zmq_ctx_new();
    *state = fixture;
    return 0;
}

static int tear_down(void **state) {
    struct fixture *fixture = *state;
    pid_t pid = fixture->bench_baseline.pid;
    zmq_ctx_term(fixture->zmq);
    bench_baseline_stop(&fixture->bench_baseline);
    bench_baseline_stop(&fixture->bench_baseline);
    assert_int_equal(kill(pid, 0), -1);
    assert_int_equal(errno, ESRCH);
    free(fixture);
    return 0;
}

typedef enum status run_lap(void *mover,
                            struct bench_iteration *bench_iteration,
                            struct failure *why);

/* Every kind of every size, many at once and one after the other. */
static void expect_laps(struct fixture *fixture, run_lap *run, void *mover,
                        bool exact) {
    for (int kind = 0; kind < BENCH_ITERATION_KINDS; kind++)
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
            for (uint32_t depth = 1; depth <= 7; depth += 6) {
                struct failure why;
                struct bench_iteration bench_iteration = {
                    .kind = (enum bench_iteration_kind)kind,
                    .bytes = sizes[s],
                    .depth = depth,
                    .times = 5,
                    .latencies = fixture->latencies,
                    .capacity = ROOM};
                if (run(mover, &bench_iteration, &why))
                    fail_msg("%s", why.text);
                assert_int_equal(bench_iteration.vectors, 5);
                assert_true(bench_iteration.elapsed > 0);
                if (depth == 1)
                    assert_int_equal(bench_iteration.samples, 5);
                if (exact)
                    assert_int_equal(
                        bench_iteration.messages,
                        5 * ((sizes[s] + BENCH_ITERATION_GROUP_BYTES - 1) /
                             BENCH_ITERATION_GROUP_BYTES));
            }
}

static enum status run_plain(void *mover,
                             struct bench_iteration *bench_iteration,
                             struct failure *why) {
    return plain_socket_run(mover, bench_iteration, why);
}

static enum status run_zmq(void *mover, struct bench_iteration *bench_iteration,
                           struct failure *why) {
    return bare_zmq_run(mover, bench_iteration, why);
}

static void a_plain_socket_runs_every_iteration(void **state) {
    struct fixture *fixture = *state;
    struct plain_socket *plain;
    struct failure why;
    for (int again = 0; again < 2; again++) {
        if (plain_socket_open(&plain, fixture->bench_baseline.plain_port, &why))
            fail_msg("%s", why.text);
        expect_laps(fixture, run_plain, plain, false);
        plain_socket_close(&plain);
    }
}

static void bare_libzmq_runs_every_iteration(void **state) {
    struct fixture *fixture = *state;
    struct bare_zmq *bare;
    struct failure why;
    for (int again = 0; again < 2; again++) {
        if (bare_zmq_open(&bare, fixture->zmq, fixture->bench_baseline.zmq_port,
                          &why))
            fail_msg("%s", why.text);
        expect_laps(fixture, run_zmq, bare, true);
        bare_zmq_close(&bare);
    }
}

static void a_timed_iteration_ends_with_its_time(void **state) {
    struct fixture *fixture = *state;
    struct plain_socket *plain;
    struct failure why;
    if (plain_socket_open(&plain, fixture->bench_baseline.plain_port, &why))
        fail_msg("%s", why.text);
    struct bench_iteration bench_iteration = {
        .bytes = 64, .depth = 100, .duration = 20 * TIME_MS};
    assert_int_equal(plain_socket_run(plain, &bench_iteration, &why),
                     STATUS_OK);
    assert_true(bench_iteration.elapsed >= bench_iteration.duration);
    assert_true(bench_iteration.vectors > 0);
    plain_socket_close(&plain);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(a_plain_socket_runs_every_iteration),
        TEST(bare_libzmq_runs_every_iteration),
        TEST(a_timed_iteration_ends_with_its_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
