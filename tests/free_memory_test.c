#include "proto/base/free_memory.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <unistd.h>

static void half_of_it_is_some_and_less_than_all_memory(void **state) {
    uint64_t all =
        (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    (void)state;
    uint64_t half = free_memory_half();
    assert_true(half > 0);
    assert_true(half <= all / 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(half_of_it_is_some_and_less_than_all_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
