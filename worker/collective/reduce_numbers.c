/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/collective/reduce_numbers.h"

#include <string.h>

#define REDUCE_SMALLEST(a, b) (*(a) = (b) < *(a) || (b) != (b) ? (b) : *(a))
#define REDUCE_LARGEST(a, b) (*(a) = (b) > *(a) || (b) != (b) ? (b) : *(a))
#define ADD_FLOAT(a, b) (*(a) += (b))
#define MULTIPLY_FLOAT(a, b) (*(a) *= (b))
#define ADD_WHOLE(a, b) ((void)__builtin_add_overflow(*(a), (b), (a)))
#define MULTIPLY_WHOLE(a, b) ((void)__builtin_mul_overflow(*(a), (b), (a)))

#define EACH(operation)                                                        \
    for (size_t i = 0; i < count; i++)                                         \
    operation(to + i, from[i])

#define DEFINE(name, type, add, multiply)                                      \
    static void name(uint32_t reduction, void *target, const void *part,       \
                     size_t count) {                                           \
        type *to = target;                                                     \
        const type *from = part;                                               \
        if (reduction == REDUCTION_MIN)                                        \
            EACH(REDUCE_SMALLEST);                                             \
        else if (reduction == REDUCTION_MAX)                                   \
            EACH(REDUCE_LARGEST);                                              \
        else if (reduction == REDUCTION_PRODUCT)                               \
            EACH(multiply);                                                    \
        else                                                                   \
            EACH(add);                                                         \
    }

DEFINE(reduce_float32, float, ADD_FLOAT, MULTIPLY_FLOAT)
DEFINE(reduce_float64, double, ADD_FLOAT, MULTIPLY_FLOAT)
DEFINE(reduce_int8, int8_t, ADD_WHOLE, MULTIPLY_WHOLE)
DEFINE(reduce_int16, int16_t, ADD_WHOLE, MULTIPLY_WHOLE)
DEFINE(reduce_int32, int32_t, ADD_WHOLE, MULTIPLY_WHOLE)
DEFINE(reduce_int64, int64_t, ADD_WHOLE, MULTIPLY_WHOLE)
DEFINE(reduce_uint8, uint8_t, ADD_WHOLE, MULTIPLY_WHOLE)

static const struct {
    size_t size;
    void (*reduce)(uint32_t reduction, void *target, const void *part,
                   size_t count);
} numbers[NUMBERS] = {
    [NUMBER_FLOAT32] = {4, reduce_float32},
    [NUMBER_FLOAT64] = {8, reduce_float64},
    [NUMBER_INT8] = {1, reduce_int8},
    [NUMBER_INT16] = {2, reduce_int16},
    [NUMBER_INT32] = {4, reduce_int32},
    [NUMBER_INT64] = {8, reduce_int64},
    [NUMBER_UINT8] = {1, reduce_uint8},
};

size_t number_size(enum number number) {
    return numbers[number].size;
}

static void divide_sum(uint32_t number, void *data, size_t count,
                       uint32_t ranks) {
    float *floats = data;
    double *doubles = data;
    for (size_t i = 0; i < count; i++)
        if (number == NUMBER_FLOAT32)
            floats[i] /= (float)ranks;
        else
            doubles[i] /= ranks;
}

void reduce_numbers(const struct trainer_call *call, void *to,
                    const void *parts, size_t bytes, uint32_t ranks) {
    size_t count = bytes / numbers[call->number].size;
    const char *part = parts;
    if (!bytes)
        return;
    memcpy(to, part, bytes);
    for (uint32_t r = 1; r < ranks; r++)
        numbers[call->number].reduce(call->reduction, to, part + r * bytes,
                                     count);
    if (call->reduction == REDUCTION_MEAN)
        divide_sum(call->number, to, count, ranks);
}
