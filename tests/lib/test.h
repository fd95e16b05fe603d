/* SPDX-License-Identifier: Apache-2.0 */
/* cmocka, headers that nearly all tests need, and tests that register
 * themselves: TEST(a_sentence) { ... } is one, and may use cmocka's state. A
 * file that defines STATE before it includes this one, such as "struct run
 * *run", gives its tests what state points at by that name. The program of a
 * folder runs those of the file that it is called for, in their order
 * (tests/lib/room.c). */
#ifndef CAPSTAN_TEST_H
#define CAPSTAN_TEST_H

#include "tests/lib/assert_fails.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#ifndef STATE
#define STATE void *no_state
#endif

struct test {
    struct CMUnitTest unit; /* without a name: the fixture of the GROUP */
    const char *file;
    int number;            /* in the file */
    bool (*applies)(void); /* NULL: always */
    struct test *next;
};

void test_register(struct test *test);

/* What cmocka calls before and after each TEST of the file. */
#define FIXTURE(SETUP, TEARDOWN)                                               \
    static CMFixtureFunction each_setup = SETUP, each_teardown = TEARDOWN

static CMFixtureFunction each_setup __attribute__((unused));
static CMFixtureFunction each_teardown __attribute__((unused));

/* What cmocka calls before the file's first test and after its last. */
#define GROUP(SETUP, TEARDOWN) TEST_AGAIN(NULL, SETUP, TEARDOWN, NULL)

#define TEST(NAME) TEST_WITH(each_setup, each_teardown, NAME)

/* A test with a fixture of its own. */
#define TEST_WITH(SETUP, TEARDOWN, NAME)                                       \
    TEST_FUNCTION(NAME)                                                        \
    TEST_REGISTER(__COUNTER__, #NAME, SETUP, TEARDOWN, NAME, NULL)             \
    TEST_BODY(NAME)

/* A test for a program where CONDITION holds; elsewhere there is none. */
#define TEST_IF(CONDITION, NAME)                                               \
    TEST_FUNCTION(NAME)                                                        \
    static bool NAME##_applies(void) {                                         \
        return CONDITION;                                                      \
    }                                                                          \
    TEST_REGISTER(__COUNTER__, #NAME, each_setup, each_teardown, NAME,         \
                  NAME##_applies)                                              \
    TEST_BODY(NAME)

/* The FUNCTION of a test once more, under the name TEXT. */
#define TEST_AGAIN(TEXT, SETUP, TEARDOWN, FUNCTION)                            \
    TEST_REGISTER(__COUNTER__, TEXT, SETUP, TEARDOWN, FUNCTION, NULL)          \
    struct test /* takes the semicolon */

/* The function that ends a fixture, with what STATE points at. */
#define TEARDOWN(NAME)                                                         \
    static void NAME##_of(STATE);                                              \
    static int NAME(void **state) {                                            \
        NAME##_of(*state);                                                     \
        return 0;                                                              \
    }                                                                          \
    static void NAME##_of(STATE)

#define TEST_FUNCTION(NAME)                                                    \
    static void NAME##_of(void **state, STATE);                                \
    static void NAME(void **state) {                                           \
        NAME##_of(state, *state);                                              \
    }

#define TEST_BODY(NAME)                                                        \
    static void NAME##_of(__attribute__((unused)) void **state,                \
                          __attribute__((unused)) STATE)

#define TEST_REGISTER(NUMBER, ...) TEST_REGISTER_AS(NUMBER, __VA_ARGS__)
#define TEST_REGISTER_AS(NUMBER, TEXT, SETUP, TEARDOWN, FUNCTION, APPLIES)     \
    __attribute__((constructor)) static void register_##NUMBER(void) {         \
        static struct test test = {.file = __FILE__, .number = NUMBER};        \
        test.applies = APPLIES;                                                \
        test.unit =                                                            \
            (struct CMUnitTest){TEXT, FUNCTION, SETUP, TEARDOWN, NULL};        \
        test_register(&test);                                                  \
    }

/* TEXT has PART in it. */
#define assert_contains(text, part)                                            \
    assert_contains_at((text), (part), __FILE__, __LINE__)

void assert_contains_at(const char *text, const char *part, const char *file,
                        int line);

/* The text that printf would print; the program's, to its end. */
const char *textf(const char *format, ...)
    __attribute__((format(printf, 1, 2)));

#endif
