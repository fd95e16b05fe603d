/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/net/shm/memory.h"
#include "tests/lib/skip.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { BYTES = 1 << 16 };

static void both_sides_see_the_same_bytes(void **state) {
    (void)state;
    struct memory *mine = memory_open(BYTES, MEMORY_BOTH_WRITE);
    struct memory *theirs =
        memory_take(dup(memory_descriptor(mine)), BYTES, MEMORY_BOTH_WRITE);
    char *here = memory_base(mine), *there = memory_base(theirs);
    assert_ptr_not_equal(here, there);
    assert_int_equal(there[BYTES - 1], 0);
    here[5] = 1;
    there[6] = 2;
    assert_int_equal(there[5], 1);
    assert_int_equal(here[6], 2);
    assert_int_equal(memory_bytes(theirs), BYTES);
    assert_int_equal(memory_descriptor(theirs), -1);
    memory_release(&mine);
    assert_null(mine);
    assert_int_equal(there[6], 2);
    memory_release(&theirs);
    memory_release(&theirs);
}

static void nobody_but_its_maker_writes(void **state) {
    (void)state;
    struct memory *mine = memory_open(BYTES, MEMORY_MAKER_WRITES);
    int descriptor = memory_descriptor(mine);
    assert_ptr_equal(
        mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0),
        MAP_FAILED);
    assert_int_equal(pwrite(descriptor, "x", 1, 0), -1);
    assert_int_equal(ftruncate(descriptor, 0), -1);
    assert_int_equal(fcntl(descriptor, F_ADD_SEALS, F_SEAL_WRITE), -1);
    struct memory *theirs =
        memory_take(dup(descriptor), BYTES, MEMORY_MAKER_WRITES);
    *(char *)memory_base(mine) = 3;
    assert_int_equal(*(char *)memory_base(theirs), 3);
    memory_release(&theirs);
    assert_null(memory_take(dup(descriptor), BYTES, MEMORY_BOTH_WRITE));
    memory_release(&mine);
}

static int unsealed(size_t bytes, unsigned flags) {
    int descriptor = memfd_create("test", MFD_CLOEXEC | flags);
    if (descriptor >= 0)
        assert_int_equal(ftruncate(descriptor, (off_t)bytes), 0);
    return descriptor;
}

static void refused(int descriptor, size_t bytes) {
    assert_true(descriptor >= 0);
    assert_null(memory_take(descriptor, bytes, MEMORY_BOTH_WRITE));
    assert_int_equal(errno, EPERM);
    assert_int_equal(fcntl(descriptor, F_GETFD), -1); /* closed */
}

static void what_could_hurt_its_reader_is_not_taken(void **state) {
    (void)state;
    refused(unsealed(BYTES, 0), BYTES);
    int descriptor = unsealed(BYTES, MFD_ALLOW_SEALING);
    assert_int_equal(fcntl(descriptor, F_ADD_SEALS, F_SEAL_GROW), 0);
    refused(descriptor, BYTES);
    descriptor = unsealed(BYTES, MFD_ALLOW_SEALING);
    assert_int_equal(fcntl(descriptor, F_ADD_SEALS, F_SEAL_SHRINK), 0);
    refused(descriptor, BYTES);
    refused(open("/dev/zero", O_RDWR | O_CLOEXEC), BYTES);
    int ends[2];
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    refused(ends[0], BYTES);
    close(ends[1]);
    descriptor = unsealed(0, MFD_ALLOW_SEALING);
    fcntl(descriptor, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW);
    refused(descriptor, 0);
}

/* Pages that may not be there when they are touched. */
static void huge_pages_are_not_taken(void **state) {
    (void)state;
    int descriptor = unsealed(1 << 21, MFD_ALLOW_SEALING | MFD_HUGETLB);
    if (descriptor < 0)
        skip_test("this machine gives no huge pages");
    fcntl(descriptor, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW);
    refused(descriptor, 1 << 21);
}

static void another_size_than_told_is_not_taken(void **state) {
    (void)state;
    struct memory *mine = memory_open(BYTES, MEMORY_BOTH_WRITE);
    refused(dup(memory_descriptor(mine)), BYTES + 1);
    refused(dup(memory_descriptor(mine)), BYTES - 1);
    refused(dup(memory_descriptor(mine)), SIZE_MAX);
    memory_release(&mine);
}

static void the_last_holder_ends_it(void **state) {
    (void)state;
    struct memory *memory = memory_open(BYTES, MEMORY_BOTH_WRITE);
    struct memory *second = memory_hold(memory);
    int descriptor = memory_descriptor(memory);
    memory_release(&memory);
    *(char *)memory_base(second) = 1;
    assert_int_not_equal(fcntl(descriptor, F_GETFD), -1);
    memory_release(&second);
    assert_int_equal(fcntl(descriptor, F_GETFD), -1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_sides_see_the_same_bytes),
        cmocka_unit_test(nobody_but_its_maker_writes),
        cmocka_unit_test(what_could_hurt_its_reader_is_not_taken),
        cmocka_unit_test(huge_pages_are_not_taken),
        cmocka_unit_test(another_size_than_told_is_not_taken),
        cmocka_unit_test(the_last_holder_ends_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
