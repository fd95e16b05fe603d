/* SPDX-License-Identifier: Apache-2.0 */
/* Encoding of floats in messages between trainers and ps: the job's `wire`.
 * Encoded floats may have any alignment; input and output do not overlap. */
#ifndef CAPSTAN_ENCODING_H
#define CAPSTAN_ENCODING_H

#include "core/tensor/layout.h"
#include "core/tensor/rule.h"
#include "proto/job/job.h"
#include "proto/messages/data.pb-c.h"

#include <stddef.h>

/* Bytes of ELEMENTS floats in WIRE. */
size_t encoding_bytes(enum job_wire wire, size_t elements);

/* The format of block B of LAYOUT in messages of format WIRE: only gradients
 * and trained weights may be rounded. */
enum job_wire encoding_of_block(const struct layout *layout, uint32_t b,
                                enum job_wire wire);

/* Encodes FLOATS to TO, encoding_bytes of it. LOOPS: NULL for the best. */
void encoding_write(const struct rule_loops *loops, enum job_wire wire,
                    const float *floats, size_t elements, void *to);

/* Decodes. */
void encoding_read(const struct rule_loops *loops, enum job_wire wire,
                   const void *from, size_t elements, float *floats);

/* Rounds FLOATS to the values that their reader decodes. */
void encoding_round(enum job_wire wire, float *floats, size_t elements);

/* WIRE in a message header. */
Capstan__DataHeader__Encoding encoding_name(enum job_wire wire);

#endif
