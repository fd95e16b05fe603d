/* SPDX-License-Identifier: Apache-2.0 */
#define STATE struct link_fixture *fixture

#include "worker/discovery_listener.h"

#include "core/base/time.h"
#include "tests/lib/link_fixture.h"
#include "tests/lib/test.h"

#include <unistd.h>

static struct message_arena arena;

static struct discovery_listener *open_listener(struct link_fixture *fixture,
                                                const struct cluster_task *self,
                                                const struct cluster_job *ps) {
    static struct cluster cluster;
    cluster = (struct cluster){.role = CLUSTER_WORKER};
    if (ps)
        cluster.jobs[CLUSTER_PS] = *ps;
    static struct process process;
    static struct member member;
    process = (struct process){.zmq = fixture->zmq, .log = &fixture->log};
    member = (struct member){.self = self, .discovery_cluster = &cluster};
    struct discovery_listener *listener;
    assert_ok(discovery_listener_open(&listener, &process, &member, &failure));
    return listener;
}

static void call(struct link *link, uint32_t peer, const char *address) {
    Capstan__DataHeader header = CAPSTAN__DATA_HEADER__INIT;
    unsigned char space[512];
    header.kind = CAPSTAN__DATA_HEADER__KIND__CHIEF_AT;
    header.text = (char *)address;
    size_t size = message_write_data(&header, space);
    assert_true(link_commit(link, peer, space, size, NULL));
}

/* Steps CALLER until it knows an address; time runs with the clock. */
static void await_address(struct discovery_listener *listener, char *address,
                          size_t size) {
    int64_t deadline = time_now() + LINK_FIXTURE_DEADLINE;
    while (!discovery_listener_step(listener, time_now(), address, size)) {
        assert_true(time_now() < deadline);
        zmq_poll(NULL, 0, 5);
    }
}

FIXTURE(link_fixture_setup, link_fixture_teardown);

TEST(an_announcement_to_its_port_is_received) {
    struct cluster_task self = {.port = 0};
    struct discovery_listener *listener = open_listener(fixture, &self, NULL);
    struct link_settings settings = {.max_frame = 4096};
    struct link *chief;
    char address[300];
    const char *to = textf("127.0.0.1:%u", discovery_listener_port(listener));
    assert_int_equal(discovery_listener_deadline(listener), TIME_NEVER);
    assert_ok(
        link_open(&chief, fixture->zmq, LINK_CLIENT, &settings, &failure));
    assert_ok(link_connect(chief, to, &failure));
    zmq_pollitem_t item = {link_socket(chief), 0, ZMQ_POLLOUT, 0};
    assert_int_equal(zmq_poll(&item, 1, 60000), 1);
    call(chief, 0, "10.0.0.1:2222");
    await_address(listener, address, sizeof address);
    assert_string_equal(address, "10.0.0.1:2222");
    discovery_listener_stop_queries(listener);
    call(chief, 0, "10.0.0.1:2223"); /* a late one changes nothing */
    for (int i = 0; i < 20; i++) {
        assert_false(discovery_listener_step(listener, time_now(), address,
                                             sizeof address));
        zmq_poll(NULL, 0, 5);
    }
    link_close(&chief);
    discovery_listener_close(&listener);
    assert_null(listener);
}

/* Nobody calls. */
static void step(struct discovery_listener *listener) {
    char address[300];
    assert_false(
        discovery_listener_step(listener, time_now(), address, sizeof address));
    zmq_poll(NULL, 0, 10);
}

static void step_until_logged(struct link_fixture *fixture,
                              struct discovery_listener *listener,
                              const char *text) {
    int64_t deadline = time_now() + LINK_FIXTURE_DEADLINE;
    char said[1024];
    ssize_t got;
    do {
        assert_true(time_now() < deadline);
        step(listener);
        got = pread(fixture->log_file, said, sizeof said - 1, 0);
        said[got > 0 ? got : 0] = 0;
    } while (!strstr(said, text));
}

/* Calls from 127.0.0.2 to LISTENER's port. */
static void *call_from_another_host(struct link_fixture *fixture,
                                    struct discovery_listener *listener,
                                    const char *address) {
    Capstan__DataHeader header = CAPSTAN__DATA_HEADER__INIT;
    unsigned char space[512];
    int none = 0;
    void *raw = zmq_socket(fixture->zmq, ZMQ_DEALER);
    zmq_setsockopt(raw, ZMQ_LINGER, &none, sizeof none);
    assert_int_equal(zmq_connect(raw, textf("tcp://127.0.0.2:0;127.0.0.1:%u",
                                            discovery_listener_port(listener))),
                     0);
    header.kind = CAPSTAN__DATA_HEADER__KIND__CHIEF_AT;
    header.text = (char *)address;
    size_t size = message_write_data(&header, space);
    assert_int_equal(zmq_send(raw, space, size, 0), size);
    return raw;
}

TEST(only_announcements_of_listed_hosts_count) {
    static const char *const hosts[] = {"127.0.0.2", "127.0.0.3"};
    struct cluster_task self = {.port = 0};
    char address[300];
    for (int i = 0; i < 2; i++) {
        struct cluster_task task = {.port = 1};
        struct cluster_job ps = {.count = 1, .tasks = &task};
        snprintf(task.host, sizeof task.host, "%s", hosts[i]);
        link_fixture_capture_log(fixture);
        struct discovery_listener *listener =
            open_listener(fixture, &self, &ps);
        void *raw = call_from_another_host(fixture, listener, "10.0.0.1:2222");
        if (i == 0)
            await_address(listener, address, sizeof address);
        else
            step_until_logged(fixture, listener, "does not list");
        zmq_close(raw);
        discovery_listener_close(&listener);
        link_fixture_captured_log(fixture);
    }
}

/* That of the known chief itself is not even logged. */
TEST(an_announcement_does_not_replace_a_known_chief) {
    static const char *const addresses[] = {"10.0.0.1:2222", "10.0.0.2:2222"};
    struct cluster_task self = {.port = 0};
    struct cluster_task chief = {.host = "10.0.0.1", .port = 2222};
    struct process process = {.zmq = fixture->zmq, .log = &fixture->log};
    struct member member = {.self = &self, .chief = &chief};
    struct discovery_listener *listener;
    void *raw[2];
    char logged[1024];
    link_fixture_capture_log(fixture);
    assert_ok(discovery_listener_open(&listener, &process, &member, &failure));
    raw[0] = call_from_another_host(fixture, listener, addresses[0]);
    for (int i = 0; i < 20; i++)
        step(listener);
    raw[1] = call_from_another_host(fixture, listener, addresses[1]);
    step_until_logged(fixture, listener, "names this process's chief");
    ssize_t got = pread(fixture->log_file, logged, sizeof logged - 1, 0);
    logged[got > 0 ? got : 0] = 0;
    assert_contains(logged, addresses[1]);
    assert_null(strstr(logged, addresses[0]));
    for (int i = 0; i < 2; i++)
        zmq_close(raw[i]);
    discovery_listener_close(&listener);
    link_fixture_captured_log(fixture);
}

TEST(listed_ps_are_queried_until_one_answers) {
    struct cluster_task tasks[2] = {
        {.index = 0, .port = 1, .host = "127.0.0.1"}, /* nobody is there */
        {.index = 1, .port = fixture->port, .host = "127.0.0.1"}};
    struct cluster_job ps = {.count = 2, .tasks = tasks};
    struct discovery_listener *listener = open_listener(fixture, NULL, &ps);
    char address[300];
    struct link_frame frame;
    assert_int_equal(discovery_listener_port(listener), 0);
    int64_t deadline = time_now() + LINK_FIXTURE_DEADLINE;
    while (!link_view(fixture->server_link, &frame)) {
        assert_true(time_now() < deadline);
        assert_false(discovery_listener_step(listener, time_now(), address,
                                             sizeof address));
        zmq_poll(NULL, 0, 10);
    }
    Capstan__DataHeader *header;
    assert_ok(message_read_data(&header, &arena, frame.header.data,
                                frame.header.size, &failure));
    assert_int_equal(header->kind, CAPSTAN__DATA_HEADER__KIND__FIND_CHIEF);
    call(fixture->server_link, frame.peer, "[::1]:5");
    link_release(&frame);
    await_address(listener, address, sizeof address);
    assert_string_equal(address, "[::1]:5");
    discovery_listener_stop_queries(listener);
    assert_int_equal(discovery_listener_deadline(listener), TIME_NEVER);
    assert_false(
        discovery_listener_step(listener, time_now(), address, sizeof address));
    discovery_listener_close(&listener);
}

TEST(the_next_deadline_is_never_in_the_past) {
    struct cluster_task task = {.port = fixture->port, .host = "127.0.0.1"};
    struct cluster_job ps = {.count = 1, .tasks = &task};
    struct discovery_listener *listener = open_listener(fixture, NULL, &ps);
    char address[300];
    for (int64_t now = time_now(), i = 0; i < 100; i++) {
        discovery_listener_step(listener, now, address, sizeof address);
        assert_true(discovery_listener_deadline(listener) > now);
        now += 50 * TIME_MS;
    }
    discovery_listener_close(&listener);
}

/* For what must not be said any more. */
static void step_for_a_while(struct discovery_listener *listener) {
    for (int i = 0; i < 20; i++)
        step(listener);
}

TEST(a_ps_whose_host_is_not_found_is_named) {
    struct cluster_task task = {
        .index = 4, .port = 1, .host = "a host..with-no.name"};
    struct cluster_job ps = {.count = 1, .tasks = &task};
    link_fixture_capture_log(fixture);
    struct discovery_listener *listener = open_listener(fixture, NULL, &ps);
    step_until_logged(fixture, listener,
                      "cannot find host a host..with-no.name of ps 4");
    step_for_a_while(listener);
    discovery_listener_close(&listener);
    const char *said = link_fixture_captured_log(fixture);
    assert_null(strstr(said, "cannot connect"));
}

TEST(garbage_at_the_port_logs_one_line) {
    struct cluster_task self = {.port = 0};
    link_fixture_capture_log(fixture);
    struct discovery_listener *listener = open_listener(fixture, &self, NULL);
    struct link *unknown_peer;
    struct link_settings settings = {.max_frame = 4096};
    const char *to = textf("127.0.0.1:%u", discovery_listener_port(listener));
    assert_ok(link_open(&unknown_peer, fixture->zmq, LINK_CLIENT, &settings,
                        &failure));
    assert_ok(link_connect(unknown_peer, to, &failure));
    for (int i = 0; i < 5; i++)
        link_fixture_send(unknown_peer, 0, "\377\377", NULL);
    step_until_logged(fixture, listener, "not read any more");
    step_for_a_while(listener);
    link_close(&unknown_peer);
    discovery_listener_close(&listener);
    const char *said = link_fixture_captured_log(fixture);
    assert_ptr_equal(strchr(said, '\n'), said + strlen(said) - 1);
}

TEST(a_port_in_use_is_an_error) {
    struct cluster_task self = {.port = fixture->port};
    struct process process = {.zmq = fixture->zmq, .log = &fixture->log};
    struct member member = {.self = &self};
    struct discovery_listener *listener;
    assert_error(
        discovery_listener_open(&listener, &process, &member, &failure),
        FAILURE_PORT_IN_USE);
    assert_null(listener);
}
