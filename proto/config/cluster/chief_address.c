/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/config/cluster/chief_address.h"

#include "proto/config/cluster/address.h"
#include "proto/config/decimal.h"
#include "proto/config/diagnostics.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

/* Reads HOST without a port, IPv6 with or without brackets, found at
 * LOCATION. */
static enum status read_host(struct cluster_task *task, const char *host,
                             const char *location, struct failure *why) {
    char text[300];
    const char *colon = strchr(host, ':');
    bool bare_v6 = colon && strchr(colon + 1, ':') && *host != '[';
    if (colon && !bare_v6 && *host != '[')
        return status_fail(
            why, FAILURE_CLUSTER_INVALID,
            "bad_host: %s is %s; give a host without a port, and the port in "
            "MASTER_PORT.",
            location, diagnostics_quote_text(host).text);
    snprintf(text, sizeof text, bare_v6 ? "[%s]:1" : "%s:1", host);
    return address_parse(task, text, location, why);
}

static bool chief_address_is_loopback(const char *host) {
    return !strcasecmp(host, "localhost") || !strncmp(host, "127.", 4) ||
           !strcmp(host, "::1");
}

static enum status chief_address_report_missing(struct failure *why) {
    return status_fail(
        why, FAILURE_CLUSTER_INVALID,
        "master_addr_missing: the host of rank 0 is not known. Set MASTER_ADDR "
        "to its name in every process (mpirun -x MASTER_ADDR=HOST; with all on "
        "one host MASTER_ADDR=127.0.0.1).");
}

static enum status find_host(struct cluster_task *task, uint16_t *batch_port,
                             const struct chief_location *location,
                             const struct cluster_input *input,
                             struct failure *why) {
    const char *master = cluster_input_variable(input, "MASTER_ADDR");
    const char *batch = cluster_input_variable(input, "AZ_BATCH_MASTER_NODE");
    const char *mpi =
        cluster_input_variable(input, "AZ_BATCHAI_MPI_MASTER_NODE");
    bool has_port = cluster_input_variable(input, "MASTER_PORT");
    if (batch && !(master && has_port)) {
        enum status status =
            address_parse(task, batch, "AZ_BATCH_MASTER_NODE", why);
        if (status != STATUS_OK)
            return status;
        *batch_port = task->port;
    }
    if (master)
        return read_host(task, master, "MASTER_ADDR", why);
    if (batch)
        return STATUS_OK;
    if (mpi && (location->one_node || !chief_address_is_loopback(mpi)))
        return read_host(task, mpi, "AZ_BATCHAI_MPI_MASTER_NODE", why);
    if (location->one_node)
        return read_host(task, "127.0.0.1", "one node", why);
    if (location->first_host)
        return read_host(task, location->first_host, "the first node", why);
    return chief_address_report_missing(why);
}

static bool agent_owns_port(const struct cluster_input *input) {
    const char *text =
        cluster_input_variable(input, "TORCHELASTIC_USE_AGENT_STORE");
    return text && (!strcasecmp(text, "true") || !strcmp(text, "1"));
}

/* Reads MASTER_PORT from TEXT. */
static enum status read_port(struct cluster_task *task, uint16_t *ports,
                             const char *text,
                             const struct cluster_input *input,
                             struct failure *why) {
    uint64_t port;
    bool owned = agent_owns_port(input);
    if (!decimal_parse(text, &port) || port < 1 || port + owned > UINT16_MAX)
        return status_fail(why, FAILURE_CLUSTER_INVALID,
                           "bad_port: MASTER_PORT is %s; a port is a number "
                           "from 1 to %d%s.",
                           diagnostics_quote_text(text).text,
                           UINT16_MAX - owned,
                           owned ? " where torchrun's agent holds it and ports "
                                   "above it are used"
                                 : "");
    task->port = (uint16_t)(port + owned);
    int above = UINT16_MAX - (int)port;
    if (owned)
        *ports = (uint16_t)(above < CHIEF_ADDRESS_PORTS ? above
                                                        : CHIEF_ADDRESS_PORTS);
    return STATUS_OK;
}

enum status chief_address_read(struct cluster_task *task, uint16_t *ports,
                               const struct chief_location *location,
                               const struct cluster_input *input,
                               struct failure *why) {
    const char *port = cluster_input_variable(input, "MASTER_PORT");
    uint16_t batch_port = 0;
    *ports = 0;
    enum status status = find_host(task, &batch_port, location, input, why);
    if (status != STATUS_OK)
        return status;
    if (port)
        return read_port(task, ports, port, input, why);
    task->port =
        location->one_node ? CHIEF_ADDRESS_PORT_ONE_NODE : CHIEF_ADDRESS_PORT;
    if (batch_port)
        task->port = batch_port;
    return STATUS_OK;
}
