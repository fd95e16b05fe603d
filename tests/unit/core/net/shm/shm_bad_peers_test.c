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
    static const uint32_t odd[] = {0x6c614373, 3, 7, 0, 0, 0, 0, 0};
    static const uint32_t early[] = {0x6c614373, 3, 3, 0, 0, 0, 0, 0};
    static const uint32_t proved[] = {0x6c614373, 3, 4, 0, 0, 0, 0, 0};
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
        {proved, sizeof proved, -1, "an unexpected packet"},
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
    uint32_t hello[8] = {0x6c614373, 3, 1, 0};
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

/* Of all users of the host: however many call, who is connected goes on. */
TEST(a_turn_of_the_server_takes_no_more_callers_than_it_has_events) {
    enum { CALLERS = 100, A_TURN = 64 };
    int callers[CALLERS];
    for (int i = 0; i < CALLERS; i++)
        callers[i] = connect_bad_peer(fixture);
    shm_fixture_run_once(fixture->server);
    assert_int_equal(shm_endpoint_count(fixture->server), A_TURN);
    shm_fixture_run_once(fixture->server);
    assert_int_equal(shm_endpoint_count(fixture->server), CALLERS);
    for (int i = 0; i < CALLERS; i++)
        close(callers[i]);
}

/* A name is free once its server has ended, and every user sees it. */
TEST(a_server_of_another_user_is_left) {
    if (geteuid())
        skip_test("only root can become another user");
    int listens[2], status;
    char byte = 0, text[128];
    assert_int_equal(pipe(listens), 0);
    shm_endpoint_close(&fixture->server);
    pid_t child = fork();
    if (!child) {
        if (setresuid(NOBODY, NOBODY, NOBODY))
            _exit(2);
        int listener = shm_connection_listen(fixture->name);
        if (listener < 0 || write(listens[1], &byte, 1) != 1)
            _exit(3);
        int caller = -1;
        while (caller < 0)
            caller = accept(listener, NULL, NULL);
        _exit(recv(caller, &byte, 1, 0) == 0 ? 0 : 1);
    }
    close(listens[1]);
    assert_int_equal(read(listens[0], &byte, 1), 1);
    close(listens[0]);
    assert_int_equal(
        shm_endpoint_connect(fixture->client, fixture->name, text, sizeof text),
        0);
    assert_contains(text, "another user");
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

/* Both sides anew, each with its KEY (NULL: none) and name; the client expects
 * PEER. */
static void open_with_keys(struct shm_fixture *fixture,
                           const unsigned char *server,
                           const unsigned char *client, const char *peer) {
    struct shm_connection_settings settings = {
        .max_frame = SHM_FIXTURE_FRAME, .key = server, .self = "ps:0"};
    shm_endpoint_close(&fixture->client);
    shm_endpoint_close(&fixture->server);
    shm_endpoint_name(fixture->name, (uint64_t)time_now());
    fixture->server = shm_endpoint_open(&settings);
    assert_true(shm_endpoint_listen(fixture->server, fixture->name));
    settings.key = client;
    snprintf(settings.self, sizeof settings.self, "worker:3");
    snprintf(settings.peer, sizeof settings.peer, "%s", peer);
    fixture->client = shm_endpoint_open(&settings);
}

static const unsigned char key[PROOF_KEY_BYTES] = {1, 2, 3},
                           other_key[PROOF_KEY_BYTES] = {1, 2, 4};

TEST(a_peer_with_the_key_is_known_by_name) {
    open_with_keys(fixture, key, key, "ps:0");
    shm_fixture_connect(fixture);
    assert_string_equal(shm_connection_peer(fixture->served), "worker:3");
    assert_string_equal(shm_connection_peer(fixture->called), "ps:0");
}

/* Turns both until the client has left the server, and returns why. */
static const char *await_refusal(struct shm_fixture *fixture) {
    char text[128];
    const char *error = NULL;
    int64_t deadline = time_now() + SHM_FIXTURE_DEADLINE;
    assert_int_not_equal(
        shm_endpoint_connect(fixture->client, fixture->name, text, sizeof text),
        0);
    while (!(error = shm_endpoint_error(fixture->client))) {
        struct shm_endpoint_message message;
        assert_true(time_now() < deadline);
        shm_fixture_run_once(fixture->server);
        shm_fixture_run_once(fixture->client);
        assert_false(shm_endpoint_view(fixture->server, &message));
    }
    return error;
}

TEST(a_server_without_the_key_or_of_another_name_is_left) {
    static const struct {
        const unsigned char *server, *client;
        const char *peer;
    } cases[] = {
        {other_key, key, "ps:0"}, {NULL, key, "ps:0"}, {key, key, "ps:1"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        open_with_keys(fixture, cases[i].server, cases[i].client,
                       cases[i].peer);
        assert_contains(await_refusal(fixture), "the run's secret");
    }
}

/* The client does not look at the server's proof, has none, and a message in
 * the ring beforehand. */
TEST(a_client_without_the_key_is_dropped_unread) {
    static const uint32_t proved[8] = {0x6c614373, 3, 4};
    struct shm_connection_view view;
    char text[128];
    open_with_keys(fixture, key, other_key, "ps:0");
    fixture->client_number =
        shm_endpoint_connect(fixture->client, fixture->name, text, sizeof text);
    fixture->called =
        shm_endpoint_find(fixture->client, fixture->client_number);
    forge(fixture, (struct ring_payload){.bytes = 0, .inside = true});
    int64_t deadline = time_now() + SHM_FIXTURE_DEADLINE;
    do {
        assert_true(time_now() < deadline);
        shm_fixture_run_once(fixture->server);
        fixture->served = shm_fixture_accepted(fixture);
    } while (!fixture->served || shm_connection_wakeup(fixture->served) < 0);
    assert_false(shm_connection_view(fixture->served, &view));
    say(shm_connection_socket(fixture->called), proved, sizeof proved, -1);
    assert_false(shm_connection_view(fixture->served, &view));
    shm_fixture_expect_dropped(fixture, "the run's secret");
}
