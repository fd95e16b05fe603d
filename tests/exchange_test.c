#include "ps/exchange.h"

#include "tests/seed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

enum { BLOCKS = 3, RANKS = 3, MAX_ACTIONS = 64 };

/* An exchange and the actions of its last event. */
struct fixture {
    struct exchange *exchange;
    struct gate_slot slots[RANKS];
    uint64_t view;
    struct exchange_action actions[MAX_ACTIONS];
    unsigned count;
};

static struct fixture fixture;

static void settle(void) {
    fixture.count = 0;
    while (exchange_next(fixture.exchange, &fixture.actions[fixture.count]))
        assert_true(++fixture.count < MAX_ACTIONS);
}

static void see(void) {
    exchange_view(fixture.exchange, ++fixture.view, fixture.slots);
    settle();
}

static void open_exchange(const struct exchange_settings *settings) {
    memset(&fixture, 0, sizeof fixture);
    fixture.exchange = exchange_open(settings);
    assert_non_null(fixture.exchange);
    for (uint32_t r = 0; r < settings->num_ranks; r++)
        fixture.slots[r] =
            (struct gate_slot){100 + r, settings->start + 1, true};
    see();
    assert_int_equal(fixture.count, 0);
}

static void open_synchronous(uint32_t blocks, uint32_t ranks) {
    struct exchange_settings settings = {.num_blocks = blocks,
                                         .num_ranks = ranks};
    open_exchange(&settings);
}

static int teardown(void **state) {
    (void)state;
    exchange_close(&fixture.exchange);
    return 0;
}

static enum exchange_verdict push(uint32_t b, uint32_t rank, uint64_t clock,
                                  uint64_t seq) {
    enum exchange_verdict verdict =
        exchange_push(fixture.exchange, b, rank, clock, seq);
    settle();
    return verdict;
}

static enum exchange_verdict push_void(uint32_t b, uint32_t rank,
                                       uint64_t clock, uint64_t seq,
                                       double at) {
    enum exchange_verdict verdict =
        exchange_void(fixture.exchange, b, rank, clock, seq, at);
    settle();
    return verdict;
}

/* How many actions of KIND the last event had; *LAST is one of them. */
static unsigned acted(enum exchange_kind kind, struct exchange_action *last) {
    unsigned count = 0;
    for (unsigned i = 0; i < fixture.count; i++)
        if (fixture.actions[i].kind == kind) {
            count++;
            if (last)
                *last = fixture.actions[i];
        }
    return count;
}

static void a_round_closes_with_its_last_contribution(void **state) {
    (void)state;
    open_synchronous(1, 2);
    assert_int_equal(push(0, 0, 1, 10), EXCHANGE_TAKEN);
    assert_int_equal(fixture.count, 0);
    assert_int_equal(push(0, 1, 1, 20), EXCHANGE_TAKEN);
    assert_int_equal(fixture.count, 3);
    assert_int_equal(fixture.actions[0].kind, EXCHANGE_UPDATE);
    assert_int_equal(fixture.actions[0].version, 1);
    for (uint32_t r = 0; r < 2; r++) {
        struct exchange_action *reply = &fixture.actions[1 + r];
        assert_int_equal(reply->kind, EXCHANGE_REPLY);
        assert_int_equal(reply->rank, r);
        assert_int_equal(reply->clock, 1);
        assert_int_equal(reply->seq, 10 * (r + 1));
    }
}

static void blocks_close_for_themselves(void **state) {
    (void)state;
    open_synchronous(2, 2);
    push(0, 0, 1, 1);
    push(1, 0, 1, 1);
    push(1, 1, 1, 2);
    assert_int_equal(acted(EXCHANGE_UPDATE, NULL), 1);
    assert_int_equal(exchange_version(fixture.exchange, 0), 0);
    assert_int_equal(exchange_version(fixture.exchange, 1), 1);
    assert_int_equal(exchange_highest(fixture.exchange), 1);
}

static void a_late_push_is_answered_and_not_applied(void **state) {
    (void)state;
    open_synchronous(1, 1);
    push(0, 0, 1, 1);
    assert_int_equal(push(0, 0, 1, 2), EXCHANGE_KNOWN);
    struct exchange_action reply;
    assert_int_equal(fixture.count, 1);
    assert_int_equal(acted(EXCHANGE_REPLY, &reply), 1);
    assert_int_equal(reply.seq, 2);
    assert_int_equal(exchange_version(fixture.exchange, 0), 1);
}

static void a_push_that_comes_twice_counts_once(void **state) {
    (void)state;
    open_synchronous(1, 2);
    assert_int_equal(push(0, 0, 1, 1), EXCHANGE_TAKEN);
    assert_int_equal(push(0, 0, 1, 2), EXCHANGE_KNOWN);
    assert_int_equal(fixture.count, 0);
    push(0, 1, 1, 1);
    assert_int_equal(acted(EXCHANGE_UPDATE, NULL), 1);
    assert_int_equal(fixture.actions[1].seq, 2); /* the newest question */
}

static void a_push_out_of_order_is_refused(void **state) {
    (void)state;
    open_synchronous(1, 1);
    assert_int_equal(push(0, 0, 2, 1), EXCHANGE_REFUSED);
    assert_int_equal(push(0, 0, 0, 1), EXCHANGE_REFUSED);
    assert_int_equal(push(0, 0, UINT64_MAX, 1), EXCHANGE_REFUSED);
    assert_int_equal(fixture.count, 0);
    assert_int_equal(push(0, 0, 1, 1), EXCHANGE_TAKEN);
}

static void a_late_copy_does_not_take_a_later_requests_place(void **state) {
    (void)state;
    open_synchronous(1, 2);
    push(0, 0, 1, 1);
    push(0, 1, 1, 1);
    push(0, 0, 2, 2);
    assert_int_equal(push(0, 0, 1, 3), EXCHANGE_KNOWN);
    push(0, 1, 2, 2);
    assert_int_equal(acted(EXCHANGE_REPLY, NULL), 2);
    assert_int_equal(fixture.actions[1].rank, 0);
    assert_int_equal(fixture.actions[1].clock, 2);
}

static void a_dead_workers_contribution_taken_stays_taken(void **state) {
    (void)state;
    open_synchronous(1, 3);
    push(0, 0, 1, 1);
    push(0, 1, 1, 1);
    fixture.slots[0] = (struct gate_slot){0, 0, false};
    see();
    assert_int_equal(fixture.count, 0);
    push(0, 2, 1, 1);
    assert_int_equal(acted(EXCHANGE_UPDATE, NULL), 1);
    assert_int_equal(acted(EXCHANGE_REPLY, NULL), 2);
    assert_int_equal(ledger_row(exchange_ledger(fixture.exchange), 0)[0].clock,
                     1);
}

static void a_death_closes_the_rounds_that_waited_for_it(void **state) {
    (void)state;
    open_synchronous(2, 2);
    push(0, 0, 1, 1);
    fixture.slots[1].live = false;
    see();
    assert_int_equal(acted(EXCHANGE_UPDATE, NULL), 1); /* block 1 has none */
    assert_int_equal(acted(EXCHANGE_REPLY, NULL), 1);
    assert_int_equal(exchange_version(fixture.exchange, 1), 0);
}

static void a_round_waits_for_nobody_who_joined_later(void **state) {
    (void)state;
    open_synchronous(1, 2);
    fixture.slots[1] = (struct gate_slot){777, 3, true};
    see();
    push(0, 0, 1, 1);
    assert_int_equal(acted(EXCHANGE_UPDATE, NULL), 1);
    push(0, 0, 2, 2);
    assert_int_equal(acted(EXCHANGE_UPDATE, NULL), 1);
    push(0, 0, 3, 3);
    assert_int_equal(fixture.count, 0);
    assert_int_equal(push(0, 1, 3, 1), EXCHANGE_TAKEN);
    assert_int_equal(acted(EXCHANGE_UPDATE, NULL), 1);
}

static void rounds_of_the_dead_close_evenly_for_who_comes_after(void **state) {
    (void)state;
    open_synchronous(2, 1);
    push(0, 0, 1, 1);
    fixture.slots[0].live = false;
    fixture.slots[0].incarnation = 0;
    see(); /* nobody lives: block 1 stays at 0 */
    assert_int_equal(acted(EXCHANGE_UPDATE, NULL), 0);
    fixture.slots[0] = (struct gate_slot){200, 3, true};
    see();
    static const uint32_t blocks[] = {1, 0, 1}, versions[] = {1, 2, 2};
    assert_int_equal(fixture.count, 3);
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(fixture.actions[i].kind, EXCHANGE_UPDATE);
        assert_int_equal(fixture.actions[i].block, blocks[i]);
        assert_int_equal(fixture.actions[i].version, versions[i]);
    }
}

static void a_joiner_pushes_nothing_below_its_first_round(void **state) {
    (void)state;
    open_synchronous(1, 2);
    push(0, 1, 1, 1);
    fixture.slots[1] = (struct gate_slot){777, 3, true};
    see();
    assert_int_equal(push(0, 1, 1, 1), EXCHANGE_REFUSED);
    push(0, 0, 1, 1);
    assert_int_equal(acted(EXCHANGE_UPDATE, NULL), 1);
}

static void a_joiner_reads_the_round_before_its_first(void **state) {
    (void)state;
    open_synchronous(1, 2);
    fixture.slots[1] = (struct gate_slot){777, 2, true};
    see();
    exchange_pull(fixture.exchange, 0, 1, 1, 5);
    settle();
    assert_int_equal(fixture.count, 0);
    push(0, 0, 1, 1);
    struct exchange_action reply;
    assert_int_equal(acted(EXCHANGE_REPLY, &reply), 2);
    assert_int_equal(reply.rank, 1);
    assert_int_equal(reply.seq, 5);
}

static void a_successor_is_not_answered_what_it_did_not_ask(void **state) {
    (void)state;
    open_synchronous(1, 2);
    push(0, 0, 1, 1);
    fixture.slots[0] = (struct gate_slot){777, 3, true};
    see();
    push(0, 1, 1, 1);
    struct exchange_action reply;
    assert_int_equal(acted(EXCHANGE_REPLY, &reply), 1);
    assert_int_equal(reply.rank, 1);
}

static void an_ask_tells_what_has_to_be_sent_again(void **state) {
    (void)state;
    open_synchronous(2, 2);
    push(0, 0, 1, 1);
    assert_true(exchange_ask(fixture.exchange, 0, 0, 1, 7));
    assert_false(exchange_ask(fixture.exchange, 1, 0, 1, 7));
    settle();
    assert_int_equal(fixture.count, 0);
    push(0, 1, 1, 1);
    struct exchange_action *reply = &fixture.actions[1];
    assert_int_equal(reply->rank, 0);
    assert_int_equal(reply->seq, 7);
}

static void a_frozen_ps_closes_one_more_round(void **state) {
    (void)state;
    open_synchronous(2, 1);
    push(0, 0, 1, 1); /* block 1 is a round behind */
    assert_int_equal(exchange_freeze(fixture.exchange), 1);
    push(0, 0, 2, 2);
    assert_int_equal(acted(EXCHANGE_UPDATE, NULL), 1);
    assert_int_equal(push(0, 0, 3, 3), EXCHANGE_TAKEN);
    assert_int_equal(fixture.count, 0);
    assert_int_equal(exchange_freeze(fixture.exchange), 1); /* asked again */
    exchange_cut(fixture.exchange, 2);
    settle();
    struct exchange_action snapshot;
    assert_int_equal(acted(EXCHANGE_SNAPSHOT, &snapshot), 1);
    assert_int_equal(snapshot.block, 0);
    assert_int_equal(snapshot.version, 2);
    assert_int_equal(fixture.actions[0].kind, EXCHANGE_SNAPSHOT); /* first */
    assert_int_equal(acted(EXCHANGE_UPDATE, NULL), 1);
    push(1, 0, 1, 4);
    assert_int_equal(acted(EXCHANGE_SNAPSHOT, NULL), 0);
    push(1, 0, 2, 5);
    assert_int_equal(acted(EXCHANGE_SNAPSHOT, &snapshot), 1);
    assert_int_equal(snapshot.block, 1);
}

static void a_row_has_only_what_the_weights_have(void **state) {
    (void)state;
    struct ledger_entry row[2];
    open_synchronous(1, 2);
    push(0, 0, 1, 1);
    exchange_row(fixture.exchange, 0, 0, row);
    assert_int_equal(row[0].clock, 0);
    push(0, 1, 1, 1);
    push(0, 1, 2, 2); /* held for the open round */
    exchange_row(fixture.exchange, 0, 1, row);
    assert_int_equal(row[0].clock, 1);
    assert_int_equal(row[1].clock, 1);
    assert_int_equal(row[1].incarnation, 101);
}

static void round_zero_only_lifts_the_freeze(void **state) {
    (void)state;
    open_synchronous(1, 1);
    exchange_freeze(fixture.exchange);
    push(0, 0, 1, 1);
    push(0, 0, 2, 2);
    assert_int_equal(fixture.count, 0);
    exchange_cut(fixture.exchange, 0);
    settle();
    assert_int_equal(acted(EXCHANGE_UPDATE, NULL), 1);
    assert_int_equal(acted(EXCHANGE_SNAPSHOT, NULL), 0);
}

static bool every_third(const void *context, uint64_t round) {
    (void)context;
    return round % 3 == 0;
}

static void planned_rounds_are_snapshot_as_they_close(void **state) {
    (void)state;
    struct exchange_settings settings = {
        .num_blocks = 1, .num_ranks = 1, .planned = every_third};
    open_exchange(&settings);
    for (uint64_t clock = 1; clock < 10; clock++) {
        push(0, 0, clock, clock);
        assert_int_equal(acted(EXCHANGE_SNAPSHOT, NULL), clock % 3 == 0);
        assert_int_equal(fixture.actions[0].kind, EXCHANGE_UPDATE);
    }
}

static void a_clipped_round_waits_for_its_norm(void **state) {
    (void)state;
    struct exchange_settings settings = {
        .num_blocks = 2, .num_ranks = 1, .clip = true};
    open_exchange(&settings);
    push(0, 0, 1, 1);
    assert_int_equal(fixture.count, 1);
    assert_int_equal(acted(EXCHANGE_SUM, NULL), 1);
    push(0, 0, 1, 2);
    assert_int_equal(fixture.count, 0);
    push(1, 0, 1, 1);
    assert_int_equal(acted(EXCHANGE_SUM, NULL), 1);
    exchange_norm(fixture.exchange, 1);
    settle();
    assert_int_equal(acted(EXCHANGE_UPDATE, NULL), 2);
    assert_int_equal(acted(EXCHANGE_REPLY, NULL), 2);
    exchange_norm(fixture.exchange, 0); /* an old one changes nothing */
    settle();
    assert_int_equal(fixture.count, 0);
    push(0, 0, 2, 3);
    assert_int_equal(acted(EXCHANGE_SUM, NULL), 1);
}

static void a_resumed_run_counts_on(void **state) {
    (void)state;
    struct exchange_settings settings = {
        .num_blocks = 1, .num_ranks = 1, .start = 500};
    open_exchange(&settings);
    assert_int_equal(push(0, 0, 1, 1), EXCHANGE_REFUSED);
    exchange_pull(fixture.exchange, 0, 0, 500, 1);
    settle();
    assert_int_equal(acted(EXCHANGE_REPLY, NULL), 1);
    assert_int_equal(push(0, 0, 501, 2), EXCHANGE_TAKEN);
    assert_int_equal(exchange_highest(fixture.exchange), 501);
}

static void with_staleness_a_push_is_applied_and_its_answer_held(void **state) {
    (void)state;
    struct exchange_settings settings = {
        .num_blocks = 1, .num_ranks = 2, .staleness = 1};
    open_exchange(&settings);
    push(0, 0, 1, 1);
    assert_int_equal(fixture.count, 2);
    push(0, 0, 2, 2);
    assert_int_equal(acted(EXCHANGE_UPDATE, NULL), 1);
    assert_int_equal(acted(EXCHANGE_REPLY, NULL), 0); /* two ahead of rank 1 */
    push(0, 1, 1, 1);
    assert_int_equal(acted(EXCHANGE_REPLY, NULL), 2);
    fixture.slots[1].live = false;
    push(0, 0, 3, 3);
    push(0, 0, 4, 4);
    assert_int_equal(acted(EXCHANGE_REPLY, NULL), 0);
    see();
    assert_int_equal(acted(EXCHANGE_REPLY, NULL), 1);
}

static const struct job_fp16 fp16 = {.enabled = true,
                                     .initial_scale_power = 8,
                                     .loss_scale_window = 3,
                                     .hysteresis = 2,
                                     .min_loss_scale = 1};

static void open_scaled(uint32_t blocks, uint32_t ranks, uint64_t staleness,
                        bool clip) {
    struct exchange_settings settings = {.num_blocks = blocks,
                                         .num_ranks = ranks,
                                         .staleness = staleness,
                                         .clip = clip,
                                         .fp16 = fp16,
                                         .scaler = loss_scaler_first(&fp16)};
    open_exchange(&settings);
}

static struct exchange_action updated(void) {
    struct exchange_action update = {0};
    assert_int_equal(acted(EXCHANGE_UPDATE, &update), 1);
    return update;
}

static void one_void_push_voids_the_round_and_no_other(void **state) {
    (void)state;
    open_scaled(1, 3, 0, false);
    push(0, 0, 1, 1);
    assert_int_equal(push_void(0, 1, 1, 1, 256), EXCHANGE_TAKEN);
    assert_int_equal(fixture.count, 0);
    push(0, 2, 1, 1);
    assert_true(updated().voided);
    assert_int_equal(updated().version, 1);
    assert_int_equal(updated().scaler.skipped, 1);
    assert_int_equal(acted(EXCHANGE_REPLY, NULL), 3);
    for (uint32_t r = 0; r < 3; r++)
        push(0, r, 2, 2);
    assert_false(updated().voided);
    assert_int_equal(updated().version, 2);
    assert_int_equal(updated().step, 1);
}

static void void_pushes_are_taken_once_as_all_are(void **state) {
    (void)state;
    open_scaled(1, 2, 0, false);
    assert_int_equal(push_void(0, 0, 2, 1, 256), EXCHANGE_REFUSED);
    assert_int_equal(push_void(0, 0, 1, 1, 256), EXCHANGE_TAKEN);
    assert_int_equal(push_void(0, 0, 1, 2, 256), EXCHANGE_KNOWN);
    assert_true(exchange_ask(fixture.exchange, 0, 0, 1, 3));
    push(0, 1, 1, 1);
    assert_int_equal(updated().scaler.skipped, 1);
    assert_int_equal(push_void(0, 0, 1, 4, 256), EXCHANGE_KNOWN);
    push(0, 0, 2, 5);
    push(0, 1, 2, 5);
    assert_false(updated().voided);
}

static void a_void_push_of_the_dead_still_voids(void **state) {
    (void)state;
    open_scaled(1, 2, 0, false);
    push_void(0, 0, 1, 1, 256);
    fixture.slots[0].live = false;
    see();
    push(0, 1, 1, 1);
    assert_true(updated().voided);
}

static void with_staleness_a_void_push_is_its_own_alone(void **state) {
    (void)state;
    open_scaled(1, 2, 1, false);
    push(0, 0, 1, 1);
    assert_false(updated().voided);
    push_void(0, 1, 1, 1, 256);
    assert_true(updated().voided);
    assert_int_equal(updated().version, 2);
    assert_int_equal(acted(EXCHANGE_REPLY, NULL), 1);
    push(0, 0, 2, 2);
    assert_false(updated().voided);
    assert_int_equal(updated().version, 3);
    assert_int_equal(updated().step, 2);
}

static void a_void_round_is_summed_as_nothing_and_waits_for_the_norm(
    void **state) {
    (void)state;
    struct exchange_action sum = {0};
    open_scaled(1, 1, 0, true);
    push_void(0, 0, 1, 1, 256);
    assert_int_equal(acted(EXCHANGE_SUM, &sum), 1);
    assert_true(sum.voided);
    exchange_norm(fixture.exchange, 1);
    settle();
    assert_true(updated().voided);
}

static void the_scaler_is_that_of_the_version(void **state) {
    (void)state;
    open_scaled(1, 1, 0, false);
    push(0, 0, 1, 1);
    push_void(0, 0, 2, 2, 256);
    struct loss_scaler now = exchange_scaler(fixture.exchange, 0, 2);
    struct loss_scaler before = exchange_scaler(fixture.exchange, 0, 1);
    assert_int_equal(now.skipped, 1);
    assert_int_equal(now.hysteresis, 1);
    assert_int_equal(before.skipped, 0);
    assert_int_equal(before.hysteresis, 2);
    push_void(0, 0, 3, 3, 256);
    assert_true(exchange_scaler(fixture.exchange, 0, 3).scale == 128);
}

static void a_resumed_scaler_counts_on(void **state) {
    (void)state;
    struct exchange_settings settings = {
        .num_blocks = 1,
        .num_ranks = 1,
        .start = 500,
        .fp16 = fp16,
        .scaler = {.scale = 32, .good = 2, .hysteresis = 1, .skipped = 40}};
    open_exchange(&settings);
    push(0, 0, 501, 1);
    assert_int_equal(updated().step, 461);
    assert_true(updated().scaler.scale == 64);
}

/* The naive model: everything that was ever taken, and who waits. */
enum { CLOCKS = 40, INCARNATIONS = 100 };

struct model {
    uint64_t staleness, limit, highest, cut, last_incarnation;
    uint64_t version[BLOCKS];
    bool taken[BLOCKS][RANKS][INCARNATIONS][CLOCKS + 2];
    bool waiting[BLOCKS][RANKS];
    uint64_t clock[BLOCKS][RANKS], seq[BLOCKS][RANKS];
    /* Each update a block has had: 0, or the scale it overflowed at. */
    double overflow[BLOCKS][RANKS * CLOCKS + 2];
    double voided[BLOCKS]; /* of the open round */
};

static struct model model;

static uint64_t last_taken(uint32_t b, uint32_t r) {
    const struct gate_slot *slot = &fixture.slots[r];
    for (uint64_t clock = CLOCKS + 1; clock > 0; clock--)
        if (model.taken[b][r][slot->incarnation][clock])
            return clock;
    return slot->from - 1;
}

static bool contributed(uint32_t b, uint64_t round) {
    for (uint32_t r = 0; r < RANKS; r++)
        for (int i = 0; i < INCARNATIONS; i++)
            if (model.taken[b][r][i][round])
                return true;
    return false;
}

static bool anybody_lives(void) {
    for (uint32_t r = 0; r < RANKS; r++)
        if (fixture.slots[r].live)
            return true;
    return false;
}

/* A round of the dead alone closes for the joiners behind it. */
static bool closable(uint32_t b) {
    uint64_t round = model.version[b] + 1;
    if (model.staleness || round > model.limit ||
        (!contributed(b, round) && !anybody_lives()))
        return false;
    for (uint32_t r = 0; r < RANKS; r++) {
        const struct gate_slot *slot = &fixture.slots[r];
        if (slot->live && slot->from <= round &&
            !model.taken[b][r][slot->incarnation][round])
            return false;
    }
    return true;
}

static bool answerable(uint32_t b, uint32_t rank) {
    uint64_t clock = model.clock[b][rank];
    if (!model.waiting[b][rank])
        return false;
    if (!model.staleness)
        return model.version[b] >= clock;
    for (uint32_t r = 0; r < RANKS; r++)
        if (fixture.slots[r].live && clock > last_taken(b, r) + model.staleness)
            return false;
    return true;
}

static void await(uint32_t b, uint32_t r, uint64_t clock, uint64_t seq) {
    if (model.waiting[b][r] && model.clock[b][r] > clock)
        return;
    model.waiting[b][r] = true;
    model.clock[b][r] = clock;
    model.seq[b][r] = seq;
}

/* DeepSpeed's counting, all of it anew: the iteration that overflowed last. */
static double scale_of(uint32_t b) {
    double scale = 256;
    int64_t last = -1, iteration = 0;
    uint32_t hysteresis = fp16.hysteresis;
    for (uint64_t v = 1; v <= model.version[b]; v++) {
        double at = model.overflow[b][v];
        if (at > scale || scale == 0)
            continue;
        if (at > 0 && hysteresis > 1)
            hysteresis--;
        else if (at > 0)
            scale = scale == 1 ? 0 : scale / 2;
        if (at > 0)
            last = iteration;
        else if ((iteration - last) % (int64_t)fp16.loss_scale_window == 0) {
            hysteresis = fp16.hysteresis;
            scale *= 2;
        }
        iteration++;
    }
    return scale;
}

static uint64_t skipped_of(uint32_t b) {
    uint64_t count = 0;
    for (uint64_t v = 1; v <= model.version[b]; v++)
        count += model.overflow[b][v] > 0;
    return count;
}

static void check_update(const struct exchange_action *action) {
    uint32_t b = action->block;
    assert_int_equal(action->version, ++model.version[b]);
    assert_int_equal(action->voided, model.voided[b] > 0);
    model.overflow[b][action->version] = model.voided[b];
    model.voided[b] = 0;
    assert_int_equal(action->scaler.skipped, skipped_of(b));
    assert_int_equal(action->step, action->version - skipped_of(b));
    if (action->scaler.scale != scale_of(b))
        fail_msg("scale %g, expected %g", action->scaler.scale, scale_of(b));
    if (action->version > model.highest)
        model.highest = action->version;
}

/* Each action must be due when it comes; afterwards nothing may be. */
static void check_actions(void) {
    for (unsigned i = 0; i < fixture.count; i++) {
        const struct exchange_action *action = &fixture.actions[i];
        uint32_t b = action->block, r = action->rank;
        switch (action->kind) {
        case EXCHANGE_UPDATE:
            assert_true(model.staleness || closable(b));
            check_update(action);
            break;
        case EXCHANGE_REPLY:
            assert_true(answerable(b, r));
            assert_int_equal(action->seq, model.seq[b][r]);
            assert_int_equal(action->clock, model.clock[b][r]);
            model.waiting[b][r] = false;
            break;
        case EXCHANGE_SNAPSHOT:
            assert_int_equal(action->version, model.cut);
            assert_int_equal(model.version[b], model.cut);
            break;
        default:
            fail_msg("nobody clips here");
        }
    }
    for (uint32_t b = 0; b < BLOCKS; b++) {
        assert_false(closable(b));
        assert_int_equal(exchange_version(fixture.exchange, b),
                         model.version[b]);
        for (uint32_t r = 0; r < RANKS; r++)
            assert_false(answerable(b, r));
    }
}

/* Never 0: what overflows is marked by the scale it did at. */
static double fixture_scale(uint32_t b) {
    double scale = exchange_scaler(fixture.exchange, b, UINT64_MAX).scale;
    return scale > 0 ? scale : 1;
}

static void push_at_random(struct philox_sequence *random, uint64_t seq) {
    uint32_t b = philox_below(random, BLOCKS), r = philox_below(random, RANKS);
    const struct gate_slot *slot = &fixture.slots[r];
    uint64_t last = last_taken(b, r);
    uint64_t clock = last + 3 - philox_below(random, 5);
    if (clock < 1 || clock > last + 2)
        clock = last + 1;
    if (clock > CLOCKS ||
        !exchange_knows(fixture.exchange, r, slot->incarnation))
        return;
    bool known = last_taken(b, r) >= clock &&
                 last_taken(b, r) >= slot->from; /* it, or a later one */
    bool next =
        model.staleness ? clock == last + 1 : clock == model.version[b] + 1;
    next = next && clock >= slot->from;
    if (known || next)
        await(b, r, clock, seq);
    bool overflows = philox_below(random, 6) == 0;
    double at = fixture_scale(b) * (1 + (philox_below(random, 4) == 0));
    if (!known && next) {
        model.taken[b][r][slot->incarnation][clock] = true;
        if (overflows)
            model.voided[b] = at;
    }
    assert_int_equal(overflows ? push_void(b, r, clock, seq, at)
                               : push(b, r, clock, seq),
                     known  ? EXCHANGE_KNOWN
                     : next ? EXCHANGE_TAKEN
                            : EXCHANGE_REFUSED);
    assert_int_equal(model.staleness && !known && next,
                     model.staleness && acted(EXCHANGE_UPDATE, NULL) == 1);
}

static void read_at_random(struct philox_sequence *random, uint64_t seq) {
    uint32_t b = philox_below(random, BLOCKS), r = philox_below(random, RANKS);
    uint64_t incarnation = fixture.slots[r].incarnation;
    uint64_t clock = last_taken(b, r) + philox_below(random, 2);
    if (!exchange_knows(fixture.exchange, r, incarnation) || clock > CLOCKS)
        return;
    if (philox_below(random, 2)) {
        await(b, r, clock, seq);
        exchange_pull(fixture.exchange, b, r, clock, seq);
    } else {
        bool has = last_taken(b, r) >= clock &&
                   last_taken(b, r) >= fixture.slots[r].from;
        if (has)
            await(b, r, clock, seq);
        assert_int_equal(exchange_ask(fixture.exchange, b, r, clock, seq), has);
    }
    settle();
}

/* Who dies comes back above every round that is open. */
static void change_view(struct philox_sequence *random) {
    uint32_t r = philox_below(random, RANKS);
    struct gate_slot *slot = &fixture.slots[r], before = *slot;
    if (!slot->live)
        *slot = (struct gate_slot){++model.last_incarnation, model.highest + 2,
                                   true};
    else if (philox_below(random, 2))
        *slot = (struct gate_slot){0};
    slot->live = !before.live;
    assert_true(slot->incarnation < INCARNATIONS);
    for (uint32_t b = 0; b < BLOCKS; b++)
        if (slot->incarnation != before.incarnation)
            model.waiting[b][r] = false;
    see();
}

static void cut_at_random(void) {
    uint64_t round = exchange_freeze(fixture.exchange) + 1;
    if (model.limit == UINT64_MAX) {
        assert_int_equal(round, model.highest + 1);
        model.limit = round;
        fixture.count = 0;
        return;
    }
    assert_int_equal(round, model.limit);
    model.limit = UINT64_MAX;
    model.cut = round;
    exchange_cut(fixture.exchange, round);
    settle();
}

static void play(struct philox_sequence *random, uint64_t staleness) {
    open_scaled(BLOCKS, RANKS, staleness, false);
    memset(&model, 0, sizeof model);
    model.staleness = staleness;
    model.last_incarnation = 1;
    model.limit = UINT64_MAX;
    for (uint32_t r = 0; r < RANKS; r++)
        fixture.slots[r] = (struct gate_slot){1, 1, true};
    see();
    for (uint64_t event = 1; event < 400; event++) {
        uint32_t kind = philox_below(random, 40);
        fixture.count = 0;
        if (kind == 0 && !staleness)
            change_view(random);
        else if (kind == 1 && !staleness)
            cut_at_random();
        else if (kind < 8)
            read_at_random(random, event);
        else
            push_at_random(random, event);
        check_actions();
    }
    exchange_close(&fixture.exchange);
}

static void synchronous_histories_agree_with_the_model(void **state) {
    (void)state;
    struct philox_sequence random;
    seed_open(&random);
    for (int history = 0; history < 2000; history++)
        play(&random, 0);
}

static void stale_histories_agree_with_the_model(void **state) {
    (void)state;
    struct philox_sequence random;
    seed_open(&random);
    for (int history = 0; history < 2000; history++)
        play(&random, 1 + philox_below(&random, 4));
}

#define EXCHANGE_TEST(f) cmocka_unit_test_teardown(f, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        EXCHANGE_TEST(a_round_closes_with_its_last_contribution),
        EXCHANGE_TEST(blocks_close_for_themselves),
        EXCHANGE_TEST(a_late_push_is_answered_and_not_applied),
        EXCHANGE_TEST(a_push_that_comes_twice_counts_once),
        EXCHANGE_TEST(a_push_out_of_order_is_refused),
        EXCHANGE_TEST(a_late_copy_does_not_take_a_later_requests_place),
        EXCHANGE_TEST(a_dead_workers_contribution_taken_stays_taken),
        EXCHANGE_TEST(a_death_closes_the_rounds_that_waited_for_it),
        EXCHANGE_TEST(a_round_waits_for_nobody_who_joined_later),
        EXCHANGE_TEST(rounds_of_the_dead_close_evenly_for_who_comes_after),
        EXCHANGE_TEST(a_joiner_pushes_nothing_below_its_first_round),
        EXCHANGE_TEST(a_joiner_reads_the_round_before_its_first),
        EXCHANGE_TEST(a_successor_is_not_answered_what_it_did_not_ask),
        EXCHANGE_TEST(an_ask_tells_what_has_to_be_sent_again),
        EXCHANGE_TEST(a_frozen_ps_closes_one_more_round),
        EXCHANGE_TEST(a_row_has_only_what_the_weights_have),
        EXCHANGE_TEST(round_zero_only_lifts_the_freeze),
        EXCHANGE_TEST(planned_rounds_are_snapshot_as_they_close),
        EXCHANGE_TEST(a_clipped_round_waits_for_its_norm),
        EXCHANGE_TEST(a_resumed_run_counts_on),
        EXCHANGE_TEST(with_staleness_a_push_is_applied_and_its_answer_held),
        EXCHANGE_TEST(one_void_push_voids_the_round_and_no_other),
        EXCHANGE_TEST(void_pushes_are_taken_once_as_all_are),
        EXCHANGE_TEST(a_void_push_of_the_dead_still_voids),
        EXCHANGE_TEST(with_staleness_a_void_push_is_its_own_alone),
        EXCHANGE_TEST(a_void_round_is_summed_as_nothing_and_waits_for_the_norm),
        EXCHANGE_TEST(the_scaler_is_that_of_the_version),
        EXCHANGE_TEST(a_resumed_scaler_counts_on),
        EXCHANGE_TEST(synchronous_histories_agree_with_the_model),
        EXCHANGE_TEST(stale_histories_agree_with_the_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
