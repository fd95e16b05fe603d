/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/messages/histograms.h"

#include "tests/lib/test.h"

static struct histogram histogram;

static struct histograms *open_with(uint64_t first, uint64_t count) {
    struct histograms *histograms = histograms_open(5);
    const float floats[] = {1, 2, 3};
    assert_non_null(histograms);
    histogram_clear(&histogram);
    histogram_add(&histogram, floats, 3);
    for (uint64_t i = 0; i < count; i++)
        histograms_add(histograms, &(struct histogram_piece){.step = first + i},
                       &histogram);
    return histograms;
}

TEST(histograms_leave_in_order_in_messages_of_a_bounded_number) {
    struct histograms *histograms = open_with(1, HISTOGRAMS_IN_PIECE + 3);
    Capstan__Histograms message;
    assert_true(histograms_next(histograms, &message));
    assert_int_equal(message.n_list, HISTOGRAMS_IN_PIECE);
    assert_int_equal(message.list[0]->step, 1);
    assert_int_equal(message.list[0]->n_bins, 3);
    assert_true(histograms_check(&message));
    assert_true(histograms_next(histograms, &message));
    assert_int_equal(message.n_list, 3);
    assert_int_equal(message.list[2]->step, HISTOGRAMS_IN_PIECE + 3);
    assert_false(histograms_next(histograms, &message));
    histograms_add(histograms, &(struct histogram_piece){.step = 50},
                   &histogram);
    assert_true(histograms_next(histograms, &message));
    assert_int_equal(message.list[0]->step, 50);
    histograms_close(&histograms);
}

TEST(what_has_no_room_is_dropped_and_counted) {
    enum { COUNT = 3000 };
    struct histograms *histograms = open_with(1, 0);
    Capstan__Histograms message;
    uint64_t found = 0;
    for (uint32_t bin = 0; bin < HISTOGRAM_BINS; bin++)
        histogram.counts[bin] = 1;
    for (uint64_t i = 0; i < COUNT; i++)
        histograms_add(histograms, &(struct histogram_piece){.step = 5},
                       &histogram);
    while (histograms_next(histograms, &message) && message.n_list)
        found += message.n_list;
    assert_true(found > 0 && message.dropped > 0);
    assert_int_equal(found + message.dropped, COUNT);
    histograms_close(&histograms);
}

TEST(only_multiples_and_numbers_of_the_first_parameters_are_wanted) {
    struct parameter parameters[] = {{.dtype = PARAMETER_FLOAT32},
                                     {.dtype = PARAMETER_INT64}};
    struct layout layout = {.num_parameters = 2, .parameters = parameters};
    struct histograms *histograms = open_with(1, 0);
    assert_true(histograms_wants(histograms, &layout, 0, 10));
    assert_false(histograms_wants(histograms, &layout, 0, 11));
    assert_false(histograms_wants(histograms, &layout, 1, 10));
    assert_false(
        histograms_wants(histograms, &layout, HISTOGRAMS_PARAMETERS, 10));
    assert_false(histograms_wants(NULL, &layout, 0, 10));
    histograms_close(&histograms);
}
