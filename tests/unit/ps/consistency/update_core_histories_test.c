/* SPDX-License-Identifier: Apache-2.0 */
/* Random histories of an exchange beside a naive model of it, which keeps all
 * that was ever taken and finds anew, after each event, what is due. */
#include "ps/consistency/update_core.h"

#include "tests/lib/seed.h"
#include "tests/lib/test.h"
#include "tests/lib/update_core_fixture.h"

#include <string.h>

enum {
    BLOCKS = 3,
    RANKS = UPDATE_CORE_FIXTURE_RANKS,
    CLOCKS = 40,
    INCARNATIONS = 100
};

/* The naive model: everything that was ever taken, and who waits. */
struct model {
    uint64_t staleness, limit, highest, cut, last_incarnation;
    uint32_t enough; /* contributions that close a round; 0: those of all */
    uint64_t version[BLOCKS];
    bool taken[BLOCKS][RANKS][INCARNATIONS][CLOCKS + 2];
    bool waiting[BLOCKS][RANKS];
    uint64_t clock[BLOCKS][RANKS], seq[BLOCKS][RANKS];
    /* Each update a block has had: 0, or the scale it overflowed at. */
    double overflow[BLOCKS][RANKS * CLOCKS + 2];
    double overflowed[BLOCKS]; /* of the open round */
    bool has_bytes[BLOCKS];    /* the open round */
    uint64_t counted[BLOCKS];  /* by the rule */
};

static struct model model;

static uint64_t last_taken(uint32_t b, uint32_t r) {
    const struct gate_slot *slot = &update_core_fixture.slots[r];
    for (uint64_t clock = CLOCKS + 1; clock > 0; clock--)
        if (model.taken[b][r][slot->incarnation][clock])
            return clock;
    return slot->from - 1;
}

static uint32_t contributions(uint32_t b, uint64_t round) {
    uint32_t count = 0;
    for (uint32_t r = 0; r < RANKS; r++)
        for (int i = 0; i < INCARNATIONS; i++)
            count += model.taken[b][r][i][round];
    return count;
}

static bool has_enough(uint32_t b, uint64_t round) {
    return model.enough && contributions(b, round) >= model.enough;
}

/* It lacks the contribution, and its round closes, or has closed, with those of
 * others. */
static bool late(uint32_t b, uint32_t r, uint64_t clock) {
    uint64_t open = model.version[b] + 1;
    return model.enough && clock >= update_core_fixture.slots[r].from &&
           last_taken(b, r) < clock &&
           (clock < open || (clock == open && has_enough(b, open)));
}

static bool anybody_lives(void) {
    for (uint32_t r = 0; r < RANKS; r++)
        if (update_core_fixture.slots[r].live)
            return true;
    return false;
}

/* A round of the dead alone closes for the joiners behind it. */
static bool closable(uint32_t b) {
    uint64_t round = model.version[b] + 1;
    if (model.staleness || round > model.limit ||
        (!contributions(b, round) && !anybody_lives()))
        return false;
    if (has_enough(b, round))
        return true;
    for (uint32_t r = 0; r < RANKS; r++) {
        const struct gate_slot *slot = &update_core_fixture.slots[r];
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
        if (update_core_fixture.slots[r].live &&
            clock > last_taken(b, r) + model.staleness)
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
    uint32_t hysteresis = update_core_fixture_fp16.hysteresis;
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
        else if ((iteration - last) %
                     (int64_t)update_core_fixture_fp16.loss_scale_window ==
                 0) {
            hysteresis = update_core_fixture_fp16.hysteresis;
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

static void check_update(const struct update_core_action *action) {
    uint32_t b = action->block;
    assert_int_equal(action->version, ++model.version[b]);
    assert_int_equal(action->overflowed, model.overflowed[b] > 0);
    model.overflow[b][action->version] = model.overflowed[b];
    model.counted[b] += model.has_bytes[b] && !(model.overflowed[b] > 0);
    model.overflowed[b] = 0;
    model.has_bytes[b] = false;
    assert_int_equal(action->rule_step, model.counted[b]);
    assert_int_equal(action->scaler.skipped, skipped_of(b));
    assert_int_equal(action->step, action->version - skipped_of(b));
    if (action->scaler.scale != scale_of(b))
        fail_msg("scale %g, expected %g", action->scaler.scale, scale_of(b));
    if (action->version > model.highest)
        model.highest = action->version;
}

/* Each action must be due when it comes; afterwards nothing may be. */
static void check_actions(void) {
    for (unsigned i = 0; i < update_core_fixture.count; i++) {
        const struct update_core_action *action =
            &update_core_fixture.actions[i];
        uint32_t b = action->block, r = action->rank;
        switch (action->kind) {
        case UPDATE_CORE_UPDATE:
            assert_true(model.staleness || closable(b));
            check_update(action);
            break;
        case UPDATE_CORE_REPLY:
            assert_true(answerable(b, r));
            assert_int_equal(action->seq, model.seq[b][r]);
            assert_int_equal(action->clock, model.clock[b][r]);
            assert_int_equal(action->late, late(b, r, action->clock));
            model.waiting[b][r] = false;
            break;
        case UPDATE_CORE_SNAPSHOT:
            assert_int_equal(action->version, model.cut);
            assert_int_equal(model.version[b], model.cut);
            assert_int_equal(
                update_core_rule_step(update_core_fixture.update_core, b,
                                      action->version),
                model.counted[b]);
            break;
        default:
            fail_msg("nobody clips here");
        }
    }
    for (uint32_t b = 0; b < BLOCKS; b++) {
        assert_false(closable(b));
        assert_int_equal(
            update_core_version(update_core_fixture.update_core, b),
            model.version[b]);
        assert_int_equal(update_core_rule_step(update_core_fixture.update_core,
                                               b, model.version[b]),
                         model.counted[b]);
        for (uint32_t r = 0; r < RANKS; r++)
            assert_false(answerable(b, r));
    }
}

/* Never 0: what overflows is marked by the scale it did at. */
static double fixture_scale(uint32_t b) {
    double scale =
        update_core_scaler(update_core_fixture.update_core, b, UINT64_MAX)
            .scale;
    return scale > 0 ? scale : 1;
}

static void push_at_random(struct philox_sequence *random, uint64_t seq) {
    uint32_t b = philox_below(random, BLOCKS), r = philox_below(random, RANKS);
    const struct gate_slot *slot = &update_core_fixture.slots[r];
    uint64_t last = last_taken(b, r);
    uint64_t clock = last + 3 - philox_below(random, 5);
    if (clock < 1 || clock > last + 2)
        clock = last + 1;
    if (model.enough && philox_below(random, 2))
        clock = model.version[b] + philox_below(random, 2);
    if (!clock || clock > CLOCKS ||
        !update_core_is_current(update_core_fixture.update_core, r,
                                slot->incarnation))
        return;
    bool known = last_taken(b, r) >= clock &&
                 last_taken(b, r) >= slot->from; /* it, or a later one */
    bool next =
        model.staleness ? clock == last + 1 : clock == model.version[b] + 1;
    bool is_late = late(b, r, clock);
    next = next && clock >= slot->from && !is_late;
    if (known || next || is_late)
        await(b, r, clock, seq);
    bool overflows = philox_below(random, 6) == 0;
    bool has_bytes = !overflows && philox_below(random, 2) == 0;
    double at = fixture_scale(b) * (1 + (philox_below(random, 4) == 0));
    if (!known && next) {
        model.taken[b][r][slot->incarnation][clock] = true;
        model.has_bytes[b] |= has_bytes;
        if (overflows)
            model.overflowed[b] = at;
    }
    assert_int_equal(
        overflows   ? update_core_fixture_push_overflowed(b, r, clock, seq, at)
        : has_bytes ? update_core_fixture_push(b, r, clock, seq)
                    : update_core_fixture_push_without_bytes(b, r, clock, seq),
        known     ? UPDATE_CORE_DUPLICATE
        : next    ? UPDATE_CORE_ACCEPTED
        : is_late ? UPDATE_CORE_LATE
                  : UPDATE_CORE_REFUSED);
    assert_int_equal(model.staleness && !known && next,
                     model.staleness && update_core_fixture_count(
                                            UPDATE_CORE_UPDATE, NULL) == 1);
}

static void read_at_random(struct philox_sequence *random, uint64_t seq) {
    uint32_t b = philox_below(random, BLOCKS), r = philox_below(random, RANKS);
    uint64_t incarnation = update_core_fixture.slots[r].incarnation;
    uint64_t clock = last_taken(b, r) + philox_below(random, 2);
    if (!update_core_is_current(update_core_fixture.update_core, r,
                                incarnation) ||
        clock > CLOCKS)
        return;
    if (philox_below(random, 2)) {
        await(b, r, clock, seq);
        update_core_pull(update_core_fixture.update_core, b, r, clock, seq);
    } else {
        bool has = late(b, r, clock) ||
                   (last_taken(b, r) >= clock &&
                    last_taken(b, r) >= update_core_fixture.slots[r].from);
        if (has)
            await(b, r, clock, seq);
        assert_int_equal(update_core_query(update_core_fixture.update_core, b,
                                           r, clock, seq),
                         has);
    }
    update_core_fixture_collect();
}

/* Who dies comes back above every round that is open. */
static void change_view(struct philox_sequence *random) {
    uint32_t r = philox_below(random, RANKS);
    struct gate_slot *slot = &update_core_fixture.slots[r], before = *slot;
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
    update_core_fixture_set_view();
}

static void cut_at_random(void) {
    uint64_t round = update_core_freeze(update_core_fixture.update_core) + 1;
    if (model.limit == UINT64_MAX) {
        assert_int_equal(round, model.highest + 1);
        model.limit = round;
        update_core_fixture.count = 0;
        return;
    }
    assert_int_equal(round, model.limit);
    model.limit = UINT64_MAX;
    model.cut = round;
    update_core_set_snapshot_round(update_core_fixture.update_core, round);
    update_core_fixture_collect();
}

static void play(struct philox_sequence *random, uint64_t staleness,
                 uint32_t backup_workers) {
    struct update_core_settings settings = {
        .num_blocks = BLOCKS,
        .num_ranks = RANKS,
        .staleness = staleness,
        .backup_workers = backup_workers,
        .fp16 = update_core_fixture_fp16,
        .scaler = loss_scaler_init(&update_core_fixture_fp16)};
    update_core_fixture_open(&settings);
    memset(&model, 0, sizeof model);
    model.staleness = staleness;
    model.enough = backup_workers ? RANKS - backup_workers : 0;
    model.last_incarnation = 1;
    model.limit = UINT64_MAX;
    for (uint32_t r = 0; r < RANKS; r++)
        update_core_fixture.slots[r] = (struct gate_slot){1, 1, true};
    update_core_fixture_set_view();
    /* One event closes two rounds at most, without contributions; a round has
     * a clock. */
    for (uint64_t event = 1;
         event < 400 && (staleness || model.highest < CLOCKS - 2); event++) {
        uint32_t kind = philox_below(random, 40);
        update_core_fixture.count = 0;
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
    update_core_close(&update_core_fixture.update_core);
}

FIXTURE(NULL, update_core_fixture_teardown);

TEST(synchronous_histories_agree_with_the_model) {
    struct philox_sequence random;
    seed_open(&random);
    for (int history = 0; history < 2000; history++)
        play(&random, 0, 0);
}

TEST(stale_histories_agree_with_the_model) {
    struct philox_sequence random;
    seed_open(&random);
    for (int history = 0; history < 2000; history++)
        play(&random, 1 + philox_below(&random, 4), 0);
}

TEST(histories_with_backup_workers_agree_with_the_model) {
    struct philox_sequence random;
    seed_open(&random);
    for (int history = 0; history < 2000; history++)
        play(&random, 0, 1 + philox_below(&random, RANKS - 1));
}
