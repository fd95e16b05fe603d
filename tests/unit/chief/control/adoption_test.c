/* SPDX-License-Identifier: Apache-2.0 */
#include "chief/control/adoption.h"

#include "core/base/time.h"
#include "tests/lib/test.h"

enum { RANKS = 2, PS = 2, PLACES = RANKS + PS, RUN = 7 };

static const int64_t LIMIT = 30 * TIME_S;

static struct adoption adoption;

static int setup(void **state) {
    (void)state;
    return adoption_open(&adoption, RANKS, PS, LIMIT) ? 0 : -1;
}

static int teardown(void **state) {
    (void)state;
    adoption_close(&adoption);
    return 0;
}

FIXTURE(setup, teardown);

/* Of the member of PLACE with that incarnation, once the run has begun. */
static void answer_of(uint32_t place, uint64_t run, uint64_t incarnation,
                      uint64_t term, int64_t now) {
    struct adoption_answer answer = {.run = run,
                                     .incarnation = incarnation,
                                     .term = term,
                                     .has_begun = place >= RANKS};
    adoption_receive(&adoption, place, &answer, now);
}

/* Both ranks train in view NUMBER, rank r with incarnation r + BASE. */
static void view_of(uint64_t number, uint64_t base) {
    const struct adoption_rank ranks[RANKS] = {{base, 1, true},
                                               {base + 1, 1, true}};
    adoption_receive_view(&adoption, number, ranks);
}

static void answer_all(int64_t now) {
    for (uint32_t p = 0; p < PLACES; p++)
        answer_of(p, RUN, 100 + p, 0, now);
    view_of(3, 100);
}

TEST(a_run_whose_members_all_answer_is_adopted_at_once) {
    assert_int_equal(adoption_decide(&adoption, LIMIT), ADOPTION_WAIT);
    for (uint32_t p = 0; p < PLACES; p++) {
        assert_int_equal(adoption_decide(&adoption, 5), ADOPTION_WAIT);
        answer_of(p, RUN, 100 + p, p, 5);
        view_of(p + 1, 100);
    }
    assert_int_equal(adoption_decide(&adoption, 5), ADOPTION_ADOPT);
    assert_int_equal(adoption.run, RUN);
    assert_int_equal(adoption.term, PLACES - 1);
    assert_int_equal(adoption.view, PLACES);
}

/* What is missing at the time limit, and what that means. */
TEST(a_trainer_that_does_not_answer_is_dead_and_a_ps_is_not_gone_without) {
    static const struct {
        uint32_t missing;
        enum adoption_verdict verdict;
        const char *why;
    } cases[] = {{0, ADOPTION_REWIND, "its trainer of rank 0 has not answered"},
                 {1, ADOPTION_ADOPT, ""},
                 {2, ADOPTION_REWIND, "ps 0 has not answered"},
                 {3, ADOPTION_REWIND, "ps 1 has not answered"}};
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        adoption_close(&adoption);
        assert_true(adoption_open(&adoption, RANKS, PS, LIMIT));
        for (uint32_t p = 0; p < PLACES; p++)
            if (p != cases[i].missing)
                answer_of(p, RUN, 100 + p, 0, 5);
        view_of(3, 100);
        assert_int_equal(adoption_decide(&adoption, 4 + LIMIT), ADOPTION_WAIT);
        assert_int_equal(adoption_decide(&adoption, 5 + LIMIT),
                         cases[i].verdict);
        assert_string_equal(adoption.why, cases[i].why);
        assert_false(adoption_has(&adoption, cases[i].missing));
    }
}

/* Records are no equal shares: those of a dead trainer are in no answer. */
TEST(a_run_on_records_is_not_adopted_without_a_trainer) {
    for (uint32_t answers = 1; answers <= RANKS; answers++) {
        adoption_close(&adoption);
        assert_true(adoption_open(&adoption, RANKS, PS, LIMIT));
        for (uint32_t p = RANKS; p < PLACES; p++)
            answer_of(p, RUN, 100 + p, 0, 5);
        for (uint32_t r = 0; r < answers; r++) {
            struct adoption_answer answer = {
                .run = RUN, .incarnation = 100 + r, .share = 10 + r};
            adoption_receive(&adoption, r, &answer, 5);
        }
        view_of(3, 100);
        assert_int_equal(adoption_decide(&adoption, 5 + LIMIT),
                         answers == RANKS ? ADOPTION_ADOPT : ADOPTION_REWIND);
    }
}

/* Its first step is one of all trainers. */
TEST(a_run_that_has_not_begun_is_not_adopted_without_a_trainer) {
    for (uint32_t missing = 0; missing < 2; missing++) {
        adoption_close(&adoption);
        assert_true(adoption_open(&adoption, RANKS, PS, LIMIT));
        for (uint32_t p = 0; p < PLACES; p++) {
            struct adoption_answer answer = {.run = RUN,
                                             .incarnation = 100 + p};
            if (p != 1 || !missing)
                adoption_receive(&adoption, p, &answer, 5);
        }
        view_of(3, 100);
        assert_int_equal(adoption_decide(&adoption, 5 + LIMIT),
                         missing ? ADOPTION_REWIND : ADOPTION_ADOPT);
    }
}

TEST(an_old_view_does_not_count) {
    answer_all(5);
    view_of(2, 200);
    assert_int_equal(adoption.view, 3);
    assert_int_equal(adoption_decide(&adoption, 5), ADOPTION_ADOPT);
    view_of(4, 200); /* the trainers that have answered are dead in it */
    assert_int_equal(adoption_decide(&adoption, 5), ADOPTION_WAIT);
    assert_int_equal(adoption_decide(&adoption, 5 + LIMIT), ADOPTION_REWIND);
}

TEST(nobody_is_awaited_for_a_rank_that_is_in_no_view) {
    const struct adoption_rank ranks[RANKS] = {{100, 1, true}, {0, 0, false}};
    answer_of(0, RUN, 100, 0, 5);
    answer_of(2, RUN, 102, 0, 5);
    answer_of(3, RUN, 103, 0, 5);
    adoption_receive_view(&adoption, 1, ranks);
    assert_int_equal(adoption_decide(&adoption, 5), ADOPTION_ADOPT);
}

/* Members of an earlier run have missed that it went back. */
TEST(members_of_two_runs_go_back_together) {
    answer_of(0, RUN, 100, 0, 5);
    answer_of(2, RUN + 1, 102, 0, 5);
    assert_int_equal(adoption_decide(&adoption, 5), ADOPTION_REWIND);
    assert_string_equal(adoption.why, "its members are in two runs");
}

TEST(two_processes_with_one_place_go_back) {
    answer_all(5);
    answer_of(3, RUN, 999, 0, 6);
    assert_int_equal(adoption_decide(&adoption, 6), ADOPTION_REWIND);
}

/* A new one asks for the place: the old one does not live. */
TEST(a_trainer_that_was_started_again_is_not_awaited_for_long) {
    for (uint32_t p = 0; p < PLACES; p++)
        if (p != 1)
            answer_of(p, RUN, 100 + p, 0, 5);
    view_of(3, 100);
    adoption_claim(&adoption, 1, 5);
    adoption_claim(&adoption, 1, TIME_S);
    assert_int_equal(adoption_decide(&adoption, TIME_S), ADOPTION_WAIT);
    assert_int_equal(adoption_decide(&adoption, 5 + 4 * TIME_S),
                     ADOPTION_ADOPT);
}

TEST(a_ps_that_was_started_again_and_does_not_answer_is_dead) {
    answer_of(0, RUN, 100, 0, 5);
    answer_of(1, RUN, 101, 0, 5);
    answer_of(2, RUN, 102, 0, 5);
    view_of(3, 100);
    adoption_claim(&adoption, 3, 5);
    assert_int_equal(adoption_decide(&adoption, TIME_S), ADOPTION_WAIT);
    assert_int_equal(adoption_decide(&adoption, 5 + 4 * TIME_S),
                     ADOPTION_REWIND);
    assert_string_equal(adoption.why, "ps 1 has not answered");
}

/* It is a second one, which the chief refuses later. */
TEST(a_process_that_asks_for_the_place_of_a_ps_that_lives_disturbs_nothing) {
    adoption_claim(&adoption, 3, 5);
    answer_all(TIME_S);
    adoption_claim(&adoption, 3, TIME_S);
    assert_int_equal(adoption_decide(&adoption, TIME_S), ADOPTION_ADOPT);
}
