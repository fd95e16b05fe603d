/* SPDX-License-Identifier: Apache-2.0 */
/* For how long a ps is out of reach, by when its connections come and end and
 * which of its answers do. */
#include "worker/exchange/client/client_internal.h"

#include "tests/lib/test.h"

static const int64_t LIMIT = 10 * TIME_S, BEGIN = 100 * TIME_S;

/* The seconds of PEER's loss SECONDS after the beginning, when it has a
 * connection or is LOST, and RECEIVED blocks have come. */
static double follow(struct client_peer *peer, double seconds, bool lost,
                     uint64_t received) {
    int64_t now = BEGIN + time_from_seconds(seconds);
    client_follow_peer(peer, lost ? now - TIME_S : 0, received, LIMIT, now);
    return (double)client_peer_lost_for(peer, now) / (double)TIME_S;
}

/* As of a path that drops large packets: each lasts 4 s. */
TEST(connections_that_end_without_an_answer_are_one_loss) {
    struct client_peer peer = {0};
    assert_true(follow(&peer, 0, false, 5) == 0);
    assert_true(follow(&peer, 4, true, 5) == 1);
    for (int at = 8; at <= 16; at += 4) {
        (void)follow(&peer, at - 3.9, false, 5);
        assert_true(follow(&peer, at, true, 5) == at - 3);
    }
    (void)follow(&peer, 16.1, false, 5);
    assert_true(follow(&peer, 18, false, 5) == 15);
}

TEST(an_answer_makes_a_loss_good) {
    struct client_peer peer = {0};
    for (int at = 4; at <= 8; at += 4) {
        (void)follow(&peer, at, true, 5);
        (void)follow(&peer, at + 0.1, false, 5);
    }
    assert_true(follow(&peer, 9, false, 6) == 0);
    assert_true(follow(&peer, 20, false, 6) == 0);
    assert_true(follow(&peer, 24, true, 6) == 1);
}

TEST(a_ps_that_is_silent_after_a_cut_is_not_lost) {
    struct client_peer peer = {0};
    (void)follow(&peer, 3, true, 5);
    for (double at = 6; at < 16; at += 0.5)
        assert_true(follow(&peer, at, false, 5) == 4);
    assert_true(follow(&peer, 16, false, 5) == 0);
}

/* What came by the connection before the loss makes nothing good. */
TEST(an_answer_before_a_loss_does_not_count) {
    struct client_peer peer = {0};
    (void)follow(&peer, 0, false, 5);
    assert_true(follow(&peer, 3, true, 6) == 1);
    assert_true(follow(&peer, 5, true, 6) == 3);
    assert_true(follow(&peer, 6, false, 6) == 4);
}
