/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/collective/siblings.h"

#include "proto/base/time.h"
#include "tests/gpu/fake_nccl.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>

enum { MEMBERS = 3, FLOATS = 1000, CALLS = 20, BYTES = FLOATS * sizeof(float) };

/* A member on its thread: joins, adds up CALLS times, leaves. */
struct member {
    struct siblings *siblings;
    uint32_t index, calls;
    float *data;
    pthread_t thread;
    atomic_bool joined;
    enum status status;
    struct failure why;
};

/* Memory as a device's, which only the collective touches. */
static float *device_memory(void) {
    void *memory =
        mmap(NULL, BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(memory, MAP_FAILED);
    return memory;
}

static void fill(struct member *member, uint32_t call) {
    assert_int_equal(mprotect(member->data, BYTES, PROT_READ | PROT_WRITE), 0);
    for (uint32_t i = 0; i < FLOATS; i++)
        member->data[i] =
            (float)(call + 1) / (float)(3 * i + 7 * member->index + 1);
    assert_int_equal(mprotect(member->data, BYTES, PROT_NONE), 0);
}

static void *take_part(void *argument) {
    struct member *member = argument;
    struct siblings *siblings = member->siblings;
    member->status =
        siblings_join(siblings, member->index, member->index, &member->why);
    atomic_store(&member->joined, true);
    for (uint32_t c = 0; !member->status && c < member->calls; c++) {
        fill(member, c);
        member->status = siblings_sum(siblings, member->index, member->data,
                                      FLOATS, &member->why);
    }
    siblings_leave(siblings, member->index);
    return NULL;
}

static void start(struct member *member, struct siblings *siblings,
                  uint32_t index, uint32_t calls) {
    *member = (struct member){.siblings = siblings,
                              .index = index,
                              .calls = calls,
                              .data = device_memory()};
    assert_int_equal(pthread_create(&member->thread, NULL, take_part, member),
                     0);
}

static void finish(struct member *member) {
    pthread_join(member->thread, NULL);
}

static struct siblings *open_siblings(double timeout) {
    struct siblings *siblings;
    struct failure why;
    if (siblings_open(&siblings, fake_nccl_ops(), MEMBERS, timeout, &why))
        fail_msg("%s", why.text);
    return siblings;
}

static void all_have_the_sum_of_all(void **state) {
    struct siblings *siblings = open_siblings(60);
    struct member members[MEMBERS];
    (void)state;
    for (uint32_t m = 0; m < MEMBERS; m++)
        start(&members[m], siblings, m, CALLS);
    for (uint32_t m = 0; m < MEMBERS; m++) {
        finish(&members[m]);
        if (members[m].status)
            fail_msg("%s", members[m].why.text);
        assert_int_equal(mprotect(members[m].data, BYTES, PROT_READ), 0);
    }
    for (uint32_t i = 0; i < FLOATS; i++) {
        float sum = 0;
        for (uint32_t m = 0; m < MEMBERS; m++)
            sum += (float)CALLS / (float)(3 * i + 7 * m + 1);
        for (uint32_t m = 0; m < MEMBERS; m++)
            assert_true(members[m].data[i] == sum);
    }
    for (uint32_t m = 0; m < MEMBERS; m++)
        munmap(members[m].data, BYTES);
    siblings_close(&siblings);
    assert_null(siblings);
}

static void who_does_not_come_is_told_in_time(void **state) {
    struct siblings *siblings = open_siblings(0.1);
    struct member late;
    (void)state;
    start(&late, siblings, 1, 1);
    finish(&late);
    assert_int_equal(late.status, STATUS_RETRY);
    assert_string_equal(late.why.text, "another device of this trainer did not "
                                       "come within 0.1 s");
    munmap(late.data, BYTES);
    siblings_close(&siblings);
}

static void await_joined(struct member *member) {
    int64_t deadline = time_now() + 60 * TIME_S;
    while (!atomic_load(&member->joined))
        assert_true(time_now() < deadline);
}

/* One of three never adds anything. */
static void an_abort_ends_what_is_under_way(void **state) {
    struct siblings *siblings = open_siblings(1000);
    struct member members[MEMBERS];
    (void)state;
    for (uint32_t m = 0; m < MEMBERS; m++)
        start(&members[m], siblings, m, m ? 1 : 0);
    for (uint32_t m = 0; m < MEMBERS; m++)
        await_joined(&members[m]);
    siblings_abort(siblings);
    for (uint32_t m = 0; m < MEMBERS; m++) {
        finish(&members[m]);
        assert_int_equal(members[m].status, m ? STATUS_RETRY : STATUS_OK);
        munmap(members[m].data, BYTES);
    }
    siblings_close(&siblings);
}

static void an_abort_ends_a_meeting(void **state) {
    struct siblings *siblings = open_siblings(1000);
    struct member lonely;
    (void)state;
    start(&lonely, siblings, 1, 1);
    siblings_abort(siblings);
    finish(&lonely);
    assert_int_equal(lonely.status, STATUS_RETRY);
    assert_string_equal(lonely.why.text,
                        "another device of this trainer has failed");
    munmap(lonely.data, BYTES);
    siblings_close(&siblings);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_have_the_sum_of_all),
        cmocka_unit_test(who_does_not_come_is_told_in_time),
        cmocka_unit_test(an_abort_ends_what_is_under_way),
        cmocka_unit_test(an_abort_ends_a_meeting),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
