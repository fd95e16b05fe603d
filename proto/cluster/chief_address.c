/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/cluster/chief_address.h"

#include "core/base/decimal.h"
#include "core/base/diagnostics.h"
#include "proto/cluster/address.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum status chief_address_read_host(struct cluster_task *task, const char *host,
                                    const char *location, const char *port_name,
                                    struct failure *why) {
    char text[300];
    const char *colon = strchr(host, ':');
    bool bare_v6 = colon && strchr(colon + 1, ':') && *host != '[';
    if (colon && !bare_v6 && *host != '[')
        return status_fail(
            why, FAILURE_CLUSTER_INVALID,
            "bad_host: %s is %s; give a host without a port, and the port in "
            "%s.",
            location, diagnostics_quote_text(host).text, port_name);
    snprintf(text, sizeof text, bare_v6 ? "[%s]:1" : "%s:1", host);
    return address_parse(task, text, location, why);
}

static enum status read_host(struct cluster_task *task, const char *host,
                             const char *location, struct failure *why) {
    return chief_address_read_host(task, host, location, "MASTER_PORT", why);
}

bool chief_address_is_loopback(const char *host) {
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

static const char blanks[] = " \t\r\n";

/* A host in a list of LSF. */
struct lsf_host {
    const char *name;
    size_t length;
    unsigned long slots;
};

/* Reads the host at *LIST, with the number of slots behind it (COUNTED) or once
 * for each slot, and moves *LIST behind it. */
static struct lsf_host next_lsf_host(const char **list, bool counted) {
    struct lsf_host host = {.name = *list + strspn(*list, blanks)};
    host.length = strcspn(host.name, blanks);
    *list = host.name + host.length;
    if (counted) {
        char *end;
        host.slots = strtoul(*list, &end, 10);
        *list = end;
        return host;
    }
    for (const char *at = host.name;
         !strncmp(at, host.name, host.length) &&
         strcspn(at, blanks) == host.length && host.length;
         at = *list + strspn(*list, blanks)) {
        *list = at + host.length;
        host.slots++;
    }
    return host;
}

/* jsrun's rank 0 is on the first compute host. LSF lists it behind the host of
 * the batch script, which has one slot and is often named batch. If LSB_HOSTS
 * is long, LSF sets only LSB_MCPU_HOSTS. */
static bool find_lsf_host(const struct cluster_input *input, char *host,
                          size_t size) {
    const char *list = cluster_input_variable(input, "LSB_MCPU_HOSTS");
    bool counted = list;
    if (!list)
        list = cluster_input_variable(input, "LSB_HOSTS");
    if (!list || !cluster_input_variable(input, "JSM_NAMESPACE_RANK"))
        return false;
    struct lsf_host first = next_lsf_host(&list, counted);
    struct lsf_host second = next_lsf_host(&list, counted);
    bool batch = first.slots == 1 &&
                 (second.slots > 1 || !strncmp(first.name, "batch", 5));
    if (batch && second.length)
        first = second;
    snprintf(host, size, "%.*s", (int)first.length, first.name);
    return true;
}

/* SageMaker's mpirun starts rank 0 on the first host of a list in JSON. */
static bool find_sagemaker_host(const struct cluster_input *input, char *host,
                                size_t size) {
    const char *list = cluster_input_variable(input, "SM_HOSTS");
    json_t *hosts = list ? json_loads(list, 0, NULL) : NULL;
    const char *first = json_string_value(json_array_get(hosts, 0));
    bool found = first && *first && strlen(first) < size;
    if (found)
        snprintf(host, size, "%s", first);
    json_decref(hosts);
    return found;
}

/* Adds to LOCATION what the launcher's variables say of rank 0's host; HOST of
 * SIZE bytes keeps its name. */
static void ask_launcher(struct chief_location *location,
                         const struct cluster_input *input, char *host,
                         size_t size) {
    const char *nodes = cluster_input_variable(input, "FLUX_JOB_NNODES");
    location->one_node = nodes && !strcmp(nodes, "1") &&
                         cluster_input_variable(input, "FLUX_TASK_RANK");
    if (!location->one_node && (find_lsf_host(input, host, size) ||
                                find_sagemaker_host(input, host, size)))
        location->first_host = host;
}

static bool is_address_known(const struct chief_location *location,
                             const struct cluster_input *input) {
    const char *mpi =
        cluster_input_variable(input, "AZ_BATCHAI_MPI_MASTER_NODE");
    return location->one_node || location->first_host ||
           cluster_input_variable(input, "MASTER_ADDR") ||
           cluster_input_variable(input, "AZ_BATCH_MASTER_NODE") ||
           (mpi && !chief_address_is_loopback(mpi));
}

bool chief_address_is_known(const struct chief_location *location,
                            const struct cluster_input *input) {
    struct chief_location asked = {0};
    char host[256];
    ask_launcher(&asked, input, host, sizeof host);
    return is_address_known(location, input) || is_address_known(&asked, input);
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
                               const struct chief_location *given,
                               const struct cluster_input *input,
                               struct failure *why) {
    const char *port = cluster_input_variable(input, "MASTER_PORT");
    struct chief_location asked = *given, *location = &asked;
    char host[256];
    uint16_t batch_port = 0;
    *ports = 0;
    if (!is_address_known(given, input))
        ask_launcher(location, input, host, sizeof host);
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
