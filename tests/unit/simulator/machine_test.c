/* SPDX-License-Identifier: Apache-2.0 */
#include "simulator/machine.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

enum { MOST = 8 };

/* A thread that notes when its work is done. */
struct worker {
    struct machine_thread thread;
    struct agenda *agenda;
    double ended;
    double more; /* seconds of a second piece of work */
};

static void ended(void *context) {
    struct worker *worker = context;
    worker->ended = 1e-9 * (double)agenda_now(worker->agenda);
    double more = worker->more;
    worker->more = 0;
    if (more > 0)
        machine_run(&worker->thread, more, ended, worker);
}

struct shop {
    struct agenda *agenda;
    struct machine *machine;
    struct worker workers[MOST];
};

static void open_shop(struct shop *shop, uint32_t cores, double crowded) {
    struct machine_settings settings = {
        .cores = cores, .crowded = crowded, .threads = MOST};
    *shop = (struct shop){.agenda = agenda_open()};
    assert_non_null(shop->agenda);
    shop->machine = machine_open(shop->agenda, &settings);
    assert_non_null(shop->machine);
    for (int i = 0; i < MOST; i++) {
        shop->workers[i].thread.machine = shop->machine;
        shop->workers[i].agenda = shop->agenda;
    }
}

static void work(struct shop *shop, int worker, double seconds) {
    machine_run(&shop->workers[worker].thread, seconds, ended,
                &shop->workers[worker]);
}

static void play(struct shop *shop) {
    while (agenda_step(shop->agenda))
        ;
}

static void close_shop(struct shop *shop) {
    machine_close(&shop->machine);
    machine_close(&shop->machine);
    agenda_close(&shop->agenda);
}

static void expect(const struct shop *shop, int worker, double seconds) {
    assert_float_equal(shop->workers[worker].ended, seconds, 1e-7);
}

static void a_thread_to_a_core_runs_at_full_speed(void **state) {
    (void)state;
    struct shop shop;
    open_shop(&shop, 2, 1);
    work(&shop, 0, 1);
    work(&shop, 1, 3);
    play(&shop);
    expect(&shop, 0, 1);
    expect(&shop, 1, 3);
    assert_float_equal(machine_busy(shop.machine), 4, 1e-7);
    close_shop(&shop);
}

static void a_thread_that_goes_on_is_not_woken_again(void **state) {
    (void)state;
    struct shop shop;
    struct machine_settings settings = {
        .cores = 2, .crowded = 1, .threads = MOST, .wake = 0.5};
    open_shop(&shop, 2, 1);
    machine_close(&shop.machine);
    shop.machine = machine_open(shop.agenda, &settings);
    assert_non_null(shop.machine);
    for (int i = 0; i < MOST; i++)
        shop.workers[i].thread.machine = shop.machine;
    shop.workers[0].more = 2;
    work(&shop, 0, 1);
    work(&shop, 1, 1);
    play(&shop);
    expect(&shop, 0, 3.5);
    expect(&shop, 1, 1.5);
    work(&shop, 1, 1);
    play(&shop);
    expect(&shop, 1, 5);
    close_shop(&shop);
}

/* The third finds both cores busy: its 0.1 s of a turn, not 0.5 of a core. */
static void a_thread_that_finds_no_idle_core_waits_for_its_turn(void **state) {
    (void)state;
    struct shop shop;
    struct machine_settings settings = {
        .cores = 2, .crowded = 1, .threads = MOST, .wake = 0.5, .turn = 0.1};
    open_shop(&shop, 2, 1);
    machine_close(&shop.machine);
    shop.machine = machine_open(shop.agenda, &settings);
    assert_non_null(shop.machine);
    for (int i = 0; i < MOST; i++)
        shop.workers[i].thread.machine = shop.machine;
    work(&shop, 0, 5.5);
    work(&shop, 1, 5.5);
    work(&shop, 2, 1.9);
    play(&shop);
    expect(&shop, 2, 3); /* at 2/3 of a core */
    expect(&shop, 0, 7);
    close_shop(&shop);
}

/* 3 threads with 1, 2 and 3 s on 2 cores: at 2/3 until 1.5 s, then alone. */
static void more_threads_than_cores_share_them_evenly(void **state) {
    (void)state;
    struct shop shop;
    open_shop(&shop, 2, 1);
    work(&shop, 0, 1);
    work(&shop, 1, 2);
    work(&shop, 2, 3);
    play(&shop);
    expect(&shop, 0, 1.5);
    expect(&shop, 1, 2.5);
    expect(&shop, 2, 3.5);
    assert_float_equal(machine_busy(shop.machine), 6, 1e-7);
    close_shop(&shop);
}

/* Both busy cores have 0.8 of the speed until the first thread ends at 1.25. */
static void busy_neighbours_slow_a_core_down(void **state) {
    (void)state;
    struct shop shop;
    open_shop(&shop, 2, 0.8);
    work(&shop, 0, 1);
    work(&shop, 1, 2);
    play(&shop);
    expect(&shop, 0, 1.25);
    expect(&shop, 1, 2.25);
    close_shop(&shop);
}

static void a_thread_goes_on_with_its_next_work(void **state) {
    (void)state;
    struct shop shop;
    open_shop(&shop, 1, 1);
    shop.workers[0].more = 2;
    work(&shop, 0, 1);
    work(&shop, 1, 0.5); /* half speed for both: ends at 1 */
    play(&shop);
    expect(&shop, 1, 1);
    expect(&shop, 0, 3.5);
    close_shop(&shop);
}

static void no_work_takes_no_time(void **state) {
    (void)state;
    struct shop shop;
    open_shop(&shop, 1, 1);
    work(&shop, 0, 1);
    work(&shop, 1, 0);
    play(&shop);
    expect(&shop, 1, 0);
    expect(&shop, 0, 1);
    close_shop(&shop);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_thread_to_a_core_runs_at_full_speed),
        cmocka_unit_test(a_thread_that_goes_on_is_not_woken_again),
        cmocka_unit_test(a_thread_that_finds_no_idle_core_waits_for_its_turn),
        cmocka_unit_test(more_threads_than_cores_share_them_evenly),
        cmocka_unit_test(busy_neighbours_slow_a_core_down),
        cmocka_unit_test(a_thread_goes_on_with_its_next_work),
        cmocka_unit_test(no_work_takes_no_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
