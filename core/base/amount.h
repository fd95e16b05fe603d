/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers of parameters and of bytes as people write them: "25.6M", "64K". */
#ifndef CAPSTAN_AMOUNT_H
#define CAPSTAN_AMOUNT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum amount_unit {
    AMOUNT_PARAMETERS, /* K, M, G or B, and T are powers of 1000 */
    AMOUNT_BYTES       /* K, M and G, also KB or KiB, are powers of 1024 */
};

/* What a flag or a key takes. */
struct amount {
    enum amount_unit unit;
    uint64_t min, max, multiple;
};

/* Reads a decimal number and an optional suffix in any case. A fraction is
 * rounded to the nearest multiple. False for anything else and for a value out
 * of bounds; *VALUE is then unchanged. */
bool amount_parse(const struct amount *amount, const char *text,
                  uint64_t *value);

/* For help and errors: "multiples of 4 bytes from 4 to 8G, such as 102.4M; K,
 * M and G are powers of 1024". */
void amount_allowed(const struct amount *amount, char *text, size_t size);

#endif
