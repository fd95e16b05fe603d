/* SPDX-License-Identifier: Apache-2.0 */
/* Whole clusters of real processes for tests: who takes part, started together
 * or at random offsets, ended together; their checkpoints; moments drawn from
 * a seed. What is awaited and does not come fails the test. */
#ifndef CAPSTAN_CLUSTER_FIXTURE_H
#define CAPSTAN_CLUSTER_FIXTURE_H

#include "tests/cluster/cluster_run.h"

#include <stdint.h>

enum { CLUSTER_FIXTURE_TASKS = 8 };

struct cluster_fixture_task {
    const char *type;
    unsigned index;
    struct cluster_process *process; /* its latest, or NULL */
};

struct cluster_fixture {
    struct cluster_run *run; /* borrowed */
    unsigned count;
    struct cluster_fixture_task tasks[CLUSTER_FIXTURE_TASKS]; /* [0] leads */
};

/* A generator; its seed is SOAK_SEED, else another one each time, and is
 * printed. */
uint64_t cluster_fixture_seed(void);
uint64_t cluster_fixture_random(uint64_t *seed, uint64_t below);

/* SOAK_COUNT times EACH, at least 1. */
unsigned cluster_fixture_repeats(unsigned each);

/* Lets time pass, by a timer. */
void cluster_fixture_sleep(double seconds);

/* Awaits a file of FOLDER that matches PATTERN. */
void cluster_fixture_await_file(const struct cluster_run *run,
                                const char *pattern, double seconds);

/* Writes the path of tests/library/caller.c's program, beside capstan's. */
void cluster_fixture_caller(char path[PATH_MAX]);

/* Ends what *STATE, a struct cluster_run, holds, and gives it an empty one. */
struct cluster_run *cluster_fixture_reset(void **state);

/* Describes a cluster of these tasks; without a chief worker 0 leads. */
void cluster_fixture_describe(struct cluster_fixture *fixture,
                              struct cluster_run *run, unsigned num_chiefs,
                              unsigned num_ps, unsigned num_workers);

/* Processes started from now on go over shared memory the first time, over TCP
 * the second, and so on in turns: what repeats is tried on both. */
void cluster_fixture_next_transport(void);

/* Starts task I, the one that leads with `job.json --json`. */
struct cluster_process *cluster_fixture_start(struct cluster_fixture *fixture,
                                              unsigned i);
void cluster_fixture_start_all(struct cluster_fixture *fixture);

/* All in random order, the last at most SECONDS after the first. */
void cluster_fixture_start_staggered(struct cluster_fixture *fixture,
                                     double seconds, uint64_t *seed);

/* The place of task INDEX of TYPE. */
unsigned cluster_fixture_find(const struct cluster_fixture *fixture,
                              const char *type, unsigned index);

/* Awaits all but task BUT (CLUSTER_FIXTURE_TASKS: all) and expects CODE. */
void cluster_fixture_expect(const struct cluster_fixture *fixture, unsigned but,
                            int code, double seconds);
#define cluster_fixture_expect_soon(fixture, but, code)                        \
    cluster_fixture_expect(fixture, but, code, CLUSTER_RUN_DEADLINE)

/* `capstan local` over NUM_PS and NUM_WORKERS with each of CHANGES (NULL-ended,
 * or NULL) set, on job.json: its process. */
struct cluster_process *cluster_fixture_local(struct cluster_run *run,
                                              unsigned num_ps,
                                              unsigned num_workers,
                                              const char *const *changes);

/* The same to its end with CODE. */
struct cluster_process *cluster_fixture_run(struct cluster_run *run,
                                            unsigned num_ps,
                                            unsigned num_workers, int code,
                                            const char *const *changes);

/* The same with its changes as arguments. */
#define CLUSTER_FIXTURE_RUN(run, num_ps, num_workers, code, ...)               \
    cluster_fixture_run(run, num_ps, num_workers, code,                        \
                        (const char *[]){__VA_ARGS__, NULL})

/* Runs `capstan ARGUMENTS...` to its end: its process, which ended with
 * CODE. */
struct cluster_process *cluster_fixture_tool(struct cluster_run *run, int code,
                                             const char *const *arguments);

/* The steps that `ckpt ls` lists in FOLDER/DIR, oldest first, as an array of
 * at most MAX; each of them passes `ckpt verify`. */
unsigned cluster_fixture_checkpoints(struct cluster_run *run, const char *dir,
                                     uint64_t *steps, unsigned max);

/* Flips a bit in a shard of the checkpoint of STEP in RUN's folder DIR. */
void cluster_fixture_damage(struct cluster_run *run, const char *dir,
                            unsigned step);

/* Fails unless the newest checkpoints in FOLDER/A and FOLDER/B hold the same
 * step and the same weights and state, bit for bit. */
void cluster_fixture_expect_same_checkpoints(struct cluster_run *run,
                                             const char *a, const char *b);

/* Whether PROCESS, which has ended, said TEXT on standard error. */
bool cluster_fixture_has_logged(const struct cluster_process *process,
                                const char *text);

/* Fails unless it did. */
void cluster_fixture_expect_logged(const struct cluster_process *process,
                                   const char *text);

#endif
