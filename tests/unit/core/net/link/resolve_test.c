/* SPDX-License-Identifier: Apache-2.0 */
#include "core/net/link/resolve.h"

#include "core/base/time.h"
#include "tests/lib/test.h"

#include <poll.h>

static enum resolve_state resolve(const char *host, uint16_t port, char *text,
                                  size_t size) {
    struct resolve *resolve = resolve_start(host, port);
    enum resolve_state state;
    int64_t deadline = time_now() + 60 * TIME_S;
    assert_non_null(resolve);
    while ((state = resolve_poll(resolve, text, size)) == RESOLVE_WAITING &&
           time_now() < deadline)
        poll(NULL, 0, 5);
    resolve_end(&resolve);
    assert_null(resolve);
    return state;
}

TEST(numeric_addresses_resolve_unchanged) {
    char text[300];
    assert_int_equal(resolve("10.1.2.3", 2222, text, sizeof text),
                     RESOLVE_FOUND);
    assert_string_equal(text, "10.1.2.3:2222");
    assert_int_equal(resolve("::1", 65535, text, sizeof text), RESOLVE_FOUND);
    assert_string_equal(text, "[::1]:65535");
}

TEST(a_name_resolves_to_an_address) {
    char text[300];
    assert_int_equal(resolve("localhost", 1, text, sizeof text), RESOLVE_FOUND);
    assert_true(!strcmp(text, "127.0.0.1:1") || !strcmp(text, "[::1]:1"));
}

TEST(an_unresolvable_name_reports_why) {
    char text[300] = "";
    assert_int_equal(resolve("a host..with-no.name", 1, text, sizeof text),
                     RESOLVE_FAILED);
    assert_true(strlen(text) > 0);
}

TEST(a_pending_lookup_does_not_delay_closing) {
    struct resolve *none = NULL;
    for (int i = 0; i < 50; i++) {
        struct resolve *resolve = resolve_start("127.0.0.1", 1);
        resolve_end(&resolve);
    }
    resolve_end(&none);
}

TEST(an_address_is_a_host_and_a_port) {
    char host[16] = "before";
    uint16_t port = 7;
    assert_false(resolve_split("no-port", host, sizeof host, &port));
    assert_false(resolve_split(":1", host, sizeof host, &port));
    assert_false(resolve_split("a:0", host, sizeof host, &port));
    assert_false(resolve_split("a:65536", host, sizeof host, &port));
    assert_false(resolve_split("0123456789abcdef:1", host, sizeof host, &port));
    assert_string_equal(host, "before");
    assert_int_equal(port, 7);
    assert_true(resolve_split("0123456789abcde:1", host, sizeof host, &port));
    assert_string_equal(host, "0123456789abcde");
    assert_int_equal(port, 1);
    assert_true(resolve_split("10.0.0.1:2222", host, sizeof host, &port));
    assert_string_equal(host, "10.0.0.1");
    assert_int_equal(port, 2222);
    assert_true(resolve_split("[::1]:65535", host, sizeof host, &port));
    assert_string_equal(host, "::1");
    assert_int_equal(port, 65535);
}
