/* SPDX-License-Identifier: Apache-2.0 */
/* Workers that see fake devices (tests/gpu/fake_device.h): each process as many
 * of them as its environment says. Trainers that see the same device are on one
 * machine. */
#ifndef CAPSTAN_CLUSTER_GPUS_H
#define CAPSTAN_CLUSTER_GPUS_H

#include "tests/cluster/cluster_run.h"

enum { CLUSTER_GPUS_DEADLINE = 2 * CLUSTER_RUN_DEADLINE };

/* Fourteen blocks, momentum, an evaluation each epoch; no two rounds of it have
 * the same samples. */
#define CLUSTER_GPUS_JOB                                                       \
    "\"model\": {\"layers\": [64, 512, 256, 10], \"activation\": \"tanh\"},"   \
    " \"steps\": 30, \"optimizer\": {\"type\": \"SGD\","                       \
    " \"params\": {\"lr\": 0.05, \"momentum\": 0.9}}"
extern const char cluster_gpus_job[]; /* in braces, a job */

/* Describes workers that are each on a host of their own. */
void cluster_gpus_describe_hosts(struct cluster_run *run, unsigned num_ps,
                                 unsigned num_workers);

/* Adds --set for each of CHANGES (NULL-ended, or NULL) to the COUNT ARGUMENTS;
 * returns how many there are now. */
size_t cluster_gpus_add_changes(const char **arguments, size_t count,
                                const char *const *changes);

/* Starts worker INDEX with devices as GPUS says ("devices=2") on a machine of
 * its own; the first leads, its checkpoints go to FOLDER/DIR, and CHANGES
 * (NULL-ended, or NULL) are set. */
struct cluster_process *cluster_gpus_worker(struct cluster_run *run,
                                            unsigned index, const char *gpus,
                                            const char *dir,
                                            const char *const *changes);

/* A whole run of NUM_WORKERS with devices as GPUS says of each, on NUM_PS (0:
 * all-reduce); returns the leader. */
struct cluster_process *cluster_gpus_train(void **state, unsigned num_ps,
                                           unsigned num_workers,
                                           const char *const *gpus,
                                           const char *dir,
                                           const char *const *changes);

/* One worker with devices as GPUS says, by itself, which ends with CODE. */
struct cluster_process *cluster_gpus_run_single(struct cluster_run *run,
                                                const char *gpus,
                                                const char *const *changes,
                                                int code);

#endif
