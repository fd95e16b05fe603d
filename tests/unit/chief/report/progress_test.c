/* SPDX-License-Identifier: Apache-2.0 */
#include "chief/report/progress.h"

#include "core/base/time.h"
#include "tests/lib/skip.h"
#include "tests/lib/test.h"

#include <fcntl.h>
#include <math.h>
#include <pty.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

static const struct progress_numbers halfway = {
    .step = 450,
    .total_steps = 1000,
    .epoch = 3,
    .epochs = 5,
    .loss = 0.41234,
    .accuracy = 0.8712,
    .auc = NAN,
    .test_loss = NAN,
    .share = 1,
    .examples_per_second = 12345,
    .seconds_left = 21.4,
};

static void expect_bar(const struct progress_numbers *numbers, unsigned columns,
                       const char *expected) {
    char text[256];
    progress_bar_text(text, sizeof text, numbers, columns);
    assert_string_equal(text, expected);
}

TEST(the_bar_shows_position_percentage_and_figures) {
    expect_bar(&halfway, 79,
               " epoch 3/5 [========>          ]  45%  loss 0.4123  "
               "12.3k examples/s  0:21 left");
    expect_bar(&halfway, 200,
               " epoch 3/5 [==================>                     ]  45%  "
               "loss 0.4123  12.3k examples/s  0:21 left");
}

TEST(a_narrow_terminal_drops_the_bar_first_and_the_remaining_time_last) {
    expect_bar(&halfway, 70,
               " epoch 3/5 [====>     ]  45%  loss 0.4123  12.3k examples/s  "
               "0:21 left");
    expect_bar(&halfway, 69,
               " epoch 3/5  45%  loss 0.4123  12.3k examples/s  0:21 left");
    expect_bar(&halfway, 56, " epoch 3/5  45%  loss 0.4123  0:21 left");
    expect_bar(&halfway, 38, " epoch 3/5  45%  0:21 left");
    expect_bar(&halfway, 21, " epoch 3/5  45%  0:21");
    expect_bar(&halfway, 0, "");
}

TEST(no_bar_is_wider_than_its_terminal) {
    struct progress_numbers numbers = halfway;
    char text[256];
    for (unsigned columns = 0; columns < 150; columns++) {
        for (numbers.step = 0; numbers.step <= 1001; numbers.step += 91) {
            progress_bar_text(text, sizeof text, &numbers, columns);
            assert_true(strlen(text) <= columns);
        }
        char small[7];
        progress_bar_text(small, sizeof small, &numbers, columns);
        assert_true(strlen(small) < sizeof small);
    }
}

TEST(the_bar_is_full_at_and_past_the_end) {
    struct progress_numbers numbers = {.step = 7,
                                       .total_steps = 7,
                                       .loss = NAN,
                                       .examples_per_second = NAN,
                                       .seconds_left = NAN};
    expect_bar(&numbers, 30, " step 7/7 [=============] 100%");
    numbers.step = 8;
    expect_bar(&numbers, 30, " step 8/7 [=============] 100%");
    numbers.step = 0;
    expect_bar(&numbers, 30, " step 0/7 [>            ]   0%");
}

TEST(the_percentage_is_exact) {
    for (uint64_t step = 0; step <= 100; step++) {
        struct progress_numbers numbers = {.step = step,
                                           .total_steps = 100,
                                           .loss = NAN,
                                           .examples_per_second = NAN,
                                           .seconds_left = NAN};
        char text[256];
        progress_line_text(text, sizeof text, &numbers);
        assert_string_equal(text,
                            textf("step %d/100 (%d%%)", (int)step, (int)step));
    }
}

TEST(unknown_figures_are_left_out) {
    struct progress_numbers numbers = {.step = 12,
                                       .loss = NAN,
                                       .examples_per_second = NAN,
                                       .seconds_left = NAN};
    expect_bar(&numbers, 79, " step 12");
    numbers.examples_per_second = 7.25;
    expect_bar(&numbers, 79, " step 12  7.2 examples/s");
    char text[256];
    progress_line_text(text, sizeof text, &numbers);
    assert_string_equal(text, "step 12: 7.2 examples/s");
}

TEST(counts_have_three_digits_and_a_unit) {
    static const struct {
        double rate;
        const char *text;
    } cases[] = {
        {0, "0.0"},         {9.94, "9.9"},    {9.96, "10"},
        {950.2, "950"},     {999.6, "1.00k"}, {1234, "1.23k"},
        {9996, "10.0k"},    {99960, "100k"},  {999600, "1.00M"},
        {12.34e6, "12.3M"}, {5e9, "5.00G"},   {5e13, "50000G"},
    };
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct progress_numbers numbers = {.step = 1,
                                           .loss = NAN,
                                           .examples_per_second = cases[i].rate,
                                           .seconds_left = NAN};
        char text[256];
        progress_line_text(text, sizeof text, &numbers);
        assert_string_equal(text,
                            textf("step 1: %s examples/s", cases[i].text));
    }
}

TEST(times_read_as_a_clock) {
    static const struct {
        double seconds;
        const char *text;
    } cases[] = {
        {0, "0:00"},         {59.4, "0:59"},          {59.6, "1:00"},
        {3599.6, "1:00:00"}, {3753, "1:02:33"},       {345599, "95:59:59"},
        {356400, "4d 03h"},  {1e300, "1000000d 00h"},
    };
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct progress_numbers numbers = {.step = 1,
                                           .loss = NAN,
                                           .examples_per_second = NAN,
                                           .seconds_left = cases[i].seconds};
        char text[256];
        progress_line_text(text, sizeof text, &numbers);
        assert_string_equal(text, textf("step 1: %s left", cases[i].text));
    }
}

TEST(a_loss_of_any_size_is_readable) {
    static const struct {
        double loss;
        const char *text;
    } cases[] = {
        {0, "0.0000"},          {0.41, "0.4100"},   {-2.5, "-2.5000"},
        {1.25e-5, "1.250e-05"}, {3e7, "3.000e+07"}, {INFINITY, "inf"},
    };
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct progress_numbers numbers = {.step = 1,
                                           .loss = cases[i].loss,
                                           .examples_per_second = NAN,
                                           .seconds_left = NAN};
        char text[256];
        progress_line_text(text, sizeof text, &numbers);
        assert_string_equal(text, textf("step 1: loss %s", cases[i].text));
    }
}

TEST(a_line_names_epoch_and_step) {
    char text[256];
    progress_line_text(text, sizeof text, &halfway);
    assert_string_equal(text, "epoch 3/5, step 450/1000 (45%): loss 0.4123, "
                              "12.3k examples/s, 0:21 left");
}

/* A rate or a time left would be of another moment. */
TEST(a_run_without_a_step_shows_how_long_and_why) {
    struct progress_numbers numbers = halfway;
    char text[256];
    numbers.stalled = 7.4;
    progress_line_text(text, sizeof text, &numbers);
    assert_string_equal(text, "epoch 3/5, step 450/1000 (45%): loss 0.4123, "
                              "no step for 7 s");
    numbers.cause = "waiting for worker 1";
    progress_line_text(text, sizeof text, &numbers);
    assert_string_equal(text, "epoch 3/5, step 450/1000 (45%): loss 0.4123, "
                              "no step for 7 s (waiting for worker 1)");
    expect_bar(&numbers, 81,
               " epoch 3/5 [====>     ]  45%  loss 0.4123  no step for 7 s "
               "(waiting for worker 1)");
    expect_bar(&numbers, 60,
               " epoch 3/5  45%  no step for 7 s (waiting for worker 1)");
}

TEST(a_large_loss_is_short) {
    char text[64];
    progress_loss_text(text, sizeof text, 0.41234);
    assert_string_equal(text, "loss 0.4123");
    progress_loss_text(text, sizeof text, 1.5e300);
    assert_string_equal(text, "loss 1.500e+300");
}

TEST(tables_show_rows_and_what_a_step_sends) {
    struct progress_numbers numbers = halfway;
    char text[256];
    numbers.rows = 25900;
    numbers.row_bytes = 80282;
    progress_line_text(text, sizeof text, &numbers);
    assert_string_equal(text, "epoch 3/5, step 450/1000 (45%): loss 0.4123, "
                              "12.3k examples/s, 25.9k rows (78.4 KB a step), "
                              "0:21 left");
    numbers.network_share = 0.657;
    progress_line_text(text, sizeof text, &numbers);
    assert_string_equal(text,
                        "epoch 3/5, step 450/1000 (45%): loss 0.4123, "
                        "12.3k examples/s, 25.9k rows (78.4 KB a step, 66 % "
                        "of the network), 0:21 left");
    expect_bar(&numbers, 120,
               " epoch 3/5 [====>     ]  45%  loss 0.4123  12.3k examples/s  "
               "25.9k rows (78.4 KB a step, 66 % of the network)  0:21 left");
    expect_bar(&numbers, 79,
               " epoch 3/5 [========>          ]  45%  loss 0.4123  "
               "12.3k examples/s  0:21 left");
}

TEST(an_epoch_ends_with_its_accuracy) {
    struct progress_numbers numbers = halfway;
    char text[256];
    progress_epoch_text(text, sizeof text, &numbers);
    assert_string_equal(text, "epoch 3/5: test accuracy 0.8712, train loss "
                              "0.4123, 12.3k examples/s");
    numbers.has_scores = true;
    numbers.test_loss = 0.25;
    progress_epoch_text(text, sizeof text, &numbers);
    assert_string_equal(text, "epoch 3/5: test accuracy 0.8712, no AUC (all "
                              "labels are alike), logloss 0.2500, train loss "
                              "0.4123, 12.3k examples/s");
    numbers.auc = 0.75;
    progress_epoch_text(text, sizeof text, &numbers);
    assert_string_equal(text, "epoch 3/5: test accuracy 0.8712, AUC 0.7500, "
                              "logloss 0.2500, train loss 0.4123, 12.3k "
                              "examples/s");
    numbers.auc = numbers.test_loss = NAN;
    progress_epoch_text(text, sizeof text, &numbers);
    assert_string_equal(text, "epoch 3/5: test accuracy 0.8712, logloss nan, "
                              "train loss 0.4123, 12.3k examples/s");
    numbers.has_scores = false;
    numbers.share = 0.5;
    progress_epoch_text(text, sizeof text, &numbers);
    assert_string_equal(text, "epoch 3/5: test accuracy 0.8712 (over 50 % of "
                              "the test set), train loss 0.4123, 12.3k "
                              "examples/s");
    numbers.accuracy = NAN;
    numbers.epochs = 0;
    progress_epoch_text(text, sizeof text, &numbers);
    assert_string_equal(text, "step 450/1000: train loss 0.4123, 12.3k "
                              "examples/s");
}

/* Standard error, led into a pipe or a terminal of the test's own. */
struct screen {
    int saved, reader;
};

static struct screen log_into(int writer, int reader) {
    struct screen screen = {dup(STDERR_FILENO), reader};
    fcntl(reader, F_SETFL, O_NONBLOCK);
    dup2(writer, STDERR_FILENO);
    close(writer);
    return screen;
}

static struct screen log_into_pipe(void) {
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    return log_into(ends[1], ends[0]);
}

static struct screen log_into_terminal(unsigned short columns) {
    int writer, reader;
    struct winsize window = {.ws_row = 24, .ws_col = columns};
    skip_unless_terminals();
    assert_int_equal(openpty(&reader, &writer, NULL, NULL, &window), 0);
    return log_into(writer, reader);
}

/* What was written since the last look. */
static const char *seen(struct screen *screen, char *text, size_t size) {
    ssize_t length = read(screen->reader, text, size - 1);
    text[length < 0 ? 0 : length] = '\0';
    return text;
}

static void restore(struct screen *screen) {
    dup2(screen->saved, STDERR_FILENO);
    close(screen->saved);
    close(screen->reader);
}

TEST(a_terminal_is_redrawn_ten_times_a_second) {
    const struct log log = {.role = "chief", .index = -1, .terminal = true};
    struct progress progress;
    char text[512];
    struct screen screen = log_into_terminal(71);
    progress_open(&progress, &log, 0);
    progress_update(&progress, &halfway, 0);
    seen(&screen, text, sizeof text);
    char first[512];
    strcpy(first, text);
    progress_update(&progress, &halfway, 99 * TIME_MS);
    bool early = seen(&screen, text, sizeof text)[0];
    progress_update(&progress, &halfway, 100 * TIME_MS);
    bool again = seen(&screen, text, sizeof text)[0];
    progress_close(&progress);
    seen(&screen, text, sizeof text);
    restore(&screen);

    assert_string_equal(first, "\r epoch 3/5 [====>     ]  45%  loss 0.4123  "
                               "12.3k examples/s  0:21 left\x1b[K");
    assert_false(early);
    assert_true(again);
    assert_string_equal(text, "\r\x1b[K");
}

TEST(the_end_of_an_epoch_stays_above_the_bar) {
    const struct log log = {.role = "chief", .index = -1, .terminal = true};
    struct progress progress;
    char text[512];
    struct screen screen = log_into_terminal(80);
    progress_open(&progress, &log, 0);
    progress_update(&progress, &halfway, 0);
    seen(&screen, text, sizeof text);
    progress_epoch(&progress, &halfway);
    seen(&screen, text, sizeof text);
    char bar[512];
    progress_update(&progress, &halfway, 1);
    seen(&screen, bar, sizeof bar);
    restore(&screen);

    assert_memory_equal(text, "\r\x1b[K", 4);
    assert_contains(text, "chief: epoch 3/5: test accuracy 0.8712");
    assert_memory_equal(bar, "\r epoch 3/5 [", 13);
}

/* Whether an update at NOW and STEP writes a line. */
static bool writes(struct progress *progress, struct screen *screen,
                   uint64_t step, int64_t now) {
    struct progress_numbers numbers = halfway;
    char text[512];
    numbers.step = step;
    progress_update(progress, &numbers, now);
    seen(screen, text, sizeof text);
    size_t length = strlen(text);
    return length > 0 && text[length - 1] == '\n' && !strchr(text, '\r');
}

TEST(without_a_terminal_a_line_is_logged_every_five_seconds) {
    const struct log log = {.role = "chief", .index = -1};
    struct progress progress;
    struct screen screen = log_into_pipe();
    progress_open(&progress, &log, 7 * TIME_S);
    bool early = writes(&progress, &screen, 10, 12 * TIME_S - 1);
    bool first = writes(&progress, &screen, 10, 12 * TIME_S);
    bool soon = writes(&progress, &screen, 90, 16 * TIME_S);
    bool second = writes(&progress, &screen, 90, 17 * TIME_S);
    progress_close(&progress);
    restore(&screen);
    assert_false(early);
    assert_true(first);
    assert_false(soon);
    assert_true(second);
}

/* Whether the point of STEP has a line. */
static bool has_line(struct progress *progress, struct screen *screen,
                     uint64_t step) {
    struct progress_numbers numbers = halfway;
    char text[512];
    numbers.step = step;
    const char *position = textf("epoch 3/5, step %d/1000", (int)step);
    progress_point(progress, &numbers);
    return strstr(seen(screen, text, sizeof text), position);
}

TEST(each_metric_has_a_line_at_any_rate) {
    const struct log log = {.role = "chief", .index = -1};
    struct progress progress;
    struct screen screen = log_into_pipe();
    progress_open(&progress, &log, 0);
    bool first = has_line(&progress, &screen, 100);
    bool second = has_line(&progress, &screen, 200);
    bool between = writes(&progress, &screen, 210, 4 * TIME_S) ||
                   writes(&progress, &screen, 210, 9 * TIME_S - 1);
    bool none_came = writes(&progress, &screen, 210, 9 * TIME_S);
    restore(&screen);
    assert_true(first);
    assert_true(second);
    assert_false(between);
    assert_true(none_came);
}

TEST(a_terminal_has_no_line_for_each_metric) {
    const struct log log = {.role = "chief", .index = -1, .terminal = true};
    struct progress progress;
    char text[512];
    struct screen screen = log_into_terminal(80);
    progress_open(&progress, &log, 0);
    progress_point(&progress, &halfway);
    seen(&screen, text, sizeof text);
    restore(&screen);
    assert_string_equal(text, "");
}

TEST(a_null_log_is_silent) {
    struct progress progress;
    char text[64];
    struct screen screen = log_into_pipe();
    progress_open(&progress, NULL, 0);
    progress_update(&progress, &halfway, TIME_S);
    progress_point(&progress, &halfway);
    progress_epoch(&progress, &halfway);
    progress_close(&progress);
    seen(&screen, text, sizeof text);
    restore(&screen);
    assert_string_equal(text, "");
}
