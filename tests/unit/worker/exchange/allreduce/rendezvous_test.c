/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/exchange/allreduce/rendezvous.h"

#include "core/base/time.h"
#include "tests/lib/assert_fails.h"
#include "tests/lib/test.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* Two ranks and a chief that passes every word to both. */
struct fixture {
    struct rendezvous *ranks[2];
};

static void forward(void *context, Capstan__Control *control) {
    struct fixture *fixture = context;
    struct failure why;
    assert_int_equal(control->body_case, CAPSTAN__CONTROL__BODY_RENDEZVOUS);
    for (int r = 0; r < 2; r++)
        assert_int_equal(
            rendezvous_receive(fixture->ranks[r], control->rendezvous, &why),
            STATUS_OK);
}

static int setup(void **state) {
    struct fixture *fixture = calloc(1, sizeof *fixture);
    struct failure why;
    for (int r = 0; r < 2; r++)
        assert_int_equal(
            rendezvous_open(&fixture->ranks[r], forward, fixture, &why),
            STATUS_OK);
    *state = fixture;
    return 0;
}

static int teardown(void **state) {
    struct fixture *fixture = *state;
    for (int r = 0; r < 2; r++)
        rendezvous_close(&fixture->ranks[r]);
    free(fixture);
    return 0;
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
    struct fixture *fixture = *state;
    struct failure why;
    char text[64];
    assert_int_equal(set(fixture->ranks[0], "a", "first", &why), STATUS_OK);
    assert_int_equal(set(fixture->ranks[1], "b", "", &why), STATUS_OK);
    rendezvous_step(fixture->ranks[0]);
    rendezvous_step(fixture->ranks[1]);
    for (int r = 0; r < 2; r++) {
        assert_int_equal(get(fixture->ranks[r], "a", 1, text, &why), STATUS_OK);
        assert_string_equal(text, "first");
        assert_int_equal(get(fixture->ranks[r], "b", 1, text, &why), STATUS_OK);
        assert_string_equal(text, "");
    }
}

/* All that were said before the other thread looks go at once, and once. */
TEST(values_are_sent_together) {
    struct fixture *fixture = *state;
    struct failure why;
    char text[64];
    assert_int_equal(set(fixture->ranks[0], "a", "first", &why), STATUS_OK);
    assert_int_equal(set(fixture->ranks[0], "b", "second", &why), STATUS_OK);
    assert_int_equal(set(fixture->ranks[0], "c", "third", &why), STATUS_OK);
    rendezvous_step(fixture->ranks[0]);
    rendezvous_step(fixture->ranks[0]);
    assert_int_equal(get(fixture->ranks[1], "a", 1, text, &why), STATUS_OK);
    assert_string_equal(text, "first");
    assert_int_equal(get(fixture->ranks[1], "b", 1, text, &why), STATUS_OK);
    assert_string_equal(text, "second");
    assert_int_equal(get(fixture->ranks[1], "c", 1, text, &why), STATUS_OK);
    assert_string_equal(text, "third");
}

TEST(the_first_value_of_a_key_is_kept) {
    struct fixture *fixture = *state;
    struct failure why;
    char text[64];
    assert_int_equal(set(fixture->ranks[0], "a", "first", &why), STATUS_OK);
    rendezvous_step(fixture->ranks[0]);
    assert_int_equal(set(fixture->ranks[1], "a", "second", &why), STATUS_OK);
    rendezvous_step(fixture->ranks[1]);
    assert_int_equal(get(fixture->ranks[0], "a", 1, text, &why), STATUS_OK);
    assert_string_equal(text, "first");
}

TEST(a_missing_value_is_named_at_the_deadline) {
    struct fixture *fixture = *state;
    struct failure why;
    char text[64];
    assert_fails(get(fixture->ranks[0], "rank 1", 0.05, text, &why), &why,
                 FAILURE_PEER_SILENT);
    assert_non_null(strstr(why.text, "rank 1"));
}

static void *set_later(void *argument) {
    struct fixture *fixture = argument;
    struct failure why;
    assert_int_equal(set(fixture->ranks[1], "late", "here", &why), STATUS_OK);
    rendezvous_step(fixture->ranks[1]);
    return NULL;
}

TEST(a_waiting_rank_is_woken_by_the_value) {
    struct fixture *fixture = *state;
    pthread_t thread;
    struct failure why;
    char text[64];
    pthread_create(&thread, NULL, set_later, fixture);
    assert_int_equal(get(fixture->ranks[0], "late", 60, text, &why), STATUS_OK);
    assert_string_equal(text, "here");
    pthread_join(thread, NULL);
}

static void *cancel(void *argument) {
    rendezvous_cancel(argument);
    return NULL;
}

TEST(cancelling_ends_the_wait) {
    struct fixture *fixture = *state;
    pthread_t thread;
    struct failure why;
    char text[64];
    pthread_create(&thread, NULL, cancel, fixture->ranks[0]);
    assert_fails(get(fixture->ranks[0], "never", 60, text, &why), &why,
                 FAILURE_RUN_ENDED);
    pthread_join(thread, NULL);
}

/* From the wire: a key of any length, a value of any size. */
TEST(a_value_too_long_is_refused) {
    struct fixture *fixture = *state;
    struct failure why;
    char key[RENDEZVOUS_MAX_KEY + 2];
    memset(key, 'k', sizeof key - 1);
    key[sizeof key - 1] = 0;
    assert_fails(set(fixture->ranks[0], key, "", &why), &why,
                 FAILURE_BAD_MESSAGE);
    assert_fails(set(fixture->ranks[0], "", "", &why), &why,
                 FAILURE_BAD_MESSAGE);
    Capstan__Rendezvous message = CAPSTAN__RENDEZVOUS__INIT;
    message.key = key;
    assert_fails(rendezvous_receive(fixture->ranks[0], &message, &why), &why,
                 FAILURE_BAD_MESSAGE);
    message.key = "k";
    message.value = (ProtobufCBinaryData){RENDEZVOUS_MAX_VALUE + 1, NULL};
    assert_fails(rendezvous_receive(fixture->ranks[0], &message, &why), &why,
                 FAILURE_BAD_MESSAGE);
}
