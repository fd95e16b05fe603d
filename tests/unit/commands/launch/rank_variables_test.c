/* SPDX-License-Identifier: Apache-2.0 */
#include "commands/launch/launch.h"

#include "tests/lib/test.h"

#include <unistd.h>

static void expect(const char *name, const char *value) {
    const char *found = getenv(name);
    assert_non_null(found);
    assert_string_equal(found, value);
}

TEST(torch_variables_match_those_of_azure) {
    const struct azureml_distribution distribution = {
        .type = AZUREML_PYTORCH, .instances = 2, .per_instance = 3};
    rank_variables_set(&distribution, "127.0.0.1", 4);
    expect("MASTER_ADDR", "127.0.0.1");
    expect("MASTER_PORT", "6105");
    expect("WORLD_SIZE", "6");
    expect("RANK", "4");
    expect("LOCAL_RANK", "1");
    expect("NODE_RANK", "1");
}

TEST(mpi_variables_include_the_batch_master) {
    struct azureml_distribution distribution = {
        .type = AZUREML_MPI, .instances = 2, .per_instance = 3};
    rank_variables_set(&distribution, "127.0.0.1", 4);
    expect("OMPI_COMM_WORLD_RANK", "4");
    expect("OMPI_COMM_WORLD_SIZE", "6");
    expect("OMPI_COMM_WORLD_LOCAL_RANK", "1");
    expect("OMPI_COMM_WORLD_LOCAL_SIZE", "3");
    expect("AZ_BATCH_MASTER_NODE", "127.0.0.1:6000");
    rank_variables_unset();
    assert_null(getenv("AZ_BATCH_MASTER_NODE"));
    distribution.instances = 1;
    rank_variables_set(&distribution, "127.0.0.1", 2);
    expect("AZ_BATCHAI_MPI_MASTER_NODE", "localhost");
    assert_null(getenv("AZ_BATCH_MASTER_NODE"));
}

TEST(all_variables_of_a_prefix_are_hidden) {
    setenv("OMPI_A", "1", 1);
    setenv("OMPI_B", "", 1);
    setenv("XOMPI_", "1", 1);
    rank_variables_unset();
    assert_null(getenv("OMPI_A"));
    assert_null(getenv("OMPI_B"));
    expect("XOMPI_", "1");
}

/* As execve() takes them. */
TEST(a_name_without_a_value_is_passed_over) {
    char *entries[] = {"RANK", "WORLD_SIZE=2", NULL}, **before = environ;
    environ = entries;
    rank_variables_unset();
    char *left = entries[0], *end = entries[1];
    environ = before;
    assert_string_equal(left, "RANK");
    assert_null(end);
}

static const char *nothing(void *context, const char *name) {
    (void)context, (void)name;
    return NULL;
}

/* Scripts read SageMaker's. */
TEST(what_a_source_reads_is_hidden) {
    struct cluster_source sources[CLUSTER_SOURCES_MAX];
    uint32_t count = cluster_sources(sources, NULL, nothing, NULL);
    for (uint32_t i = 0; i < count; i++)
        setenv(sources[i].first, "1", 1);
    rank_variables_unset();
    for (uint32_t i = 0; i < count; i++)
        if (strcmp(sources[i].name, "SM_HOSTS"))
            assert_null(getenv(sources[i].first));
    expect("SM_HOSTS", "1");
    unsetenv("SM_HOSTS");
}
