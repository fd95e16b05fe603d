/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/messages/rejoin.h"

#include "tests/lib/test.h"

static struct rejoin rejoin;
static struct channel member_channel;

static int setup(void **state) {
    (void)state;
    rejoin = (struct rejoin){0};
    member_channel = (struct channel){0};
    return 0;
}

static int teardown(void **state) {
    (void)state;
    rejoin_clear(&rejoin);
    channel_close(&member_channel);
    return 0;
}

FIXTURE(setup, teardown);

static void send_control(Capstan__Control *control) {
    rejoin_note_sent(&rejoin, control);
    assert_true(channel_put(&member_channel, control));
}

static void send_report(uint64_t id) {
    Capstan__SnapshotReport report = CAPSTAN__SNAPSHOT_REPORT__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    report.id = id;
    control.body_case = CAPSTAN__CONTROL__BODY_SNAPSHOT_REPORT;
    control.snapshot_report = &report;
    send_control(&control);
}

static void send_sums(uint64_t round) {
    Capstan__SquareSums sums = CAPSTAN__SQUARE_SUMS__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    sums.round = round;
    control.body_case = CAPSTAN__CONTROL__BODY_SQUARE_SUMS;
    control.square_sums = &sums;
    send_control(&control);
}

static void send_points(void) {
    Capstan__Points points = CAPSTAN__POINTS__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    control.body_case = CAPSTAN__CONTROL__BODY_POINTS;
    control.points = &points;
    send_control(&control);
}

static void send_evaluated_step(uint64_t step) {
    Capstan__Evaluated evaluated = CAPSTAN__EVALUATED__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    evaluated.step = step;
    control.body_case = CAPSTAN__CONTROL__BODY_EVALUATED;
    control.evaluated = &evaluated;
    send_control(&control);
}

static void receive_retain(uint64_t step) {
    Capstan__Retain retain = CAPSTAN__RETAIN__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    retain.n_steps = 1;
    retain.steps = &step;
    control.body_case = CAPSTAN__CONTROL__BODY_RETAIN;
    control.retain = &retain;
    rejoin_note_received(&rejoin, &control);
}

static void begin_again(uint64_t saved) {
    Capstan__Adopted adopted = CAPSTAN__ADOPTED__INIT;
    adopted.term = 1;
    adopted.saved = saved;
    assert_true(rejoin_begin_channel(&rejoin, &adopted, &member_channel));
    assert_int_equal(rejoin.term, 1);
}

/* The next message of the channel, numbered from 1; the caller frees it. */
static Capstan__Control *take_next(uint64_t seq) {
    const struct channel_entry *entry = channel_next(&member_channel, 0, 1);
    assert_non_null(entry);
    Capstan__Control *control =
        capstan__control__unpack(NULL, entry->size, entry->bytes);
    assert_non_null(control);
    assert_int_equal(control->seq, seq);
    return control;
}

static void expect_report(uint64_t seq, uint64_t id) {
    Capstan__Control *control = take_next(seq);
    assert_int_equal(control->body_case,
                     CAPSTAN__CONTROL__BODY_SNAPSHOT_REPORT);
    assert_int_equal(control->snapshot_report->id, id);
    message_free_control(&control);
}

/* Whether the chief that is gone had them or not. */
TEST(parts_of_checkpoints_without_a_manifest_are_sent_again) {
    for (uint64_t id = 10; id <= 50; id += 10)
        send_report(id);
    send_report(MESSAGE_REQUESTED_SNAPSHOT + 1);
    channel_acknowledge(&member_channel, 4);
    receive_retain(20);
    begin_again(30);
    expect_report(1, 40);
    expect_report(2, 50);
    assert_null(channel_next(&member_channel, 0, 1));
}

TEST(of_many_parts_the_newest_are_kept) {
    for (uint64_t id = 1; id <= REJOIN_REPORTS + 2; id++)
        send_report(id);
    begin_again(0);
    for (uint64_t i = 1; i <= REJOIN_REPORTS; i++)
        expect_report(i, i + 2);
    assert_null(channel_next(&member_channel, 0, 1));
}

/* A round waits for them, and may have been told to the other ps alone. */
TEST(the_last_square_sums_are_sent_again) {
    send_sums(7);
    send_sums(8);
    channel_acknowledge(&member_channel, 2);
    begin_again(0);
    Capstan__Control *control = take_next(1);
    assert_int_equal(control->square_sums->round, 8);
    message_free_control(&control);
    assert_null(channel_next(&member_channel, 0, 1));
}

TEST(what_was_not_acknowledged_is_sent_again) {
    send_evaluated_step(5);
    send_evaluated_step(6);
    send_points();
    channel_acknowledge(&member_channel, 1);
    begin_again(0);
    Capstan__Control *control = take_next(1);
    assert_int_equal(control->evaluated->step, 6);
    message_free_control(&control);
    control = take_next(2);
    assert_int_equal(control->body_case, CAPSTAN__CONTROL__BODY_POINTS);
    message_free_control(&control);
    assert_null(channel_next(&member_channel, 0, 1));
}

/* Those who come in later share devices with it. */
TEST(the_next_chief_is_sent_the_devices_that_it_sees) {
    char *ids[] = {"a"};
    Capstan__VisibleDevices visible_devices = CAPSTAN__VISIBLE_DEVICES__INIT;
    Capstan__Heartbeat heartbeat = CAPSTAN__HEARTBEAT__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    Capstan__Rejoin message;
    rejoin_fill(&rejoin, &heartbeat, &message);
    assert_null(message.visible_devices);
    visible_devices.devices = ids;
    visible_devices.n_devices = 1;
    control.body_case = CAPSTAN__CONTROL__BODY_VISIBLE_DEVICES;
    control.visible_devices = &visible_devices;
    send_control(&control);
    rejoin_fill(&rejoin, &heartbeat, &message);
    assert_non_null(message.visible_devices);
    assert_string_equal(message.visible_devices->devices[0], "a");
}
