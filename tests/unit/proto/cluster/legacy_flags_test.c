/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/cluster/cluster_case.h"
#include "tests/lib/test.h"

/* Flags in their order: job name, task index, ps, workers, chief, two of ranks
 * and --alone. */
static void check(const struct cluster_case *forms, size_t count) {
    for (size_t i = 0; i < count; i++)
        cluster_case_check(&forms[i]);
}

TEST(flags_describe_the_whole_cluster) {
    static const struct cluster_case forms[] = {
        {"a ps",
         {"ps", "1", "a:1,b:1", "c:1,d:1", NULL, NULL, NULL, false},
         {{0}},
         "{'source': 'flags', 'role': 'ps', 'index': 1, 'num_ps': 2, "
         "'num_workers': 2, 'chief': 'c:1', 'warnings': []}"},
        {"worker 0 leads",
         {"worker", "0", "a:1", "c:1,d:1", NULL, NULL, NULL, false},
         {{0}},
         "{'is_chief': true}"},
        {"a chief leads",
         {"worker", "0", "a:1", "c:1", "e:1", NULL, NULL, false},
         {{0}},
         "{'is_chief': false, 'chief': 'e:1'}"},
        {"a master",
         {"master", "0", "a:1", "c:1", "e:1", NULL, NULL, false},
         {{0}},
         "{'role': 'chief', 'is_chief': true}"},
        {"blanks",
         {"ps", "0", " a:1 , b:1 ", "c:1", NULL, NULL, NULL, false},
         {{0}},
         "{'num_ps': 2}"},
        {"IPv6",
         {"ps", "0", "a:1", "[::1]:2,[fe80::2%eth0]:3", NULL, NULL, NULL,
          false},
         {{0}},
         "{'chief': '[::1]:2', 'num_workers': 2}"},
        {"no ps",
         {"worker", "1", "", "c:1,d:1", NULL, NULL, NULL, false},
         {{0}},
         "{'num_ps': 0}"},
        {"an evaluator",
         {"evaluator", "0", "a:1", "c:1", NULL, NULL, NULL, false},
         {{0}},
         "{'role': 'evaluator'}"},
        {"port 0",
         {"ps", "0", "a:0", "c:1", NULL, NULL, NULL, false},
         {{0}},
         "{'warnings': ['port_zero']}"},
        {"a ps that knows itself alone",
         {"ps", "3", "a:1", NULL, NULL, NULL, NULL, false},
         {{0}},
         "{'index': 3, 'warnings': ['own_address_only']}"},
        {"one task",
         {NULL, NULL, NULL, "a:1", NULL, NULL, NULL, false},
         {{0}},
         "{'role': 'worker', 'warnings': ['task_missing']}"},
        {"worker 0 and no list",
         {"worker", "0", NULL, NULL, NULL, NULL, NULL, false},
         {{0}},
         "{'source': 'flags', 'mode': 'local'}"},
    };
    check(forms, sizeof forms / sizeof *forms);
}

TEST(flags_given_in_part_are_refused) {
    static const struct cluster_case forms[] = {
        {"hosts alone",
         {NULL, NULL, "a:1", "c:1", NULL, NULL, NULL, false},
         {{0}},
         "task_missing"},
        {"no name",
         {NULL, "0", "a:1", "c:1", NULL, NULL, NULL, false},
         {{0}},
         "task_type_missing"},
        {"no index",
         {"ps", NULL, "a:1", "c:1", NULL, NULL, NULL, false},
         {{0}},
         "task_index_missing"},
        {"no list of the own job",
         {"ps", "0", NULL, "c:1", NULL, NULL, NULL, false},
         {{0}},
         "task_type_not_in_cluster"},
        {"a ps and no list",
         {"ps", "0", NULL, NULL, NULL, NULL, NULL, false},
         {{0}},
         "local_type"},
        {"worker 1 and no list",
         {"worker", "1", NULL, NULL, NULL, NULL, NULL, false},
         {{0}},
         "local_index"},
        {"an index alone",
         {NULL, "2", NULL, NULL, NULL, NULL, NULL, false},
         {{0}},
         "local_index"},
    };
    check(forms, sizeof forms / sizeof *forms);
}

TEST(wrong_flags_are_refused) {
    static const struct cluster_case forms[] = {
        {"a comma at the end",
         {"ps", "0", "a:1,", "c:1", NULL, NULL, NULL, false},
         {{0}},
         "bad_port"},
        {"commas alone",
         {"ps", "0", ",,", "c:1", NULL, NULL, NULL, false},
         {{0}},
         "bad_port"},
        {"no port",
         {"ps", "0", "a", "c:1", NULL, NULL, NULL, false},
         {{0}},
         "bad_port"},
        {"semicolons",
         {"ps", "0", "a:1;b:1", "c:1", NULL, NULL, NULL, false},
         {{0}},
         "bad_host"},
        {"a JSON list",
         {"ps", "0", "[\"a:1\"]", "c:1", NULL, NULL, NULL, false},
         {{0}},
         "bad_host"},
        {"a scheme",
         {"ps", "0", "tcp://a:1", "c:1", NULL, NULL, NULL, false},
         {{0}},
         "bad_host"},
        {"not UTF-8",
         {"ps", "0", "\xff\xfe:1", "c:1", NULL, NULL, NULL, false},
         {{0}},
         "bad_host"},
        {"a name not UTF-8",
         {"\xff", "0", "a:1", "c:1", NULL, NULL, NULL, false},
         {{0}},
         "task_type_not_in_cluster"},
        {"two chiefs",
         {"ps", "0", "a:1", NULL, "c:1,d:1", NULL, NULL, false},
         {{0}},
         "multiple_chiefs"},
        {"an index below 0",
         {"ps", "-1", "a:1", "c:1", NULL, NULL, NULL, false},
         {{0}},
         "bad_index"},
        {"a real index",
         {"ps", "0.0", "a:1", "c:1", NULL, NULL, NULL, false},
         {{0}},
         "bad_index"},
        {"an index past the end",
         {"worker", "1", "a:1", "c:1", NULL, NULL, NULL, false},
         {{0}},
         "index_out_of_range"},
        {"a huge index",
         {"worker", "18446744073709551616", "a:1", "c:1", NULL, NULL, NULL,
          false},
         {{0}},
         "index_out_of_range"},
        {"evaluator 1",
         {"evaluator", "1", "a:1", "c:1", NULL, NULL, NULL, false},
         {{0}},
         "evaluator_index"},
        {"a pool of Vertex",
         {"workerpool1", "0", "a:1", "c:1", NULL, NULL, NULL, false},
         {{0}},
         "task_type_not_in_cluster"},
    };
    check(forms, sizeof forms / sizeof *forms);
}

TEST(an_error_names_the_flag) {
    const struct cluster_flags flags = {
        .job_name = "ps", .task_index = "x", .ps_hosts = "a:1"};
    struct cluster_case_variable environment[CLUSTER_CASE_VARIABLES] = {{0}};
    struct cluster *cluster;
    struct failure why = {0};
    assert_fails(cluster_resolve(&cluster, &flags, cluster_case_lookup,
                                 environment, &why),
                 &why, FAILURE_CLUSTER_INVALID);
    assert_contains(why.text, "--task_index is \"x\"");
}
