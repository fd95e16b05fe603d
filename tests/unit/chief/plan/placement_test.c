/* SPDX-License-Identifier: Apache-2.0 */
#include "chief/plan/placement.h"

#include "core/tensor/philox.h"
#include "tests/lib/test.h"

enum { MAX_PARAMETERS = 60, MAX_PS = 16 };

static struct layout *build(const struct parameter *parameters,
                            uint32_t count) {
    struct layout *layout;
    assert_ok(layout_build(&layout, parameters, count, &failure));
    return layout;
}

/* Of every size from one element to a few MiB, small ones as likely as large
 * ones. */
static struct layout *random_layout(struct philox_sequence *random) {
    struct parameter parameters[MAX_PARAMETERS];
    uint32_t count = 1 + philox_below(random, MAX_PARAMETERS);
    memset(parameters, 0, sizeof parameters);
    for (uint32_t p = 0; p < count; p++) {
        snprintf(parameters[p].name, LAYOUT_MAX_NAME, "p%u", p);
        parameters[p].num_dims = 1;
        uint32_t limit = 1u << philox_below(random, 22);
        parameters[p].dims[0] = 1 + philox_below(random, limit);
    }
    return build(parameters, count);
}

static uint32_t *place(const struct layout *layout, uint32_t num_ps) {
    uint32_t *ps_of_block = malloc(layout->num_blocks * sizeof *ps_of_block);
    memset(ps_of_block, 0xff, layout->num_blocks * sizeof *ps_of_block);
    assert_ok(placement_greedy(layout, num_ps, ps_of_block, &failure));
    return ps_of_block;
}

static void place_by_hand(const struct layout *layout, uint32_t num_ps,
                          uint32_t *ps_of_block) {
    uint64_t loads[MAX_PS] = {0};
    memset(ps_of_block, 0xff, layout->num_blocks * sizeof *ps_of_block);
    for (uint32_t placed = 0; placed < layout->num_blocks; placed++) {
        uint32_t largest = UINT32_MAX, least = 0;
        for (uint32_t b = 0; b < layout->num_blocks; b++)
            if (ps_of_block[b] == UINT32_MAX &&
                (largest == UINT32_MAX ||
                 layout->blocks[b].elements > layout->blocks[largest].elements))
                largest = b;
        for (uint32_t ps = 1; ps < num_ps; ps++)
            if (loads[ps] < loads[least])
                least = ps;
        ps_of_block[largest] = least;
        loads[least] += layout->blocks[largest].elements;
    }
}

TEST(each_block_goes_to_the_least_loaded_largest_first) {
    struct philox_sequence random;
    philox_sequence_open(&random, 1, 0);
    for (int trial = 0; trial < 60; trial++) {
        struct layout *layout = random_layout(&random);
        uint32_t num_ps = 1 + philox_below(&random, MAX_PS);
        uint32_t *greedy = place(layout, num_ps);
        uint32_t *expected = malloc(layout->num_blocks * sizeof *expected);
        place_by_hand(layout, num_ps, expected);
        assert_memory_equal(greedy, expected,
                            layout->num_blocks * sizeof *expected);
        free(greedy);
        free(expected);
        layout_free(&layout);
    }
}

/* Largest load over mean load. */
static double imbalance(const struct layout *layout, uint32_t num_ps) {
    uint32_t *ps_of_block = place(layout, num_ps);
    uint64_t loads[MAX_PS] = {0}, largest = 0;
    for (uint32_t b = 0; b < layout->num_blocks; b++) {
        assert_true(ps_of_block[b] < num_ps);
        loads[ps_of_block[b]] += layout->blocks[b].elements;
    }
    for (uint32_t ps = 0; ps < num_ps; ps++)
        if (loads[ps] > largest)
            largest = loads[ps];
    free(ps_of_block);
    return (double)largest * num_ps / (double)layout->elements;
}

TEST(shards_are_even_from_20_full_blocks_a_ps_on) {
    struct philox_sequence random;
    philox_sequence_open(&random, 2, 0);
    unsigned judged = 0;
    for (int trial = 0; trial < 400; trial++) {
        struct layout *layout = random_layout(&random);
        for (uint32_t num_ps = 1; num_ps <= MAX_PS; num_ps++) {
            if (layout->elements / num_ps < 20 * layout->block_elements)
                break;
            double found = imbalance(layout, num_ps);
            if (!(found <= 1.05))
                fail_msg("trial %d, %u ps: %g", trial, num_ps, found);
            judged++;
        }
        layout_free(&layout);
    }
    assert_true(judged > 1000);
}

TEST(more_ps_than_blocks_leaves_the_last_ps_empty) {
    struct parameter pair[] = {
        {.name = "small", .num_dims = 1, .dims = {5}},
        {.name = "large", .num_dims = 1, .dims = {7}},
    };
    struct layout *layout = build(pair, 2);
    uint32_t *ps_of_block = place(layout, 5);
    assert_int_equal(ps_of_block[layout->first_block[1]], 0);
    assert_int_equal(ps_of_block[layout->first_block[0]], 1);
    free(ps_of_block);
    layout_free(&layout);
}
