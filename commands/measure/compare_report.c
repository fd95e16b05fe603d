/* SPDX-License-Identifier: Apache-2.0 */
/* The Makefile writes compare_page_text.h by page.sh: page_text, which is
 * compare_page.html with its policy. */
#include "commands/measure/compare_report.h"

#include "commands/measure/compare_page_text.h"
#include "commands/measure/compare_table.h"
#include "core/base/byte_size.h"
#include "core/store/atomic_file.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Units of a bar's width; and how often the longest bar's rate fits a bound
 * that is still drawn, as a far one would leave no room for bars. */
enum { LENGTH = 1000, FAR_BOUND = 3 };

static const char mark[] = "CONTENT\n"; /* of compare_page.html */

static const char *report_text(const json_t *object, const char *key) {
    const char *found = json_string_value(json_object_get(object, key));
    return found ? found : "";
}

/* What no one sees, and what turns the direction of writing. */
static bool is_hidden(uint32_t sign) {
    static const uint32_t ranges[][2] = {
        {0x00, 0x1f},     {0x7f, 0x9f},     {0xad, 0xad},     {0x61c, 0x61c},
        {0x180e, 0x180e}, {0x200b, 0x200f}, {0x2028, 0x202e}, {0x2060, 0x206f},
        {0xfeff, 0xfeff}, {0xfff9, 0xfffb}};
    for (unsigned i = 0; i < sizeof ranges / sizeof *ranges; i++)
        if (sign >= ranges[i][0] && sign <= ranges[i][1])
            return true;
    return false;
}

/* Reads the sign at TEXT, which is UTF-8 but may be cut; returns its bytes. */
static int read_sign(const char *from, uint32_t *sign) {
    const unsigned char *byte = (const unsigned char *)from;
    int more = *byte >= 0xf0 ? 3 : *byte >= 0xe0 ? 2 : *byte >= 0xc0 ? 1 : 0;
    *sign = more ? *byte & (0x3fu >> more) : *byte;
    for (int i = 1; i <= more; i++) {
        if ((byte[i] & 0xc0) != 0x80) {
            *sign = 0xfffd;
            return i;
        }
        *sign = *sign << 6 | (byte[i] & 0x3f);
    }
    return more + 1;
}

/* Writes CONTENT so that it shows as it is and is no markup, its LINES apart if
 * wanted. */
static void print_text(FILE *out, const char *content, bool lines) {
    uint32_t sign;
    for (int bytes; *content; content += bytes) {
        bytes = read_sign(content, &sign);
        if (sign == '<' || sign == '>' || sign == '&' || sign == '"' ||
            sign == '\'')
            fprintf(out, "&#%u;", sign);
        else if (sign == '\n' && lines)
            fputc('\n', out);
        else if (sign == 0xfffd)
            fputs("&#65533;", out);
        else if (is_hidden(sign))
            fprintf(out, "\\u%04x", sign);
        else
            fprintf(out, "%.*s", bytes, content);
    }
}

static void print_element(FILE *out, const char *open, const char *content,
                          const char *close) {
    fputs(open, out);
    print_text(out, content, false);
    fputs(close, out);
}

/* VALUE with DIGITS, or a dash for NAN; a diverged loss has any size. */
static void report_number(FILE *out, int digits, double value) {
    char number[COMPARE_TABLE_DIGITS];
    if (isnan(value)) {
        fputs("–", out);
        return;
    }
    compare_table_digits(number, digits, value);
    fputs(value >= 1e15 ? "&gt;10^15" : number, out);
}

static void print_case_name(FILE *out, const json_t *one) {
    double workers = compare_table_number(one, NULL, "workers");
    double ps = compare_table_number(one, NULL, "ps");
    fprintf(out, "%.0f worker%s, ", workers, workers == 1 ? "" : "s");
    if (ps > 0)
        fprintf(out, "%.0f ps, ", ps);
    fputs(compare_table_mode(one), out);
}

/* A figure of a case in a column: where its object has it, and how it is
 * written. */
struct column {
    const char *name, *inside, *key;
    double times;
    int digits;
    const char *unit; /* behind the number */
};

static const struct column rate_columns[] = {
    {"mean", "examples_per_second", "mean", 1, 4, ""},
    {"min", "examples_per_second", "min", 1, 4, ""},
    {"max", "examples_per_second", "max", 1, 4, ""},
    {"bound", NULL, "bound_examples_per_second", 1, 4, ""},
    {"reached", NULL, "reached", 100, 3, " %"},
    {"loss", NULL, "train_loss", 1, 4, ""},
    {NULL, NULL, NULL, 1, 4, ""}, /* accuracy or AUC */
};

static const struct column time_columns[] = {
    {"input", "seconds_per_step", "input", 1e3, 4, ""},
    {"compute", "seconds_per_step", "compute", 1e3, 4, ""},
    {"waiting for weights", "seconds_per_step", "waiting_for_weights", 1e3, 4,
     ""},
    {"for gradients", "seconds_per_step", "waiting_for_gradients", 1e3, 4, ""},
    {"update", "seconds_per_step", "update", 1e3, 4, ""},
    {"MB/step", NULL, "bytes_per_step", 1e-6, 4, ""},
    {"speed-up", NULL, "speed_up", 1, 3, ""},
    {"ideal", NULL, "ideal_speed_up", 1, 3, ""},
    {"T1/nTn", NULL, "efficiency", 100, 3, " %"},
};

enum {
    RATES = sizeof rate_columns / sizeof *rate_columns,
    TIMES = sizeof time_columns / sizeof *time_columns
};

static void report_cell(FILE *out, const json_t *result, const json_t *one,
                        const struct column *column) {
    const char *key =
        column->key ? column->key : compare_table_quality_key(result);
    double value = compare_table_number(one, column->inside, key);
    char at_case = compare_table_mark(result, one);
    fputs("<td>", out);
    report_number(out, column->digits, column->times * value);
    if (!isnan(value))
        fputs(column->unit, out);
    if (!column->key && at_case != ' ')
        fprintf(out, " <b class=\"bad\">%c</b>", at_case);
    fputs("</td>", out);
}

static void report_heading(FILE *out, const json_t *result,
                           const struct column *columns, int count) {
    fputs("<tr><th>workers</th><th>ps</th><th class=\"words\"></th>", out);
    for (int c = 0; c < count; c++)
        fprintf(out, "<th>%s</th>",
                columns[c].name ? columns[c].name
                                : compare_table_quality_name(result));
    fprintf(out, "%s</tr>\n",
            columns == rate_columns ? "<th class=\"words\">limit</th>" : "");
}

/* Why ONE has no figures, or ended before it had trained as long as others. */
static void print_error(FILE *out, const json_t *one) {
    bool failed = compare_table_failed(one);
    bool diverged = json_is_true(json_object_get(one, "diverged"));
    fprintf(out, "%s<td class=\"error bad\" colspan=\"%d\">%s%s: ",
            failed ? "" : "</tr>\n<tr><td></td><td></td><td></td>", RATES + 1,
            failed ? "" : "then ",
            failed     ? compare_table_failure(one)
            : diverged ? "diverged"
                       : "failed");
    print_element(out, "", report_text(one, "error"), "</td>");
}

static void report_row(FILE *out, const json_t *result, const json_t *one,
                       const struct column *columns, int count) {
    double ps = compare_table_number(one, NULL, "ps");
    bool failed = compare_table_failed(one), rates = columns == rate_columns;
    fprintf(out, "<td>%.0f</td><td>",
            compare_table_number(one, NULL, "workers"));
    report_number(out, 4, ps > 0 ? ps : NAN);
    fprintf(out, "</td><td class=\"words\">%s</td>", compare_table_mode(one));
    for (int c = 0; !failed && c < count; c++)
        report_cell(out, result, one, &columns[c]);
    if (rates && !failed)
        print_element(out, "<td class=\"words\">", report_text(one, "limit"),
                      "</td>");
    if (failed || (rates && *report_text(one, "error")))
        print_error(out, one);
}

static void report_table(FILE *out, const json_t *result,
                         const struct column *columns, int count) {
    size_t i;
    const json_t *one;
    double before = NAN;
    fputs("<div class=\"scroll\"><table>", out);
    report_heading(out, result, columns, count);
    json_array_foreach(json_object_get(result, "cases"), i, one) {
        double workers = compare_table_number(one, NULL, "workers");
        if (columns != rate_columns && compare_table_failed(one))
            continue;
        fprintf(out, "<tr%s>", workers == before ? "" : " class=\"first\"");
        report_row(out, result, one, columns, count);
        fputs("</tr>\n", out);
        before = workers;
    }
    fputs("</table></div>\n", out);
}

static void print_rectangle(FILE *out, const char *look, double from,
                            double length) {
    fprintf(out,
            "<rect class=\"%s\" x=\"%.1f\" y=\"3\" width=\"%.1f\" "
            "height=\"14\"/>",
            look, from, length);
}

static void report_line(FILE *out, const char *look, double x0, double y0,
                        double x1, double y1) {
    fprintf(out,
            "<line class=\"%s\" x1=\"%.1f\" y1=\"%.0f\" x2=\"%.1f\" "
            "y2=\"%.0f\"/>",
            look, x0, y0, x1, y1);
}

/* The name of ONE and FIGURE, then the begin of its bar. */
static void begin_bar(FILE *out, const json_t *one, double figure,
                      const char *unit) {
    fputs("<span>", out);
    print_case_name(out, one);
    fputs("</span><span class=\"figure\">", out);
    report_number(out, 4, figure);
    fprintf(out,
            "%s</span><svg aria-hidden=\"true\" viewBox=\"0 0 %d 20\" "
            "preserveAspectRatio=\"none\">",
            unit, LENGTH);
    print_rectangle(out, "track", 0, LENGTH);
}

/* The rate at the right end of all bars. */
static double longest_rate(const json_t *cases) {
    static const char speed[] = "examples_per_second";
    static const char bound[] = "bound_examples_per_second";
    double rate = 0, most;
    size_t i;
    const json_t *one;
    json_array_foreach(cases, i, one) rate =
        fmax(rate, fmax(compare_table_number(one, speed, "max"),
                        compare_table_number(one, speed, "mean")));
    most = rate;
    json_array_foreach(cases, i, one) {
        double far = compare_table_number(one, NULL, bound);
        if (far <= FAR_BOUND * rate)
            most = fmax(most, far);
    }
    return most > 0 ? 1.01 * most : 1;
}

static void print_rate_bar(FILE *out, const json_t *one, double longest) {
    static const char speed[] = "examples_per_second";
    double unit = LENGTH / longest;
    double low = unit * compare_table_number(one, speed, "min");
    double high = unit * compare_table_number(one, speed, "max");
    double bound =
        unit * compare_table_number(one, NULL, "bound_examples_per_second");
    double mean = compare_table_number(one, speed, "mean");
    begin_bar(out, one, mean, "");
    print_rectangle(out, "rate", 0, unit * mean);
    if (high >= low) {
        report_line(out, "whisker", low, 10, high, 10);
        report_line(out, "whisker", low, 6, low, 14);
        report_line(out, "whisker", high, 6, high, 14);
    }
    if (bound <= LENGTH)
        report_line(out, "bound", bound, 0, bound, 20);
    fputs("</svg>\n", out);
}

static void report_rates(FILE *out, const json_t *result) {
    const json_t *one, *cases = json_object_get(result, "cases");
    double longest = longest_rate(cases);
    size_t i;
    fputs("<section class=\"card\"><h2>Rates and their bounds, ", out);
    print_element(out, "", report_text(result, "unit"),
                  "/s</h2><div class=\"bars\">");
    json_array_foreach(cases, i, one) {
        if (!compare_table_failed(one))
            print_rate_bar(out, one, longest);
    }
    fputs("</div><div class=\"legend\"><span><i class=\"rate\"></i>mean</span>"
          "<span><i class=\"whisker\"></i>least to most of the runs</span>"
          "<span><i class=\"bound\"></i>bound</span></div>\n",
          out);
    report_table(out, result, rate_columns, RATES);
    fputs("</section>\n", out);
}

/* What a worker does in a step; the update rule is part of its waiting. */
static const struct cause {
    const char *look, *key, *name;
} causes[] = {
    {"input", "input", "input"},
    {"compute", "compute", "compute"},
    {"weights", "waiting_for_weights", "waiting for weights"},
    {"gradients", "waiting_for_gradients", "waiting for gradients"},
};
enum { CAUSES = sizeof causes / sizeof *causes };

static double cause_seconds(const json_t *one, int cause) {
    double seconds =
        compare_table_number(one, "seconds_per_step", causes[cause].key);
    return isnan(seconds) ? 0 : seconds;
}

static double step_seconds(const json_t *one) {
    double seconds = 0;
    for (int i = 0; i < CAUSES; i++)
        seconds += cause_seconds(one, i);
    return seconds;
}

static void print_time_bar(FILE *out, const json_t *one, double longest) {
    double from = 0;
    begin_bar(out, one, 1e3 * step_seconds(one), " ms");
    for (int i = 0; i < CAUSES; i++) {
        double length = LENGTH * cause_seconds(one, i) / longest;
        if (length > 0)
            print_rectangle(out, causes[i].look, from, length);
        from += length;
    }
    fputs("</svg>\n", out);
}

static void report_times(FILE *out, const json_t *result) {
    const json_t *one, *cases = json_object_get(result, "cases");
    double longest = 0;
    size_t i;
    json_array_foreach(cases, i, one) longest =
        fmax(longest, step_seconds(one));
    fputs("<section class=\"card\"><h2>A worker's step by cause, ms</h2>"
          "<div class=\"bars\">",
          out);
    json_array_foreach(cases, i, one) {
        if (!compare_table_failed(one))
            print_time_bar(out, one, longest > 0 ? longest : 1);
    }
    fputs("</div><div class=\"legend\">", out);
    for (i = 0; i < CAUSES; i++)
        fprintf(out, "<span><i class=\"%s\"></i>%s</span>", causes[i].look,
                causes[i].name);
    fputs("</div>\n", out);
    report_table(out, result, time_columns, TIMES);
    fputs("</section>\n", out);
}

/* The lines below the tables, a paragraph each. */
static void print_notes(FILE *out, const json_t *result) {
    char *notes = NULL;
    size_t size;
    FILE *into = open_memstream(&notes, &size);
    if (!into)
        return;
    compare_table_print_notes(into, result);
    fclose(into);
    fputs("<section class=\"card notes\">", out);
    char *rest = NULL;
    bool begun = false;
    for (char *line = strtok_r(notes, "\n", &rest); line;
         line = strtok_r(NULL, "\n", &rest)) {
        bool goes_on = begun && !strncmp(line, "    ", 4);
        fputs(goes_on ? " " : begun ? "</p>\n<p>" : "<p>", out);
        print_text(out, line + strspn(line, " "), false);
        begun = true;
    }
    fputs(begun ? "</p></section>\n" : "</section>\n", out);
    free(notes);
}

static void print_fact(FILE *out, const char *name, const char *value) {
    if (!*value)
        return;
    fprintf(out, "<dt>%s</dt>", name);
    print_element(out, "<dd>", value, "</dd>\n");
}

/* A comparison of hosts knows that of its chief alone. */
static void print_machine(FILE *out, const json_t *result) {
    const json_t *machine = json_object_get(result, "machine");
    bool here = json_is_number(json_object_get(result, "cores"));
    double cores = compare_table_number(machine, NULL, "cores");
    double memory = compare_table_number(machine, NULL, "memory_bytes");
    char size[32], number[32] = "";
    if (!machine)
        return;
    if (memory > 0)
        byte_size_text((uint64_t)memory, size, sizeof size);
    if (cores > 0)
        snprintf(number, sizeof number, "%.0f", cores);
    print_fact(out, here ? "processor" : "chief's processor",
               report_text(machine, "processor"));
    print_fact(out, here ? "cores" : "chief's cores", number);
    print_fact(out, here ? "memory" : "chief's memory", memory > 0 ? size : "");
    print_fact(out, here ? "kernel" : "chief's kernel",
               report_text(machine, "kernel"));
}

static void print_facts(FILE *out, const json_t *result) {
    fputs("<section class=\"card\"><h2>Measured with</h2><dl class=\"facts\">",
          out);
    print_fact(out, "job", report_text(result, "job"));
    print_fact(out, "command", report_text(result, "command"));
    print_fact(out, "ended", report_text(result, "date"));
    print_machine(out, result);
    print_fact(out, "Capstan", report_text(result, "version"));
    print_fact(out, "commit", report_text(result, "commit"));
    fputs("</dl></section>\n", out);
}

static void print_job(FILE *out, const json_t *result) {
    const char *content = report_text(result, "job_text");
    json_t *job = json_loads(content, 0, NULL);
    char *shown = job ? json_dumps(job, JSON_INDENT(2)) : NULL;
    json_decref(job);
    if (*content) {
        fputs("<details class=\"card\"><summary>Job</summary><pre>", out);
        print_text(out, shown ? shown : content, true);
        fputs("</pre></details>\n", out);
    }
    free(shown);
}

static void print_content(FILE *out, const json_t *result) {
    char title[COMPARE_TABLE_TITLE];
    compare_table_title(title, result);
    fputs("<section class=\"card\"><h1>Parameter server or all-reduce</h1>",
          out);
    print_element(out, "<p class=\"soft\">", title, "</p></section>\n");
    report_rates(out, result);
    print_notes(out, result);
    report_times(out, result);
    print_facts(out, result);
    print_job(out, result);
}

/* RESULT as it is read from the text of --json; the caller's. */
static json_t *as_printed(const json_t *result) {
    char *content = json_dumps(
        result, JSON_REAL_PRECISION(COMPARE_REPORT_PRECISION) | JSON_COMPACT);
    json_t *read = content ? json_loads(content, 0, NULL) : NULL;
    free(content);
    return read;
}

char *compare_report_page(const json_t *result) {
    const char *place = strstr(page_text, mark);
    json_t *read = as_printed(result);
    char *page = NULL;
    size_t size;
    FILE *out = read ? open_memstream(&page, &size) : NULL;
    if (out) {
        fprintf(out, "%.*s", (int)(place - page_text), page_text);
        print_content(out, read);
        fputs(place + strlen(mark), out);
        if (ferror(out) | fclose(out)) {
            free(page);
            page = NULL;
        }
    }
    json_decref(read);
    return page;
}

enum status compare_report_write(const json_t *result, const char *path,
                                 struct failure *why) {
    struct atomic_file file;
    char *page = compare_report_page(result);
    if (!page)
        return status_fail(why, FAILURE_NO_MEMORY, "no memory for --report %s",
                           path);
    enum status status = atomic_file_create(&file, path, strlen(page), why);
    if (!status)
        status = atomic_file_finish(
            &file, atomic_file_write(&file, page, strlen(page), why), why);
    free(page);
    return status;
}
