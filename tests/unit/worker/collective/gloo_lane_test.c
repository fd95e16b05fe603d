/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/collective/gloo_lane.h"

#include "proto/base/time.h"
#include "proto/net/shm/lane_parts.h"
#include "tests/lib/seed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dirent.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST = 3 * GLOO_LANE_PIECE + 5 };

/* Both ends of a line that is open. */
struct fixture {
    struct gloo_lane *here, *there;
    char name[GLOO_LANE_NAME];
    int listener;
    unsigned descriptors; /* open before */
};

static unsigned count_descriptors(void) {
    DIR *folder = opendir("/proc/self/fd");
    unsigned count = 0;
    while (readdir(folder))
        count++;
    closedir(folder);
    return count;
}

static int setup(void **state) {
    struct fixture *fixture = calloc(1, sizeof *fixture);
    char text[128] = "";
    fixture->descriptors = count_descriptors();
    fixture->listener = gloo_lane_listen(fixture->name, text, sizeof text);
    if (fixture->listener < 0)
        fail_msg("%s", text);
    *state = fixture;
    return 0;
}

static int teardown(void **state) {
    struct fixture *fixture = *state;
    gloo_lane_close(&fixture->here);
    gloo_lane_close(&fixture->there);
    close(fixture->listener);
    assert_int_equal(count_descriptors(), fixture->descriptors);
    free(fixture);
    return 0;
}

static void meet(struct fixture *fixture) {
    char text[128] = "";
    fixture->there = gloo_lane_call(fixture->name, text, sizeof text);
    if (!fixture->there)
        fail_msg("%s", text);
    assert_string_equal(text, "");
    fixture->here = gloo_lane_answer(fixture->listener, text, sizeof text);
    if (!fixture->here || !gloo_lane_open(fixture->there, text, sizeof text))
        fail_msg("%s", text);
}

/* SIZE bytes that follow from FIRST. */
static void fill(unsigned char *bytes, size_t size, unsigned first) {
    for (size_t i = 0; i < size; i++)
        bytes[i] = (unsigned char)(first + i % 251);
}

static void send_bytes(struct gloo_lane *line, size_t size, unsigned first) {
    static unsigned char bytes[MOST];
    fill(bytes, size, first);
    assert_true(gloo_lane_send(line, bytes, size));
}

static void expect_bytes(struct gloo_lane *line, size_t size, unsigned first) {
    static unsigned char expected[MOST];
    fill(expected, size, first);
    for (size_t at = 0; at < size; at += GLOO_LANE_PIECE) {
        size_t left = size - at;
        size_t bytes = left < GLOO_LANE_PIECE ? left : GLOO_LANE_PIECE;
        const void *piece = gloo_lane_view(line, bytes);
        if (!piece)
            fail_msg("%s", gloo_lane_trouble(line));
        assert_memory_equal(piece, expected + at, bytes);
        gloo_lane_done(line);
    }
}

static void what_is_sent_arrives_in_pieces(void **state) {
    struct fixture *fixture = *state;
    meet(fixture);
    for (unsigned i = 0; i < 300; i++) {
        size_t size = i * UINT64_C(2654435761) % MOST + 1;
        send_bytes(fixture->here, size, i);
        send_bytes(fixture->there, MOST - size + 1, i + 1);
        expect_bytes(fixture->there, size, i);
        expect_bytes(fixture->here, MOST - size + 1, i + 1);
    }
}

/* One thread: nobody would read meanwhile. */
static void so_much_can_be_sent_before_any_is_read(void **state) {
    struct fixture *fixture = *state;
    struct philox_sequence chance;
    seed_open(&chance);
    meet(fixture);
    for (unsigned i = 0; i < 500; i++) {
        size_t before = philox_next(&chance) % MOST + 1;
        send_bytes(fixture->here, before, i);
        expect_bytes(fixture->there, before, i);
        for (unsigned piece = 0; piece < 4; piece++)
            send_bytes(fixture->here, GLOO_LANE_PIECE, piece);
        for (unsigned piece = 0; piece < 4; piece++)
            expect_bytes(fixture->there, GLOO_LANE_PIECE, piece);
    }
}

static void *read_all(void *context) {
    struct gloo_lane *line = context;
    for (unsigned i = 0; i < 2000; i++) {
        send_bytes(line, 5, i);
        expect_bytes(line, MOST, i);
    }
    return NULL;
}

static void who_sends_faster_than_is_read_waits(void **state) {
    struct fixture *fixture = *state;
    static unsigned char bytes[MOST];
    pthread_t reader;
    meet(fixture);
    assert_int_equal(pthread_create(&reader, NULL, read_all, fixture->there),
                     0);
    for (unsigned i = 0; i < 2000; i++) {
        fill(bytes, MOST, i);
        assert_true(gloo_lane_send(fixture->here, bytes, MOST));
        assert_non_null(gloo_lane_view(fixture->here, 5));
        gloo_lane_done(fixture->here);
    }
    pthread_join(reader, NULL);
}

static void *cut(void *context) {
    gloo_lane_cut(context);
    return NULL;
}

/* Sends until there is no room, or waits for what never comes. */
static void wait_in_vain(struct gloo_lane *line, bool sends) {
    static const char bytes[GLOO_LANE_PIECE];
    if (!sends)
        assert_null(gloo_lane_view(line, 1));
    while (sends && gloo_lane_send(line, bytes, sizeof bytes))
        ;
}

/* At any moment of the wait. */
static void a_cut_ends_waits_on_both_sides(void **state) {
    struct fixture *fixture = *state;
    for (int i = 0; i < 200; i++) {
        bool sends = i & 1, own = i & 2;
        pthread_t cutter;
        meet(fixture);
        int64_t begun = time_now();
        assert_int_equal(pthread_create(&cutter, NULL, cut,
                                        own ? fixture->here : fixture->there),
                         0);
        wait_in_vain(fixture->here, sends);
        pthread_join(cutter, NULL);
        assert_true(time_now() - begun < 5 * TIME_S);
        assert_non_null(strstr(gloo_lane_trouble(fixture->here),
                               own ? "is cut off" : "has ended"));
        gloo_lane_close(&fixture->here);
        gloo_lane_close(&fixture->there);
    }
}

static void a_cut_ends_what_could_go_on(void **state) {
    struct fixture *fixture = *state;
    meet(fixture);
    send_bytes(fixture->there, 7, 0);
    gloo_lane_cut(fixture->here);
    assert_null(gloo_lane_view(fixture->here, 7));
    assert_false(gloo_lane_send(fixture->here, "x", 1));
}

static void what_was_sent_before_the_end_still_arrives(void **state) {
    struct fixture *fixture = *state;
    meet(fixture);
    send_bytes(fixture->there, MOST, 9);
    gloo_lane_close(&fixture->there);
    expect_bytes(fixture->here, MOST, 9);
    assert_null(gloo_lane_view(fixture->here, 1));
}

/* Of a buffer that is changed when it has been sent. */
static void lend_and_change(struct fixture *fixture, struct buffer *buffer) {
    unsigned char *bytes = buffer_data(buffer);
    fill(bytes, MOST, 1);
    assert_true(gloo_lane_lend(fixture->here, bytes, MOST, buffer));
    fill(bytes, MOST, 2);
}

static void what_is_lent_is_read_where_it_lies(void **state) {
    struct fixture *fixture = *state;
    struct buffer *buffer = buffer_open_shared(MOST);
    meet(fixture);
    for (int i = 0; i < 100; i++) {
        lend_and_change(fixture, buffer);
        expect_bytes(fixture->there, MOST, 2);
        send_bytes(fixture->here, MOST, 3);
        expect_bytes(fixture->there, MOST, 3);
    }
    buffer_release(&buffer);
}

static void what_cannot_be_shown_is_copied(void **state) {
    struct fixture *fixture = *state;
    struct buffer *buffer = buffer_open(MOST, NULL, NULL);
    meet(fixture);
    lend_and_change(fixture, buffer);
    expect_bytes(fixture->there, MOST, 1);
    buffer_release(&buffer);
}

static void what_nobody_listens_to_or_answers_is_no_line(void **state) {
    struct fixture *fixture = *state;
    char text[128] = "";
    assert_null(gloo_lane_call("capstan-gloo-of-nobody", text, sizeof text));
    assert_non_null(strstr(text, "not on this host"));
    assert_null(gloo_lane_answer(fixture->listener, text, sizeof text));
    assert_string_equal(text, "it has not called");
    fixture->there = gloo_lane_call(fixture->name, text, sizeof text);
    assert_false(gloo_lane_open(fixture->there, text, sizeof text));
    assert_string_equal(text, "somebody else has answered");
}

static void two_lines_have_two_names(void **state) {
    struct fixture *fixture = *state;
    char name[GLOO_LANE_NAME], text[128];
    int listener = gloo_lane_listen(name, text, sizeof text);
    assert_true(listener >= 0);
    assert_string_not_equal(name, fixture->name);
    close(listener);
}

/* A peer that is no gloo_lane, and its name for what it does. */
static struct lane *meet_stranger(struct fixture *fixture) {
    char text[128] = "";
    struct lane *lane =
        lane_call(fixture->name, GLOO_LANE_AHEAD, text, sizeof text);
    assert_non_null(lane);
    fixture->here = gloo_lane_answer(fixture->listener, text, sizeof text);
    if (!fixture->here)
        fail_msg("%s", text);
    assert_int_equal(lane_step(lane, time_now()), LANE_OPEN);
    return lane;
}

static void send_garbage(struct lane *lane) {
    memset(lane->writer.bytes, 0x5a, 4096);
    atomic_store(&lane->writer.shared->head, 4096);
}

static void send_far_away(struct lane *lane) {
    struct ring_payload far = {.offset = UINT64_C(1) << 60, .bytes = 8};
    ring_reserve(&lane->writer, 0);
    ring_commit(&lane->writer, "", 0, &far);
}

static void send_what_it_shows(struct lane *lane) {
    struct memory *memory = memory_open(4096, MEMORY_MAKER_WRITES);
    assert_true(lane_show(lane, memory, 0));
    struct ring_payload shown = {.bytes = 9};
    ring_reserve(&lane->writer, 0);
    ring_commit(&lane->writer, "", 0, &shown);
    memory_release(&memory);
}

static void send_more(struct lane *lane) {
    struct lane_payload payload = {"123456789", 9, NULL};
    assert_true(lane_send(lane, "", 0, &payload));
}

static void let_go_too_much(struct lane *lane) {
    atomic_store(&lane->reader.shared->tail, UINT64_MAX - 63);
    send_more(lane);
}

static void who_keeps_no_rules_is_told_of_and_does_no_harm(void **state) {
    static const struct {
        void (*deed)(struct lane *lane);
        const char *text;
    } deeds[] = {
        {send_garbage, "a ring that is not as its writer leaves it"},
        {send_far_away, "a payload that lies in no memory it has shown"},
        {send_what_it_shows, "sends what is not due"},
        {send_more, "sends what is not due"},
        {let_go_too_much, "sends what is not due"},
    };
    struct fixture *fixture = *state;
    for (size_t i = 0; i < sizeof deeds / sizeof *deeds; i++) {
        struct lane *lane = meet_stranger(fixture);
        deeds[i].deed(lane);
        send_bytes(fixture->here, GLOO_LANE_PIECE, 0);
        assert_null(gloo_lane_view(fixture->here, 8));
        if (!strstr(gloo_lane_trouble(fixture->here), deeds[i].text))
            fail_msg("%zu: %s", i, gloo_lane_trouble(fixture->here));
        assert_false(gloo_lane_send(fixture->here, "x", 1));
        gloo_lane_close(&fixture->here);
        lane_close(&lane);
    }
}

int main(void) {
#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(what_is_sent_arrives_in_pieces),
        TEST(so_much_can_be_sent_before_any_is_read),
        TEST(who_sends_faster_than_is_read_waits),
        TEST(what_is_lent_is_read_where_it_lies),
        TEST(what_cannot_be_shown_is_copied),
        TEST(a_cut_ends_waits_on_both_sides),
        TEST(a_cut_ends_what_could_go_on),
        TEST(what_was_sent_before_the_end_still_arrives),
        TEST(what_nobody_listens_to_or_answers_is_no_line),
        TEST(two_lines_have_two_names),
        TEST(who_keeps_no_rules_is_told_of_and_does_no_harm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
