/* SPDX-License-Identifier: Apache-2.0 */
#include "ps/dense/parcels.h"

#include "tests/lib/wire_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

enum { BLOCKS = 2, RANKS = 3 };

/* What a trainer pushes, as it comes to a ps. */
static struct parcel *receive(struct wire_fixture *fixture,
                              struct parcels *parcels, const char *payload) {
    struct link_frame frame;
    wire_fixture_send(fixture->client, 0, "push", payload);
    wire_fixture_view(fixture->server, &frame);
    struct parcel *parcel = parcels_take(parcels, &frame);
    link_release(&frame);
    assert_non_null(parcel);
    return parcel;
}

static void contributions_are_gathered_in_rank_order(void **state) {
    struct parcels *parcels = parcels_open(BLOCKS, RANKS);
    const void *gradients[RANKS];
    assert_non_null(parcels);
    wire_fixture_connect(*state);
    for (uint32_t rank = RANKS; rank-- > 0;) {
        struct parcel *parcel = receive(*state, parcels, "01234567");
        const char *floats = parcels_payload(parcel)->data;
        assert_int_equal(parcels_payload(parcel)->size, 8);
        assert_memory_equal(floats, "01234567", 8);
        parcels_contribute(parcels, 0, rank, parcel, floats);
        parcels_contribute(parcels, 1, rank, parcel, rank == 1 ? NULL : floats);
        parcels_let_go(parcels, parcel);
        assert_int_equal(parcels_gather(parcels, 0, gradients), RANKS - rank);
        assert_ptr_equal(gradients[0], floats);
    }
    assert_int_equal(parcels_gather(parcels, 1, gradients), 2);
    const uint32_t weights[RANKS] = {4, 8, 2};
    assert_int_equal(parcels_weight(parcels, 0, weights), 14);
    assert_int_equal(parcels_weight(parcels, 1, weights), 6);
    assert_int_equal(parcels_weight(parcels, 1, NULL), 2);
    parcels_close(&parcels);
    assert_null(parcels);
}

static void what_is_handed_over_is_not_gathered_again(void **state) {
    struct parcels *parcels = parcels_open(BLOCKS, RANKS);
    struct parcel *held[RANKS];
    const void *gradients[RANKS];
    wire_fixture_connect(*state);
    struct parcel *parcel = receive(*state, parcels, "abcd");
    const char *floats = parcels_payload(parcel)->data;
    parcels_contribute(parcels, 0, 2, parcel, floats);
    parcels_contribute(parcels, 0, 0, parcel, NULL);
    parcels_let_go(parcels, parcel);
    assert_int_equal(parcels_hand_over(parcels, 0, held), 2);
    assert_int_equal(parcels_gather(parcels, 0, gradients), 0);
    assert_int_equal(parcels_hand_over(parcels, 0, held + 2), 0);
    parcels_let_go(parcels, held[1]);
    assert_memory_equal(floats, "abcd", 4); /* until it is let go */
    parcels_let_go(parcels, held[0]);
    assert_ptr_equal(receive(*state, parcels, "used again"), held[0]);
    parcels_let_go(parcels, held[0]);
    parcels_close(&parcels);
}

#define TEST(name)                                                             \
    cmocka_unit_test_setup_teardown(name, wire_fixture_setup,                  \
                                    wire_fixture_teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(contributions_are_gathered_in_rank_order),
        TEST(what_is_handed_over_is_not_gathered_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
