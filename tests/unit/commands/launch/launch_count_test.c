/* SPDX-License-Identifier: Apache-2.0 */
#include "commands/launch/launch.h"

#include "tests/lib/test.h"

#include <sched.h>

static enum status fill(enum launch_nproc nproc_kind, uint32_t *count,
                        struct failure *why) {
    struct launch_world world = {.nproc_kind = nproc_kind,
                                 .nproc_per_node = *count};
    struct log log;
    log_open(&log, "test", -1);
    enum status status = launch_count_fill(&world, &log, why);
    *count = world.nproc_per_node;
    return status;
}

TEST(a_number_is_used_as_given) {
    uint32_t count = 3;
    assert_ok(fill(LAUNCH_NPROC_NUMBER, &count, &failure));
    assert_int_equal(count, 3);
}

/* There is no plugin beside a test, and so no GPU. */
TEST(processors_are_those_of_the_affinity_mask) {
    cpu_set_t before, one;
    uint32_t count = 0;
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    assert_ok(fill(LAUNCH_NPROC_CPU, &count, &failure));
    assert_int_equal(count, CPU_COUNT(&before));
    CPU_ZERO(&one);
    for (int c = 0; !CPU_COUNT(&one); c++)
        if (CPU_ISSET(c, &before))
            CPU_SET(c, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    assert_ok(fill(LAUNCH_NPROC_AUTO, &count, &failure));
    assert_int_equal(count, 1);
    assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
}

TEST(without_a_gpu_the_count_is_zero) {
    uint32_t count = 0;
    assert_error(fill(LAUNCH_NPROC_GPU, &count, &failure), FAILURE_NO_DEVICE);
    assert_contains(failure.text, "--nproc_per_node is gpu");
}
