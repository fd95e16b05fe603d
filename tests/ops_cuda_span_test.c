/* The spans of capstan-cuda.so and its graphs, over stand-ins for CUDA's
 * libraries. */
#include "worker/ops.h"

#include "tests/emulated_device.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WIDTH = 8, FLOATS = WIDTH * WIDTH, BYTES = FLOATS * sizeof(float) };
enum { SEEDS = 12 };

/* Matrices on the device, and lines that it warned with. */
struct fixture {
    const struct ops *ops;
    struct ops_device *device;
    struct ops_event *brought, *computed, *taken;
    float *x, *w, *y, *z;
    float host[FLOATS];
    unsigned warnings;
    char warning[512];
};

static void warn(void *hearer, const char *line) {
    struct fixture *fixture = hearer;
    fixture->warnings++;
    snprintf(fixture->warning, sizeof fixture->warning, "%s", line);
}

static float *allocate(struct fixture *f) {
    float *memory = f->ops->allocate(f->device, BYTES);
    assert_non_null(memory);
    return memory;
}

static void open_fixture(struct fixture *f, const char *arranged) {
    struct failure why;
    setenv("CAPSTAN_EMULATED", arranged, 1);
    *f = (struct fixture){.ops = emulated_device_ops()};
    if (!f->ops) {
        print_message("skipped: built where CUDA's headers are\n");
        skip();
    }
    struct ops_settings settings = {
        .threads = 1, .timeout = 60, .warn = warn, .hearer = f};
    if (f->ops->open(&f->device, &settings, &why))
        fail_msg("%s", why.text);
    f->brought = f->ops->event_open(f->device);
    f->computed = f->ops->event_open(f->device);
    f->taken = f->ops->event_open(f->device);
    f->x = allocate(f);
    f->w = allocate(f);
    f->y = allocate(f);
    f->z = allocate(f);
}

static void close_fixture(struct fixture *f) {
    assert_int_equal(f->ops->synchronize(f->device, NULL), STATUS_OK);
    float *const all[] = {f->x, f->w, f->y, f->z};
    for (int i = 0; i < 4; i++)
        f->ops->release(f->device, all[i]);
    f->ops->event_close(f->device, &f->brought);
    f->ops->event_close(f->device, &f->computed);
    f->ops->event_close(f->device, &f->taken);
    f->ops->close(&f->device);
    unsetenv("CAPSTAN_EMULATED");
}

/* MEMORY, of the device, holds VALUE on its diagonal, else 0. */
static void set(struct fixture *f, float *memory, float value) {
    float diagonal[FLOATS] = {0};
    for (int i = 0; i < WIDTH; i++)
        diagonal[i * WIDTH + i] = value;
    f->ops->upload(f->device, OPS_COMPUTE, memory, diagonal, BYTES);
    assert_int_equal(f->ops->synchronize(f->device, NULL), STATUS_OK);
}

/* The first of MEMORY's floats, all of which are done. */
static float get(struct fixture *f, const float *memory) {
    float found[FLOATS];
    f->ops->download(f->device, OPS_COMPUTE, found, memory, BYTES);
    assert_int_equal(f->ops->synchronize(f->device, NULL), STATUS_OK);
    return found[0];
}

/* to = a b. */
static void multiply(struct fixture *f, const float *a, const float *b,
                     float *to) {
    f->ops->linear_input_gradient(f->device, a, b, to, WIDTH, WIDTH, WIDTH);
}

/* z = x w w. */
static void give_span(struct fixture *f) {
    f->ops->begin(f->device);
    multiply(f, f->x, f->w, f->y);
    multiply(f, f->y, f->w, f->z);
    f->ops->end(f->device);
}

/* Since BEFORE. */
static struct cuda_streams_counts since(struct cuda_streams_counts before) {
    struct cuda_streams_counts now = emulated_device_counts();
    return (struct cuda_streams_counts){
        now.works - before.works, now.events - before.events,
        now.waits - before.waits, now.captures - before.captures,
        now.launches - before.launches};
}

/* The span with 2 on x's diagonal and 3 on w's goes out by so many calls and
 * launches, and is right. */
static void expect_span(struct fixture *f, uint64_t works, uint64_t launches) {
    set(f, f->x, 2);
    set(f, f->w, 3);
    struct cuda_streams_counts before = emulated_device_counts();
    give_span(f);
    struct cuda_streams_counts made = since(before);
    if (made.captures == 0 && made.works != works)
        fail_msg("%u calls", (unsigned)made.works);
    assert_int_equal(made.launches, launches);
    assert_true(get(f, f->z) == 2 * 3 * 3);
}

static void expect_new_span(struct fixture *f) {
    expect_span(f, 2, 0);
    expect_span(f, 0, 1);
    expect_span(f, 0, 1);
}

static void a_span_given_a_third_time_is_one_call(void **state) {
    struct fixture f;
    (void)state;
    open_fixture(&f, "order=0");
    expect_new_span(&f);
    struct cuda_streams_counts before = emulated_device_counts();
    for (int i = 0; i < 10; i++)
        give_span(&f);
    struct cuda_streams_counts made = since(before);
    assert_int_equal(made.launches, 10);
    assert_int_equal(made.works + made.events + made.waits + made.captures, 0);
    assert_int_equal(f.warnings, 0);
    close_fixture(&f);
}

/* Each of a loss's arguments, changed by itself. */
static void give_loss(struct fixture *f, int changed) {
    const uint32_t *labels = (const uint32_t *)f->w;
    double *sum = (double *)f->z;
    f->ops->begin(f->device);
    f->ops->loss(f->device, changed == 0 ? JOB_MSE : JOB_SOFTMAX_CROSS_ENTROPY,
                 changed == 1 ? f->z + 16 : f->x,
                 changed == 2 ? labels + 1 : labels, changed == 3 ? NULL : f->y,
                 changed == 4 ? 3 : 2, changed == 5 ? 3 : 2,
                 changed == 6 ? 0.5f : 1, changed == 7 ? sum + 1 : sum,
                 (uint32_t *)(sum + (changed == 8 ? 3 : 2)));
    f->ops->end(f->device);
}

static void another_argument_is_another_span(void **state) {
    struct fixture f;
    (void)state;
    open_fixture(&f, "order=1");
    const uint32_t zeros[FLOATS] = {0};
    f.ops->upload(f.device, OPS_COMPUTE, f.w, zeros, BYTES);
    f.ops->upload(f.device, OPS_COMPUTE, f.x, zeros, BYTES);
    give_loss(&f, 4); /* its room is there */
    for (int changed = -1; changed < 9; changed++) {
        struct cuda_streams_counts before = emulated_device_counts();
        give_loss(&f, changed);
        assert_int_equal(since(before).launches, changed == 4);
        give_loss(&f, changed);
        give_loss(&f, changed);
        struct cuda_streams_counts made = since(before);
        assert_int_equal(made.launches, changed == 4 ? 3 : 2);
        assert_int_equal(made.captures, 1);
    }
    close_fixture(&f);
}

static void the_same_calls_in_more_or_fewer_are_another_span(void **state) {
    struct fixture f;
    (void)state;
    open_fixture(&f, "order=1");
    expect_new_span(&f);
    struct cuda_streams_counts before = emulated_device_counts();
    f.ops->begin(f.device);
    multiply(&f, f.x, f.w, f.y);
    f.ops->end(f.device);
    f.ops->begin(f.device);
    f.ops->end(f.device);
    assert_int_equal(since(before).launches, 0);
    assert_int_equal(since(before).works, 1);
    close_fixture(&f);
}

static void move_memory(struct fixture *f) {
    f->ops->release(f->device, f->y);
    f->y = allocate(f);
}

static void move_other_memory(struct fixture *f) {
    f->ops->release(f->device, allocate(f));
}

static void unpin(struct fixture *f) {
    f->ops->pin(f->device, f->host, sizeof f->host);
    f->ops->unpin(f->device, f->host);
}

static void close_an_event(struct fixture *f) {
    struct ops_event *event = f->ops->event_open(f->device);
    f->ops->event_close(f->device, &event);
}

static void change_precision(struct fixture *f) {
    f->ops->set_precision(f->device, JOB_HALF_BF16);
    expect_span(f, 6, 0);
    f->ops->set_precision(f->device, JOB_PRECISE);
}

/* The room of partial sums, which a graph may know. */
static void grow_a_room(struct fixture *f) {
    static uint32_t more = 4;
    more = 2 * more % FLOATS;
    f->ops->loss(f->device, JOB_MSE, f->x, (const uint32_t *)f->y, NULL, more,
                 1, 1, (double *)f->z, (uint32_t *)f->z + 2);
}

static void no_graph_is_launched_that_knows_other_memory(void **state) {
    static void (*const each[])(struct fixture *) = {
        move_memory,    move_other_memory, unpin,
        close_an_event, change_precision,  grow_a_room};
    (void)state;
    for (int i = 0; i < 6; i++) {
        struct fixture f;
        open_fixture(&f, "order=0");
        const uint32_t zeros[FLOATS] = {0};
        f.ops->upload(f.device, OPS_COMPUTE, f.y, zeros, BYTES);
        expect_new_span(&f);
        f.ops->upload(f.device, OPS_COMPUTE, f.y, zeros, BYTES);
        each[i](&f);
        expect_new_span(&f);
        close_fixture(&f);
    }
}

static void in_halves_a_span_has_its_rooms_when_it_is_captured(void **state) {
    struct fixture f;
    (void)state;
    open_fixture(&f, "order=0");
    f.ops->set_precision(f.device, JOB_HALF_FP16);
    expect_span(&f, 6, 0);
    expect_span(&f, 0, 1);
    expect_span(&f, 0, 1);
    assert_int_equal(f.warnings, 0);
    close_fixture(&f);
}

/* As a step is: weights come up beside the computing, what is computed leaves
 * beside it, and the host waits for that alone. */
static void give_step(struct fixture *f, float *weights, float *found) {
    const struct ops *ops = f->ops;
    ops->upload(f->device, OPS_WEIGHTS, f->w, weights, BYTES);
    ops->record(f->device, OPS_WEIGHTS, f->brought);
    ops->begin(f->device);
    ops->follow(f->device, OPS_COMPUTE, f->brought);
    multiply(f, f->x, f->w, f->y);
    ops->record(f->device, OPS_COMPUTE, f->computed);
    ops->follow(f->device, OPS_GRADIENTS, f->computed);
    ops->download(f->device, OPS_GRADIENTS, found, f->y, BYTES);
    ops->record(f->device, OPS_GRADIENTS, f->taken);
    multiply(f, f->y, f->w, f->z);
    ops->record(f->device, OPS_COMPUTE, f->computed);
    ops->end(f->device);
    ops->follow(f->device, OPS_WEIGHTS, f->computed);
}

static void streams_meet_in_a_graph_as_they_do_without(void **state) {
    (void)state;
    for (int order = 0; order < CUDA_STREAMS_ORDERS; order++)
        for (int seed = 0; seed < SEEDS; seed++) {
            struct fixture f;
            struct failure why;
            char text[64];
            snprintf(text, sizeof text, "order=%d,seed=%d", order, seed);
            open_fixture(&f, text);
            struct cuda_streams_counts before = emulated_device_counts();
            set(&f, f.x, 1);
            for (int step = 1; step < 8; step++) {
                float weights[FLOATS] = {(float)step};
                give_step(&f, weights, f.host);
                if (f.ops->await(f.device, f.taken, &why))
                    fail_msg("%s", why.text);
                assert_true(f.host[0] == (float)step);
                f.host[0] = -1;
                assert_true(get(&f, f.z) == (float)(step * step));
            }
            assert_int_equal(since(before).launches, 6);
            close_fixture(&f);
        }
}

/* w goes up before the span and after it on the stream that brings it down in
 * it, and nothing else orders the three. */
static void a_stream_keeps_its_order_around_a_graph(void **state) {
    (void)state;
    for (int order = 0; order < CUDA_STREAMS_ORDERS; order++)
        for (int seed = 0; seed < SEEDS; seed++) {
            struct fixture f;
            char text[64];
            snprintf(text, sizeof text, "order=%d,seed=%d", order, seed);
            open_fixture(&f, text);
            set(&f, f.x, 1);
            struct cuda_streams_counts before = emulated_device_counts();
            for (int step = 1; step < 6; step++) {
                float now[FLOATS] = {(float)step}, later[FLOATS] = {-1};
                f.ops->upload(f.device, OPS_GRADIENTS, f.w, now, BYTES);
                f.ops->begin(f.device);
                multiply(&f, f.x, f.x, f.y);
                f.ops->download(f.device, OPS_GRADIENTS, f.host, f.w, BYTES);
                f.ops->end(f.device);
                f.ops->upload(f.device, OPS_GRADIENTS, f.w, later, BYTES);
                f.ops->record(f.device, OPS_GRADIENTS, f.taken);
                assert_int_equal(f.ops->await(f.device, f.taken, NULL),
                                 STATUS_OK);
                assert_true(f.host[0] == (float)step);
            }
            assert_int_equal(since(before).launches, 4);
            assert_int_equal(f.warnings, 0);
            close_fixture(&f);
        }
}

static void what_cannot_be_captured_goes_call_by_call(void **state) {
    static const char *const each[] = {"refuse=capture", "refuse=work",
                                       "refuse=instantiate"};
    static const uint64_t tried[] = {0, 1, 2}; /* before it is given up */
    (void)state;
    for (int i = 0; i < 3; i++) {
        struct fixture f;
        open_fixture(&f, each[i]);
        expect_span(&f, 2, 0);
        assert_int_equal(f.warnings, 0);
        for (int times = 0; times < 3; times++)
            expect_span(&f, times ? 2 : 2 + tried[i], 0);
        move_memory(&f);
        for (int times = 0; times < 3; times++)
            expect_span(&f, 2, 0);
        assert_int_equal(f.warnings, 1);
        assert_non_null(strstr(f.warning, "device cuda 0 ("));
        assert_non_null(strstr(f.warning, "no CUDA graph can be made of a"));
        close_fixture(&f);
    }
}

static void a_long_span_goes_in_pieces(void **state) {
    struct fixture f;
    (void)state;
    open_fixture(&f, "order=0");
    set(&f, f.x, 1);
    set(&f, f.w, 1);
    for (int times = 0; times < 4; times++) {
        struct cuda_streams_counts before = emulated_device_counts();
        f.ops->begin(f.device);
        for (int i = 0; i < 2500; i++)
            multiply(&f, f.x, f.w, i % 2 ? f.y : f.z);
        f.ops->record(f.device, OPS_COMPUTE, f.taken);
        f.ops->end(f.device);
        assert_int_equal(f.ops->await(f.device, f.taken, NULL), STATUS_OK);
        assert_int_equal(since(before).launches, times ? 2 : 0);
    }
    close_fixture(&f);
}

/* Three rounds of them: none is remembered until it comes again. */
static void more_spans_than_are_remembered_go_call_by_call(void **state) {
    struct fixture f;
    (void)state;
    open_fixture(&f, "order=0");
    set(&f, f.x, 2);
    struct cuda_streams_counts before = emulated_device_counts();
    for (int round = 0; round < 3; round++)
        for (uint32_t i = 1; i < 400; i++) {
            f.ops->begin(f.device);
            f.ops->column_sums(f.device, f.x, f.z, 1, 1, false);
            for (uint32_t more = 0; more < i; more++)
                f.ops->record(f.device, OPS_COMPUTE, f.computed);
            f.ops->end(f.device);
        }
    assert_int_equal(since(before).captures, 0);
    assert_true(get(&f, f.z) == 2);
    expect_new_span(&f);
    close_fixture(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_span_given_a_third_time_is_one_call),
        cmocka_unit_test(another_argument_is_another_span),
        cmocka_unit_test(the_same_calls_in_more_or_fewer_are_another_span),
        cmocka_unit_test(no_graph_is_launched_that_knows_other_memory),
        cmocka_unit_test(in_halves_a_span_has_its_rooms_when_it_is_captured),
        cmocka_unit_test(streams_meet_in_a_graph_as_they_do_without),
        cmocka_unit_test(a_stream_keeps_its_order_around_a_graph),
        cmocka_unit_test(what_cannot_be_captured_goes_call_by_call),
        cmocka_unit_test(a_long_span_goes_in_pieces),
        cmocka_unit_test(more_spans_than_are_remembered_go_call_by_call),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
