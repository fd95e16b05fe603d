/* SPDX-License-Identifier: Apache-2.0 */
/* Who is on the other end is not trusted: a client that breaks the protocol, is
 * another user or another release is left, and harms nobody. */
#include "proto/net/shm/lane.h"

#include "proto/base/time.h"
#include "proto/net/shm/lane_parts.h"
#include "tests/lib/lane_fixture.h"
#include "tests/lib/skip.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

enum { NOBODY = 65534 };

/* Sends what no lane of ours does. */
static void forge(struct lane_fixture *fixture, struct ring_payload payload) {
    ring_reserve(&fixture->called->writer, 0);
    ring_commit(&fixture->called->writer, "h", 1, &payload);
}

static void a_payload_outside_of_what_was_shown_is_the_end(void **state) {
    struct lane_fixture *fixture = *state;
    static const struct ring_payload payloads[] = {
        {.memory = 1, .bytes = 8},
        {.memory = UINT32_MAX, .bytes = 8},
        {.offset = 4096, .bytes = 8},
        {.offset = 4089, .bytes = 8},
        {.offset = UINT64_MAX - 3, .bytes = 8},
        {.offset = 0, .bytes = 4097},
    };
    for (size_t i = 0; i < sizeof payloads / sizeof *payloads; i++) {
        lane_fixture_meet(fixture);
        struct memory *memory = memory_open(4096, MEMORY_MAKER_WRITES);
        assert_true(lane_show(fixture->called, memory, 0));
        forge(fixture, (struct ring_payload){.offset = 4088, .bytes = 8});
        forge(fixture, payloads[i]);
        memory_release(&memory);
        struct lane_view view;
        assert_true(lane_view(fixture->served, &view));
        lane_done(fixture->served);
        lane_fixture_left(fixture, "in no memory it has shown");
        lane_break(fixture->called, "done");
        lane_fixture_turn(fixture->client);
        lanes_trouble(fixture->client);
    }
}

static void a_frame_too_long_is_the_end(void **state) {
    struct lane_fixture *fixture = *state;
    lane_fixture_meet(fixture);
    assert_false(
        lane_send(fixture->called, "h", 1,
                  &(struct lane_payload){"", LANE_FIXTURE_FRAME + 1, NULL}));
    forge(fixture, (struct ring_payload){.bytes = LANE_FIXTURE_FRAME + 1});
    lane_fixture_left(fixture, "a frame too long");
}

static void a_ring_full_of_garbage_is_the_end(void **state) {
    struct lane_fixture *fixture = *state;
    lane_fixture_meet(fixture);
    memset(fixture->called->writer.bytes, 0xa5, 256);
    atomic_store(&fixture->called->writer.shared->head, 256);
    lane_fixture_left(fixture, "a ring that is not as its writer leaves it");
}

/* A raw connection to the server's name. */
static int stranger(struct lane_fixture *fixture) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t size = strlen(fixture->name);
    int descriptor = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    memcpy(address.sun_path + 1, fixture->name, size);
    assert_int_equal(
        connect(descriptor, (struct sockaddr *)&address,
                (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + size)),
        0);
    return descriptor;
}

static void say(int descriptor, const void *bytes, size_t size, int passed) {
    char space[CMSG_SPACE(3 * sizeof(int))] = {0};
    struct iovec part = {(void *)bytes, size};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (passed >= 0) {
        message.msg_control = space;
        message.msg_controllen = sizeof space;
        struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
        rights->cmsg_level = SOL_SOCKET;
        rights->cmsg_type = SCM_RIGHTS;
        rights->cmsg_len = CMSG_LEN(3 * sizeof(int));
        for (int i = 0; i < 3; i++)
            memcpy(CMSG_DATA(rights) + (size_t)i * sizeof passed, &passed,
                   sizeof passed);
    }
    assert_int_equal(sendmsg(descriptor, &message, 0), size);
}

static void a_stranger_on_the_socket_is_left(void **state) {
    struct lane_fixture *fixture = *state;
    static const char web[] = "GET / HTTP/1.1\r\n\r\n";
    static const uint32_t other[] = {0x6c614373, 99, 1, 0, 0, 0, 0, 0};
    static const uint32_t odd[] = {0x6c614373, 1, 7, 0, 0, 0, 0, 0};
    static const uint32_t early[] = {0x6c614373, 1, 3, 0, 0, 0, 0, 0};
    const struct {
        const void *bytes;
        size_t size;
        int passed;
        const char *text;
    } cases[] = {
        {web, sizeof web - 1, -1, "another protocol"},
        {other, sizeof other, -1, "another release"},
        {odd, sizeof odd, -1, "no place here"},
        {early, sizeof early, 2, "no place here"},
        {web, sizeof web - 1, 2, "another protocol"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int descriptor = stranger(fixture);
        lane_fixture_await(fixture);
        say(descriptor, cases[i].bytes, cases[i].size, cases[i].passed);
        lane_fixture_left(fixture, cases[i].text);
        close(descriptor);
    }
}

/* A hello with the right words and DESCRIPTOR as its memory. */
static void greet(struct lane_fixture *fixture, int memory, const char *text) {
    uint64_t capacity = ring_capacity(LANE_FIXTURE_FRAME),
             bytes = 4096 + 2 * capacity;
    uint32_t hello[8] = {0x6c614373, 1, 1, 0};
    memcpy(hello + 4, &bytes, sizeof bytes);
    memcpy(hello + 6, &capacity, sizeof capacity);
    struct iovec part = {hello, sizeof hello};
    char space[CMSG_SPACE(sizeof(int))] = {0};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = space,
                             .msg_controllen = sizeof space};
    struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(rights), &memory, sizeof memory);
    int descriptor = stranger(fixture);
    lane_fixture_await(fixture);
    assert_int_equal(sendmsg(descriptor, &message, 0), sizeof hello);
    lane_fixture_left(fixture, text);
    close(descriptor);
}

static void memory_that_could_shrink_is_not_mapped(void **state) {
    struct lane_fixture *fixture = *state;
    uint64_t bytes = 4096 + 2 * ring_capacity(LANE_FIXTURE_FRAME);
    int memory = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_int_equal(ftruncate(memory, (off_t)bytes), 0);
    greet(fixture, memory, "not sealed");
    fcntl(memory, F_ADD_SEALS, F_SEAL_GROW);
    greet(fixture, memory, "not sealed");
    close(memory);
    memory = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_int_equal(ftruncate(memory, (off_t)bytes - 4096), 0);
    fcntl(memory, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK);
    greet(fixture, memory, "not sealed");
    close(memory);
}

static void who_says_nothing_is_left_after_a_second(void **state) {
    struct lane_fixture *fixture = *state;
    int descriptor = stranger(fixture);
    int64_t start = time_now();
    lane_fixture_await(fixture);
    lane_fixture_left(fixture, "no answer within 1 s");
    assert_true(time_now() - start > TIME_S);
    close(descriptor);
}

static void another_user_is_not_taken(void **state) {
    struct lane_fixture *fixture = *state;
    if (geteuid())
        skip_test("only root can become another user");
    int descriptor = -1, status;
    pid_t child = fork();
    if (!child) {
        if (setresuid(NOBODY, NOBODY, NOBODY))
            _exit(2);
        descriptor = stranger(fixture);
        char byte;
        _exit(recv(descriptor, &byte, 1, 0) == 0 ? 0 : 1);
    }
    while (!waitpid(child, &status, WNOHANG)) {
        lane_fixture_turn(fixture->server);
        assert_null(lane_fixture_served(fixture));
    }
    assert_int_equal(status, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        LANE_FIXTURE_TEST(a_payload_outside_of_what_was_shown_is_the_end),
        LANE_FIXTURE_TEST(a_frame_too_long_is_the_end),
        LANE_FIXTURE_TEST(a_ring_full_of_garbage_is_the_end),
        LANE_FIXTURE_TEST(a_stranger_on_the_socket_is_left),
        LANE_FIXTURE_TEST(memory_that_could_shrink_is_not_mapped),
        LANE_FIXTURE_TEST(who_says_nothing_is_left_after_a_second),
        LANE_FIXTURE_TEST(another_user_is_not_taken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
