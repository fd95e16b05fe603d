/* SPDX-License-Identifier: Apache-2.0 */
/* Messages of tf.train.Example and files of TFRecord, written by their
 * definitions. A message that is too long fails the test. */
#ifndef CAPSTAN_EXAMPLE_MESSAGE_H
#define CAPSTAN_EXAMPLE_MESSAGE_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* Kinds of a Feature's list: its fields. */
enum { EXAMPLE_BYTES = 1, EXAMPLE_FLOATS, EXAMPLE_INTEGERS };

/* Bytes that grow; empty where SIZE is 0. */
struct example_message {
    char bytes[8192];
    size_t size;
};

void example_message_put(struct example_message *to, const void *bytes,
                         size_t size);
void example_message_put_varint(struct example_message *to, uint64_t value);

/* SIZE bytes as FIELD, with their length. */
void example_message_put_part(struct example_message *to, unsigned field,
                              const void *bytes, size_t size);

/* An entry of Features: NAME, and a list of KIND whose content is LIST. */
void example_message_put_entry(struct example_message *features,
                               const char *name, unsigned kind,
                               const struct example_message *list);

/* An entry of COUNT floats. */
void example_message_put_floats(struct example_message *features,
                                const char *name, const float *floats,
                                size_t count);

/* Appends EXAMPLE to FILE as a record of TFRecord, with its checksums. */
void example_message_write(FILE *file, const struct example_message *example);

#endif
