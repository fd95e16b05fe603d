/* SPDX-License-Identifier: Apache-2.0 */
#include "commands/cli/launch_options.h"

#include "tests/cluster/cluster_case.h"
#include "tests/lib/test.h"

static char *const command[] = {(char *)"true", NULL};

struct form {
    const char *says;
    struct options flags;
    struct cluster_case_variable environment[CLUSTER_CASE_VARIABLES];
    struct launch_world expect;
};

static void check(const struct form *form) {
    struct options flags = form->flags;
    struct launch_world world;
    struct failure why = {0};
    flags.command = command;
    print_message("%s\n", form->says);
    if (launch_options_resolve(&world, &flags, cluster_case_lookup,
                               (void *)form->environment, &why))
        fail_msg("%s", why.text);
    assert_int_equal(world.nproc_kind, form->expect.nproc_kind);
    assert_int_equal(world.nproc_per_node, form->expect.nproc_per_node);
    assert_int_equal(world.nnodes, form->expect.nnodes);
    assert_int_equal(world.node_rank, form->expect.node_rank);
    assert_string_equal(world.master_addr, form->expect.master_addr);
    assert_int_equal(world.master_port, form->expect.master_port);
    assert_true(world.grace == form->expect.grace);
}

TEST(flags_override_variables_which_override_defaults) {
    static const struct form forms[] = {
        {"nothing", {0}, {{0}}, {0, 1, 1, 0, "127.0.0.1", 29500, 40}},
        {"flags",
         {.nproc_per_node = "2",
          .nnodes = "3",
          .node_rank = "1",
          .master_addr = "m",
          .master_port = "7",
          .grace = "0.5"},
         {{"MASTER_ADDR", "x"}, {"MASTER_PORT", "8"}, {"NODE_RANK", "2"}},
         {0, 2, 3, 1, "m", 7, 0.5}},
        {"variables",
         {.nnodes = "3"},
         {{"MASTER_ADDR", "x"}, {"MASTER_PORT", "8"}, {"NODE_RANK", "2"}},
         {0, 1, 3, 2, "x", 8, 40}},
        {"Kubeflow's",
         {0},
         {{"PET_NNODES", "2"},
          {"PET_NPROC_PER_NODE", "4"},
          {"PET_NODE_RANK", "1"},
          {"PET_MASTER_ADDR", "n0"},
          {"PET_MASTER_PORT", "29500"},
          {"MASTER_ADDR", "x"}},
         {0, 4, 2, 1, "n0", 29500, 40}},
        {"mpirun with one process a node",
         {.nproc_per_node = "2"},
         {{"OMPI_COMM_WORLD_RANK", "1"},
          {"OMPI_COMM_WORLD_SIZE", "2"},
          {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"},
          {"AZ_BATCH_MASTER_NODE", "10.0.0.4:6000"}},
         {0, 2, 2, 1, "10.0.0.4", 6000, 40}},
        {"srun with one task a node",
         {0},
         {{"SLURM_STEP_NUM_NODES", "2"},
          {"SLURM_NODEID", "1"},
          {"MASTER_ADDR", "n1"}},
         {0, 1, 2, 1, "n1", 29500, 40}},
        {"the first of its nodes leads",
         {0},
         {{"SLURM_STEP_NUM_NODES", "2"},
          {"SLURM_NODEID", "1"},
          {"SLURM_STEP_NODELIST", "n[1-2]"}},
         {0, 1, 2, 1, "n1", 29500, 40}},
        {"the number of nodes given beside srun's",
         {.nnodes = "2"},
         {{"SLURM_STEP_NUM_NODES", "2"}, {"SLURM_STEP_NODELIST", "n[1-2]"}},
         {0, 1, 2, 0, "n1", 29500, 40}},
        {"a list that nobody needs",
         {0},
         {{"SLURM_STEP_NUM_NODES", "2"},
          {"SLURM_STEP_NODELIST", "n[1-"},
          {"MASTER_ADDR", "n0"}},
         {0, 1, 2, 0, "n0", 29500, 40}},
        {"a range of one number",
         {.nnodes = "2:2", .master_addr = "m"},
         {{0}},
         {0, 1, 2, 0, "m", 29500, 40}},
        {"mpiexec of another MPI",
         {.nproc_per_node = "2"},
         {{"PMI_RANK", "1"},
          {"PMI_SIZE", "2"},
          {"MPI_LOCALNRANKS", "1"},
          {"MASTER_ADDR", "n0"}},
         {0, 2, 2, 1, "n0", 29500, 40}},
        {"one for each that there is",
         {0},
         {{"PET_NPROC_PER_NODE", "auto"}},
         {LAUNCH_NPROC_AUTO, 0, 1, 0, "127.0.0.1", 29500, 40}},
        {"under a launcher whose agent holds the port",
         {0},
         {{"MASTER_PORT", "29400"}, {"TORCHELASTIC_USE_AGENT_STORE", "True"}},
         {0, 1, 1, 0, "127.0.0.1", 29400, 40}},
    };
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        check(&forms[i]);
}

TEST(impossible_settings_are_refused) {
    static const struct {
        struct options flags;
        enum failure_code code;
        const char *text;
    } forms[] = {
        {{.nproc_per_node = "0"},
         FAILURE_BAD_FLAG_VALUE,
         "--nproc_per_node is \"0\""},
        {{.nproc_per_node = "all"},
         FAILURE_BAD_FLAG_VALUE,
         "--nproc_per_node is \"all\""},
        {{.nnodes = "1:4"},
         FAILURE_FLAG_CONFLICT,
         "--nnodes is \"1:4\", a range"},
        {{.node_rank = "-1"}, FAILURE_BAD_FLAG_VALUE, "--node_rank is \"-1\""},
        {{.node_rank = "1"},
         FAILURE_BAD_FLAG_VALUE,
         "--node_rank is 1, and of 1 nodes"},
        {{.master_port = "x"},
         FAILURE_CLUSTER_INVALID,
         "bad_port: MASTER_PORT is \"x\""},
        {{.master_addr = "tcp://m"},
         FAILURE_CLUSTER_INVALID,
         "bad_host: MASTER_ADDR"},
        {{.grace = "-1"}, FAILURE_BAD_FLAG_VALUE, "--grace takes seconds"},
        {{.module = true, .no_python = true},
         FAILURE_FLAG_CONFLICT,
         "--module is"},
    };
    struct cluster_case_variable environment[CLUSTER_CASE_VARIABLES] = {{0}};
    struct launch_world world;
    struct failure why = {0};
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        struct options flags = forms[i].flags;
        flags.command = command;
        assert_fails(launch_options_resolve(&world, &flags, cluster_case_lookup,
                                            environment, &why),
                     &why, forms[i].code);
        if (strncmp(why.text, forms[i].text, strlen(forms[i].text)))
            fail_msg("%s is expected, not: %s", forms[i].text, why.text);
    }
}

TEST(several_nodes_of_mpi_need_the_address_of_the_first) {
    struct cluster_case_variable environment[CLUSTER_CASE_VARIABLES] = {
        {"OMPI_COMM_WORLD_RANK", "1"},
        {"OMPI_COMM_WORLD_SIZE", "2"},
        {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}};
    struct options flags = {.command = command};
    struct launch_world world;
    struct failure why = {0};
    assert_fails(launch_options_resolve(&world, &flags, cluster_case_lookup,
                                        environment, &why),
                 &why, FAILURE_CLUSTER_INVALID);
    assert_contains(why.text, "master_addr_missing");
}

TEST(a_command_is_needed) {
    struct cluster_case_variable environment[CLUSTER_CASE_VARIABLES] = {{0}};
    struct options flags = {0};
    struct launch_world world;
    assert_int_equal(launch_options_resolve(&world, &flags, cluster_case_lookup,
                                            environment, NULL),
                     STATUS_CONFIG);
}
