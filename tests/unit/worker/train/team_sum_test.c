/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/train/team_sum.h"

#include "tests/gpu/fake_nccl.h"
#include "tests/lib/team_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

/* Two layers of more than a million values: two pieces. */
static const uint32_t widths[] = {1030, 1030, 1030, 10, 0};
enum {
    ELEMENTS = 2 * (1030 * 1030 + 1030) + 1030 * 10 + 10,
    PARAMETERS = 6,
    REPLICAS = 3
};

static void begin(struct team_fixture *fixture,
                  const struct fake_device_plan *gpus,
                  const struct collective_ops *nccl) {
    struct failure why;
    team_fixture_open(fixture, widths);
    if (team_fixture_begin(fixture, gpus, nccl, REPLICAS, &why))
        fail_msg("%s", why.text);
    team_fixture_load(fixture, 0, REPLICAS);
}

static void pieces_are_added_as_parameters_are(void **state) {
    const struct collective_ops *const by[] = {NULL, fake_nccl_ops()};
    struct fake_device_plan gpus = {.order = FAKE_DEVICE_RANDOM,
                                    .devices = REPLICAS};
    float *expected = malloc(ELEMENTS * sizeof *expected);
    float *found = malloc(ELEMENTS * sizeof *found);
    struct replica_result result;
    struct failure why;
    (void)state;
    assert_true(expected && found);
    team_fixture_expect(widths, REPLICAS, 2, expected, &result);
    for (int i = 0; i < 2; i++) {
        struct team_fixture fixture;
        begin(&fixture, &gpus, by[i]);
        for (int step = 0; step < 2; step++) {
            assert_int_equal(team_fixture_compute(&fixture, &result, &why),
                             STATUS_OK);
            assert_int_equal(team_fixture_gather(&fixture, true, &why),
                             STATUS_OK);
            assert_int_equal(fixture.num_said, PARAMETERS);
            for (uint32_t p = 0; p < PARAMETERS; p++)
                assert_int_equal(fixture.said[p], PARAMETERS - 1 - p);
        }
        team_fixture_gradients(&fixture, found);
        assert_memory_equal(found, expected, ELEMENTS * sizeof *found);
        team_fixture_close(&fixture);
    }
    free(expected);
    free(found);
}

/* In the first piece or the second; the others are not left waiting. */
static void a_sum_that_fails_is_told(void **state) {
    static const char *const calls[] = {"nccl=1", "nccl=2"};
    (void)state;
    for (uint32_t i = 0; i < 2; i++) {
        struct fake_device_plan gpus = {.devices = REPLICAS};
        struct team_fixture fixture;
        struct replica_result result;
        struct failure why;
        setenv("CAPSTAN_FAKE_DEVICE", calls[i], 1);
        begin(&fixture, &gpus, fake_nccl_ops());
        unsetenv("CAPSTAN_FAKE_DEVICE");
        assert_int_equal(team_fixture_compute(&fixture, &result, &why),
                         STATUS_OK);
        assert_int_equal(team_fixture_gather(&fixture, true, &why),
                         STATUS_RETRY);
        assert_string_equal(why.text, "nccl: lost, as arranged");
        assert_true(fixture.num_said < PARAMETERS);
        team_fixture_close(&fixture);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_are_added_as_parameters_are),
        cmocka_unit_test(a_sum_that_fails_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
