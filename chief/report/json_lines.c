/* SPDX-License-Identifier: Apache-2.0 */
#include "chief/report/json_lines.h"

#include "chief/run.h"
#include "core/base/background_file.h"
#include "core/base/time.h"
#include "core/store/file_lock.h"
#include "core/store/fs_info.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Of the first line of each run, up to its start step; a 0 is any hexadecimal
 * digit. */
static const char HEAD[] = "{\"run\":\"0000000000000000\",\"start\":";

struct json_lines {
    const struct log *log;
    int descriptor;               /* -1: it is the file's */
    struct background_file *file; /* NULL: not begun, or it has failed */
    int lock;                     /* open until the run is over; or -1 */
    int64_t stop_limit;
    const char *path; /* of the job */
};

/* Where a run resumes. */
struct resumption {
    uint64_t start;
    bool evaluates; /* its first step, anew, as that is the last one */
};

/* Does LINE, whole or torn at its end, tell of nothing past OF? A run that
 * began there or later has nothing left. */
static bool stays_at(const char *line, size_t length,
                     const struct resumption *of) {
    uint64_t step;
    if (!length || line[length - 1] != '\n')
        return false;
    if (sscanf(line, "{\"step\":%" SCNu64, &step) == 1)
        return step < of->start ||
               (step == of->start &&
                !(of->evaluates && strstr(line, ",\"test_")));
    return sscanf(line, "{\"run\":\"%*16[0-9a-f]\",\"start\":%" SCNu64,
                  &step) == 1 &&
           step < of->start;
}

/* What of a file is kept although something before it is not. */
struct kept_lines {
    char *bytes;
    size_t size;
    off_t end; /* of what stays where it is; -1: all so far */
};

static bool keep_line(struct kept_lines *kept, const char *line,
                      size_t length) {
    char *grown = realloc(kept->bytes, kept->size + length);
    if (!grown)
        return false;
    memcpy(grown + kept->size, line, length);
    kept->bytes = grown;
    kept->size += length;
    return true;
}

static bool sort_lines(FILE *file, const struct resumption *of,
                       struct kept_lines *kept) {
    char *line = NULL;
    size_t capacity = 0;
    off_t offset = 0;
    bool read = true;
    for (ssize_t n; read && (n = getline(&line, &capacity, file)) > 0;
         offset += n) {
        bool before = stays_at(line, (size_t)n, of);
        if (!before && kept->end < 0)
            kept->end = offset;
        if (before && kept->end >= 0)
            read = keep_line(kept, line, (size_t)n);
    }
    free(line);
    return read && !ferror(file);
}

static enum status write_rest(int descriptor, const struct kept_lines *kept) {
    if (kept->end < 0)
        return STATUS_OK;
    bool cut = !ftruncate(descriptor, kept->end);
    return cut && write(descriptor, kept->bytes, kept->size) ==
                       (ssize_t)kept->size
               ? STATUS_OK
               : STATUS_FAILED;
}

/* Pipes and devices are written as they are. */
static bool is_regular(int descriptor) {
    struct stat found;
    return !fstat(descriptor, &found) && S_ISREG(found.st_mode);
}

/* Cuts what lies past OF. */
static enum status cut_past(int descriptor, const char *path,
                            const struct resumption *of, struct failure *why) {
    struct kept_lines kept = {.end = -1};
    if (!is_regular(descriptor))
        return STATUS_OK;
    FILE *file = fopen(path, "re");
    errno = file ? 0 : errno;
    enum status status = file && sort_lines(file, of, &kept)
                             ? write_rest(descriptor, &kept)
                             : STATUS_FAILED;
    int error = errno;
    if (file)
        fclose(file);
    free(kept.bytes);
    return status
               ? status_errno(why, FAILURE_FILE_UNWRITABLE, error,
                              "cutting %s after step %" PRIu64, path, of->start)
               : STATUS_OK;
}

static enum status cut_lines(int descriptor, const char *path, uint64_t start,
                             struct failure *why) {
    return cut_past(descriptor, path, &(struct resumption){start, false}, why);
}

static enum status cut_evaluation(int descriptor, const char *path,
                                  uint64_t start, struct failure *why) {
    return cut_past(descriptor, path, &(struct resumption){start, true}, why);
}

static void json_lines_stop(struct json_lines *lines, enum status status,
                            const struct failure *why) {
    struct failure ignored;
    if (!status)
        return;
    log_warning(lines->log, "metrics_write_failed",
                "no more points in metrics.jsonl: %s", why->text);
    if (background_file_close(&lines->file, time_now(), &ignored))
        return;
}

static void append_line(struct json_lines *lines, const char *line,
                        size_t size) {
    struct failure why;
    if (lines->file)
        json_lines_stop(
            lines, background_file_append(lines->file, line, size, &why), &why);
}

/* OBJECT, which it takes, with numbers of so many DIGITS, and a newline. */
static void append_object(struct json_lines *lines, json_t *object,
                          size_t digits) {
    char *text = json_dumps(object, JSON_COMPACT | JSON_REAL_PRECISION(digits));
    if (text) {
        size_t length = strlen(text);
        text[length] = '\n'; /* in place of the final NUL */
        append_line(lines, text, length + 1);
    }
    free(text);
    json_decref(object);
}

static void json_lines_begin(void *self, const struct run *run) {
    struct json_lines *lines = self;
    uint64_t start = run->metrics.points.start;
    struct failure why;
    char id[24];
    snprintf(id, sizeof id, "%016" PRIx64, run->id);
    json_lines_stop(
        lines,
        background_file_open(&lines->file, lines->descriptor, lines->path,
                             run_tests_again(run) ? cut_evaluation : cut_lines,
                             start, &why),
        &why);
    lines->descriptor = -1;
    if (lines->file)
        append_object(lines,
                      json_pack("{s:s, s:I, s:f, s:o}", "run", id, "start",
                                (json_int_t)start, "time", time_calendar(),
                                "job", json_loads(run->job->text, 0, NULL)),
                      15);
}

/* Whole numbers without an exponent: a count is exact. */
static int number_text(char *text, size_t size, double value) {
    bool whole = value == floor(value) && fabs(value) < 1e15;
    return snprintf(text, size, whole ? "%.0f" : "%.9g", value);
}

static void json_lines_write(void *self, const struct metric_point *point) {
    enum { OF_METRIC = 64 };
    char line[(METRIC_COUNT + 2) * OF_METRIC];
    int length =
        snprintf(line, sizeof line, "{\"step\":%" PRIu64 ",\"time\":%.3f",
                 point->step, (double)point->unix_ms / 1e3);
    for (int m = 0; m < METRIC_COUNT; m++) {
        if (!isfinite(point->values[m]))
            continue;
        length +=
            snprintf(line + length, OF_METRIC, ",\"%s\":", metric_rows[m].name);
        length += number_text(line + length, OF_METRIC, point->values[m]);
    }
    memcpy(line + length, "}\n", 2);
    append_line(self, line, (size_t)length + 2);
}

static void json_lines_end(void *self, const struct run *run, json_t *summary) {
    struct json_lines *lines = self;
    (void)run;
    if (lines->file && summary)
        append_object(lines, json_pack("{s:O}", "summary", summary), 9);
}

static void json_lines_close(void *self) {
    struct json_lines *lines = self;
    struct failure why;
    enum status status = background_file_close(
        &lines->file, time_now() + lines->stop_limit, &why);
    json_lines_stop(lines, status, &why);
    if (lines->descriptor >= 0)
        close(lines->descriptor);
    file_lock_close(&lines->lock);
    free(lines);
}

/* Is it empty, or does its first line, which may be torn, begin as HEAD? */
static bool is_of_lines(int descriptor) {
    char start[sizeof HEAD - 1];
    ssize_t size = pread(descriptor, start, sizeof start, 0);
    if (!is_regular(descriptor))
        return true;
    for (ssize_t i = 0; i < size; i++)
        if (HEAD[i] == '0' ? !isxdigit((unsigned char)start[i])
                           : start[i] != HEAD[i])
            return false;
    return true;
}

/* Two runs would cut each other's lines. Any number may write to a pipe or a
 * device. */
static enum status lock_file(struct json_lines *lines, struct failure *why) {
    if (!is_regular(lines->descriptor))
        return STATUS_OK;
    lines->lock = open(lines->path, O_RDWR | O_CLOEXEC);
    if (lines->lock < 0)
        return status_errno(why, FAILURE_OUTPUT_UNUSABLE, errno, "opening %s",
                            lines->path);
    return file_lock_take(lines->lock, lines->path, lines->log, why);
}

static enum status open_file(struct json_lines *lines, struct failure *why) {
    const char *path = lines->path;
    char folder[4096];
    enum status status =
        fs_info_parent_folder(path, folder, sizeof folder, why);
    if (!status)
        status = fs_info_make_folder(folder, why);
    if (!status) {
        lines->descriptor =
            open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
        if (lines->descriptor < 0)
            status = status_errno(why, FAILURE_OUTPUT_UNUSABLE, errno,
                                  "opening %s", path);
    }
    if (!status && !is_of_lines(lines->descriptor))
        status = status_fail(why, FAILURE_OUTPUT_UNUSABLE,
                             "%s is there, and its first line is not that of "
                             "a run's metrics; choose another file",
                             path);
    if (!status)
        status = lock_file(lines, why);
    if (!status)
        return STATUS_OK;
    file_lock_close(&lines->lock);
    if (lines->descriptor >= 0)
        close(lines->descriptor);
    why->code = FAILURE_OUTPUT_UNUSABLE;
    status_context(why, "metrics.jsonl");
    return STATUS_CONFIG;
}

enum status json_lines_open(struct point_outlet *outlet, const struct run *run,
                            struct failure *why) {
    if (!run->job->metrics_jsonl)
        return STATUS_OK;
    struct json_lines *lines = calloc(1, sizeof *lines);
    if (!lines)
        return status_fail(why, FAILURE_NO_MEMORY, "no memory for metrics");
    *lines = (struct json_lines){
        .log = run->log,
        .descriptor = -1,
        .lock = -1,
        .path = run->job->metrics_jsonl,
        .stop_limit = time_from_seconds(run->job->timeouts.stop)};
    enum status status = open_file(lines, why);
    if (status) {
        free(lines);
        return status;
    }
    *outlet = (struct point_outlet){
        .self = lines,
        .begin = json_lines_begin,
        .write = json_lines_write,
        .end = json_lines_end,
        .close = json_lines_close,
    };
    return STATUS_OK;
}
