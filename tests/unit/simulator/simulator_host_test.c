/* SPDX-License-Identifier: Apache-2.0 */
#include "simulator/simulator_host.h"

#include "tests/lib/test.h"

enum { MAXIMUM = 8 };

/* A thread that notes when its work is done. */
struct worker {
    struct simulator_host_thread thread;
    struct timeline *timeline;
    double ended;
    double more; /* seconds of a second piece of work */
};

static void ended(void *context) {
    struct worker *worker = context;
    worker->ended = 1e-9 * (double)timeline_now(worker->timeline);
    double more = worker->more;
    worker->more = 0;
    if (more > 0)
        simulator_host_run(&worker->thread, more, ended, worker);
}

static struct host {
    struct timeline *timeline;
    struct simulator_host *simulator_host;
    struct worker workers[MAXIMUM];
} host;

static void open_host(uint32_t cores, double parallel_efficiency) {
    struct simulator_host_settings settings = {.cores = cores,
                                               .parallel_efficiency =
                                                   parallel_efficiency,
                                               .threads = MAXIMUM};
    host = (struct host){.timeline = timeline_open()};
    assert_non_null(host.timeline);
    host.simulator_host = simulator_host_open(host.timeline, &settings);
    assert_non_null(host.simulator_host);
    for (int i = 0; i < MAXIMUM; i++) {
        host.workers[i].thread.simulator_host = host.simulator_host;
        host.workers[i].timeline = host.timeline;
    }
}

static void work(int worker, double seconds) {
    simulator_host_run(&host.workers[worker].thread, seconds, ended,
                       &host.workers[worker]);
}

static void play(void) {
    while (timeline_step(host.timeline))
        ;
}

static int close_host(void **state) {
    (void)state;
    simulator_host_close(&host.simulator_host);
    simulator_host_close(&host.simulator_host);
    timeline_close(&host.timeline);
    return 0;
}

FIXTURE(NULL, close_host);

static void expect(int worker, double seconds) {
    assert_float_equal(host.workers[worker].ended, seconds, 1e-7);
}

TEST(one_thread_per_core_runs_at_full_speed) {
    open_host(2, 1);
    work(0, 1);
    work(1, 3);
    play();
    expect(0, 1);
    expect(1, 3);
    assert_float_equal(simulator_host_busy(host.simulator_host), 4, 1e-7);
}

TEST(a_thread_that_keeps_running_is_not_woken_again) {
    struct simulator_host_settings settings = {.cores = 2,
                                               .parallel_efficiency = 1,
                                               .threads = MAXIMUM,
                                               .idle_wakeup = 0.5};
    open_host(2, 1);
    simulator_host_close(&host.simulator_host);
    host.simulator_host = simulator_host_open(host.timeline, &settings);
    assert_non_null(host.simulator_host);
    for (int i = 0; i < MAXIMUM; i++)
        host.workers[i].thread.simulator_host = host.simulator_host;
    host.workers[0].more = 2;
    work(0, 1);
    work(1, 1);
    play();
    expect(0, 3.5);
    expect(1, 1.5);
    work(1, 1);
    play();
    expect(1, 5);
}

/* The third finds both cores busy: its 0.1 s of a turn, not 0.5 of a core. */
TEST(a_thread_without_an_idle_core_waits) {
    struct simulator_host_settings settings = {.cores = 2,
                                               .parallel_efficiency = 1,
                                               .threads = MAXIMUM,
                                               .idle_wakeup = 0.5,
                                               .busy_wakeup = 0.1};
    open_host(2, 1);
    simulator_host_close(&host.simulator_host);
    host.simulator_host = simulator_host_open(host.timeline, &settings);
    assert_non_null(host.simulator_host);
    for (int i = 0; i < MAXIMUM; i++)
        host.workers[i].thread.simulator_host = host.simulator_host;
    work(0, 5.5);
    work(1, 5.5);
    work(2, 1.9);
    play();
    expect(2, 3); /* at 2/3 of a core */
    expect(0, 7);
}

/* 3 threads with 1, 2 and 3 s on 2 cores: at 2/3 until 1.5 s, then alone. */
TEST(more_threads_than_cores_share_them_evenly) {
    open_host(2, 1);
    work(0, 1);
    work(1, 2);
    work(2, 3);
    play();
    expect(0, 1.5);
    expect(1, 2.5);
    expect(2, 3.5);
    assert_float_equal(simulator_host_busy(host.simulator_host), 6, 1e-7);
}

/* Both busy cores have 0.8 of the speed until the first thread ends at 1.25. */
TEST(busy_neighbours_slow_a_core_down) {
    open_host(2, 0.8);
    work(0, 1);
    work(1, 2);
    play();
    expect(0, 1.25);
    expect(1, 2.25);
}

TEST(a_thread_continues_with_its_next_work) {
    open_host(1, 1);
    host.workers[0].more = 2;
    work(0, 1);
    work(1, 0.5); /* half speed for both: ends at 1 */
    play();
    expect(1, 1);
    expect(0, 3.5);
}

TEST(no_work_takes_no_time) {
    open_host(1, 1);
    work(0, 1);
    work(1, 0);
    play();
    expect(1, 0);
    expect(0, 1);
}
