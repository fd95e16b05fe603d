/* SPDX-License-Identifier: Apache-2.0 */
#include "core/net/shm/shm_segment.h"
#include "tests/lib/skip.h"
#include "tests/lib/test.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

enum { BYTES = 1 << 16 };

TEST(both_sides_see_the_same_bytes) {
    struct shm_segment *mine = shm_segment_open(BYTES, SHM_SEGMENT_BOTH_WRITE);
    struct shm_segment *theirs = shm_segment_map(
        dup(shm_segment_descriptor(mine)), BYTES, SHM_SEGMENT_BOTH_WRITE);
    char *here = shm_segment_base(mine), *there = shm_segment_base(theirs);
    assert_ptr_not_equal(here, there);
    assert_int_equal(there[BYTES - 1], 0);
    here[5] = 1;
    there[6] = 2;
    assert_int_equal(there[5], 1);
    assert_int_equal(here[6], 2);
    assert_int_equal(shm_segment_bytes(theirs), BYTES);
    assert_int_equal(shm_segment_descriptor(theirs), -1);
    shm_segment_release(&mine);
    assert_null(mine);
    assert_int_equal(there[6], 2);
    shm_segment_release(&theirs);
    shm_segment_release(&theirs);
}

TEST(only_the_creator_can_write) {
    struct shm_segment *mine =
        shm_segment_open(BYTES, SHM_SEGMENT_OWNER_WRITES);
    int descriptor = shm_segment_descriptor(mine);
    assert_ptr_equal(
        mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0),
        MAP_FAILED);
    assert_int_equal(pwrite(descriptor, "x", 1, 0), -1);
    assert_int_equal(ftruncate(descriptor, 0), -1);
    assert_int_equal(fcntl(descriptor, F_ADD_SEALS, F_SEAL_WRITE), -1);
    struct shm_segment *theirs =
        shm_segment_map(dup(descriptor), BYTES, SHM_SEGMENT_OWNER_WRITES);
    *(char *)shm_segment_base(mine) = 3;
    assert_int_equal(*(char *)shm_segment_base(theirs), 3);
    shm_segment_release(&theirs);
    assert_null(
        shm_segment_map(dup(descriptor), BYTES, SHM_SEGMENT_BOTH_WRITE));
    shm_segment_release(&mine);
}

static int unsealed(size_t bytes, unsigned flags) {
    int descriptor = memfd_create("test", MFD_CLOEXEC | flags);
    if (descriptor >= 0)
        assert_int_equal(ftruncate(descriptor, (off_t)bytes), 0);
    return descriptor;
}

static void refused(int descriptor, size_t bytes) {
    assert_true(descriptor >= 0);
    assert_null(shm_segment_map(descriptor, bytes, SHM_SEGMENT_BOTH_WRITE));
    assert_int_equal(errno, EPERM);
    assert_int_equal(fcntl(descriptor, F_GETFD), -1); /* closed */
}

TEST(a_segment_that_could_fault_its_reader_is_refused) {
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
TEST(huge_pages_are_refused) {
    int descriptor = unsealed(1 << 21, MFD_ALLOW_SEALING | MFD_HUGETLB);
    if (descriptor < 0)
        skip_test("this machine gives no huge pages");
    fcntl(descriptor, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW);
    refused(descriptor, 1 << 21);
}

TEST(a_segment_of_another_size_is_refused) {
    struct shm_segment *mine = shm_segment_open(BYTES, SHM_SEGMENT_BOTH_WRITE);
    refused(dup(shm_segment_descriptor(mine)), BYTES + 1);
    refused(dup(shm_segment_descriptor(mine)), BYTES - 1);
    refused(dup(shm_segment_descriptor(mine)), SIZE_MAX);
    shm_segment_release(&mine);
}

TEST(the_last_holder_unmaps_it) {
    struct shm_segment *segment =
        shm_segment_open(BYTES, SHM_SEGMENT_BOTH_WRITE);
    struct shm_segment *second = shm_segment_hold(segment);
    int descriptor = shm_segment_descriptor(segment);
    shm_segment_release(&segment);
    *(char *)shm_segment_base(second) = 1;
    assert_int_not_equal(fcntl(descriptor, F_GETFD), -1);
    shm_segment_release(&second);
    assert_int_equal(fcntl(descriptor, F_GETFD), -1);
}
