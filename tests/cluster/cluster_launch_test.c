/* SPDX-License-Identifier: Apache-2.0 */
/* `capstan launch`: what it starts knows its rank, and none is left behind. */
#include "tests/cluster/cluster_run.h"

#include "commands/launch/port.h"
#include "tests/lib/skip.h"
#include "tests/lib/test.h"

#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { ARGUMENTS = 16 };

/* `capstan launch FLAGS... sh -c SCRIPT`, flags up to a NULL. */
static struct cluster_process *launch(struct cluster_run *run,
                                      const char *const *flags,
                                      const char *script) {
    const char *arguments[ARGUMENTS] = {"launch"};
    int count = 1;
    while (*flags)
        arguments[count++] = *flags++;
    arguments[count++] = "sh";
    arguments[count++] = "-c";
    arguments[count++] = script;
    return cluster_run_start(run, "launch", arguments, NULL);
}

FIXTURE(cluster_run_setup, cluster_run_teardown);

TEST(every_process_knows_its_rank) {
    const char *const flags[] = {"--nproc_per_node=2",
                                 "--nnodes",
                                 "3",
                                 "--node_rank",
                                 "1",
                                 "--master_addr",
                                 "m",
                                 "--master-port=7",
                                 NULL};
    struct cluster_process *process =
        launch(*state, flags,
               "echo $RANK of $WORLD_SIZE, $LOCAL_RANK of $LOCAL_WORLD_SIZE on "
               "$NODE_RANK at $MASTER_ADDR:$MASTER_PORT $0");
    cluster_run_expect_soon(process, 0);
    const char *said = cluster_run_output(process);
    assert_contains(said, "2 of 6, 0 of 2 on 1 at m:7 --local_rank=0");
    assert_contains(said, "3 of 6, 1 of 2 on 1 at m:7 --local_rank=1");
}

TEST(use_env_leaves_the_command_unchanged) {
    const char *const flags[] = {"--use_env", NULL};
    struct cluster_process *process =
        launch(*state, flags, "echo rank $LOCAL_RANK, $#");
    cluster_run_expect_soon(process, 0);
    assert_string_equal(cluster_run_output(process), "rank 0, 0\n");
}

TEST(python_runs_scripts_and_modules) {
    skip_unless_installed("python3", "python3");
    FILE *file = cluster_run_create(*state, "train.py");
    fputs("import os, sys\nprint(os.environ['RANK'], sys.argv[1:])\n", file);
    fclose(file);
    const char *const script[] = {"launch", "train.py", "--epochs", "3", NULL};
    struct cluster_process *process =
        cluster_run_start(*state, "script", script, NULL);
    cluster_run_expect_soon(process, 0);
    assert_string_equal(cluster_run_output(process),
                        "0 ['--epochs', '3', '--local_rank=0']\n");
    const char *const module[] = {"launch", "--use_env", "-m", "train", NULL};
    process = cluster_run_start(*state, "module", module, NULL);
    cluster_run_expect_soon(process, 0);
    assert_string_equal(cluster_run_output(process), "0 []\n");
}

/* The numbers in LINES, after each WORD: every such process has ended, or does
 * so at once. */
static void expect_gone(const char *lines, const char *word) {
    int count = 0;
    for (const char *at = lines; (at = strstr(at, word)); count++) {
        at += strlen(word);
        struct pollfd item = {.events = POLLIN};
        item.fd = (int)syscall(SYS_pidfd_open, atoi(at), 0);
        if (item.fd < 0)
            continue;
        assert_int_equal(poll(&item, 1, CLUSTER_RUN_DEADLINE * 1000), 1);
        close(item.fd);
    }
    assert_true(count > 0);
}

/* Rank 1 fails with 7 once rank 0, which does SCRIPT, writes to the file gate:
 * the processes that it has told as "pid N" are gone. LAST ends the flags, or
 * is NULL. */
static struct cluster_process *fail_beside(struct cluster_run *run,
                                           const char *script,
                                           const char *last) {
    const char *const flags[] = {"--nproc_per_node=2", "--use_env", last, NULL};
    struct cluster_process *process = launch(
        run, flags,
        textf("mkfifo gate 2> /dev/null; if [ $RANK = 1 ]; then read x < gate;"
              " exit 7; fi; %s",
              script));
    cluster_run_expect_soon(process, 7);
    expect_gone(cluster_run_output(process), "pid ");
    return process;
}

TEST(a_failure_ends_all_and_gives_the_exit_code) {
    struct cluster_process *process =
        fail_beside(*state,
                    "sleep 1000 & echo pid $!; echo pid $$; "
                    "echo > gate; wait",
                    NULL);
    assert_contains(cluster_run_errors(process),
                    "rank 1 ended with exit code 7");
}

TEST(a_process_that_ignores_sigterm_is_killed_after_the_grace) {
    struct cluster_process *process =
        fail_beside(*state,
                    "trap '' TERM; echo pid $$; echo > gate;"
                    " sleep 1000; sleep 1000",
                    "--grace=0.2");
    assert_contains(cluster_run_errors(process), "did not end within 0.2 s");
}

TEST(a_signal_is_forwarded_to_all) {
    const char *const flags[] = {"--nproc_per_node=2", "--use_env", NULL};
    struct cluster_process *process = launch(
        *state, flags,
        "trap 'echo told; exit 0' INT; echo here >&2; sleep 1000 & wait");
    cluster_run_await_soon(process, "here");
    cluster_run_await_soon(process, "here");
    cluster_run_signal(process, SIGINT);
    cluster_run_expect_soon(process, 128 + SIGINT);
    assert_string_equal(cluster_run_output(process), "told\ntold\n");
}

TEST(sigusr1_is_forwarded_to_all_and_ends_none) {
    const char *const flags[] = {"--nproc_per_node=2", "--use_env", NULL};
    struct cluster_process *process = launch(
        *state, flags,
        "trap 'echo told; exit 0' USR1; echo here >&2; sleep 1000 & wait");
    cluster_run_await_soon(process, "here");
    cluster_run_await_soon(process, "here");
    cluster_run_signal(process, SIGUSR1);
    cluster_run_expect_soon(process, 0);
    assert_string_equal(cluster_run_output(process), "told\ntold\n");
}

TEST(a_missing_program_is_reported) {
    struct cluster_process *process = cluster_run_start(
        *state, "launch", WORDS("launch", "no-such-program"), NULL);
    cluster_run_expect_soon(process, 127);
    const char *said =
        strstr(cluster_run_errors(process), "starting no-such-program");
    assert_non_null(said);
    assert_contains(said, "not on the PATH: give its path, as this");
    assert_contains(said, "/capstan\n");
}

/* Two nodes, here both this machine, two processes each. */
TEST(two_nodes_form_one_run) {
    struct cluster_process *nodes[2];
    char rank[32];
    int holder;
    uint16_t number;
    cluster_run_job(*state, NULL);
    assert_int_equal(port_reserve(&number, &holder, NULL), 0);
    const char *port = textf("--master_port=%u", number);
    for (int i = 1; i >= 0; i--) {
        const char *const arguments[] = {"launch",     "--nproc_per_node=2",
                                         "--nnodes=2", rank,
                                         port,         getenv("CAPSTAN"),
                                         "run",        "--json",
                                         "--num-ps",   "1",
                                         "job.json",   NULL};
        snprintf(rank, sizeof rank, "--node_rank=%d", i);
        nodes[i] = cluster_run_start(*state, rank, arguments, NULL);
    }
    cluster_run_expect(nodes[0], 0, 2 * CLUSTER_RUN_DEADLINE);
    cluster_run_expect(nodes[1], 0, 2 * CLUSTER_RUN_DEADLINE);
    close(holder);
    assert_contains(cluster_run_errors(nodes[0]), "3 trainers, 1 ps");
    assert_contains(cluster_run_errors(nodes[1]), "ps 0: joined");
    const json_t *summary = cluster_run_json(nodes[0]);
    assert_int_equal(json_integer_value(json_object_get(summary, "exit")), 0);
}
