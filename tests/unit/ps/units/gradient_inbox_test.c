/* SPDX-License-Identifier: Apache-2.0 */
#include "ps/units/gradient_inbox.h"

#include "tests/lib/link_fixture.h"
#include "tests/lib/test.h"

enum { BLOCKS = 2, RANKS = 3 };

/* What a trainer pushes, as it comes to a ps. */
static struct gradient_payload *receive(struct link_fixture *fixture,
                                        struct gradient_inbox *inbox,
                                        const char *payload) {
    struct link_frame frame;
    link_fixture_send(fixture->client, 0, "push", payload);
    link_fixture_receive(fixture->server_link, &frame);
    struct gradient_payload *gradient_payload =
        gradient_inbox_receive(inbox, &frame);
    link_release(&frame);
    assert_non_null(gradient_payload);
    return gradient_payload;
}

FIXTURE(link_fixture_setup, link_fixture_teardown);

TEST(contributions_are_gathered_in_rank_order) {
    struct gradient_inbox *inbox = gradient_inbox_open(BLOCKS, RANKS, 0);
    const void *gradients[RANKS];
    uint32_t sizes[RANKS], ranks[RANKS];
    assert_non_null(inbox);
    link_fixture_connect(*state);
    for (uint32_t rank = RANKS; rank-- > 0;) {
        struct gradient_payload *payload = receive(*state, inbox, "01234567");
        const char *floats = gradient_inbox_payload(payload)->data;
        assert_int_equal(gradient_inbox_payload(payload)->size, 8);
        assert_memory_equal(floats, "01234567", 8);
        gradient_inbox_add(inbox, 0, rank, payload,
                           (struct link_bytes){floats, 8}, true);
        gradient_inbox_add(
            inbox, 1, rank, payload,
            (struct link_bytes){rank == 1 ? NULL : floats, rank == 1 ? 0 : 8},
            rank != 1);
        gradient_inbox_release(inbox, payload);
        assert_int_equal(
            gradient_inbox_gather(inbox, 0, gradients, sizes, ranks),
            RANKS - rank);
        assert_ptr_equal(gradients[0], floats);
    }
    assert_int_equal(gradient_inbox_gather(inbox, 1, gradients, sizes, ranks),
                     2);
    const uint32_t weights[RANKS] = {4, 8, 2};
    assert_int_equal(gradient_inbox_weight(inbox, 0, weights), 14);
    assert_int_equal(gradient_inbox_weight(inbox, 1, weights), 6);
    assert_int_equal(gradient_inbox_weight(inbox, 1, NULL), 2);
    gradient_inbox_close(&inbox);
    assert_null(inbox);
}

TEST(contributions_handed_over_are_not_gathered_again) {
    struct gradient_inbox *inbox = gradient_inbox_open(BLOCKS, RANKS, 0);
    struct gradient_payload *held[RANKS];
    const void *gradients[RANKS];
    uint32_t sizes[RANKS], ranks[RANKS];
    link_fixture_connect(*state);
    struct gradient_payload *payload = receive(*state, inbox, "abcd");
    const char *floats = gradient_inbox_payload(payload)->data;
    gradient_inbox_add(inbox, 0, 2, payload, (struct link_bytes){floats, 4},
                       true);
    gradient_inbox_add(inbox, 0, 0, payload, (struct link_bytes){NULL, 0},
                       false);
    gradient_inbox_release(inbox, payload);
    assert_int_equal(gradient_inbox_detach(inbox, 0, held), 2);
    assert_int_equal(gradient_inbox_gather(inbox, 0, gradients, sizes, ranks),
                     0);
    assert_int_equal(gradient_inbox_detach(inbox, 0, held + 2), 0);
    gradient_inbox_release(inbox, held[1]);
    assert_memory_equal(floats, "abcd", 4); /* until it is let go */
    gradient_inbox_release(inbox, held[0]);
    assert_ptr_equal(receive(*state, inbox, "used again"), held[0]);
    gradient_inbox_release(inbox, held[0]);
    gradient_inbox_close(&inbox);
}
