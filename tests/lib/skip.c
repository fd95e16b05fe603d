/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/skip.h"
#include "tests/lib/test.h"

#include <errno.h>
#include <pty.h>
#include <unistd.h>

noreturn void skip_test(const char *format, ...) {
    char reason[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(reason, sizeof reason, format, arguments);
    va_end(arguments);
    print_message("# skipped: %s\n", reason);
    skip();
    abort(); /* skip() jumps out of the test */
}

void skip_unless_installed(const char *program, const char *package) {
    const char *command = textf("command -v %s > /dev/null", program);
    if (system(command))
        skip_test("there is no %s here (%s)", program, package);
}

void skip_unless_terminals(void) {
    int ours, theirs;
    if (openpty(&ours, &theirs, NULL, NULL, NULL))
        skip_test("no terminal opens here (%s): is /dev/pts mounted?",
                  strerror(errno));
    close(ours);
    close(theirs);
}
