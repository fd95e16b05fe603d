/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/plan/encoding.h"

#include "core/tensor/bf16.h"
#include "tests/lib/test.h"

#include <math.h>

enum { COUNT = 1000 };

static void fill(float *floats) {
    for (int i = 0; i < COUNT; i++)
        floats[i] = (float)sin(i) * (float)(i % 7);
    floats[3] = NAN;
    floats[4] = -INFINITY;
}

TEST(float32_is_sent_unchanged) {
    float floats[COUNT], back[COUNT];
    char room[COUNT * 4 + 1];
    fill(floats);
    assert_int_equal(encoding_bytes(JOB_WIRE_FLOAT32, COUNT), 4 * COUNT);
    encoding_write(NULL, JOB_WIRE_FLOAT32, floats, COUNT, room + 1);
    encoding_read(NULL, JOB_WIRE_FLOAT32, room + 1, COUNT, back);
    assert_memory_equal(back, floats, sizeof floats);
    encoding_round(JOB_WIRE_FLOAT32, back, COUNT);
    assert_memory_equal(back, floats, sizeof floats);
}

TEST(bf16_is_sent_rounded_in_half_the_bytes) {
    float floats[COUNT], back[COUNT];
    char room[COUNT * 2 + 2];
    fill(floats);
    assert_int_equal(encoding_bytes(JOB_WIRE_BF16, COUNT), 2 * COUNT);
    room[COUNT * 2 + 1] = 'x';
    encoding_write(NULL, JOB_WIRE_BF16, floats, COUNT, room + 1);
    assert_int_equal(room[COUNT * 2 + 1], 'x');
    encoding_read(NULL, JOB_WIRE_BF16, room + 1, COUNT, back);
    for (int i = 0; i < COUNT; i++) {
        float expected = bf16_to_float(bf16_from_float(floats[i]));
        assert_memory_equal(&back[i], &expected, sizeof expected);
    }
    encoding_round(JOB_WIRE_BF16, floats, COUNT);
    assert_memory_equal(back, floats, sizeof floats);
}

/* Two bytes a float, the lower first, the sign in the upper. */
TEST(the_bytes_of_a_bf16_are_little_endian) {
    const float value = -1.5f;
    unsigned char bytes[2];
    encoding_write(NULL, JOB_WIRE_BF16, &value, 1, bytes);
    assert_int_equal(bytes[0], 0xc0);
    assert_int_equal(bytes[1], 0xbf);
}

TEST(headers_name_the_encoding) {
    assert_int_equal(encoding_name(JOB_WIRE_FLOAT32),
                     CAPSTAN__DATA_HEADER__ENCODING__FLOAT32);
    assert_int_equal(encoding_name(JOB_WIRE_BF16),
                     CAPSTAN__DATA_HEADER__ENCODING__BF16);
}

/* What trainers assign is no gradient: it keeps all its bits. */
TEST(only_what_is_trained_is_sent_in_fewer_bits) {
    const struct parameter parameters[] = {
        {.name = "p", .num_dims = 1, .dims = {5}},
        {.name = "q", .num_dims = 1, .dims = {5}, .kind = PARAMETER_ASSIGNED}};
    struct layout *layout;
    assert_ok(layout_build(&layout, parameters, 2, &failure));
    for (uint32_t b = 0; b < layout->num_blocks; b++)
        assert_int_equal(encoding_of_block(layout, b, JOB_WIRE_BF16),
                         layout->blocks[b].parameter ? JOB_WIRE_FLOAT32
                                                     : JOB_WIRE_BF16);
    layout_free(&layout);
}
