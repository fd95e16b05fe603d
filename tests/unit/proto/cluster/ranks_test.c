/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/cluster/cluster_case.h"
#include "tests/lib/test.h"

#define MASTER                                                                 \
    {"MASTER_ADDR", "m"}, {                                                    \
        "MASTER_PORT", "29500"                                                 \
    }
#define WORLD(rank, size)                                                      \
    {"RANK", rank}, {                                                          \
        "WORLD_SIZE", size                                                     \
    }

TEST(ranks_are_workers_and_the_last_are_ps) {
    static const struct cluster_case forms[] = {
        {"rank 0 leads",
         {WORLD("0", "4"), MASTER},
         .expect =
             "{'source': 'torch', 'role': 'worker', 'index': 0, 'num_ps': 0, "
             "'num_workers': 4, 'chief': 'm:29500', 'is_chief': true, "
             "'mode': 'cluster', 'warnings': []}"},
        {"rank 3 follows",
         {WORLD("3", "4"), MASTER},
         .expect = "{'role': 'worker', 'index': 3, 'is_chief': false, "
                   "'chief': 'm:29500'}"},
        {"the last worker",
         {WORLD("1", "4"), MASTER},
         "{'role': 'worker', 'index': 1, 'num_ps': 2, 'num_workers': 2}",
         {.num_ps = "2"}},
        {"the first ps",
         {WORLD("2", "4"), MASTER},
         "{'role': 'ps', 'index': 0, 'is_chief': false, 'chief': 'm:29500'}",
         {.num_ps = "2"}},
        {"the last ps",
         {WORLD("3", "4"), MASTER},
         "{'role': 'ps', 'index': 1}",
         {.num_ps = "2"}},
        {"ps by a variable",
         {WORLD("3", "4"), MASTER, {"CAPSTAN_NUM_PS", "1"}},
         .expect = "{'role': 'ps', 'index': 0, 'num_workers': 3}"},
        {"the flag wins",
         {WORLD("1", "4"), MASTER, {"CAPSTAN_NUM_PS", "1"}},
         "{'role': 'worker', 'num_ps': 2}",
         {.num_ps = "2"}},
        {"no ps said",
         {WORLD("1", "2"), MASTER},
         "{'role': 'worker', 'num_ps': 0}",
         {.num_ps = "0"}},
    };
    cluster_case_check_all(forms);
}

TEST(a_world_of_one_is_alone) {
    static const struct cluster_case forms[] = {
        {"alone",
         {WORLD("0", "1")},
         .expect =
             "{'source': 'torch', 'role': 'worker', 'index': 0, 'num_workers': 1, "
             "'chief': null, 'is_chief': true, 'mode': 'local'}"},
        {"no rank is left to be a ps",
         {WORLD("0", "1")},
         "bad_num_ps",
         {.num_ps = "1"}},
    };
    cluster_case_check_all(forms);
}

TEST(impossible_numbers_are_refused) {
    static const struct cluster_case forms[] = {
        {"rank past the end",
         {WORLD("4", "4"), MASTER},
         .expect = "index_out_of_range"},
        {"rank below 0", {WORLD("-1", "4"), MASTER}, .expect = "bad_index"},
        {"rank a word", {WORLD("one", "4"), MASTER}, .expect = "bad_index"},
        {"rank a real", {WORLD("1.0", "4"), MASTER}, .expect = "bad_index"},
        {"rank huge",
         {WORLD("18446744073709551616", "4"), MASTER},
         .expect = "bad_index"},
        {"nobody", {WORLD("0", "0"), MASTER}, .expect = "bad_world_size"},
        {"a world below 0",
         {WORLD("0", "-4"), MASTER},
         .expect = "bad_world_size"},
        {"a world of words",
         {WORLD("0", "four"), MASTER},
         .expect = "bad_world_size"},
        {"too large a world",
         {WORLD("0", "99999999999"), MASTER},
         .expect = "bad_world_size"},
        {"all are ps",
         {WORLD("0", "4"), MASTER},
         "bad_num_ps",
         {.num_ps = "4"}},
        {"all are ps by a variable",
         {WORLD("0", "4"), MASTER, {"CAPSTAN_NUM_PS", "4"}},
         .expect = "bad_num_ps"},
        {"a word of ps",
         {WORLD("0", "4"), MASTER},
         "bad_num_ps",
         {.num_ps = "two"}},
        {"no address", {WORLD("0", "4")}, .expect = "master_addr_missing"},
        {"local rank past the world",
         {WORLD("0", "4"), MASTER, {"LOCAL_RANK", "4"}},
         .expect = "index_out_of_range"},
        {"local rank past the host",
         {WORLD("3", "4"),
          MASTER,
          {"LOCAL_RANK", "2"},
          {"LOCAL_WORLD_SIZE", "2"}},
         .expect = "index_out_of_range"},
        {"a host larger than the world",
         {WORLD("0", "4"), MASTER, {"LOCAL_WORLD_SIZE", "5"}},
         .expect = "bad_world_size"},
        {"a local rank of words",
         {WORLD("0", "4"), MASTER, {"LOCAL_RANK", "a"}},
         .expect = "bad_index"},
    };
    cluster_case_check_all(forms);
}

TEST(the_flag_is_equivalent_to_the_variable) {
    static const struct cluster_case forms[] = {
        {"the flag alone",
         {WORLD("1", "2"), MASTER},
         "{'index': 1}",
         {.local_rank = "1"}},
        {"both",
         {WORLD("1", "2"), MASTER, {"LOCAL_RANK", "1"}},
         "{'index': 1}",
         {.local_rank = "1"}},
        {"both, and different",
         {WORLD("1", "2"), MASTER, {"LOCAL_RANK", "1"}},
         "local_rank_conflict",
         {.local_rank = "0"}},
        {"more than this host has",
         {WORLD("1", "2"), MASTER, {"LOCAL_WORLD_SIZE", "2"}},
         "index_out_of_range",
         {.local_rank = "2"}},
        {"the variable more than MPI has here",
         {{"OMPI_COMM_WORLD_RANK", "0"},
          {"OMPI_COMM_WORLD_SIZE", "2"},
          {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
          MASTER,
          {"LOCAL_RANK", "7"}},
         .expect = "index_out_of_range"},
        {"the flag a word",
         {WORLD("1", "2"), MASTER},
         "bad_index",
         {.local_rank = "x"}},
        {"different in another source",
         {{"TF_CONFIG", "{}"}, {"LOCAL_RANK", "1"}},
         "local_rank_conflict",
         {.local_rank = "0"}},
    };
    cluster_case_check_all(forms);
}

TEST(num_ps_is_for_ranks_alone) {
    static const struct cluster_case forms[] = {
        {"TF_CONFIG lists its ps",
         {{"TF_CONFIG", "{\"cluster\": {\"worker\": [\"a:1\"]}}"}},
         "num_ps_given",
         {.num_ps = "1"}},
        {"alone", .expect = "num_ps_given", .flags = {.num_ps = "1"}},
    };
    cluster_case_check_all(forms);
}

TEST(an_address_unknown_to_others_is_omitted) {
    const struct cluster_flags flags = {.num_ps = "1"};
    const struct cluster_case_variable environment[CLUSTER_CASE_VARIABLES] = {
        WORLD("2", "3"), MASTER, {"LOCAL_RANK", "1"}};
    struct cluster *cluster;
    assert_int_equal(cluster_resolve(&cluster, &flags, cluster_case_lookup,
                                     (void *)environment, NULL),
                     STATUS_OK);
    assert_string_equal(cluster_own_task(cluster)->host, "");
    assert_int_equal(cluster_own_task(cluster)->port, 0);
    assert_string_equal(cluster_find(cluster, CLUSTER_WORKER, 1)->host, "");
    assert_string_equal(cluster_chief(cluster)->host, "m");
    assert_int_equal(cluster->local_rank, 1);
    assert_true(cluster->from_ranks);
    cluster_free(&cluster);
}
