/* SPDX-License-Identifier: Apache-2.0 */
/* The distribution block of an Azure ML job: which processes it starts on how
 * many instances. */
#ifndef CAPSTAN_DISTRIBUTION_H
#define CAPSTAN_DISTRIBUTION_H

#include "proto/base/status.h"

#include <stdint.h>

enum distribution_type {
    DISTRIBUTION_TENSORFLOW,
    DISTRIBUTION_PYTORCH,
    DISTRIBUTION_MPI,
};

enum { DISTRIBUTION_MOST = 1024 }; /* processes */

struct distribution {
    enum distribution_type type;
    uint32_t instances;
    uint32_t workers, ps;  /* TensorFlow: worker_count (a process an instance),
                              parameter_server_count (0) */
    uint32_t per_instance; /* others: process_count_per_instance (1) */
    uint32_t num_ps;       /* others: how many of the last ranks are ps */
};

/* Reads TEXT, such as {"type": "pytorch", "process_count_per_instance": 2}, for
 * so many INSTANCES; NUM_PS may be NULL. Type and keys in any letter case, keys
 * with or without underscores. STATUS_CONFIG says what is wrong. */
enum status distribution_read(struct distribution *distribution,
                              const char *text, const char *instances,
                              const char *num_ps,
                              struct failure *why) MUST_CHECK;

/* How many processes it starts, and how many of them are ps. */
uint32_t distribution_size(const struct distribution *distribution);
uint32_t distribution_ps(const struct distribution *distribution);

#endif
