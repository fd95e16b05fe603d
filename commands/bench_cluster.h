/* SPDX-License-Identifier: Apache-2.0 */
/* The processes of `capstan bench`: the job for chief and ps, and the cluster
 * on this machine. */
#ifndef CAPSTAN_BENCH_CLUSTER_H
#define CAPSTAN_BENCH_CLUSTER_H

#include "commands/cli/options.h"
#include "commands/process_settings.h"
#include "core/base/log.h"
#include "core/base/status.h"
#include "proto/job/job.h"

/* The job of a bench: asynchronous SGD without data, ended by its client; if
 * OPTIONS names a folder, a checkpoint is written there at the end. The caller
 * frees *OUT. */
enum status bench_cluster_job(struct job **out, const struct options *options,
                              struct failure *why) MUST_CHECK;

/* Starts chief, ps and client as processes of this program with the arguments
 * of OPTIONS, and waits until they end. *EXIT_CODE as in launch_run. */
enum status bench_cluster_run(const struct options *options,
                              const struct process_settings *settings,
                              const struct log *log, int *exit_code,
                              struct failure *why) MUST_CHECK;

#endif
