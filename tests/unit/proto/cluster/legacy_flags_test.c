/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/cluster/cluster_case.h"
#include "tests/lib/test.h"

/* Flags in their order: job name, task index, ps, workers, chief, two of ranks
 * and --alone. */

TEST(flags_describe_the_whole_cluster) {
    static const struct cluster_case forms[] = {
        {"a ps",
         .expect = "{'source': 'flags', 'role': 'ps', 'index': 1, 'num_ps': 2, "
                   "'num_workers': 2, 'chief': 'c:1', 'warnings': []}",
         .flags = {"ps", "1", "a:1,b:1", "c:1,d:1", NULL, NULL, NULL, false}},
        {"worker 0 leads", .expect = "{'is_chief': true}",
         .flags = {"worker", "0", "a:1", "c:1,d:1", NULL, NULL, NULL, false}},
        {"a chief leads", .expect = "{'is_chief': false, 'chief': 'e:1'}",
         .flags = {"worker", "0", "a:1", "c:1", "e:1", NULL, NULL, false}},
        {"a master", .expect = "{'role': 'chief', 'is_chief': true}",
         .flags = {"master", "0", "a:1", "c:1", "e:1", NULL, NULL, false}},
        {"blanks", .expect = "{'num_ps': 2}",
         .flags = {"ps", "0", " a:1 , b:1 ", "c:1", NULL, NULL, NULL, false}},
        {"IPv6", .expect = "{'chief': '[::1]:2', 'num_workers': 2}",
         .flags = {"ps", "0", "a:1", "[::1]:2,[fe80::2%eth0]:3", NULL, NULL,
                   NULL, false}},
        {"no ps", .expect = "{'num_ps': 0}",
         .flags = {"worker", "1", "", "c:1,d:1", NULL, NULL, NULL, false}},
        {"an evaluator", .expect = "{'role': 'evaluator'}",
         .flags = {"evaluator", "0", "a:1", "c:1", NULL, NULL, NULL, false}},
        {"port 0", .expect = "{'warnings': ['port_zero']}",
         .flags = {"ps", "0", "a:0", "c:1", NULL, NULL, NULL, false}},
        {"a ps that knows itself alone",
         .expect = "{'index': 3, 'warnings': ['own_address_only']}",
         .flags = {"ps", "3", "a:1", NULL, NULL, NULL, NULL, false}},
        {"one task",
         .expect = "{'role': 'worker', 'warnings': ['task_missing']}",
         .flags = {NULL, NULL, NULL, "a:1", NULL, NULL, NULL, false}},
        {"worker 0 and no list",
         .expect = "{'source': 'flags', 'mode': 'local'}",
         .flags = {"worker", "0", NULL, NULL, NULL, NULL, NULL, false}},
    };
    cluster_case_check_all(forms);
}

TEST(flags_given_in_part_are_refused) {
    static const struct cluster_case forms[] = {
        {"hosts alone", .expect = "task_missing",
         .flags = {NULL, NULL, "a:1", "c:1", NULL, NULL, NULL, false}},
        {"no name", .expect = "task_type_missing",
         .flags = {NULL, "0", "a:1", "c:1", NULL, NULL, NULL, false}},
        {"no index", .expect = "task_index_missing",
         .flags = {"ps", NULL, "a:1", "c:1", NULL, NULL, NULL, false}},
        {"no list of the own job", .expect = "task_type_not_in_cluster",
         .flags = {"ps", "0", NULL, "c:1", NULL, NULL, NULL, false}},
        {"a ps and no list", .expect = "local_type",
         .flags = {"ps", "0", NULL, NULL, NULL, NULL, NULL, false}},
        {"worker 1 and no list", .expect = "local_index",
         .flags = {"worker", "1", NULL, NULL, NULL, NULL, NULL, false}},
        {"an index alone", .expect = "local_index",
         .flags = {NULL, "2", NULL, NULL, NULL, NULL, NULL, false}},
    };
    cluster_case_check_all(forms);
}

TEST(wrong_flags_are_refused) {
    static const struct cluster_case forms[] = {
        {"a comma at the end", .expect = "bad_port",
         .flags = {"ps", "0", "a:1,", "c:1", NULL, NULL, NULL, false}},
        {"commas alone", .expect = "bad_port",
         .flags = {"ps", "0", ",,", "c:1", NULL, NULL, NULL, false}},
        {"no port", .expect = "bad_port",
         .flags = {"ps", "0", "a", "c:1", NULL, NULL, NULL, false}},
        {"semicolons", .expect = "bad_host",
         .flags = {"ps", "0", "a:1;b:1", "c:1", NULL, NULL, NULL, false}},
        {"a JSON list", .expect = "bad_host",
         .flags = {"ps", "0", "[\"a:1\"]", "c:1", NULL, NULL, NULL, false}},
        {"a scheme", .expect = "bad_host",
         .flags = {"ps", "0", "tcp://a:1", "c:1", NULL, NULL, NULL, false}},
        {"not UTF-8", .expect = "bad_host",
         .flags = {"ps", "0", "\xff\xfe:1", "c:1", NULL, NULL, NULL, false}},
        {"a name not UTF-8", .expect = "task_type_not_in_cluster",
         .flags = {"\xff", "0", "a:1", "c:1", NULL, NULL, NULL, false}},
        {"two chiefs", .expect = "multiple_chiefs",
         .flags = {"ps", "0", "a:1", NULL, "c:1,d:1", NULL, NULL, false}},
        {"an index below 0", .expect = "bad_index",
         .flags = {"ps", "-1", "a:1", "c:1", NULL, NULL, NULL, false}},
        {"a real index", .expect = "bad_index",
         .flags = {"ps", "0.0", "a:1", "c:1", NULL, NULL, NULL, false}},
        {"an index past the end", .expect = "index_out_of_range",
         .flags = {"worker", "1", "a:1", "c:1", NULL, NULL, NULL, false}},
        {"a huge index", .expect = "index_out_of_range",
         .flags = {"worker", "18446744073709551616", "a:1", "c:1", NULL, NULL,
                   NULL, false}},
        {"evaluator 1", .expect = "evaluator_index",
         .flags = {"evaluator", "1", "a:1", "c:1", NULL, NULL, NULL, false}},
        {"a pool of Vertex", .expect = "task_type_not_in_cluster",
         .flags = {"workerpool1", "0", "a:1", "c:1", NULL, NULL, NULL, false}},
    };
    cluster_case_check_all(forms);
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
