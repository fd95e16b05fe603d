/* SPDX-License-Identifier: Apache-2.0 */
/* Explains why a verb's flags do not accept a word. */
#ifndef CAPSTAN_CLI_FLAG_H
#define CAPSTAN_CLI_FLAG_H

#include <argp.h>
#include <stdbool.h>
#include <stddef.h>

/* True if WORD is a long flag but not the full name of any of OPTIONS: argp
 * would accept it as an abbreviation. */
bool cli_flag_is_abbreviated(const struct argp_option *options,
                             const char *word);

/* Writes to TEXT (SIZE bytes) why WORD is not accepted as one of OPTIONS, which
 * end with an empty entry: unknown, with the nearest flag; a missing value; or
 * a value that the flag does not take. False if WORD is accepted or is not a
 * flag. */
bool cli_flag_error(const struct argp_option *options, const char *word,
                    char *text, size_t size);

#endif
