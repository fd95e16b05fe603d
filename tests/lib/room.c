/* SPDX-License-Identifier: Apache-2.0 */
/* main() of a program that holds the tests of several files. Called by the name
 * gate_test (a link), it runs those of gate_test.c; else those of the file that
 * its first argument names. One more argument is a pattern of the tests to run.
 * Whatever has started it, Ctrl-C is not ignored in what it starts, and who
 * ends it from outside, because it hangs, reads which test was under way. */
#include "tests/lib/test.h"

#include <fnmatch.h>
#include <signal.h>
#include <unistd.h>

static struct test *registered;
static struct CMUnitTest group, *given, *counted;
static size_t num_registered;
static pid_t program;
static volatile size_t begun; /* the last of them is under way */

/* In the order of their numbers: constructors have none. */
void test_register(struct test *test) {
    struct test **at = &registered;
    while (*at && (*at)->number < test->number)
        at = &(*at)->next;
    test->next = *at;
    *at = test;
    num_registered++;
}

static bool is_of(const struct test *test, const char *path) {
    const char *name = strrchr(path, '/');
    const char *file = strrchr(test->file, '/');
    name = name ? name + 1 : path;
    file = file ? file + 1 : test->file;
    size_t length = strlen(name);
    return strncmp(file, name, length) == 0 && strcmp(file + length, ".c") == 0;
}

/* The number of tests of the file that PATH names without its .c; gives those
 * that match PATTERN. */
static size_t find(const char *path, const char *pattern, size_t *matching) {
    size_t found = 0;
    for (struct test *test = registered; test; test = test->next) {
        const struct CMUnitTest *unit = &test->unit;
        if (!is_of(test, path))
            continue;
        found++;
        if (!unit->name)
            group = *unit;
        else if ((!pattern || fnmatch(pattern, unit->name, 0) == 0) &&
                 (!test->applies || test->applies()))
            given[(*matching)++] = *unit;
    }
    return found;
}

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

/* Before each test. */
static int count_test(void **state) {
    const struct CMUnitTest *test = &given[begun++];
    return test->setup_func ? test->setup_func(state) : 0;
}

static int run(const char *name, size_t count) {
    memcpy(counted, given, count * sizeof *counted);
    for (size_t i = 0; i < count; i++)
        counted[i].setup_func = count_test;
    signal(SIGTERM, tell_and_end);
    signal(SIGABRT, tell_and_end);
    int failed = _cmocka_run_group_tests(name, counted, count, group.setup_func,
                                         group.teardown_func);
    begun = 0;
    return failed;
}

int main(int count, char **arguments) {
    size_t matching = 0;
    program = getpid();
    given = calloc(num_registered + 1, sizeof *given);
    counted = calloc(num_registered + 1, sizeof *counted);
    setvbuf(stdout, NULL, _IOLBF, 0);
    signal(SIGINT, SIG_DFL); /* shells ignore it in the background */
    signal(SIGQUIT, SIG_DFL);
    if (!find(arguments[0], arguments[1], &matching)) {
        arguments += count > 1;
        if (!find(arguments[0], arguments[1], &matching)) {
            fprintf(stderr, "%s: registers no test\n", arguments[0]);
            return 2;
        }
    }
    if (!matching) {
        fprintf(stderr, "%s: no test matches %s\n", arguments[0], arguments[1]);
        return 2;
    }
    return run(arguments[0], matching);
}
