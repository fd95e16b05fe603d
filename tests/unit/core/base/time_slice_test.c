/* SPDX-License-Identifier: Apache-2.0 */

#include "core/base/time.h"
#include "tests/lib/skip.h"
#include "tests/lib/test.h"

#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The calling thread's slice in ns, as the kernel says; 0: it does not. */
static uint64_t slice(void) {
    struct {
        uint32_t size, policy;
        uint64_t flags;
        int32_t nice;
        uint32_t priority;
        uint64_t runtime, deadline, period;
    } attributes;
    memset(&attributes, 0, sizeof attributes);
    if (syscall(SYS_sched_getattr, 0, &attributes, sizeof attributes, 0) ||
        attributes.policy != SCHED_OTHER)
        return 0;
    return attributes.runtime;
}

static void *reset(void *inherited) {
    *(uint64_t *)inherited = slice();
    time_slice_set(0);
    return (void *)(uintptr_t)slice();
}

TEST(a_slice_is_of_a_thread_and_of_those_it_starts) {
    uint64_t before = slice(), inherited;
    pthread_t thread;
    void *own;
    if (!before)
        skip_test("this kernel does not say what a thread's slice is");
    time_slice_set(TIME_MS / 5);
    assert_int_equal(slice(), TIME_MS / 5);
    assert_int_equal(pthread_create(&thread, NULL, reset, &inherited), 0);
    assert_int_equal(pthread_join(thread, &own), 0);
    assert_int_equal(inherited, TIME_MS / 5);
    assert_int_equal((uintptr_t)own, before);
    assert_int_equal(slice(), TIME_MS / 5);
    time_slice_set(0);
    assert_int_equal(slice(), before);
}
