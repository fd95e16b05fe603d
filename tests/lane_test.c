#include "proto/wire/lane.h"

#include "proto/base/time.h"
#include "proto/wire/lane_parts.h"
#include "proto/wire/lanes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_FRAME = 1 << 16, NOBODY = 65534 };
static const int64_t LIMIT = 20 * TIME_S;

struct fixture {
    char name[LANES_NAME];
    struct lanes *server, *client;
    uint32_t server_number, client_number;
    struct lane *served, *called; /* both ends, when they have met */
    unsigned descriptors;         /* open before */
};

static unsigned count_entries(const char *path) {
    DIR *folder = opendir(path);
    unsigned count = 0;
    while (readdir(folder))
        count++;
    closedir(folder);
    return count;
}

static int setup(void **state) {
    struct fixture *fixture = calloc(1, sizeof *fixture);
    fixture->descriptors = count_entries("/proc/self/fd");
    lanes_name(fixture->name, (uint64_t)getpid(), 5);
    fixture->server = lanes_open(MAX_FRAME);
    fixture->client = lanes_open(MAX_FRAME);
    if (!lanes_listen(fixture->server, fixture->name))
        fail_msg("%s: %s", fixture->name, strerror(errno));
    *state = fixture;
    return 0;
}

static int teardown(void **state) {
    struct fixture *fixture = *state;
    lanes_close(&fixture->client);
    lanes_close(&fixture->server);
    assert_int_equal(count_entries("/proc/self/fd"), fixture->descriptors);
    free(fixture);
    return 0;
}

static void turn(struct lanes *lanes) {
    struct pollfd item = {lanes_descriptor(lanes), POLLIN, 0};
    lanes_sleep(lanes);
    poll(&item, 1, 10);
    lanes_tend(lanes, time_now());
}

/* The server's lane with the lowest number; NULL: none. */
static struct lane *find_served(struct fixture *fixture) {
    for (uint32_t i = 0; i < 64; i++) {
        fixture->server_number = LANES_FIRST + i * LANES_MAX;
        struct lane *lane = lanes_find(fixture->server, fixture->server_number);
        if (lane)
            return lane;
    }
    return NULL;
}

static bool is_open(const struct lane *lane) {
    return lane && lane_bell(lane) >= 0 && !lane_trouble(lane);
}

static void meet(struct fixture *fixture) {
    char text[128];
    int64_t deadline = time_now() + LIMIT;
    fixture->client_number =
        lanes_call(fixture->client, fixture->name, text, sizeof text);
    assert_int_not_equal(fixture->client_number, 0);
    do {
        assert_true(time_now() < deadline);
        turn(fixture->server);
        turn(fixture->client);
        fixture->served = find_served(fixture);
        fixture->called = lanes_find(fixture->client, fixture->client_number);
    } while (!is_open(fixture->served) || !is_open(fixture->called));
}

/* Turns the server until it has left its only client, for TEXT. */
static void expect_left(struct fixture *fixture, const char *text) {
    int64_t deadline = time_now() + LIMIT;
    struct lanes_message message;
    const char *trouble = NULL;
    while (lanes_find(fixture->server, fixture->server_number)) {
        assert_true(time_now() < deadline);
        if (lanes_view(fixture->server, &message))
            lane_done(message.lane);
        turn(fixture->server);
    }
    trouble = lanes_trouble(fixture->server);
    if (text && !trouble)
        fail_msg("nothing was said, not: %s", text);
    if (text && !strstr(trouble, text))
        fail_msg("%s, not: %s", trouble, text);
    assert_true(text || !trouble);
}

static void send_bytes(struct lane *lane, uint32_t number, size_t bytes) {
    static unsigned char data[MAX_FRAME];
    memset(data, (int)(number & 0xff), bytes);
    struct lane_payload payload = {data, bytes, NULL};
    assert_true(lane_send(lane, &number, sizeof number, &payload));
}

static void expect_bytes(struct lane *lane, uint32_t number, size_t bytes) {
    struct lane_view view;
    uint32_t found;
    assert_true(lane_waiting(lane));
    assert_true(lane_view(lane, &view));
    assert_int_equal(view.header_bytes, sizeof found);
    memcpy(&found, view.header, sizeof found);
    assert_int_equal(found, number);
    assert_int_equal(view.payload_bytes, bytes);
    const unsigned char *data = view.payload;
    assert_true(!bytes || (data[0] == (number & 0xff) &&
                           data[bytes - 1] == (number & 0xff)));
    lane_done(lane);
}

static void messages_go_both_ways(void **state) {
    struct fixture *fixture = *state;
    struct lane_view view;
    meet(fixture);
    for (uint32_t i = 0; i < 1000; i++) {
        send_bytes(fixture->called, i, i * 7);
        send_bytes(fixture->served, i + 1, i * 5);
        expect_bytes(fixture->served, i, i * 7);
        expect_bytes(fixture->called, i + 1, i * 5);
    }
    assert_false(lane_view(fixture->served, &view));
    assert_true(lane_send(fixture->called, "x", 1, NULL));
    assert_true(lane_view(fixture->served, &view));
    assert_int_equal(view.payload_bytes, 0);
    lane_done(fixture->served);
}

static void what_finds_no_room_waits_and_comes_in_order(void **state) {
    struct fixture *fixture = *state;
    meet(fixture);
    for (uint32_t i = 0; i < 100; i++) {
        if (i % 3 == 0) {
            unsigned char *room = lane_reserve(fixture->served, 9999);
            struct lane_payload payload = {room, 9999, NULL};
            memset(room, (int)i, 9999);
            assert_true(lane_send(fixture->served, &i, sizeof i, &payload));
        } else {
            send_bytes(fixture->served, i, 9999);
        }
    }
    assert_non_null(fixture->served->first); /* or nothing waited */
    for (uint32_t i = 0; i < 100; i++) {
        expect_bytes(fixture->called, i, 9999);
        turn(fixture->server);
    }
    assert_null(fixture->served->first);
}

/* How many of 4 messages find room before the first is read, when COUNT have
 * gone before. */
static unsigned count_ahead(struct fixture *fixture, unsigned count) {
    unsigned ahead = 0;
    struct lane_view view;
    for (unsigned i = 0; i < count + 4; i++) {
        char *room = lane_room(fixture->called, MAX_FRAME / 4);
        struct lane_payload payload = {room, MAX_FRAME / 4, NULL};
        if (!room)
            break;
        assert_true(lane_send(fixture->called, "", 0, &payload));
        ahead += i >= count;
        if (i >= count)
            continue;
        assert_true(lane_view(fixture->served, &view));
        lane_done(fixture->served);
    }
    while (lane_view(fixture->served, &view))
        lane_done(fixture->served);
    return ahead;
}

static void so_much_is_sent_ahead_wherever_the_ring_stands(void **state) {
    struct fixture *fixture = *state;
    unsigned least = 4;
    meet(fixture);
    for (unsigned i = 0; i < 40; i++) {
        unsigned ahead = count_ahead(fixture, i);
        least = ahead < least ? ahead : least;
    }
    assert_true(least < 4); /* or it says nothing */
    lane_keep_ahead(fixture->called, MAX_FRAME);
    for (unsigned i = 0; i < 40; i++)
        assert_int_equal(count_ahead(fixture, i), 4);
}

static bool has_rung(struct lane *lane) {
    struct pollfd item = {lane_bell(lane), POLLIN, 0};
    eventfd_t rung;
    bool has = poll(&item, 1, 0) == 1;
    if (has)
        eventfd_read(lane_bell(lane), &rung);
    return has;
}

static void bells_ring_for_what_is_sent_and_for_room(void **state) {
    struct fixture *fixture = *state;
    struct lane_view view;
    unsigned sent = 0;
    meet(fixture);
    has_rung(fixture->called);
    has_rung(fixture->served);
    lane_sleep(fixture->served);
    while (lane_room(fixture->called, MAX_FRAME)) {
        send_bytes(fixture->called, sent++, MAX_FRAME / 2);
        assert_int_equal(has_rung(fixture->served), false);
        lane_ring(fixture->called);
        assert_int_equal(has_rung(fixture->served), sent == 1);
    }
    assert_false(has_rung(fixture->called));
    assert_true(lane_view(fixture->served, &view));
    lane_done(fixture->served);
    assert_true(has_rung(fixture->called));
}

static void what_is_reserved_is_written_in_place(void **state) {
    struct fixture *fixture = *state;
    struct lane_view view;
    meet(fixture);
    char *room = lane_reserve(fixture->called, 100);
    assert_true(room > (char *)memory_base(fixture->called->memory));
    room = lane_reserve(fixture->called, 200); /* the first was not sent */
    room[199] = 5;
    struct lane_payload payload = {room, 200, NULL};
    assert_true(lane_send(fixture->called, "h", 1, &payload));
    room[199] = 6;
    assert_true(lane_view(fixture->served, &view));
    assert_int_equal(((const char *)view.payload)[199], 6);
    assert_null(lane_reserve(fixture->called, MAX_FRAME + 1));
}

static void shown_memory_is_read_where_it_lies_and_let_go(void **state) {
    struct fixture *fixture = *state;
    struct lane_view view;
    meet(fixture);
    struct memory *memory = memory_open(1 << 16, MEMORY_MAKER_WRITES);
    for (int i = 0; i < 300; i++) {
        struct buffer *buffer = buffer_open_in(memory, 64, 640, NULL, NULL);
        char *bytes = buffer_data(buffer);
        struct lane_payload payload = {bytes + 40, 600, buffer};
        assert_true(lane_send(fixture->served, "h", 1, &payload));
        assert_false(buffer_alone(buffer));
        bytes[40 + 599] = (char)i;
        assert_true(lane_view(fixture->called, &view));
        assert_int_equal(view.payload_bytes, 600);
        assert_int_equal(((const char *)view.payload)[599], (char)i);
        assert_non_null(view.memory);
        lane_done(fixture->called);
        lane_settle(fixture->served);
        assert_true(buffer_alone(buffer));
        buffer_release(&buffer);
    }
    assert_int_equal(fixture->called->num_seen, 1);
    memory_release(&memory);
}

static void more_memory_than_can_be_shown_is_copied(void **state) {
    struct fixture *fixture = *state;
    struct lane_view view;
    meet(fixture);
    for (int i = 0; i < LANE_MEMORIES + 3; i++) {
        struct memory *memory = memory_open(4096, MEMORY_MAKER_WRITES);
        struct buffer *buffer = buffer_open_in(memory, 0, 99, NULL, NULL);
        struct lane_payload payload = {buffer_data(buffer), 99, buffer};
        memset(buffer_data(buffer), i, 99);
        assert_true(lane_send(fixture->called, "h", 1, &payload));
        buffer_release(&buffer);
        memory_release(&memory);
    }
    for (int i = 0; i < LANE_MEMORIES + 3; i++) {
        assert_true(lane_view(fixture->served, &view));
        assert_int_equal(((const char *)view.payload)[98], i);
        assert_int_equal(view.memory != NULL, i < LANE_MEMORIES);
        lane_done(fixture->served);
    }
}

/* Sends what no lane of ours does. */
static void forge(struct fixture *fixture, struct ring_payload payload) {
    ring_reserve(&fixture->called->writer, 0);
    ring_commit(&fixture->called->writer, "h", 1, &payload);
}

static void a_payload_outside_of_what_was_shown_is_the_end(void **state) {
    struct fixture *fixture = *state;
    static const struct ring_payload payloads[] = {
        {.memory = 1, .bytes = 8},
        {.memory = UINT32_MAX, .bytes = 8},
        {.offset = 4096, .bytes = 8},
        {.offset = 4089, .bytes = 8},
        {.offset = UINT64_MAX - 3, .bytes = 8},
        {.offset = 0, .bytes = 4097},
    };
    for (size_t i = 0; i < sizeof payloads / sizeof *payloads; i++) {
        meet(fixture);
        struct memory *memory = memory_open(4096, MEMORY_MAKER_WRITES);
        assert_true(lane_show(fixture->called, memory, 0));
        forge(fixture, (struct ring_payload){.offset = 4088, .bytes = 8});
        forge(fixture, payloads[i]);
        memory_release(&memory);
        struct lane_view view;
        assert_true(lane_view(fixture->served, &view));
        lane_done(fixture->served);
        expect_left(fixture, "in no memory it has shown");
        lane_break(fixture->called, "done");
        turn(fixture->client);
        lanes_trouble(fixture->client);
    }
}

static void a_frame_too_long_is_the_end(void **state) {
    struct fixture *fixture = *state;
    meet(fixture);
    assert_false(lane_send(fixture->called, "h", 1,
                           &(struct lane_payload){"", MAX_FRAME + 1, NULL}));
    forge(fixture, (struct ring_payload){.bytes = MAX_FRAME + 1});
    expect_left(fixture, "a frame too long");
}

static void a_ring_full_of_garbage_is_the_end(void **state) {
    struct fixture *fixture = *state;
    meet(fixture);
    memset(fixture->called->writer.bytes, 0xa5, 256);
    atomic_store(&fixture->called->writer.shared->head, 256);
    expect_left(fixture, "a ring that is not as its writer leaves it");
}

/* A raw connection to the server's name. */
static int stranger(struct fixture *fixture) {
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

static void await_served(struct fixture *fixture) {
    int64_t deadline = time_now() + LIMIT;
    while (!find_served(fixture)) {
        assert_true(time_now() < deadline);
        turn(fixture->server);
    }
}

static void a_stranger_on_the_socket_is_left(void **state) {
    struct fixture *fixture = *state;
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
        await_served(fixture);
        say(descriptor, cases[i].bytes, cases[i].size, cases[i].passed);
        expect_left(fixture, cases[i].text);
        close(descriptor);
    }
}

/* A hello with the right words and DESCRIPTOR as its memory. */
static void greet(struct fixture *fixture, int memory, const char *text) {
    uint64_t capacity = ring_capacity(MAX_FRAME), bytes = 4096 + 2 * capacity;
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
    await_served(fixture);
    assert_int_equal(sendmsg(descriptor, &message, 0), sizeof hello);
    expect_left(fixture, text);
    close(descriptor);
}

static void memory_that_could_shrink_is_not_mapped(void **state) {
    struct fixture *fixture = *state;
    uint64_t bytes = 4096 + 2 * ring_capacity(MAX_FRAME);
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
    struct fixture *fixture = *state;
    int descriptor = stranger(fixture);
    int64_t start = time_now();
    await_served(fixture);
    expect_left(fixture, "no answer within 1 s");
    assert_true(time_now() - start > TIME_S);
    close(descriptor);
}

static void another_user_is_not_taken(void **state) {
    struct fixture *fixture = *state;
    if (geteuid())
        skip();
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
        turn(fixture->server);
        assert_null(find_served(fixture));
    }
    assert_int_equal(status, 0);
}

static void nobody_is_called_by_a_name_that_is_not_there(void **state) {
    struct fixture *fixture = *state;
    char text[128];
    assert_int_equal(
        lanes_call(fixture->client, "capstan-none", text, sizeof text), 0);
    assert_non_null(strstr(text, "not on this host"));
}

/* In a child: a client that floods the server until it is killed. */
static void flood(struct fixture *fixture) {
    struct lanes *lanes = lanes_open(MAX_FRAME);
    char text[128];
    uint32_t number = lanes_call(lanes, fixture->name, text, sizeof text);
    static unsigned char bytes[9999];
    for (;;) {
        struct lane *lane = lanes_find(lanes, number);
        struct lane_payload payload = {bytes, sizeof bytes, NULL};
        if (!is_open(lane) || !lane_send(lane, "flood", 5, &payload))
            turn(lanes);
    }
}

static void a_client_that_is_killed_is_left(void **state) {
    struct fixture *fixture = *state;
    struct lanes_message message;
    unsigned read = 0;
    pid_t child = fork();
    if (!child)
        flood(fixture);
    await_served(fixture);
    while (read < 1000) {
        if (lanes_view(fixture->server, &message)) {
            lane_done(message.lane);
            read++;
        } else {
            turn(fixture->server);
        }
    }
    struct memory *memory = memory_open(4096, MEMORY_MAKER_WRITES);
    struct buffer *buffer = buffer_open_in(memory, 0, 64, NULL, NULL);
    struct lane_payload payload = {buffer_data(buffer), 64, buffer};
    assert_true(lane_send(find_served(fixture), "held", 4, &payload));
    assert_false(buffer_alone(buffer));
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    expect_left(fixture, NULL);
    assert_true(buffer_alone(buffer));
    buffer_release(&buffer);
    memory_release(&memory);
}

static void a_server_that_is_killed_is_noticed(void **state) {
    struct fixture *fixture = *state;
    char text[128], name[LANES_NAME];
    lanes_name(name, (uint64_t)getpid(), 6);
    int ready = eventfd(0, EFD_CLOEXEC);
    pid_t child = fork();
    if (!child) {
        struct lanes *lanes = lanes_open(MAX_FRAME);
        lanes_listen(lanes, name);
        eventfd_write(ready, 1);
        for (;;)
            turn(lanes);
    }
    eventfd_t count;
    eventfd_read(ready, &count);
    close(ready);
    uint32_t number = lanes_call(fixture->client, name, text, sizeof text);
    while (!is_open(lanes_find(fixture->client, number)))
        turn(fixture->client);
    send_bytes(lanes_find(fixture->client, number), 1, 5000);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    int64_t deadline = time_now() + LIMIT;
    while (lanes_find(fixture->client, number)) {
        assert_true(time_now() < deadline);
        turn(fixture->client);
    }
    assert_int_equal(lanes_call(fixture->client, name, text, sizeof text), 0);
}

/* A child waits for a bell that only rings when it sleeps. */
static void a_sleeper_is_woken(void **state) {
    struct fixture *fixture = *state;
    pid_t child = fork();
    if (!child) {
        struct lanes *lanes = lanes_open(MAX_FRAME);
        struct lanes_message message;
        char text[128];
        lanes_call(lanes, fixture->name, text, sizeof text);
        for (;;) {
            struct pollfd item = {lanes_descriptor(lanes), POLLIN, 0};
            lanes_sleep(lanes);
            poll(&item, 1, -1);
            lanes_tend(lanes, time_now());
            while (lanes_view(lanes, &message)) {
                lane_done(message.lane);
                lane_send(message.lane, "pong", 4, NULL);
            }
        }
    }
    struct lanes_message message;
    await_served(fixture);
    while (!is_open(find_served(fixture)))
        turn(fixture->server);
    struct lane *lane = find_served(fixture);
    for (int i = 0; i < 20000; i++) {
        int64_t deadline = time_now() + LIMIT;
        assert_true(lane_send(lane, "ping", 4, NULL));
        while (!lanes_view(fixture->server, &message)) {
            struct pollfd item = {lanes_descriptor(fixture->server), POLLIN, 0};
            lanes_sleep(fixture->server);
            assert_true(poll(&item, 1, 20000) == 1);
            lanes_tend(fixture->server, time_now());
            assert_true(time_now() < deadline);
        }
        lane_done(message.lane);
    }
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
}

/* Lines of the file at PATH that have TEXT in them. */
static unsigned count_lines(const char *path, const char *text) {
    FILE *file = fopen(path, "r");
    char line[512];
    unsigned found = 0;
    while (fgets(line, sizeof line, file))
        found += strstr(line, text) != NULL;
    fclose(file);
    return found;
}

static void nothing_is_left_in_the_file_system(void **state) {
    struct fixture *fixture = *state;
    meet(fixture);
    assert_true(count_lines("/proc/self/maps", "/memfd:") > 0);
    assert_int_equal(count_lines("/proc/self/maps", "/dev/shm/"), 0);
    lanes_close(&fixture->client);
    lanes_close(&fixture->server);
    assert_int_equal(count_lines("/proc/net/unix", fixture->name), 0);
}

#define LANE_TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        LANE_TEST(messages_go_both_ways),
        LANE_TEST(what_finds_no_room_waits_and_comes_in_order),
        LANE_TEST(so_much_is_sent_ahead_wherever_the_ring_stands),
        LANE_TEST(bells_ring_for_what_is_sent_and_for_room),
        LANE_TEST(what_is_reserved_is_written_in_place),
        LANE_TEST(shown_memory_is_read_where_it_lies_and_let_go),
        LANE_TEST(more_memory_than_can_be_shown_is_copied),
        LANE_TEST(a_payload_outside_of_what_was_shown_is_the_end),
        LANE_TEST(a_frame_too_long_is_the_end),
        LANE_TEST(a_ring_full_of_garbage_is_the_end),
        LANE_TEST(a_stranger_on_the_socket_is_left),
        LANE_TEST(memory_that_could_shrink_is_not_mapped),
        LANE_TEST(who_says_nothing_is_left_after_a_second),
        LANE_TEST(another_user_is_not_taken),
        LANE_TEST(nobody_is_called_by_a_name_that_is_not_there),
        LANE_TEST(a_client_that_is_killed_is_left),
        LANE_TEST(a_server_that_is_killed_is_noticed),
        LANE_TEST(a_sleeper_is_woken),
        LANE_TEST(nothing_is_left_in_the_file_system),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
