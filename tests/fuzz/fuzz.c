/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/fuzz/fuzz.h"

#include "proto/messages/message.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

void fuzz_require(bool promise, const char *text) {
    if (promise)
        return;
    fprintf(stderr, "not so: %s\n", text);
    abort();
}

const char *fuzz_file(const uint8_t *bytes, size_t size) {
    static char path[32];
    static int file = -1;
    if (file < 0) {
        file = memfd_create("fuzz", MFD_CLOEXEC);
        snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    }
    fuzz_require(!ftruncate(file, 0) &&
                     pwrite(file, bytes, size, 0) == (ssize_t)size,
                 "the input is in a file");
    return path;
}

char *fuzz_text(const uint8_t *bytes, size_t size) {
    char *text = malloc(size + 1);
    fuzz_require(text, "there is memory");
    memcpy(text, bytes, size);
    text[size] = 0;
    return text;
}

uint8_t *fuzz_message(const uint8_t *bytes, size_t *size) {
    enum { FIELD = 1 << 3 }; /* `version`, a number below 128 */
    uint8_t *message = malloc(*size + 2);
    fuzz_require(message && MESSAGE_VERSION < 128, "there is memory");
    memcpy(message, bytes, *size);
    message[(*size)++] = FIELD;
    message[(*size)++] = MESSAGE_VERSION;
    return message;
}

bool fuzz_is_read(enum status status, const struct failure *why) {
    if (!status)
        return true;
    fuzz_require(status == STATUS_CONFIG || status == STATUS_FAILED,
                 "a bad input is not worth a retry");
    fuzz_require(*why->text, "a bad input is refused with a text");
    return false;
}

void fuzz_touch(const void *bytes, size_t size) {
    const volatile uint8_t *at = bytes;
    for (size_t i = 0; i < size; i++)
        (void)at[i];
}

void fuzz_touch_cell(const struct record_cell *cell) {
    bool integers = cell->type == RECORD_INTEGERS || cell->type == RECORD_PAIRS;
    bool floats = cell->type == RECORD_FLOATS || cell->type == RECORD_PAIRS;
    if (integers)
        fuzz_touch(cell->integers, cell->count * sizeof *cell->integers);
    if (floats)
        fuzz_touch(cell->floats, cell->count * sizeof *cell->floats);
    for (uint32_t i = 0; cell->type == RECORD_TEXTS && i < cell->count; i++)
        fuzz_touch(cell->texts[i].bytes, cell->texts[i].size);
}

void fuzz_touch_row(void *context, const struct record *record) {
    const struct record_cut *cut = context;
    const struct record_cell *cells;
    struct npz_row row = {0};
    struct failure why;
    fuzz_touch(record->bytes, record->size);
    if (!cut->num_names)
        return;
    fuzz_require(!npz_row_read(&row, cut->num_names, record, &cells, &why),
                 "a row is read");
    for (uint32_t c = 0; c < cut->num_names; c++)
        fuzz_touch_cell(&cells[c]);
    free(row.cells);
}

static void visit_copy(const struct record *record,
                       void (*visit)(void *context,
                                     const struct record *record),
                       void *context) {
    struct record copy = *record;
    copy.bytes = malloc(record->size ? record->size : 1);
    fuzz_require(copy.bytes, "there is memory");
    memcpy(copy.bytes, record->bytes, record->size);
    visit(context, &copy);
    free(copy.bytes);
}

void fuzz_lines(const uint8_t *bytes, size_t size,
                void (*visit)(void *context, const struct record *record),
                void *context) {
    const uint8_t *end = bytes + size;
    while (bytes < end) {
        const uint8_t *newline = memchr(bytes, '\n', (size_t)(end - bytes));
        const uint8_t *stop = newline ? newline : end;
        struct record record = {.bytes = (char *)(uintptr_t)bytes,
                                .size = (size_t)(stop - bytes)};
        visit_copy(&record, visit, context);
        bytes = stop + 1;
    }
}

void fuzz_records(const struct record_reader *reader, const uint8_t *bytes,
                  size_t size, const struct record_cut *cut,
                  void (*visit)(void *context, const struct record *record),
                  void *context) {
    struct record_file *file;
    struct record record;
    struct failure why;
    if (!fuzz_is_read(reader->open(&file, fuzz_file(bytes, size), cut, &why),
                      &why))
        return;
    while (fuzz_is_read(reader->next(file, &record, &why), &why) &&
           record.bytes) {
        visit_copy(&record, visit, context);
    }
    reader->close(&file);
}
