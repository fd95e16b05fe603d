/* SPDX-License-Identifier: Apache-2.0 */
/* A flag of the command line that takes a number: which member of its verb's
 * options it fills, and within what bounds. */
#ifndef CAPSTAN_AMOUNT_H
#define CAPSTAN_AMOUNT_H

#include <stdbool.h>
#include <stddef.h>

struct amount {
    const char *flag; /* without its dashes; NULL: an empty row of a table */
    size_t at;        /* bytes from the beginning of the options */
    double least, most;
};

/* A row for MEMBER of OPTIONS, a struct's type. */
#define AMOUNT(options, flag, member, least, most)                             \
    { flag, offsetof(options, member), least, most }

/* Sets the double that AMOUNT names in OPTIONS to the number TEXT. False:
 * PROBLEM (SIZE bytes) says what was found and what is allowed. */
bool amount_set_real(const struct amount *amount, void *options,
                     const char *text, char *problem, size_t size);

/* The same of a whole number, for a uint64_t. */
bool amount_set_count(const struct amount *amount, void *options,
                      const char *text, char *problem, size_t size);

#endif
