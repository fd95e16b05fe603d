/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/caller.h"

#include "proto/base/time.h"
#include "tests/lib/wire_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static struct message_arena arena;

static struct caller *open_caller(struct wire_fixture *fixture,
                                  const struct cluster_task *self,
                                  const struct cluster_job *ps) {
    static struct cluster cluster;
    cluster = (struct cluster){.role = CLUSTER_WORKER};
    if (ps)
        cluster.jobs[CLUSTER_PS] = *ps;
    struct caller_settings settings = {fixture->zmq, &fixture->log, self,
                                       &cluster};
    struct caller *caller;
    struct failure why;
    if (caller_open(&caller, &settings, &why))
        fail_msg("%s", why.text);
    return caller;
}

static void call(struct link *link, uint32_t peer, const char *address) {
    Capstan__DataHeader header = CAPSTAN__DATA_HEADER__INIT;
    unsigned char space[512];
    header.kind = CAPSTAN__DATA_HEADER__KIND__CALL;
    header.text = (char *)address;
    size_t size = message_write_data(&header, space);
    assert_true(link_commit(link, peer, space, size, NULL));
}

/* Steps CALLER until it knows an address; time runs with the clock. */
static void await_address(struct caller *caller, char *address, size_t size) {
    int64_t deadline = time_now() + WIRE_FIXTURE_LIMIT;
    while (!caller_step(caller, time_now(), address, size)) {
        assert_true(time_now() < deadline);
        zmq_poll(NULL, 0, 5);
    }
}

static void a_call_to_its_port_is_heard(void **state) {
    struct wire_fixture *fixture = *state;
    struct cluster_task self = {.port = 0};
    struct caller *caller = open_caller(fixture, &self, NULL);
    struct link_settings settings = {.max_frame = 4096, .receive_frames = 8};
    struct link *chief;
    struct failure why;
    char to[64], address[300];
    snprintf(to, sizeof to, "127.0.0.1:%u", caller_port(caller));
    assert_int_equal(caller_deadline(caller), TIME_NEVER);
    assert_int_equal(
        link_open(&chief, fixture->zmq, LINK_CLIENT, &settings, &why), 0);
    assert_int_equal(link_connect(chief, to, &why), 0);
    zmq_pollitem_t item = {link_socket(chief), 0, ZMQ_POLLOUT, 0};
    assert_int_equal(zmq_poll(&item, 1, 20000), 1);
    call(chief, 0, "10.0.0.1:2222");
    await_address(caller, address, sizeof address);
    assert_string_equal(address, "10.0.0.1:2222");
    caller_found(caller);
    call(chief, 0, "10.0.0.1:2223"); /* a late one changes nothing */
    for (int i = 0; i < 20; i++) {
        assert_false(caller_step(caller, time_now(), address, sizeof address));
        zmq_poll(NULL, 0, 5);
    }
    link_close(&chief);
    caller_close(&caller);
    assert_null(caller);
}

/* Nobody calls. */
static void step(struct caller *caller) {
    char address[300];
    assert_false(caller_step(caller, time_now(), address, sizeof address));
    zmq_poll(NULL, 0, 10);
}

static void step_until_said(struct wire_fixture *fixture, struct caller *caller,
                            const char *text) {
    int64_t deadline = time_now() + WIRE_FIXTURE_LIMIT;
    char said[1024];
    ssize_t got;
    do {
        assert_true(time_now() < deadline);
        step(caller);
        got = pread(fixture->log_file, said, sizeof said - 1, 0);
        said[got > 0 ? got : 0] = 0;
    } while (!strstr(said, text));
}

/* Calls from 127.0.0.2 to CALLER's port. */
static void *call_from_another_host(struct wire_fixture *fixture,
                                    struct caller *caller) {
    Capstan__DataHeader header = CAPSTAN__DATA_HEADER__INIT;
    unsigned char space[512];
    char endpoint[80];
    int linger = 0;
    void *raw = zmq_socket(fixture->zmq, ZMQ_DEALER);
    zmq_setsockopt(raw, ZMQ_LINGER, &linger, sizeof linger);
    snprintf(endpoint, sizeof endpoint, "tcp://127.0.0.2:0;127.0.0.1:%u",
             caller_port(caller));
    assert_int_equal(zmq_connect(raw, endpoint), 0);
    header.kind = CAPSTAN__DATA_HEADER__KIND__CALL;
    header.text = "10.0.0.1:2222";
    size_t size = message_write_data(&header, space);
    assert_int_equal(zmq_send(raw, space, size, 0), size);
    return raw;
}

static void a_call_counts_from_a_listed_host_alone(void **state) {
    static const char *const hosts[] = {"127.0.0.2", "127.0.0.3"};
    struct wire_fixture *fixture = *state;
    struct cluster_task self = {.port = 0};
    char address[300];
    for (int i = 0; i < 2; i++) {
        struct cluster_task task = {.port = 1};
        struct cluster_job ps = {.count = 1, .tasks = &task};
        snprintf(task.host, sizeof task.host, "%s", hosts[i]);
        wire_fixture_listen(fixture);
        struct caller *caller = open_caller(fixture, &self, &ps);
        void *raw = call_from_another_host(fixture, caller);
        if (i == 0)
            await_address(caller, address, sizeof address);
        else
            step_until_said(fixture, caller, "does not list");
        zmq_close(raw);
        caller_close(&caller);
        wire_fixture_said(fixture);
    }
}

static void who_knows_its_chief_is_not_called_to_another(void **state) {
    struct wire_fixture *fixture = *state;
    struct cluster_task self = {.port = 0};
    struct caller_settings settings = {fixture->zmq, &fixture->log, &self,
                                       NULL};
    struct caller *caller;
    struct failure why;
    wire_fixture_listen(fixture);
    assert_int_equal(caller_open(&caller, &settings, &why), STATUS_OK);
    void *raw = call_from_another_host(fixture, caller);
    step_until_said(fixture, caller, "names this process's chief");
    zmq_close(raw);
    caller_close(&caller);
    wire_fixture_said(fixture);
}

static void listed_ps_are_asked_until_one_answers(void **state) {
    struct wire_fixture *fixture = *state;
    struct cluster_task tasks[2] = {
        {.index = 0, .port = 1, .host = "127.0.0.1"}, /* nobody is there */
        {.index = 1, .port = fixture->port, .host = "127.0.0.1"}};
    struct cluster_job ps = {.count = 2, .tasks = tasks};
    struct caller *caller = open_caller(fixture, NULL, &ps);
    char address[300];
    struct link_frame frame;
    assert_int_equal(caller_port(caller), 0);
    int64_t deadline = time_now() + WIRE_FIXTURE_LIMIT;
    while (!link_view(fixture->server, &frame)) {
        assert_true(time_now() < deadline);
        assert_false(caller_step(caller, time_now(), address, sizeof address));
        zmq_poll(NULL, 0, 10);
    }
    Capstan__DataHeader *header;
    struct failure why;
    assert_int_equal(message_read_data(&header, &arena, frame.header.data,
                                       frame.header.size, &why),
                     STATUS_OK);
    assert_int_equal(header->kind, CAPSTAN__DATA_HEADER__KIND__WHO);
    call(fixture->server, frame.peer, "[::1]:5");
    link_release(&frame);
    await_address(caller, address, sizeof address);
    assert_string_equal(address, "[::1]:5");
    caller_found(caller);
    assert_int_equal(caller_deadline(caller), TIME_NEVER);
    assert_false(caller_step(caller, time_now(), address, sizeof address));
    caller_close(&caller);
}

static void it_never_asks_to_be_stepped_in_the_past(void **state) {
    struct wire_fixture *fixture = *state;
    struct cluster_task task = {.port = fixture->port, .host = "127.0.0.1"};
    struct cluster_job ps = {.count = 1, .tasks = &task};
    struct caller *caller = open_caller(fixture, NULL, &ps);
    char address[300];
    for (int64_t now = time_now(), i = 0; i < 100; i++) {
        caller_step(caller, now, address, sizeof address);
        assert_true(caller_deadline(caller) > now);
        now += 50 * TIME_MS;
    }
    caller_close(&caller);
}

/* For what must not be said any more. */
static void step_for_a_while(struct caller *caller) {
    for (int i = 0; i < 20; i++)
        step(caller);
}

static void a_ps_whose_host_is_not_found_is_named(void **state) {
    struct wire_fixture *fixture = *state;
    struct cluster_task task = {
        .index = 4, .port = 1, .host = "a host..with-no.name"};
    struct cluster_job ps = {.count = 1, .tasks = &task};
    wire_fixture_listen(fixture);
    struct caller *caller = open_caller(fixture, NULL, &ps);
    step_until_said(fixture, caller,
                    "cannot find host a host..with-no.name of ps 4");
    step_for_a_while(caller);
    caller_close(&caller);
    const char *said = wire_fixture_said(fixture);
    assert_null(strstr(said, "cannot connect"));
}

static void garbage_at_the_port_is_one_line(void **state) {
    struct wire_fixture *fixture = *state;
    struct cluster_task self = {.port = 0};
    wire_fixture_listen(fixture);
    struct caller *caller = open_caller(fixture, &self, NULL);
    char to[64];
    struct link *stranger;
    struct link_settings settings = {.max_frame = 4096, .receive_frames = 8};
    struct failure why;
    snprintf(to, sizeof to, "127.0.0.1:%u", caller_port(caller));
    assert_int_equal(
        link_open(&stranger, fixture->zmq, LINK_CLIENT, &settings, &why), 0);
    assert_int_equal(link_connect(stranger, to, &why), 0);
    for (int i = 0; i < 5; i++)
        wire_fixture_send(stranger, 0, "\377\377", NULL);
    step_until_said(fixture, caller, "not read any more");
    step_for_a_while(caller);
    link_close(&stranger);
    caller_close(&caller);
    const char *said = wire_fixture_said(fixture);
    assert_ptr_equal(strchr(said, '\n'), said + strlen(said) - 1);
}

static void a_port_in_use_is_an_error(void **state) {
    struct wire_fixture *fixture = *state;
    struct cluster_task self = {.port = fixture->port};
    struct caller_settings settings = {fixture->zmq, &fixture->log, &self,
                                       NULL};
    struct caller *caller;
    struct failure why;
    assert_int_equal(caller_open(&caller, &settings, &why), STATUS_RETRY);
    assert_null(caller);
    assert_non_null(strstr(why.text, "in use"));
}

#define CALLER_TEST(f)                                                         \
    cmocka_unit_test_setup_teardown(f, wire_fixture_setup,                     \
                                    wire_fixture_teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        CALLER_TEST(a_call_to_its_port_is_heard),
        CALLER_TEST(a_call_counts_from_a_listed_host_alone),
        CALLER_TEST(who_knows_its_chief_is_not_called_to_another),
        CALLER_TEST(listed_ps_are_asked_until_one_answers),
        CALLER_TEST(it_never_asks_to_be_stepped_in_the_past),
        CALLER_TEST(a_ps_whose_host_is_not_found_is_named),
        CALLER_TEST(garbage_at_the_port_is_one_line),
        CALLER_TEST(a_port_in_use_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
