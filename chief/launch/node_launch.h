/* SPDX-License-Identifier: Apache-2.0 */
/* The processes of one node of a job, each told its rank, as
 * torch.distributed.launch does it: any command. */
#ifndef CAPSTAN_NODE_LAUNCH_H
#define CAPSTAN_NODE_LAUNCH_H

#include "proto/base/log.h"
#include "proto/base/status.h"
#include "proto/config/cli/launch_options.h"

/* Starts the processes and returns when the last has ended. Each has
 * MASTER_ADDR, MASTER_PORT, WORLD_SIZE, RANK, LOCAL_RANK, LOCAL_WORLD_SIZE and
 * NODE_RANK, whatever was set before; OMP_NUM_THREADS is 1 where it is not set
 * and there are several. Without use_env or no_python --local_rank=N is put
 * behind the command. A command that ends in .py, or --module, is Python's.
 *
 * When one fails, the others get SIGTERM, and SIGKILL after the grace; so it is
 * with SIGTERM, SIGINT, SIGHUP and SIGQUIT, which all get; SIGUSR1 too, and it
 * ends nobody here. What a process leaves in its process group is killed when
 * it ends. *EXIT_CODE is that of the first that failed, 128 + n after signal n,
 * else 0. The status is of the launching: STATUS_RETRY when the machine refuses
 * a process; nothing runs then. Call it as children.h says. */
enum status node_launch_run(const struct launch_flags *flags,
                            const struct launch_world *world,
                            const struct log *log, int *exit_code,
                            struct failure *why) MUST_CHECK;

#endif
