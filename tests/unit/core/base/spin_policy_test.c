/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base/spin_policy.h"

#include "core/base/time.h"
#include "tests/lib/test.h"

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
TEST(with_all_cores_busy_none_is_spare) {
    static struct runner runners[MAXIMUM];
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    int count = cores < MAXIMUM ? (int)cores : MAXIMUM;
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

TEST(more_threads_than_cores_leave_no_spare_core) {
    int64_t now = time_now();
    struct spin_policy core = {.last_check = now, .known = true};
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    assert_true(spin_policy(&core, 1, now));
    assert_false(spin_policy(&core, (unsigned)cores + 1, now));
}

TEST(spare_cores_are_checked_every_20_ms) {
    int64_t now = time_now();
    struct spin_policy core = {.last_check = now, .known = true};
    assert_true(spin_policy(&core, 1, now + 19 * TIME_MS));
    assert_int_equal(core.last_check, now);
    (void)spin_policy(&core, 1, now + 20 * TIME_MS);
    assert_int_equal(core.last_check, now + 20 * TIME_MS);
}
