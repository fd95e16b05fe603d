/* SPDX-License-Identifier: Apache-2.0 */
/* What all test programs have in common: whatever has started them, Ctrl-C is
 * not ignored in what they start, and who ends one from outside, because it
 * hangs, reads which test was under way. Linked by --wrap, as allocations.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { MAX_TESTS = 64 };

int __real__cmocka_run_group_tests(const char *name,
                                   const struct CMUnitTest *tests, size_t count,
                                   CMFixtureFunction setup,
                                   CMFixtureFunction teardown);
int __wrap__cmocka_run_group_tests(const char *name,
                                   const struct CMUnitTest *tests, size_t count,
                                   CMFixtureFunction setup,
                                   CMFixtureFunction teardown);

static pid_t program;
static const struct CMUnitTest *given;
static volatile size_t begun; /* the last of them is under way */

static void write_text(const char *text) {
    ssize_t written = write(STDOUT_FILENO, text, strlen(text));
    (void)written;
}

/* By system calls only; forked children have this handler too. */
static void tell_and_end(int number) {
    if (getpid() == program && begun) {
        char digits[] = {(char)('0' + begun / 10), (char)('0' + begun % 10), 0};
        write_text("\nnot ok ");
        write_text(digits);
        write_text(" - ");
        write_text(given[begun - 1].name);
        write_text(": under way when the program was ended\n");
    }
    signal(number, SIG_DFL);
    raise(number);
}

__attribute__((constructor)) static void begin(void) {
    program = getpid();
    setvbuf(stdout, NULL, _IOLBF, 0);
    signal(SIGINT, SIG_DFL); /* shells ignore it in the background */
    signal(SIGQUIT, SIG_DFL);
}

/* Before each test. */
static int count_test(void **state) {
    const struct CMUnitTest *test = &given[begun++];
    return test->setup_func ? test->setup_func(state) : 0;
}

int __wrap__cmocka_run_group_tests(const char *name,
                                   const struct CMUnitTest *tests, size_t count,
                                   CMFixtureFunction setup,
                                   CMFixtureFunction teardown) {
    struct CMUnitTest counted[MAX_TESTS];
    if (count > MAX_TESTS)
        return __real__cmocka_run_group_tests(name, tests, count, setup,
                                              teardown);
    memcpy(counted, tests, count * sizeof *counted);
    for (size_t i = 0; i < count; i++)
        counted[i].setup_func = count_test;
    given = tests;
    begun = 0;
    signal(SIGTERM, tell_and_end);
    signal(SIGABRT, tell_and_end);
    int failed =
        __real__cmocka_run_group_tests(name, counted, count, setup, teardown);
    begun = 0;
    return failed;
}
