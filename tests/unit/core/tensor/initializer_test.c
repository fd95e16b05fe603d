/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/job/job_value.h"

#include "core/tensor/philox.h"
#include "tests/lib/test.h"

#include <math.h>
#include <xxhash.h>

enum { MANY = 1 << 18 };

static float *draw(const struct initializer *initializer) {
    float *values = malloc(MANY * sizeof *values);
    assert_non_null(values);
    initializer_fill(initializer, 3, 5, 0, values, MANY);
    return values;
}

/* The word of element E. */
static uint32_t word_of(uint64_t e) {
    uint32_t words[4];
    philox(3, 5, e / 4, words);
    return words[e % 4];
}

/* Of the standard normal distribution at X. */
static double normal_below(double x) {
    return erfc(-x * sqrt(0.5)) / 2;
}

/* By the C library's error function, relative to the nearer tail. */
TEST(normal_values_invert_the_distribution) {
    const struct initializer normal = {INITIALIZER_NORMAL, 0, 1},
                             truncated = {INITIALIZER_TRUNCATED_NORMAL, 0, 1};
    float *values = draw(&normal), *cut = draw(&truncated);
    double outside = normal_below(-2);
    for (uint64_t e = 0; e < MANY; e++) {
        double p = (word_of(e) + 0.5) * 0x1p-32;
        double x = (double)values[e], found = normal_below(x < 0 ? x : -x);
        double expected = p < 0.5 ? p : 1 - p;
        if (!(fabs(found - expected) <=
              1e-6 * expected * (1 + fabs(x) * (1 + fabs(x)))))
            fail_msg("p %.17g: found %.9g, below it %.17g", p, x, found);
        found = (normal_below((double)cut[e]) - outside) / (1 - 2 * outside);
        if (!(fabs(found - p) <= 1e-7) || !(fabsf(cut[e]) <= 2))
            fail_msg("p %.17g, truncated: found %.9g", p, (double)cut[e]);
    }
    free(values);
    free(cut);
}

/* These bits are those of every machine and release: rows of tables that are
 * not in a checkpoint follow from them. */
TEST(values_have_the_bits_that_they_always_had) {
    static const struct {
        struct initializer initializer;
        uint64_t digest;
    } cases[] = {
        {{INITIALIZER_NORMAL, 0, 0.05f}, UINT64_C(0xebf02de2e94b71b0)},
        {{INITIALIZER_NORMAL, 1, 0.5f}, UINT64_C(0xd42c8d2348de5dcd)},
        {{INITIALIZER_TRUNCATED_NORMAL, 0, 1}, UINT64_C(0x16c46fa73fd8bca7)},
        {{INITIALIZER_UNIFORM, 0.5f, 0.5f}, UINT64_C(0x9b713516f22c3dfa)},
        {{INITIALIZER_UNIFORM, 0, 0.25f}, UINT64_C(0x1314aaefbd0bffd8)},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        float *values = draw(&cases[i].initializer);
        uint64_t found = XXH3_64bits(values, MANY * sizeof *values);
        if (found != cases[i].digest)
            fail_msg("case %zu: found 0x%llx", i, (unsigned long long)found);
        free(values);
    }
}

TEST(a_value_depends_on_its_number_alone) {
    for (uint32_t kind = 0; kind < INITIALIZER_KINDS; kind++) {
        const struct initializer of = {kind, 0.25f, 2};
        float *whole = draw(&of), part[9];
        for (uint64_t first = 0; first < 40; first++) {
            initializer_fill(&of, 3, 5, first, part, 9);
            assert_memory_equal(part, whole + first, sizeof part);
        }
        free(whole);
    }
}

TEST(a_bound_of_0_gives_the_shift) {
    for (uint32_t kind = 0; kind < INITIALIZER_KINDS; kind++) {
        const struct initializer of = {kind, -0.75f, 0}, zero = {kind, 0, 0};
        float values[5], zeros[5] = {0};
        initializer_fill(&of, 1, 2, 3, values, 5);
        assert_true(values[0] == -0.75f && values[4] == -0.75f);
        initializer_fill(&zero, 1, 2, 3, values, 5);
        assert_memory_equal(values, zeros, sizeof zeros);
    }
}

/* The standard deviation of what JSON says, of a layer of 30 inputs and 10
 * outputs, and its largest value. */
TEST(names_have_their_formulas) {
    static const struct {
        const char *json;
        double mean, deviation, most; /* most 0: without bound */
    } cases[] = {
        {"\"zeros\"", 0, 0, 1e-30},
        {"\"ones\"", 1, 0, 1.0001},
        {"{\"type\": \"constant\", \"value\": -2.5}", -2.5, 0, 2.5001},
        {"{\"type\": \"uniform\", \"a\": 0, \"b\": 1}", 0.5, 0.28867513, 1},
        {"{\"type\": \"normal\", \"std\": 0.5}", 0, 0.5, 0},
        {"{\"type\": \"normal\", \"mean\": 3, \"std\": 2}", 3, 2, 0},
        {"{\"type\": \"truncated_normal\", \"std\": 1}", 0, 0.87962566, 2},
        {"\"xavier_uniform\"", 0, 0.22360680, 0.38729834},
        {"\"Glorot_uniform\"", 0, 0.22360680, 0.38729834},
        {"\"xavier_normal\"", 0, 0.22360680, 0},
        {"\"glorot_normal\"", 0, 0.22360680, 0.50841},
        {"\"kaiming_uniform\"", 0, 0.25819889, 0.44721360},
        {"\"he_uniform\"", 0, 0.25819889, 0.44721360},
        {"\"kaiming_normal\"", 0, 0.25819889, 0},
        {"\"he_normal\"", 0, 0.25819889, 0.587067},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct job_init init = {0};
        json_t *json = json_loads(cases[i].json, JSON_DECODE_ANY, NULL);
        assert_true(job_init_read(&init, json, true));
        json_decref(json);
        struct initializer of = initializer_of_job(&init, 30, 10);
        assert_true(initializer_is_valid(&of));
        float *values = draw(&of);
        double sum = 0, squares = 0, most = 0;
        for (int e = 0; e < MANY; e++) {
            sum += (double)values[e] / MANY;
            most = fmax(most, fabs((double)values[e]));
        }
        for (int e = 0; e < MANY; e++)
            squares += pow((double)values[e] - sum, 2) / MANY;
        if (!(fabs(sum - cases[i].mean) <= 0.01 * cases[i].deviation + 1e-7) ||
            !(fabs(sqrt(squares) - cases[i].deviation) <=
              0.005 * cases[i].deviation + 1e-7) ||
            (cases[i].most > 0 && !(most <= cases[i].most)))
            fail_msg("%s: mean %g, deviation %g, most %g", cases[i].json, sum,
                     sqrt(squares), most);
        free(values);
    }
}
