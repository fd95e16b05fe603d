/* SPDX-License-Identifier: Apache-2.0 */
/* The spans of capstan-cuda.so and its graphs: on this machine's GPU, else over
 * stand-ins for CUDA's libraries, where the host's calls are counted too. */
#include "worker/ops/device.h"

#include "tests/cluster/emulated_device.h"
#include "tests/gpu/sync_device.h"
#include "tests/lib/skip.h"
#include "tests/lib/test.h"

#include <limits.h>

enum { WIDTH = 8, FLOATS = WIDTH * WIDTH, BYTES = FLOATS * sizeof(float) };
enum { SEEDS = 12, PAGE = 4096 };

/* The plugin of a machine that has a GPU, or NULL. */
static const struct device_ops *real;

static int find_gpu(void **state) {
    (void)state;
    real = sync_device_plugin(&failure);
    if (!real)
        print_message("without a GPU: %s\n", failure.text);
    return 0;
}

GROUP(find_gpu, NULL);

/* Matrices on the device, and lines that it warned with. */
struct fixture {
    const struct device_ops *ops;
    struct device *device;
    struct device_event *brought, *computed, *taken;
    float *x, *w, *y, *z;
    float *host; /* FLOATS, pinned */
    unsigned warnings, expected;
    char warning[512];
};

static void warn(void *warn_context, const char *line) {
    struct fixture *fixture = warn_context;
    fixture->warnings++;
    snprintf(fixture->warning, sizeof fixture->warning, "%s", line);
}

static float *allocate(struct fixture *f) {
    float *memory = f->ops->allocate(f->device, BYTES);
    assert_non_null(memory);
    return memory;
}

static void open_fixture_with(struct fixture *f, const char *arranged,
                              bool no_graphs) {
    setenv("CAPSTAN_EMULATED", arranged, 1);
    *f = (struct fixture){.ops = real ? real : emulated_device_ops()};
    if (!f->ops)
        skip_test("built where CUDA's headers are");
    struct device_settings settings = {.threads = 1,
                                       .timeout = 60,
                                       .warn = warn,
                                       .warn_context = f,
                                       .no_graphs = no_graphs};
    assert_ok(f->ops->open(&f->device, &settings, &failure));
    f->host = aligned_alloc(PAGE, PAGE);
    assert_true(f->ops->pin(f->device, f->host, PAGE));
    f->brought = f->ops->event_open(f->device);
    f->computed = f->ops->event_open(f->device);
    f->taken = f->ops->event_open(f->device);
    f->x = allocate(f);
    f->w = allocate(f);
    f->y = allocate(f);
    f->z = allocate(f);
}

static void open_fixture(struct fixture *f, const char *arranged) {
    open_fixture_with(f, arranged, false);
}

/* Of a device that may have failed. */
static void drop_references(struct fixture *f) {
    float *const all[] = {f->x, f->w, f->y, f->z};
    for (int i = 0; i < 4; i++)
        f->ops->release(f->device, all[i]);
    f->ops->event_close(f->device, &f->brought);
    f->ops->event_close(f->device, &f->computed);
    f->ops->event_close(f->device, &f->taken);
    f->ops->unpin(f->device, f->host);
    free(f->host);
    f->ops->close(&f->device);
    unsetenv("CAPSTAN_EMULATED");
}

static void close_fixture(struct fixture *f) {
    assert_int_equal(f->ops->synchronize(f->device, NULL), STATUS_OK);
    drop_references(f);
    if (f->warnings != f->expected)
        fail_msg("%u warnings: %s", f->warnings, f->warning);
}

/* MEMORY, of the device, holds VALUE on its diagonal, else 0. */
static void set(struct fixture *f, float *memory, float value) {
    float diagonal[FLOATS] = {0};
    for (int i = 0; i < WIDTH; i++)
        diagonal[i * WIDTH + i] = value;
    f->ops->upload(f->device, STREAM_COMPUTE, memory, diagonal, BYTES);
    assert_int_equal(f->ops->synchronize(f->device, NULL), STATUS_OK);
}

/* The first of MEMORY's floats, all of which are done. */
static float get(struct fixture *f, const float *memory) {
    float found[FLOATS];
    f->ops->download(f->device, STREAM_COMPUTE, found, memory, BYTES);
    assert_int_equal(f->ops->synchronize(f->device, NULL), STATUS_OK);
    return found[0];
}

/* to = a b. */
static void multiply(struct fixture *f, const float *a, const float *b,
                     float *to) {
    f->ops->run(f->device, STREAM_COMPUTE,
                op_linear_input_gradient(a, b, to, WIDTH, WIDTH, WIDTH));
}

/* z = x w w. */
static void submit_graph(struct fixture *f) {
    f->ops->capture_begin(f->device);
    multiply(f, f->x, f->w, f->y);
    multiply(f, f->y, f->w, f->z);
    f->ops->capture_end(f->device);
}

/* Of the host's calls so far; nothing where they are not counted. */
static struct cuda_streams_counts count(void) {
    return real ? (struct cuda_streams_counts){0} : emulated_device_counts();
}

static struct cuda_streams_counts since(struct cuda_streams_counts before) {
    struct cuda_streams_counts now = count();
    return (struct cuda_streams_counts){
        .works = now.works - before.works,
        .events = now.events - before.events,
        .waits = now.waits - before.waits,
        .captures = now.captures - before.captures,
        .launches = now.launches - before.launches};
}

#define assert_counted(found, expected)                                        \
    assert_int_equal(found, real ? 0 : (expected))

/* The span with 2 on x's diagonal and 3 on w's goes out by so many calls and
 * launches, and is right. */
static void expect_graph(struct fixture *f, uint64_t works, uint64_t launches) {
    set(f, f->x, 2);
    set(f, f->w, 3);
    struct cuda_streams_counts before = count();
    submit_graph(f);
    struct cuda_streams_counts made = since(before);
    if (!real && made.captures == 0 && made.works != works)
        fail_msg("%u calls", (unsigned)made.works);
    assert_counted(made.launches, launches);
    assert_true(get(f, f->z) == 2 * 3 * 3);
}

static void expect_new_graph(struct fixture *f) {
    expect_graph(f, 2, 0);
    expect_graph(f, 0, 1);
    expect_graph(f, 0, 1);
}

TEST(a_graph_repeated_a_third_time_is_one_launch) {
    struct fixture f;
    open_fixture(&f, "order=0");
    expect_new_graph(&f);
    struct cuda_streams_counts before = count();
    for (int i = 0; i < 10; i++)
        submit_graph(&f);
    struct cuda_streams_counts made = since(before);
    assert_counted(made.launches, 10);
    assert_int_equal(made.works + made.events + made.waits + made.captures, 0);
    close_fixture(&f);
}

/* Each of a loss's arguments, changed by itself. */
static void submit_loss(struct fixture *f, int changed) {
    const uint32_t *labels = (const uint32_t *)f->w;
    double *sum = (double *)f->z;
    f->ops->capture_begin(f->device);
    f->ops->run(f->device, STREAM_COMPUTE,
                op_loss(changed == 0 ? JOB_MSE : JOB_SOFTMAX_CROSS_ENTROPY,
                        changed == 1 ? f->z + 16 : f->x,
                        changed == 2 ? labels + 1 : labels,
                        changed == 9 ? f->w : NULL, changed == 3 ? NULL : f->y,
                        changed == 4 ? 3 : 2, changed == 5 ? 3 : 2,
                        changed == 6 ? 0.5f : 1, changed == 7 ? sum + 1 : sum,
                        (uint32_t *)(sum + (changed == 8 ? 3 : 2))));
    f->ops->capture_end(f->device);
}

TEST(another_argument_is_another_graph) {
    struct fixture f;
    open_fixture(&f, "order=1");
    const uint32_t zeros[FLOATS] = {0};
    f.ops->upload(f.device, STREAM_COMPUTE, f.w, zeros, BYTES);
    f.ops->upload(f.device, STREAM_COMPUTE, f.x, zeros, BYTES);
    submit_loss(&f, 4); /* its room is there */
    for (int changed = -1; changed < 10; changed++) {
        struct cuda_streams_counts before = count();
        submit_loss(&f, changed);
        assert_counted(since(before).launches, changed == 4);
        submit_loss(&f, changed);
        submit_loss(&f, changed);
        struct cuda_streams_counts made = since(before);
        assert_counted(made.launches, changed == 4 ? 3 : 2);
        assert_counted(made.captures, 1);
    }
    close_fixture(&f);
}

TEST(more_or_fewer_calls_are_another_graph) {
    struct fixture f;
    open_fixture(&f, "order=1");
    expect_new_graph(&f);
    struct cuda_streams_counts before = count();
    f.ops->capture_begin(f.device);
    multiply(&f, f.x, f.w, f.y);
    f.ops->capture_end(f.device);
    f.ops->capture_begin(f.device);
    f.ops->capture_end(f.device);
    assert_counted(since(before).launches, 0);
    assert_counted(since(before).works, 1);
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
    void *memory = aligned_alloc(PAGE, PAGE);
    f->ops->pin(f->device, memory, PAGE);
    f->ops->unpin(f->device, memory);
    free(memory);
}

static void close_an_event(struct fixture *f) {
    struct device_event *event = f->ops->event_open(f->device);
    f->ops->event_close(f->device, &event);
}

static void change_precision(struct fixture *f) {
    f->ops->set_precision(f->device, JOB_PRECISION_BF16);
    expect_graph(f, 6, 0);
    f->ops->set_precision(f->device, JOB_PRECISION_FP32);
}

/* The room of partial sums, which a graph may know. */
static void grow_scratch(struct fixture *f) {
    static uint32_t more = 4;
    more = 2 * more % FLOATS;
    f->ops->run(f->device, STREAM_COMPUTE,
                op_loss(JOB_MSE, f->x, (const uint32_t *)f->y, NULL, NULL, more,
                        1, 1, (double *)f->z, (uint32_t *)f->z + 2));
}

TEST(a_graph_with_other_addresses_is_not_launched) {
    static void (*const each[])(struct fixture *) = {
        move_memory,    move_other_memory, unpin,
        close_an_event, change_precision,  grow_scratch};
    for (int i = 0; i < 6; i++) {
        struct fixture f;
        open_fixture(&f, "order=0");
        const uint32_t zeros[FLOATS] = {0};
        f.ops->upload(f.device, STREAM_COMPUTE, f.y, zeros, BYTES);
        expect_new_graph(&f);
        f.ops->upload(f.device, STREAM_COMPUTE, f.y, zeros, BYTES);
        each[i](&f);
        expect_new_graph(&f);
        close_fixture(&f);
    }
}

TEST(in_half_precision_scratch_buffers_exist_before_capture) {
    struct fixture f;
    open_fixture(&f, "order=0");
    f.ops->set_precision(f.device, JOB_PRECISION_FP16);
    expect_graph(&f, 6, 0);
    expect_graph(&f, 0, 1);
    expect_graph(&f, 0, 1);
    close_fixture(&f);
}

/* Of sizes beyond those of the graph, which would need more scratch memory. */
TEST(ops_of_prepared_sizes_keep_the_graphs) {
    struct fixture f;
    static const float zeros[2 * FLOATS];
    open_fixture(&f, "order=0");
    float *w = f.ops->allocate(f.device, 2 * BYTES);
    float *to = f.ops->allocate(f.device, 2 * BYTES);
    const struct op ops_to_prepare[] = {
        op_loss(JOB_MSE, f.x, (uint32_t *)w, NULL, NULL, FLOATS, 1, 1,
                (double *)to, (uint32_t *)to + 2),
        op_linear_input_gradient(f.x, w, to, WIDTH, 2 * WIDTH, WIDTH)};
    f.ops->upload(f.device, STREAM_COMPUTE, w, zeros, sizeof zeros);
    f.ops->set_precision(f.device, JOB_PRECISION_FP16);
    for (int i = 0; i < 2; i++)
        assert_ok(f.ops->prepare(f.device, ops_to_prepare[i], &failure));
    expect_graph(&f, 6, 0);
    expect_graph(&f, 0, 1);
    for (int i = 0; i < 2; i++)
        f.ops->run(f.device, STREAM_COMPUTE, ops_to_prepare[i]);
    expect_graph(&f, 0, 1);
    f.ops->release(f.device, w);
    f.ops->release(f.device, to);
    close_fixture(&f);
}

TEST(unsupported_ops_are_known_before_they_run) {
    struct fixture f;
    bool nonfinite;
    const float *none = NULL;
    const void *gradient = none;
    const struct optimizer sgd = {.type = OPTIMIZER_SGD};
    struct rule_update update = {.num_gradients = 1, .gradients = &gradient};
    open_fixture(&f, "order=0");
    assert_true(f.ops->supports(f.device, op_rule(&sgd, &update, NULL)));
    update.nonfinite = &nonfinite;
    assert_false(f.ops->supports(f.device, op_rule(&sgd, &update, NULL)));
    struct op product =
        op_linear_input_gradient(NULL, NULL, NULL, 1, INT_MAX, 1);
    assert_true(f.ops->supports(f.device, product));
    product.in++;
    assert_false(f.ops->supports(f.device, product));
    close_fixture(&f);
}

/* As a step is: weights come up beside the computing, what is computed leaves
 * beside it, and the host waits for that alone. */
static void submit_step(struct fixture *f, float *weights, float *found) {
    const struct device_ops *ops = f->ops;
    ops->upload(f->device, STREAM_WEIGHTS, f->w, weights, BYTES);
    ops->record(f->device, STREAM_WEIGHTS, f->brought);
    ops->capture_begin(f->device);
    ops->stream_wait(f->device, STREAM_COMPUTE, f->brought);
    multiply(f, f->x, f->w, f->y);
    ops->record(f->device, STREAM_COMPUTE, f->computed);
    ops->stream_wait(f->device, STREAM_GRADIENTS, f->computed);
    ops->download(f->device, STREAM_GRADIENTS, found, f->y, BYTES);
    ops->record(f->device, STREAM_GRADIENTS, f->taken);
    multiply(f, f->y, f->w, f->z);
    ops->record(f->device, STREAM_COMPUTE, f->computed);
    ops->capture_end(f->device);
    ops->stream_wait(f->device, STREAM_WEIGHTS, f->computed);
}

TEST(streams_synchronize_in_a_graph_as_without) {
    for (int order = 0; order < CUDA_STREAMS_ORDERS; order++)
        for (int seed = 0; seed < SEEDS; seed++) {
            struct fixture f;
            open_fixture(&f, textf("order=%d,seed=%d", order, seed));
            struct cuda_streams_counts before = count();
            set(&f, f.x, 1);
            for (int step = 1; step < 8; step++) {
                float weights[FLOATS] = {(float)step};
                submit_step(&f, weights, f.host);
                assert_ok(f.ops->event_sync(f.device, f.taken, &failure));
                assert_true(f.host[0] == (float)step);
                f.host[0] = -1;
                assert_true(get(&f, f.z) == (float)(step * step));
            }
            assert_counted(since(before).launches, 6);
            close_fixture(&f);
        }
}

/* w goes up before the span and after it on the stream that brings it down in
 * it, and nothing else orders the three. */
TEST(a_stream_keeps_its_order_around_a_graph) {
    for (int order = 0; order < CUDA_STREAMS_ORDERS; order++)
        for (int seed = 0; seed < SEEDS; seed++) {
            struct fixture f;
            open_fixture(&f, textf("order=%d,seed=%d", order, seed));
            set(&f, f.x, 1);
            struct cuda_streams_counts before = count();
            for (int step = 1; step < 6; step++) {
                float now[FLOATS] = {(float)step}, async[FLOATS] = {-1};
                f.ops->upload(f.device, STREAM_GRADIENTS, f.w, now, BYTES);
                f.ops->capture_begin(f.device);
                multiply(&f, f.x, f.x, f.y);
                f.ops->download(f.device, STREAM_GRADIENTS, f.host, f.w, BYTES);
                f.ops->capture_end(f.device);
                f.ops->upload(f.device, STREAM_GRADIENTS, f.w, async, BYTES);
                f.ops->record(f.device, STREAM_GRADIENTS, f.taken);
                assert_int_equal(f.ops->event_sync(f.device, f.taken, NULL),
                                 STATUS_OK);
                assert_true(f.host[0] == (float)step);
            }
            assert_counted(since(before).launches, 4);
            close_fixture(&f);
        }
}

/* As late as they may, what a graph computes is not done when a copy has come
 * that follows what leaves in the middle of it. */
TEST(a_stream_continues_before_a_graph_has_ended) {
    struct fixture f;
    open_fixture(&f, "order=0");
    float *last = f.host + FLOATS, *async = last + FLOATS;
    set(&f, f.x, 1);
    set(&f, f.w, 2);
    for (int times = 0; times < 4; times++) {
        *last = *async = -1;
        f.ops->capture_begin(f.device);
        multiply(&f, f.x, f.w, f.y);
        f.ops->record(f.device, STREAM_COMPUTE, f.computed);
        f.ops->stream_wait(f.device, STREAM_GRADIENTS, f.computed);
        f.ops->download(f.device, STREAM_GRADIENTS, f.host, f.y, BYTES);
        multiply(&f, f.y, f.w, f.z);
        f.ops->download(f.device, STREAM_COMPUTE, last, f.z, BYTES);
        f.ops->capture_end(f.device);
        f.ops->download(f.device, STREAM_GRADIENTS, async, f.y, BYTES);
        f.ops->record(f.device, STREAM_GRADIENTS, f.taken);
        assert_int_equal(f.ops->event_sync(f.device, f.taken, NULL), STATUS_OK);
        assert_true(*async == 2);
        assert_true(real || *last == -1);
        assert_int_equal(f.ops->synchronize(f.device, NULL), STATUS_OK);
        assert_true(*last == 4);
    }
    close_fixture(&f);
}

/* Spans by chance over a few matrices: what a graph does side by side is what
 * goes one by one without. */
enum { PLACES = 6, CALLS = 14, ALL = PLACES * FLOATS, SUMS = 4 };

struct chance {
    struct fixture f;
    float *memory; /* [PLACES, FLOATS] */
    float *others; /* as many, which stay as they are */
    uint32_t *labels;
    double *sums; /* of the loss, how many are right, and of all columns */
    uint32_t seed;
};

/* What a span leaves behind. */
struct outcome {
    float memory[ALL], taken[FLOATS];
    double sums[SUMS];
};

static uint32_t draw(uint32_t *seed, uint32_t below) {
    *seed = *seed * 1664525 + 1013904223;
    return (*seed >> 16) % below;
}

/* Three different matrices. */
static void draw_places(struct chance *chance, uint32_t *seed,
                        float *places[3]) {
    uint32_t first = draw(seed, PLACES);
    uint32_t second = 1 + draw(seed, PLACES - 1);
    uint32_t third = 1 + draw(seed, PLACES - 1);
    third += third == second;
    places[0] = chance->memory + first * FLOATS;
    places[1] = chance->memory + (first + second) % PLACES * FLOATS;
    places[2] = chance->memory + (first + third % PLACES) % PLACES * FLOATS;
}

static void submit_call(struct chance *chance, uint32_t *seed, float *found) {
    const struct device_ops *ops = chance->f.ops;
    struct device *device = chance->f.device;
    float *p[3];
    draw_places(chance, seed, p);
    bool add = draw(seed, 2);
    switch (draw(seed, 12)) {
    case 0:
        multiply(&chance->f, p[0], p[1], p[2]);
        return;
    case 1:
        ops->run(
            device, STREAM_COMPUTE,
            op_linear(p[0], p[1], p[1], p[2], WIDTH, WIDTH, WIDTH, JOB_RELU));
        return;
    case 2:
    case 3:
    case 4:
        ops->run(device, STREAM_COMPUTE,
                 op_linear_weight_gradient(p[0], p[1], p[2], WIDTH, WIDTH,
                                           WIDTH, add));
        return;
    case 5:
        ops->run(device, STREAM_COMPUTE,
                 op_column_sums(p[0], p[1] + 8 * add, WIDTH, WIDTH, add));
        return;
    case 6:
        ops->run(device, STREAM_COMPUTE,
                 op_activation_gradient(JOB_TANH, p[0], p[1], WIDTH, WIDTH));
        return;
    case 7:
        ops->run(device, STREAM_COMPUTE,
                 op_loss(JOB_MSE, p[0], chance->labels, NULL, p[1], WIDTH,
                         WIDTH, 1, chance->sums,
                         (uint32_t *)(chance->sums + 1)));
        return;
    case 8: /* in several pieces */
        ops->run(device, STREAM_COMPUTE,
                 op_column_sums(chance->others, (float *)(chance->sums + 2),
                                ALL, 1, add));
        return;
    case 9:
        ops->run(device, STREAM_COMPUTE, op_scale(p[0], FLOATS, 0.5f));
        return;
    case 10:
        ops->run(device, STREAM_COMPUTE,
                 op_rows_copy(p[0], WIDTH, p[1], WIDTH, WIDTH, WIDTH, add));
        return;
    default:
        ops->record(device, STREAM_COMPUTE, chance->f.computed);
        ops->stream_wait(device, STREAM_GRADIENTS, chance->f.computed);
        ops->download(device, STREAM_GRADIENTS, found, p[0], BYTES);
        ops->record(device, STREAM_GRADIENTS, chance->f.taken);
        ops->stream_wait(device, STREAM_COMPUTE, chance->f.taken);
    }
}

/* The span of the seed, on matrices of small numbers. */
static void run_chance(struct chance *chance, struct outcome *outcome) {
    const struct device_ops *ops = chance->f.ops;
    struct device *device = chance->f.device;
    float *taken = chance->f.host;
    uint32_t seed = chance->seed;
    *outcome = (struct outcome){0};
    memset(taken, 0, BYTES);
    for (int i = 0; i < ALL; i++)
        outcome->memory[i] = (float)(i % 7 - 3) / 16;
    ops->upload(device, STREAM_COMPUTE, chance->memory, outcome->memory,
                sizeof outcome->memory);
    ops->upload(device, STREAM_COMPUTE, chance->sums, outcome->sums,
                sizeof outcome->sums);
    assert_int_equal(ops->synchronize(device, NULL), STATUS_OK);
    ops->capture_begin(device);
    for (int i = 0; i < CALLS; i++)
        submit_call(chance, &seed, taken);
    ops->capture_end(device);
    ops->download(device, STREAM_COMPUTE, outcome->memory, chance->memory,
                  sizeof outcome->memory);
    ops->download(device, STREAM_COMPUTE, outcome->sums, chance->sums,
                  sizeof outcome->sums);
    assert_int_equal(ops->synchronize(device, NULL), STATUS_OK);
    memcpy(outcome->taken, taken, BYTES);
}

static void check_chances(struct chance *chance) {
    static struct outcome first, again;
    enum { PROGRAMS = 200, FEW = 60 /* until all rooms are there */ };
    for (chance->seed = 0; chance->seed < FEW; chance->seed++)
        run_chance(chance, &first);
    struct cuda_streams_counts before = count();
    for (chance->seed = FEW; chance->seed < FEW + PROGRAMS; chance->seed++) {
        run_chance(chance, &first);
        for (int times = 0; times < 3; times++) {
            run_chance(chance, &again);
            if (memcmp(&first, &again, sizeof first))
                fail_msg("seed %u, launch %d", chance->seed, times);
        }
    }
    assert_counted(since(before).launches, 3 * PROGRAMS);
}

TEST(a_parallel_graph_computes_the_same_as_single_calls) {
    static const enum job_precision each[] = {
        JOB_PRECISION_FP32, JOB_PRECISION_BF16, JOB_PRECISION_TF32};
    static const uint32_t zeros[WIDTH] = {0};
    static float others[ALL];
    for (int i = 0; i < ALL; i++)
        others[i] = (float)(i % 11);
    for (int i = 0; i < 3; i++) {
        struct chance chance = {.seed = 0};
        open_fixture(&chance.f, "order=2,seed=5");
        const struct device_ops *ops = chance.f.ops;
        struct device *device = chance.f.device;
        ops->set_precision(device, each[i]);
        chance.memory = ops->allocate(device, ALL * sizeof(float));
        chance.labels = ops->allocate(device, sizeof zeros);
        chance.sums = ops->allocate(device, SUMS * sizeof *chance.sums);
        chance.others = ops->allocate(device, sizeof others);
        ops->upload(device, STREAM_COMPUTE, chance.labels, zeros, sizeof zeros);
        ops->upload(device, STREAM_COMPUTE, chance.others, others,
                    sizeof others);
        check_chances(&chance);
        ops->release(device, chance.memory);
        ops->release(device, chance.others);
        ops->release(device, chance.labels);
        ops->release(device, chance.sums);
        close_fixture(&chance.f);
    }
}

TEST(an_uncapturable_sequence_runs_call_by_call) {
    static const char *const each[] = {"refuse=capture", "refuse=work",
                                       "refuse=instantiate"};
    static const uint64_t tried[] = {0, 1, 2}; /* before it is given up */
    if (real)
        skip_test("a real GPU refuses nothing on demand");
    for (int i = 0; i < 3; i++) {
        struct fixture f;
        open_fixture(&f, each[i]);
        expect_graph(&f, 2, 0);
        assert_int_equal(f.warnings, 0);
        for (int times = 0; times < 3; times++)
            expect_graph(&f, times ? 2 : 2 + tried[i], 0);
        move_memory(&f);
        for (int times = 0; times < 3; times++)
            expect_graph(&f, 2, 0);
        f.expected = 1;
        assert_contains(f.warning, "device cuda 0 (");
        assert_contains(f.warning, "no CUDA graph can be made of a");
        close_fixture(&f);
    }
}

TEST(without_graphs_every_call_is_launched) {
    struct fixture f;
    open_fixture_with(&f, "", true);
    for (int times = 0; times < 4; times++)
        expect_graph(&f, 2, 0);
    close_fixture(&f);
}

/* That an event had not come yet is no reason for it. */
TEST(a_failed_product_is_reported_with_the_cublas_error) {
    struct fixture f;
    struct failure why = {0};
    if (real)
        skip_test("a real GPU refuses nothing on demand");
    open_fixture(&f, "order=2,seed=1");
    set(&f, f.x, 1);
    setenv("CAPSTAN_EMULATED", "refuse=product", 1);
    multiply(&f, f.x, f.x, f.y);
    f.ops->record(f.device, STREAM_COMPUTE, f.computed);
    assert_fails(f.ops->event_sync(f.device, f.computed, &why), &why,
                 FAILURE_DEVICE_LOST);
    assert_contains(why.text, "device cuda 0 (");
    assert_contains(why.text, "at an error of cuBLAS");
    assert_null(strstr(why.text, "not ready"));
    drop_references(&f);
}

TEST(a_long_graph_is_split) {
    struct fixture f;
    open_fixture(&f, "order=0");
    set(&f, f.x, 1);
    set(&f, f.w, 1);
    for (int times = 0; times < 4; times++) {
        struct cuda_streams_counts before = count();
        f.ops->capture_begin(f.device);
        for (int i = 0; i < 2500; i++)
            multiply(&f, f.x, f.w, i % 2 ? f.y : f.z);
        f.ops->record(f.device, STREAM_COMPUTE, f.taken);
        f.ops->capture_end(f.device);
        assert_int_equal(f.ops->event_sync(f.device, f.taken, NULL), STATUS_OK);
        assert_counted(since(before).launches, times ? 2 : 0);
    }
    close_fixture(&f);
}

/* Three rounds of them: none is remembered until it comes again. */
TEST(graphs_beyond_the_cache_run_call_by_call) {
    struct fixture f;
    open_fixture(&f, "order=0");
    set(&f, f.x, 2);
    struct cuda_streams_counts before = count();
    for (int round = 0; round < 3; round++)
        for (uint32_t i = 1; i < 400; i++) {
            f.ops->capture_begin(f.device);
            f.ops->run(f.device, STREAM_COMPUTE,
                       op_column_sums(f.x, f.z, 1, 1, false));
            for (uint32_t more = 0; more < i; more++)
                f.ops->record(f.device, STREAM_COMPUTE, f.computed);
            f.ops->capture_end(f.device);
        }
    assert_int_equal(since(before).captures, 0);
    assert_true(get(&f, f.z) == 2);
    expect_new_graph(&f);
    close_fixture(&f);
}
