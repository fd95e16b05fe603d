/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/plan/encoding.h"

#include "core/tensor/bf16.h"

#include <stdint.h>
#include <string.h>

static const struct rule_loops *loops_or_best(const struct rule_loops *loops) {
    size_t count;
    return loops ? loops : rule_variants(&count)[0];
}

size_t encoding_bytes(enum job_wire wire, size_t elements) {
    return elements *
           (wire == JOB_WIRE_BF16 ? sizeof(uint16_t) : sizeof(float));
}

enum job_wire encoding_of_block(const struct layout *layout, uint32_t b,
                                enum job_wire wire) {
    uint32_t p = layout->blocks[b].parameter;
    return layout->parameters[p].kind == PARAMETER_TRAINED ? wire
                                                           : JOB_WIRE_FLOAT32;
}

void encoding_write(const struct rule_loops *loops, enum job_wire wire,
                    const float *floats, size_t elements, void *to) {
    if (wire == JOB_WIRE_BF16)
        rule_to_bf16(loops_or_best(loops), floats, elements, to);
    else
        memcpy(to, floats, elements * sizeof *floats);
}

void encoding_read(const struct rule_loops *loops, enum job_wire wire,
                   const void *from, size_t elements, float *floats) {
    if (wire == JOB_WIRE_BF16)
        rule_from_bf16(loops_or_best(loops), from, elements, floats);
    else
        memcpy(floats, from, elements * sizeof *floats);
}

void encoding_round(enum job_wire wire, float *floats, size_t elements) {
    for (size_t i = 0; wire == JOB_WIRE_BF16 && i < elements; i++)
        floats[i] = bf16_to_float(bf16_from_float(floats[i]));
}

Capstan__DataHeader__Encoding encoding_name(enum job_wire wire) {
    return wire == JOB_WIRE_BF16 ? CAPSTAN__DATA_HEADER__ENCODING__BF16
                                 : CAPSTAN__DATA_HEADER__ENCODING__FLOAT32;
}
