/* SPDX-License-Identifier: Apache-2.0 */
#include "chief/report/histogram_board.h"

#include "chief/report/metrics.h"
#include "tests/lib/metrics_fixture.h"
#include "tests/lib/test.h"

#include <math.h>
#include <string.h>

enum { ELEMENTS = 10 };

/* What the outlet got. */
static struct {
    int count;
    char tag[64];
    uint64_t step;
    struct histogram_sum sum;
} last;

static struct parameter parameter = {.name = "w", .elements = ELEMENTS};
static struct layout layout = {.num_parameters = 1, .parameters = &parameter};

static void keep(void *self, const char *tag, uint64_t step,
                 const struct histogram_sum *sum) {
    (void)self;
    last.count++;
    snprintf(last.tag, sizeof last.tag, "%s", tag);
    last.step = step;
    last.sum = *sum;
}

static int setup(void **state) {
    memset(&last, 0, sizeof last);
    if (metrics_fixture_setup(state))
        return -1;
    struct metrics_fixture *measured = *state;
    measured->job.histogram_every_steps = 5;
    measured->run.plan.layout = &layout;
    measured->run.metrics.outlets.list[0].write_histogram = keep;
    return 0;
}

static int teardown(void **state) {
    struct metrics_fixture *measured = *state;
    histogram_board_close(&measured->run);
    measured->run.plan.layout = NULL;
    return metrics_fixture_teardown(state);
}

FIXTURE(setup, teardown);

/* COUNT values, 1 and one that is not finite, from OFFSET on. */
static void send(struct run *run, uint64_t step, uint64_t offset,
                 uint64_t elements) {
    uint32_t bin = 127 << 3, count = (uint32_t)elements - 1;
    Capstan__Histogram histogram = CAPSTAN__HISTOGRAM__INIT,
                       *list[] = {&histogram};
    Capstan__Histograms message = CAPSTAN__HISTOGRAMS__INIT;
    histogram.step = step;
    histogram.offset = offset;
    histogram.elements = elements;
    histogram.bins = &bin;
    histogram.counts = &count;
    histogram.n_bins = histogram.n_counts = 1;
    histogram.sum = histogram.squares = count;
    histogram.least = histogram.most = 1;
    message.n_list = 1;
    message.list = list;
    histogram_board_receive(run, &run->roster.slots[0], &message);
}

TEST(a_histogram_is_written_when_all_its_pieces_have_come) {
    struct run *run = &((struct metrics_fixture *)*state)->run;
    send(run, 5, 6, 4);
    send(run, 10, 0, 6); /* of a round ahead */
    assert_int_equal(last.count, 0);
    send(run, 5, 0, 6);
    assert_int_equal(last.count, 1);
    assert_string_equal(last.tag, "weights/w");
    assert_int_equal(last.step, 5);
    assert_int_equal(last.sum.finite, 8);
    assert_int_equal(last.sum.nonfinite, 2);
    assert_int_equal(last.sum.counts[histogram_place(127 << 3)], 8);
    assert_true(last.sum.sum == 8 && last.sum.least == 1);
    send(run, 10, 6, 4);
    assert_int_equal(last.count, 2);
    assert_int_equal(last.step, 10);
}

TEST(a_histogram_that_lacks_a_piece_is_never_written) {
    struct run *run = &((struct metrics_fixture *)*state)->run;
    send(run, 5, 0, 6);
    for (uint64_t step = 10; step <= 50; step += 5)
        send(run, step, 6, 4);
    send(run, 5, 6, 4); /* too late: later ones have its place */
    assert_int_equal(last.count, 0);
    send(run, 50, 0, 6);
    assert_int_equal(last.count, 1);
    assert_int_equal(last.step, 50);
}

TEST(pieces_that_overlap_are_no_histogram) {
    struct run *run = &((struct metrics_fixture *)*state)->run;
    send(run, 5, 0, 6);
    send(run, 5, 0, 4);
    assert_int_equal(last.count, 0);
    send(run, 10, 0, 6);
    send(run, 10, 6, 6); /* beyond the end */
    assert_int_equal(last.count, 0);
}

TEST(steps_before_the_start_are_not_written_again) {
    struct run *run = &((struct metrics_fixture *)*state)->run;
    run->plan.schedule.start = 10;
    send(run, 10, 0, ELEMENTS);
    assert_int_equal(last.count, 0);
    send(run, 15, 0, ELEMENTS);
    assert_int_equal(last.count, 1);
}
