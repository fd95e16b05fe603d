/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/cluster/cluster_rank.h"
#include "tests/cluster/cluster_case.h"
#include "tests/lib/test.h"

/* The local rank of TASK ("'type': 'worker', 'index': 1") where chief,
 * worker 1 and worker 2 share host a. */
static uint32_t local_rank(const char *type, int index, const char *given) {
    const char *value =
        textf("{\"cluster\": {\"chief\": [\"a:1\"], \"worker\": [\"b:1\", "
              "\"A:2\", \"a:3\", \"b:2\"], \"ps\": [\"a:4\", \"a:5\"]}, "
              "\"task\": {\"type\": \"%s\", \"index\": %d}}",
              type, index);
    struct cluster_case_variable environment[CLUSTER_CASE_VARIABLES] = {
        {"TF_CONFIG", value},
        {"LOCAL_RANK", given},
        {"OMPI_COMM_WORLD_LOCAL_RANK", "9"},
    };
    struct cluster_local_peers local_peers;
    struct cluster *cluster;
    uint32_t count;
    assert_int_equal(
        cluster_resolve(&cluster, NULL, cluster_case_lookup, environment, NULL),
        STATUS_OK);
    assert_int_equal(cluster_rank_local_peers(cluster, cluster_case_lookup,
                                              environment, &local_peers, NULL),
                     STATUS_OK);
    cluster_free(&cluster);
    return cluster_rank_on_host(&local_peers, true, &count);
}

TEST(the_local_rank_counts_processes_of_the_host) {
    assert_int_equal(local_rank("chief", 0, NULL), 0);
    assert_int_equal(local_rank("worker", 0, NULL), 0);
    assert_int_equal(local_rank("worker", 1, NULL), 1);
    assert_int_equal(local_rank("worker", 2, NULL), 2);
    assert_int_equal(local_rank("worker", 3, NULL), 1);
}

/* Of worker 2 of the same cluster, as "RANK of COUNT". */
TEST(a_training_chief_shifts_the_other_ranks) {
    struct cluster_case_variable environment[CLUSTER_CASE_VARIABLES] = {
        {"TF_CONFIG", "{\"cluster\": {\"chief\": [\"a:1\"], \"worker\": "
                      "[\"b:1\", \"A:2\", \"a:3\", \"b:2\"]}, \"task\": "
                      "{\"type\": \"worker\", \"index\": 2}}"}};
    struct cluster_local_peers local_peers;
    struct cluster *cluster;
    uint32_t count;
    assert_int_equal(
        cluster_resolve(&cluster, NULL, cluster_case_lookup, environment, NULL),
        STATUS_OK);
    assert_int_equal(cluster_rank_local_peers(cluster, cluster_case_lookup,
                                              environment, &local_peers, NULL),
                     STATUS_OK);
    cluster_free(&cluster);
    assert_int_equal(cluster_rank_on_host(&local_peers, true, &count), 2);
    assert_int_equal(count, 3);
    assert_int_equal(cluster_rank_on_host(&local_peers, false, &count), 1);
    assert_int_equal(count, 2);
    local_peers.reported = 7;
    assert_int_equal(cluster_rank_on_host(&local_peers, false, &count), 7);
}

TEST(a_single_process_counts_itself) {
    struct cluster_case_variable none[CLUSTER_CASE_VARIABLES] = {{0}};
    struct cluster alone = {
        .local = true, .role = CLUSTER_WORKER, .local_rank = CLUSTER_UNKNOWN};
    struct cluster_local_peers local_peers;
    uint32_t count = 9;
    assert_int_equal(cluster_rank_local_peers(&alone, cluster_case_lookup, none,
                                              &local_peers, NULL),
                     STATUS_OK);
    assert_int_equal(cluster_rank_on_host(&local_peers, true, &count), 0);
    assert_int_equal(count, 1);
}

/* Trainers on the host of a process with such variables, of two ps by rank when
 * NUM_PS is "2". */
static uint32_t trainers_here(const char *num_ps, const char *const *names,
                              const char *const *values) {
    struct cluster_case_variable environment[CLUSTER_CASE_VARIABLES] = {{0}};
    struct cluster_flags flags = {.num_ps = num_ps};
    struct cluster_local_peers local_peers;
    struct cluster *cluster;
    uint32_t count = 9;
    for (int i = 0; names[i]; i++)
        environment[i] = (struct cluster_case_variable){names[i], values[i]};
    assert_ok(cluster_resolve(&cluster, &flags, cluster_case_lookup,
                              environment, &failure));
    assert_int_equal(cluster_rank_local_peers(cluster, cluster_case_lookup,
                                              environment, &local_peers, NULL),
                     STATUS_OK);
    cluster_free(&cluster);
    (void)cluster_rank_on_host(&local_peers, false, &count);
    return count;
}

#define TORCH "RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"

/* Rank 0's host is known from the start, and that of no other. */
TEST(ranks_are_counted_from_their_variables) {
    const char *const reported[] = {TORCH, "LOCAL_RANK", "LOCAL_WORLD_SIZE",
                                    NULL};
    const char *const silent[] = {TORCH, NULL};
    assert_int_equal(
        trainers_here(NULL, reported,
                      (const char *[]){"0", "8", "a", "29500", "0", "4"}),
        4);
    assert_int_equal(
        trainers_here(NULL, reported,
                      (const char *[]){"3", "4", "a", "29500", "0", "1"}),
        1);
    assert_int_equal(
        trainers_here("2", reported, /* which of them are ps? */
                      (const char *[]){"0", "8", "a", "29500", "0", "4"}),
        0);
    assert_int_equal(
        trainers_here("2", reported,
                      (const char *[]){"1", "4", "a", "29500", "0", "1"}),
        1);
    assert_int_equal(
        trainers_here(NULL, silent, (const char *[]){"0", "8", "a", "29500"}),
        0);
}

TEST(a_list_by_index_may_leave_trainers_out) {
    const char *const names[] = {"TF_CONFIG", NULL};
    const char *sparse =
        "{\"cluster\": {\"chief\": [\"a:1\"], \"worker\": {\"1\": \"b:1\"}},"
        " \"task\": {\"type\": \"worker\", \"index\": 1}}";
    assert_int_equal(trainers_here(NULL, names, &sparse), 0);
}

TEST(a_process_that_does_not_train_has_local_rank_0) {
    assert_int_equal(local_rank("ps", 1, NULL), 0);
    assert_int_equal(local_rank("evaluator", 0, NULL), 0);
}

TEST(a_given_local_rank_takes_precedence) {
    assert_int_equal(local_rank("worker", 2, "5"), 5);
    assert_int_equal(local_rank("worker", 2, " "), 2);
}

TEST(a_nonnumeric_local_rank_is_refused) {
    struct cluster_case_variable environment[CLUSTER_CASE_VARIABLES] = {
        {"LOCAL_RANK", "-1"}};
    struct cluster alone = {.local = true, .role = CLUSTER_WORKER};
    struct cluster_local_peers local_peers;
    struct failure why = {0};
    assert_fails(cluster_rank_local_peers(&alone, cluster_case_lookup,
                                          environment, &local_peers, &why),
                 &why, FAILURE_CLUSTER_INVALID);
    assert_memory_equal(why.text, "bad_index: LOCAL_RANK is \"-1\"", 29);
}

static int64_t node_rank(struct cluster_case_variable a,
                         struct cluster_case_variable b,
                         struct cluster_case_variable c,
                         struct cluster_case_variable d) {
    struct cluster_case_variable environment[CLUSTER_CASE_VARIABLES] = {
        a, b, c, d, {"OMPI_COMM_WORLD_NODE_RANK", "77"}};
    int64_t rank = 99;
    assert_int_equal(
        cluster_rank_node(cluster_case_lookup, environment, &rank, NULL),
        STATUS_OK);
    return rank;
}

TEST(the_node_rank_comes_from_the_first_variable_set) {
    const struct cluster_case_variable none = {0};
    const struct cluster_case_variable node = {"NODE_RANK", "1"};
    const struct cluster_case_variable group = {"GROUP_RANK", "2"};
    const struct cluster_case_variable slurm = {"SLURM_NODEID", "3"};
    const struct cluster_case_variable rank = {"OMPI_COMM_WORLD_RANK", "11"};
    const struct cluster_case_variable size = {"OMPI_COMM_WORLD_LOCAL_SIZE",
                                               "2"};
    assert_int_equal(node_rank(slurm, group, node, none), 1);
    assert_int_equal(node_rank(slurm, group, rank, size), 2);
    assert_int_equal(node_rank(slurm, rank, size, none), 5);
    assert_int_equal(node_rank(slurm, rank, none, none), 3);
    assert_int_equal(node_rank(slurm, none, none, none), 3);
    assert_int_equal(node_rank(none, none, none, none), -1);
}

TEST(a_nonnumeric_node_rank_is_refused) {
    static const char *const names[] = {"NODE_RANK", "GROUP_RANK",
                                        "OMPI_COMM_WORLD_RANK", "SLURM_NODEID"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct cluster_case_variable environment[CLUSTER_CASE_VARIABLES] = {
            {names[i], "first"}};
        int64_t rank;
        assert_int_equal(
            cluster_rank_node(cluster_case_lookup, environment, &rank, NULL),
            STATUS_CONFIG);
    }
}

static void expect_rank(const char *cluster, const char *task,
                        const char *wanted) {
    char value[256], text[64];
    snprintf(value, sizeof value, "{\"cluster\": %s, \"task\": %s}", cluster,
             task);
    struct cluster_case_variable environment[CLUSTER_CASE_VARIABLES] = {
        {"TF_CONFIG", cluster[0] ? value : NULL}};
    struct cluster *read;
    assert_int_equal(
        cluster_resolve(&read, NULL, cluster_case_lookup, environment, NULL),
        STATUS_OK);
    cluster_rank_text(read, text, sizeof text);
    cluster_free(&read);
    assert_string_equal(text, wanted);
}

#define TASK(type, index) "{\"type\": \"" type "\", \"index\": " #index "}"

TEST(the_rank_is_known_when_the_description_determines_it) {
    static const char led[] = "{\"chief\": [\"a:1\"], \"ps\": [\"a:2\"], "
                              "\"worker\": [\"b:1\", \"b:2\"]}";
    static const char alike[] =
        "{\"ps\": [\"a:2\"], \"worker\": [\"b:1\", \"b:2\"]}";
    static const char sparse[] =
        "{\"ps\": [\"a:2\"], \"worker\": {\"1\": \"b:2\"}}";
    expect_rank("", "", "rank 0, ");
    expect_rank(alike, TASK("worker", 0), "rank 0, ");
    expect_rank(alike, TASK("worker", 1), "rank 1, ");
    expect_rank(alike, TASK("ps", 0), "");
    expect_rank(led, TASK("worker", 1), "");
    expect_rank(led, TASK("chief", 0), "");
    expect_rank(led, TASK("evaluator", 0), "");
    expect_rank(sparse, TASK("worker", 1), "");
}
