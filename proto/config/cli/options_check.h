/* SPDX-License-Identifier: Apache-2.0 */
/* Checks which flags can be combined. */
#ifndef CAPSTAN_OPTIONS_CHECK_H
#define CAPSTAN_OPTIONS_CHECK_H

#include "proto/config/cli/options.h"

/* Call it after all flags are read. On STATUS_CONFIG WHY names the flags that
 * cannot be combined and the help to read. */
enum status options_check(const struct options *options,
                          struct failure *why) MUST_CHECK;

#endif
