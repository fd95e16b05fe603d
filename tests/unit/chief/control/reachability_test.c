/* SPDX-License-Identifier: Apache-2.0 */
#include "chief/control/reachability.h"

#include "core/base/time.h"
#include "tests/lib/seed.h"
#include "tests/lib/test.h"

enum { MOST_RANKS = 4, MOST_PS = 3 };
static const int64_t TICK = TIME_S / 10, HEARTBEAT = TIME_S / 2;

/* When a rank notices begin and end of a cut from a ps, and since when it says
 * that it lasts. */
struct cut {
    int64_t noticed, restored, since;
};

/* What really happens: cuts that are made good, and one fault that lasts, or
 * none (FAULTY_NONE). */
struct history {
    uint32_t ranks, ps, guilty;
    enum reachability_fault fault;
    bool rejects; /* a connection ends at once, else when TCP notices */
    int64_t peer, begins;
    struct cut cuts[MOST_RANKS][MOST_PS];
    int64_t silent_from[MOST_RANKS], silent_to[MOST_RANKS]; /* heartbeats */
};

static int64_t draw_time(struct philox_sequence *random, int64_t below) {
    return philox_below(random, (uint32_t)(below / TIME_MS)) * TIME_MS;
}

/* As link_is_lost has it: from the last packet on, of which there is one each
 * second, seen each half second. */
static void draw_cut(const struct history *history, struct cut *cut,
                     int64_t begin, int64_t end,
                     struct philox_sequence *random) {
    int64_t notice = history->rejects ? draw_time(random, TIME_S)
                                      : 3 * TIME_S + draw_time(random, TIME_S);
    cut->noticed = begin + notice;
    cut->restored =
        end < TIME_NEVER ? end + draw_time(random, 2 * TIME_S) : end;
    cut->since = begin - draw_time(random, 3 * TIME_S / 2);
}

static void draw_short_cuts(struct history *history,
                            struct philox_sequence *random) {
    for (uint32_t r = 0; r < history->ranks; r++)
        for (uint32_t p = 0; p < history->ps; p++)
            if (philox_below(random, 3) == 0) {
                int64_t begin = 100 * TIME_S + draw_time(random, 60 * TIME_S);
                draw_cut(history, &history->cuts[r][p], begin,
                         begin + draw_time(random, 4 * TIME_S), random);
            }
}

/* A lone trainer's loss of a ps is a ps that nobody reaches. */
static void draw_fault(struct history *history,
                       struct philox_sequence *random) {
    uint32_t p = philox_below(random, history->ps);
    history->begins = 100 * TIME_S + draw_time(random, 20 * TIME_S);
    bool of_ps = philox_below(random, 2) || history->ranks == 1;
    history->fault = of_ps ? REACHABILITY_PS : REACHABILITY_TRAINER;
    history->guilty = of_ps ? p : philox_below(random, history->ranks);
    for (uint32_t r = 0; r < history->ranks; r++)
        if (of_ps || r == history->guilty)
            draw_cut(history, &history->cuts[r][p], history->begins, TIME_NEVER,
                     random);
}

static struct history draw_history(struct philox_sequence *random) {
    struct history history = {
        .ranks = 1 + philox_below(random, MOST_RANKS),
        .ps = 1 + philox_below(random, MOST_PS),
        .peer = TIME_S + draw_time(random, 30 * TIME_S),
        .rejects = philox_below(random, 2),
    };
    draw_short_cuts(&history, random);
    if (philox_below(random, 4))
        draw_fault(&history, random);
    for (uint32_t r = 0; r < history.ranks; r++)
        if (philox_below(random, 3) == 0) {
            history.silent_from[r] =
                100 * TIME_S + draw_time(random, 40 * TIME_S);
            history.silent_to[r] =
                history.silent_from[r] + draw_time(random, 5 * TIME_S);
        }
    return history;
}

static void send_report(const struct history *history, struct roster *roster,
                        struct reachability *reachability, uint32_t rank,
                        int64_t now) {
    if (now >= history->silent_from[rank] && now < history->silent_to[rank])
        return;
    roster_mark_alive(&roster->slots[rank], now);
    reachability_report(reachability, rank, now);
    for (uint32_t p = 0; p < history->ps; p++) {
        const struct cut *cut = &history->cuts[rank][p];
        if (cut->noticed && now >= cut->noticed && now < cut->restored)
            reachability_lose(reachability, rank, p, cut->since);
    }
}

/* The first verdict, and when; or none. */
static struct reachability_verdict play(const struct history *history,
                                        int64_t until, int64_t *at) {
    struct roster roster;
    struct reachability reachability;
    struct reachability_verdict verdict = {REACHABILITY_NONE, 0, 0, 0};
    assert_true(roster_open(&roster, false, history->ranks, history->ps,
                            history->peer));
    assert_true(reachability_open(&reachability, &roster));
    for (uint32_t i = 0; i < roster.count; i++) {
        struct roster_claim claim = {i + 1, 1, 2, "h", "h:2", 0};
        roster_claim(&roster.slots[i], &claim, 0);
    }
    for (*at = 99 * TIME_S; *at < until && !verdict.fault; *at += TICK) {
        for (uint32_t p = 0; p < history->ps; p++)
            roster_mark_alive(roster_ps(&roster, p), *at);
        for (uint32_t r = 0; r < history->ranks; r++)
            if ((*at + r * TICK) % HEARTBEAT == 0)
                send_report(history, &roster, &reachability, r, *at);
        verdict = reachability_judge(&reachability, &roster, *at);
    }
    reachability_close(&reachability);
    roster_close(&roster);
    return verdict;
}

/* Within the limit, the seconds until all have noticed, and those in which a
 * trainer's heartbeats may stay out. */
TEST_WITH(NULL, NULL, the_guilty_end_of_a_cut_is_found_in_time) {
    struct philox_sequence random;
    seed_open(&random);
    for (int i = 0; i < 20000; i++) {
        struct history history = draw_history(&random);
        int64_t least = history.peer > 8 * TIME_S ? history.peer : 8 * TIME_S;
        int64_t at, until = history.fault ? history.begins + least + 8 * TIME_S
                                          : 200 * TIME_S;
        struct reachability_verdict verdict = play(&history, until, &at);
        assert_int_equal(verdict.fault, history.fault);
        if (history.fault == REACHABILITY_PS)
            assert_int_equal(verdict.ps, history.guilty);
        if (history.fault == REACHABILITY_TRAINER)
            assert_int_equal(verdict.rank, history.guilty);
        if (history.fault)
            assert_true(at - history.begins >= least - 2 * TIME_S);
    }
}

static struct roster roster;
static struct reachability reachability;

static int setup(void **state) {
    (void)state;
    if (!roster_open(&roster, false, 2, 2, 30 * TIME_S) ||
        !reachability_open(&reachability, &roster))
        return -1;
    for (uint32_t i = 0; i < roster.count; i++) {
        struct roster_claim claim = {i + 1, 1, 2, "h", "h:2", 0};
        roster_claim(&roster.slots[i], &claim, 0);
    }
    return 0;
}

static int teardown(void **state) {
    (void)state;
    reachability_close(&reachability);
    roster_close(&roster);
    return 0;
}

FIXTURE(setup, teardown);

/* RANK reports that it LACKS a ps since SINCE. */
static void report(uint32_t rank, uint32_t lacks, int64_t since, int64_t now) {
    reachability_report(&reachability, rank, now);
    if (lacks < 2)
        reachability_lose(&reachability, rank, lacks, since);
}

enum { NOTHING = 2 };

static enum reachability_fault fault_at(int64_t now) {
    return reachability_judge(&reachability, &roster, now).fault;
}

static void hear_ps(int64_t now) {
    for (uint32_t p = 0; p < 2; p++)
        roster_mark_alive(roster_ps(&roster, p), now);
}

/* Worker 1 has not begun, or is gone: what it reaches says nothing. */
TEST(only_trainers_that_have_begun_are_asked) {
    hear_ps(32 * TIME_S);
    report(0, 1, TIME_S, 31 * TIME_S);
    assert_int_equal(fault_at(32 * TIME_S), REACHABILITY_NONE);
    report(0, 1, TIME_S, 32 * TIME_S);
    assert_int_equal(fault_at(32 * TIME_S), REACHABILITY_PS);
    report(1, NOTHING, 0, 32 * TIME_S);
    assert_int_equal(fault_at(32 * TIME_S), REACHABILITY_TRAINER);
    reachability_forget(&reachability, 1);
    assert_int_equal(fault_at(32 * TIME_S), REACHABILITY_PS);
}

/* A rack that is cut off: the chief hears neither the ps nor the trainer that
 * reaches it. Their silence is judged by the roster. */
TEST(a_ps_that_the_chief_does_not_hear_either_is_not_judged) {
    hear_ps(28 * TIME_S);
    report(1, NOTHING, 0, 28 * TIME_S);
    report(0, 1, TIME_S, 32 * TIME_S);
    assert_int_equal(fault_at(32 * TIME_S), REACHABILITY_NONE);
    hear_ps(32 * TIME_S);
    assert_int_equal(fault_at(32 * TIME_S), REACHABILITY_NONE);
    report(1, NOTHING, 0, 32 * TIME_S);
    assert_int_equal(fault_at(32 * TIME_S), REACHABILITY_TRAINER);
    report(0, 1, TIME_S, 34 * TIME_S);
    report(1, NOTHING, 0, 34 * TIME_S);
    assert_int_equal(fault_at(34 * TIME_S), REACHABILITY_NONE);
    hear_ps(34 * TIME_S);
    assert_int_equal(fault_at(34 * TIME_S), REACHABILITY_TRAINER);
}

/* What it said last may have been made good. */
TEST(a_trainer_that_the_chief_does_not_hear_is_not_judged) {
    report(0, 1, TIME_S, 32 * TIME_S);
    report(1, NOTHING, 0, 34 * TIME_S);
    hear_ps(34 * TIME_S);
    assert_int_equal(fault_at(34 * TIME_S), REACHABILITY_NONE);
    report(0, 1, TIME_S, 34 * TIME_S);
    assert_int_equal(fault_at(34 * TIME_S), REACHABILITY_TRAINER);
}

TEST(a_standstill_of_the_chief_does_not_count) {
    report(0, 0, TIME_S, 12 * TIME_S);
    hear_ps(12 * TIME_S);
    reachability_shift(&reachability, 20 * TIME_S, 32 * TIME_S);
    hear_ps(32 * TIME_S);
    assert_int_equal(fault_at(32 * TIME_S), REACHABILITY_NONE);
    report(0, 0, 21 * TIME_S, 52 * TIME_S);
    hear_ps(52 * TIME_S);
    assert_int_equal(fault_at(52 * TIME_S), REACHABILITY_PS);
    reachability_shift(&reachability, 20 * TIME_S, 72 * TIME_S);
    hear_ps(72 * TIME_S);
    assert_int_equal(fault_at(72 * TIME_S), REACHABILITY_PS);
}
