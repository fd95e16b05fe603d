/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/base/spin_policy.h"

#include "proto/base/time.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

enum { MAXIMUM = 256 };

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
static void with_all_cores_busy_none_is_spare(void **state) {
    static struct runner runners[MAXIMUM];
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    int count = cores < MAXIMUM ? (int)cores : MAXIMUM;
    (void)state;
    for (int i = 0; i < count; i++) {
        assert_int_equal(
            pthread_create(&runners[i].thread, NULL, run, &runners[i]), 0);
        while (!atomic_load(&runners[i].began))
            ;
    }
    struct spin_policy core = {0};
    int64_t now = time_now();
    for (int look = 0; look < 2; look++) /* this thread runs too */
        (void)spin_policy(&core, 1, now += 20 * TIME_MS);
    assert_false(spin_policy(&core, 1, now + 20 * TIME_MS));
    for (int i = 0; i < count; i++) {
        atomic_store(&runners[i].stop, true);
        pthread_join(runners[i].thread, NULL);
    }
}

static void more_threads_than_cores_leave_no_spare_core(void **state) {
    int64_t now = time_now();
    struct spin_policy core = {.last_check = now, .known = true};
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    (void)state;
    assert_true(spin_policy(&core, 1, now));
    assert_false(spin_policy(&core, (unsigned)cores + 1, now));
}

static void spare_cores_are_checked_every_20_ms(void **state) {
    int64_t now = time_now();
    struct spin_policy core = {.last_check = now, .known = true};
    (void)state;
    assert_true(spin_policy(&core, 1, now + 19 * TIME_MS));
    assert_int_equal(core.last_check, now);
    (void)spin_policy(&core, 1, now + 20 * TIME_MS);
    assert_int_equal(core.last_check, now + 20 * TIME_MS);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(with_all_cores_busy_none_is_spare),
        cmocka_unit_test(more_threads_than_cores_leave_no_spare_core),
        cmocka_unit_test(spare_cores_are_checked_every_20_ms),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
