/* SPDX-License-Identifier: Apache-2.0 */
/* Who is on the other end is not trusted: a client that breaks the protocol, is
 * another user or another release is left, and harms nobody. */
#define STATE struct shm_fixture *fixture

#include "core/net/shm/shm_connection.h"

#include "core/base/time.h"
#include "core/net/shm/shm_connection_internal.h"
#include "tests/lib/shm_fixture.h"
#include "tests/lib/skip.h"
#include "tests/lib/test.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

enum { NOBODY = 65534 };

/* Sends what no lane of ours does. */
static void forge(struct shm_fixture *fixture, struct ring_payload payload) {
    ring_reserve(&fixture->called->writer, 0);
    ring_commit(&fixture->called->writer, "h", 1, &payload);
}

FIXTURE(shm_fixture_setup, shm_fixture_teardown);

TEST(a_payload_outside_the_segment_closes_the_connection) {
    static const struct ring_payload payloads[] = {
        {.shm_segment = 1, .bytes = 8},
        {.shm_segment = UINT32_MAX, .bytes = 8},
        {.offset = 4096, .bytes = 8},
        {.offset = 4089, .bytes = 8},
        {.offset = UINT64_MAX - 3, .bytes = 8},
        {.offset = 0, .bytes = 4097},
    };
    for (size_t i = 0; i < sizeof payloads / sizeof *payloads; i++) {
        shm_fixture_connect(fixture);
        struct shm_segment *segment =
            shm_segment_open(4096, SHM_SEGMENT_OWNER_WRITES);
        assert_true(shm_connection_share(fixture->called, segment, 0));
        forge(fixture, (struct ring_payload){.offset = 4088, .bytes = 8});
        forge(fixture, payloads[i]);
        shm_segment_release(&segment);
        struct shm_connection_view view;
        assert_true(shm_connection_view(fixture->served, &view));
        shm_connection_release(fixture->served);
        shm_fixture_expect_dropped(fixture,
                                   "outside the memory that it has shared");
        shm_connection_fail(fixture->called, "done");
        shm_fixture_run_once(fixture->client);
        shm_endpoint_error(fixture->client);
    }
}

TEST(a_frame_too_long_closes_the_connection) {
    shm_fixture_connect(fixture);
    assert_false(shm_connection_send(
        fixture->called, "h", 1,
        &(struct shm_connection_payload){"", SHM_FIXTURE_FRAME + 1, NULL}));
    forge(fixture, (struct ring_payload){.bytes = SHM_FIXTURE_FRAME + 1});
    shm_fixture_expect_dropped(fixture, "a frame that is too long");
}

/* Such parts could follow each other for ever. */
TEST(an_empty_part_closes_the_connection) {
    shm_fixture_connect(fixture);
    forge(fixture, (struct ring_payload){.inside = true, .more = true});
    shm_fixture_expect_dropped(fixture, "an invalid ring");
}

TEST(a_ring_full_of_garbage_closes_the_connection) {
    shm_fixture_connect(fixture);
    memset(fixture->called->writer.bytes, 0xa5, 256);
    atomic_store(&fixture->called->writer.shared->head, 256);
    shm_fixture_expect_dropped(fixture, "an invalid ring");
}

/* A raw connection to the server's name. */
static int connect_bad_peer(struct shm_fixture *fixture) {
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

TEST(a_bad_peer_on_the_socket_is_dropped) {
    static const char web[] = "GET / HTTP/1.1\r\n\r\n";
    static const uint32_t other[] = {0x6c614373, 99, 1, 0, 0, 0, 0, 0};
    static const uint32_t odd[] = {0x6c614373, 2, 7, 0, 0, 0, 0, 0};
    static const uint32_t early[] = {0x6c614373, 2, 3, 0, 0, 0, 0, 0};
    const struct {
        const void *bytes;
        size_t size;
        int passed;
        const char *text;
    } cases[] = {
        {web, sizeof web - 1, -1, "another protocol"},
        {other, sizeof other, -1, "another release"},
        {odd, sizeof odd, -1, "an unexpected packet"},
        {early, sizeof early, 2, "an unexpected packet"},
        {web, sizeof web - 1, 2, "another protocol"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int descriptor = connect_bad_peer(fixture);
        shm_fixture_await_client(fixture);
        say(descriptor, cases[i].bytes, cases[i].size, cases[i].passed);
        shm_fixture_expect_dropped(fixture, cases[i].text);
        close(descriptor);
    }
}

/* A hello with the right words and DESCRIPTOR as its memory. */
static void handshake(struct shm_fixture *fixture, int shm_segment,
                      const char *text) {
    uint64_t capacity = ring_capacity(SHM_FIXTURE_FRAME),
             bytes = 4096 + 2 * capacity;
    uint32_t hello[8] = {0x6c614373, 2, 1, 0};
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
    memcpy(CMSG_DATA(rights), &shm_segment, sizeof shm_segment);
    int descriptor = connect_bad_peer(fixture);
    shm_fixture_await_client(fixture);
    assert_int_equal(sendmsg(descriptor, &message, 0), sizeof hello);
    shm_fixture_expect_dropped(fixture, text);
    close(descriptor);
}

TEST(memory_that_could_shrink_is_not_mapped) {
    uint64_t bytes = 4096 + 2 * ring_capacity(SHM_FIXTURE_FRAME);
    int shm_segment = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_int_equal(ftruncate(shm_segment, (off_t)bytes), 0);
    handshake(fixture, shm_segment, "not sealed");
    fcntl(shm_segment, F_ADD_SEALS, F_SEAL_GROW);
    handshake(fixture, shm_segment, "not sealed");
    close(shm_segment);
    shm_segment = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_int_equal(ftruncate(shm_segment, (off_t)bytes - 4096), 0);
    fcntl(shm_segment, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK);
    handshake(fixture, shm_segment, "not sealed");
    close(shm_segment);
}

TEST(a_silent_peer_is_dropped_after_a_second) {
    int descriptor = connect_bad_peer(fixture);
    int64_t start = time_now();
    shm_fixture_await_client(fixture);
    shm_fixture_expect_dropped(fixture, "no answer within 1 s");
    assert_true(time_now() - start > TIME_S);
    close(descriptor);
}

TEST(a_peer_of_another_user_is_refused) {
    if (geteuid())
        skip_test("only root can become another user");
    int descriptor = -1, status;
    pid_t child = fork();
    if (!child) {
        if (setresuid(NOBODY, NOBODY, NOBODY))
            _exit(2);
        descriptor = connect_bad_peer(fixture);
        char byte;
        _exit(recv(descriptor, &byte, 1, 0) == 0 ? 0 : 1);
    }
    while (!waitpid(child, &status, WNOHANG)) {
        shm_fixture_run_once(fixture->server);
        assert_null(shm_fixture_accepted(fixture));
    }
    assert_int_equal(status, 0);
}
