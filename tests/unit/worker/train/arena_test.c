/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/train/arena.h"

#include "core/base/free_memory.h"
#include "tests/lib/assert_fails.h"
#include "tests/lib/test.h"
#include "worker/exchange/allreduce/reducer.h"

#include <stdio.h>
#include <string.h>

/* A layout of one-dimensional parameters. */
static struct layout *build(const uint32_t *elements, uint32_t count) {
    struct parameter parameters[8] = {0};
    struct layout *layout;
    for (uint32_t p = 0; p < count; p++) {
        snprintf(parameters[p].name, sizeof parameters[p].name, "p%u", p);
        parameters[p].num_dims = 1;
        parameters[p].dims[0] = elements[p];
    }
    assert_ok(layout_build(&layout, parameters, count, &failure));
    return layout;
}

static void open_arena(struct arena *arena, const struct layout *layout) {
    assert_ok(arena_open(arena, layout, false, &failure));
}

static void expect_zero_gaps(const struct arena *arena,
                             const struct layout *layout) {
    struct buffer *const both[] = {arena->weights, arena->gradients};
    for (int i = 0; i < 2; i++) {
        const float *floats = buffer_data(both[i]);
        uint64_t end = 0, total = buffer_bytes(both[i]) / sizeof *floats;
        for (uint32_t p = layout->num_parameters; p-- > 0;) {
            for (; end < arena->offsets[p]; end++)
                assert_true(floats[end] == 0);
            end += layout->parameters[p].elements;
        }
        assert_true(end <= total && total - end < 16);
        for (; end < total; end++)
            assert_true(floats[end] == 0);
    }
}

TEST(parameters_adjacent_in_the_plan_are_adjacent_in_memory) {
    static const uint32_t elements[] = {3, 40000, 17, 16384};
    struct layout *layout = build(elements, 4);
    struct arena arena;
    open_arena(&arena, layout);
    for (uint32_t b = 1; b < layout->num_blocks; b++) {
        const struct block *last = &layout->blocks[b - 1];
        const struct block *next = &layout->blocks[b];
        const float *end =
            arena.gradient_of[last->parameter] + last->offset + last->elements;
        assert_ptr_equal(end,
                         arena.gradient_of[next->parameter] + next->offset);
        assert_int_equal(arena.offsets[next->parameter] + next->offset,
                         arena.offsets[last->parameter] + last->offset +
                             last->elements);
    }
    arena_close(&arena);
    layout_free(&layout);
}

TEST(separated_parameters_are_aligned_and_zero_padded) {
    static const uint32_t elements[] = {3, 40000, 17, 16384, 1};
    struct layout *layout = build(elements, 5);
    struct arena arena;
    assert_ok(arena_open(&arena, layout, true, &failure));
    expect_zero_gaps(&arena, layout);
    for (uint32_t p = 0; p < 5; p++) {
        assert_int_equal((uintptr_t)arena.weight_of[p] % 64, 0);
        assert_int_equal((uintptr_t)arena.gradient_of[p] % 64, 0);
    }
    assert_true(arena.offsets[4] >= REDUCER_HEADER_FLOATS);
    arena_close(&arena);
    layout_free(&layout);
}

TEST(parameters_of_64_bytes_are_aligned) {
    static const uint32_t elements[] = {32, 4096, 16, 10};
    struct layout *layout = build(elements, 4);
    struct arena arena;
    open_arena(&arena, layout);
    for (uint32_t p = 0; p < 3; p++) {
        assert_int_equal((uintptr_t)arena.weight_of[p] % 64, 0);
        assert_int_equal((uintptr_t)arena.gradient_of[p] % 64, 0);
    }
    arena_close(&arena);
    layout_free(&layout);
}

TEST(both_buffers_hold_every_parameter) {
    static const uint32_t elements[] = {5, 7};
    struct layout *layout = build(elements, 2);
    struct arena arena;
    open_arena(&arena, layout);
    for (uint32_t p = 0; p < 2; p++) {
        memset(arena.weight_of[p], 1, elements[p] * sizeof(float));
        memset(arena.gradient_of[p], 2, elements[p] * sizeof(float));
        assert_ptr_equal(arena.weight_of[p],
                         (float *)buffer_data(arena.weights) +
                             arena.offsets[p]);
    }
    assert_true(buffer_bytes(arena.weights) >= 12 * sizeof(float));
    arena_close(&arena);
    assert_null(arena.offsets);
    layout_free(&layout);
}

TEST(a_zero_word_precedes_the_first_parameter) {
    static const uint32_t elements[] = {32, 5};
    struct layout *layout = build(elements, 2);
    struct arena arena;
    open_arena(&arena, layout);
    assert_true(arena.offsets[1] >= REDUCER_HEADER_FLOATS);
    expect_zero_gaps(&arena, layout);
    assert_int_equal(buffer_bytes(arena.weights),
                     (arena.offsets[0] + 32) * sizeof(float));
    arena_close(&arena);
    layout_free(&layout);
}

TEST(a_second_arena_shares_weights_but_not_gradients) {
    static const uint32_t elements[] = {5, 7};
    struct layout *layout = build(elements, 2);
    struct arena arena, beside;
    open_arena(&arena, layout);
    for (int own = 0; own < 2; own++) {
        assert_ok(arena_open_replica(&beside, &arena, layout, own, &failure));
        assert_null(beside.weights);
        for (uint32_t p = 0; p < 2; p++) {
            assert_ptr_equal(beside.weight_of[p], arena.weight_of[p]);
            assert_int_equal(beside.offsets[p], arena.offsets[p]);
            if (own)
                memset(beside.gradient_of[p], 2, elements[p] * sizeof(float));
            assert_int_equal(beside.gradient_of[p] != NULL, own);
            assert_ptr_not_equal(beside.gradient_of[p], arena.gradient_of[p]);
        }
        arena_close(&beside);
    }
    arena_close(&arena);
    layout_free(&layout);
}

/* Fills ARENA with VALUE and closes it. */
static void fill_and_keep(struct arena *arena, struct arena_kept *kept,
                          int value) {
    size_t bytes = buffer_bytes(arena->weights);
    memset(buffer_data(arena->weights), value, bytes);
    memset(buffer_data(arena->gradients), value, bytes);
    arena_keep(arena, kept);
    assert_int_equal(free_memory_held(), 2 * bytes);
}

TEST(kept_memory_is_that_of_the_next_arena) {
    static const uint32_t elements[] = {3, 40000, 17};
    struct layout *layout = build(elements, 3);
    struct arena_kept kept = {0};
    struct arena arena;
    open_arena(&arena, layout);
    for (int run = 0; run < 2; run++) {
        const struct buffer *weights = arena.weights;
        const struct buffer *gradients = arena.gradients;
        fill_and_keep(&arena, &kept, 1 + run);
        assert_ok(arena_open_kept(&arena, layout, false, &kept, &failure));
        assert_ptr_equal(arena.weights, weights);
        assert_ptr_equal(arena.gradients, gradients);
        expect_zero_gaps(&arena, layout);
        assert_int_equal(free_memory_held(), 0);
    }
    arena_close(&arena);
    layout_free(&layout);
}

TEST(kept_memory_of_a_message_in_flight_is_left_alone) {
    static const uint32_t elements[] = {40000};
    struct layout *layout = build(elements, 1);
    struct arena_kept kept = {0};
    struct arena arena;
    open_arena(&arena, layout);
    struct buffer *sent = buffer_hold(arena.gradients);
    fill_and_keep(&arena, &kept, 1);
    assert_ok(arena_open_kept(&arena, layout, false, &kept, &failure));
    assert_ptr_not_equal(arena.gradients, sent);
    assert_true(buffer_is_unique(sent));
    for (size_t i = 0; i < buffer_bytes(sent); i++)
        assert_int_equal(((const char *)buffer_data(sent))[i], 1);
    buffer_release(&sent);
    arena_close(&arena);
    layout_free(&layout);
}

TEST(memory_that_does_not_fit_is_freed) {
    static const uint32_t elements[] = {40000}, fewer[] = {30000};
    struct layout *layouts[] = {build(elements, 1), build(fewer, 1)};
    for (int padded = 0; padded < 2; padded++) {
        struct arena_kept kept = {0};
        struct arena arena;
        open_arena(&arena, layouts[0]);
        fill_and_keep(&arena, &kept, 1);
        assert_ok(
            arena_open_kept(&arena, layouts[!padded], padded, &kept, &failure));
        assert_null(kept.weights);
        assert_null(kept.gradients);
        assert_int_equal(free_memory_held(), 0);
        assert_int_equal(buffer_segment(arena.weights) != NULL, padded);
        assert_int_equal(buffer_bytes(arena.weights),
                         (arena.offsets[0] + layouts[!padded]->elements) *
                             sizeof(float));
        arena_close(&arena);
    }
    layout_free(&layouts[0]);
    layout_free(&layouts[1]);
}
