/* SPDX-License-Identifier: Apache-2.0 */
/* The variables of launchers that give each process its role. For each
 * launcher: do its variables describe a cluster of several processes and this
 * process's place in it, and what do they say? A wrong value counts as set.
 * Each `_read` fills CLUSTER, which is empty. */
#ifndef CAPSTAN_LAUNCHER_ROLES_H
#define CAPSTAN_LAUNCHER_ROLES_H

#include "proto/cluster/cluster_input.h"

/* ps-lite, MXNet and BytePS: DMLC_ROLE, DMLC_PS_ROOT_URI, DMLC_PS_ROOT_PORT,
 * DMLC_NUM_WORKER, DMLC_NUM_SERVER, and the index: DMLC_WORKER_ID or
 * DMLC_SERVER_ID, else DMLC_RANK, else DMLC_TASK_ID, else 0 where there is one
 * such process. The scheduler is the chief, which only coordinates by default.
 * With BYTEPS_LOCAL_SIZE each of DMLC_NUM_WORKER machines has that many
 * workers. Errors: bad_index, bad_host, bad_port, bad_world_size and those of
 * cluster_self.h. */
bool launcher_roles_dmlc_set(const struct cluster_input *input);
enum status launcher_roles_dmlc_read(struct cluster *cluster,
                                     const struct cluster_input *input,
                                     struct failure *why) MUST_CHECK;

/* Paddle: trainers in PADDLE_TRAINER_ENDPOINTS, else PADDLE_TRAINERS_NUM of
 * them, of which the first is at PADDLE_MASTER, else as in chief_address.h (on
 * one node if each ps is on localhost); ps in PADDLE_PSERVERS_IP_PORT_LIST.
 * TRAINING_ROLE is TRAINER (default) or PSERVER. A trainer is PADDLE_TRAINER_ID
 * or PADDLE_CURRENT_ENDPOINT, a ps POD_IP and PADDLE_PORT or
 * PADDLE_CURRENT_ENDPOINT. Errors: bad_world_size and those of chief_address.h,
 * cluster_jobs.h and cluster_self.h. */
bool launcher_roles_paddle_set(const struct cluster_input *input);
enum status launcher_roles_paddle_read(struct cluster *cluster,
                                       const struct cluster_input *input,
                                       struct failure *why) MUST_CHECK;

#endif
