/* SPDX-License-Identifier: Apache-2.0 */
/* `capstan report`: the page of a run from its metrics as lines of JSON
 * (metrics.jsonl of the job). The file is read twice: the first time each line
 * is checked, and of those that have a point only the place is kept; the second
 * time those are read that the page has. So a long file takes little memory. */
#include "chief/report/page_points.h"
#include "commands/page.h"
#include "commands/verbs.h"
#include "core/base/input_file.h"
#include "core/base/log.h"
#include "core/base/point_series.h"
#include "core/store/atomic_file.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_COLUMNS = 256 };

struct line_place {
    long offset;
    size_t length;
};

/* The points of a kind: of training, or of evaluations. */
struct report_series {
    struct point_series *places; /* of struct line_place */
    double step;                 /* that of the last line */
};

struct report {
    const char *path;
    FILE *file;
    size_t number;         /* of the line, from 1 */
    json_t *run, *summary; /* the first line and the last one, or NULL */
    json_t *names;         /* of all numbers: a set */
    bool torn;             /* the last line has no end */
    struct report_series points, evaluations;
};

static enum status bad_line(const struct report *report, struct failure *why,
                            const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static enum status bad_line(const struct report *report, struct failure *why,
                            const char *format, ...) {
    char text[600];
    va_list values;
    va_start(values, format);
    vsnprintf(text, sizeof text, format, values);
    va_end(values);
    return status_fail(why, FAILURE_DATA_DAMAGED,
                       "%s, line %zu: %s; this is no file that a run writes "
                       "for \"metrics\": {\"jsonl\": FILE}",
                       report->path, report->number, text);
}

/* The numbers of LINE, a point; other values are refused by name. */
static enum status check_numbers(struct report *report, const json_t *line,
                                 struct failure *why) {
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)line, name, value) {
        if (!json_is_number(value) && !json_is_null(value))
            return bad_line(report, why, "\"%.64s\" is no number", name);
        json_object_set_new(report->names, name, json_true());
    }
    if (json_object_size(report->names) > MAX_COLUMNS)
        return bad_line(report, why, "there are more than %d names of numbers",
                        MAX_COLUMNS);
    return STATUS_OK;
}

static bool has_test_figure(const json_t *line) {
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)line, name,
                        value) if (!strncmp(name, "test_", 5)) return true;
    return false;
}

static double figure_of(const json_t *line, const char *name) {
    const json_t *value = json_object_get(line, name);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

static enum status add_point(struct report *report, const json_t *line,
                             struct line_place place, struct failure *why) {
    bool evaluates = has_test_figure(line);
    struct report_series *series =
        evaluates ? &report->evaluations : &report->points;
    double step = figure_of(line, "step"), time = figure_of(line, "time");
    if (!(step >= 0) || !(time >= 0))
        return bad_line(report, why,
                        "a point has \"step\" and \"time\", from 0 on");
    if (point_series_added(series->places) && step < series->step)
        return bad_line(report, why, "step %.0f comes after step %.0f", step,
                        series->step);
    series->step = step;
    point_series_add(series->places, &place,
                     figure_of(line, evaluates ? "test_loss" : "train_loss"));
    return check_numbers(report, line, why);
}

/* A run that goes on writes a first line again, and the summary of the one
 * before is none of its own. */
static enum status begin_run(struct report *report, json_t *line,
                             struct failure *why) {
    if (!json_is_string(json_object_get(line, "run")) ||
        !json_is_object(json_object_get(line, "job")) ||
        !json_is_number(json_object_get(line, "time")))
        return bad_line(report, why,
                        "the first line of a run has the text \"run\", the "
                        "object \"job\" and the number \"time\"");
    if (!report->run)
        report->run = json_incref(line);
    json_decref(report->summary);
    report->summary = NULL;
    return STATUS_OK;
}

static enum status take_line(struct report *report, json_t *line,
                             struct line_place place, struct failure *why) {
    json_t *summary = json_object_get(line, "summary");
    if (json_object_get(line, "run") || !report->run)
        return begin_run(report, line, why);
    if (!summary)
        return add_point(report, line, place, why);
    if (!json_is_object(summary))
        return bad_line(report, why, "\"summary\" is no object");
    json_decref(report->summary);
    report->summary = json_incref(summary);
    return STATUS_OK;
}

/* A run that was killed may leave a last line without its end, which is left
 * out, and said. */
static enum status read_line_at(struct report *report, const char *text,
                                struct line_place place, struct failure *why) {
    json_error_t error;
    report->number++;
    if (!place.length || text[place.length - 1] != '\n') {
        report->torn = true;
        return STATUS_OK;
    }
    json_t *line =
        json_loadb(text, place.length, JSON_REJECT_DUPLICATES, &error);
    enum status status =
        json_is_object(line)
            ? take_line(report, line, place, why)
            : bad_line(report, why, "found no object of JSON%s%s",
                       line ? "" : ": ", line ? "" : error.text);
    json_decref(line);
    return status;
}

static enum status read_lines(struct report *report, struct failure *why) {
    enum status status = STATUS_OK;
    char *text = NULL;
    size_t size = 0;
    struct line_place place = {0};
    ssize_t length;
    errno = 0;
    while (!status && (length = getline(&text, &size, report->file)) > 0) {
        place.length = (size_t)length;
        status = read_line_at(report, text, place, why);
        place.offset += length;
        errno = 0;
    }
    free(text);
    if (!status && errno)
        return status_errno(why, FAILURE_FILE_UNREADABLE, errno, "%s",
                            report->path);
    if (!status && !report->run) {
        report->number = 1;
        return bad_line(report, why, "found no line that is whole");
    }
    return status;
}

/* The points that are kept, as columns; NULL: the file has changed. */
static json_t *read_columns(const struct report *report,
                            const struct point_series *places) {
    json_t *columns = json_object();
    for (uint32_t i = 0; columns && i < point_series_count(places); i++) {
        const struct line_place *place = point_series_get(places, i);
        char *text = malloc(place->length);
        json_t *row = NULL;
        if (text && !fseek(report->file, place->offset, SEEK_SET) &&
            fread(text, place->length, 1, report->file) == 1)
            row = json_loadb(text, place->length, 0, NULL);
        free(text);
        if (json_is_object(row)) {
            page_points_add_row(columns, i, row);
        } else {
            json_decref(columns);
            columns = NULL;
        }
        json_decref(row);
    }
    return columns;
}

static const char torn_text[] =
    "the last line of the file has no end and is left out: the run was "
    "interrupted while it wrote it, or goes on";

/* The data of page.html; NULL: the file has changed, or no memory. */
static json_t *report_data(const struct report *report) {
    const struct point_series *points = report->points.places,
                              *evaluations = report->evaluations.places;
    return json_pack("{s:O, s:O, s:O, s:O*, s:s*, s:I, s:o, s:o}", "run",
                     json_object_get(report->run, "run"), "job",
                     json_object_get(report->run, "job"), "start",
                     json_object_get(report->run, "time"), "summary",
                     report->summary, "note", report->torn ? torn_text : NULL,
                     "added", (json_int_t)(point_series_added(points)),
                     "points", read_columns(report, points), "evaluations",
                     read_columns(report, evaluations));
}

static enum status write_page(const struct report *report, const char *path,
                              struct failure *why) {
    json_t *data = report_data(report);
    char *page = data ? page_with_data(data) : NULL;
    struct atomic_file file;
    json_decref(data);
    if (!page)
        return status_fail(why, FAILURE_FILE_UNREADABLE,
                           "%s: the file changed while it was read, or memory "
                           "is short; make the report again",
                           report->path);
    enum status status = atomic_file_create(&file, path, strlen(page), why);
    if (!status)
        status = atomic_file_finish(
            &file, atomic_file_write(&file, page, strlen(page), why), why);
    free(page);
    return status;
}

static enum status open_report(struct report *report, const char *path,
                               struct failure *why) {
    int descriptor;
    *report = (struct report){.path = path};
    enum status status = input_file_open(&descriptor, path, "lines of metrics",
                                         FAILURE_FILE_UNREADABLE, why);
    if (status)
        return status;
    report->file = fdopen(descriptor, "r");
    report->names = json_object();
    report->points.places =
        point_series_open(sizeof(struct line_place), PAGE_POINTS);
    report->evaluations.places =
        point_series_open(sizeof(struct line_place), PAGE_EVALUATIONS);
    if (report->file && report->names && report->points.places &&
        report->evaluations.places)
        return STATUS_OK;
    if (!report->file)
        close(descriptor);
    return status_fail(why, FAILURE_NO_MEMORY, "no memory for a report");
}

static void close_report(struct report *report) {
    if (report->file)
        fclose(report->file);
    json_decref(report->run);
    json_decref(report->summary);
    json_decref(report->names);
    point_series_close(&report->points.places);
    point_series_close(&report->evaluations.places);
}

enum status report_command(const struct options *options, struct failure *why) {
    struct report report;
    struct log log;
    log_open(&log, "report", -1);
    if (!options->output)
        return status_fail(why, FAILURE_USAGE,
                           "capstan report takes the page to write: -o "
                           "page.html");
    enum status status = open_report(&report, options->job, why);
    if (!status)
        status =
            page_check_path("-o", options->output, fileno(report.file), why);
    if (!status)
        status = read_lines(&report, why);
    if (!status && report.torn)
        log_warning(&log, "line_torn", "%s: %s", report.path, torn_text);
    if (!status)
        status = write_page(&report, options->output, why);
    close_report(&report);
    return status;
}
