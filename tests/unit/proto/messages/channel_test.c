/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/messages/channel.h"

#include "tests/lib/seed.h"
#include "tests/lib/test.h"

#include <string.h>

enum { RESEND = 100 };

/* Message NUMBER, told by its acknowledged field. */
static void put(struct channel *channel, uint64_t number) {
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    control.ack = number;
    assert_true(channel_put(channel, &control));
}

static Capstan__Control unpack(const struct channel_entry *entry) {
    Capstan__Control *control =
        capstan__control__unpack(NULL, entry->size, entry->bytes);
    assert_non_null(control);
    Capstan__Control copy = *control;
    capstan__control__free_unpacked(control, NULL);
    return copy;
}

TEST(messages_are_numbered_from_one_in_order) {
    struct channel channel = {0};
    for (uint64_t n = 1; n <= 5; n++)
        put(&channel, 10 * n);
    for (uint64_t n = 1; n <= 5; n++) {
        const struct channel_entry *entry = channel_next(&channel, 0, RESEND);
        assert_int_equal(entry->seq, n);
        assert_int_equal(unpack(entry).seq, n);
        assert_int_equal(unpack(entry).ack, 10 * n);
    }
    assert_null(channel_next(&channel, 0, RESEND));
    channel_close(&channel);
    assert_true(channel_empty(&channel));
}

TEST(unacknowledged_messages_are_resent) {
    struct channel channel = {0};
    put(&channel, 1);
    put(&channel, 2);
    assert_int_equal(channel_next(&channel, 50, RESEND)->seq, 1);
    assert_int_equal(channel_next(&channel, 60, RESEND)->seq, 2);
    assert_null(channel_next(&channel, 149, RESEND));
    assert_int_equal(channel_next(&channel, 150, RESEND)->seq, 1);
    channel_acknowledge(&channel, 1);
    assert_int_equal(channel_next(&channel, 160, RESEND)->seq, 2);
    assert_null(channel_next(&channel, 160, RESEND));
    channel_acknowledge(&channel, 2);
    assert_true(channel_empty(&channel));
    assert_null(channel_next(&channel, 1000, RESEND));
}

TEST(a_message_that_failed_to_send_is_due_at_once) {
    struct channel channel = {0};
    put(&channel, 1);
    put(&channel, 2);
    const struct channel_entry *entry = channel_next(&channel, 0, RESEND);
    channel_unsent(entry);
    assert_ptr_equal(channel_next(&channel, 0, RESEND), entry);
    channel_close(&channel);
}

TEST(an_ack_beyond_the_last_sent_acknowledges_all) {
    struct channel channel = {0};
    put(&channel, 1);
    channel_acknowledge(&channel, UINT64_MAX);
    assert_true(channel_empty(&channel));
    put(&channel, 2);
    assert_int_equal(channel_next(&channel, 0, RESEND)->seq, 2);
    channel_acknowledge(&channel, 0);
    assert_false(channel_empty(&channel));
    channel_close(&channel);
}

TEST(only_the_next_in_order_is_accepted) {
    struct channel channel = {0};
    assert_false(channel_accept(&channel, 0));
    assert_false(channel_accept(&channel, 2));
    assert_true(channel_accept(&channel, 1));
    assert_false(channel_accept(&channel, 1));
    assert_true(channel_accept(&channel, 2));
    assert_int_equal(channel.received, 2);
    assert_false(channel_accept(&channel, UINT64_MAX));
}

enum { WIRE = 64 };

/* What is on its way, in any order, lost or twice. */
struct wire {
    uint64_t seqs[WIRE], acks[WIRE];
    unsigned count;
};

static uint64_t pick(struct wire *wire, uint64_t *from,
                     struct philox_sequence *random) {
    unsigned at = philox_below(random, wire->count);
    uint64_t value = from[at];
    if (philox_below(random, 4)) /* else it comes once more */
        from[at] = from[--wire->count];
    return value;
}

static void put_on(struct wire *wire, uint64_t *to, uint64_t value,
                   struct philox_sequence *random) {
    if (wire->count < WIRE && philox_below(random, 3)) /* else lost */
        to[wire->count++] = value;
}

TEST(all_messages_arrive_once_in_order_over_any_network) {
    struct philox_sequence random;
    seed_open(&random);
    for (int history = 0; history < 200; history++) {
        struct channel from = {0}, to = {0};
        struct wire out = {.count = 0}, back = {.count = 0};
        uint64_t sent = 0, received = 0;
        for (int64_t now = 0; now < 100000 && (sent < 40 || received < sent ||
                                               !channel_empty(&from));
             now += 10) {
            if (sent < 40 && !philox_below(&random, 3))
                put(&from, ++sent);
            const struct channel_entry *entry =
                channel_next(&from, now, RESEND);
            if (entry)
                put_on(&out, out.seqs, entry->seq, &random);
            if (out.count && channel_accept(&to, pick(&out, out.seqs, &random)))
                received++;
            assert_int_equal(to.received, received);
            put_on(&back, back.acks, to.received, &random);
            if (back.count)
                channel_acknowledge(&from, pick(&back, back.acks, &random));
        }
        assert_int_equal(received, 40);
        assert_true(channel_empty(&from));
        channel_close(&from);
    }
}
