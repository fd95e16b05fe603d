/* SPDX-License-Identifier: Apache-2.0 */
/* Reductions in rank order, so that all ranks get the same bits. */
#ifndef CAPSTAN_REDUCE_NUMBERS_H
#define CAPSTAN_REDUCE_NUMBERS_H

#include "worker/collective/trainer_group.h"

/* Bytes of one number. */
size_t number_size(enum number number);

/* TO [bytes] becomes the reduction of PARTS, which are RANKS times BYTES, in
 * the numbers' own type; whole numbers wrap around, and have no mean. A NaN in
 * any part stays one. */
void reduce_numbers(const struct trainer_call *call, void *to,
                    const void *parts, size_t bytes, uint32_t ranks);

#endif
