/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/test.h"

#include <string.h>

void assert_contains_at(const char *text, const char *part, const char *file,
                        int line) {
    if (text && strstr(text, part))
        return;
    print_error("no \"%s\" in: %s\n", part, text ? text : "(none)");
    _fail(file, line);
}
