/* SPDX-License-Identifier: Apache-2.0 */
/* Decimal digits as a number. */
#ifndef CAPSTAN_DECIMAL_H
#define CAPSTAN_DECIMAL_H

#include <stdbool.h>
#include <stdint.h>

/* False unless TEXT is one or more digits and nothing else; a *VALUE beyond
 * 64 bits is UINT64_MAX. */
bool decimal_parse(const char *text, uint64_t *value);

#endif
