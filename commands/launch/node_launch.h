/* SPDX-License-Identifier: Apache-2.0 */
/* Starts the processes of one node of a job, any command, with rank variables
 * as torch.distributed.launch sets them. */
#ifndef CAPSTAN_NODE_LAUNCH_H
#define CAPSTAN_NODE_LAUNCH_H

#include "commands/cli/launch_options.h"
#include "core/base/log.h"
#include "core/base/status.h"

/* Starts the processes and returns when the last one has ended. Each has
 * MASTER_ADDR, MASTER_PORT, WORLD_SIZE, RANK, LOCAL_RANK, LOCAL_WORLD_SIZE and
 * NODE_RANK, which replace earlier values; OMP_NUM_THREADS is 1 if it is not
 * set and there are several processes. Without use_env or no_python the command
 * gets --local_rank=N as its last argument. A command that ends in .py, or
 * --module, is run by Python.
 *
 * When a process fails, the others get SIGTERM, and SIGKILL after the grace.
 * SIGTERM, SIGINT, SIGHUP and SIGQUIT to the launcher are forwarded to all
 * processes and have the same effect; SIGUSR1 is only forwarded. When a process
 * has ended, the rest of its process group is killed. *EXIT_CODE is that of the
 * first process that failed (128 + n for signal n), else 0. The returned status
 * is that of the launch: STATUS_RETRY if the system refuses a process; none is
 * left running then. For the calling thread see children_open. */
enum status node_launch_run(const struct options *flags,
                            const struct launch_world *world,
                            const struct log *log, int *exit_code,
                            struct failure *why) MUST_CHECK;

#endif
