/* SPDX-License-Identifier: Apache-2.0 */
/* Tests that cannot run here. tests/run.sh shows their reasons and counts them;
 * `make lint` refuses cmocka's skip() elsewhere, which gives none. */
#ifndef CAPSTAN_SKIP_H
#define CAPSTAN_SKIP_H

#include "core/base/status.h"

#include <stdnoreturn.h>

/* Leaves the running test, which counts as skipped for this reason. */
noreturn void skip_test(const char *format, ...) PRINTF_LIKE(1, 2);

/* Skips the running test where PROGRAM, which PACKAGE brings, is not in PATH.
 */
void skip_unless_installed(const char *program, const char *package);

/* Skips the running test where no terminal can be opened. */
void skip_unless_terminals(void);

#endif
