/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CAPSTAN_ASSERT_FAILS_H
#define CAPSTAN_ASSERT_FAILS_H

#include "core/base/status.h"

/* Of the thread's last call that was given it: why it failed. */
extern _Thread_local struct failure failure;

/* CALL, an expression that fills &failure, returns STATUS_OK. */
#define assert_ok(call) assert_ok_at((call), __FILE__, __LINE__)

void assert_ok_at(enum status status, const char *file, int line);

/* CALL, an expression that fills &failure, fails with CODE. */
#define assert_error(call, code) assert_fails(call, &failure, code)

/* CALL, an expression that returns a status and fills WHY, fails with CODE. */
#define assert_fails(call, why, code)                                          \
    assert_fails_at((call), (why), (code), __FILE__, __LINE__)

/* The same of STATUS, which a call has returned; at LINE of FILE. */
void assert_fails_at(enum status status, const struct failure *why,
                     enum failure_code code, const char *file, int line);

#endif
