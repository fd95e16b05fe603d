/* SPDX-License-Identifier: Apache-2.0 */
/* The verbs of the program, and what one uses of another. A verb returns the
 * exit code of the process; WHY is empty if the log has reported it. */
#ifndef CAPSTAN_VERBS_H
#define CAPSTAN_VERBS_H

#include "commands/cli/options.h"
#include "core/base/status.h"

#include <stdbool.h>
#include <stdio.h>

struct cluster;
struct job;
struct process_settings;
struct rule_loops;

/* How fast vectors move, measured on this machine, measured in a described
 * cluster, or simulated. */
enum status bench_command(const struct options *options,
                          struct failure *why) MUST_CHECK;

/* Lists, verifies or exports the checkpoints of a directory. */
enum status ckpt_command(const struct options *options,
                         struct failure *why) MUST_CHECK;

/* What this process reads of the cluster description, where it comes from, and
 * whether the others can be reached: one JSON object; with --explain or --check
 * a text, or with --json more keys of the object. FAILURE_LINK_UNUSABLE:
 * --check found an address that does not answer. */
enum status cluster_command(const struct options *options,
                            struct failure *why) MUST_CHECK;

/* Compares parameter server and all-reduce, measured or predicted. */
enum status compare_command(const struct options *options,
                            struct failure *why) MUST_CHECK;

/* Samples of a job's data as its model reads them, and how fast they are read.
 */
enum status data_command(const struct options *options,
                         struct failure *why) MUST_CHECK;

/* A checkpoint on a test set, and on samples without labels, in one process. */
enum status eval_command(const struct options *options,
                         struct failure *why) MUST_CHECK;
enum status eval_command_predict(const struct options *options,
                                 struct failure *why) MUST_CHECK;

/* How a script of a framework becomes one of Capstan. */
enum status how_command(const struct options *options,
                        struct failure *why) MUST_CHECK;

/* Version and commit, devices, collectives, libraries. */
enum status info_command(const struct options *options,
                         struct failure *why) MUST_CHECK;

/* Writes a new secret of a job to a file. */
enum status keygen_command(const struct options *options,
                           struct failure *why) MUST_CHECK;

/* Starts processes, and returns when all have ended, with their exit code: a
 * whole cluster on this machine; the ranks of this node. */
enum status local_command(const struct options *options,
                          struct failure *why) MUST_CHECK;
enum status launch_command(const struct options *options,
                           struct failure *why) MUST_CHECK;

/* The manual's pages and bash's completion, all from the tables of the command
 * line and of the job. */
enum status manual_command(const struct options *options,
                           struct failure *why) MUST_CHECK;

/* The page of a run from its metrics as lines of JSON, as one file. */
enum status report_command(const struct options *options,
                           struct failure *why) MUST_CHECK;

/* This process's roles in a run, or in a comparison that the job asks for. */
enum status run_command(const struct options *options,
                        struct failure *why) MUST_CHECK;

/* What the processes of a running job do and wait for, asked over HTTP.
 * STATUS_RETRY: the address does not answer. */
enum status status_command(const struct options *options,
                           struct failure *why) MUST_CHECK;

/* The JSON Schema of jobs, or what is wrong with a job. */
enum status schema_command(const struct options *options,
                           struct failure *why) MUST_CHECK;

/* True if the job of `capstan run` has the key "compare". False also for an
 * invalid job, which the run itself reports. */
bool compare_command_is_requested(const struct options *options);

/* Compares between the processes of CLUSTER; this process is the chief. */
enum status compare_command_cluster(const struct options *options,
                                    const struct process_settings *settings,
                                    const struct cluster *cluster,
                                    struct failure *why) MUST_CHECK;

/* Prints lines for people, or one JSON object: {"version", "commit", "devices":
 * [{"name", "available", ...}], "collectives": [...], "libraries": {name:
 * version}}. Devices other than the CPU and collectives are plugins. A missing
 * plugin has "available": false and a "reason"; each device of a plugin has its
 * own entry. LOOPS is the variant of the update rules. */
void info_command_print(FILE *to, bool json, const struct rule_loops *loops);

/* An external model needs a command, a built-in one takes none. STATUS_CONFIG:
 * JOB and OPTIONS, which name it, are otherwise. */
enum status launch_command_check_model(const struct options *options,
                                       const struct job *job,
                                       struct failure *why) MUST_CHECK;

#endif
