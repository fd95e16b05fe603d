#include "proto/conf/launch_options.h"

#include "proto/conf/chief_address.h"
#include "proto/conf/cluster_rank.h"
#include "proto/conf/decimal.h"
#include "proto/conf/quoted.h"
#include "proto/conf/ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const double GRACE = 40;

void launch_options_set(struct launch_flags *flags, enum launch_options_key key,
                        const char *text) {
    switch (key) {
    case LAUNCH_OPTIONS_NPROC:
        flags->nproc_per_node = text;
        break;
    case LAUNCH_OPTIONS_NNODES:
        flags->nnodes = text;
        break;
    case LAUNCH_OPTIONS_NODE_RANK:
        flags->node_rank = text;
        break;
    case LAUNCH_OPTIONS_ADDR:
        flags->master_addr = text;
        break;
    case LAUNCH_OPTIONS_PORT_FLAG:
        flags->master_port = text;
        break;
    case LAUNCH_OPTIONS_USE_ENV:
        flags->use_env = true;
        break;
    case LAUNCH_OPTIONS_NO_PYTHON:
        flags->no_python = true;
        break;
    case LAUNCH_OPTIONS_MODULE:
        flags->module = true;
        break;
    case LAUNCH_OPTIONS_GRACE:
        flags->grace = text;
        break;
    }
}

/* What was given, by a flag or by a variable. */
struct given {
    const char *name, *text; /* text NULL: neither */
};

static struct given find(const struct cluster_input *input, const char *flag,
                         const char *text, const char *variable) {
    if (text)
        return (struct given){flag, text};
    return (struct given){variable, cluster_input_variable(input, variable)};
}

/* A whole number from LEAST to MOST, which *VALUE is when nothing was given. */
static enum status read_number(struct given given, uint64_t least,
                               uint64_t most, uint32_t *value,
                               struct failure *why) {
    uint64_t found;
    if (!given.text)
        return STATUS_OK;
    if (!decimal_parse(given.text, &found) || found < least || found > most)
        return status_fail(why, STATUS_CONFIG,
                           "%s is %s; it is a whole number from %ju to %ju",
                           given.name, quoted_text(given.text).text,
                           (uintmax_t)least, (uintmax_t)most);
    *value = (uint32_t)found;
    return STATUS_OK;
}

/* How many nodes mpirun or srun have started this on. */
static enum status nodes_told(const struct cluster_input *input,
                              uint32_t *nodes, struct failure *why) {
    int64_t size, local, steps;
    enum status status =
        ranks_number(input, "OMPI_COMM_WORLD_SIZE", &size, why);
    if (!status)
        status = ranks_number(input, "OMPI_COMM_WORLD_LOCAL_SIZE", &local, why);
    if (!status)
        status = ranks_number(input, "SLURM_STEP_NUM_NODES", &steps, why);
    if (status)
        return status;
    if (size > 0 && local > 0)
        *nodes = (uint32_t)((size + local - 1) / local);
    else if (size < 0 && steps > 0)
        *nodes = (uint32_t)steps;
    return STATUS_OK;
}

static enum status read_nodes(struct launch_world *world,
                              const struct launch_flags *flags,
                              const struct cluster_input *input,
                              struct failure *why) {
    int64_t rank;
    struct given nodes = find(input, "--nnodes", flags->nnodes, "PET_NNODES");
    struct given node =
        find(input, "--node_rank", flags->node_rank, "PET_NODE_RANK");
    world->nnodes = 1;
    enum status status = nodes_told(input, &world->nnodes, why);
    if (!status)
        status =
            read_number(nodes, 1, LAUNCH_OPTIONS_MOST, &world->nnodes, why);
    if (!status)
        status = cluster_rank_node(input->lookup, input->context, &rank, why);
    if (status)
        return status;
    world->node_rank = rank > 0 ? (uint32_t)rank : 0;
    status = read_number(node, 0, UINT32_MAX, &world->node_rank, why);
    if (status || world->node_rank < world->nnodes)
        return status;
    return status_fail(why, STATUS_CONFIG,
                       "%s is %u, and of %u nodes (--nnodes) the last is %u",
                       node.text ? node.name : "the rank of this node",
                       world->node_rank, world->nnodes, world->nnodes - 1);
}

struct overlay {
    const struct cluster_input *input;
    const char *addr, *port;
};

/* The environment with flags and PET_* in front; who is told to start processes
 * holds no port for an agent. */
static const char *overlaid(void *context, const char *name) {
    const struct overlay *overlay = context;
    if (!strcmp(name, "MASTER_ADDR") && overlay->addr)
        return overlay->addr;
    if (!strcmp(name, "MASTER_PORT") && overlay->port)
        return overlay->port;
    if (!strcmp(name, "TORCHELASTIC_USE_AGENT_STORE"))
        return NULL;
    return overlay->input->lookup(overlay->input->context, name);
}

static enum status read_address(struct launch_world *world,
                                const struct launch_flags *flags,
                                const struct cluster_input *input,
                                struct failure *why) {
    struct overlay overlay = {
        input, find(input, NULL, flags->master_addr, "PET_MASTER_ADDR").text,
        find(input, NULL, flags->master_port, "PET_MASTER_PORT").text};
    struct cluster_input over = {.lookup = overlaid, .context = &overlay};
    struct chief_place place = {.one_node = world->nnodes == 1,
                                .first_host = "127.0.0.1"};
    struct cluster_task task = {0};
    uint16_t ports;
    enum status status = chief_address_read(&task, &ports, &place, &over, why);
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
        return status_fail(why, STATUS_CONFIG,
                           "--grace takes seconds from 0 to 1000000, not %s",
                           quoted_text(text).text);
    return STATUS_OK;
}

enum status launch_options_settle(struct launch_world *world,
                                  const struct launch_flags *flags,
                                  cluster_getenv *lookup, void *context,
                                  struct failure *why) {
    struct cluster_input input = {.lookup = lookup, .context = context};
    struct given nproc = find(&input, "--nproc_per_node", flags->nproc_per_node,
                              "PET_NPROC_PER_NODE");
    *world = (struct launch_world){.nproc_per_node = 1};
    if (!flags->command)
        return status_fail(why, STATUS_CONFIG,
                           "capstan launch takes the command to start; "
                           "`capstan launch --help` tells more");
    if (flags->module && flags->no_python)
        return status_fail(why, STATUS_CONFIG,
                           "--module is a module of Python, which --no_python "
                           "leaves out: give one of them");
    enum status status =
        read_number(nproc, 1, LAUNCH_OPTIONS_MOST, &world->nproc_per_node, why);
    if (!status)
        status = read_nodes(world, flags, &input, why);
    if (!status)
        status = read_address(world, flags, &input, why);
    return status ? status : read_grace(world, flags->grace, why);
}
