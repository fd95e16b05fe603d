#include "chief/compare/comparison_plot.h"

#include "chief/launch/child.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MANY = 7 /* bars whose names do not fit beside each other */ };
enum { CHART = 600, HEIGHT = 520 /* pixels */ };
static const double DRAWING = 60, PATIENCE = 5; /* seconds */

static double number(const json_t *object, const char *inside,
                     const char *key) {
    const json_t *value =
        json_object_get(inside ? json_object_get(object, inside) : object, key);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

static bool is(const json_t *one, const char *mode) {
    const char *found = json_string_value(json_object_get(one, "mode"));
    return found && !strcmp(found, mode);
}

enum status comparison_plot_ready(struct failure *why) {
    const char *from = getenv("PATH");
    char path[4096];
    for (from = from ? from : ""; *from;) {
        size_t length = strcspn(from, ":");
        snprintf(path, sizeof path, "%.*s/gnuplot", (int)length, from);
        if (!access(path, X_OK))
            return STATUS_OK;
        from += length + (from[length] == ':');
    }
    return status_fail(why, STATUS_CONFIG,
                       "--plot needs gnuplot, which is not in PATH: sudo "
                       "apt-get install --no-install-recommends gnuplot-nox");
}

/* As gnuplot has it: quotes of the same kind are doubled. */
static void put_path(FILE *out, const char *path) {
    fputc('\'', out);
    for (; *path; path++) {
        if (*path == '\'')
            fputc('\'', out);
        fputc(*path, out);
    }
    fputc('\'', out);
}

/* A line a case: its name, throughput and spread, bound. */
static void put_bars(FILE *out, const json_t *cases) {
    static const char speed[] = "examples_per_second";
    const char *under = json_array_size(cases) > MANY ? ", " : "\\n";
    size_t i;
    const json_t *one;
    fprintf(out, "$bars << EOD\n");
    json_array_foreach(cases, i, one) {
        double workers = number(one, NULL, "workers"),
               ps = number(one, NULL, "ps"),
               rate = number(one, speed, "median");
        if (isnan(rate))
            continue;
        if (ps > 0)
            fprintf(out, "\"%.0f x %.0f ps%s%s\"", workers, ps, under,
                    is(one, "ps") ? "sync" : "async");
        else
            fprintf(out, "\"%.0f%sall-reduce\"", workers, under);
        fprintf(out, " %.9g %.9g %.9g %.9g\n", rate, number(one, speed, "min"),
                number(one, speed, "max"),
                number(one, NULL, "bound_examples_per_second"));
    }
    fprintf(out, "EOD\n");
}

static double most_workers(const json_t *cases) {
    size_t i;
    const json_t *one;
    double most = 0;
    json_array_foreach(
        cases, i, one) if (!isnan(number(one, "examples_per_second", "median")))
        most = fmax(most, number(one, NULL, "workers"));
    return most;
}

/* The points of MODE with WORKERS, as data block NAME; how many there are. */
static int put_points(FILE *out, const json_t *cases, const char *mode,
                      double workers, const char *name) {
    size_t i;
    const json_t *one;
    int count = 0;
    fprintf(out, "$%s << EOD\n", name);
    json_array_foreach(cases, i, one) {
        double rate = number(one, "examples_per_second", "median");
        if (!is(one, mode) || isnan(rate) ||
            number(one, NULL, "workers") != workers)
            continue;
        fprintf(out, "%.0f %.9g\n", number(one, NULL, "ps"), rate);
        count++;
    }
    fprintf(out, "EOD\n");
    return count;
}

/* Against the number of ps; all-reduce needs none and is a level. */
static void put_lines(FILE *out, const json_t *cases) {
    double workers = most_workers(cases);
    int rounds = put_points(out, cases, "ps", workers, "rounds");
    int free_ones = put_points(out, cases, "ps-async", workers, "free");
    int ring = put_points(out, cases, "allreduce", workers, "ring");
    const char *comma = "";
    fprintf(out,
            "set title '%.0f workers'\nset xlabel 'ps'\nset xtics 1\n"
            "set xrange [0.5:*]\n",
            workers);
    if (rounds + free_ones + ring == 0)
        return;
    fprintf(out, "plot ");
    if (rounds) {
        fprintf(out, "$rounds using 1:2 with linespoints lw 2 pt 7 title 'ps, "
                     "synchronous'");
        comma = ", ";
    }
    if (free_ones) {
        fprintf(out,
                "%s$free using 1:2 with linespoints lw 2 pt 5 title 'ps, "
                "asynchronous'",
                comma);
        comma = ", ";
    }
    if (ring)
        fprintf(out,
                "%sreal(word($ring[1], 2)) with lines lw 2 dt 2 title "
                "'all-reduce'",
                comma);
    fprintf(out, "\n");
}

static bool has_speed_up(const json_t *cases) {
    size_t i;
    const json_t *one;
    json_array_foreach(
        cases, i, one) if (!isnan(number(one, NULL, "speed_up"))) return true;
    return false;
}

static bool same_line(const json_t *a, const json_t *b) {
    return json_equal(json_object_get(a, "mode"), json_object_get(b, "mode")) &&
           number(a, NULL, "ps") == number(b, NULL, "ps");
}

/* The points of all cases that are as FIRST, but for the workers. */
static void put_speed_up_of(FILE *out, const json_t *cases, size_t first) {
    size_t i;
    const json_t *one, *like = json_array_get(cases, first);
    fprintf(out, "$up%zu << EOD\n", first);
    json_array_foreach(cases, i, one) {
        double up = number(one, NULL, "speed_up");
        if (same_line(one, like) && !isnan(up))
            fprintf(out, "%.9g %.9g\n", number(one, NULL, "ideal_speed_up"),
                    up);
    }
    fprintf(out, "EOD\n");
}

/* Is case I the first of its line, and has it a speed-up? */
static bool begins_line(const json_t *cases, size_t i) {
    const json_t *one = json_array_get(cases, i);
    size_t k = 0;
    while (k < i && (!same_line(json_array_get(cases, k), one) ||
                     isnan(number(json_array_get(cases, k), NULL, "speed_up"))))
        k++;
    return k == i && !isnan(number(one, NULL, "speed_up"));
}

static void put_title(FILE *out, const json_t *one) {
    double ps = number(one, NULL, "ps");
    if (ps > 0)
        fprintf(out, "%.0f ps, %s", ps, is(one, "ps") ? "sync" : "async");
    else
        fprintf(out, "all-reduce");
}

/* Against the number of workers, beside the ideal line. */
static void put_speed_up(FILE *out, const json_t *cases) {
    size_t count = json_array_size(cases);
    for (size_t i = 0; i < count; i++)
        if (begins_line(cases, i))
            put_speed_up_of(out, cases, i);
    fprintf(out, "set title 'speed-up'\nset xlabel 'workers'\nset ylabel "
                 "'times one worker'\nset offsets 0,0,0,0\n"
                 "set xrange [*:*]\nplot ");
    for (size_t i = 0; i < count; i++) {
        if (!begins_line(cases, i))
            continue;
        fprintf(out, "$up%zu using 1:2 with linespoints lw 2 title '", i);
        put_title(out, json_array_get(cases, i));
        fprintf(out, "', ");
    }
    fprintf(out, "x with lines lw 2 dt 2 lc rgb 'black' title 'ideal'\n");
}

void comparison_plot_script(FILE *out, const json_t *result, const char *path) {
    const json_t *cases = json_object_get(result, "cases");
    const char *ending = strrchr(path, '.');
    bool png = ending && !strcasecmp(ending, ".png");
    bool many = json_array_size(cases) > MANY, scales = has_speed_up(cases);
    int charts = scales ? 3 : 2;
    put_bars(out, cases);
    fprintf(out, "set terminal %s size %d,%d noenhanced\nset output ",
            png ? "pngcairo" : "svg background rgb 'white'", charts * CHART,
            HEIGHT);
    put_path(out, path);
    fprintf(out,
            "\nset multiplot layout 1,%d\nset yrange [0:*]\nset grid ytics\n"
            "set ylabel 'examples/s'\nset title 'throughput, and its bound'\n"
            "set style fill solid 0.6\nset boxwidth 0.6\n"
            "set key outside top center horizontal\nset bmargin %d\n"
            "set offsets 0.6,0.6,0,0\nset xlabel 'workers x ps'\n%s"
            "plot $bars using 0:2:xtic(1) with boxes title 'measured', "
            "$bars using 0:2:3:4 with yerrorbars lc rgb 'black' pt 0 title "
            "'least and most', "
            "$bars using ($0-0.35):5:(0.7):(0) with vectors nohead lw 3 lc rgb "
            "'red' title 'bound'\n"
            "set xtics auto norotate\n",
            charts, many ? 8 : 5, many ? "set xtics rotate by 55 right\n" : "");
    put_lines(out, cases);
    if (scales)
        put_speed_up(out, cases);
    fprintf(out, "unset multiplot\nset output\n");
}

static enum status write_script(char *name, const json_t *result,
                                const char *path, struct failure *why) {
    int descriptor = mkstemp(name);
    FILE *script = descriptor >= 0 ? fdopen(descriptor, "w") : NULL;
    if (!script) {
        if (descriptor >= 0)
            close(descriptor);
        return status_fail(why, STATUS_RETRY, "%s cannot be written", name);
    }
    comparison_plot_script(script, result, path);
    return fclose(script)
               ? status_fail(why, STATUS_RETRY, "%s cannot be written", name)
               : STATUS_OK;
}

static enum status gnuplot(char *script, const char *path,
                           struct failure *why) {
    char *arguments[] = {"gnuplot", script, NULL};
    struct child_options child = {.program = "gnuplot",
                                  .arguments = arguments,
                                  .limit = DRAWING,
                                  .patience = PATIENCE};
    struct child_signals signals;
    struct child_result result = {0};
    struct stat drawn;
    enum status status = child_open(&signals, why);
    if (!status)
        status = child_run(&signals, &child, &result, why);
    child_close(&signals);
    if (status)
        return status;
    if (result.code || stat(path, &drawn) || !drawn.st_size) {
        char reason[512];
        child_reason(result.errors, reason, sizeof reason);
        status = status_fail(why, STATUS_FAILED,
                             "--plot %s: gnuplot ended with %d%s%s", path,
                             result.code, reason[0] ? ": " : "", reason);
    }
    child_forget(&result);
    return status;
}

enum status comparison_plot_draw(const json_t *result, const char *path,
                                 struct failure *why) {
    char script[] = "/tmp/capstan-plot-XXXXXX";
    enum status status = write_script(script, result, path, why);
    if (!status)
        status = gnuplot(script, path, why);
    unlink(script);
    return status;
}
