/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/update_core_fixture.h"
#include "tests/lib/test.h"

struct update_core_fixture update_core_fixture;

const struct job_fp16 update_core_fixture_fp16 = {.enabled = true,
                                                  .initial_scale_power = 8,
                                                  .loss_scale_window = 3,
                                                  .hysteresis = 2,
                                                  .min_loss_scale = 1};

void update_core_fixture_collect(void) {
    update_core_fixture.count = 0;
    while (update_core_next(
        update_core_fixture.update_core,
        &update_core_fixture.actions[update_core_fixture.count]))
        assert_true(++update_core_fixture.count < UPDATE_CORE_FIXTURE_ACTIONS);
}

void update_core_fixture_set_view(void) {
    update_core_set_view(update_core_fixture.update_core,
                         ++update_core_fixture.view, update_core_fixture.slots);
    update_core_fixture_collect();
}

void update_core_fixture_open(const struct update_core_settings *settings) {
    memset(&update_core_fixture, 0, sizeof update_core_fixture);
    update_core_fixture.update_core = update_core_open(settings);
    assert_non_null(update_core_fixture.update_core);
    for (uint32_t r = 0; r < settings->num_ranks; r++)
        update_core_fixture.slots[r] =
            (struct gate_slot){100 + r, settings->start + 1, true};
    update_core_fixture_set_view();
    assert_int_equal(update_core_fixture.count, 0);
}

void update_core_fixture_synchronous(uint32_t blocks, uint32_t ranks) {
    struct update_core_settings settings = {.num_blocks = blocks,
                                            .num_ranks = ranks};
    update_core_fixture_open(&settings);
}

void update_core_fixture_scaled(uint32_t blocks, uint32_t ranks,
                                uint64_t staleness, bool clip) {
    struct update_core_settings settings = {
        .num_blocks = blocks,
        .num_ranks = ranks,
        .staleness = staleness,
        .clip = clip,
        .fp16 = update_core_fixture_fp16,
        .scaler = loss_scaler_init(&update_core_fixture_fp16)};
    update_core_fixture_open(&settings);
}

int update_core_fixture_teardown(void **state) {
    (void)state;
    update_core_close(&update_core_fixture.update_core);
    return 0;
}

enum update_core_result update_core_fixture_push(uint32_t b, uint32_t rank,
                                                 uint64_t clock, uint64_t seq) {
    enum update_core_result verdict =
        update_core_push(update_core_fixture.update_core, b, rank, clock, seq);
    update_core_fixture_collect();
    return verdict;
}

enum update_core_result update_core_fixture_push_without_bytes(uint32_t b,
                                                               uint32_t rank,
                                                               uint64_t clock,
                                                               uint64_t seq) {
    enum update_core_result verdict = update_core_push_without_bytes(
        update_core_fixture.update_core, b, rank, clock, seq);
    update_core_fixture_collect();
    return verdict;
}

enum update_core_result update_core_fixture_push_overflowed(
    uint32_t b, uint32_t rank, uint64_t clock, uint64_t seq, double at) {
    enum update_core_result verdict = update_core_push_overflowed(
        update_core_fixture.update_core, b, rank, clock, seq, at);
    update_core_fixture_collect();
    return verdict;
}

unsigned update_core_fixture_count(enum update_core_kind kind,
                                   struct update_core_action *last) {
    unsigned count = 0;
    for (unsigned i = 0; i < update_core_fixture.count; i++)
        if (update_core_fixture.actions[i].kind == kind) {
            count++;
            if (last)
                *last = update_core_fixture.actions[i];
        }
    return count;
}

struct update_core_action update_core_fixture_single_update(void) {
    struct update_core_action update = {0};
    assert_int_equal(update_core_fixture_count(UPDATE_CORE_UPDATE, &update), 1);
    return update;
}
