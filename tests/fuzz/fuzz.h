/* SPDX-License-Identifier: Apache-2.0 */
/* What the fuzzing programs share: each fuzz_NAME.c gives libFuzzer one parser
 * (https://llvm.org/docs/LibFuzzer.html) and begins with
 * tests/fuzz/corpus/NAME. `make fuzz` builds and runs them. */
#ifndef CAPSTAN_FUZZ_H
#define CAPSTAN_FUZZ_H

#include "core/base/status.h"
#include "worker/data/record_reader.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* libFuzzer calls it with each input. */
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

/* The path of a file with these bytes, until the next call. */
const char *fuzz_file(const uint8_t *bytes, size_t size);

/* A copy with a 0 behind it; the caller frees it. */
char *fuzz_text(const uint8_t *bytes, size_t size);

/* A message of the present version, *SIZE bytes: the last of several values of
 * a field counts. The caller frees it. */
uint8_t *fuzz_message(const uint8_t *bytes, size_t *size);

/* Ends the program, which libFuzzer reports with the input, unless PROMISE is
 * kept. */
void fuzz_require(bool promise, const char *text);

/* Does STATUS say that an input was read? Otherwise it has to be refused as
 * bad, with a text. */
bool fuzz_is_read(enum status status, const struct failure *why);

/* Reads each of the bytes, so that AddressSanitizer sees a wrong one. */
void fuzz_touch(const void *bytes, size_t size);

/* Reads what CELL has. */
void fuzz_touch_cell(const struct record_cell *cell);

/* Reads a RECORD of arrays by CUT, a struct record_cut, if that names them. */
void fuzz_touch_row(void *cut, const struct record *record);

/* Calls VISIT with each line, in memory of its own. */
void fuzz_lines(const uint8_t *bytes, size_t size,
                void (*visit)(void *context, const struct record *record),
                void *context);

/* The same with the records that READER finds in a file. */
void fuzz_records(const struct record_reader *reader, const uint8_t *bytes,
                  size_t size, const struct record_cut *cut,
                  void (*visit)(void *context, const struct record *record),
                  void *context);

#endif
