/* SPDX-License-Identifier: Apache-2.0 */
/* Real processes of capstan for tests: a folder with tiny data and a job, the
 * processes, what they say, how they end. Every wait is for an event and has a
 * deadline; what does not come in time fails the test, which then tells what
 * was awaited and what the process has said. Ports, processes and folder are
 * gone at the end, whatever happened. */
#ifndef CAPSTAN_CLUSTER_RUN_H
#define CAPSTAN_CLUSTER_RUN_H

#include <jansson.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>

enum { CLUSTER_RUN_DEADLINE = 30 /* seconds that do for a tiny run */ };

/* Arguments, or an environment, as the functions here take them. */
#define WORDS(...) ((const char *[]){__VA_ARGS__, NULL})

struct cluster_process;

struct cluster_run {
    char folder[PATH_MAX];             /* everything lies in it */
    struct cluster_process *processes; /* newest first */
    json_t *cluster;                   /* as TF_CONFIG has it, or NULL */
    int *port_sockets;                 /* of its ports */
    int network; /* namespace of what is started next; 0: the test's own */
    unsigned num_port_sockets;
    bool in_memory;
};

/* For cmocka: *STATE is a struct cluster_run whose folder holds 600 training
 * and 200 test samples of 8 x 8 pixels in 10 classes, which a small model
 * learns well. */
int cluster_run_setup(void **state);

/* The same in memory where there is room for it: for what ends by deadlines of
 * its own, which a slow disk, or one that others are writing to, would
 * break. */
int cluster_run_setup_in_memory(void **state);
int cluster_run_teardown(void **state);

/* The path of FOLDER/NAME, as textf gives it. */
const char *cluster_run_path(const struct cluster_run *run, const char *name);

/* Opens FOLDER/NAME to write it; close it with fclose. */
FILE *cluster_run_create(const struct cluster_run *run, const char *name);

/* Writes FOLDER/NAME, a program of the shell. */
void cluster_run_script(const struct cluster_run *run, const char *name,
                        const char *text);

/* Writes FOLDER/job.json: [64, 16, 10], 3 epochs of micro batches of 10, SGD,
 * checkpoints below FOLDER/checkpoint; then CHANGES, a JSON object (NULL:
 * none), merged into it. */
void cluster_run_job(const struct cluster_run *run, const char *changes);

/* Starts `capstan ARGUMENTS...` as NAME, in the folder, with ENVIRONMENT
 * ("NAME=value"; nothing else there describes a cluster). Both lists end with
 * NULL; ENVIRONMENT may be NULL. What it writes is also in FOLDER/NAME.out and
 * FOLDER/NAME.err. The program is that of the variable CAPSTAN, else
 * build/capstan. */
struct cluster_process *cluster_run_start(struct cluster_run *run,
                                          const char *name,
                                          const char *const *arguments,
                                          const char *const *environment);

/* The same of another PROGRAM, a path; it finds capstan's in CAPSTAN. */
struct cluster_process *cluster_run_program(struct cluster_run *run,
                                            const char *name,
                                            const char *program,
                                            const char *const *arguments,
                                            const char *const *environment);

/* Describes a cluster on ports of this machine that are held for it. */
void cluster_run_describe(struct cluster_run *run, unsigned num_chiefs,
                          unsigned num_ps, unsigned num_workers);

/* Starts task INDEX of TYPE ("ps") of the described cluster as "TYPE-INDEX":
 * `capstan run ARGUMENTS...` (NULL: none) with the TF_CONFIG it needs. */
struct cluster_process *cluster_run_task(struct cluster_run *run,
                                         const char *type, unsigned index,
                                         const char *const *arguments);

/* The same of another PROGRAM, a path; NULL: `capstan run`. */
struct cluster_process *cluster_run_task_program(struct cluster_run *run,
                                                 const char *type,
                                                 unsigned index,
                                                 const char *program,
                                                 const char *const *arguments);

/* Waits for the next line with TEXT on standard error, counted from the one
 * found last; views it until the next call. */
const char *cluster_run_await(struct cluster_process *process, const char *text,
                              double seconds);

/* The same; NULL: PROCESS has ended without it. */
const char *cluster_run_await_or_end(struct cluster_process *process,
                                     const char *text, double seconds);

/* The first one within CLUSTER_RUN_DEADLINE. */
#define cluster_run_await_soon(process, text)                                  \
    cluster_run_await(process, text, CLUSTER_RUN_DEADLINE)

/* Waits for a line with ONE and a line with OTHER, in either order, as lines of
 * two processes come. */
void cluster_run_await_both(struct cluster_process *process, const char *one,
                            const char *other, double seconds);

void cluster_run_signal(const struct cluster_process *process, int number);
int cluster_run_pid(const struct cluster_process *process);

/* Waits for the end: the exit code, or 128 + n for signal n. */
int cluster_run_exit(struct cluster_process *process, double seconds);

/* The same, and anything but CODE fails the test. */
void cluster_run_expect(struct cluster_process *process, int code,
                        double seconds);
#define cluster_run_expect_soon(process, code)                                 \
    cluster_run_expect(process, code, CLUSTER_RUN_DEADLINE)

/* Ctrl-C once PROCESS has said TEXT: it ends with 130, and nothing is on its
 * standard output. */
void cluster_run_interrupt(struct cluster_process *process, const char *text);

/* After the end: all that was written, views. */
const char *cluster_run_output(const struct cluster_process *process);
const char *cluster_run_errors(const struct cluster_process *process);

/* After the end: the last line of standard output, a JSON object; a view. */
const json_t *cluster_run_json(struct cluster_process *process);

#endif
