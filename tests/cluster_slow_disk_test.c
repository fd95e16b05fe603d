/* A disk that takes longer for a manifest than anybody waits for the chief: a
 * full pipe stands where the manifest is written. */
#include "tests/cluster_play.h"
#include "tests/cluster_run.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PEER = 1, LONG = 3 * PEER, EXIT_RETRY = 138 };

/* A full one; returns an end of it. */
static int make_pipe(const struct cluster_run *run, char path[PATH_MAX]) {
    static const char bytes[4096];
    cluster_run_path(run, "checkpoint", path);
    assert_int_equal(mkdir(path, 0777), 0);
    cluster_run_path(run, "checkpoint/step-000000020", path);
    assert_int_equal(mkdir(path, 0777), 0);
    cluster_run_path(run, "checkpoint/step-000000020/manifest.json.tmp", path);
    assert_int_equal(mkfifo(path, 0666), 0);
    int pipe = open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC);
    assert_true(pipe >= 0);
    while (write(pipe, bytes, sizeof bytes) > 0)
        ;
    return pipe;
}

/* Who writes into PIPE goes on, and hears that it can not be synced. */
static void read_pipe(int pipe, const char *path) {
    char bytes[4096];
    int reader = open(path, O_RDONLY | O_CLOEXEC);
    assert_true(reader >= 0);
    close(pipe);
    while (read(reader, bytes, sizeof bytes) > 0)
        ;
    close(reader);
}

/* The process that says WHO ("ps 1: "), once it has begun. */
static pid_t find(struct cluster_process *local, const char *who) {
    const char *line = cluster_run_await(local, who, CLUSTER_RUN_DEADLINE);
    const char *pid = strstr(line, "pid ");
    assert_non_null(pid);
    return (pid_t)atoi(pid + strlen("pid "));
}

static bool has_open(pid_t process, const char *path) {
    char name[64], target[PATH_MAX];
    snprintf(name, sizeof name, "/proc/%d/fd", process);
    DIR *folder = opendir(name);
    bool found = false;
    assert_non_null(folder);
    for (struct dirent *entry; (entry = readdir(folder));) {
        ssize_t length =
            readlinkat(dirfd(folder), entry->d_name, target, sizeof target);
        found |= length == (ssize_t)strlen(path) &&
                 !memcmp(target, path, (size_t)length);
    }
    closedir(folder);
    return found;
}

/* Starts a run whose chief writes the manifest of step 20 when this returns,
 * and its ps 1 in *PS. */
static struct cluster_process *train(struct cluster_run *run, const char *path,
                                     pid_t *ps) {
    static const char *const arguments[] = {
        "local", "--ps", "2", "--workers", "2", "job.json", NULL};
    static const double LOOK = 0.02;
    cluster_run_job(run,
                    "{\"steps\": 60, \"checkpoint\": {\"every_steps\": 20},"
                    " \"timeouts\": {\"peer\": 1, \"stop\": 1}}");
    struct cluster_process *local =
        cluster_run_start(run, "local", arguments, NULL);
    pid_t chief = find(local, "chief: rank");
    *ps = find(local, "chief: ps 1 joined");
    double left = CLUSTER_RUN_DEADLINE;
    for (; !has_open(chief, path) && left > 0; left -= LOOK)
        cluster_play_pass(LOOK);
    assert_true(left > 0);
    return local;
}

static void nobody_takes_a_chief_that_writes_for_lost(void **state) {
    struct cluster_run *run = *state;
    char path[PATH_MAX];
    pid_t ps;
    int pipe = make_pipe(run, path);
    struct cluster_process *local = train(run, path, &ps);
    cluster_play_pass(LONG);
    read_pipe(pipe, path);
    cluster_run_await(local, "no checkpoint of step 20", CLUSTER_RUN_DEADLINE);
    cluster_run_await(local, "step-000000060: ", CLUSTER_RUN_DEADLINE);
    cluster_run_expect(local, 0, CLUSTER_RUN_DEADLINE);
}

static void a_chief_that_ends_says_what_it_waits_for(void **state) {
    struct cluster_run *run = *state;
    char path[PATH_MAX];
    pid_t ps;
    int pipe = make_pipe(run, path);
    struct cluster_process *local = train(run, path, &ps);
    assert_int_equal(kill(ps, SIGKILL), 0);
    cluster_run_await(local, "has not taken the checkpoint of step 20 within 1",
                      CLUSTER_RUN_DEADLINE);
    read_pipe(pipe, path);
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
