/* SPDX-License-Identifier: Apache-2.0 */
#include "commands/host_header.h"

#include "tests/lib/test.h"

static const char own_name[] = "Head-Node.example.org";

static void expect_all(const char *const *hosts, size_t count, bool own) {
    for (size_t i = 0; i < count; i++)
        if (host_header_is_own(hosts[i], own_name) != own)
            fail_msg("Host '%s' is%s answered", hosts[i], own ? " not" : "");
}
#define EXPECT_ALL(own, ...)                                                   \
    do {                                                                       \
        static const char *const hosts[] = {__VA_ARGS__};                      \
        expect_all(hosts, sizeof hosts / sizeof *hosts, own);                  \
    } while (0)

TEST(an_address_is_answered_at_any_port) {
    EXPECT_ALL(true, "127.0.0.1", "127.0.0.1:2290", "10.1.2.3:80", "0.0.0.0:1",
               "127.0.0.1:", "[::1]", "[::1]:2290", "[fe80::1%25eth0]:2290",
               "[FE80::1]", "[::ffff:10.0.0.1]:9", "127.0.0.1.:2290");
}

TEST(localhost_and_the_name_given_are_answered_however_they_are_written) {
    EXPECT_ALL(true, "localhost", "localhost:2290", "LOCALHOST", "LocalHost.:9",
               "head-node.example.org", "HEAD-NODE.EXAMPLE.ORG.:2290");
    assert_true(host_header_is_own("a.b", "a.b."));
    assert_true(host_header_is_own("127.0.0.1", "127.0.0.1"));
}

TEST(another_name_is_not_answered) {
    EXPECT_ALL(false, "evil.example", "localhost.evil.example", "localhost..",
               "a.localhost", "head-node.example.org.evil.example", "head-node",
               "xlocalhost", "localhos", "127.0.0.1.evil.example", "127.1",
               "2130706433", "0x7f.1", "127.0.0.01", "");
}

TEST(what_is_no_host_is_not_answered) {
    EXPECT_ALL(false, "[::1", "::1", "[::1]x", "[localhost]", "[127.0.0.1]",
               "[]", "[", ":", ":80", ".", "localhost:80x", "localhost:80:80",
               "localhost:-1", "localhost/", "a@localhost", "localhost@evil",
               " localhost", "localhost ", "localhost\r\nX: y", "[::1]:80]");
    char text[2000];
    memset(text, '1', sizeof text - 1);
    text[sizeof text - 1] = 0;
    assert_false(host_header_is_own(text, own_name));
    text[0] = '[';
    assert_false(host_header_is_own(text, own_name));
}

TEST(without_a_name_of_its_own_a_server_has_none) {
    assert_false(host_header_is_own("", ""));
    assert_false(host_header_is_own(".", "."));
    assert_false(host_header_is_own("a", ""));
}
