/* SPDX-License-Identifier: Apache-2.0 */
/* Signals that a scheduler or a terminal sends: SIGUSR1 for a checkpoint after
 * which the run goes on, SIGHUP as its terminal goes away. */
#include "tests/cluster/cluster_fixture.h"
#include "tests/lib/skip.h"
#include "tests/lib/test.h"

#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RETRY = 138, MAXIMUM = 8 };

/* A run that only a signal ends, and whose only checkpoints are signals'. No
 * test waits as long as its grace and peer. */
static const char endless[] =
    "{\"steps\": 10000000, \"steps_per_epoch\": 10000000,"
    " \"chief\": \"coordinate\","
    " \"timeouts\": {\"stop\": 1, \"grace\": 600, \"peer\": 600}}";

static void expect_checkpoints(struct cluster_run *run, unsigned count) {
    uint64_t steps[MAXIMUM];
    assert_int_equal(
        cluster_fixture_checkpoints(run, "checkpoint", steps, MAXIMUM), count);
    assert_true(steps[0] > 0);
}

/* PROCESS, which has the chief's lines, is told, saves and goes on. */
static void save_by(struct cluster_run *run, struct cluster_process *process) {
    cluster_run_await_soon(process, "%)");
    cluster_run_signal(process, SIGUSR1);
    cluster_run_await_soon(process,
                           "SIGUSR1: one checkpoint, and the run goes on");
    cluster_run_await_soon(process, "checkpoint /");
    expect_checkpoints(run, 1);
    cluster_run_await_soon(process, "%)");
    cluster_run_signal(process, SIGTERM);
    cluster_run_expect_soon(process, 128 + SIGTERM);
    expect_checkpoints(run, 2);
}

FIXTURE(cluster_run_setup_in_memory, cluster_run_teardown);

TEST(sigusr1_saves_a_checkpoint_and_the_run_continues) {
    static const struct {
        unsigned num_ps;
        const char *strategy;
    } cases[] = {
        {1, "strategy={\"type\": \"ps\", \"staleness\": 0}"},
        {1, "strategy={\"type\": \"ps\", \"staleness\": \"inf\"}"},
        {0, "strategy={\"type\": \"allreduce\"}"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct cluster_run *run = cluster_fixture_reset(state);
        const char *changes[] = {cases[i].strategy, NULL};
        print_message("# %s\n", cases[i].strategy);
        cluster_run_job(run, endless);
        save_by(run, cluster_fixture_local(run, cases[i].num_ps, 2, changes));
    }
}

/* As `scancel --signal=USR1` and `srun` do. Whoever does not lead says that it
 * is not meant, and a second one while the chief saves is the same. */
TEST(sigusr1_to_every_process_saves_one_checkpoint) {
    struct cluster_fixture fixture;
    struct cluster_run *run = *state;
    cluster_run_job(run, endless);
    cluster_fixture_describe(&fixture, run, 1, 1, 2);
    cluster_fixture_start_all(&fixture);
    struct cluster_process *chief = fixture.tasks[0].process;
    struct cluster_process *ps =
        fixture.tasks[cluster_fixture_find(&fixture, "ps", 0)].process;
    cluster_run_await_soon(chief, "%)");
    cluster_run_signal(ps, SIGSTOP); /* the cut waits for it */
    for (unsigned i = fixture.count; i > 0; i--)
        cluster_run_signal(fixture.tasks[i - 1].process, SIGUSR1);
    cluster_run_await_soon(chief, "SIGUSR1: one checkpoint");
    cluster_run_signal(chief, SIGUSR1);
    cluster_run_await_soon(chief, "SIGUSR1: a checkpoint is in progress");
    cluster_run_signal(ps, SIGCONT);
    for (unsigned i = 1; i < fixture.count; i++)
        cluster_run_await_soon(fixture.tasks[i].process,
                               "SIGUSR1 is ignored here");
    cluster_run_await_soon(chief, "checkpoint /");
    cluster_run_await_soon(chief, "%)");
    expect_checkpoints(run, 1);
    cluster_run_signal(chief, SIGTERM);
    cluster_run_expect_soon(chief, 128 + SIGTERM);
    cluster_fixture_expect_soon(&fixture, 0, RETRY);
}

TEST(without_a_checkpoint_folder_sigusr1_only_logs) {
    static const char *const changes[] = {"checkpoint={\"dir\": null}", NULL};
    cluster_run_job(*state, endless);
    struct cluster_process *local =
        cluster_fixture_local(*state, 1, 1, changes);
    cluster_run_await_soon(local, "%)");
    cluster_run_signal(local, SIGUSR1);
    cluster_run_await_soon(local, "SIGUSR1: no checkpoint");
    cluster_run_await_soon(local, "%)");
    cluster_run_signal(local, SIGTERM);
    cluster_run_expect_soon(local, 128 + SIGTERM);
}

/* The test's child, on a terminal of its own, until it has said WORD there. */
static pid_t start_on_a_terminal(struct cluster_run *run, int *terminal,
                                 const char *word) {
    char said[65536];
    size_t used = 0;
    ssize_t got = 1;
    setenv("CAPSTAN_SIGNAL_TEST", run->folder, 1);
    pid_t local = forkpty(terminal, NULL, NULL, NULL);
    if (local == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        execl("/bin/sh", "sh", "-c",
              "cd \"$CAPSTAN_SIGNAL_TEST\" && exec \"$CAPSTAN\" local --ps 2"
              " --workers 2 job.json",
              NULL);
        _exit(127);
    }
    assert_true(local > 0);
    struct pollfd item = {*terminal, POLLIN, 0};
    memset(said, 0, sizeof said);
    while (!strstr(said, word) && got > 0 && used + 1 < sizeof said &&
           poll(&item, 1, CLUSTER_RUN_DEADLINE * 1000) > 0) {
        got = read(*terminal, said + used, sizeof said - 1 - used);
        used += got > 0 ? (size_t)got : 0;
    }
    assert_contains(said, word);
    return local;
}

/* Its lines have nowhere to go from then on. */
TEST(sighup_leaves_a_checkpoint) {
    int terminal, status;
    skip_unless_terminals();
    cluster_run_job(*state, endless);
    pid_t local = start_on_a_terminal(*state, &terminal, "/s");
    int end = pidfd_open(local, 0);
    struct pollfd item = {end, POLLIN, 0};
    close(terminal);
    if (poll(&item, 1, 1000 * CLUSTER_RUN_DEADLINE) != 1)
        fail_msg("local did not end within %d s", CLUSTER_RUN_DEADLINE);
    assert_int_equal(waitpid(local, &status, 0), local);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 128 + SIGHUP)
        fail_msg("local ended with the status 0x%x", (unsigned)status);
    expect_checkpoints(*state, 1);
    close(end);
}

TEST(under_nohup_sighup_is_ignored) {
    cluster_run_job(*state, endless);
    struct cluster_process *local = cluster_run_program(
        *state, "nohup", "/bin/sh",
        WORDS(
            "-c",
            "trap '' HUP; exec \"$CAPSTAN\" local --ps 1 --workers 1 job.json"),
        NULL);
    cluster_run_await_soon(local, "%)");
    cluster_run_signal(local, SIGHUP);
    cluster_run_await_soon(local, "%)");
    cluster_run_signal(local, SIGTERM);
    cluster_run_expect_soon(local, 128 + SIGTERM);
}
