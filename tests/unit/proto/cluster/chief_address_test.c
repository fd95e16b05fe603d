/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/cluster/chief_address.h"

#include "tests/cluster/cluster_case.h"
#include "tests/lib/test.h"

/* A host with its ports, or the start of an error. */
struct form {
    const char *says;
    struct cluster_case_variable environment[CLUSTER_CASE_VARIABLES];
    const char *host; /* NULL: refused with `error` */
    int port, ports;
    const char *error;
    struct chief_location location;
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
         {{"MASTER_ADDR", "m"}, {"MASTER_PORT", "7"}, AZ_BOTH},
         .host = "m",
         .port = 7},
        {"the batch node", {AZ_BOTH}, .host = "10.0.0.4", .port = 6000},
        {"its port for another host",
         {{"MASTER_ADDR", "m"}, AZ_BOTH},
         .host = "m",
         .port = 6000},
        {"another port",
         {{"MASTER_PORT", "7"}, AZ_BOTH},
         .host = "10.0.0.4",
         .port = 7},
        {"the MPI node",
         {{"AZ_BATCHAI_MPI_MASTER_NODE", "10.0.0.9"}},
         .host = "10.0.0.9",
         .port = 6105},
        {"localhost of one node",
         {{"AZ_BATCHAI_MPI_MASTER_NODE", "localhost"}},
         .host = "localhost",
         .port = 54965,
         .location = {.one_node = true}},
        {"localhost of several",
         {{"AZ_BATCHAI_MPI_MASTER_NODE", "localhost"}},
         .host = "n1",
         .port = 6105,
         .location = {.first_host = "n1"}},
        {"rank 0's host", .host = "n1", .port = 6105,
         .location = {.first_host = "n1"}},
        {"one node", .host = "127.0.0.1", .port = 54965,
         .location = {.one_node = true, .first_host = "n1"}},
        {"IPv6",
         {{"MASTER_ADDR", "fe80::1"}, {"MASTER_PORT", "7"}},
         .host = "fe80::1",
         .port = 7},
        {"IPv6 in brackets",
         {{"MASTER_ADDR", "[::1]"}},
         .host = "::1",
         .port = 6105},
        {"a wrong one that is not needed",
         {{"MASTER_ADDR", "m"},
          {"MASTER_PORT", "7"},
          {"AZ_BATCH_MASTER_NODE", "x"}},
         .host = "m",
         .port = 7},
    };
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        check(&forms[i]);
}

TEST(the_port_is_above_that_of_torchruns_agent) {
    static const char agent[] = "TORCHELASTIC_USE_AGENT_STORE";
    const struct form forms[] = {
        {"the agent listens",
         {{"MASTER_ADDR", "m"}, {"MASTER_PORT", "29500"}, {agent, "True"}},
         .host = "m",
         .port = 29501,
         .ports = 16},
        {"it does not",
         {{"MASTER_ADDR", "m"}, {"MASTER_PORT", "29500"}, {agent, "False"}},
         .host = "m",
         .port = 29500},
        {"few are left",
         {{"MASTER_ADDR", "m"}, {"MASTER_PORT", "65533"}, {agent, "True"}},
         .host = "m",
         .port = 65534,
         .ports = 2},
        {"none is left",
         {{"MASTER_ADDR", "m"}, {"MASTER_PORT", "65535"}, {agent, "True"}},
         .error = "bad_port: "},
    };
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        check(&forms[i]);
}

TEST(an_invalid_address_is_refused) {
    static const struct form forms[] = {
        {"nothing", .error = "master_addr_missing: "},
        {"localhost alone",
         {{"AZ_BATCHAI_MPI_MASTER_NODE", "localhost"}},
         .error = "master_addr_missing: "},
        {"a port too many",
         {{"MASTER_ADDR", "m:7"}},
         .error = "bad_host: MASTER_ADDR"},
        {"a URL",
         {{"MASTER_ADDR", "tcp://m"}},
         .error = "bad_host: MASTER_ADDR"},
        {"no port",
         {{"AZ_BATCH_MASTER_NODE", "10.0.0.4"}},
         .error = "bad_port: AZ_BATCH_MASTER_NODE"},
        {"a word",
         {{"MASTER_ADDR", "m"}, {"MASTER_PORT", "x"}},
         .error = "bad_port: MASTER_PORT"},
        {"port 0",
         {{"MASTER_ADDR", "m"}, {"MASTER_PORT", "0"}},
         .error = "bad_port: MASTER_PORT"},
        {"a port too high",
         {{"MASTER_ADDR", "m"}, {"MASTER_PORT", "65536"}},
         .error = "bad_port: MASTER_PORT"},
    };
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        check(&forms[i]);
}
