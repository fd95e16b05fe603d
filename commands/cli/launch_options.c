/* SPDX-License-Identifier: Apache-2.0 */
#include "commands/cli/launch_options.h"

#include "core/base/decimal.h"
#include "core/base/diagnostics.h"
#include "proto/cluster/chief_address.h"
#include "proto/cluster/cluster_rank.h"
#include "proto/cluster/host_list.h"
#include "proto/cluster/ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const double GRACE = 40;

/* The nodes as mpirun or srun describes them. */
struct launch_nodes {
    uint32_t count; /* 0: not known */
    bool from_slurm;
};

/* A value given by a flag or a variable. */
struct setting {
    const char *name, *text; /* NULL: not given */
};

static struct setting find_setting(const struct cluster_input *input,
                                   const char *flag, const char *text,
                                   const char *variable) {
    if (text)
        return (struct setting){flag, text};
    return (struct setting){variable, cluster_input_variable(input, variable)};
}

static enum launch_nproc parse_nproc(const char *text) {
    static const char *const words[] = {[LAUNCH_NPROC_AUTO] = "auto",
                                        [LAUNCH_NPROC_GPU] = "gpu",
                                        [LAUNCH_NPROC_CPU] = "cpu"};
    for (int nproc_kind = LAUNCH_NPROC_AUTO;
         text && nproc_kind <= LAUNCH_NPROC_CPU; nproc_kind++)
        if (!strcasecmp(text, words[nproc_kind]))
            return (enum launch_nproc)nproc_kind;
    return LAUNCH_NPROC_NUMBER;
}

/* Reads a whole number from LEAST to MOST. If nothing was given, *VALUE
 * stays. */
static enum status launch_options_read_number(struct setting setting,
                                              uint64_t min, uint64_t max,
                                              uint32_t *value,
                                              struct failure *why) {
    uint64_t found;
    if (!setting.text)
        return STATUS_OK;
    if (!decimal_parse(setting.text, &found) || found < min || found > max)
        return status_fail(why, FAILURE_BAD_FLAG_VALUE,
                           "%s is %s; it is a whole number from %ju to %ju",
                           setting.name,
                           diagnostics_quote_text(setting.text).text,
                           (uintmax_t)min, (uintmax_t)max);
    *value = (uint32_t)found;
    return STATUS_OK;
}

/* Number of nodes for SIZE processes, LOCAL_SIZE on each; 0: not known. */
static enum status count_nodes(const struct cluster_input *input,
                               const char *size, const char *local_size,
                               uint32_t *nodes, struct failure *why) {
    int64_t all, here;
    enum status status = ranks_read_number(input, size, &all, why);
    if (!status)
        status = ranks_read_number(input, local_size, &here, why);
    *nodes = 0;
    if (!status && all > 0 && here > 0)
        *nodes = (uint32_t)((all + here - 1) / here);
    return status;
}

/* Number of nodes on which mpirun or srun has started this; 0: not known. */
static enum status detect_nodes(const struct cluster_input *input,
                                struct launch_nodes *nodes,
                                struct failure *why) {
    int64_t steps;
    enum status status =
        count_nodes(input, "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE",
                    &nodes->count, why);
    if (status || nodes->count)
        return status;
    status = ranks_read_number(input, "SLURM_STEP_NUM_NODES", &steps, why);
    if (status)
        return status;
    nodes->from_slurm = steps > 0;
    if (nodes->from_slurm)
        nodes->count = (uint32_t)steps;
    return nodes->from_slurm ? STATUS_OK
                             : count_nodes(input, "PMI_SIZE", "MPI_LOCALNRANKS",
                                           &nodes->count, why);
}

/* torchrun accepts a range of nodes between which a job grows and shrinks. A
 * range with equal ends is a number. */
static enum status resolve_range(struct setting *nodes, struct failure *why) {
    const char *colon = nodes->text ? strchr(nodes->text, ':') : NULL;
    if (!colon)
        return STATUS_OK;
    size_t length = (size_t)(colon - nodes->text);
    if (strlen(colon + 1) != length || strncmp(nodes->text, colon + 1, length))
        return status_fail(
            why, FAILURE_FLAG_CONFLICT,
            "%s is %s, a range; here the number of nodes is fixed: give it "
            "with --nnodes",
            nodes->name, diagnostics_quote_text(nodes->text).text);
    nodes->text = colon + 1;
    return STATUS_OK;
}

static enum status read_nodes(struct launch_world *world,
                              struct launch_nodes *detected,
                              const struct options *flags,
                              const struct cluster_input *input,
                              struct failure *why) {
    int64_t rank;
    struct setting nodes =
        find_setting(input, "--nnodes", flags->nnodes, "PET_NNODES");
    struct setting node =
        find_setting(input, "--node_rank", flags->node_rank, "PET_NODE_RANK");
    enum status status = resolve_range(&nodes, why);
    if (!status)
        status = detect_nodes(input, detected, why);
    world->nnodes = detected->count ? detected->count : 1;
    if (!status)
        status = launch_options_read_number(
            nodes, 1, LAUNCH_OPTIONS_MAX_PROCESSES, &world->nnodes, why);
    if (!status)
        status = cluster_rank_node(input->lookup, input->context, &rank, why);
    if (status)
        return status;
    world->node_rank = rank > 0 ? (uint32_t)rank : 0;
    status =
        launch_options_read_number(node, 0, UINT32_MAX, &world->node_rank, why);
    if (status || world->node_rank < world->nnodes)
        return status;
    return status_fail(why, FAILURE_BAD_FLAG_VALUE,
                       "%s is %u, and of %u nodes (--nnodes) the last is %u",
                       node.text ? node.name : "the rank of this node",
                       world->node_rank, world->nnodes, world->nnodes - 1);
}

/* The hosts of srun's step in *NODES, empty if it has none; the caller frees
 * them. */
static enum status find_first_node(struct host_list *nodes,
                                   const struct cluster_input *input,
                                   struct failure *why) {
    static const char name[] = "SLURM_STEP_NODELIST";
    const char *text = cluster_input_variable(input, name);
    return text ? host_list_parse(nodes, text, name, why) : STATUS_OK;
}

struct overlay {
    const struct cluster_input *input;
    const char *addr, *port;
};

/* The environment, overlaid with the flags and PET_*. A launcher does not take
 * MASTER_PORT as held by an agent. */
static const char *overlay_getenv(void *context, const char *name) {
    const struct overlay *overlay = context;
    if (!strcmp(name, "MASTER_ADDR") && overlay->addr)
        return overlay->addr;
    if (!strcmp(name, "MASTER_PORT") && overlay->port)
        return overlay->port;
    if (!strcmp(name, "TORCHELASTIC_USE_AGENT_STORE"))
        return NULL;
    return overlay->input->lookup(overlay->input->context, name);
}

/* If mpirun or srun starts a launcher on each node, a launcher cannot use its
 * own address for that of the first node. */
static enum status read_address(struct launch_world *world,
                                const struct launch_nodes *detected,
                                const struct options *flags,
                                const struct cluster_input *input,
                                struct failure *why) {
    struct overlay overlay = {
        input,
        find_setting(input, NULL, flags->master_addr, "PET_MASTER_ADDR").text,
        find_setting(input, NULL, flags->master_port, "PET_MASTER_PORT").text};
    struct cluster_input over = {.lookup = overlay_getenv, .context = &overlay};
    struct host_list nodes = {0};
    struct chief_location location = {.one_node = world->nnodes == 1,
                                      .first_host =
                                          detected->count ? NULL : "127.0.0.1"};
    struct cluster_task task = {0};
    uint16_t ports;
    enum status status = STATUS_OK;
    if (detected->from_slurm && !cluster_input_variable(&over, "MASTER_ADDR"))
        status = find_first_node(&nodes, input, why);
    if (nodes.count)
        location.first_host = nodes.hosts[0];
    if (!status)
        status = chief_address_read(&task, &ports, &location, &over, why);
    host_list_free(&nodes);
    snprintf(world->master_addr, sizeof world->master_addr, "%s", task.host);
    world->master_port = task.port;
    if (!cluster_input_variable(&over, "MASTER_PORT") &&
        !cluster_input_variable(&over, "AZ_BATCH_MASTER_NODE"))
        world->master_port = LAUNCH_OPTIONS_PORT;
    return status;
}

static enum status read_grace(struct launch_world *world, const char *text,
                              struct failure *why) {
    char *end;
    world->grace = GRACE;
    if (!text)
        return STATUS_OK;
    world->grace = strtod(text, &end);
    if (*end || end == text || !(world->grace >= 0 && world->grace <= 1e6))
        return status_fail(why, FAILURE_BAD_FLAG_VALUE,
                           "--grace takes seconds from 0 to 1000000, not %s",
                           diagnostics_quote_text(text).text);
    return STATUS_OK;
}

enum status launch_options_resolve(struct launch_world *world,
                                   const struct options *flags,
                                   cluster_getenv *lookup, void *context,
                                   struct failure *why) {
    struct cluster_input input = {.lookup = lookup, .context = context};
    struct setting nproc =
        find_setting(&input, "--nproc_per_node", flags->nproc_per_node,
                     "PET_NPROC_PER_NODE");
    struct launch_nodes nodes = {0};
    *world = (struct launch_world){.nproc_per_node = 1,
                                   .nproc_kind = parse_nproc(nproc.text)};
    if (!flags->command)
        return status_fail(
            why, FAILURE_USAGE,
            "capstan launch takes the command to start; `capstan launch "
            "--help` shows examples");
    if (flags->module && flags->no_python)
        return status_fail(
            why, FAILURE_FLAG_CONFLICT,
            "--module is for a Python module, and --no_python for a command "
            "that is not Python: give one of them");
    enum status status = STATUS_OK;
    if (world->nproc_kind)
        world->nproc_per_node = 0;
    else
        status =
            launch_options_read_number(nproc, 1, LAUNCH_OPTIONS_MAX_PROCESSES,
                                       &world->nproc_per_node, why);
    if (!status)
        status = read_nodes(world, &nodes, flags, &input, why);
    if (!status)
        status = read_address(world, &nodes, flags, &input, why);
    return status ? status : read_grace(world, flags->grace, why);
}
