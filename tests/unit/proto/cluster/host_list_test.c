/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/cluster/host_list.h"

#include "tests/lib/test.h"

struct form {
    const char *text, *hosts; /* spelled out, a blank between */
};

static void check(const struct form *form) {
    struct host_list list;
    struct failure why = {0};
    char found[4096] = "";
    if (host_list_parse(&list, form->text, "NODES", &why))
        fail_msg("%s is refused: %s", form->text, why.text);
    for (uint32_t i = 0; i < list.count; i++) {
        strcat(found, i ? " " : "");
        strcat(found, list.hosts[i]);
    }
    assert_string_equal(found, form->hosts);
    host_list_free(&list);
    assert_int_equal(list.count, 0);
}

TEST(every_short_form_is_expanded) {
    static const struct form forms[] = {
        {"n1", "n1"},
        {"n1,m2", "n1 m2"},
        {"n[1-3]", "n1 n2 n3"},
        {"n[001-003,7]", "n001 n002 n003 n7"},
        {"n[001-003,7],m[1-2,4]x", "n001 n002 n003 n7 m1x m2x m4x"},
        {"n[8-11]", "n8 n9 n10 n11"},
        {"n[08-11]", "n08 n09 n10 n11"},
        {"r[1-2]n[1-2]", "r1n1 r1n2 r2n1 r2n2"},
        {"r[1-2]n[01,3]-ib.x,z", "r1n01-ib.x r1n3-ib.x r2n01-ib.x r2n3-ib.x z"},
        {"[1-2]n", "1n 2n"},
        {"10.0.0.[4-5]", "10.0.0.4 10.0.0.5"},
    };
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        check(&forms[i]);
}

TEST(an_invalid_list_is_refused) {
    static const char *const texts[] = {
        "",
        "n1,",
        ",n1",
        "n[1-3",
        "n1-3]",
        "n[]",
        "n[3-1]",
        "n[a-b]",
        "n[1-]",
        "n[1,]",
        "n[1-2-3",
        "n[1]]",
        "n[1[2]]",
        "n[1-2,,4]",
        "n[-1]",
        "n[0-999999]",
        "n[0-9999999999999999999999]",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct host_list list;
        struct failure why = {0};
        if (host_list_parse(&list, texts[i], "NODES", &why) != STATUS_CONFIG)
            fail_msg("\"%s\" is taken", texts[i]);
        assert_int_equal(strncmp(why.text, "bad_node_list: NODES is ", 24), 0);
        assert_null(list.hosts);
    }
}

TEST(a_host_longer_than_a_name_is_refused) {
    char text[300];
    struct host_list list;
    memset(text, 'n', sizeof text - 1);
    text[sizeof text - 1] = 0;
    assert_int_equal(host_list_parse(&list, text, "NODES", NULL),
                     STATUS_CONFIG);
    memcpy(text + 250, "[1000000-1000001]", 18);
    assert_int_equal(host_list_parse(&list, text, "NODES", NULL),
                     STATUS_CONFIG);
}

TEST(counts_are_expanded) {
    uint64_t count, sum;
    assert_int_equal(host_list_counts("2(x3),1", "COUNTS", &count, &sum, NULL),
                     STATUS_OK);
    assert_int_equal(count, 4);
    assert_int_equal(sum, 7);
    assert_int_equal(host_list_counts("4", "COUNTS", &count, &sum, NULL),
                     STATUS_OK);
    assert_int_equal(sum, 4);
    static const char *const texts[] = {
        "",     "2(x3", "2(3)", "x",      "2,",
        "2(x)", "-1",   "2 ",   "2(x3)1", "1(x999999999999)"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (!host_list_counts(texts[i], "COUNTS", &count, &sum, NULL))
            fail_msg("\"%s\" is taken", texts[i]);
}
