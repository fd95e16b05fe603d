/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base/event_ring.h"

#include "tests/lib/test.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static int ring_setup(void **state) {
    *state = calloc(1, sizeof(struct event_ring));
    return *state == NULL;
}

static int ring_teardown(void **state) {
    free(*state);
    return 0;
}

FIXTURE(ring_setup, ring_teardown);

TEST(a_new_ring_is_empty) {
    struct event events[EVENT_RING_SIZE];
    assert_int_equal(event_ring_read(*state, events), 0);
}

TEST(it_keeps_the_last_64_and_tells_the_newest_first) {
    struct event events[EVENT_RING_SIZE];
    for (uint64_t n = 1; n <= 1000; n++) {
        event_ring_add(*state, (struct event){.time = (int64_t)n * 10,
                                              .kind = EVENT_CLOSED,
                                              .number = n});
        unsigned count = event_ring_read(*state, events);
        assert_int_equal(count, n < EVENT_RING_SIZE ? n : EVENT_RING_SIZE);
        for (unsigned i = 0; i < count; i++) {
            assert_int_equal(events[i].number, n - i);
            assert_int_equal(events[i].time, 10 * (n - i));
        }
    }
}

static void assert_text(struct event event, const char *expected) {
    char text[EVENT_TEXT];
    event_text(&event, text, sizeof text);
    assert_string_equal(text, expected);
}

TEST(an_event_names_its_number_and_its_peer) {
    assert_text((struct event){.kind = EVENT_JOINED}, "joined the chief");
    assert_text((struct event){.kind = EVENT_PUSHED,
                               .number = UINT64_MAX,
                               .role = "ps",
                               .peer = 1023},
                "began to push step 18446744073709551615 to ps 1023");
    assert_text((struct event){.kind = EVENT_VIEW, .number = 3, .peer = 2},
                "got view 3 of 2 trainers");
    assert_text((struct event){.kind = EVENT_PHASE,
                               .role = "training",
                               .peer = EVENT_NO_INDEX},
                "began training");
}

TEST(a_text_that_is_too_long_is_cut) {
    char text[10];
    struct event event = {.kind = EVENT_JOINED};
    event_text(&event, text, sizeof text);
    assert_string_equal(text, "joined th");
}

enum { ROUNDS = 200000 };

/* Every field has the same number. */
static void *write_events(void *ring) {
    for (uint32_t n = 1; n <= ROUNDS; n++)
        event_ring_add(ring, (struct event){.time = n,
                                            .kind = EVENT_STEPPED,
                                            .number = n,
                                            .peer = n});
    return NULL;
}

TEST(a_reader_beside_a_writer_sees_whole_events_in_order) {
    struct event events[EVENT_RING_SIZE];
    pthread_t writer;
    uint64_t newest = 0;
    assert_int_equal(pthread_create(&writer, NULL, write_events, *state), 0);
    while (newest < ROUNDS) {
        unsigned count = event_ring_read(*state, events);
        for (unsigned i = 0; i < count; i++) {
            assert_int_equal(events[i].time, events[i].number);
            assert_int_equal(events[i].peer, events[i].number);
            if (i)
                assert_true(events[i].number < events[i - 1].number);
        }
        if (count && events[0].number > newest)
            newest = events[0].number;
    }
    pthread_join(writer, NULL);
}
