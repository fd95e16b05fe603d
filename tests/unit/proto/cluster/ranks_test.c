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
         .expect =
             "{'source': 'torch', 'role': 'worker', 'index': 0, 'num_ps': 0, "
             "'num_workers': 4, 'chief': 'm:29500', 'is_chief': true, "
             "'mode': 'cluster', 'warnings': []}",
         .environment = {WORLD("0", "4"), MASTER}},
        {"rank 3 follows",
         .expect = "{'role': 'worker', 'index': 3, 'is_chief': false, "
                   "'chief': 'm:29500'}",
         .environment = {WORLD("3", "4"), MASTER}},
        {"the last worker",
         .expect =
             "{'role': 'worker', 'index': 1, 'num_ps': 2, 'num_workers': 2}",
         .environment = {WORLD("1", "4"), MASTER}, .flags = {.num_ps = "2"}},
        {"the first ps",
         .expect =
             "{'role': 'ps', 'index': 0, 'is_chief': false, 'chief': 'm:29500'}",
         .environment = {WORLD("2", "4"), MASTER}, .flags = {.num_ps = "2"}},
        {"the last ps", .expect = "{'role': 'ps', 'index': 1}",
         .environment = {WORLD("3", "4"), MASTER}, .flags = {.num_ps = "2"}},
        {"ps by a variable",
         .expect = "{'role': 'ps', 'index': 0, 'num_workers': 3}",
         .environment = {WORLD("3", "4"), MASTER, {"CAPSTAN_NUM_PS", "1"}}},
        {"the flag wins", .expect = "{'role': 'worker', 'num_ps': 2}",
         .environment = {WORLD("1", "4"), MASTER, {"CAPSTAN_NUM_PS", "1"}},
         .flags = {.num_ps = "2"}},
        {"no ps said", .expect = "{'role': 'worker', 'num_ps': 0}",
         .environment = {WORLD("1", "2"), MASTER}, .flags = {.num_ps = "0"}},
    };
    cluster_case_check_all(forms);
}

TEST(a_world_of_one_is_alone) {
    static const struct cluster_case forms[] = {
        {"alone",
         .expect =
             "{'source': 'torch', 'role': 'worker', 'index': 0, 'num_workers': 1, "
             "'chief': null, 'is_chief': true, 'mode': 'local'}",
         .environment = {WORLD("0", "1")}},
        {"no rank is left to be a ps", .expect = "bad_num_ps",
         .environment = {WORLD("0", "1")}, .flags = {.num_ps = "1"}},
    };
    cluster_case_check_all(forms);
}

TEST(impossible_numbers_are_refused) {
    static const struct cluster_case forms[] = {
        {"rank past the end", .expect = "index_out_of_range",
         .environment = {WORLD("4", "4"), MASTER}},
        {"rank below 0", .expect = "bad_index",
         .environment = {WORLD("-1", "4"), MASTER}},
        {"rank a word", .expect = "bad_index",
         .environment = {WORLD("one", "4"), MASTER}},
        {"rank a real", .expect = "bad_index",
         .environment = {WORLD("1.0", "4"), MASTER}},
        {"rank huge", .expect = "bad_index",
         .environment = {WORLD("18446744073709551616", "4"), MASTER}},
        {"nobody", .expect = "bad_world_size",
         .environment = {WORLD("0", "0"), MASTER}},
        {"a world below 0", .expect = "bad_world_size",
         .environment = {WORLD("0", "-4"), MASTER}},
        {"a world of words", .expect = "bad_world_size",
         .environment = {WORLD("0", "four"), MASTER}},
        {"too large a world", .expect = "bad_world_size",
         .environment = {WORLD("0", "99999999999"), MASTER}},
        {"all are ps", .expect = "bad_num_ps",
         .environment = {WORLD("0", "4"), MASTER}, .flags = {.num_ps = "4"}},
        {"all are ps by a variable", .expect = "bad_num_ps",
         .environment = {WORLD("0", "4"), MASTER, {"CAPSTAN_NUM_PS", "4"}}},
        {"a word of ps", .expect = "bad_num_ps",
         .environment = {WORLD("0", "4"), MASTER}, .flags = {.num_ps = "two"}},
        {"no address", .expect = "master_addr_missing",
         .environment = {WORLD("0", "4")}},
        {"local rank past the world", .expect = "index_out_of_range",
         .environment = {WORLD("0", "4"), MASTER, {"LOCAL_RANK", "4"}}},
        {"local rank past the host", .expect = "index_out_of_range",
         .environment = {WORLD("3", "4"),
                         MASTER,
                         {"LOCAL_RANK", "2"},
                         {"LOCAL_WORLD_SIZE", "2"}}},
        {"a host larger than the world", .expect = "bad_world_size",
         .environment = {WORLD("0", "4"), MASTER, {"LOCAL_WORLD_SIZE", "5"}}},
        {"a local rank of words", .expect = "bad_index",
         .environment = {WORLD("0", "4"), MASTER, {"LOCAL_RANK", "a"}}},
    };
    cluster_case_check_all(forms);
}

TEST(the_flag_is_equivalent_to_the_variable) {
    static const struct cluster_case forms[] = {
        {"the flag alone", .expect = "{'index': 1}",
         .environment = {WORLD("1", "2"), MASTER},
         .flags = {.local_rank = "1"}},
        {"both", .expect = "{'index': 1}",
         .environment = {WORLD("1", "2"), MASTER, {"LOCAL_RANK", "1"}},
         .flags = {.local_rank = "1"}},
        {"both, and different", .expect = "local_rank_conflict",
         .environment = {WORLD("1", "2"), MASTER, {"LOCAL_RANK", "1"}},
         .flags = {.local_rank = "0"}},
        {"more than this host has", .expect = "index_out_of_range",
         .environment = {WORLD("1", "2"), MASTER, {"LOCAL_WORLD_SIZE", "2"}},
         .flags = {.local_rank = "2"}},
        {"the variable more than MPI has here", .expect = "index_out_of_range",
         .environment = {{"OMPI_COMM_WORLD_RANK", "0"},
                         {"OMPI_COMM_WORLD_SIZE", "2"},
                         {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                         MASTER,
                         {"LOCAL_RANK", "7"}}},
        {"the flag a word", .expect = "bad_index",
         .environment = {WORLD("1", "2"), MASTER},
         .flags = {.local_rank = "x"}},
        {"different in another source", .expect = "local_rank_conflict",
         .environment = {{"TF_CONFIG", "{}"}, {"LOCAL_RANK", "1"}},
         .flags = {.local_rank = "0"}},
    };
    cluster_case_check_all(forms);
}

TEST(num_ps_is_for_ranks_alone) {
    static const struct cluster_case forms[] = {
        {"TF_CONFIG lists its ps", .expect = "num_ps_given",
         .environment = {{"TF_CONFIG",
                          "{\"cluster\": {\"worker\": [\"a:1\"]}}"}},
         .flags = {.num_ps = "1"}},
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
