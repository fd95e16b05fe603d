/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/shm_fixture.h"

#include "core/net/shm/shm_connection_internal.h"
#include "proto/messages/message.h"
#include "tests/lib/test.h"

#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <unistd.h>

const struct shm_connection_settings shm_fixture_settings = {
    .max_frame = SHM_FIXTURE_FRAME};

static unsigned count_entries(const char *path) {
    DIR *folder = opendir(path);
    unsigned count = 0;
    while (readdir(folder))
        count++;
    closedir(folder);
    return count;
}

int shm_fixture_setup(void **state) {
    struct shm_fixture *fixture = calloc(1, sizeof *fixture);
    fixture->descriptors = count_entries("/proc/self/fd");
    shm_endpoint_name(fixture->name, message_random());
    fixture->server = shm_endpoint_open(&shm_fixture_settings);
    fixture->client = shm_endpoint_open(&shm_fixture_settings);
    if (!shm_endpoint_listen(fixture->server, fixture->name))
        fail_msg("%s: %s", fixture->name, strerror(errno));
    *state = fixture;
    return 0;
}

int shm_fixture_teardown(void **state) {
    struct shm_fixture *fixture = *state;
    shm_endpoint_close(&fixture->client);
    shm_endpoint_close(&fixture->server);
    assert_int_equal(count_entries("/proc/self/fd"), fixture->descriptors);
    free(fixture);
    return 0;
}

void shm_fixture_run_once(struct shm_endpoint *endpoint) {
    struct pollfd item = {shm_endpoint_descriptor(endpoint), POLLIN, 0};
    shm_endpoint_prepare_wait(endpoint);
    poll(&item, 1, 10);
    shm_endpoint_progress(endpoint, time_now());
}

struct shm_connection *shm_fixture_accepted(struct shm_fixture *fixture) {
    for (uint32_t i = 0; i < 64; i++) {
        fixture->server_number = SHM_ENDPOINT_FIRST + i * SHM_ENDPOINT_MAX;
        struct shm_connection *connection =
            shm_endpoint_find(fixture->server, fixture->server_number);
        if (connection)
            return connection;
    }
    return NULL;
}

bool shm_fixture_is_open(const struct shm_connection *shm_connection) {
    return shm_connection && shm_connection->state == SHM_CONNECTION_OPEN;
}

void shm_fixture_connect(struct shm_fixture *fixture) {
    char text[128];
    int64_t deadline = time_now() + SHM_FIXTURE_DEADLINE;
    fixture->client_number =
        shm_endpoint_connect(fixture->client, fixture->name, text, sizeof text);
    assert_int_not_equal(fixture->client_number, 0);
    do {
        assert_true(time_now() < deadline);
        shm_fixture_run_once(fixture->server);
        shm_fixture_run_once(fixture->client);
        fixture->served = shm_fixture_accepted(fixture);
        fixture->called =
            shm_endpoint_find(fixture->client, fixture->client_number);
    } while (!shm_fixture_is_open(fixture->served) ||
             !shm_fixture_is_open(fixture->called));
}

void shm_fixture_await_client(struct shm_fixture *fixture) {
    int64_t deadline = time_now() + SHM_FIXTURE_DEADLINE;
    while (!shm_fixture_accepted(fixture)) {
        assert_true(time_now() < deadline);
        shm_fixture_run_once(fixture->server);
    }
}

void shm_fixture_expect_dropped(struct shm_fixture *fixture, const char *text) {
    int64_t deadline = time_now() + SHM_FIXTURE_DEADLINE;
    struct shm_endpoint_message message;
    const char *trouble = NULL;
    while (shm_endpoint_find(fixture->server, fixture->server_number)) {
        assert_true(time_now() < deadline);
        if (shm_endpoint_view(fixture->server, &message))
            shm_connection_release(message.shm_connection);
        shm_fixture_run_once(fixture->server);
    }
    trouble = shm_endpoint_error(fixture->server);
    if (text && !trouble)
        fail_msg("nothing was said, not: %s", text);
    if (text && !strstr(trouble, text))
        fail_msg("%s, not: %s", trouble, text);
    assert_true(text || !trouble);
}
