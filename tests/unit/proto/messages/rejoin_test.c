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

/* With the steps of a trainer's kept state; 0: it begins to keep something. */
static void send_kept(uint64_t step, bool copy) {
    Capstan__Kept kept = CAPSTAN__KEPT__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    kept.step = step;
    kept.lead = step > 0;
    kept.copy = copy;
    control.body_case = CAPSTAN__CONTROL__BODY_KEPT;
    control.kept = &kept;
    send_control(&control);
}

static void send_epoch(uint64_t number) {
    Capstan__Epoch epoch = CAPSTAN__EPOCH__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    epoch.number = number;
    epoch.step = 10 * number;
    control.body_case = CAPSTAN__CONTROL__BODY_EPOCH;
    control.epoch = &epoch;
    send_control(&control);
}

static Capstan__Control of_rendezvous(Capstan__Rendezvous *message, char *key) {
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    capstan__rendezvous__init(message);
    message->key = key;
    control.body_case = CAPSTAN__CONTROL__BODY_RENDEZVOUS;
    control.rendezvous = message;
    return control;
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

static void expect_kept(uint64_t seq, uint64_t step) {
    Capstan__Control *control = take_next(seq);
    assert_int_equal(control->body_case, CAPSTAN__CONTROL__BODY_KEPT);
    assert_int_equal(control->kept->step, step);
    message_free_control(&control);
}

static void expect_keeps(bool keeps, bool leads) {
    Capstan__Heartbeat heartbeat = CAPSTAN__HEARTBEAT__INIT;
    Capstan__Rejoin message;
    rejoin_fill(&rejoin, &heartbeat, &message);
    assert_int_equal(message.keeps, keeps);
    assert_int_equal(message.leads, leads);
}

/* The next chief awaits it at each checkpoint, from the first on. */
TEST(what_a_trainer_keeps_is_sent_again_until_its_checkpoint_is_complete) {
    expect_keeps(false, false);
    send_kept(0, false);
    expect_keeps(true, false);
    for (uint64_t step = 10; step <= 40; step += 10)
        send_kept(step, false);
    send_kept(45, true);
    expect_keeps(true, true);
    channel_acknowledge(&member_channel, 4);
    receive_retain(10);
    begin_again(20);
    expect_kept(1, 30);
    expect_kept(2, 40);
    assert_null(channel_next(&member_channel, 0, 1));
}

TEST(that_it_begins_to_keep_something_is_sent_until_it_is_acknowledged) {
    send_kept(0, false);
    begin_again(0);
    expect_kept(1, 0);
}

/* The next chief orders it anew. */
TEST(what_a_trainer_keeps_as_the_chief_orders_is_not_sent_again) {
    Capstan__Snapshot order = CAPSTAN__SNAPSHOT__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    control.body_case = CAPSTAN__CONTROL__BODY_SNAPSHOT;
    control.snapshot = &order;
    rejoin_note_received(&rejoin, &control);
    send_kept(10, false);
    expect_keeps(true, false);
    begin_again(0);
    assert_null(channel_next(&member_channel, 0, 1));
}

TEST(the_next_chief_gets_the_last_epochs) {
    Capstan__Heartbeat heartbeat = CAPSTAN__HEARTBEAT__INIT;
    Capstan__Rejoin message;
    for (uint64_t number = 0; number < MESSAGE_EPOCHS + 3; number++)
        send_epoch(number);
    rejoin_fill(&rejoin, &heartbeat, &message);
    assert_int_equal(message.n_epochs, MESSAGE_EPOCHS);
    for (uint64_t i = 0; i < MESSAGE_EPOCHS; i++) {
        assert_int_equal(message.epochs[i]->number, i + 3);
        assert_int_equal(message.epochs[i]->step, 10 * (i + 3));
    }
}

static void set_key(char *key) {
    Capstan__Rendezvous rendezvous;
    Capstan__Control control = of_rendezvous(&rendezvous, key);
    send_control(&control);
}

static void receive_key(char *key) {
    Capstan__Rendezvous rendezvous;
    Capstan__Control control = of_rendezvous(&rendezvous, key);
    rejoin_note_received(&rejoin, &control);
}

/* The next chief is sent these KEYS, in order. */
static void expect_keys(char *const *keys, uint64_t count) {
    begin_again(0);
    for (uint64_t i = 0; i < count; i++) {
        Capstan__Control *next = take_next(i + 1);
        assert_string_equal(next->rendezvous->key, keys[i]);
        message_free_control(&next);
    }
    assert_null(channel_next(&member_channel, 0, 1));
}

/* The chief may have had a value, and not passed it on. */
TEST(values_of_the_rendezvous_are_sent_again_and_the_generation_too) {
    char set[] = "trainers/3/here/1", generation[] = "trainers/generation/3",
         older[] = "trainers/generation/2";
    Capstan__Heartbeat heartbeat = CAPSTAN__HEARTBEAT__INIT;
    Capstan__Rejoin message;
    set_key(set);
    channel_acknowledge(&member_channel, 1);
    receive_key(generation);
    receive_key(older);
    rejoin_fill(&rejoin, &heartbeat, &message);
    assert_int_equal(message.generation, 3);
    for (int chiefs = 0; chiefs < 2; chiefs++)
        expect_keys((char *[]){set}, 1);
}

/* Of which there is one for each rank that joins again. */
TEST(values_of_older_generations_are_kept_no_longer) {
    char begun[] = "trainers/generation/1", here[] = "trainers/0/here/1",
         start[] = "trainers/0/start/1", again[] = "trainers/again/0",
         step[] = "trainers/1/step/1", next[] = "trainers/1/here/1",
         again_of_it[] = "trainers/again/1", late[] = "trainers/0/gloo/1",
         own[] = "a caller's";
    for (int i = 0; i < 3; i++)
        set_key(((char *[]){own, here, start}[i]));
    set_key(again);
    receive_key(begun);
    assert_true(channel_count(&rejoin.rendezvous) == 2);
    for (int i = 0; i < 4; i++)
        set_key(((char *[]){step, late, next, again_of_it}[i]));
    expect_keys((char *[]){own, start, step, next, again_of_it}, 5);
}

TEST(that_a_checkpoint_is_requested_is_sent_again_until_there_is_one) {
    Capstan__SaveRequest request = CAPSTAN__SAVE_REQUEST__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    request.step = 7;
    control.body_case = CAPSTAN__CONTROL__BODY_SAVE_REQUEST;
    control.save_request = &request;
    send_control(&control);
    channel_acknowledge(&member_channel, 1);
    begin_again(7);
    Capstan__Control *next = take_next(1);
    assert_int_equal(next->save_request->step, 7);
    message_free_control(&next);
    begin_again(8);
    assert_null(channel_next(&member_channel, 0, 1));
}
