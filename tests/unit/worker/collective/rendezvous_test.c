/* SPDX-License-Identifier: Apache-2.0 */
#define STATE struct fixture *fixture

#include "worker/collective/rendezvous.h"

#include "core/base/time.h"
#include "tests/lib/test.h"

#include <pthread.h>

/* Two ranks and a chief that passes every word to both. */
struct fixture {
    struct rendezvous *ranks[2];
};

static void forward(void *context, Capstan__Control *control) {
    struct fixture *fixture = context;
    assert_int_equal(control->body_case, CAPSTAN__CONTROL__BODY_RENDEZVOUS);
    for (int r = 0; r < 2; r++)
        assert_ok(rendezvous_receive(fixture->ranks[r], control->rendezvous,
                                     &failure));
}

static int setup(void **state) {
    struct fixture *fixture = calloc(1, sizeof *fixture);
    for (int r = 0; r < 2; r++)
        assert_ok(
            rendezvous_open(&fixture->ranks[r], forward, fixture, &failure));
    *state = fixture;
    return 0;
}

TEARDOWN(teardown) {
    for (int r = 0; r < 2; r++)
        rendezvous_close(&fixture->ranks[r]);
    free(fixture);
}

FIXTURE(setup, teardown);

static enum status get(struct rendezvous *rank, const char *key, double seconds,
                       char *text, struct failure *why) {
    const struct collective_store *store = rendezvous_store(rank);
    void *value;
    size_t size;
    int64_t until = time_now() + time_from_seconds(seconds);
    enum status status =
        store->get(store->context, key, until, &value, &size, why);
    if (status)
        return status;
    memcpy(text, value, size);
    text[size] = 0;
    free(value);
    return STATUS_OK;
}

static enum status set(struct rendezvous *rank, const char *key,
                       const char *text, struct failure *why) {
    const struct collective_store *store = rendezvous_store(rank);
    return store->set(store->context, key, text, strlen(text), why);
}

TEST(every_rank_gets_the_value_that_one_rank_sets) {
    char text[64];
    assert_ok(set(fixture->ranks[0], "a", "first", &failure));
    assert_ok(set(fixture->ranks[1], "b", "", &failure));
    rendezvous_step(fixture->ranks[0]);
    rendezvous_step(fixture->ranks[1]);
    for (int r = 0; r < 2; r++) {
        assert_ok(get(fixture->ranks[r], "a", 1, text, &failure));
        assert_string_equal(text, "first");
        assert_ok(get(fixture->ranks[r], "b", 1, text, &failure));
        assert_string_equal(text, "");
    }
}

/* All that were said before the other thread looks go at once, and once. */
TEST(values_are_sent_together) {
    char text[64];
    assert_ok(set(fixture->ranks[0], "a", "first", &failure));
    assert_ok(set(fixture->ranks[0], "b", "second", &failure));
    assert_ok(set(fixture->ranks[0], "c", "third", &failure));
    rendezvous_step(fixture->ranks[0]);
    rendezvous_step(fixture->ranks[0]);
    assert_ok(get(fixture->ranks[1], "a", 1, text, &failure));
    assert_string_equal(text, "first");
    assert_ok(get(fixture->ranks[1], "b", 1, text, &failure));
    assert_string_equal(text, "second");
    assert_ok(get(fixture->ranks[1], "c", 1, text, &failure));
    assert_string_equal(text, "third");
}

TEST(the_first_value_of_a_key_is_kept) {
    char text[64];
    assert_ok(set(fixture->ranks[0], "a", "first", &failure));
    rendezvous_step(fixture->ranks[0]);
    assert_ok(set(fixture->ranks[1], "a", "second", &failure));
    rendezvous_step(fixture->ranks[1]);
    assert_ok(get(fixture->ranks[0], "a", 1, text, &failure));
    assert_string_equal(text, "first");
}

TEST(a_missing_value_is_named_at_the_deadline) {
    char text[64];
    assert_error(get(fixture->ranks[0], "rank 1", 0.05, text, &failure),
                 FAILURE_PEER_SILENT);
    assert_contains(failure.text, "rank 1");
}

static void *set_later(void *argument) {
    struct fixture *fixture = argument;
    assert_ok(set(fixture->ranks[1], "late", "here", &failure));
    rendezvous_step(fixture->ranks[1]);
    return NULL;
}

TEST(a_waiting_rank_is_woken_by_the_value) {
    pthread_t thread;
    char text[64];
    pthread_create(&thread, NULL, set_later, fixture);
    assert_ok(get(fixture->ranks[0], "late", 60, text, &failure));
    assert_string_equal(text, "here");
    pthread_join(thread, NULL);
}

static void *cancel(void *argument) {
    rendezvous_cancel(argument);
    return NULL;
}

TEST(cancelling_ends_the_wait) {
    pthread_t thread;
    char text[64];
    pthread_create(&thread, NULL, cancel, fixture->ranks[0]);
    assert_error(get(fixture->ranks[0], "never", 60, text, &failure),
                 FAILURE_RUN_ENDED);
    pthread_join(thread, NULL);
}

/* From the wire: a key of any length, a value of any size. */
TEST(a_value_too_long_is_refused) {
    char key[RENDEZVOUS_MAX_KEY + 2];
    memset(key, 'k', sizeof key - 1);
    key[sizeof key - 1] = 0;
    assert_error(set(fixture->ranks[0], key, "", &failure),
                 FAILURE_BAD_MESSAGE);
    assert_error(set(fixture->ranks[0], "", "", &failure), FAILURE_BAD_MESSAGE);
    Capstan__Rendezvous message = CAPSTAN__RENDEZVOUS__INIT;
    message.key = key;
    assert_error(rendezvous_receive(fixture->ranks[0], &message, &failure),
                 FAILURE_BAD_MESSAGE);
    message.key = "k";
    message.value = (ProtobufCBinaryData){RENDEZVOUS_MAX_VALUE + 1, NULL};
    assert_error(rendezvous_receive(fixture->ranks[0], &message, &failure),
                 FAILURE_BAD_MESSAGE);
}
