/* SPDX-License-Identifier: Apache-2.0 */
/* Formats progress and decides when to show it. The terminal's line is drawn at
 * most ten times a second, whole and in one write; if space is short, the bar
 * is left out first, then the rate, then the loss. A log gets a line at each
 * point, and one every five seconds between points. */
#include "chief/report/progress.h"

#include "core/base/byte_size.h"
#include "core/base/time.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { MIN_BAR = 10, MAX_BAR = 40, MAX_TEXT = 512, USUAL_COLUMNS = 80 };

/* Parts of a line that are shown. */
enum { BAR = 1, LOSS = 2, RATE = 4, TIME_LEFT = 8, ROWS = 16 };

struct text {
    char *bytes;
    size_t size, length;
};

static struct text text_start(char *bytes, size_t size) {
    bytes[0] = '\0';
    return (struct text){bytes, size, 0};
}

PRINTF_LIKE(2, 3)
static void progress_add(struct text *text, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(text->bytes + text->length,
                           text->size - text->length, format, arguments);
    va_end(arguments);
    text->length += (size_t)length;
    if (text->length >= text->size)
        text->length = text->size - 1;
}

/* Three significant digits: "950", "12.3k", "1.25M". */
static void add_count(struct text *text, double value) {
    static const char *const units[] = {"", "k", "M", "G"};
    unsigned unit = 0;
    for (; value >= 999.5 && unit < 3; unit++)
        value /= 1000;
    int digits = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
    if (unit == 0)
        digits = value < 9.95 ? 1 : 0;
    progress_add(text, "%.*f%s", digits, value, units[unit]);
}

/* "0:21", "12:05", "1:02:33", "4d 03h". */
static void add_duration(struct text *text, double seconds) {
    const double day = 86400;
    double all = floor(fmin(seconds, 1e6 * day) + 0.5);
    unsigned long whole = (unsigned long)all;
    if (all >= 4 * day)
        progress_add(text, "%lud %02luh", whole / 86400, whole / 3600 % 24);
    else if (all >= 3600)
        progress_add(text, "%lu:%02lu:%02lu", whole / 3600, whole / 60 % 60,
                     whole % 60);
    else
        progress_add(text, "%lu:%02lu", whole / 60, whole % 60);
}

/* Four decimals if they are significant, else an exponent. */
void progress_loss_text(char *text, size_t size, double loss) {
    double value = fabs(loss);
    bool plain = value == 0 || (value >= 1e-3 && value < 1e5);
    snprintf(text, size, plain ? "loss %.4f" : "loss %.3e", loss);
}

static void add_loss(struct text *text, double loss) {
    char figure[32];
    progress_loss_text(figure, sizeof figure, loss);
    progress_add(text, "%s", figure);
}

static void add_position(struct text *text,
                         const struct progress_numbers *numbers) {
    if (numbers->epochs)
        progress_add(text, "epoch %llu/%llu",
                     (unsigned long long)numbers->epoch,
                     (unsigned long long)numbers->epochs);
    else
        progress_add(text, "step %llu", (unsigned long long)numbers->step);
    if (!numbers->epochs && numbers->total_steps)
        progress_add(text, "/%llu", (unsigned long long)numbers->total_steps);
}

static unsigned percent(const struct progress_numbers *numbers) {
    if (numbers->step >= numbers->total_steps)
        return 100;
    return (unsigned)(numbers->step * 100 / numbers->total_steps);
}

/* "5.20k rows (143 KB a step, 55 % of the network)" */
static void add_table_rows(struct text *text,
                           const struct progress_numbers *numbers,
                           const char *first) {
    char bytes[16];
    byte_size_text((uint64_t)numbers->row_bytes, bytes, sizeof bytes);
    progress_add(text, "%s", first);
    add_count(text, (double)numbers->rows);
    progress_add(text, " rows (%s a step", bytes);
    if (numbers->network_share > 0)
        progress_add(text, ", %.0f %% of the network",
                     100 * numbers->network_share);
    progress_add(text, ")");
}

/* Adds the figures that are known and in SHOWN: FIRST before the first one,
 * SEPARATOR before the others. */
static void add_figures(struct text *text,
                        const struct progress_numbers *numbers, unsigned shown,
                        const char *first, const char *separator) {
    if (shown & LOSS && !isnan(numbers->loss)) {
        progress_add(text, "%s", first);
        add_loss(text, numbers->loss);
        first = separator;
    }
    if (numbers->stalled > 0) {
        progress_add(text, "%sno step for %.0f s", first, numbers->stalled);
        progress_add(text, numbers->cause ? " (%s)" : "", numbers->cause);
        return;
    }
    if (shown & RATE && numbers->examples_per_second >= 0) {
        progress_add(text, "%s", first);
        add_count(text, numbers->examples_per_second);
        progress_add(text, " examples/s");
        first = separator;
    }
    if (shown & ROWS && numbers->rows) {
        add_table_rows(text, numbers, first);
        first = separator;
    }
    if (shown & TIME_LEFT && numbers->seconds_left >= 0) {
        progress_add(text, "%s", first);
        add_duration(text, numbers->seconds_left);
        progress_add(text, " left");
    }
}

static void add_bar(struct text *text, unsigned percents, size_t width) {
    static const char full[] = "========================================";
    static const char empty[] = "                                        ";
    size_t filled = width * percents / 100;
    if (filled == width)
        progress_add(text, " [%.*s]", (int)width, full);
    else
        progress_add(text, " [%.*s>%.*s]", (int)filled, full,
                     (int)(width - filled - 1), empty);
}

/* Writes the text after the bar; returns its length. */
static size_t tail_text(char *bytes, size_t size,
                        const struct progress_numbers *numbers,
                        unsigned shown) {
    struct text text = text_start(bytes, size);
    if (numbers->total_steps)
        progress_add(&text, " %3u%%", percent(numbers));
    add_figures(&text, numbers, shown, "  ", "  ");
    return text.length;
}

void progress_bar_text(char *bytes, size_t size,
                       const struct progress_numbers *numbers,
                       unsigned columns) {
    static const unsigned choices[] = {
        BAR | LOSS | RATE | ROWS | TIME_LEFT, BAR | LOSS | RATE | TIME_LEFT,
        LOSS | RATE | TIME_LEFT, LOSS | TIME_LEFT, TIME_LEFT};
    struct text text =
        text_start(bytes, columns < size ? (size_t)columns + 1 : size);
    progress_add(&text, " ");
    add_position(&text, numbers);
    size_t room = text.size - 1 - text.length, used, bar;
    char tail[MAX_TEXT];
    unsigned i = 0;
    do {
        bar = choices[i] & BAR && numbers->total_steps ? MIN_BAR : 0;
        used = tail_text(tail, sizeof tail, numbers, choices[i]);
        if (bar)
            used += bar + strlen(" []");
    } while (used > room && ++i < sizeof choices / sizeof *choices);
    if (bar) {
        bar += room - used;
        add_bar(&text, percent(numbers), bar < MAX_BAR ? bar : MAX_BAR);
    }
    progress_add(&text, "%s", tail);
}

void progress_line_text(char *bytes, size_t size,
                        const struct progress_numbers *numbers) {
    struct text text = text_start(bytes, size);
    add_position(&text, numbers);
    if (numbers->epochs)
        progress_add(&text, ", step %llu", (unsigned long long)numbers->step);
    if (numbers->epochs && numbers->total_steps)
        progress_add(&text, "/%llu", (unsigned long long)numbers->total_steps);
    if (numbers->total_steps)
        progress_add(&text, " (%u%%)", percent(numbers));
    add_figures(&text, numbers, LOSS | RATE | ROWS | TIME_LEFT, ": ", ", ");
}

void progress_epoch_text(char *bytes, size_t size,
                         const struct progress_numbers *numbers) {
    struct text text = text_start(bytes, size);
    const char *first = ": ";
    add_position(&text, numbers);
    if (!isnan(numbers->accuracy) || !isnan(numbers->test_loss)) {
        if (!isnan(numbers->accuracy))
            progress_add(&text, ": test accuracy %.4f", numbers->accuracy);
        else {
            progress_add(&text, ": test ");
            add_loss(&text, numbers->test_loss);
        }
        if (numbers->has_scores && !isnan(numbers->auc))
            progress_add(&text, ", AUC %.4f", numbers->auc);
        else if (numbers->has_scores && isfinite(numbers->test_loss))
            progress_add(&text, ", no AUC (all labels are alike)");
        if (numbers->has_scores)
            progress_add(&text, ", logloss %.4f", numbers->test_loss);
        if (numbers->share < 1)
            progress_add(&text, " (over %.0f %% of the test set)",
                         100 * numbers->share);
        first = ", ";
    }
    if (!isnan(numbers->loss)) {
        progress_add(&text, "%strain ", first);
        add_loss(&text, numbers->loss);
        first = ", ";
    }
    add_figures(&text, numbers, RATE, first, ", ");
}

void progress_open(struct progress *progress, const struct log *log,
                   int64_t now) {
    *progress = (struct progress){.log = log, .last = now};
}

static unsigned terminal_columns(void) {
    struct winsize window;
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &window) || window.ws_col == 0)
        return USUAL_COLUMNS;
    return window.ws_col;
}

/* One write, so that log lines of other processes do not fall inside. */
static void draw(struct progress *progress,
                 const struct progress_numbers *numbers) {
    char line[MAX_TEXT] = "\r";
    /* A full last column makes some terminals wrap. */
    progress_bar_text(line + 1, sizeof line - 8, numbers,
                      terminal_columns() - 1);
    strcat(line, "\x1b[K");
    log_draw(line);
    progress->drawn = true;
}

static bool due(struct progress *progress, int64_t now) {
    if (progress->written)
        progress->last = now;
    progress->written = false;
    int64_t since = now - progress->last;
    return progress->log->terminal ? !progress->drawn || since >= 100 * TIME_MS
                                   : since >= 5 * TIME_S;
}

static void progress_write_line(const struct progress *progress,
                                const struct progress_numbers *numbers) {
    char text[MAX_TEXT];
    progress_line_text(text, sizeof text, numbers);
    log_info(progress->log, "progress_reported", "%s", text);
}

void progress_point(struct progress *progress,
                    const struct progress_numbers *numbers) {
    if (!progress->log || progress->log->terminal)
        return;
    progress_write_line(progress, numbers);
    progress->written = true;
}

void progress_update(struct progress *progress,
                     const struct progress_numbers *numbers, int64_t now) {
    if (!progress->log || !due(progress, now))
        return;
    progress->last = now;
    if (progress->log->terminal)
        draw(progress, numbers);
    else
        progress_write_line(progress, numbers);
}

void progress_epoch(struct progress *progress,
                    const struct progress_numbers *numbers) {
    char text[MAX_TEXT];
    progress_epoch_text(text, sizeof text, numbers);
    log_info(progress->log, "epoch_finished", "%s", text);
    progress->drawn = false;
}

void progress_close(struct progress *progress) {
    if (progress->drawn)
        log_draw("\r\x1b[K");
    progress->drawn = false;
}
