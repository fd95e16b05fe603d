/* SPDX-License-Identifier: Apache-2.0 */
/* Flags that go together, and those that do not. */
#ifndef CAPSTAN_OPTIONS_CHECK_H
#define CAPSTAN_OPTIONS_CHECK_H

#include "proto/config/cli/options.h"

/* Once all are read. STATUS_CONFIG says which do not and where more is told. */
enum status options_check(const struct options *options,
                          struct failure *why) MUST_CHECK;

#endif
