/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/lane_fixture.h"

#include "proto/net/messages/message.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static unsigned count_entries(const char *path) {
    DIR *folder = opendir(path);
    unsigned count = 0;
    while (readdir(folder))
        count++;
    closedir(folder);
    return count;
}

int lane_fixture_setup(void **state) {
    struct lane_fixture *fixture = calloc(1, sizeof *fixture);
    fixture->descriptors = count_entries("/proc/self/fd");
    lanes_name(fixture->name, message_random());
    fixture->server = lanes_open(LANE_FIXTURE_FRAME);
    fixture->client = lanes_open(LANE_FIXTURE_FRAME);
    if (!lanes_listen(fixture->server, fixture->name))
        fail_msg("%s: %s", fixture->name, strerror(errno));
    *state = fixture;
    return 0;
}

int lane_fixture_teardown(void **state) {
    struct lane_fixture *fixture = *state;
    lanes_close(&fixture->client);
    lanes_close(&fixture->server);
    assert_int_equal(count_entries("/proc/self/fd"), fixture->descriptors);
    free(fixture);
    return 0;
}

void lane_fixture_turn(struct lanes *lanes) {
    struct pollfd item = {lanes_descriptor(lanes), POLLIN, 0};
    lanes_sleep(lanes);
    poll(&item, 1, 10);
    lanes_tend(lanes, time_now());
}

struct lane *lane_fixture_served(struct lane_fixture *fixture) {
    for (uint32_t i = 0; i < 64; i++) {
        fixture->server_number = LANES_FIRST + i * LANES_MAX;
        struct lane *lane = lanes_find(fixture->server, fixture->server_number);
        if (lane)
            return lane;
    }
    return NULL;
}

bool lane_fixture_is_open(const struct lane *lane) {
    return lane && lane_bell(lane) >= 0 && !lane_trouble(lane);
}

void lane_fixture_meet(struct lane_fixture *fixture) {
    char text[128];
    int64_t deadline = time_now() + LANE_FIXTURE_LIMIT;
    fixture->client_number =
        lanes_call(fixture->client, fixture->name, text, sizeof text);
    assert_int_not_equal(fixture->client_number, 0);
    do {
        assert_true(time_now() < deadline);
        lane_fixture_turn(fixture->server);
        lane_fixture_turn(fixture->client);
        fixture->served = lane_fixture_served(fixture);
        fixture->called = lanes_find(fixture->client, fixture->client_number);
    } while (!lane_fixture_is_open(fixture->served) ||
             !lane_fixture_is_open(fixture->called));
}

void lane_fixture_await(struct lane_fixture *fixture) {
    int64_t deadline = time_now() + LANE_FIXTURE_LIMIT;
    while (!lane_fixture_served(fixture)) {
        assert_true(time_now() < deadline);
        lane_fixture_turn(fixture->server);
    }
}

void lane_fixture_left(struct lane_fixture *fixture, const char *text) {
    int64_t deadline = time_now() + LANE_FIXTURE_LIMIT;
    struct lanes_message message;
    const char *trouble = NULL;
    while (lanes_find(fixture->server, fixture->server_number)) {
        assert_true(time_now() < deadline);
        if (lanes_view(fixture->server, &message))
            lane_done(message.lane);
        lane_fixture_turn(fixture->server);
    }
    trouble = lanes_trouble(fixture->server);
    if (text && !trouble)
        fail_msg("nothing was said, not: %s", text);
    if (text && !strstr(trouble, text))
        fail_msg("%s, not: %s", trouble, text);
    assert_true(text || !trouble);
}
