/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/exchange_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

struct exchange_fixture exchange_fixture;

const struct job_fp16 exchange_fixture_fp16 = {.enabled = true,
                                               .initial_scale_power = 8,
                                               .loss_scale_window = 3,
                                               .hysteresis = 2,
                                               .min_loss_scale = 1};

void exchange_fixture_settle(void) {
    exchange_fixture.count = 0;
    while (exchange_next(exchange_fixture.exchange,
                         &exchange_fixture.actions[exchange_fixture.count]))
        assert_true(++exchange_fixture.count < EXCHANGE_FIXTURE_ACTIONS);
}

void exchange_fixture_see(void) {
    exchange_view(exchange_fixture.exchange, ++exchange_fixture.view,
                  exchange_fixture.slots);
    exchange_fixture_settle();
}

void exchange_fixture_open(const struct exchange_settings *settings) {
    memset(&exchange_fixture, 0, sizeof exchange_fixture);
    exchange_fixture.exchange = exchange_open(settings);
    assert_non_null(exchange_fixture.exchange);
    for (uint32_t r = 0; r < settings->num_ranks; r++)
        exchange_fixture.slots[r] =
            (struct gate_slot){100 + r, settings->start + 1, true};
    exchange_fixture_see();
    assert_int_equal(exchange_fixture.count, 0);
}

void exchange_fixture_synchronous(uint32_t blocks, uint32_t ranks) {
    struct exchange_settings settings = {.num_blocks = blocks,
                                         .num_ranks = ranks};
    exchange_fixture_open(&settings);
}

void exchange_fixture_scaled(uint32_t blocks, uint32_t ranks,
                             uint64_t staleness, bool clip) {
    struct exchange_settings settings = {
        .num_blocks = blocks,
        .num_ranks = ranks,
        .staleness = staleness,
        .clip = clip,
        .fp16 = exchange_fixture_fp16,
        .scaler = loss_scaler_first(&exchange_fixture_fp16)};
    exchange_fixture_open(&settings);
}

int exchange_fixture_teardown(void **state) {
    (void)state;
    exchange_close(&exchange_fixture.exchange);
    return 0;
}

enum exchange_verdict exchange_fixture_push(uint32_t b, uint32_t rank,
                                            uint64_t clock, uint64_t seq) {
    enum exchange_verdict verdict =
        exchange_push(exchange_fixture.exchange, b, rank, clock, seq);
    exchange_fixture_settle();
    return verdict;
}

enum exchange_verdict exchange_fixture_void(uint32_t b, uint32_t rank,
                                            uint64_t clock, uint64_t seq,
                                            double at) {
    enum exchange_verdict verdict =
        exchange_void(exchange_fixture.exchange, b, rank, clock, seq, at);
    exchange_fixture_settle();
    return verdict;
}

unsigned exchange_fixture_acted(enum exchange_kind kind,
                                struct exchange_action *last) {
    unsigned count = 0;
    for (unsigned i = 0; i < exchange_fixture.count; i++)
        if (exchange_fixture.actions[i].kind == kind) {
            count++;
            if (last)
                *last = exchange_fixture.actions[i];
        }
    return count;
}

struct exchange_action exchange_fixture_updated(void) {
    struct exchange_action update = {0};
    assert_int_equal(exchange_fixture_acted(EXCHANGE_UPDATE, &update), 1);
    return update;
}
