/* SPDX-License-Identifier: Apache-2.0 */
#include "simulator/agenda.h"

#include "tests/lib/seed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

enum { MOST = 4000 };

static struct philox_sequence chance;

struct diary {
    struct agenda *agenda;
    uint64_t numbers[MOST];
    int64_t times[MOST];
    unsigned count;
};

static void note(void *context, uint64_t number) {
    struct diary *diary = context;
    diary->times[diary->count] = agenda_now(diary->agenda);
    diary->numbers[diary->count++] = number;
}

static void events_happen_by_time_and_of_equal_times_by_order(void **state) {
    (void)state;
    static struct diary diary;
    diary = (struct diary){.agenda = agenda_open()};
    assert_non_null(diary.agenda);
    seed_open(&chance);
    for (uint64_t i = 0; i < MOST; i++)
        agenda_add(diary.agenda, philox_below(&chance, 100), note, &diary, i);
    while (agenda_step(diary.agenda))
        ;
    assert_int_equal(diary.count, MOST);
    for (unsigned i = 1; i < MOST; i++)
        assert_true(diary.times[i - 1] < diary.times[i] ||
                    (diary.times[i - 1] == diary.times[i] &&
                     diary.numbers[i - 1] < diary.numbers[i]));
    assert_false(agenda_failed(diary.agenda));
    agenda_close(&diary.agenda);
}

static void add_another(void *context, uint64_t number) {
    struct diary *diary = context;
    note(context, number);
    if (number)
        agenda_add(diary->agenda, 5, add_another, diary, number - 1);
}

static void delays_count_from_the_event_that_adds(void **state) {
    (void)state;
    static struct diary diary;
    diary = (struct diary){.agenda = agenda_open()};
    agenda_add(diary.agenda, 7, add_another, &diary, 2);
    while (agenda_step(diary.agenda))
        ;
    assert_int_equal(diary.count, 3);
    assert_int_equal(diary.times[0], 7);
    assert_int_equal(diary.times[1], 12);
    assert_int_equal(diary.times[2], 17);
    agenda_close(&diary.agenda);
    agenda_close(&diary.agenda);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(events_happen_by_time_and_of_equal_times_by_order),
        cmocka_unit_test(delays_count_from_the_event_that_adds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
