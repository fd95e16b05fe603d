/* SPDX-License-Identifier: Apache-2.0 */
/* What plays CUDA's streams and graphs finds the mistakes that CUDA has rules
 * against. */
#include "tests/gpu/cuda_streams.h"
#include "tests/lib/test.h"

#include <pthread.h>

enum { PLACES = 6, SEEDS = 40 };

/* Work that adds its number to a list. */
struct diary {
    int pages[4 * PLACES];
    unsigned written;
};
struct entry {
    struct diary *diary;
    int number;
};

struct fixture {
    struct CUstream_st *one, *two;
    struct CUevent_st *event, *back;
    struct diary diary;
    struct entry entries[PLACES];
};

static void arrange(enum cuda_streams_order order, unsigned seed) {
    char text[64];
    snprintf(text, sizeof text, "order=%d,seed=%u", order, seed);
    setenv("CAPSTAN_EMULATED", text, 1);
}

static void open_fixture(struct fixture *fixture, enum cuda_streams_order order,
                         unsigned seed) {
    arrange(order, seed);
    *fixture = (struct fixture){.one = cuda_streams_open(),
                                .two = cuda_streams_open(),
                                .event = cuda_streams_event_open(),
                                .back = cuda_streams_event_open()};
    for (int i = 0; i < PLACES; i++)
        fixture->entries[i] = (struct entry){&fixture->diary, i};
}

static void close_fixture(struct fixture *fixture) {
    cuda_streams_close(fixture->one);
    cuda_streams_close(fixture->two);
    cuda_streams_event_close(fixture->event);
    cuda_streams_event_close(fixture->back);
    unsetenv("CAPSTAN_EMULATED");
}

static void record_value(void *context) {
    const struct entry *entry = context;
    entry->diary->pages[entry->diary->written++] = entry->number;
}

static int give(struct fixture *fixture, struct CUstream_st *stream,
                int number) {
    return cuda_streams_submit_call(stream, record_value,
                                    &fixture->entries[number]);
}

/* Where in the diary NUMBER stands first; its end: nowhere. */
static unsigned place(const struct fixture *fixture, int number) {
    unsigned i = 0;
    while (i < fixture->diary.written && fixture->diary.pages[i] != number)
        i++;
    return i;
}

static void await(struct CUstream_st *stream) {
    int error;
    while ((error = cuda_streams_query(stream)) == CUDA_STREAMS_NOT_READY)
        ;
    assert_int_equal(error, 0);
}

TEST(one_stream_is_ordered_and_two_are_not) {
    bool apart = false, together = false;
    for (unsigned seed = 0; seed < SEEDS; seed++) {
        struct fixture f;
        open_fixture(&f, CUDA_STREAMS_RANDOM, seed);
        give(&f, f.one, 0);
        give(&f, f.two, 1);
        give(&f, f.one, 2);
        assert_int_equal(cuda_streams_finish(), 0);
        assert_int_equal(f.diary.written, 3);
        assert_true(place(&f, 0) < place(&f, 2));
        apart |= place(&f, 1) < place(&f, 0);
        together |= place(&f, 1) > place(&f, 0);
        close_fixture(&f);
    }
    assert_true(apart && together);
}

TEST(lazy_work_runs_when_queried) {
    struct fixture f;
    open_fixture(&f, CUDA_STREAMS_LAZY, 0);
    give(&f, f.one, 0);
    give(&f, f.two, 1);
    assert_int_equal(f.diary.written, 0);
    await(f.two);
    assert_int_equal(place(&f, 1), 0);
    assert_int_equal(f.diary.written, 1);
    close_fixture(&f);
}

TEST(a_wait_for_an_event_follows_the_work_before_its_record) {
    for (unsigned order = 0; order < CUDA_STREAMS_ORDERS; order++)
        for (unsigned seed = 0; seed < SEEDS; seed++) {
            struct fixture f;
            open_fixture(&f, order, seed);
            give(&f, f.one, 0);
            cuda_streams_record(f.event, f.one, false);
            give(&f, f.one, 1);
            cuda_streams_wait(f.two, f.event);
            give(&f, f.two, 2);
            await(f.two);
            assert_true(place(&f, 0) < place(&f, 2));
            close_fixture(&f);
        }
}

/* one: 0, two: 1 behind it, one: 2 behind both. */
static struct CUgraphExec_st *capture_fork(struct fixture *f) {
    struct CUgraph_st *graph;
    struct CUgraphExec_st *exec;
    assert_int_equal(cuda_streams_begin_capture(f->one), 0);
    assert_int_equal(give(f, f->one, 0), 0);
    assert_int_equal(cuda_streams_record(f->event, f->one, false), 0);
    assert_int_equal(cuda_streams_wait(f->two, f->event), 0);
    assert_int_equal(give(f, f->two, 1), 0);
    assert_int_equal(cuda_streams_record(f->back, f->two, false), 0);
    assert_int_equal(cuda_streams_wait(f->one, f->back), 0);
    assert_int_equal(give(f, f->one, 2), 0);
    assert_int_equal(cuda_streams_end_capture(f->one, &graph), 0);
    assert_int_equal(cuda_streams_instantiate(&exec, graph), 0);
    cuda_streams_graph_close(graph);
    return exec;
}

TEST(captured_work_runs_only_at_launch) {
    for (unsigned order = 0; order < CUDA_STREAMS_ORDERS; order++)
        for (unsigned seed = 0; seed < SEEDS; seed++) {
            struct fixture f;
            open_fixture(&f, order, seed);
            struct CUgraphExec_st *exec = capture_fork(&f);
            await(f.one);
            await(f.two);
            assert_int_equal(f.diary.written, 0);
            give(&f, f.one, 3);
            assert_int_equal(cuda_streams_launch(exec, f.one), 0);
            assert_int_equal(cuda_streams_launch(exec, f.two), 0);
            cuda_streams_exec_close(exec);
            give(&f, f.one, 4);
            await(f.one);
            await(f.two);
            assert_int_equal(f.diary.written, 8);
            assert_true(place(&f, 3) < place(&f, 0));
            assert_true(place(&f, 0) < place(&f, 1));
            assert_true(place(&f, 1) < place(&f, 2));
            assert_true(place(&f, 2) < place(&f, 4));
            close_fixture(&f);
        }
}

TEST(an_event_recorded_in_a_capture_is_unusable_outside) {
    struct fixture f;
    open_fixture(&f, CUDA_STREAMS_LAZY, 0);
    struct CUgraphExec_st *exec = capture_fork(&f);
    assert_int_equal(cuda_streams_event_query(f.event),
                     CUDA_STREAMS_CAPTURED_EVENT);
    assert_int_equal(cuda_streams_wait(f.two, f.event),
                     CUDA_STREAMS_INVALID_VALUE);
    cuda_streams_exec_close(exec);
    close_fixture(&f);
}

TEST(an_external_event_completes_at_each_launch) {
    struct fixture f;
    struct CUgraph_st *graph;
    struct CUgraphExec_st *exec;
    open_fixture(&f, CUDA_STREAMS_LAZY, 0);
    cuda_streams_begin_capture(f.one);
    give(&f, f.one, 0);
    cuda_streams_record(f.event, f.one, true);
    give(&f, f.one, 1);
    assert_int_equal(cuda_streams_end_capture(f.one, &graph), 0);
    cuda_streams_instantiate(&exec, graph);
    for (unsigned times = 1; times < 4; times++) {
        cuda_streams_launch(exec, f.one);
        assert_int_equal(cuda_streams_event_query(f.event), 0);
        assert_int_equal(f.diary.written, 2 * times - 1);
        await(f.one);
        assert_int_equal(f.diary.written, 2 * times);
    }
    cuda_streams_graph_close(graph);
    cuda_streams_exec_close(exec);
    close_fixture(&f);
}

static void unsafe(struct fixture *f) {
    (void)f;
    assert_int_equal(cuda_streams_check_uncaptured(), CUDA_STREAMS_UNSUPPORTED);
}

static void ask_for_the_stream(struct fixture *f) {
    assert_int_equal(cuda_streams_query(f->one), CUDA_STREAMS_UNSUPPORTED);
}

static void ask_for_an_event(struct fixture *f) {
    assert_int_equal(cuda_streams_event_query(f->back),
                     CUDA_STREAMS_UNSUPPORTED);
}

static void follow_what_is_outside(struct fixture *f) {
    assert_int_equal(cuda_streams_wait(f->one, f->back),
                     CUDA_STREAMS_ISOLATION);
}

TEST(a_forbidden_call_fails_the_capture) {
    static void (*const each[])(struct fixture *) = {
        unsafe, ask_for_the_stream, ask_for_an_event, follow_what_is_outside};
    for (int i = 0; i < 4; i++) {
        struct fixture f;
        struct CUgraph_st *graph;
        open_fixture(&f, CUDA_STREAMS_EAGER, 0);
        give(&f, f.two, 5);
        cuda_streams_record(f.back, f.two, false);
        assert_int_equal(cuda_streams_begin_capture(f.one), 0);
        assert_int_equal(give(&f, f.one, 0), 0);
        each[i](&f);
        assert_int_equal(give(&f, f.one, 1), CUDA_STREAMS_INVALIDATED);
        assert_int_equal(cuda_streams_end_capture(f.one, &graph),
                         CUDA_STREAMS_INVALIDATED);
        assert_null(graph);
        assert_int_equal(give(&f, f.one, 2), 0);
        await(f.one);
        assert_int_equal(f.diary.written, 2);
        close_fixture(&f);
    }
}

TEST(an_unjoined_fork_fails_the_capture) {
    struct fixture f;
    struct CUgraph_st *graph;
    open_fixture(&f, CUDA_STREAMS_EAGER, 0);
    cuda_streams_begin_capture(f.one);
    cuda_streams_record(f.event, f.one, false);
    cuda_streams_wait(f.two, f.event);
    give(&f, f.two, 0);
    assert_int_equal(cuda_streams_end_capture(f.one, &graph),
                     CUDA_STREAMS_UNJOINED);
    assert_null(graph);
    assert_int_equal(give(&f, f.two, 1), 0);
    assert_int_equal(place(&f, 1), 0);
    close_fixture(&f);
}

TEST(two_captures_cannot_merge) {
    struct fixture f;
    struct CUgraph_st *graph;
    open_fixture(&f, CUDA_STREAMS_EAGER, 0);
    cuda_streams_begin_capture(f.one);
    cuda_streams_begin_capture(f.two);
    assert_int_equal(cuda_streams_begin_capture(f.two),
                     CUDA_STREAMS_ILLEGAL_STATE);
    cuda_streams_record(f.event, f.one, false);
    assert_int_equal(cuda_streams_wait(f.two, f.event), CUDA_STREAMS_MERGE);
    assert_int_equal(cuda_streams_end_capture(f.one, &graph),
                     CUDA_STREAMS_INVALIDATED);
    assert_int_equal(cuda_streams_end_capture(f.two, &graph),
                     CUDA_STREAMS_INVALIDATED);
    close_fixture(&f);
}

TEST(only_the_capturing_thread_ends_a_capture) {
    struct fixture f;
    struct CUgraph_st *graph;
    open_fixture(&f, CUDA_STREAMS_EAGER, 0);
    assert_int_equal(cuda_streams_end_capture(f.one, &graph),
                     CUDA_STREAMS_ILLEGAL_STATE);
    cuda_streams_begin_capture(f.one);
    cuda_streams_record(f.event, f.one, false);
    cuda_streams_wait(f.two, f.event);
    assert_int_equal(cuda_streams_end_capture(f.two, &graph),
                     CUDA_STREAMS_UNMATCHED);
    assert_int_equal(cuda_streams_end_capture(f.one, &graph),
                     CUDA_STREAMS_INVALIDATED);
    close_fixture(&f);
}

/* A thread of the device that F is at, which captures nothing. */
struct other {
    struct fixture *f;
    int given[2 * PLACES], unsafe;
};

static void *work_in_parallel(void *context) {
    struct other *other = context;
    for (int i = 0; i < 2 * PLACES; i++) {
        other->given[i] = give(other->f, other->f->two, i % PLACES);
        other->unsafe |= cuda_streams_check_uncaptured();
    }
    return NULL;
}

TEST(another_thread_works_while_one_captures) {
    for (unsigned order = 0; order < CUDA_STREAMS_ORDERS; order++)
        for (unsigned seed = 0; seed < SEEDS; seed++) {
            struct fixture f;
            struct CUgraph_st *graph;
            pthread_t thread;
            open_fixture(&f, (enum cuda_streams_order)order, seed);
            struct other other = {.f = &f};
            assert_int_equal(cuda_streams_begin_capture(f.one), 0);
            pthread_create(&thread, NULL, work_in_parallel, &other);
            for (int i = 0; i < PLACES; i++)
                assert_int_equal(give(&f, f.one, i), 0);
            assert_int_equal(cuda_streams_end_capture(f.one, &graph), 0);
            pthread_join(thread, NULL);
            assert_int_equal(other.unsafe, 0);
            for (int i = 0; i < 2 * PLACES; i++)
                assert_int_equal(other.given[i], 0);
            assert_int_equal(cuda_streams_finish(), 0);
            assert_int_equal(f.diary.written, 2 * PLACES);
            cuda_streams_graph_close(graph);
            close_fixture(&f);
        }
}
