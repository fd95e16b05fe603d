/* SPDX-License-Identifier: Apache-2.0 */
#include "commands/measure/compare_plot.h"

#include "commands/launch/children.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FEW = 5 /* bars whose names fit side by side */ };
enum { WIDE = 16 /* ratio of most to fewest ps */ };
/* Pixels: of a bar with its name slanted or below it, and beside all bars. */
enum { CHART = 600, HEIGHT = 580, HEADING = 40 };
enum { BAR = 28, WORDS = 95, BESIDE = 140 };
enum { LETTER = 8, DATE = 40 /* letters of the heading besides the job */ };
static const double DRAWING = 60, PATIENCE = 5; /* seconds */

static double compare_plot_number(const json_t *object, const char *inside,
                                  const char *key) {
    const json_t *value =
        json_object_get(inside ? json_object_get(object, inside) : object, key);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

static bool compare_plot_is_mode(const json_t *one, const char *mode) {
    const char *found = json_string_value(json_object_get(one, "mode"));
    return found && !strcmp(found, mode);
}

enum status compare_plot_check_gnuplot(struct failure *why) {
    const char *from = getenv("PATH");
    char path[4096];
    for (from = from ? from : ""; *from;) {
        size_t length = strcspn(from, ":");
        snprintf(path, sizeof path, "%.*s/gnuplot", (int)length, from);
        if (!access(path, X_OK))
            return STATUS_OK;
        from += length + (from[length] == ':');
    }
    return status_fail(why, FAILURE_PROGRAM_MISSING,
                       "--plot needs gnuplot, which is not in PATH: sudo "
                       "apt-get install --no-install-recommends gnuplot-nox");
}

/* Quotes for gnuplot, where quotes inside are doubled. Unless CONTROLS, control
 * characters become question marks. */
static void compare_plot_print_quoted(FILE *out, const char *content,
                                      bool controls) {
    fputc('\'', out);
    for (; *content; content++) {
        if (*content == '\'')
            fputc('\'', out);
        fputc(!controls && (unsigned char)*content < ' ' ? '?' : *content, out);
    }
    fputc('\'', out);
}

/* The mean and its interval; NAN: there is none. */
struct bar {
    double rate, low, high;
};

static struct bar bar_of(const json_t *one) {
    static const char speed[] = "examples_per_second";
    double rate = compare_plot_number(one, speed, "mean");
    double half_width = compare_plot_number(one, speed, "spread");
    if (isnan(half_width))
        half_width = 0;
    return (struct bar){rate, fmax(0, rate - half_width), rate + half_width};
}

static bool has_bar(const json_t *one) {
    return !isnan(bar_of(one).rate);
}

static unsigned count_bars(const json_t *cases) {
    size_t i;
    unsigned count = 0;
    const json_t *one;
    json_array_foreach(cases, i, one) count += has_bar(one);
    return count;
}

/* Writes the name below a bar, in one line or in several. */
static void compare_plot_print_name(FILE *out, const json_t *one,
                                    const char *between) {
    double workers = compare_plot_number(one, NULL, "workers"),
           ps = compare_plot_number(one, NULL, "ps");
    fprintf(out, "\"%.0f worker%s%s", workers, workers == 1 ? "" : "s",
            between);
    if (ps > 0)
        fprintf(out, "%.0f ps%s%s", ps, between,
                compare_plot_is_mode(one, "ps") ? "sync" : "async");
    else
        fprintf(out, "all-reduce");
    if (json_is_true(json_object_get(one, "diverged")))
        fprintf(out, "%sdiverged", between);
    fprintf(out, "\"");
}

/* One line per case: name, throughput with spread, bound. */
static void print_bars(FILE *out, const json_t *cases) {
    const char *between = count_bars(cases) > FEW ? ", " : "\\n";
    size_t i;
    const json_t *one;
    fprintf(out, "$bars << EOD\n");
    json_array_foreach(cases, i, one) {
        struct bar bar = bar_of(one);
        if (!has_bar(one))
            continue;
        compare_plot_print_name(out, one, between);
        fprintf(out, " %.9g %.9g %.9g %.9g\n", bar.rate, bar.low, bar.high,
                compare_plot_number(one, NULL, "bound_examples_per_second"));
    }
    fprintf(out, "EOD\n");
}

static double max_workers(const json_t *cases) {
    size_t i;
    const json_t *one;
    double most = 0;
    json_array_foreach(cases, i, one) if (has_bar(one)) most =
        fmax(most, compare_plot_number(one, NULL, "workers"));
    return most;
}

/* The second chart: its number of workers, and its first and last number of ps;
 * 0: there is none. */
struct line_chart {
    const json_t *cases;
    double workers, first, last;
};

static bool is_in(const struct line_chart *chart, const json_t *one) {
    return has_bar(one) &&
           compare_plot_number(one, NULL, "workers") == chart->workers;
}

static struct line_chart line_chart(const json_t *cases) {
    struct line_chart chart = {cases, max_workers(cases), INFINITY, 0};
    size_t i;
    const json_t *one;
    json_array_foreach(cases, i, one) {
        double ps = compare_plot_number(one, NULL, "ps");
        if (!is_in(&chart, one) || !(ps > 0))
            continue;
        chart.first = fmin(chart.first, ps);
        chart.last = fmax(chart.last, ps);
    }
    return chart;
}

/* Is the range of ps so wide that the axis is logarithmic? */
static bool is_wide(const struct line_chart *chart) {
    return chart->last > WIDE * chart->first;
}

/* Writes the points of MODE as data block NAME, shifted by SHIFT of the chart's
 * width, so that error bars do not hide each other. All-reduce uses no ps and
 * is a horizontal line. Returns the number of points. */
static int print_points(FILE *out, const struct line_chart *chart,
                        const char *mode, const char *name, double shift) {
    size_t i;
    const json_t *one;
    int count = 0;
    fprintf(out, "$%s << EOD\n", name);
    json_array_foreach(chart->cases, i, one) {
        struct bar bar = bar_of(one);
        double ps = compare_plot_number(one, NULL, "ps");
        if (!compare_plot_is_mode(one, mode) || !is_in(chart, one))
            continue;
        double place = is_wide(chart)
                           ? ps * (1 + 3 * shift)
                           : ps + shift * (chart->last - chart->first + 1);
        if (ps > 0)
            fprintf(out, "%.9g %.9g %.9g %.9g\n", place, bar.rate, bar.low,
                    bar.high);
        else
            fprintf(out, "%.9g %.9g %.9g %.9g\n%.9g %.9g %.9g %.9g\n",
                    chart->first * 0.75, bar.rate, bar.low, bar.high,
                    chart->last * 1.2, bar.rate, bar.low, bar.high);
        count++;
    }
    fprintf(out, "EOD\n");
    return count;
}

static void print_axis(FILE *out, const struct line_chart *chart) {
    size_t i;
    const json_t *one;
    const char *comma = "";
    fprintf(out,
            "set title 'by the number of ps, %.0f worker%s'\nset xlabel "
            "'ps'\nset offsets 0,0,0,0\nset xtics (",
            chart->workers, chart->workers == 1 ? "" : "s");
    json_array_foreach(chart->cases, i, one) {
        if (!is_in(chart, one) || !(compare_plot_number(one, NULL, "ps") > 0))
            continue;
        fprintf(out, "%s%.0f", comma, compare_plot_number(one, NULL, "ps"));
        comma = ",";
    }
    fprintf(out, ") norotate\n%s", is_wide(chart) ? "set logscale x 2\n" : "");
    if (is_wide(chart))
        fprintf(out, "set xrange [%.9g:%.9g]\n", chart->first * 0.7,
                chart->last * 1.4);
    else
        fprintf(out, "set xrange [%.9g:%.9g]\n", chart->first * 0.75 - 0.25,
                chart->last * 1.2 + 0.25);
}

/* Plots throughput against the number of ps. */
static void compare_plot_print_lines(FILE *out,
                                     const struct line_chart *chart) {
    static const struct {
        const char *mode, *name, *title, *style;
        double shift;
    } lines[] = {
        {"ps", "rounds", "ps, synchronous", "pt 7 lc rgb '#9400d3'", -0.01},
        {"ps-async", "free", "ps, asynchronous", "pt 5 lc rgb '#009e73'", 0.01},
        {"allreduce", "ring", "all-reduce", "pt -1 dt 2 lc rgb '#1f77b4'", 0}};
    int counts[3];
    const char *before = "plot ";
    for (int i = 0; i < 3; i++)
        counts[i] = print_points(out, chart, lines[i].mode, lines[i].name,
                                 lines[i].shift);
    print_axis(out, chart);
    for (int i = 0; i < 3; i++) {
        if (!counts[i])
            continue;
        fprintf(out, "%s$%s using 1:2:3:4 with yerrorlines lw 2 %s title '%s'",
                before, lines[i].name, lines[i].style, lines[i].title);
        before = ", ";
    }
    fprintf(out, "\nunset logscale x\n");
}

static bool has_speed_up(const json_t *cases) {
    size_t i;
    const json_t *one;
    json_array_foreach(
        cases, i, one) if (!isnan(compare_plot_number(one, NULL,
                                                      "speed_up"))) return true;
    return false;
}

static bool same_line(const json_t *a, const json_t *b) {
    return json_equal(json_object_get(a, "mode"), json_object_get(b, "mode")) &&
           compare_plot_number(a, NULL, "ps") ==
               compare_plot_number(b, NULL, "ps");
}

/* Writes the points of all cases that differ from case FIRST only in the number
 * of workers. */
static void print_speed_up_of(FILE *out, const json_t *cases, size_t first) {
    size_t i;
    const json_t *one, *like = json_array_get(cases, first);
    fprintf(out, "$up%zu << EOD\n", first);
    json_array_foreach(cases, i, one) {
        double up = compare_plot_number(one, NULL, "speed_up");
        if (same_line(one, like) && !isnan(up))
            fprintf(out, "%.9g %.9g\n",
                    compare_plot_number(one, NULL, "ideal_speed_up"), up);
    }
    fprintf(out, "EOD\n");
}

/* Is case I the first of its line, with a speed-up? */
static bool begins_line(const json_t *cases, size_t i) {
    const json_t *one = json_array_get(cases, i);
    size_t k = 0;
    while (k < i && (!same_line(json_array_get(cases, k), one) ||
                     isnan(compare_plot_number(json_array_get(cases, k), NULL,
                                               "speed_up"))))
        k++;
    return k == i && !isnan(compare_plot_number(one, NULL, "speed_up"));
}

static void compare_plot_print_title(FILE *out, const json_t *one) {
    double ps = compare_plot_number(one, NULL, "ps");
    if (ps > 0)
        fprintf(out, "%.0f ps, %s", ps,
                compare_plot_is_mode(one, "ps") ? "sync" : "async");
    else
        fprintf(out, "all-reduce");
}

/* Plots speed-up against the number of workers, with the ideal line. */
static void print_speed_up(FILE *out, const json_t *cases) {
    size_t count = json_array_size(cases);
    for (size_t i = 0; i < count; i++)
        if (begins_line(cases, i))
            print_speed_up_of(out, cases, i);
    fprintf(out,
            "set title 'speed-up'\nset xlabel 'workers'\nset ylabel "
            "'times one worker'\nset xrange [*:*]\nset xtics auto\n"
            "set key outside right top vertical maxrows 24 font ',10'\nplot ");
    for (size_t i = 0; i < count; i++) {
        if (!begins_line(cases, i))
            continue;
        fprintf(out, "$up%zu using 1:2 with linespoints lw 2 title '", i);
        compare_plot_print_title(out, json_array_get(cases, i));
        fprintf(out, "', ");
    }
    fprintf(out, "x with lines lw 2 dt 2 lc rgb 'black' title 'ideal'\n");
}

/* Shortens a long path at its beginning, because its end tells more; WIDTH in
 * pixels. */
static void print_heading(FILE *out, const json_t *result, int width) {
    size_t most = (size_t)(width / LETTER) - DATE;
    const char *command = json_string_value(json_object_get(result, "command"));
    const char *job =
        command ? command : json_string_value(json_object_get(result, "job"));
    const char *date = json_string_value(json_object_get(result, "date"));
    double repeats = compare_plot_number(result, NULL, "repeats");
    size_t length = job ? strlen(job) : 0, from = 0;
    char heading[4400];
    while (length - from > most || (job && (job[from] & 0xc0) == 0x80))
        from++; /* do not split a UTF-8 character */
    int used = snprintf(heading, sizeof heading, "%s%.4096s", from ? "..." : "",
                        job ? job + from : "");
    if (repeats > 0)
        used +=
            snprintf(heading + used, sizeof heading - (size_t)used,
                     ", means of %.0f run%s", repeats, repeats == 1 ? "" : "s");
    if (date && strlen(date) > 16)
        snprintf(heading + used, sizeof heading - (size_t)used,
                 ", %.10s %.5s UTC", date, date + 11);
    compare_plot_print_quoted(out, heading, false);
}

/* Width in pixels of BARS with their names. */
static int chart_width(int bars) {
    int width = BESIDE + (bars > FEW ? BAR * bars : WORDS * (bars + 1));
    return width < CHART ? CHART : width;
}

/* Writes the place of the next chart: WIDTH pixels at FROM, of ALL. */
static void print_place(FILE *out, int from, int width, int all) {
    fprintf(out, "set origin %.9g,0\nset size %.9g,%.9g\n", (double)from / all,
            (double)width / all, 1 - (double)HEADING / HEIGHT);
}

static bool compare_plot_has_spread(const json_t *cases) {
    size_t i;
    const json_t *one;
    json_array_foreach(cases, i, one) if (!isnan(compare_plot_number(
                                              one, "examples_per_second",
                                              "spread"))) return true;
    return false;
}

static void print_throughput(FILE *out, const json_t *result) {
    const json_t *cases = json_object_get(result, "cases");
    const char *unit = json_string_value(json_object_get(result, "unit"));
    bool many = count_bars(cases) > FEW,
         spread = compare_plot_has_spread(cases);
    fprintf(out,
            "set yrange [0:*]\nset grid ytics\nset ylabel '%s/s'\n"
            "set title 'throughput, and its bound'\n"
            "set style fill solid 0.6\nset boxwidth 0.6\n"
            "set key outside top center horizontal\nset bmargin %d\n"
            "set offsets 0.6,0.6,graph 0.05,0\n%s"
            "plot $bars using 0:2:xtic(1) with boxes title '%s', %s"
            "$bars using ($0-0.35):5:(0.7):(0) with vectors nohead lw 3 lc rgb "
            "'red' title 'bound'\nset bmargin 4\n",
            unit ? unit : "examples", many ? 12 : 5,
            many ? "set xtics rotate by 55 right\n" : "", "mean",
            spread
                ? "$bars using 0:3:(0):($4-$3) with vectors heads size screen "
                  "0.004,90 lw 2 lc rgb 'black' title '95 % interval', "
                : "");
}

void compare_plot_script(FILE *out, const json_t *result, const char *path) {
    const json_t *cases = json_object_get(result, "cases");
    const char *ending = strrchr(path, '.');
    bool png = ending && !strcasecmp(ending, ".png");
    int bars = (int)count_bars(cases), first = chart_width(bars);
    struct line_chart lines = line_chart(cases);
    int all = first + CHART * ((lines.last > 0) + has_speed_up(cases));
    print_bars(out, cases);
    fprintf(out, "set terminal %s size %d,%d noenhanced\nset output ",
            png ? "pngcairo" : "svg background rgb 'white'", all, HEIGHT);
    compare_plot_print_quoted(out, path, true);
    fprintf(out, "\nset multiplot title ");
    print_heading(out, result, all);
    fputc('\n', out);
    print_place(out, 0, first, all);
    print_throughput(out, result);
    if (lines.last > 0) {
        print_place(out, first, CHART, all);
        compare_plot_print_lines(out, &lines);
    }
    if (has_speed_up(cases)) {
        print_place(out, all - CHART, CHART, all);
        print_speed_up(out, cases);
    }
    fprintf(out, "unset multiplot\nset output\n");
}

static enum status write_script(char *name, const json_t *result,
                                const char *path, struct failure *why) {
    int descriptor = mkstemp(name);
    FILE *script = descriptor >= 0 ? fdopen(descriptor, "w") : NULL;
    if (!script) {
        if (descriptor >= 0)
            close(descriptor);
        return status_fail(why, FAILURE_IO_ERROR, "%s cannot be written", name);
    }
    compare_plot_script(script, result, path);
    return fclose(script) ? status_fail(why, FAILURE_IO_ERROR,
                                        "%s cannot be written", name)
                          : STATUS_OK;
}

static enum status gnuplot(char *script, const char *path,
                           struct failure *why) {
    char *arguments[] = {"gnuplot", script, NULL};
    struct subprocess_options child = {.program = "gnuplot",
                                       .arguments = arguments,
                                       .limit = DRAWING,
                                       .kill_after = PATIENCE};
    struct subprocess_signals signals;
    struct subprocess_result result = {0};
    struct stat drawn;
    enum status status = subprocess_open(&signals, why);
    if (!status)
        status = subprocess_run(&signals, &child, &result, why);
    subprocess_close(&signals);
    if (status)
        return status;
    if (result.code || stat(path, &drawn) || !drawn.st_size) {
        char reason[512];
        subprocess_error_line(result.errors, reason, sizeof reason);
        status = status_fail(why, FAILURE_PROGRAM_FAILED,
                             "--plot %s: gnuplot ended with %d%s%s", path,
                             result.code, reason[0] ? ": " : "", reason);
    }
    subprocess_free_result(&result);
    return status;
}

enum status compare_plot_draw(const json_t *result, const char *path,
                              struct failure *why) {
    char script[] = "/tmp/capstan-plot-XXXXXX";
    enum status status = write_script(script, result, path, why);
    if (!status)
        status = gnuplot(script, path, why);
    unlink(script);
    return status;
}
