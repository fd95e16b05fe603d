/* SPDX-License-Identifier: Apache-2.0 */
#include "ps/dense/block_index.h"

#include "tests/lib/test.h"

enum { BLOCKS = 5, MINE = 3 };

/* Blocks of 10, 20, 30, 40 and 50 floats, the second to fourth of them mine. */
static const uint32_t ids[MINE] = {1, 2, 3};
static struct block blocks[BLOCKS] = {{.elements = 10},
                                      {.elements = 20},
                                      {.elements = 30},
                                      {.elements = 40},
                                      {.elements = 50}};
static struct parameter parameter; /* that all belong to */
static const struct layout layout = {.num_parameters = 1,
                                     .num_blocks = BLOCKS,
                                     .parameters = &parameter,
                                     .blocks = blocks};

struct message {
    Capstan__DataHeader__Kind kind;
    Capstan__DataHeader__Encoding encoding;
    uint64_t snapshot;
    uint32_t blocks[BLOCKS];
    size_t num_blocks, payload;
};

static const Capstan__DataHeader__Kind QUERY =
                                           CAPSTAN__DATA_HEADER__KIND__QUERY,
                                       PUSH = CAPSTAN__DATA_HEADER__KIND__PUSH,
                                       PULL = CAPSTAN__DATA_HEADER__KIND__PULL,
                                       ASSIGN =
                                           CAPSTAN__DATA_HEADER__KIND__ASSIGN;
static const Capstan__DataHeader__Encoding
    FLOAT32 = CAPSTAN__DATA_HEADER__ENCODING__FLOAT32,
    BF16 = CAPSTAN__DATA_HEADER__ENCODING__BF16,
    EMPTY = CAPSTAN__DATA_HEADER__ENCODING__EMPTY,
    OVERFLOWED = CAPSTAN__DATA_HEADER__ENCODING__OVERFLOW;

/* MESSAGE as one that came; its blocks are changed as block_index_check does.
 */
static const char *check(enum job_wire wire, struct message *message) {
    struct block_index index;
    Capstan__DataHeader header = CAPSTAN__DATA_HEADER__INIT;
    header.kind = message->kind;
    header.encoding = message->encoding;
    header.snapshot = message->snapshot;
    header.blocks = message->blocks;
    header.n_blocks = message->num_blocks;
    assert_true(block_index_open(&index, &layout, ids, MINE, wire));
    const char *problem = block_index_check(&index, &header, message->payload);
    block_index_close(&index);
    return problem;
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
