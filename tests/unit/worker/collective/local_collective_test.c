/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/collective/local_collective.h"

#include "core/base/time.h"
#include "tests/lib/collective_fixture.h"
#include "tests/lib/test.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>

enum { MEMBERS = 3, FLOATS = 1000, CALLS = 20, BYTES = FLOATS * sizeof(float) };

/* A member on its thread: joins, adds up CALLS times, leaves. */
struct member {
    struct local_collective *local_collective;
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

static void *run_member(void *argument) {
    struct member *member = argument;
    struct local_collective *collective = member->local_collective;
    member->status = local_collective_join(collective, member->index,
                                           member->index, &member->why);
    atomic_store(&member->joined, true);
    for (uint32_t c = 0; !member->status && c < member->calls; c++) {
        fill(member, c);
        member->status = local_collective_all_reduce(
            collective, member->index, member->data, FLOATS, &member->why);
    }
    local_collective_leave(collective, member->index);
    return NULL;
}

static void start(struct member *member, struct local_collective *collective,
                  uint32_t index, uint32_t calls) {
    *member = (struct member){.local_collective = collective,
                              .index = index,
                              .calls = calls,
                              .data = device_memory()};
    assert_int_equal(pthread_create(&member->thread, NULL, run_member, member),
                     0);
}

static void finish(struct member *member) {
    pthread_join(member->thread, NULL);
}

static struct local_collective *open_siblings(double timeout) {
    struct local_collective *collective;
    assert_ok(local_collective_open(&collective, &collective_fixture_device_ops,
                                    MEMBERS, timeout, &failure));
    return collective;
}

TEST(every_replica_gets_the_sum_of_all) {
    struct local_collective *collective = open_siblings(60);
    struct member members[MEMBERS];
    for (uint32_t m = 0; m < MEMBERS; m++)
        start(&members[m], collective, m, CALLS);
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
    local_collective_close(&collective);
    assert_null(collective);
}

TEST(a_missing_replica_is_reported_in_time) {
    struct local_collective *collective = open_siblings(0.1);
    struct member late;
    start(&late, collective, 1, 1);
    finish(&late);
    assert_fails(late.status, &late.why, FAILURE_DEVICE_TIMEOUT);
    assert_string_equal(late.why.text, "another device of this trainer did not "
                                       "answer within 0.1 s");
    munmap(late.data, BYTES);
    local_collective_close(&collective);
}

static void await_joined(struct member *member) {
    int64_t deadline = time_now() + 60 * TIME_S;
    while (!atomic_load(&member->joined))
        assert_true(time_now() < deadline);
}

/* One of three never adds anything. */
TEST(an_abort_ends_the_current_call) {
    struct local_collective *collective = open_siblings(1000);
    struct member members[MEMBERS];
    for (uint32_t m = 0; m < MEMBERS; m++)
        start(&members[m], collective, m, m ? 1 : 0);
    for (uint32_t m = 0; m < MEMBERS; m++)
        await_joined(&members[m]);
    local_collective_abort(collective);
    for (uint32_t m = 0; m < MEMBERS; m++) {
        finish(&members[m]);
        assert_int_equal(members[m].status, m ? STATUS_RETRY : STATUS_OK);
        munmap(members[m].data, BYTES);
    }
    local_collective_close(&collective);
}

TEST(an_abort_ends_a_rendezvous) {
    struct local_collective *collective = open_siblings(1000);
    struct member lonely;
    start(&lonely, collective, 1, 1);
    local_collective_abort(collective);
    finish(&lonely);
    assert_fails(lonely.status, &lonely.why, FAILURE_CANCELLED);
    munmap(lonely.data, BYTES);
    local_collective_close(&collective);
}
