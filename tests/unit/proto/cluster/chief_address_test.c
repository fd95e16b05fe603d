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
        {"all are told", .host = "m", .port = 7,
         .environment = {{"MASTER_ADDR", "m"}, {"MASTER_PORT", "7"}, AZ_BOTH}},
        {"the batch node", .host = "10.0.0.4", .port = 6000,
         .environment = {AZ_BOTH}},
        {"its port for another host", .host = "m", .port = 6000,
         .environment = {{"MASTER_ADDR", "m"}, AZ_BOTH}},
        {"another port", .host = "10.0.0.4", .port = 7,
         .environment = {{"MASTER_PORT", "7"}, AZ_BOTH}},
        {"the MPI node", .host = "10.0.0.9", .port = 6105,
         .environment = {{"AZ_BATCHAI_MPI_MASTER_NODE", "10.0.0.9"}}},
        {"localhost of one node", .host = "localhost", .port = 54965,
         .location = {.one_node = true},
         .environment = {{"AZ_BATCHAI_MPI_MASTER_NODE", "localhost"}}},
        {"localhost of several", .host = "n1", .port = 6105,
         .location = {.first_host = "n1"},
         .environment = {{"AZ_BATCHAI_MPI_MASTER_NODE", "localhost"}}},
        {"rank 0's host", .host = "n1", .port = 6105,
         .location = {.first_host = "n1"}},
        {"one node", .host = "127.0.0.1", .port = 54965,
         .location = {.one_node = true, .first_host = "n1"}},
        {"IPv6", .host = "fe80::1", .port = 7,
         .environment = {{"MASTER_ADDR", "fe80::1"}, {"MASTER_PORT", "7"}}},
        {"IPv6 in brackets", .host = "::1", .port = 6105,
         .environment = {{"MASTER_ADDR", "[::1]"}}},
        {"a wrong one that is not needed", .host = "m", .port = 7,
         .environment = {{"MASTER_ADDR", "m"},
                         {"MASTER_PORT", "7"},
                         {"AZ_BATCH_MASTER_NODE", "x"}}},
    };
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        check(&forms[i]);
}

TEST(the_port_is_above_that_of_torchruns_agent) {
    static const char agent[] = "TORCHELASTIC_USE_AGENT_STORE";
    const struct form forms[] = {
        {"the agent listens", .host = "m", .port = 29501, .ports = 16,
         .environment = {{"MASTER_ADDR", "m"},
                         {"MASTER_PORT", "29500"},
                         {agent, "True"}}},
        {"it does not", .host = "m", .port = 29500,
         .environment = {{"MASTER_ADDR", "m"},
                         {"MASTER_PORT", "29500"},
                         {agent, "False"}}},
        {"few are left", .host = "m", .port = 65534, .ports = 2,
         .environment = {{"MASTER_ADDR", "m"},
                         {"MASTER_PORT", "65533"},
                         {agent, "True"}}},
        {"none is left", .error = "bad_port: ",
         .environment = {{"MASTER_ADDR", "m"},
                         {"MASTER_PORT", "65535"},
                         {agent, "True"}}},
    };
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        check(&forms[i]);
}

TEST(an_invalid_address_is_refused) {
    static const struct form forms[] = {
        {"nothing", .error = "master_addr_missing: "},
        {"localhost alone", .error = "master_addr_missing: ",
         .environment = {{"AZ_BATCHAI_MPI_MASTER_NODE", "localhost"}}},
        {"a port too many", .error = "bad_host: MASTER_ADDR",
         .environment = {{"MASTER_ADDR", "m:7"}}},
        {"a URL", .error = "bad_host: MASTER_ADDR",
         .environment = {{"MASTER_ADDR", "tcp://m"}}},
        {"no port", .error = "bad_port: AZ_BATCH_MASTER_NODE",
         .environment = {{"AZ_BATCH_MASTER_NODE", "10.0.0.4"}}},
        {"a word", .error = "bad_port: MASTER_PORT",
         .environment = {{"MASTER_ADDR", "m"}, {"MASTER_PORT", "x"}}},
        {"port 0", .error = "bad_port: MASTER_PORT",
         .environment = {{"MASTER_ADDR", "m"}, {"MASTER_PORT", "0"}}},
        {"a port too high", .error = "bad_port: MASTER_PORT",
         .environment = {{"MASTER_ADDR", "m"}, {"MASTER_PORT", "65536"}}},
    };
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        check(&forms[i]);
}
