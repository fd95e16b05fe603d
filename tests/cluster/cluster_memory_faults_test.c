/* SPDX-License-Identifier: Apache-2.0 */
/* Any one allocation of Capstan's own code finds no memory
 * (preload/failing_memory.c), in a run that goes back once, and whose chief
 * dies once: the run goes on, or ends with a named error, never by a signal,
 * and the same command ends it in the weights of an undisturbed one. Libraries
 * that end their process where they find none (libzmq, LMDB, protobuf-c) are
 * left alone; a limit of the address space is in cluster_memory_plan_test.c.
 * SOAK_COUNT=10: each allocation, else a few. */
#define STATE struct cluster_run *run

#include "tests/cluster/cluster_fixture.h"
#include "tests/lib/build_folder.h"
#include "tests/lib/skip.h"
#include "tests/lib/test.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

enum {
    FAULTS = 3,
    ALL = 10, /* SOAK_COUNT that takes each */
    LONG = 4 * CLUSTER_RUN_DEADLINE,
    EXIT_FAILED = 1,
    EXIT_RETRY = 138,
    CHIEF_KILLED = 128 + SIGKILL /* by the test, as its run ended */
};

#define JOB                                                                    \
    "{\"steps\": 2000, \"steps_per_epoch\": 30, \"steps_per_print\": 10,"      \
    " \"timeouts\": {\"peer\": 6}, \"checkpoint\": {\"every_steps\": 250,"     \
    " \"keep\": 100}}"

FIXTURE(cluster_run_setup_in_memory, cluster_run_teardown);

/* Who lacks memory: processes of TYPE, "" that of `capstan local`. KILLED dies
 * after the first checkpoint. */
struct fault_form {
    const char *type, *num_ps, *killed;
};

static void leave_memory(void) {
    unsetenv("LD_PRELOAD");
    unsetenv("CAPSTAN_FAILS");
}

/* Processes inherit the test's environment. */
static void fail_allocation(struct cluster_run *run, const char *type,
                            unsigned number) {
    char built[PATH_MAX];
    assert_true(build_folder_find(built));
    const char *library = textf("%s/fake/failing_memory.so", built);
    assert_int_equal(access(library, R_OK), 0);
    assert_int_equal(system(textf("cd '%s' && rm -rf trace faulty && "
                                  "mkdir trace",
                                  run->folder)),
                     0);
    setenv("CAPSTAN_TRACE", cluster_run_path(run, "trace"), 1);
    setenv("CAPSTAN_FAILS_IN", type, 1);
    setenv("CAPSTAN_FAILS", textf("%u", number), 1);
    setenv("LD_PRELOAD", library, 1);
}

static struct cluster_process *start(struct cluster_run *run, const char *name,
                                     const struct fault_form *form,
                                     const char *dir) {
    return cluster_run_start(run, name,
                             WORDS("local", "job.json", "--ps", form->num_ps,
                                   "--workers", "2", "--set",
                                   textf("checkpoint.dir=%s", dir)),
                             NULL);
}

/* The process of the next line with TEXT; 0: LOCAL has ended without it. */
static pid_t await_pid(struct cluster_process *local, const char *text) {
    const char *line = cluster_run_await_or_end(local, text, LONG);
    const char *pid = line ? strstr(line, ", pid ") : NULL;
    return pid ? (pid_t)atoi(pid + strlen(", pid ")) : 0;
}

static void kill_at(struct cluster_process *local, const char *text,
                    pid_t pid) {
    if (pid && cluster_run_await_or_end(local, text, LONG))
        kill(pid, SIGKILL); /* it may be gone */
}

/* It goes back, and loses its chief then, unless it ends before. */
static int run_to_end(struct cluster_process *local,
                      const struct fault_form *form) {
    pid_t chief = await_pid(local, "chief: host ");
    pid_t killed =
        await_pid(local, textf("chief: %s joined from ", form->killed));
    kill_at(local, "chief: checkpoint ", killed);
    kill_at(local, "the run goes on after step ", chief);
    return cluster_run_exit(local, LONG);
}

/* By processes of the form's type. */
static unsigned count_allocations(struct cluster_run *run,
                                  const struct fault_form *form) {
    unsigned count = 0;
    fail_allocation(run, form->type, 0);
    struct cluster_process *local = start(run, "counted", form, "faulty");
    assert_int_equal(run_to_end(local, form), 0);
    leave_memory();
    FILE *file = fopen(cluster_run_path(run, "trace/count"), "rb");
    assert_non_null(file);
    assert_int_equal(fread(&count, sizeof count, 1, file), 1);
    fclose(file);
    return count;
}

static void expect_fault_is_survived(struct cluster_run *run,
                                     const struct fault_form *form,
                                     unsigned number) {
    fail_allocation(run, form->type, number);
    struct cluster_process *local =
        start(run, textf("fails-%s-%u", form->type, number), form, "faulty");
    int code = run_to_end(local, form);
    leave_memory();
    if (code != 0 && code != EXIT_FAILED && code != EXIT_RETRY &&
        code != CHIEF_KILLED)
        fail_msg("%s", cluster_run_errors(local));
    if (code)
        cluster_fixture_expect_logged(local, "error: ");
    for (const char *const *by = WORDS("signal 11", "signal 6"); *by; by++)
        if (cluster_fixture_has_logged(local, *by))
            fail_msg("%s", cluster_run_errors(local));
    if (code)
        cluster_run_expect(start(run, textf("again-%s-%u", form->type, number),
                                 form, "faulty"),
                           0, LONG);
    cluster_fixture_expect_same_checkpoints(run, "whole", "faulty");
}

static void expect_each_fault_is_survived(struct cluster_run *run,
                                          const struct fault_form *form) {
#ifdef __SANITIZE_ADDRESS__
    skip_test("the address sanitizer has an allocator of its own");
#endif
#ifdef __SANITIZE_THREAD__
    skip_test("the thread sanitizer has an allocator of its own");
#endif
    cluster_run_job(run, JOB);
    cluster_run_expect(start(run, "whole", form, "whole"), 0, LONG);
    unsigned count = count_allocations(run, form);
    unsigned faults = cluster_fixture_repeats(1) < ALL ? FAULTS : count;
    assert_true(faults <= count);
    for (unsigned i = 0; i < faults; i++) {
        unsigned number = 1 + (unsigned)((uint64_t)i * count / faults);
        print_message("# allocation %u of %u\n", number, count);
        expect_fault_is_survived(run, form, number);
    }
}

TEST(whichever_allocation_of_a_chief_fails_the_run_survives) {
    expect_each_fault_is_survived(run,
                                  &(struct fault_form){"chief", "2", "ps 1"});
}

TEST(whichever_allocation_of_a_ps_fails_the_run_survives) {
    expect_each_fault_is_survived(run, &(struct fault_form){"ps", "2", "ps 1"});
}

TEST(whichever_allocation_of_a_worker_fails_the_run_survives) {
    expect_each_fault_is_survived(run,
                                  &(struct fault_form){"worker", "2", "ps 1"});
}

TEST(whichever_allocation_of_a_rank_of_all_reduce_fails_the_run_survives) {
    expect_each_fault_is_survived(
        run, &(struct fault_form){"worker", "0", "worker 1"});
}

TEST(whichever_allocation_of_the_launcher_fails_the_run_survives) {
    expect_each_fault_is_survived(run, &(struct fault_form){"", "2", "ps 1"});
}
