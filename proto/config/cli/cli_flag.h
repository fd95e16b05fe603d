/* SPDX-License-Identifier: Apache-2.0 */
/* Why the flags of a verb do not take a word. */
#ifndef CAPSTAN_CLI_FLAG_H
#define CAPSTAN_CLI_FLAG_H

#include <argp.h>
#include <stdbool.h>
#include <stddef.h>

/* WORD is a long flag, and none of OPTIONS by its whole name: argp takes the
 * beginning of one for it. */
bool cli_flag_is_abbreviated(const struct argp_option *options,
                             const char *word);

/* Says in TEXT (SIZE bytes) what is wrong with WORD as one of OPTIONS, which
 * end with an empty one: the flag that is most like it, or the value that it
 * wants or does not take. False: nothing is, or it is no flag. */
bool cli_flag_error(const struct argp_option *options, const char *word,
                    char *text, size_t size);

#endif
