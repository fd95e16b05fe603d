/* SPDX-License-Identifier: Apache-2.0 */
/* A flag of the command line that takes a number: which member of its verb's
 * options it fills, and within what bounds. */
#ifndef CAPSTAN_CLI_NUMBER_H
#define CAPSTAN_CLI_NUMBER_H

#include <stdbool.h>
#include <stddef.h>

struct cli_number {
    const char *flag; /* without its dashes; NULL: an empty row of a table */
    size_t offset;    /* bytes from the beginning of the options */
    double min, max;
};

/* A row for MEMBER of OPTIONS, a struct's type. */
#define CLI_NUMBER(options, flag, member, min, max)                            \
    { flag, offsetof(options, member), min, max }

/* Sets the double that AMOUNT names in OPTIONS to the number TEXT. False:
 * PROBLEM (SIZE bytes) says what was found and what is allowed. */
bool cli_number_set_real(const struct cli_number *cli_number, void *options,
                         const char *text, char *problem, size_t size);

/* The same of a whole number, for a uint64_t. */
bool cli_number_set_count(const struct cli_number *cli_number, void *options,
                          const char *text, char *problem, size_t size);

#endif
