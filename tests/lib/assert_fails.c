/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/test.h"

_Thread_local struct failure failure;

void assert_ok_at(enum status status, const char *file, int line) {
    if (!status)
        return;
    print_error("status %d, %s: %s\n", (int)status,
                failure_code_name(failure.code), failure.text);
    _fail(file, line);
}

void assert_fails_at(enum status status, const struct failure *why,
                     enum failure_code code, const char *file, int line) {
    if (status == failure_code_status(code) && why->code == code)
        return;
    if (status)
        print_error("status %d, %s, not %s: %s\n", (int)status,
                    failure_code_name(why->code), failure_code_name(code),
                    why->text);
    else
        print_error("%s is expected, but the call succeeds\n",
                    failure_code_name(code));
    _fail(file, line);
}
