/* SPDX-License-Identifier: Apache-2.0 */
#include "ps/dense/filler.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <poll.h>
#include <string.h>

enum { ELEMENTS = 3 << 20, SEED = 3, LIMIT_MS = 20000, BLOCKS = 48 };

/* One parameter in many blocks, all of this shard. */
struct fixture {
    struct layout *layout;
    uint32_t ids[BLOCKS];
    struct optimizer optimizer;
    struct shard *shard, *expected;
    struct filler *filler;
};

static int set_up(void **state) {
    static struct fixture fixture;
    struct parameter parameter = {
        .name = "w", .num_dims = 1, .dims = {ELEMENTS}, .init_bound = 0.5f};
    struct failure why;
    fixture =
        (struct fixture){.optimizer = {.type = OPTIMIZER_SGD, .momentum = 0.5}};
    for (uint32_t b = 0; b < BLOCKS; b++)
        fixture.ids[b] = b;
    if (layout_build(&fixture.layout, &parameter, 1, &why))
        return -1;
    assert_int_equal(fixture.layout->num_blocks, BLOCKS * 4);
    *state = &fixture;
    return shard_open(&fixture.shard, fixture.layout, fixture.ids, BLOCKS,
                      &fixture.optimizer, &why) ||
           shard_open(&fixture.expected, fixture.layout, fixture.ids, BLOCKS,
                      &fixture.optimizer, &why);
}

static int tear_down(void **state) {
    struct fixture *fixture = *state;
    filler_close(&fixture->filler);
    shard_close(&fixture->shard);
    shard_close(&fixture->expected);
    layout_free(&fixture->layout);
    return 0;
}

static void start(struct fixture *fixture, const char *manifest) {
    struct filler_settings settings = {.shard = fixture->shard,
                                       .seed = SEED,
                                       .folder = manifest ? "/nowhere" : NULL,
                                       .manifest = manifest};
    struct failure why;
    if (filler_open(&fixture->filler, &settings, &why))
        fail_msg("%s", why.text);
}

static enum status await(struct fixture *fixture, struct failure *why) {
    struct pollfd item = {filler_descriptor(fixture->filler), POLLIN, 0};
    enum status status = STATUS_OK;
    assert_int_equal(poll(&item, 1, LIMIT_MS), 1);
    assert_true(filler_done(fixture->filler, &status, why));
    return status;
}

static void all_blocks_are_set_by_the_seed(void **state) {
    struct fixture *fixture = *state;
    struct failure why;
    start(fixture, NULL);
    assert_int_equal(await(fixture, &why), STATUS_OK);
    shard_initialise(fixture->expected, SEED);
    for (uint32_t b = 0; b < BLOCKS; b++)
        for (unsigned t = 0; t < shard_tensors(fixture->shard); t++)
            assert_memory_equal(
                buffer_data(shard_tensor(fixture->shard, b, t)),
                buffer_data(shard_tensor(fixture->expected, b, t)),
                shard_block_bytes(fixture->shard, b));
}

static void what_cannot_be_read_is_told(void **state) {
    struct fixture *fixture = *state;
    struct failure why;
    start(fixture, "no manifest");
    assert_int_not_equal(await(fixture, &why), STATUS_OK);
    assert_true(strlen(why.text) > 0);
}

/* Each block is as it was or as it should be, however far it came. */
static void closing_it_early_leaves_whole_blocks(void **state) {
    struct fixture *fixture = *state;
    shard_initialise(fixture->shard, SEED + 1);
    shard_initialise(fixture->expected, SEED + 1);
    start(fixture, NULL);
    filler_close(&fixture->filler);
    assert_null(fixture->filler);
    for (uint32_t b = 0; b < BLOCKS; b++) {
        const void *found = buffer_data(shard_tensor(fixture->shard, b, 0));
        size_t bytes = shard_block_bytes(fixture->shard, b);
        if (!memcmp(found, buffer_data(shard_tensor(fixture->expected, b, 0)),
                    bytes))
            continue;
        shard_initialise_block(fixture->expected, b, SEED);
        assert_memory_equal(
            found, buffer_data(shard_tensor(fixture->expected, b, 0)), bytes);
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(all_blocks_are_set_by_the_seed),
        TEST(what_cannot_be_read_is_told),
        TEST(closing_it_early_leaves_whole_blocks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
