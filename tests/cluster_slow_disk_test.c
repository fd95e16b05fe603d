/* A disk that takes longer for a manifest than anybody waits for the chief: a
 * pipe stands where the manifest is written, and nobody reads it. */
#include "tests/cluster_play.h"
#include "tests/cluster_run.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PEER = 1, LONG = 3 * PEER, EXIT_RETRY = 138 };

static void make_pipe(const struct cluster_run *run, char path[PATH_MAX]) {
    cluster_run_path(run, "checkpoint", path);
    assert_int_equal(mkdir(path, 0777), 0);
    cluster_run_path(run, "checkpoint/step-000000020", path);
    assert_int_equal(mkdir(path, 0777), 0);
    cluster_run_path(run, "checkpoint/step-000000020/manifest.json.tmp", path);
    assert_int_equal(mkfifo(path, 0666), 0);
}

/* All steps are done, and the manifest of step 20 is not written. */
static struct cluster_process *train(struct cluster_run *run) {
    static const char *const arguments[] = {
        "local", "--ps", "2", "--workers", "2", "job.json", NULL};
    cluster_run_job(run,
                    "{\"steps\": 60, \"checkpoint\": {\"every_steps\": 20},"
                    " \"timeouts\": {\"peer\": 1, \"stop\": 1}}");
    struct cluster_process *local =
        cluster_run_start(run, "local", arguments, NULL);
    cluster_run_await(local, "chief: step 60/60", CLUSTER_RUN_DEADLINE);
    return local;
}

/* The writer goes on, and hears that a pipe can not be synced. */
static void read_pipe(const char *path) {
    char bytes[4096];
    int pipe = open(path, O_RDONLY | O_CLOEXEC);
    assert_true(pipe >= 0);
    while (read(pipe, bytes, sizeof bytes) > 0)
        ;
    close(pipe);
}

static void nobody_takes_a_chief_that_writes_for_lost(void **state) {
    struct cluster_run *run = *state;
    char path[PATH_MAX];
    make_pipe(run, path);
    struct cluster_process *local = train(run);
    cluster_play_pass(LONG);
    read_pipe(path);
    cluster_run_await(local, "no checkpoint of step 20", CLUSTER_RUN_DEADLINE);
    cluster_run_await(local, "step-000000060: ", CLUSTER_RUN_DEADLINE);
    cluster_run_expect(local, 0, CLUSTER_RUN_DEADLINE);
}

static int find_ps(struct cluster_process *local) {
    const char *line =
        cluster_run_await(local, "ps 1 joined from", CLUSTER_RUN_DEADLINE);
    const char *pid = strstr(line, "pid ");
    assert_non_null(pid);
    return pidfd_open((pid_t)atoi(pid + strlen("pid ")), 0);
}

static void a_chief_that_ends_says_what_it_waits_for(void **state) {
    struct cluster_run *run = *state;
    static const char *const arguments[] = {
        "local", "--ps", "2", "--workers", "2", "job.json", NULL};
    char path[PATH_MAX];
    make_pipe(run, path);
    cluster_run_job(run,
                    "{\"steps\": 60, \"checkpoint\": {\"every_steps\": 20},"
                    " \"timeouts\": {\"peer\": 1, \"stop\": 1}}");
    struct cluster_process *local =
        cluster_run_start(run, "local", arguments, NULL);
    int ps = find_ps(local);
    cluster_run_await(local, "chief: step 60/60", CLUSTER_RUN_DEADLINE);
    assert_int_equal(pidfd_send_signal(ps, SIGKILL, NULL, 0), 0);
    close(ps);
    cluster_run_await(local, "has not taken the checkpoint of step 20 within 1",
                      CLUSTER_RUN_DEADLINE);
    read_pipe(path);
    cluster_run_expect(local, EXIT_RETRY, CLUSTER_RUN_DEADLINE);
}

#define TEST(name)                                                             \
    cmocka_unit_test_setup_teardown(name, cluster_run_setup,                   \
                                    cluster_run_teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(nobody_takes_a_chief_that_writes_for_lost),
        TEST(a_chief_that_ends_says_what_it_waits_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
