/* SPDX-License-Identifier: Apache-2.0 */
/* `capstan bench` around its client: the job that chief and ps play, the
 * cluster on this machine, the table. */
#ifndef CAPSTAN_BENCH_CLUSTER_H
#define CAPSTAN_BENCH_CLUSTER_H

#include "proto/base/log.h"
#include "proto/base/status.h"
#include "proto/config/cli/options.h"
#include "proto/config/job/job.h"

/* The job of a bench: asynchronous SGD without data, ended by its client; a
 * checkpoint at the end when OPTIONS names a folder. The caller's. */
enum status bench_cluster_job(struct job **out, const struct options *options,
                              struct failure *why) MUST_CHECK;

/* Starts chief, ps and client as processes of PROGRAM with the words of
 * OPTIONS, and waits for their end: *EXIT_CODE, as launch_run. */
enum status bench_cluster_run(const struct options *options,
                              const char *program, const struct log *log,
                              int *exit_code, struct failure *why) MUST_CHECK;

#endif
