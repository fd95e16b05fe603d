/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/cluster/address.h"

#include "tests/lib/test.h"

#define COUNT(table) (sizeof(table) / sizeof *(table))

struct address {
    const char *text, *host;
    unsigned port;
};

TEST(host_and_port_are_separated) {
    static const struct address addresses[] = {
        {"a:1", "a", 1},
        {"host0.ns.svc.cluster.local:2222", "host0.ns.svc.cluster.local", 2222},
        {"my_host-1:65535", "my_host-1", 65535},
        {"10.0.0.4:02222", "10.0.0.4", 2222},
        {"a:0", "a", 0},
        {":2222", "localhost", 2222},
        {"0.0.0.0:1", "0.0.0.0", 1},
        {"[::1]:2222", "::1", 2222},
        {"[2001:db8::1]:1", "2001:db8::1", 1},
        {"[::ffff:10.0.0.1]:1", "::ffff:10.0.0.1", 1},
        {"[fe80::1%eth0]:1", "fe80::1%eth0", 1},
    };
    for (size_t i = 0; i < COUNT(addresses); i++) {
        struct cluster_task task = {0};
        struct failure why = {0};
        if (address_parse(&task, addresses[i].text, "here", &why))
            fail_msg("%s: %s", addresses[i].text, why.text);
        assert_string_equal(task.host, addresses[i].host);
        assert_int_equal(task.port, addresses[i].port);
    }
}

static void check_refused(const char *text, const char *class) {
    struct cluster_task task = {0};
    struct failure why = {0};
    if (address_parse(&task, text, "ps[3] of x", &why) != STATUS_CONFIG ||
        strncmp(why.text, class, strlen(class)) != 0 ||
        !strstr(why.text, "ps[3] of x is \""))
        fail_msg("%s: %s is expected, not: %s", text, class, why.text);
}

TEST(a_port_is_at_most_65535) {
    static const char *const wrong[] = {
        "",      "a",     "a:",       "a:65536", "a:99999999999999999999",
        "a:-1",  "a:+1",  "a: 1",     "a:1 ",    "a:http",
        "a:1x",  "[::1]", "[::1]x:1", "[::1]:",  "a:0x50",
        "a:1.0",
    };
    for (size_t i = 0; i < COUNT(wrong); i++)
        check_refused(wrong[i], "bad_port: ");
}

TEST(a_host_is_a_name_or_a_number) {
    static const char *const wrong[] = {
        "grpc://a:1",
        "http://a",
        "a/b:1",
        "a:1/",
        "a b:1",
        " a:1",
        "a:b:1",
        "::1:2222",
        "[::1:1",
        "[]:1",
        "[a]:1",
        "[::1%/]:1",
        "[::1%a b]:1",
        "u@a:1",
        "*:1",
        "${HOST}:1",
        "<host>:1",
        "a\n:1",
        "\xc3\xa9:1",
        "a,b:1",
        "[10.0.0.1]:1",
        "[1:2:3:4:5:6:7:8:9]:1",
        "[11111111111111111111111111111111111111111111111111::1]:1",
    };
    for (size_t i = 0; i < COUNT(wrong); i++)
        check_refused(wrong[i], "bad_host: ");
}

TEST(the_longest_name_fits_and_a_longer_one_is_refused) {
    char text[300];
    struct cluster_task task = {0};
    memset(text, 'a', sizeof text);
    strcpy(text + 253, ":80");
    assert_int_equal(address_parse(&task, text, "here", NULL), STATUS_OK);
    assert_int_equal(strlen(task.host), 253);
    memset(text, 'a', sizeof text);
    strcpy(text + 254, ":80");
    check_refused(text, "bad_host: ");
}

TEST(a_written_address_reads_back) {
    static const char *const texts[] = {"a:1", "[::1]:2", "localhost:0"};
    for (size_t i = 0; i < COUNT(texts); i++) {
        struct cluster_task task = {0};
        char text[270];
        assert_int_equal(address_parse(&task, texts[i], "here", NULL),
                         STATUS_OK);
        cluster_address(&task, text, sizeof text);
        assert_string_equal(text, texts[i]);
    }
}

TEST(a_listener_without_an_address_is_on_loopback) {
    static const char *const wrong[] = {"",      "a",  "-1",      "65536",
                                        ":9100", "a:", "a:65536", "::1:9100"};
    struct cluster_task task = {0};
    assert_true(address_parse_listener(&task, "9100"));
    assert_string_equal(task.host, "127.0.0.1");
    assert_int_equal(task.port, 9100);
    assert_true(address_parse_listener(&task, "[::]:9101"));
    assert_string_equal(task.host, "::");
    assert_int_equal(task.port, 9101);
    assert_true(address_parse_listener(&task, "0"));
    assert_int_equal(task.port, 0);
    for (size_t i = 0; i < COUNT(wrong); i++)
        assert_false(address_parse_listener(&task, wrong[i]));
}
