/* SPDX-License-Identifier: Apache-2.0 */
/* Records that are a tf.train.Example: values by name, each a list of bytes,
 * floats or integers (tensorflow/core/example/example.proto,
 * feature.proto). */
#ifndef CAPSTAN_EXAMPLE_FORMAT_H
#define CAPSTAN_EXAMPLE_FORMAT_H

#include "core/base/status.h"
#include "worker/data/record.h"

#include <stdint.h>

struct example_format;

/* For the values of NAMES [COUNT], which are copied; of two alike the first has
 * them. */
enum status example_format_open(struct example_format **out,
                                const char *const *names, uint32_t count,
                                struct failure *why) MUST_CHECK;

/* Frees *FORMAT (may be NULL) and clears it. */
void example_format_close(struct example_format **format);

/* *CELLS [COUNT] is what RECORD has for each name, of no values where it has
 * none: a view of RECORD and FORMAT until the next call. FAILURE_DATA_DAMAGED
 * if it is no Example; WHY has the byte, without the file's name.
 * FAILURE_DATA_MISMATCH if it is a SequenceExample. */
enum status example_format_read(struct example_format *format,
                                const struct record *record,
                                const struct record_cell **cells,
                                struct failure *why) MUST_CHECK;

/* Calls VISIT with each name that RECORD has. Fails as above. */
enum status example_format_names(const struct record *record,
                                 void (*visit)(void *context,
                                               const struct record_text *name),
                                 void *context, struct failure *why) MUST_CHECK;

#endif
