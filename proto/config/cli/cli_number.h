/* SPDX-License-Identifier: Apache-2.0 */
/* A flag with a number: the member of the verb's options that it sets, and its
 * bounds. */
#ifndef CAPSTAN_CLI_NUMBER_H
#define CAPSTAN_CLI_NUMBER_H

#include "proto/config/amount.h"

#include <stdbool.h>
#include <stddef.h>

struct cli_number {
    const char *flag; /* without the dashes; NULL: an empty row of a table */
    size_t offset;    /* offset in the options, bytes */
    double min, max;
};

/* A row for MEMBER of OPTIONS, a struct's type. */
#define CLI_NUMBER(options, flag, member, min, max)                            \
    { flag, offsetof(options, member), min, max }

/* Sets the double that NUMBER names in OPTIONS to the number TEXT. On false
 * PROBLEM (SIZE bytes) says what was found and what is allowed. */
bool cli_number_set_real(const struct cli_number *number, void *options,
                         const char *text, char *problem, size_t size);

/* The same for a whole number and a uint64_t. */
bool cli_number_set_count(const struct cli_number *number, void *options,
                          const char *text, char *problem, size_t size);

/* A flag with a number of parameters or bytes, a uint64_t. */
struct cli_amount {
    const char *flag;
    size_t offset;
    struct amount amount;
};

/* The same for such a flag. */
bool cli_number_set_amount(const struct cli_amount *flag, void *options,
                           const char *text, char *problem, size_t size);

#endif
