/* SPDX-License-Identifier: Apache-2.0 */
#include "commands/launch/rank_variables.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool unset_one(const char *start) {
    for (char **each = environ; each && *each; each++) {
        const char *end = strchr(*each, '=');
        if (!end || strncmp(*each, start, strlen(start)))
            continue;
        char *name = strndup(*each, (size_t)(end - *each));
        bool hidden = name && !unsetenv(name);
        free(name);
        return hidden;
    }
    return false;
}

void rank_variables_unset(const char *start) {
    while (unset_one(start))
        ;
}

static void rank_variables_set_number(const char *name, uint32_t value) {
    char text[16];
    snprintf(text, sizeof text, "%u", value);
    setenv(name, text, 1);
}

static void set_torch(const char *host, uint32_t rank, uint32_t size,
                      uint32_t per_instance) {
    setenv("MASTER_ADDR", host, 1);
    rank_variables_set_number("MASTER_PORT", RANK_VARIABLES_PORT);
    rank_variables_set_number("WORLD_SIZE", size);
    rank_variables_set_number("RANK", rank);
    rank_variables_set_number("LOCAL_RANK", rank % per_instance);
    rank_variables_set_number("NODE_RANK", rank / per_instance);
}

static void set_mpi(const char *host, uint32_t rank, uint32_t size,
                    uint32_t per_instance) {
    char node[96];
    rank_variables_set_number("OMPI_COMM_WORLD_RANK", rank);
    rank_variables_set_number("OMPI_COMM_WORLD_SIZE", size);
    rank_variables_set_number("OMPI_COMM_WORLD_LOCAL_RANK",
                              rank % per_instance);
    rank_variables_set_number("OMPI_COMM_WORLD_LOCAL_SIZE", per_instance);
    snprintf(node, sizeof node, strchr(host, ':') ? "[%s]:%d" : "%s:%d", host,
             RANK_VARIABLES_BATCH_PORT);
    bool is_default = !strcmp(host, "127.0.0.1");
    if (size == per_instance)
        setenv("AZ_BATCHAI_MPI_MASTER_NODE", is_default ? "localhost" : host,
               1);
    else
        setenv("AZ_BATCH_MASTER_NODE", node, 1);
}

void rank_variables_set(const struct azureml_distribution *distribution,
                        const char *host, uint32_t rank) {
    uint32_t size = azureml_num_processes(distribution);
    if (distribution->type == AZUREML_MPI)
        set_mpi(host, rank, size, distribution->per_instance);
    else
        set_torch(host, rank, size, distribution->per_instance);
}
