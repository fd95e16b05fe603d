/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/exchange/allreduce/sequence.h"

#include "tests/lib/test.h"

/* Raises one mark as far as another one is, up to LAST. */
struct echo {
    struct sequence asked, answered;
    pthread_t thread;
    uint64_t last, plain; /* `plain` is written before each raise */
    bool ended;
};

static void *echo(void *argument) {
    struct echo *echo = argument;
    for (uint64_t value = 1; value <= echo->last; value++) {
        if (!sequence_wait(&echo->asked, value, NULL)) {
            echo->ended = true;
            break;
        }
        echo->plain = value;
        sequence_advance(&echo->answered, value);
    }
    return NULL;
}

static void open_echo(struct echo *one, uint64_t last) {
    *one = (struct echo){.last = last};
    sequence_open(&one->asked);
    sequence_open(&one->answered);
    assert_int_equal(pthread_create(&one->thread, NULL, echo, one), 0);
}

static void close_echo(struct echo *one) {
    pthread_join(one->thread, NULL);
    sequence_close(&one->asked);
    sequence_close(&one->answered);
}

TEST(writes_before_a_raise_are_visible_after_the_wait) {
    struct echo one;
    int64_t waited = 0;
    open_echo(&one, 1000);
    for (uint64_t value = 1; value <= 1000; value++) {
        sequence_advance(&one.asked, value);
        assert_true(sequence_wait(&one.answered, value, &waited));
        assert_int_equal(one.plain, value);
    }
    assert_int_equal(sequence_value(&one.answered), 1000);
    close_echo(&one);
    assert_false(one.ended);
    assert_true(waited > 0);
}

enum { WAITERS = 3, RAISES = 1000 };

/* One of several that wait for the same mark. */
struct follower {
    struct sequence *go, passed;
    pthread_t thread;
};

static void *follow(void *argument) {
    struct follower *waiter = argument;
    for (uint64_t value = 1; value <= RAISES; value++)
        if (sequence_wait(waiter->go, value, NULL))
            sequence_advance(&waiter->passed, value);
    return NULL;
}

TEST(a_raised_value_wakes_all_its_waiters) {
    struct sequence go;
    struct follower waiters[WAITERS];
    sequence_open(&go);
    for (int i = 0; i < WAITERS; i++) {
        waiters[i].go = &go;
        sequence_open(&waiters[i].passed);
        assert_int_equal(
            pthread_create(&waiters[i].thread, NULL, follow, &waiters[i]), 0);
    }
    for (uint64_t value = 1; value <= RAISES; value++) {
        sequence_advance(&go, value);
        for (int i = 0; i < WAITERS; i++)
            assert_true(sequence_wait(&waiters[i].passed, value, NULL));
    }
    for (int i = 0; i < WAITERS; i++) {
        pthread_join(waiters[i].thread, NULL);
        sequence_close(&waiters[i].passed);
    }
    sequence_close(&go);
}

TEST(a_reached_value_does_not_block) {
    struct sequence sequence;
    int64_t waited = 0;
    sequence_open(&sequence);
    sequence_advance(&sequence, 5);
    assert_true(sequence_wait(&sequence, 5, &waited));
    assert_true(sequence_wait(&sequence, 0, &waited));
    assert_int_equal(waited, 0);
    sequence_close(&sequence);
}

TEST(cancelling_ends_waits_now_and_later) {
    struct echo one;
    open_echo(&one, 1);
    sequence_cancel(&one.asked);
    close_echo(&one);
    assert_true(one.ended);
    struct sequence sequence;
    sequence_open(&sequence);
    sequence_advance(&sequence, 5);
    sequence_cancel(&sequence);
    assert_false(sequence_wait(&sequence, 5, NULL));
    sequence_close(&sequence);
}

TEST(an_end_keeps_reached_values) {
    struct echo one;
    open_echo(&one, 3);
    sequence_advance(&one.asked, 2);
    sequence_end(&one.asked);
    close_echo(&one);
    assert_true(one.ended);
    assert_int_equal(one.plain, 2);
}
