/* SPDX-License-Identifier: Apache-2.0 */
/* The files of deploy/kubernetes: against rules of the published schemas, and
 * plain Jobs and the chart run as written in a cluster that kubernetes/play.py
 * plays on this machine, which needs root. kubernetes/check.py has the checks.
 */
#include "tests/cluster/cluster_run.h"
#include "tests/lib/build_folder.h"
#include "tests/lib/skip.h"
#include "tests/lib/test.h"

#include <unistd.h>

enum { CHECK_DEADLINE = 150 /* seconds, with the build of chart.go */ };

/* Runs check.py; what it prints goes to standard error. */
static void run_check(struct cluster_run *run, const char *what) {
    char script[PATH_MAX], build[PATH_MAX];
    if (access("/usr/bin/python3", X_OK))
        skip_test("there is no /usr/bin/python3 here (python3)");
    assert_true(build_folder_find(build));
    assert_non_null(realpath("tests/cluster/kubernetes/check.py", script));
    const char *const arguments[] = {script, build, run->folder, what, NULL};
    struct cluster_process *process =
        cluster_run_program(run, "check", "/usr/bin/python3", arguments, NULL);
    int code = cluster_run_exit(process, CHECK_DEADLINE);
    const char *said = cluster_run_output(process);
    if (!code && !strncmp(said, "skip ", 5))
        skip_test("%.*s", (int)strcspn(said + 5, "\n"), said + 5);
    fprintf(stderr, "%s%s", said, code ? cluster_run_errors(process) : "");
    assert_int_equal(code, 0);
}

FIXTURE(cluster_run_setup, cluster_run_teardown);

TEST(the_manifests_follow_the_rules) {
    run_check(*state, "rules");
}

TEST(the_chart_follows_the_rules) {
    run_check(*state, "chart");
}

TEST(each_mutation_of_a_manifest_is_refused) {
    run_check(*state, "mutations");
}

TEST(plain_jobs_resume_when_a_ps_is_evicted) {
    run_check(*state, "play");
}

TEST(pods_of_the_chart_have_the_secret_of_the_release) {
    run_check(*state, "secret");
}
