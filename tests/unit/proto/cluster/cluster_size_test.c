/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/cluster/cluster_size.h"
#include "tests/cluster/cluster_case.h"
#include "tests/lib/test.h"

/* What the description in ENVIRONMENT tells, as text. */
static void expect(const struct cluster_case_variable *variables,
                   const char *num_ps, const char *text) {
    struct cluster_case_variable environment[CLUSTER_CASE_VARIABLES] = {{0}};
    struct cluster_flags flags = {.num_ps = num_ps};
    struct cluster *cluster;
    char found[128];
    for (int i = 0; i < 4 && variables[i].name; i++)
        environment[i] = variables[i];
    assert_ok(cluster_resolve(&cluster, &flags, cluster_case_lookup,
                              environment, &failure));
    struct cluster_size known = cluster_size_known(cluster);
    cluster_size_text(&known, found, sizeof found);
    cluster_free(&cluster);
    assert_string_equal(found, text);
}

#define VARIABLES(...)                                                         \
    ((const struct cluster_case_variable[]){__VA_ARGS__, {NULL, NULL}})
#define TF_CONFIG(cluster, task)                                               \
    VARIABLES({"TF_CONFIG", "{\"cluster\": " cluster ", \"task\": " task "}"})

TEST(ranks_give_both_numbers) {
    expect(VARIABLES({"RANK", "1"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "a"}),
           "1", "3 workers and 1 ps by torch");
    expect(VARIABLES({"OMPI_COMM_WORLD_RANK", "1"},
                     {"OMPI_COMM_WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}),
           NULL, "2 workers and 0 ps by mpi");
}

TEST(lists_give_their_lengths) {
    expect(TF_CONFIG("{\"chief\": [\"a:1\"], \"ps\": [\"b:1\", \"c:1\"],"
                     " \"worker\": [\"d:1\"]}",
                     "{\"type\": \"worker\", \"index\": 0}"),
           NULL, "1 worker and 2 ps by TF_CONFIG");
}

TEST(a_partial_description_gives_only_known_numbers) {
    expect(TF_CONFIG("{\"ps\": [\"b:1\", \"c:1\"],"
                     " \"worker\": {\"1\": \"d:1\"}}",
                     "{\"type\": \"worker\", \"index\": 1}"),
           NULL, "2 ps by TF_CONFIG");
    expect(TF_CONFIG("{\"worker\": {}, \"ps\": [\"b:1\"]}",
                     "{\"type\": \"ps\", \"index\": 1}"),
           NULL, " by TF_CONFIG");
    expect(TF_CONFIG("{\"chief\": [\"a:1\"], \"worker\": [\"b:1\"]}",
                     "{\"type\": \"worker\", \"index\": 0}"),
           NULL, "1 worker by TF_CONFIG");
}

TEST(only_two_known_numbers_can_differ) {
    enum { NOT = CLUSTER_UNKNOWN };
    const struct cluster_size full = {"torch", 3, 1}, same = {"mpi", 3, 1},
                              none = {"TF_CONFIG", NOT, NOT},
                              silent = {NULL, 2, 2}, fewer = {"torch", 2, 1},
                              more_ps = {"torch", NOT, 2};
    assert_false(cluster_size_differs(&full, &same));
    assert_false(cluster_size_differs(&full, &none));
    assert_false(cluster_size_differs(&none, &full));
    assert_false(cluster_size_differs(&full, &silent));
    assert_true(cluster_size_differs(&full, &fewer));
    assert_true(cluster_size_differs(&more_ps, &full));
}
