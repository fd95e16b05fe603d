/* SPDX-License-Identifier: Apache-2.0 */
#define STATE struct fixture *fixture

#include "worker/collective/gloo_shm.h"

#include "core/base/time.h"
#include "core/net/shm/shm_connection_internal.h"
#include "tests/lib/seed.h"
#include "tests/lib/skip.h"
#include "tests/lib/test.h"

#include <dirent.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAXIMUM = 3 * GLOO_SHM_CHUNK + 5 };
static const struct gloo_shm_ends here = {NULL, 0, 1}, there = {NULL, 1, 0};

/* Both ends of a line that is open. */
struct fixture {
    struct gloo_shm *here, *there;
    char name[GLOO_SHM_NAME];
    int listener;
    unsigned descriptors; /* open before */
};

static unsigned count_descriptors(void) {
    DIR *folder = opendir("/proc/self/fd");
    unsigned count = 0;
    while (readdir(folder))
        count++;
    closedir(folder);
    return count;
}

static int setup(void **state) {
    struct fixture *fixture = calloc(1, sizeof *fixture);
    char text[128] = "";
    fixture->descriptors = count_descriptors();
    fixture->listener = gloo_shm_listen(fixture->name, text, sizeof text);
    if (fixture->listener < 0)
        fail_msg("%s", text);
    *state = fixture;
    return 0;
}

TEARDOWN(teardown) {
    gloo_shm_close(&fixture->here);
    gloo_shm_close(&fixture->there);
    close(fixture->listener);
    assert_int_equal(count_descriptors(), fixture->descriptors);
    free(fixture);
}

FIXTURE(setup, teardown);

static void connect_pair(struct fixture *fixture) {
    char text[128] = "";
    fixture->there = gloo_shm_connect(fixture->name, &there, text, sizeof text);
    if (!fixture->there)
        fail_msg("%s", text);
    assert_string_equal(text, "");
    fixture->here =
        gloo_shm_accept(fixture->listener, &here, text, sizeof text);
    if (!fixture->here || !gloo_shm_open(fixture->there, text, sizeof text) ||
        !gloo_shm_open(fixture->here, text, sizeof text))
        fail_msg("%s", text);
}

/* SIZE bytes that follow from FIRST. */
static void fill(unsigned char *bytes, size_t size, unsigned first) {
    for (size_t i = 0; i < size; i++)
        bytes[i] = (unsigned char)(first + i % 251);
}

static void send_bytes(struct gloo_shm *connection, size_t size,
                       unsigned first) {
    static unsigned char bytes[MAXIMUM];
    fill(bytes, size, first);
    assert_true(gloo_shm_send(connection, bytes, size));
}

static void expect_bytes(struct gloo_shm *connection, size_t size,
                         unsigned first) {
    static unsigned char expected[MAXIMUM];
    fill(expected, size, first);
    for (size_t at = 0; at < size; at += GLOO_SHM_CHUNK) {
        size_t left = size - at;
        size_t bytes = left < GLOO_SHM_CHUNK ? left : GLOO_SHM_CHUNK;
        const void *piece = gloo_shm_view(connection, bytes);
        if (!piece)
            fail_msg("%s", gloo_shm_error(connection));
        assert_memory_equal(piece, expected + at, bytes);
        gloo_shm_release(connection);
    }
}

TEST(a_message_may_arrive_in_pieces) {
    connect_pair(fixture);
    for (unsigned i = 0; i < 300; i++) {
        size_t size = i * UINT64_C(2654435761) % MAXIMUM + 1;
        send_bytes(fixture->here, size, i);
        send_bytes(fixture->there, MAXIMUM - size + 1, i + 1);
        expect_bytes(fixture->there, size, i);
        expect_bytes(fixture->here, MAXIMUM - size + 1, i + 1);
    }
}

/* One thread: nobody would read meanwhile. */
TEST(a_bounded_amount_can_be_sent_before_a_read) {
    struct philox_sequence chance;
    seed_open(&chance);
    connect_pair(fixture);
    for (unsigned i = 0; i < 500; i++) {
        size_t before = philox_next(&chance) % MAXIMUM + 1;
        send_bytes(fixture->here, before, i);
        expect_bytes(fixture->there, before, i);
        for (unsigned piece = 0; piece < 4; piece++)
            send_bytes(fixture->here, GLOO_SHM_CHUNK, piece);
        for (unsigned piece = 0; piece < 4; piece++)
            expect_bytes(fixture->there, GLOO_SHM_CHUNK, piece);
    }
}

static void *read_all(void *context) {
    struct gloo_shm *connection = context;
    for (unsigned i = 0; i < 2000; i++) {
        send_bytes(connection, 5, i);
        expect_bytes(connection, MAXIMUM, i);
    }
    return NULL;
}

TEST(a_sender_waits_for_a_slow_reader) {
    static unsigned char bytes[MAXIMUM];
    pthread_t reader;
    connect_pair(fixture);
    assert_int_equal(pthread_create(&reader, NULL, read_all, fixture->there),
                     0);
    for (unsigned i = 0; i < 2000; i++) {
        fill(bytes, MAXIMUM, i);
        assert_true(gloo_shm_send(fixture->here, bytes, MAXIMUM));
        assert_non_null(gloo_shm_view(fixture->here, 5));
        gloo_shm_release(fixture->here);
    }
    pthread_join(reader, NULL);
}

static void *cut(void *context) {
    gloo_shm_shutdown(context);
    return NULL;
}

/* Sends until there is no room, or waits for what never comes. */
static void wait_until_closed(struct gloo_shm *connection, bool sends) {
    static const char bytes[GLOO_SHM_CHUNK];
    if (!sends)
        assert_null(gloo_shm_view(connection, 1));
    while (sends && gloo_shm_send(connection, bytes, sizeof bytes))
        ;
}

/* At any moment of the wait. */
TEST(a_shutdown_ends_waits_on_both_sides) {
    for (int i = 0; i < 200; i++) {
        bool sends = i & 1, own = i & 2;
        pthread_t cutter;
        connect_pair(fixture);
        int64_t begun = time_now();
        assert_int_equal(pthread_create(&cutter, NULL, cut,
                                        own ? fixture->here : fixture->there),
                         0);
        wait_until_closed(fixture->here, sends);
        pthread_join(cutter, NULL);
        assert_true(time_now() - begun < 20 * TIME_S);
        assert_contains(gloo_shm_error(fixture->here),
                        own ? "is cut off" : "has ended");
        gloo_shm_close(&fixture->here);
        gloo_shm_close(&fixture->there);
    }
}

TEST(a_shutdown_ends_calls_that_could_continue) {
    connect_pair(fixture);
    send_bytes(fixture->there, 7, 0);
    gloo_shm_shutdown(fixture->here);
    assert_null(gloo_shm_view(fixture->here, 7));
    assert_false(gloo_shm_send(fixture->here, "x", 1));
}

TEST(data_sent_before_the_close_still_arrives) {
    connect_pair(fixture);
    send_bytes(fixture->there, MAXIMUM, 9);
    gloo_shm_close(&fixture->there);
    expect_bytes(fixture->here, MAXIMUM, 9);
    assert_null(gloo_shm_view(fixture->here, 1));
}

/* Of a buffer that is changed when it has been sent. */
static void share_and_modify(struct fixture *fixture, struct buffer *buffer) {
    unsigned char *bytes = buffer_data(buffer);
    fill(bytes, MAXIMUM, 1);
    assert_true(gloo_shm_send_shared(fixture->here, bytes, MAXIMUM, buffer));
    fill(bytes, MAXIMUM, 2);
}

TEST(a_shared_buffer_is_read_in_place) {
    struct buffer *buffer = buffer_open_shared(MAXIMUM);
    connect_pair(fixture);
    for (int i = 0; i < 100; i++) {
        share_and_modify(fixture, buffer);
        expect_bytes(fixture->there, MAXIMUM, 2);
        send_bytes(fixture->here, MAXIMUM, 3);
        expect_bytes(fixture->there, MAXIMUM, 3);
    }
    buffer_release(&buffer);
}

TEST(an_unshareable_buffer_is_copied) {
    struct buffer *buffer = buffer_open(MAXIMUM, NULL, NULL);
    connect_pair(fixture);
    share_and_modify(fixture, buffer);
    expect_bytes(fixture->there, MAXIMUM, 1);
    buffer_release(&buffer);
}

TEST(connecting_without_a_listener_or_reply_fails) {
    char text[128] = "";
    assert_null(
        gloo_shm_connect("capstan-gloo-of-nobody", &there, text, sizeof text));
    assert_contains(text, "not on this host");
    assert_null(gloo_shm_accept(fixture->listener, &here, text, sizeof text));
    assert_string_equal(text, "it has not called");
    fixture->there = gloo_shm_connect(fixture->name, &there, text, sizeof text);
    assert_false(gloo_shm_open(fixture->there, text, sizeof text));
    assert_string_equal(text, "another process is at the other end");
}

/* The name is there for each user of the host to see. */
TEST(another_user_who_calls_first_keeps_no_rank_out) {
    enum { NOBODY = 65534 };
    char text[128] = "";
    int status;
    if (geteuid())
        skip_test("only root can become another user");
    pid_t child = fork();
    if (!child)
        _exit(setresuid(NOBODY, NOBODY, NOBODY) ||
              gloo_shm_connect(fixture->name, &there, text, sizeof text));
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    connect_pair(fixture);
    send_bytes(fixture->there, 100, 1);
}

TEST(two_pairs_have_two_names) {
    char name[GLOO_SHM_NAME], text[128];
    int listener = gloo_shm_listen(name, text, sizeof text);
    assert_true(listener >= 0);
    assert_string_not_equal(name, fixture->name);
    close(listener);
}

/* A peer that is no gloo_shm, and its name for what it does. */
static struct shm_connection *accept_bad_peer(struct fixture *fixture) {
    char text[128] = "";
    const struct shm_connection_settings settings = {
        .max_frame = GLOO_SHM_WINDOW, .self = "rank 1", .peer = "rank 0"};
    struct shm_connection *connection =
        shm_connection_connect(fixture->name, &settings, text, sizeof text);
    assert_non_null(connection);
    fixture->here =
        gloo_shm_accept(fixture->listener, &here, text, sizeof text);
    if (!fixture->here)
        fail_msg("%s", text);
    assert_int_equal(shm_connection_step(connection, time_now()),
                     SHM_CONNECTION_OPEN);
    assert_true(gloo_shm_open(fixture->here, text, sizeof text));
    return connection;
}

static void send_garbage(struct shm_connection *connection) {
    memset(connection->writer.bytes, 0x5a, 4096);
    atomic_store(&connection->writer.shared->head, 4096);
}

static void send_out_of_range(struct shm_connection *connection) {
    struct ring_payload far = {.offset = UINT64_C(1) << 60, .bytes = 8};
    ring_reserve(&connection->writer, 0);
    ring_commit(&connection->writer, "", 0, &far);
}

static void send_shared(struct shm_connection *connection) {
    struct shm_segment *segment =
        shm_segment_open(4096, SHM_SEGMENT_OWNER_WRITES);
    assert_true(shm_connection_share(connection, segment, 0));
    struct ring_payload shown = {.bytes = 9};
    ring_reserve(&connection->writer, 0);
    ring_commit(&connection->writer, "", 0, &shown);
    shm_segment_release(&segment);
}

static void send_more(struct shm_connection *connection) {
    struct shm_connection_payload payload = {"123456789", 9, NULL};
    assert_true(shm_connection_send(connection, "", 0, &payload));
}

static void release_too_much(struct shm_connection *connection) {
    atomic_store(&connection->reader.shared->tail, UINT64_MAX - 63);
    send_more(connection);
}

TEST(a_misbehaving_peer_is_reported_and_does_no_harm) {
    static const struct {
        void (*deed)(struct shm_connection *connection);
        const char *text;
    } deeds[] = {
        {send_garbage, "an invalid ring"},
        {send_out_of_range, "a payload outside the memory that it has shared"},
        {send_shared, "sends an unexpected message"},
        {send_more, "sends an unexpected message"},
        {release_too_much, "sends an unexpected message"},
    };
    for (size_t i = 0; i < sizeof deeds / sizeof *deeds; i++) {
        struct shm_connection *connection = accept_bad_peer(fixture);
        deeds[i].deed(connection);
        send_bytes(fixture->here, GLOO_SHM_CHUNK, 0);
        assert_null(gloo_shm_view(fixture->here, 8));
        if (!strstr(gloo_shm_error(fixture->here), deeds[i].text))
            fail_msg("%zu: %s", i, gloo_shm_error(fixture->here));
        assert_false(gloo_shm_send(fixture->here, "x", 1));
        gloo_shm_close(&fixture->here);
        shm_connection_close(&connection);
    }
}
