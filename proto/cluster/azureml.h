/* SPDX-License-Identifier: Apache-2.0 */
/* The distribution block of an Azure ML job: the processes that it starts, and
 * the number of instances. */
#ifndef CAPSTAN_AZUREML_H
#define CAPSTAN_AZUREML_H

#include "core/base/status.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

enum azureml_type {
    AZUREML_TENSORFLOW,
    AZUREML_PYTORCH,
    AZUREML_MPI,
};

enum { AZUREML_MAX_PROCESSES = 1024 }; /* processes */

struct azureml_distribution {
    enum azureml_type type;
    uint32_t instances;
    uint32_t workers, ps;  /* TensorFlow: worker_count (default: one process an
                              instance), parameter_server_count (0) */
    uint32_t per_instance; /* pytorch, mpi: process_count_per_instance (1) */
    uint32_t num_ps;       /* pytorch, mpi: number of last ranks that are ps */
};

/* Reads TEXT, such as {"type": "pytorch", "process_count_per_instance": 2}, for
 * INSTANCES instances; NUM_PS may be NULL. Or TEXT is the path of a YAML file:
 * a job of Azure ML's CLI v2, whose resources have the number of instances if
 * INSTANCES is NULL; its distribution block alone; or a run configuration of
 * SDK v1 (.runconfig), with its names and defaults. Case is ignored in types
 * and keys, underscores in keys. A job has only keys of the published schema.
 * On STATUS_CONFIG WHY lists what is wrong, each with the file, the path of the
 * key, what was found and what is allowed. */
enum status azureml_read(struct azureml_distribution *distribution,
                         const char *text, const char *instances,
                         const char *num_ps, struct failure *why) MUST_CHECK;

/* TEXT is the block itself, as JSON, and not a path. */
bool azureml_is_block(const char *text);

/* The value of key NAME, with case and underscores ignored; NULL: none. */
const json_t *azureml_find_key(const json_t *root, const char *name);

/* Number of processes that the block starts, and how many of them are ps. */
uint32_t azureml_num_processes(const struct azureml_distribution *distribution);
uint32_t azureml_num_ps(const struct azureml_distribution *distribution);

#endif
