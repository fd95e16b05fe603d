/* SPDX-License-Identifier: Apache-2.0 */
/* main() of a program that holds the tests of several files, each compiled with
 * a main() of the file's name: gate_test_main of gate_test.c. Called by the
 * name gate_test (a link), it runs that one; else the one that its first
 * argument names. One more argument is a pattern of the tests to run (* and ?).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

typedef int test_main(int count, char **arguments);

static test_main *find(const char *path) {
    char symbol[256];
    const char *name = strrchr(path, '/');
    snprintf(symbol, sizeof symbol, "%s_main", name ? name + 1 : path);
    return (test_main *)dlsym(RTLD_DEFAULT, symbol);
}

int main(int count, char **arguments) {
    test_main *run = find(arguments[0]);
    if (!run && count > 1) {
        arguments++;
        count--;
        run = find(arguments[0]);
    }
    if (!run) {
        fprintf(stderr, "%s: not the name of a test\n", arguments[0]);
        return 2;
    }
    if (count > 1)
        cmocka_set_test_filter(arguments[1]);
    return run(count, arguments);
}
