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

struct host {
    struct timeline *timeline;
    struct simulator_host *simulator_host;
    struct worker workers[MAXIMUM];
};

static void open_host(struct host *host, uint32_t cores,
                      double parallel_efficiency) {
    struct simulator_host_settings settings = {.cores = cores,
                                               .parallel_efficiency =
                                                   parallel_efficiency,
                                               .threads = MAXIMUM};
    *host = (struct host){.timeline = timeline_open()};
    assert_non_null(host->timeline);
    host->simulator_host = simulator_host_open(host->timeline, &settings);
    assert_non_null(host->simulator_host);
    for (int i = 0; i < MAXIMUM; i++) {
        host->workers[i].thread.simulator_host = host->simulator_host;
        host->workers[i].timeline = host->timeline;
    }
}

static void work(struct host *host, int worker, double seconds) {
    simulator_host_run(&host->workers[worker].thread, seconds, ended,
                       &host->workers[worker]);
}

static void play(struct host *host) {
    while (timeline_step(host->timeline))
        ;
}

static void close_host(struct host *host) {
    simulator_host_close(&host->simulator_host);
    simulator_host_close(&host->simulator_host);
    timeline_close(&host->timeline);
}

static void expect(const struct host *host, int worker, double seconds) {
    assert_float_equal(host->workers[worker].ended, seconds, 1e-7);
}

TEST(one_thread_per_core_runs_at_full_speed) {
    struct host host;
    open_host(&host, 2, 1);
    work(&host, 0, 1);
    work(&host, 1, 3);
    play(&host);
    expect(&host, 0, 1);
    expect(&host, 1, 3);
    assert_float_equal(simulator_host_busy(host.simulator_host), 4, 1e-7);
    close_host(&host);
}

TEST(a_thread_that_keeps_running_is_not_woken_again) {
    struct host host;
    struct simulator_host_settings settings = {.cores = 2,
                                               .parallel_efficiency = 1,
                                               .threads = MAXIMUM,
                                               .idle_wakeup = 0.5};
    open_host(&host, 2, 1);
    simulator_host_close(&host.simulator_host);
    host.simulator_host = simulator_host_open(host.timeline, &settings);
    assert_non_null(host.simulator_host);
    for (int i = 0; i < MAXIMUM; i++)
        host.workers[i].thread.simulator_host = host.simulator_host;
    host.workers[0].more = 2;
    work(&host, 0, 1);
    work(&host, 1, 1);
    play(&host);
    expect(&host, 0, 3.5);
    expect(&host, 1, 1.5);
    work(&host, 1, 1);
    play(&host);
    expect(&host, 1, 5);
    close_host(&host);
}

/* The third finds both cores busy: its 0.1 s of a turn, not 0.5 of a core. */
TEST(a_thread_without_an_idle_core_waits) {
    struct host host;
    struct simulator_host_settings settings = {.cores = 2,
                                               .parallel_efficiency = 1,
                                               .threads = MAXIMUM,
                                               .idle_wakeup = 0.5,
                                               .busy_wakeup = 0.1};
    open_host(&host, 2, 1);
    simulator_host_close(&host.simulator_host);
    host.simulator_host = simulator_host_open(host.timeline, &settings);
    assert_non_null(host.simulator_host);
    for (int i = 0; i < MAXIMUM; i++)
        host.workers[i].thread.simulator_host = host.simulator_host;
    work(&host, 0, 5.5);
    work(&host, 1, 5.5);
    work(&host, 2, 1.9);
    play(&host);
    expect(&host, 2, 3); /* at 2/3 of a core */
    expect(&host, 0, 7);
    close_host(&host);
}

/* 3 threads with 1, 2 and 3 s on 2 cores: at 2/3 until 1.5 s, then alone. */
TEST(more_threads_than_cores_share_them_evenly) {
    struct host host;
    open_host(&host, 2, 1);
    work(&host, 0, 1);
    work(&host, 1, 2);
    work(&host, 2, 3);
    play(&host);
    expect(&host, 0, 1.5);
    expect(&host, 1, 2.5);
    expect(&host, 2, 3.5);
    assert_float_equal(simulator_host_busy(host.simulator_host), 6, 1e-7);
    close_host(&host);
}

/* Both busy cores have 0.8 of the speed until the first thread ends at 1.25. */
TEST(busy_neighbours_slow_a_core_down) {
    struct host host;
    open_host(&host, 2, 0.8);
    work(&host, 0, 1);
    work(&host, 1, 2);
    play(&host);
    expect(&host, 0, 1.25);
    expect(&host, 1, 2.25);
    close_host(&host);
}

TEST(a_thread_continues_with_its_next_work) {
    struct host host;
    open_host(&host, 1, 1);
    host.workers[0].more = 2;
    work(&host, 0, 1);
    work(&host, 1, 0.5); /* half speed for both: ends at 1 */
    play(&host);
    expect(&host, 1, 1);
    expect(&host, 0, 3.5);
    close_host(&host);
}

TEST(no_work_takes_no_time) {
    struct host host;
    open_host(&host, 1, 1);
    work(&host, 0, 1);
    work(&host, 1, 0);
    play(&host);
    expect(&host, 1, 0);
    expect(&host, 0, 1);
    close_host(&host);
}
