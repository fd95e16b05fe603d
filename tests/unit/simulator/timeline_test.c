/* SPDX-License-Identifier: Apache-2.0 */
#include "simulator/timeline.h"

#include "tests/lib/seed.h"
#include "tests/lib/test.h"

enum { MAXIMUM = 4000 };

static struct philox_sequence chance;

struct diary {
    struct timeline *timeline;
    uint64_t numbers[MAXIMUM];
    int64_t times[MAXIMUM];
    unsigned count;
};

static void record_event(void *context, uint64_t number) {
    struct diary *diary = context;
    diary->times[diary->count] = timeline_now(diary->timeline);
    diary->numbers[diary->count++] = number;
}

TEST(events_fire_by_time_then_by_insertion_order) {
    static struct diary diary;
    diary = (struct diary){.timeline = timeline_open()};
    assert_non_null(diary.timeline);
    seed_open(&chance);
    for (uint64_t i = 0; i < MAXIMUM; i++)
        timeline_add(diary.timeline, philox_below(&chance, 100), record_event,
                     &diary, i);
    while (timeline_step(diary.timeline))
        ;
    assert_int_equal(diary.count, MAXIMUM);
    for (unsigned i = 1; i < MAXIMUM; i++)
        assert_true(diary.times[i - 1] < diary.times[i] ||
                    (diary.times[i - 1] == diary.times[i] &&
                     diary.numbers[i - 1] < diary.numbers[i]));
    timeline_close(&diary.timeline);
}

static void add_another(void *context, uint64_t number) {
    struct diary *diary = context;
    record_event(context, number);
    if (number)
        timeline_add(diary->timeline, 5, add_another, diary, number - 1);
}

TEST(delays_count_from_the_event_that_adds_them) {
    static struct diary diary;
    diary = (struct diary){.timeline = timeline_open()};
    timeline_add(diary.timeline, 7, add_another, &diary, 2);
    while (timeline_step(diary.timeline))
        ;
    assert_int_equal(diary.count, 3);
    assert_int_equal(diary.times[0], 7);
    assert_int_equal(diary.times[1], 12);
    assert_int_equal(diary.times[2], 17);
    timeline_close(&diary.timeline);
    timeline_close(&diary.timeline);
}
