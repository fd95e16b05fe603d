/* SPDX-License-Identifier: Apache-2.0 */
#include "core/tensor/layout.h"

#include "core/tensor/philox.h"
#include "tests/lib/test.h"

enum { KIB = 1 << 10, MIB = 1 << 20 };

static const struct parameter mlp[] = {
    {.name = "layer0.weight",
     .num_dims = 2,
     .dims = {512, 784},
     .init_bound = 0.03f},
    {.name = "layer0.bias", .num_dims = 1, .dims = {512}},
    {.name = "layer1.weight",
     .num_dims = 2,
     .dims = {10, 512},
     .init_bound = 0.04f},
};
enum { MLP = sizeof mlp / sizeof *mlp };

static struct layout *build(const struct parameter *parameters,
                            uint32_t count) {
    struct layout *layout;
    assert_ok(layout_build(&layout, parameters, count, &failure));
    return layout;
}

TEST(a_block_is_a_512th_within_64_kib_and_1_mib) {
    assert_int_equal(layout_block_bytes(0), 64 * KIB);
    assert_int_equal(layout_block_bytes(32 * MIB), 64 * KIB);
    assert_int_equal(layout_block_bytes(32 * MIB + 512), 128 * KIB);
    assert_int_equal(layout_block_bytes(100 * MIB), 256 * KIB);
    assert_int_equal(layout_block_bytes(512 * MIB), MIB);
    assert_int_equal(layout_block_bytes(LAYOUT_MAX_ELEMENTS * 4), MIB);
}

TEST(blocks_are_ordered_from_last_parameter_to_first) {
    struct layout *layout = build(mlp, MLP);
    assert_int_equal(layout->elements, 784 * 512 + 512 + 5120);
    assert_int_equal(layout->block_elements, 16384);
    assert_int_equal(layout->num_blocks, 1 + 1 + 25);
    assert_int_equal(layout->first_block[2], 0);
    assert_int_equal(layout->first_block[1], 1);
    assert_int_equal(layout->first_block[0], 2);
    assert_int_equal(layout->num_blocks_of[0], 25);
    struct block last = layout->blocks[26];
    assert_int_equal(last.parameter, 0);
    assert_int_equal(last.offset, 24 * 16384);
    assert_int_equal(last.elements, 784 * 512 - 24 * 16384);
    layout_free(&layout);
    assert_null(layout);
}

/* Parameters of one to four dimensions, the largest a few MiB. */
static uint32_t random_parameters(struct philox_sequence *random,
                                  struct parameter parameters[20]) {
    uint32_t count = 1 + philox_below(random, 20);
    memset(parameters, 0, 20 * sizeof *parameters);
    for (uint32_t p = 0; p < count; p++) {
        snprintf(parameters[p].name, LAYOUT_MAX_NAME, "p%u", p);
        parameters[p].num_dims = philox_below(random, 5);
        for (uint32_t d = 0; d < parameters[p].num_dims; d++)
            parameters[p].dims[d] = 1 + philox_below(random, 40);
    }
    return count;
}

static void check_parameter(const struct layout *layout, uint32_t p) {
    uint64_t offset = 0;
    uint32_t end = layout->first_block[p] + layout->num_blocks_of[p];
    for (uint32_t b = layout->first_block[p]; b < end; b++) {
        assert_int_equal(layout->blocks[b].parameter, p);
        assert_int_equal(layout->blocks[b].offset, offset);
        assert_in_range(layout->blocks[b].elements, 1, layout->block_elements);
        if (b + 1 < end)
            assert_int_equal(layout->blocks[b].elements,
                             layout->block_elements);
        offset += layout->blocks[b].elements;
    }
    assert_int_equal(offset, layout->parameters[p].elements);
}

TEST(blocks_cover_each_parameter_once) {
    struct philox_sequence random;
    philox_sequence_open(&random, 1, 0);
    for (int trial = 0; trial < 200; trial++) {
        struct parameter parameters[20];
        uint32_t count = random_parameters(&random, parameters);
        struct layout *layout = build(parameters, count);
        uint32_t blocks = 0;
        for (uint32_t p = count; p-- > 0;) {
            assert_int_equal(layout->first_block[p], blocks);
            check_parameter(layout, p);
            blocks += layout->num_blocks_of[p];
        }
        assert_int_equal(blocks, layout->num_blocks);
        layout_free(&layout);
    }
}

TEST(a_scalar_is_one_element) {
    struct parameter scalar = {.name = "temperature"};
    struct layout *layout = build(&scalar, 1);
    assert_int_equal(layout->elements, 1);
    assert_int_equal(layout->num_blocks, 1);
    layout_free(&layout);
}

static void refused(struct parameter parameter, const char *text) {
    struct parameter pair[2] = {mlp[0], parameter};
    struct layout *layout;
    assert_error(layout_build(&layout, pair, 2, &failure),
                 FAILURE_MODEL_INVALID);
    assert_null(layout);
    assert_contains(failure.text, text);
}

TEST(a_wrong_parameter_is_refused_by_name) {
    refused((struct parameter){.name = ""}, "parameter 1: its name has no");
    refused((struct parameter){.name = "layer0.weight"},
            "\"layer0.weight\" is listed twice");
    refused((struct parameter){.name = "b", .num_dims = 2, .dims = {3, 0}},
            "\"b\": dimension 1 is 0");
    refused((struct parameter){.name = "b", .num_dims = 9},
            "\"b\" has 9 dimensions");
    refused((struct parameter){.name = "b", .init_bound = -1}, "is -1;");
    refused((struct parameter){.name = "b", .init_bound = __builtin_nanf("")},
            "is nan;");
    refused((struct parameter){.name = "b",
                               .num_dims = 4,
                               .dims = {1 << 16, 1 << 16, 1 << 16, 1 << 16}},
            "\"b\" has more than 2^40");
    refused((struct parameter){.name = "b",
                               .num_dims = 2,
                               .dims = {1 << 20, 1 << 20}},
            "up to \"b\" have more than 2^40");
    struct parameter endless = {.name = ""};
    memset(endless.name, 'x', sizeof endless.name);
    refused(endless, "too many bytes");
}

TEST(no_parameters_and_too_many_are_refused) {
    struct layout *layout;
    assert_error(layout_build(&layout, mlp, 0, &failure),
                 FAILURE_MODEL_INVALID);
    assert_error(
        layout_build(&layout, mlp, LAYOUT_MAX_PARAMETERS + 1, &failure),
        FAILURE_MODEL_INVALID);
}

static uint64_t digest_of(const struct parameter *parameters, uint32_t count) {
    struct layout *layout = build(parameters, count);
    uint64_t digest = layout_digest(layout);
    layout_free(&layout);
    return digest;
}

TEST(the_digest_covers_names_shapes_bounds_and_order) {
    uint64_t digest = digest_of(mlp, MLP);
    struct parameter other[MLP];
    memcpy(other, mlp, sizeof mlp);
    other[1].name[0] = 'L';
    assert_true(digest_of(other, MLP) != digest);
    memcpy(other, mlp, sizeof mlp);
    other[0].dims[0] = 784;
    other[0].dims[1] = 512;
    assert_true(digest_of(other, MLP) != digest);
    memcpy(other, mlp, sizeof mlp);
    other[2].init_bound = 0.05f;
    assert_true(digest_of(other, MLP) != digest);
    other[2] = mlp[1];
    other[1] = mlp[2];
    assert_true(digest_of(other, MLP) != digest);
    assert_true(digest_of(mlp, MLP - 1) != digest);
}

TEST(the_digest_ignores_unused_bytes) {
    struct parameter other[MLP];
    memcpy(other, mlp, sizeof mlp);
    other[1].dims[3] = 99;
    other[1].elements = 77;
    other[1].name[LAYOUT_MAX_NAME - 1] = 'x';
    assert_true(digest_of(other, MLP) == digest_of(mlp, MLP));
}

TEST(first_weights_do_not_depend_on_the_blocks) {
    struct layout *layout = build(mlp, MLP);
    float *whole = malloc(784 * 512 * sizeof *whole);
    float *block = malloc(layout->block_elements * sizeof *block);
    philox_uniform(42, 0, 0, 0.03f, whole, 784 * 512);
    for (uint32_t b = 2; b < layout->num_blocks; b++) {
        layout_init_block(layout, b, 42, block);
        assert_memory_equal(block, whole + layout->blocks[b].offset,
                            layout->blocks[b].elements * sizeof *block);
    }
    free(whole);
    free(block);
    layout_free(&layout);
}

TEST(first_weights_of_bound_0_are_zeros) {
    struct layout *layout = build(mlp, MLP);
    float weights[512], zeros[512] = {0};
    memset(weights, 0xff, sizeof weights);
    layout_init_block(layout, 1, 42, weights);
    assert_memory_equal(weights, zeros, sizeof zeros);
    layout_free(&layout);
}

static void add_tables(struct layout *layout, const struct table *tables,
                       uint32_t count, uint32_t partitions) {
    assert_ok(layout_add_tables(layout, tables, count, partitions, &failure));
}

TEST(tables_that_are_alike_share_a_stack) {
    static const struct table tables[] = {
        {.name = "a", .dim = 8, .init_bound = 1, .max_rows = 5},
        {.name = "wider", .dim = 9},
        {.name = "admits", .dim = 8, .admit = 2},
        {.name = "b", .dim = 8, .init_bound = 2},
        {.name = "expires", .dim = 8, .expire = 100},
        {.name = "other rule", .dim = 8, .optimizer = 1},
        {.name = "admits too", .dim = 8, .admit = 2},
        {.name = "c", .dim = 8},
    };
    static const uint32_t stacks[] = {0, 1, 2, 0, 3, 4, 2, 0};
    struct layout *layout = build(mlp, MLP);
    assert_int_equal(layout_units(layout), layout->num_blocks);
    add_tables(layout, tables, 8, 16);
    assert_int_equal(layout->num_tables, 8);
    assert_int_equal(layout->num_partitions, 16);
    assert_int_equal(layout->num_stacks, 5);
    assert_int_equal(layout_units(layout), layout->num_blocks + 16);
    for (int t = 0; t < 8; t++) {
        assert_string_equal(layout->tables[t].name, tables[t].name);
        assert_int_equal(layout->tables[t].stack, stacks[t]);
    }
    layout_free(&layout);
}

/* TABLE is refused beside another one, with TEXT. */
static void table_refused(struct table table, const char *text) {
    struct table pair[2] = {{.name = "first", .dim = 1}, table};
    struct layout *layout = build(mlp, MLP);
    assert_error(layout_add_tables(layout, pair, 2, 4, &failure),
                 FAILURE_MODEL_INVALID);
    assert_contains(failure.text, text);
    layout_free(&layout);
}

TEST(a_wrong_table_is_refused_by_name) {
    table_refused((struct table){.name = "", .dim = 1}, "without a name");
    table_refused((struct table){.name = "first", .dim = 1},
                  "\"first\": listed twice");
    table_refused((struct table){.name = "layer0.bias", .dim = 1},
                  "\"layer0.bias\": listed twice");
    table_refused((struct table){.name = "t"}, "\"t\" has rows of 0 floats");
    table_refused((struct table){.name = "t", .dim = LAYOUT_MAX_DIM + 1},
                  "\"t\" has rows of 4097 floats");
    table_refused((struct table){.name = "t", .dim = 1, .init_bound = -1},
                  "\"t\": the bound of its initial rows is -1");
    table_refused(
        (struct table){.name = "t", .dim = 1, .init_bound = __builtin_inff()},
        "is inf");
    table_refused(
        (struct table){.name = "t", .dim = 1, .init_bound = __builtin_nanf("")},
        "is nan");
    table_refused(
        (struct table){.name = "t", .dim = 1, .admit = LAYOUT_MAX_ADMIT + 1},
        "\"t\" admits rows after 65536 pushes");
    struct table endless = {.dim = 1};
    memset(endless.name, 'x', sizeof endless.name);
    table_refused(endless, "table 1: its name has too many bytes");
}

TEST(the_widest_table_that_admits_latest_is_accepted) {
    static const struct table table = {
        .name = "t", .dim = LAYOUT_MAX_DIM, .admit = LAYOUT_MAX_ADMIT};
    struct layout *layout = build(mlp, MLP);
    add_tables(layout, &table, 1, LAYOUT_MAX_PARTITIONS);
    layout_free(&layout);
}

TEST(too_many_tables_and_partitions_are_refused) {
    static const uint32_t cases[][2] = {
        {LAYOUT_MAX_TABLES + 1, 4}, {1, 0}, {1, LAYOUT_MAX_PARTITIONS + 1}};
    struct table *tables = calloc(LAYOUT_MAX_TABLES + 1, sizeof *tables);
    for (int t = 0; t <= LAYOUT_MAX_TABLES; t++) {
        snprintf(tables[t].name, LAYOUT_MAX_NAME, "t%d", t);
        tables[t].dim = 1;
    }
    for (int i = 0; i < 3; i++) {
        struct layout *layout = build(mlp, MLP);
        assert_error(layout_add_tables(layout, tables, cases[i][0], cases[i][1],
                                       &failure),
                     FAILURE_MODEL_INVALID);
        layout_free(&layout);
    }
    free(tables);
}

static uint64_t tables_digest(const struct table *tables, uint32_t count) {
    struct layout *layout = build(mlp, MLP);
    add_tables(layout, tables, count, 4);
    uint64_t digest = layout_digest(layout);
    layout_free(&layout);
    return digest;
}

TEST(the_digest_covers_tables) {
    static const struct table table = {.name = "t",
                                       .dim = 8,
                                       .init_bound = 1,
                                       .admit = 2,
                                       .expire = 100,
                                       .max_rows = 9};
    struct table other = table;
    uint64_t digest = tables_digest(&table, 1);
    assert_true(digest != digest_of(mlp, MLP));
    other.name[0] = 'u';
    assert_true(tables_digest(&other, 1) != digest);
    other = table;
    other.dim = 9;
    assert_true(tables_digest(&other, 1) != digest);
    other = table;
    other.init_bound = 2;
    assert_true(tables_digest(&other, 1) != digest);
    other = table;
    other.admit = 3;
    assert_true(tables_digest(&other, 1) != digest);
    other = table;
    other.expire = 101;
    assert_true(tables_digest(&other, 1) != digest);
    other = table;
    other.optimizer = 1;
    assert_true(tables_digest(&other, 1) != digest);
    other = table;
    other.unused = 77;
    other.num_ids = 1000;
    other.stack = 3;
    other.name[LAYOUT_MAX_NAME - 1] = 'x';
    assert_true(tables_digest(&other, 1) == digest);
}

/* Ids in turn, multiples of a power of two, and any bits. */
TEST(partitions_are_even) {
    enum { IDS = 100000 };
    static const struct table tables[] = {{.name = "t", .dim = 1},
                                          {.name = "u", .dim = 1}};
    struct layout *layout = build(mlp, MLP);
    add_tables(layout, tables, 2, LAYOUT_PARTITIONS);
    for (uint32_t kind = 0; kind < 6; kind++) {
        uint32_t rows[LAYOUT_PARTITIONS] = {0}, most = 0;
        struct philox_sequence random;
        philox_sequence_open(&random, 1, 0);
        for (uint64_t i = 0; i < IDS; i++) {
            uint64_t bits = (uint64_t)philox_next(&random) << 32;
            bits |= philox_next(&random);
            uint64_t id = kind % 3 == 0 ? i : kind % 3 == 1 ? i << 40 : bits;
            uint32_t p =
                layout_partition(layout, layout_row_hash(kind / 3, id));
            assert_true(p < LAYOUT_PARTITIONS);
            rows[p]++;
        }
        for (int p = 0; p < LAYOUT_PARTITIONS; p++)
            most = rows[p] > most ? rows[p] : most;
        double mean = (double)IDS / LAYOUT_PARTITIONS;
        if (!(most <= 1.2 * mean))
            fail_msg("kind %u: %u rows in a partition", kind, most);
    }
    layout_free(&layout);
}

TEST(a_row_hash_has_a_partition_at_its_extremes) {
    static const uint32_t counts[] = {1, 3, 256, LAYOUT_MAX_PARTITIONS};
    static const struct table table = {.name = "t", .dim = 1};
    for (int i = 0; i < 4; i++) {
        struct layout *layout = build(mlp, MLP);
        add_tables(layout, &table, 1, counts[i]);
        assert_int_equal(layout_partition(layout, 0), 0);
        assert_int_equal(layout_partition(layout, UINT64_MAX), counts[i] - 1);
        layout_free(&layout);
    }
}
