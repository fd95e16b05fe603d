/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CAPSTAN_ASSERT_FAILS_H
#define CAPSTAN_ASSERT_FAILS_H

#include "core/base/status.h"

/* CALL, an expression that returns a status and fills WHY, fails with CODE. */
#define assert_fails(call, why, code)                                          \
    assert_fails_at((call), (why), (code), __FILE__, __LINE__)

/* The same of STATUS, which a call has returned; at LINE of FILE. */
void assert_fails_at(enum status status, const struct failure *why,
                     enum failure_code code, const char *file, int line);

#endif
