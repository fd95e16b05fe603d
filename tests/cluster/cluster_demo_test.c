/* SPDX-License-Identifier: Apache-2.0 */
/* deploy/demo.sh starts over where its own run is, and nowhere else: the
 * program that it trains with leaves a file, as a run does. Its job, installed,
 * is there for everyone. The one with tables, on fewer rows, trains. */
#define STATE struct cluster_run *run

#include "tests/cluster/cluster_run.h"
#include "tests/lib/skip.h"
#include "tests/lib/test.h"

#include <sys/stat.h>
#include <unistd.h>

enum { DEADLINE = CLUSTER_RUN_DEADLINE, REFUSED = 2, FAILED = 3 };

static char script[PATH_MAX];

static void write_file(const struct cluster_run *run, const char *name,
                       const char *text) {
    const char *path = cluster_run_path(run, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(chmod(path, 0755), 0);
}

static bool is_there(const struct cluster_run *run, const char *name) {
    struct stat about;
    return !lstat(cluster_run_path(run, name), &about);
}

static void make_folder(const struct cluster_run *run, const char *name) {
    assert_int_equal(mkdir(cluster_run_path(run, name), 0700), 0);
}

/* The demo with a program that ends with the demo's number N beside its
 * checkpoint; expects CODE. */
static struct cluster_process *demo(struct cluster_run *run, const char *n,
                                    int code) {
    char program[256];
    snprintf(program, sizeof program,
             "#!/bin/sh\nmkdir -p deploy/run/checkpoint\n"
             "echo %s > deploy/run/checkpoint/manifest\n"
             "echo > deploy/run/only-%s\n[ %s = 9 ] && exit 3 || exit 0\n",
             n, n, n);
    if (!is_there(run, "deploy"))
        make_folder(run, "deploy");
    write_file(run, "program", program);
    struct cluster_process *process =
        cluster_run_program(run, "demo", script, WORDS("./program"), NULL);
    cluster_run_expect(process, code, DEADLINE);
    return process;
}

static void expect_refused(struct cluster_run *run, const char *file) {
    struct cluster_process *process = demo(run, "2", REFUSED);
    const char *said = cluster_run_errors(process);
    if (!strstr(said, file) || !strstr(said, "rm -r deploy/run"))
        fail_msg("no \"%s\" in: %s", file, said);
    assert_false(is_there(run, "deploy/run/only-2"));
}

static int find_script(void **state) {
    (void)state;
    return realpath("deploy/demo.sh", script) ? 0 : -1;
}

GROUP(find_script, NULL);

FIXTURE(cluster_run_setup, cluster_run_teardown);

TEST(the_demo_starts_over_in_its_own_folder) {
    demo(run, "1", 0);
    assert_true(is_there(run, "deploy/run/only-1"));
    struct cluster_process *again = demo(run, "2", 0);
    assert_contains(cluster_run_output(again), "Removing deploy/run: what the");
    assert_false(is_there(run, "deploy/run/only-1"));
    assert_true(is_there(run, "deploy/run/only-2"));
}

TEST(the_demo_starts_over_after_a_failed_demo) {
    demo(run, "9", FAILED);
    demo(run, "2", 0);
    assert_false(is_there(run, "deploy/run/only-9"));
}

TEST(a_file_that_it_has_not_created_stays) {
    demo(run, "1", 0);
    write_file(run, "deploy/run/model.npz", "mine");
    expect_refused(run, "has not made: deploy/run/model.npz\n");
    assert_true(is_there(run, "deploy/run/model.npz"));
    assert_true(is_there(run, "deploy/run/only-1"));
}

/* Another run of the job has gone on there. */
TEST(a_file_that_was_written_after_it_stays) {
    demo(run, "1", 0);
    write_file(run, "deploy/run/checkpoint/manifest", "longer than before");
    expect_refused(run, "has not made: deploy/run/checkpoint/manifest\n");
}

TEST(files_from_before_the_demo_stay) {
    make_folder(run, "deploy");
    make_folder(run, "deploy/run");
    write_file(run, "deploy/run/model.npz", "mine");
    expect_refused(run, "has not made: deploy/run/model.npz\n");
}

TEST(a_path_that_is_not_a_folder_stays) {
    make_folder(run, "deploy");
    assert_int_equal(
        symlink("../elsewhere", cluster_run_path(run, "deploy/run")), 0);
    expect_refused(run, "deploy/run holds what the demo has not made");
    assert_true(is_there(run, "deploy/run"));
}

/* Runs WORDS, a shell's, from the root of the source. */
static void shell(struct cluster_run *run, const char *name, const char *words,
                  const char *const *environment) {
    struct cluster_process *process = cluster_run_program(
        run, name, "/bin/sh", WORDS("-c", words), environment);
    cluster_run_expect(process, 0, DEADLINE);
}

/* As a user who may write in her own folder and nowhere else. */
TEST(the_installed_job_runs_without_write_access_to_its_folder) {
    char root[PATH_MAX];
    skip_unless_installed("make", "make");
    assert_non_null(realpath(".", root));
    const char *source = textf("SOURCE=%s", root);
    const char *const environment[] = {source, "MAKEFLAGS=", NULL};
    shell(run, "install",
          "p=$PWD; chmod 755 . && mkdir home && chmod 777 home && "
          "make -C \"$SOURCE\" -o all BUILD=\"$(dirname $CAPSTAN)\" "
          "PREFIX=\"$p/prefix\" install && chmod -R a-w prefix",
          environment);
    shell(run, "train",
          "p=$PWD; cd home; [ $(id -u) != 0 ] || user='setpriv --reuid=65534 "
          "--regid=65534 --clear-groups'; "
          "$user \"$p/prefix/bin/capstan\" local --ps 1 --workers 2 "
          "\"$p/prefix/share/capstan/jobs/fashion-mnist.json\" "
          "--set data.dir=\"$p\" --set model.layers='[64, 16, 10]' "
          "--set data.train='[\"train-images\", \"train-labels\"]' "
          "--set data.test='[\"test-images\", \"test-labels\"]' "
          "--set steps=4 --set train_batch_size=20",
          environment);
    shell(run, "clean", "chmod -R u+w prefix", environment);
}

static double auc_of(const char *said, const char *what) {
    const char *line = strstr(said, what);
    double auc = 0;
    if (!line || sscanf(line + strlen(what), "%lf", &auc) != 1)
        fail_msg("no AUC of %s in: %s", what, said);
    return auc;
}

TEST(the_demo_with_tables_says_how_good_its_models_are) {
    char click_log[PATH_MAX], jobs[PATH_MAX];
    const char *environment[] = {click_log, jobs, NULL};
    const char *const arguments[] = {getenv("CAPSTAN"), "./clicks", NULL};
    snprintf(click_log, sizeof click_log, "CLICK_LOG=%.*s/bench/click_log",
             (int)(strrchr(arguments[0], '/') - arguments[0]), arguments[0]);
    snprintf(jobs, sizeof jobs, "JOBS=%.*s/click-log-*.json",
             (int)(strrchr(script, '/') - script), script);
    make_folder(run, "deploy");
    shell(run, "copy", "cp $JOBS deploy", environment);
    write_file(run, "clicks",
               "#!/bin/sh\nexec $CLICK_LOG $1 $2 $3 $4 $5 $(($6 / 20)) $7\n");
    struct cluster_process *process =
        cluster_run_program(run, "demo", script, arguments, environment);
    cluster_run_expect(process, 0, DEADLINE);
    const char *said = cluster_run_output(process);
    assert_true(auc_of(said, "  linear") > 0.55);
    assert_true(auc_of(said, "  deepfm") > 0.55);
    assert_true(auc_of(said, "  best possible") > auc_of(said, "  deepfm"));
    assert_contains(said, "table C26: 100 rows");
}

/* The digits of README.md and docs/; cluster_shown.py writes them, too. */
TEST(blocks_of_output_in_the_documentation_are_what_a_run_prints) {
    static const char data[] = "/usr/share/datasets/fashion-mnist";
    char script_path[PATH_MAX];
    skip_unless_installed("python3", "python3");
    if (access(data, R_OK))
        skip_test("there is no %s here (dataset-fashion-mnist)", data);
    assert_non_null(realpath("tests/cluster/cluster_shown.py", script_path));
    assert_int_equal(
        system(textf("python3 '%s' '%s' '%s' >&2", script_path,
                     getenv("CAPSTAN"), cluster_run_path(run, "shown"))),
        0);
}
