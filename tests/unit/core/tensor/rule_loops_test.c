/* SPDX-License-Identifier: Apache-2.0 */
/* Every variant of the rules' loops, on every split of a block, has the bits of
 * the plain one. */
#include "core/tensor/rule_loops.h"

#include "core/tensor/philox.h"
#include "proto/plan/encoding.h"
#include "tests/lib/rule_cases.h"
#include "tests/lib/skip.h"
#include "tests/lib/test.h"

#include <float.h>

/* Lengths around those of vectors and tiles. */
static const size_t lengths[] = {0, 1, 7, 16, 255, 1024, 1025, 2500};
enum { LENGTHS = sizeof lengths / sizeof *lengths, MAX_GRADIENTS = 7 };

/* Weights, then the state slots. */
struct tensors {
    float *of[1 + RULE_MAX_SLOTS];
};

/* A block before its update, and a round's gradients. Everything has memory of
 * exactly its own size, so that the sanitizer sees a step beyond. */
struct block_data {
    size_t elements;
    enum job_wire wire;
    struct tensors tensors;
    char *memory[MAX_GRADIENTS]; /* gradient k begins k bytes into its own */
    const void *gradients[MAX_GRADIENTS];
};

static void tensors_allocate(struct tensors *tensors, size_t elements) {
    for (unsigned t = 0; t <= RULE_MAX_SLOTS; t++)
        tensors->of[t] = malloc(elements * sizeof(float));
}

static void tensors_free(struct tensors *tensors) {
    for (unsigned t = 0; t <= RULE_MAX_SLOTS; t++)
        free(tensors->of[t]);
}

static void data_open(struct block_data *data, size_t elements,
                      enum job_wire wire) {
    data->elements = elements;
    data->wire = wire;
    tensors_allocate(&data->tensors, elements);
    for (unsigned t = 0; t <= RULE_MAX_SLOTS; t++)
        philox_uniform(1, t, 0, 1, data->tensors.of[t], elements);
    for (unsigned t = 1; t <= RULE_MAX_SLOTS; t++) /* some are squares */
        for (size_t i = 0; i < elements; i++)
            data->tensors.of[t][i] = fabsf(data->tensors.of[t][i]);
    float *gradient = malloc(elements * sizeof *gradient);
    for (unsigned k = 0; k < MAX_GRADIENTS; k++) {
        philox_uniform(2, k, 0, 1, gradient, elements);
        data->memory[k] = malloc(k + encoding_bytes(wire, elements));
        encoding_write(NULL, wire, gradient, elements, data->memory[k] + k);
        data->gradients[k] = data->memory[k] + k;
    }
    free(gradient);
}

static void data_close(struct block_data *data) {
    tensors_free(&data->tensors);
    for (unsigned k = 0; k < MAX_GRADIENTS; k++)
        free(data->memory[k]);
}

/* Updates COUNT elements from FIRST on, from DATA into OUT. */
static void update_part(const struct rule_loops *loops,
                        const struct rule_case *one,
                        const struct block_data *data, unsigned num_gradients,
                        size_t first, size_t count, struct tensors *out) {
    const void *gradients[MAX_GRADIENTS];
    for (unsigned k = 0; k < num_gradients; k++)
        gradients[k] = (const char *)data->gradients[k] +
                       encoding_bytes(data->wire, first);
    struct rule_update update = {
        .step = 3,
        .rate = one->rate,
        .scale = num_gradients == 1 ? 1 : 1.0f / (float)num_gradients,
        .elements = count,
        .num_gradients = num_gradients,
        .gradients = gradients,
        .wire = data->wire,
        .weights = data->tensors.of[0] + first,
        .weights_out = out->of[0] + first,
    };
    for (unsigned slot = 0; slot < rule_slots(&one->rule); slot++) {
        update.state[slot] = data->tensors.of[1 + slot] + first;
        update.state_out[slot] = out->of[1 + slot] + first;
    }
    rule_apply(loops, &one->rule, &update);
}

static void update_whole(const struct rule_loops *loops,
                         const struct rule_case *one,
                         const struct block_data *data, unsigned num_gradients,
                         struct tensors *out) {
    update_part(loops, one, data, num_gradients, 0, data->elements, out);
}

static void assert_same_bits(const struct tensors *a, const struct tensors *b,
                             const struct rule_case *one, size_t elements,
                             const char *variant) {
    for (unsigned t = 0; t <= rule_slots(&one->rule); t++)
        if (elements > 0 &&
            memcmp(a->of[t], b->of[t], elements * sizeof(float)) != 0)
            fail_msg("%s, %s: tensor %u of %zu elements differs", one->name,
                     variant, t, elements);
}

/* What a check compares: the same update by the plain loops in one piece, and
 * room for it done otherwise. */
typedef void check(const struct rule_loops *loops, const struct rule_case *one,
                   const struct block_data *data, unsigned num_gradients,
                   const struct tensors *expected, struct tensors *room);

static void for_every_variant(check *each, const struct rule_case *one,
                              const struct block_data *data,
                              unsigned num_gradients) {
    struct tensors expected, room;
    tensors_allocate(&expected, data->elements);
    tensors_allocate(&room, data->elements);
    update_whole(&rule_loops_plain, one, data, num_gradients, &expected);
    size_t count;
    const struct rule_loops *const *variants = rule_variants(&count);
    for (size_t v = 0; v < count; v++)
        each(variants[v], one, data, num_gradients, &expected, &room);
    tensors_free(&expected);
    tensors_free(&room);
}

/* Runs CHECK for every wire, length, rule, variant and some numbers of
 * gradients. */
static void for_everything(check *each) {
    for (int l = 0; l < 2 * LENGTHS; l++) {
        struct block_data data;
        data_open(&data, lengths[l / 2],
                  l % 2 ? JOB_WIRE_BF16 : JOB_WIRE_FLOAT32);
        for (int c = 0; c < RULE_CASES; c++)
            for (unsigned n = 1; n <= MAX_GRADIENTS; n += n == 2 ? 5 : 1)
                for_every_variant(each, &rule_cases[c], &data, n);
        data_close(&data);
    }
}

static void check_whole(const struct rule_loops *loops,
                        const struct rule_case *one,
                        const struct block_data *data, unsigned num_gradients,
                        const struct tensors *expected, struct tensors *room) {
    update_whole(loops, one, data, num_gradients, room);
    assert_same_bits(room, expected, one, data->elements, loops->name);
}

TEST(every_variant_gives_the_same_bits) {
    for_everything(check_whole);
}

static void check_split(const struct rule_loops *loops,
                        const struct rule_case *one,
                        const struct block_data *data, unsigned num_gradients,
                        const struct tensors *expected, struct tensors *room) {
    for (size_t part = 3; part < data->elements; part = 5 * part + 2) {
        for (size_t first = 0; first < data->elements; first += part) {
            size_t left = data->elements - first;
            update_part(loops, one, data, num_gradients, first,
                        left < part ? left : part, room);
        }
        assert_same_bits(room, expected, one, data->elements, loops->name);
    }
}

TEST(every_split_gives_the_same_bits) {
    for_everything(check_split);
}

static void check_in_place(const struct rule_loops *loops,
                           const struct rule_case *one,
                           const struct block_data *data,
                           unsigned num_gradients,
                           const struct tensors *expected,
                           struct tensors *room) {
    struct block_data own = *data;
    own.tensors = *room;
    for (unsigned t = 0; t <= RULE_MAX_SLOTS && data->elements > 0; t++)
        memcpy(room->of[t], data->tensors.of[t],
               data->elements * sizeof(float));
    update_whole(loops, one, &own, num_gradients, room);
    assert_same_bits(room, expected, one, data->elements, loops->name);
}

TEST(an_update_in_place_gives_the_same_bits) {
    for_everything(check_in_place);
}

/* A round of bf16 and one of the same numbers as float32 end alike. */
TEST(gradients_in_bf16_count_as_their_float_values) {
    struct block_data data;
    struct tensors expected, room;
    data_open(&data, 1025, JOB_WIRE_BF16);
    tensors_allocate(&expected, data.elements);
    tensors_allocate(&room, data.elements);
    struct block_data floats = data;
    floats.wire = JOB_WIRE_FLOAT32;
    for (unsigned k = 0; k < MAX_GRADIENTS; k++) {
        float *gradient = malloc(data.elements * sizeof *gradient);
        encoding_read(NULL, JOB_WIRE_BF16, data.gradients[k], data.elements,
                      gradient);
        floats.gradients[k] = gradient;
    }
    for (int c = 0; c < RULE_CASES; c++)
        for (unsigned n = 1; n <= MAX_GRADIENTS; n++) {
            update_whole(&rule_loops_plain, &rule_cases[c], &floats, n,
                         &expected);
            check_whole(&rule_loops_plain, &rule_cases[c], &data, n, &expected,
                        &room);
        }
    for (unsigned k = 0; k < MAX_GRADIENTS; k++)
        free((void *)floats.gradients[k]);
    tensors_free(&expected);
    tensors_free(&room);
    data_close(&data);
}

static void gradients_are_added_in_order(enum job_wire wire) {
    enum { COUNT = 50, MANY = 12 };
    float values[MANY][COUNT], sums[COUNT];
    char memory[MANY][COUNT * sizeof(float) + 1];
    const void *gradients[MANY];
    for (unsigned k = 0; k < MANY; k++) {
        philox_uniform(3, k, 0, ldexpf(1, (int)(k * 7 % 20)), values[k], COUNT);
        encoding_round(wire, values[k], COUNT);
        encoding_write(NULL, wire, values[k], COUNT, memory[k] + 1);
        gradients[k] = memory[k] + 1;
    }
    size_t count;
    const struct rule_loops *const *variants = rule_variants(&count);
    for (size_t v = 0; v < count; v++)
        for (unsigned n = 1; n <= MANY; n++) {
            variants[v]->sum[wire](gradients, n, 1, COUNT - 1, sums);
            for (size_t i = 1; i < COUNT; i++) {
                float expected = values[0][i];
                for (unsigned k = 1; k < n; k++)
                    expected += values[k][i];
                assert_true(sums[i - 1] == expected);
            }
        }
}

TEST(gradients_in_float32_are_added_in_order) {
    gradients_are_added_in_order(JOB_WIRE_FLOAT32);
}

TEST(gradients_in_bf16_are_added_in_order) {
    gradients_are_added_in_order(JOB_WIRE_BF16);
}

static const float special[] = {
    NAN,      INFINITY, -INFINITY,    0.0f,          -0.0f,  FLT_MAX,
    -FLT_MAX, FLT_MIN,  FLT_TRUE_MIN, -FLT_TRUE_MIN, 1e-30f, 1e30f,
};
enum { SPECIAL = sizeof special / sizeof *special };

static bool have_same_bits(float a, float b) {
    return (isnan(a) && isnan(b)) || memcmp(&a, &b, sizeof a) == 0;
}

static void check_special(const struct rule_loops *loops,
                          const struct rule_case *one,
                          const struct block_data *data, unsigned num_gradients,
                          const struct tensors *expected,
                          struct tensors *room) {
    update_whole(loops, one, data, num_gradients, room);
    for (size_t i = 0; i < data->elements; i++) {
        for (unsigned t = 0; t <= rule_slots(&one->rule); t++)
            if (!have_same_bits(room->of[t][i], expected->of[t][i]))
                fail_msg("%s, %s: tensor %u, element %zu: %g, not %g",
                         one->name, loops->name, t, i, (double)room->of[t][i],
                         (double)expected->of[t][i]);
        if (isnan(special[i % SPECIAL]) && !isnan(room->of[0][i]))
            fail_msg("%s, %s: a NaN became %g", one->name, loops->name,
                     (double)room->of[0][i]);
    }
}

static void special_values_propagate_alike(enum job_wire wire) {
    struct block_data data;
    data_open(&data, SPECIAL * 11, wire);
    for (size_t i = 0; i < data.elements; i++)
        encoding_write(NULL, wire, &special[i % SPECIAL], 1,
                       data.memory[1] + 1 + encoding_bytes(wire, i));
    for (int c = 0; c < RULE_CASES; c++)
        for_every_variant(check_special, &rule_cases[c], &data, 2);
    data.gradients[0] = data.gradients[1];
    for (int c = 0; c < RULE_CASES; c++)
        for_every_variant(check_special, &rule_cases[c], &data, 1);
    data_close(&data);
}

TEST(special_values_propagate_the_same_and_a_nan_stays) {
    special_values_propagate_alike(JOB_WIRE_FLOAT32);
    special_values_propagate_alike(JOB_WIRE_BF16);
}

TEST(square_sums_have_the_same_bits_in_every_variant) {
    for (int l = 0; l < 2 * LENGTHS; l++) {
        struct block_data data;
        data_open(&data, RULE_PIECE + lengths[l / 2],
                  l % 2 ? JOB_WIRE_BF16 : JOB_WIRE_FLOAT32);
        double expected[2], pieces[2];
        size_t bytes = (lengths[l / 2] > 0 ? 2 : 1) * sizeof *pieces;
        size_t count;
        const struct rule_loops *const *variants = rule_variants(&count);
        struct rule_update update = {.gradients = data.gradients,
                                     .wire = data.wire,
                                     .scale = 0.3f,
                                     .elements = data.elements};
        for (unsigned n = 1; n <= MAX_GRADIENTS; n++) {
            update.num_gradients = n;
            rule_square_sums(&rule_loops_plain, &update, expected);
            assert_true(expected[0] > 0);
            for (size_t v = 0; v < count; v++) {
                rule_square_sums(variants[v], &update, pieces);
                assert_memory_equal(pieces, expected, bytes);
            }
        }
        data_close(&data);
    }
}

/* Whether the sums are in place (one gradient) or not. */
TEST(a_sum_that_is_not_finite_is_found_anywhere) {
    enum { LONG = 3001 };
    static const float values[] = {NAN, -NAN, INFINITY, -INFINITY, -FLT_MAX};
    static float of[2][LONG], weights[LONG];
    const struct optimizer rule = {.type = OPTIMIZER_SGD};
    bool nonfinite;
    struct rule_update update = {
        .rate = 1,
        .scale = 0.5f,
        .gradients = (const void *[]){of[0], of[1]},
        .weights = weights,
        .weights_out = weights,
        .nonfinite = &nonfinite,
    };
    size_t count;
    const struct rule_loops *const *variants = rule_variants(&count);
    for (unsigned i = 0; i < count * 5 * 2 * LONG; i++) {
        size_t at = i % LONG;
        unsigned last = i / LONG % 2, value = i / LONG / 2 % 5;
        update.num_gradients = 1 + last;
        update.elements = at < 40 ? at + 1 : LONG;
        of[last][at] = values[value];
        nonfinite = false;
        rule_apply(variants[i / LONG / 10], &rule, &update);
        of[last][at] = 0;
        assert_int_equal(nonfinite, value < 4);
    }
}

TEST(squares_are_summed_in_fixed_simd_lanes) {
    float values[2 * RULE_LANES + 3];
    double expected[RULE_LANES] = {0};
    for (unsigned i = 0; i < 2 * RULE_LANES + 3; i++) {
        values[i] = (float)i;
        expected[i % RULE_LANES] += 4.0 * i * i;
    }
    size_t count;
    const struct rule_loops *const *variants = rule_variants(&count);
    for (size_t v = 0; v < count; v++) {
        double lanes[RULE_LANES] = {0};
        variants[v]->add_squares(values, 2 * RULE_LANES + 3, 2, lanes);
        assert_memory_equal(lanes, expected, sizeof lanes);
    }
}

TEST(the_plain_variant_is_the_last) {
    size_t count;
    const struct rule_loops *const *variants = rule_variants(&count);
    assert_in_range(count, 1, 3);
    assert_string_equal(rule_variant_name(variants[count - 1]), "plain");
    for (unsigned form = 0; form < RULE_FORMS; form++)
        for (size_t v = 0; v < count; v++)
            assert_non_null(variants[v]->kernel[form]);
}

TEST(the_processor_can_run_every_variant) {
    size_t count;
    const char *best = rule_variant_name(rule_variants(&count)[0]);
    if (count < 3)
        skip_test("the best that this processor can run is %s", best);
}
