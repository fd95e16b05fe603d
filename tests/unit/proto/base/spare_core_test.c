/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/base/spare_core.h"

#include "proto/base/time.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

enum { MOST = 256 };

/* A thread that runs until it is told to stop. */
struct runner {
    pthread_t thread;
    atomic_bool stop, began;
};

static void *run(void *argument) {
    struct runner *runner = argument;
    atomic_store(&runner->began, true);
    while (!atomic_load(&runner->stop))
        ;
    return NULL;
}

/* More threads run than there are cores. */
static void with_all_cores_taken_none_is_spare(void **state) {
    static struct runner runners[MOST];
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    int count = cores < MOST ? (int)cores : MOST;
    (void)state;
    for (int i = 0; i < count; i++) {
        assert_int_equal(
            pthread_create(&runners[i].thread, NULL, run, &runners[i]), 0);
        while (!atomic_load(&runners[i].began))
            ;
    }
    struct spare_core core = {0};
    int64_t now = time_now();
    for (int look = 0; look < 2; look++) /* this thread runs too */
        (void)spare_core(&core, 1, now += 20 * TIME_MS);
    assert_false(spare_core(&core, 1, now + 20 * TIME_MS));
    for (int i = 0; i < count; i++) {
        atomic_store(&runners[i].stop, true);
        pthread_join(runners[i].thread, NULL);
    }
}

static void who_wants_more_cores_than_there_are_has_none(void **state) {
    int64_t now = time_now();
    struct spare_core core = {.looked = now, .known = true};
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    (void)state;
    assert_true(spare_core(&core, 1, now));
    assert_false(spare_core(&core, (unsigned)cores + 1, now));
}

static void it_looks_each_20_ms(void **state) {
    int64_t now = time_now();
    struct spare_core core = {.looked = now, .known = true};
    (void)state;
    assert_true(spare_core(&core, 1, now + 19 * TIME_MS));
    assert_int_equal(core.looked, now);
    (void)spare_core(&core, 1, now + 20 * TIME_MS);
    assert_int_equal(core.looked, now + 20 * TIME_MS);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(with_all_cores_taken_none_is_spare),
        cmocka_unit_test(who_wants_more_cores_than_there_are_has_none),
        cmocka_unit_test(it_looks_each_20_ms),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
