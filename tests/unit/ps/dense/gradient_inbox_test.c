/* SPDX-License-Identifier: Apache-2.0 */
#include "ps/dense/gradient_inbox.h"

#include "tests/lib/link_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

enum { BLOCKS = 2, RANKS = 3 };

/* What a trainer pushes, as it comes to a ps. */
static struct gradient_payload *receive(struct link_fixture *fixture,
                                        struct gradient_inbox *gradient_inbox,
                                        const char *payload) {
    struct link_frame frame;
    link_fixture_send(fixture->client, 0, "push", payload);
    link_fixture_receive(fixture->server_link, &frame);
    struct gradient_payload *gradient_payload =
        gradient_inbox_receive(gradient_inbox, &frame);
    link_release(&frame);
    assert_non_null(gradient_payload);
    return gradient_payload;
}

static void contributions_are_gathered_in_rank_order(void **state) {
    struct gradient_inbox *gradient_inbox = gradient_inbox_open(BLOCKS, RANKS);
    const void *gradients[RANKS];
    assert_non_null(gradient_inbox);
    link_fixture_connect(*state);
    for (uint32_t rank = RANKS; rank-- > 0;) {
        struct gradient_payload *gradient_payload =
            receive(*state, gradient_inbox, "01234567");
        const char *floats = gradient_inbox_payload(gradient_payload)->data;
        assert_int_equal(gradient_inbox_payload(gradient_payload)->size, 8);
        assert_memory_equal(floats, "01234567", 8);
        gradient_inbox_add(gradient_inbox, 0, rank, gradient_payload, floats);
        gradient_inbox_add(gradient_inbox, 1, rank, gradient_payload,
                           rank == 1 ? NULL : floats);
        gradient_inbox_release(gradient_inbox, gradient_payload);
        assert_int_equal(gradient_inbox_gather(gradient_inbox, 0, gradients),
                         RANKS - rank);
        assert_ptr_equal(gradients[0], floats);
    }
    assert_int_equal(gradient_inbox_gather(gradient_inbox, 1, gradients), 2);
    const uint32_t weights[RANKS] = {4, 8, 2};
    assert_int_equal(gradient_inbox_weight(gradient_inbox, 0, weights), 14);
    assert_int_equal(gradient_inbox_weight(gradient_inbox, 1, weights), 6);
    assert_int_equal(gradient_inbox_weight(gradient_inbox, 1, NULL), 2);
    gradient_inbox_close(&gradient_inbox);
    assert_null(gradient_inbox);
}

static void contributions_handed_over_are_not_gathered_again(void **state) {
    struct gradient_inbox *gradient_inbox = gradient_inbox_open(BLOCKS, RANKS);
    struct gradient_payload *held[RANKS];
    const void *gradients[RANKS];
    link_fixture_connect(*state);
    struct gradient_payload *gradient_payload =
        receive(*state, gradient_inbox, "abcd");
    const char *floats = gradient_inbox_payload(gradient_payload)->data;
    gradient_inbox_add(gradient_inbox, 0, 2, gradient_payload, floats);
    gradient_inbox_add(gradient_inbox, 0, 0, gradient_payload, NULL);
    gradient_inbox_release(gradient_inbox, gradient_payload);
    assert_int_equal(gradient_inbox_detach(gradient_inbox, 0, held), 2);
    assert_int_equal(gradient_inbox_gather(gradient_inbox, 0, gradients), 0);
    assert_int_equal(gradient_inbox_detach(gradient_inbox, 0, held + 2), 0);
    gradient_inbox_release(gradient_inbox, held[1]);
    assert_memory_equal(floats, "abcd", 4); /* until it is let go */
    gradient_inbox_release(gradient_inbox, held[0]);
    assert_ptr_equal(receive(*state, gradient_inbox, "used again"), held[0]);
    gradient_inbox_release(gradient_inbox, held[0]);
    gradient_inbox_close(&gradient_inbox);
}

#define TEST(name)                                                             \
    cmocka_unit_test_setup_teardown(name, link_fixture_setup,                  \
                                    link_fixture_teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(contributions_are_gathered_in_rank_order),
        TEST(contributions_handed_over_are_not_gathered_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
