/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/train/local_group.h"

#include "tests/lib/assert_fails.h"
#include "tests/lib/collective_fixture.h"
#include "tests/lib/local_group_fixture.h"
#include "tests/lib/test.h"

#include <stdlib.h>
#include <string.h>

/* Two layers of more than a million values: two pieces. */
static const uint32_t widths[] = {1030, 1030, 1030, 10, 0};
enum {
    ELEMENTS = 2 * (1030 * 1030 + 1030) + 1030 * 10 + 10,
    PARAMETERS = 6,
    REPLICAS = 3
};

static void begin(struct local_group_fixture *fixture,
                  const struct fake_device_settings *gpus,
                  const struct collective_ops *nccl) {
    struct failure why;
    local_group_fixture_open(fixture, widths);
    if (local_group_fixture_begin(fixture, gpus, nccl, REPLICAS, &why))
        fail_msg("%s", why.text);
    local_group_fixture_load(fixture, 0, REPLICAS);
}

TEST(pieces_are_added_as_parameters_are) {
    const struct collective_ops *const by[] = {NULL,
                                               &collective_fixture_device_ops};
    struct fake_device_settings gpus = {.order = FAKE_DEVICE_RANDOM,
                                        .devices = REPLICAS};
    float *expected = malloc(ELEMENTS * sizeof *expected);
    float *found = malloc(ELEMENTS * sizeof *found);
    struct device_replica_result result;
    struct failure why;
    assert_true(expected && found);
    local_group_fixture_expect(widths, REPLICAS, 2, expected, &result);
    for (int i = 0; i < 2; i++) {
        struct local_group_fixture fixture;
        begin(&fixture, &gpus, by[i]);
        for (int step = 0; step < 2; step++) {
            assert_int_equal(
                local_group_fixture_compute(&fixture, &result, &why),
                STATUS_OK);
            assert_int_equal(local_group_fixture_gather(&fixture, true, &why),
                             STATUS_OK);
            assert_int_equal(fixture.num_announced, PARAMETERS);
            for (uint32_t p = 0; p < PARAMETERS; p++)
                assert_int_equal(fixture.said[p], PARAMETERS - 1 - p);
        }
        local_group_fixture_gradients(&fixture, found);
        assert_memory_equal(found, expected, ELEMENTS * sizeof *found);
        local_group_fixture_close(&fixture);
    }
    free(expected);
    free(found);
}

/* In the first piece or the second, of the first device or another; the others
 * are not left waiting. */
TEST(a_failed_sum_is_reported) {
    for (uint32_t i = 0; i < 4; i++) {
        struct fake_device_settings gpus = {.devices = REPLICAS};
        struct local_group_fixture fixture;
        struct device_replica_result result;
        struct failure why;
        collective_fixture_arrange(false, i / 2, 1 + i % 2);
        begin(&fixture, &gpus, &collective_fixture_device_ops);
        collective_fixture_arrange(false, 0, 0);
        assert_int_equal(local_group_fixture_compute(&fixture, &result, &why),
                         STATUS_OK);
        assert_fails(local_group_fixture_gather(&fixture, true, &why), &why,
                     FAILURE_PEER_LOST);
        assert_true(fixture.num_announced < PARAMETERS);
        local_group_fixture_close(&fixture);
    }
}
