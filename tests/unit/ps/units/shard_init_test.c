/* SPDX-License-Identifier: Apache-2.0 */
#define STATE struct fixture *fixture

#include "ps/units/shard_init.h"

#include "core/base/background_task.h"
#include "tests/lib/test.h"

#include <poll.h>

enum { ELEMENTS = 3 << 20, SEED = 3, LIMIT_MS = 60000, BLOCKS = 48 };

/* One parameter in many blocks, all of this shard. */
struct fixture {
    struct layout *layout;
    uint32_t ids[BLOCKS];
    struct optimizer optimizer;
    struct shard *shard, *expected;
    struct shard_init shard_init;
    struct background_task *task;
};

static int set_up(void **state) {
    static struct fixture fixture;
    struct parameter parameter = {
        .name = "w", .num_dims = 1, .dims = {ELEMENTS}, .init_bound = 0.5f};
    fixture =
        (struct fixture){.optimizer = {.type = OPTIMIZER_SGD, .momentum = 0.5}};
    for (uint32_t b = 0; b < BLOCKS; b++)
        fixture.ids[b] = b;
    if (layout_build(&fixture.layout, &parameter, 1, &failure))
        return -1;
    assert_int_equal(fixture.layout->num_blocks, BLOCKS * 4);
    *state = &fixture;
    struct shard_settings settings = {fixture.layout, fixture.ids, BLOCKS,
                                      &fixture.optimizer, NULL};
    return shard_open(&fixture.shard, &settings, &failure) ||
           shard_open(&fixture.expected, &settings, &failure);
}

static int tear_down(void **state) {
    struct fixture *fixture = *state;
    background_task_close(&fixture->task);
    shard_close(&fixture->shard);
    shard_close(&fixture->expected);
    layout_free(&fixture->layout);
    return 0;
}

FIXTURE(set_up, tear_down);

static void start(struct fixture *fixture, const char *manifest) {
    fixture->shard_init =
        (struct shard_init){.units = {fixture->shard},
                            .seed = SEED,
                            .folder = manifest ? "/nowhere" : NULL,
                            .manifest = manifest};
    assert_ok(background_task_open(&fixture->task, shard_init_run,
                                   &fixture->shard_init, &failure));
}

static enum status await(struct fixture *fixture, struct failure *why) {
    struct pollfd item = {background_task_descriptor(fixture->task), POLLIN, 0};
    enum status status = STATUS_OK;
    assert_int_equal(poll(&item, 1, LIMIT_MS), 1);
    assert_true(background_task_poll(fixture->task, &status, why));
    return status;
}

TEST(all_blocks_are_initialised_from_the_seed) {
    start(fixture, NULL);
    assert_ok(await(fixture, &failure));
    shard_initialise(fixture->expected, SEED);
    for (uint32_t b = 0; b < BLOCKS; b++)
        for (unsigned t = 0; t < shard_tensors(fixture->shard, b); t++)
            assert_memory_equal(
                buffer_data(shard_tensor(fixture->shard, b, t)),
                buffer_data(shard_tensor(fixture->expected, b, t)),
                shard_block_bytes(fixture->shard, b));
}

TEST(an_unreadable_checkpoint_is_reported) {
    start(fixture, "no manifest");
    assert_int_not_equal(await(fixture, &failure), STATUS_OK);
    assert_true(strlen(failure.text) > 0);
}

/* Each block is as it was or as it should be, however far it came. */
TEST(closing_early_leaves_whole_blocks) {
    shard_initialise(fixture->shard, SEED + 1);
    shard_initialise(fixture->expected, SEED + 1);
    start(fixture, NULL);
    background_task_close(&fixture->task);
    assert_null(fixture->task);
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
