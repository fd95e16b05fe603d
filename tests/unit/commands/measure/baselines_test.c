/* SPDX-License-Identifier: Apache-2.0 */
/* The plugin of this build, as `capstan bench` uses it. */
#include "commands/measure/baselines.h"

#include "core/base/time.h"
#include "tests/lib/assert_fails.h"
#include "tests/lib/build_folder.h"
#include "tests/lib/test.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>

enum { ROOM = 64 };
static const size_t sizes[] = {4, 64, 5000, 300 << 10, 3 << 20};

struct fixture {
    struct baselines *baselines;
    int64_t latencies[ROOM];
};

static int set_up(void **state) {
    struct fixture *fixture = calloc(1, sizeof *fixture);
    char folder[PATH_MAX];
    const void *table;
    assert_true(build_folder_find(folder));
    assert_ok(plugin_load(&table, textf("%s/capstan-bench.so", folder),
                          BASELINES_SYMBOL, BASELINES_ABI, &failure));
    const struct baselines_ops *ops = table;
    assert_ok(ops->open(&fixture->baselines, &failure));
    *state = fixture;
    return 0;
}

/* No process is left. */
static int tear_down(void **state) {
    struct fixture *fixture = *state;
    fixture->baselines->ops->close(&fixture->baselines);
    assert_null(fixture->baselines);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
    assert_int_equal(errno, ECHILD);
    free(fixture);
    return 0;
}

FIXTURE(set_up, tear_down);

static void run(struct fixture *fixture, enum baseline baseline,
                struct bench_iteration *iteration) {
    assert_ok(fixture->baselines->ops->run(fixture->baselines, baseline,
                                           iteration, &failure));
}

/* Every kind of every size, many at once and one after the other. */
static void expect_iterations(struct fixture *fixture, enum baseline baseline) {
    for (int kind = 0; kind < BENCH_ITERATION_KINDS; kind++)
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
            for (uint32_t depth = 1; depth <= 7; depth += 6) {
                struct bench_iteration iteration = {
                    .kind = (enum bench_iteration_kind)kind,
                    .bytes = sizes[s],
                    .depth = depth,
                    .times = 5,
                    .latencies = fixture->latencies,
                    .capacity = ROOM};
                run(fixture, baseline, &iteration);
                assert_int_equal(iteration.vectors, 5);
                assert_true(iteration.elapsed > 0);
                if (depth == 1)
                    assert_int_equal(iteration.samples, 5);
                if (baseline == BASELINE_ZMQ)
                    assert_int_equal(
                        iteration.messages,
                        5 * ((sizes[s] + BENCH_ITERATION_GROUP_BYTES - 1) /
                             BENCH_ITERATION_GROUP_BYTES));
            }
}

TEST(a_plain_socket_runs_every_iteration) {
    expect_iterations(*state, BASELINE_SOCKET);
}

TEST(bare_libzmq_runs_every_iteration) {
    expect_iterations(*state, BASELINE_ZMQ);
}

TEST(a_timed_iteration_ends_with_its_time) {
    struct bench_iteration iteration = {
        .bytes = 64, .depth = 100, .duration = 20 * TIME_MS};
    run(*state, BASELINE_SOCKET, &iteration);
    assert_true(iteration.elapsed >= iteration.duration);
    assert_true(iteration.vectors > 0);
}
