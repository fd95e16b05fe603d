/* SPDX-License-Identifier: Apache-2.0 */
/* Settings of a process, from flags and the environment; they are not part of
 * the run's job. */
#ifndef CAPSTAN_PROCESS_SETTINGS_H
#define CAPSTAN_PROCESS_SETTINGS_H

#include "commands/cli/options.h"
#include "core/base/status.h"
#include "core/net/link/interface.h"
#include "core/tensor/rule.h"
#include "proto/cluster/cluster.h"

#include <stdbool.h>

struct report_board;
struct service_notify;

/* What `capstan local` adds to the job of a command: the job's path, of a
 * caller of the library only, and overrides, each ended by a newline. */
#define SCRIPT_JOB "CAPSTAN_JOB"
#define SCRIPT_SETS "CAPSTAN_SET"

/* The path of DeepSpeed's configuration that `capstan local` gives a script of
 * capstan.deepspeed, which takes it out of the environment. */
#define SCRIPT_DEEPSPEED "CAPSTAN_DEEPSPEED_CONFIG"

/* Appends the overrides of SCRIPT_SETS to those of OPTIONS, as copies that the
 * caller frees. */
enum status process_settings_add_sets(struct options *options,
                                      struct failure *why) MUST_CHECK;

/* Names the file to which the process that leads a run writes its summary
 * object. */
#define SUMMARY_FILE "CAPSTAN_SUMMARY"

/* The same as --trace-steps and --trace-file. */
#define TRACE_STEPS_VARIABLE "CAPSTAN_TRACE_STEPS"
#define TRACE_FILE_VARIABLE "CAPSTAN_TRACE_FILE"

struct process_settings {
    const struct rule_loops *loops; /* CAPSTAN_CPU, else the best */
    struct interface interface; /* --interface, CAPSTAN_INTERFACE; no address:
                                   not given */
    bool shm;   /* shared memory on one host: --lane, CAPSTAN_LANE */
    int record; /* descriptor for the launch record (launch_record.h), 0: none
                 */
    const char *secret_file; /* --secret-file, CAPSTAN_SECRET_FILE; else that
                                of `capstan local`; NULL: not given */
    bool secret_is_own;      /* it is that of `capstan local` */
    const char *summary;     /* SUMMARY_FILE; NULL: not given */
    uint64_t trace_first, trace_last; /* --trace-steps; 0: none */
    const char *trace_file;           /* --trace-file; NULL: not given */
    struct cluster_task metrics;      /* --metrics-port; its port 0: off */
    struct service_notify *notify;    /* borrowed; NULL: no service manager */
    /* The library's process, whose signals and memory are the caller's: */
    struct external *external; /* the caller's model; NULL: the program's own */
    int interrupts; /* readable: the number of a signal, in 8 bytes */
    struct report_board *board; /* borrowed; has the roles while they run */
    bool silent;                /* nothing is logged */
};

/* For a command whose processes are all on this machine, before their settings
 * are read: gives them its --interface, and without any the loopback one, so
 * that no other machine reaches their ports. */
void process_settings_stay_here(const struct options *options);

/* Reads flags and environment. An interface is also set for NCCL, unless the
 * environment has one for it. On STATUS_CONFIG WHY says what is allowed. */
enum status process_settings_read(struct process_settings *settings,
                                  const struct options *options,
                                  struct failure *why) MUST_CHECK;

/* For a command that starts the processes of a run: sets the variables of
 * --trace-steps, --trace-file and --secret-file for them, the files' paths from
 * the current folder, which may not be theirs. Where no secret is given,
 * SECRET_FILE, the job's, is, unless it is NULL. */
enum status process_settings_hand_on(const struct options *options,
                                     const char *secret_file,
                                     struct failure *why) MUST_CHECK;

/* Sets what SETTINGS say of a secret by flags and environment. An empty path is
 * not none. */
void process_settings_take_secret(struct process_settings *settings,
                                  const struct options *options);

/* The address of the interface given, or NULL. */
const char *process_settings_address(const struct process_settings *settings);

/* A variable of the environment, or NULL, for cluster_resolve; CONTEXT is
 * ignored. */
const char *process_settings_getenv(void *context, const char *name);

#endif
