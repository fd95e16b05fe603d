/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/cluster/chief_address.h"

#include "tests/cluster/cluster_case.h"
#include "tests/lib/test.h"

/* A host with its ports, or the start of an error. */
struct form {
    const char *says;
    struct chief_location location;
    struct cluster_case_variable environment[CLUSTER_CASE_VARIABLES];
    const char *host; /* NULL: refused with `error` */
    int port, ports;
    const char *error;
};

static void check(const struct form *form) {
    struct cluster_task task = {0};
    struct failure why = {0};
    uint16_t ports;
    struct cluster_input input = {.lookup = cluster_case_lookup,
                                  .context = (void *)form->environment};
    enum status status =
        chief_address_read(&task, &ports, &form->location, &input, &why);
    print_message("%s\n", form->says);
    if (!form->host) {
        assert_fails(status, &why, FAILURE_CLUSTER_INVALID);
        assert_int_equal(strncmp(why.text, form->error, strlen(form->error)),
                         0);
        return;
    }
    assert_int_equal(status, STATUS_OK);
    assert_string_equal(task.host, form->host);
    assert_int_equal(task.port, form->port);
    assert_int_equal(ports, form->ports);
}

#define AZ_BOTH                                                                \
    {"AZ_BATCH_MASTER_NODE", "10.0.0.4:6000"}, {                               \
        "AZ_BATCHAI_MPI_MASTER_NODE", "10.0.0.9"                               \
    }

TEST(the_first_address_found_counts) {
    static const struct form forms[] = {
        {"all are told",
         {0},
         {{"MASTER_ADDR", "m"}, {"MASTER_PORT", "7"}, AZ_BOTH},
         "m",
         7,
         0,
         NULL},
        {"the batch node", {0}, {AZ_BOTH}, "10.0.0.4", 6000, 0, NULL},
        {"its port for another host",
         {0},
         {{"MASTER_ADDR", "m"}, AZ_BOTH},
         "m",
         6000,
         0,
         NULL},
        {"another port",
         {0},
         {{"MASTER_PORT", "7"}, AZ_BOTH},
         "10.0.0.4",
         7,
         0,
         NULL},
        {"the MPI node",
         {0},
         {{"AZ_BATCHAI_MPI_MASTER_NODE", "10.0.0.9"}},
         "10.0.0.9",
         6105,
         0,
         NULL},
        {"localhost of one node",
         {.one_node = true},
         {{"AZ_BATCHAI_MPI_MASTER_NODE", "localhost"}},
         "localhost",
         54965,
         0,
         NULL},
        {"localhost of several",
         {.first_host = "n1"},
         {{"AZ_BATCHAI_MPI_MASTER_NODE", "localhost"}},
         "n1",
         6105,
         0,
         NULL},
        {"rank 0's host", {.first_host = "n1"}, {{0}}, "n1", 6105, 0, NULL},
        {"one node",
         {.one_node = true, .first_host = "n1"},
         {{0}},
         "127.0.0.1",
         54965,
         0,
         NULL},
        {"IPv6",
         {0},
         {{"MASTER_ADDR", "fe80::1"}, {"MASTER_PORT", "7"}},
         "fe80::1",
         7,
         0,
         NULL},
        {"IPv6 in brackets",
         {0},
         {{"MASTER_ADDR", "[::1]"}},
         "::1",
         6105,
         0,
         NULL},
        {"a wrong one that is not needed",
         {0},
         {{"MASTER_ADDR", "m"},
          {"MASTER_PORT", "7"},
          {"AZ_BATCH_MASTER_NODE", "x"}},
         "m",
         7,
         0,
         NULL},
    };
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        check(&forms[i]);
}

TEST(the_port_is_above_that_of_torchruns_agent) {
    static const char agent[] = "TORCHELASTIC_USE_AGENT_STORE";
    const struct form forms[] = {
        {"the agent listens",
         {0},
         {{"MASTER_ADDR", "m"}, {"MASTER_PORT", "29500"}, {agent, "True"}},
         "m",
         29501,
         16,
         NULL},
        {"it does not",
         {0},
         {{"MASTER_ADDR", "m"}, {"MASTER_PORT", "29500"}, {agent, "False"}},
         "m",
         29500,
         0,
         NULL},
        {"few are left",
         {0},
         {{"MASTER_ADDR", "m"}, {"MASTER_PORT", "65533"}, {agent, "True"}},
         "m",
         65534,
         2,
         NULL},
        {"none is left",
         {0},
         {{"MASTER_ADDR", "m"}, {"MASTER_PORT", "65535"}, {agent, "True"}},
         NULL,
         0,
         0,
         "bad_port: "},
    };
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        check(&forms[i]);
}

TEST(an_invalid_address_is_refused) {
    static const struct form forms[] = {
        {"nothing", {0}, {{0}}, NULL, 0, 0, "master_addr_missing: "},
        {"localhost alone",
         {0},
         {{"AZ_BATCHAI_MPI_MASTER_NODE", "localhost"}},
         NULL,
         0,
         0,
         "master_addr_missing: "},
        {"a port too many",
         {0},
         {{"MASTER_ADDR", "m:7"}},
         NULL,
         0,
         0,
         "bad_host: MASTER_ADDR"},
        {"a URL",
         {0},
         {{"MASTER_ADDR", "tcp://m"}},
         NULL,
         0,
         0,
         "bad_host: MASTER_ADDR"},
        {"no port",
         {0},
         {{"AZ_BATCH_MASTER_NODE", "10.0.0.4"}},
         NULL,
         0,
         0,
         "bad_port: AZ_BATCH_MASTER_NODE"},
        {"a word",
         {0},
         {{"MASTER_ADDR", "m"}, {"MASTER_PORT", "x"}},
         NULL,
         0,
         0,
         "bad_port: MASTER_PORT"},
        {"port 0",
         {0},
         {{"MASTER_ADDR", "m"}, {"MASTER_PORT", "0"}},
         NULL,
         0,
         0,
         "bad_port: MASTER_PORT"},
        {"a port too high",
         {0},
         {{"MASTER_ADDR", "m"}, {"MASTER_PORT", "65536"}},
         NULL,
         0,
         0,
         "bad_port: MASTER_PORT"},
    };
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        check(&forms[i]);
}
