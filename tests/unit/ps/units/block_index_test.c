/* SPDX-License-Identifier: Apache-2.0 */
#include "ps/units/block_index.h"

#include "tests/lib/test.h"

enum { BLOCKS = 5, PARTITIONS = 3, MINE = 5 };

/* Blocks of 10, 20, 30, 40 and 50 floats, the second to fourth of them mine,
 * and the first two partitions of tables. */
static const uint32_t ids[MINE] = {1, 2, 3, BLOCKS, BLOCKS + 1};
static struct block blocks[BLOCKS] = {{.elements = 10},
                                      {.elements = 20},
                                      {.elements = 30},
                                      {.elements = 40},
                                      {.elements = 50}};
static struct parameter parameter; /* that all belong to */
static const struct layout layout = {.num_parameters = 1,
                                     .num_blocks = BLOCKS,
                                     .parameters = &parameter,
                                     .blocks = blocks,
                                     .num_partitions = PARTITIONS};

struct message {
    Capstan__DataHeader__Kind kind;
    Capstan__DataHeader__Encoding encoding;
    uint64_t snapshot;
    uint32_t blocks[BLOCKS];
    size_t num_blocks, payload;
};

static const Capstan__DataHeader__Kind
    QUERY = CAPSTAN__DATA_HEADER__KIND__QUERY,
    PUSH = CAPSTAN__DATA_HEADER__KIND__PUSH,
    PULL = CAPSTAN__DATA_HEADER__KIND__PULL,
    PUSH_ROWS = CAPSTAN__DATA_HEADER__KIND__PUSH_ROWS,
    LOOKUP = CAPSTAN__DATA_HEADER__KIND__LOOKUP,
    ASSIGN_ROWS = CAPSTAN__DATA_HEADER__KIND__ASSIGN_ROWS,
    ASSIGN = CAPSTAN__DATA_HEADER__KIND__ASSIGN;
static const Capstan__DataHeader__Encoding
    FLOAT32 = CAPSTAN__DATA_HEADER__ENCODING__FLOAT32,
    BF16 = CAPSTAN__DATA_HEADER__ENCODING__BF16,
    EMPTY = CAPSTAN__DATA_HEADER__ENCODING__EMPTY,
    OVERFLOWED = CAPSTAN__DATA_HEADER__ENCODING__OVERFLOW;

/* MESSAGE as one that came, with SIZES; its blocks are changed as
 * block_index_check does. */
static const char *check_rows_of(enum job_wire wire, struct message *message,
                                 uint32_t *sizes, size_t num_sizes) {
    struct block_index index;
    Capstan__DataHeader header = CAPSTAN__DATA_HEADER__INIT;
    header.kind = message->kind;
    header.encoding = message->encoding;
    header.snapshot = message->snapshot;
    header.blocks = message->blocks;
    header.n_blocks = message->num_blocks;
    header.sizes = sizes;
    header.n_sizes = num_sizes;
    assert_true(block_index_open(&index, &layout, ids, MINE, wire));
    const char *problem = block_index_check(&index, &header, message->payload);
    block_index_close(&index);
    return problem;
}

static const char *check(enum job_wire wire, struct message *message) {
    return check_rows_of(wire, message, NULL, 0);
}

static void passes(enum job_wire wire, struct message message) {
    const char *problem = check(wire, &message);
    if (problem)
        fail_msg("%s", problem);
}

static void expect_message(enum job_wire wire, const char *expected,
                           struct message message) {
    const char *problem = check(wire, &message);
    assert_non_null(problem);
    assert_string_equal(problem, expected);
}

TEST(blocks_map_to_local_indices) {
    struct message push = {PUSH, FLOAT32, 0, {1, 3}, 2, (20 + 40) * 4};
    assert_null(check(JOB_WIRE_FLOAT32, &push));
    assert_int_equal(push.blocks[0], 0);
    assert_int_equal(push.blocks[1], 2);
}

TEST(foreign_and_unknown_blocks_are_refused) {
    const char *text = "a block that is not on this ps";
    expect_message(JOB_WIRE_FLOAT32, text,
                   (struct message){PULL, FLOAT32, 0, {0}, 1, 0});
    expect_message(JOB_WIRE_FLOAT32, text,
                   (struct message){PULL, FLOAT32, 0, {1, 4}, 2, 0});
    expect_message(JOB_WIRE_FLOAT32, text,
                   (struct message){PULL, FLOAT32, 0, {BLOCKS}, 1, 0});
    expect_message(JOB_WIRE_FLOAT32, text,
                   (struct message){PULL, FLOAT32, 0, {UINT32_MAX}, 1, 0});
}

TEST(blocks_must_be_unique_and_ordered) {
    const char *text = "blocks out of the plan's order";
    expect_message(JOB_WIRE_FLOAT32, text,
                   (struct message){PULL, FLOAT32, 0, {2, 1}, 2, 0});
    expect_message(JOB_WIRE_FLOAT32, text,
                   (struct message){PULL, FLOAT32, 0, {2, 2}, 2, 0});
    passes(JOB_WIRE_FLOAT32,
           (struct message){PULL, FLOAT32, 0, {1, 2, 3}, 3, 0});
}

TEST(a_payload_has_the_size_of_its_blocks) {
    const char *text = "a payload that is not the size of its blocks";
    passes(JOB_WIRE_FLOAT32, (struct message){PUSH, FLOAT32, 0, {2}, 1, 120});
    expect_message(JOB_WIRE_FLOAT32, text,
                   (struct message){PUSH, FLOAT32, 0, {2}, 1, 116});
    expect_message(JOB_WIRE_FLOAT32, text,
                   (struct message){PUSH, FLOAT32, 0, {2}, 1, 0});
    passes(JOB_WIRE_FLOAT32, (struct message){PUSH, EMPTY, 0, {2}, 1, 0});
    expect_message(JOB_WIRE_FLOAT32, text,
                   (struct message){PUSH, EMPTY, 0, {2}, 1, 120});
    passes(JOB_WIRE_BF16, (struct message){PUSH, OVERFLOWED, 0, {2}, 1, 0});
    expect_message(JOB_WIRE_FLOAT32, text,
                   (struct message){PUSH, OVERFLOWED, 0, {2}, 1, 120});
    expect_message(JOB_WIRE_FLOAT32, text,
                   (struct message){PULL, FLOAT32, 0, {2}, 1, 120});
    expect_message(JOB_WIRE_FLOAT32, text,
                   (struct message){QUERY, FLOAT32, 0, {2}, 1, 4});
    passes(JOB_WIRE_BF16, (struct message){PUSH, BF16, 0, {2}, 1, 60});
    expect_message(JOB_WIRE_BF16, text,
                   (struct message){PUSH, BF16, 0, {2}, 1, 120});
}

TEST(the_encoding_must_be_the_jobs) {
    const char *bf16 = "an encoding other than bf16, the job's wire: run the "
                       "same release of capstan everywhere";
    const char *float32 = "an encoding other than float32";
    expect_message(JOB_WIRE_FLOAT32, float32,
                   (struct message){PUSH, BF16, 0, {2}, 1, 60});
    expect_message(JOB_WIRE_BF16, bf16,
                   (struct message){PUSH, FLOAT32, 0, {2}, 1, 120});
    expect_message(JOB_WIRE_BF16, bf16,
                   (struct message){PULL, FLOAT32, 0, {2}, 1, 0});
    expect_message(JOB_WIRE_BF16, bf16,
                   (struct message){PULL, EMPTY, 0, {2}, 1, 0});
    expect_message(JOB_WIRE_FLOAT32, float32,
                   (struct message){PULL, OVERFLOWED, 0, {2}, 1, 0});
}

TEST(a_payload_must_be_whole_floats) {
    passes(JOB_WIRE_BF16, (struct message){ASSIGN, FLOAT32, 0, {2}, 1, 120});
    passes(JOB_WIRE_BF16, (struct message){PULL, FLOAT32, 7, {2}, 1, 0});
    expect_message(JOB_WIRE_BF16, "an encoding other than float32",
                   (struct message){ASSIGN, BF16, 0, {2}, 1, 60});
}

TEST(rows_are_of_partitions_and_name_their_sizes) {
    const char *absent = "a partition that is not on this ps";
    const char *unsized = "rows without the sizes of their partitions";
    struct {
        const char *expected; /* NULL: it passes */
        enum job_wire wire;
        struct message message;
        uint32_t sizes[2];
        size_t num_sizes;
    } cases[] = {
        {NULL,
         JOB_WIRE_BF16,
         {PUSH_ROWS, FLOAT32, 0, {5, 6}, 2, 60},
         {60, 0},
         2},
        {NULL, JOB_WIRE_BF16, {PUSH_ROWS, EMPTY, 0, {5}, 1, 0}, {0}, 0},
        {NULL, JOB_WIRE_BF16, {LOOKUP, BF16, 0, {5}, 1, 8}, {8}, 1},
        {NULL, JOB_WIRE_FLOAT32, {QUERY, FLOAT32, 0, {3, 5}, 2, 0}, {0}, 0},
        {absent, JOB_WIRE_FLOAT32, {LOOKUP, FLOAT32, 0, {1}, 1, 8}, {8}, 1},
        {absent, JOB_WIRE_FLOAT32, {LOOKUP, FLOAT32, 0, {7}, 1, 8}, {8}, 1},
        {"partitions out of order",
         JOB_WIRE_FLOAT32,
         {LOOKUP, FLOAT32, 0, {6, 5}, 2, 8},
         {4, 4},
         2},
        {"a block that is not on this ps",
         JOB_WIRE_FLOAT32,
         {PUSH, FLOAT32, 0, {3, 5}, 2, 160},
         {0},
         0},
        {unsized, JOB_WIRE_FLOAT32, {LOOKUP, FLOAT32, 0, {5, 6}, 2, 8}, {8}, 1},
        {unsized, JOB_WIRE_FLOAT32, {PUSH_ROWS, FLOAT32, 0, {5}, 1, 0}, {0}, 0},
        {unsized, JOB_WIRE_FLOAT32, {PUSH_ROWS, EMPTY, 0, {5}, 1, 8}, {8}, 1},
        {"an encoding other than float32",
         JOB_WIRE_BF16,
         {PUSH_ROWS, BF16, 0, {5}, 1, 8},
         {8},
         1},
        {"a payload that is not the size of its rows",
         JOB_WIRE_FLOAT32,
         {LOOKUP, FLOAT32, 0, {5, 6}, 2, 8},
         {8, 1},
         2},
        {NULL,
         JOB_WIRE_BF16,
         {ASSIGN_ROWS, FLOAT32, 0, {5, 6}, 2, 60},
         {60, 0},
         2},
        {absent,
         JOB_WIRE_FLOAT32,
         {ASSIGN_ROWS, FLOAT32, 0, {1}, 1, 8},
         {8},
         1},
        {unsized,
         JOB_WIRE_FLOAT32,
         {ASSIGN_ROWS, FLOAT32, 0, {5, 6}, 2, 8},
         {8},
         1},
        {"an encoding other than float32",
         JOB_WIRE_FLOAT32,
         {ASSIGN_ROWS, EMPTY, 0, {5}, 1, 0},
         {0},
         0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *problem = check_rows_of(cases[i].wire, &cases[i].message,
                                            cases[i].sizes, cases[i].num_sizes);
        if (cases[i].expected && problem)
            assert_string_equal(problem, cases[i].expected);
        else
            assert_ptr_equal(problem, cases[i].expected);
    }
    assert_int_equal(cases[0].message.blocks[0], MINE - 2);
    assert_int_equal(cases[0].message.blocks[1], MINE - 1);
}

TEST(a_push_names_the_sizes_of_the_rows_that_it_sets) {
    const char *unsized =
        "rows to be set without the sizes of their partitions";
    const char *other = "a payload that is not the size of its rows";
    struct {
        const char *expected; /* NULL: it passes */
        struct message message;
        size_t num_sizes, num_assigned;
    } cases[] = {
        {NULL, {PUSH_ROWS, FLOAT32, 0, {5, 6}, 2, 30}, 2, 2},
        {NULL, {PUSH_ROWS, EMPTY, 0, {5, 6}, 2, 10}, 0, 2},
        {NULL, {PUSH_ROWS, OVERFLOWED, 0, {5, 6}, 2, 10}, 0, 2},
        {other, {PUSH_ROWS, FLOAT32, 0, {5, 6}, 2, 20}, 2, 2},
        {other, {PUSH_ROWS, EMPTY, 0, {5, 6}, 2, 0}, 0, 2},
        {unsized, {PUSH_ROWS, FLOAT32, 0, {5, 6}, 2, 30}, 2, 1},
        {unsized, {LOOKUP, FLOAT32, 0, {5, 6}, 2, 30}, 2, 2},
        {unsized, {ASSIGN_ROWS, FLOAT32, 0, {5, 6}, 2, 30}, 2, 2},
        {unsized, {PUSH, FLOAT32, 0, {1, 2}, 2, 200}, 0, 2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint32_t sizes[] = {20, 0}, assigned[] = {4, 6};
        struct block_index index;
        Capstan__DataHeader header = CAPSTAN__DATA_HEADER__INIT;
        header.kind = cases[i].message.kind;
        header.encoding = cases[i].message.encoding;
        header.blocks = cases[i].message.blocks;
        header.n_blocks = cases[i].message.num_blocks;
        header.sizes = sizes;
        header.n_sizes = cases[i].num_sizes;
        header.assigned = assigned;
        header.n_assigned = cases[i].num_assigned;
        assert_true(
            block_index_open(&index, &layout, ids, MINE, JOB_WIRE_FLOAT32));
        const char *problem =
            block_index_check(&index, &header, cases[i].message.payload);
        block_index_close(&index);
        if (cases[i].expected && problem)
            assert_string_equal(problem, cases[i].expected);
        else
            assert_ptr_equal(problem, cases[i].expected);
        if (!problem)
            assert_int_equal(index.assigned[1], 6);
    }
}
