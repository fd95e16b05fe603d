/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/data/record_reader.h"

#include "worker/data/data_file.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK = 1 << 20 };

enum line_kind { PLAIN_LINES, COMMENTED_LINES, QUOTED_LINES, TRIMMED_LINES };

struct record_file {
    struct data_file *file;
    const char *path;
    enum line_kind kind;
    char delimiter; /* of QUOTED_LINES and TRIMMED_LINES */
    bool ended;
    uint64_t number, line; /* of the next record */
    char *bytes;
    size_t capacity, begin, end; /* of what is not given out yet */
};

/* Reads more behind what there is; FILE->ended if there is none. */
static enum status read_more(struct record_file *file, struct failure *why) {
    size_t kept = file->end - file->begin, got;
    memmove(file->bytes, file->bytes + file->begin, kept);
    file->begin = 0;
    file->end = kept;
    if (file->capacity - kept < CHUNK) {
        size_t capacity = 2 * file->capacity;
        char *bytes = realloc(file->bytes, capacity);
        if (!bytes)
            return status_fail(why, FAILURE_NO_MEMORY,
                               "%s:%" PRIu64 ": no memory for the line",
                               file->path, file->line);
        file->bytes = bytes;
        file->capacity = capacity;
    }
    bool first = !data_file_position(file->file);
    enum status status =
        data_file_read(file->file, file->bytes + kept, CHUNK, &got, why);
    file->end += got;
    if (first && !status)
        status = data_file_check_text(file->file, file->bytes, got, why);
    file->ended = !status && got < CHUNK;
    return file->ended ? data_file_check_end(file->file, why) : status;
}

/* Of the record that begins at file->begin. */
struct quotes {
    bool open;     /* the text is within quotes */
    size_t closed; /* bytes up to the end of the last quote that closed, or 0 */
    bool broken;   /* it was not at a field's end; others count no more */
};

/* A quote within a field is none (RFC 4180, section 2, rule 5), unless it
 * doubles one. */
static bool is_opening(const struct record_file *file, const char *quote,
                       size_t closed) {
    const char *first = file->bytes + file->begin, *begin = quote;
    if (file->kind == TRIMMED_LINES)
        while (begin > first && begin[-1] == ' ')
            begin--;
    return begin == first || begin[-1] == file->delimiter ||
           quote == first + closed ||
           (file->line == 1 && begin == first + 3 &&
            !memcmp(first, "\xef\xbb\xbf", 3));
}

/* QUOTE, the next one, opens or closes. */
static void take_quote(const struct record_file *file, const char *quote,
                       struct quotes *quotes) {
    if (quotes->open)
        quotes->closed = (size_t)(quote + 1 - (file->bytes + file->begin));
    if (quotes->open || is_opening(file, quote, quotes->closed))
        quotes->open = !quotes->open;
}

/* Looks at the byte behind the last quote that closed, if it is there. */
static inline void check_closed(const struct record_file *file,
                                struct quotes *quotes) {
    if (!quotes->closed || quotes->open)
        return;
    const char *closed = file->bytes + file->begin + quotes->closed;
    const char *behind = closed, *end = file->bytes + file->end;
    if (file->kind == TRIMMED_LINES)
        while (behind < end && *behind == ' ')
            behind++;
    if (behind < end && *behind != file->delimiter && *behind != '\n' &&
        *behind != '\r' && !(*behind == '"' && behind == closed))
        quotes->broken = true;
}

/* The end of the line that begins at file->begin, one of whose quotes does not
 * end, or not at a field's end: the parser refuses it. NULL: of the file. */
static char *end_of_line(const struct record_file *file, uint64_t *newlines) {
    char *begin = file->bytes + file->begin;
    char *newline = memchr(begin, '\n', file->end - file->begin);
    *newlines = newline != NULL;
    return newline;
}

/* The record's end in the bytes from FROM on, or NULL. */
static char *find_end(const struct record_file *file, size_t from,
                      struct quotes *quotes, uint64_t *newlines) {
    char *at = file->bytes + from, *end = file->bytes + file->end;
    check_closed(file, quotes);
    while (at < end) {
        char *newline = memchr(at, '\n', (size_t)(end - at));
        char *stop = newline ? newline : end;
        char *quote = file->kind >= QUOTED_LINES ? at : stop;
        while (quote < stop && !quotes->broken &&
               (quote = memchr(quote, '"', (size_t)(stop - quote)))) {
            take_quote(file, quote++, quotes);
            check_closed(file, quotes);
        }
        if (quotes->broken && *newlines)
            return end_of_line(file, newlines);
        if (!newline)
            return NULL;
        (*newlines)++;
        if (!quotes->open)
            return newline;
        at = newline + 1;
    }
    return NULL;
}

static enum status fail_of_line(const struct record_file *file,
                                const char *text, struct failure *why) {
    return status_fail(why, FAILURE_DATA_DAMAGED, "%s:%" PRIu64 ": %s",
                       file->path, file->line, text);
}

/* *BYTES of the record that begins at file->begin, with its line end. */
static enum status find_record(struct record_file *file, size_t *bytes,
                               uint64_t *newlines, struct failure *why) {
    size_t seen = 0;
    struct quotes quotes = {0};
    char *end = NULL;
    *newlines = 0;
    while (!end) {
        end = find_end(file, file->begin + seen, &quotes, newlines);
        seen = file->end - file->begin;
        if (end || file->ended)
            break;
        if (seen > RECORD_READER_MAX_BYTES && quotes.open)
            break;
        if (seen > RECORD_READER_MAX_BYTES)
            return fail_of_line(file, "a line of more than 64 MiB", why);
        enum status status = read_more(file, why);
        if (status)
            return status;
    }
    if (!end && quotes.open)
        end = end_of_line(file, newlines);
    if (!end && seen > RECORD_READER_MAX_BYTES)
        return fail_of_line(file, "a line of more than 64 MiB", why);
    *bytes = end ? (size_t)(end + 1 - (file->bytes + file->begin)) : seen;
    return STATUS_OK;
}

/* A line of spaces, or where there may be comments of blanks and one or none.
 */
static bool is_blank_line(const char *line, size_t size, bool comments) {
    size_t at = 0;
    while (at < size && (line[at] == ' ' || (comments && line[at] == '\t')))
        at++;
    return at == size || (comments && line[at] == '#');
}

static enum status next_line(struct record_file *file, struct record *record,
                             struct failure *why) {
    size_t bytes = 1, size = 0;
    uint64_t newlines;
    *record = (struct record){0};
    while (!size && bytes) {
        enum status status = find_record(file, &bytes, &newlines, why);
        if (status)
            return status;
        char *first = file->bytes + file->begin;
        size = bytes;
        if (file->line == 1 && size >= 3 && !memcmp(first, "\xef\xbb\xbf", 3)) {
            first += 3; /* a byte order mark */
            size -= 3;
        }
        size -= size && first[size - 1] == '\n';
        size -= size && first[size - 1] == '\r';
        bool comments = file->kind == COMMENTED_LINES;
        if ((comments ||
             (size && *first == ' ' && file->kind == TRIMMED_LINES)) &&
            is_blank_line(first, size, comments))
            size = 0;
        *record = (struct record){.bytes = size ? first : NULL,
                                  .size = size,
                                  .number = file->number,
                                  .line = file->line};
        file->begin += bytes;
        file->line += newlines;
    }
    file->number += size > 0;
    return STATUS_OK;
}

static void close_lines(struct record_file **where) {
    struct record_file *file = where ? *where : NULL;
    if (!file)
        return;
    data_file_close(&file->file);
    free(file->bytes);
    free(file);
    *where = NULL;
}

static enum status open_kind(struct record_file **out, const char *path,
                             enum line_kind kind, const struct record_cut *cut,
                             struct failure *why) {
    struct record_file *file = calloc(1, sizeof *file);
    *out = NULL;
    if (file)
        *file = (struct record_file){.path = path,
                                     .kind = kind,
                                     .delimiter = cut->delimiter,
                                     .line = 1,
                                     .capacity = 2 * CHUNK,
                                     .bytes = malloc(2 * CHUNK)};
    enum status status = file && file->bytes
                             ? data_file_open(&file->file, path, "records", why)
                             : status_fail(why, FAILURE_NO_MEMORY,
                                           "%s: no memory to read it", path);
    if (status)
        close_lines(&file);
    *out = file;
    return status;
}

static enum status open_lines(struct record_file **out, const char *path,
                              const struct record_cut *cut,
                              struct failure *why) {
    return open_kind(out, path, PLAIN_LINES, cut, why);
}

static enum status open_quoted(struct record_file **out, const char *path,
                               const struct record_cut *cut,
                               struct failure *why) {
    return open_kind(out, path, QUOTED_LINES, cut, why);
}

/* Of fields between spaces these are no part of a field. */
static enum status open_trimmed(struct record_file **out, const char *path,
                                const struct record_cut *cut,
                                struct failure *why) {
    return open_kind(out, path,
                     cut->delimiter == ' ' ? QUOTED_LINES : TRIMMED_LINES, cut,
                     why);
}

static enum status open_commented(struct record_file **out, const char *path,
                                  const struct record_cut *cut,
                                  struct failure *why) {
    return open_kind(out, path, COMMENTED_LINES, cut, why);
}

static bool line_position(const struct record_file *file,
                          struct record_position *position) {
    *position = (struct record_position){
        .byte = data_file_position(file->file) - (file->end - file->begin),
        .number = file->number,
        .line = file->line};
    return data_file_seeks(file->file);
}

static enum status seek_line(struct record_file *file,
                             const struct record_position *position,
                             struct failure *why) {
    file->begin = file->end = 0;
    file->ended = false;
    file->number = position->number;
    file->line = position->line;
    return data_file_seek(file->file, position->byte, why);
}

#define LINE_READER(name, open)                                                \
    { name, open, next_line, close_lines, line_position, seek_line, NULL }
const struct record_reader line_reader = LINE_READER("lines", open_lines);
const struct record_reader quoted_line_reader =
    LINE_READER("quoted lines", open_quoted);
const struct record_reader trimmed_line_reader =
    LINE_READER("quoted lines with spaces", open_trimmed);
const struct record_reader commented_line_reader =
    LINE_READER("commented lines", open_commented);
