/* SPDX-License-Identifier: Apache-2.0 */
/* The jobs of deploy/azureml, each run here as it is written, in a copy of the
 * folder; and what docs/azureml.md shows of them (cluster_azureml.py). Ports of
 * pytorch's and mpi's jobs are Azure ML's, so one runs at a time. */
#define STATE struct cluster_run *run

#include "tests/cluster/cluster_fixture.h"
#include "tests/lib/build_folder.h"
#include "tests/lib/skip.h"
#include "tests/lib/test.h"

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

enum { TERMINATED = 143, DEADLINE = 2 * CLUSTER_RUN_DEADLINE };

/* Runs COMMAND in the run's folder, in which ROOT is that of the sources. */
static void shell(const struct cluster_run *run, const char *command) {
    char root[PATH_MAX];
    assert_non_null(getcwd(root, sizeof root));
    assert_int_equal(
        system(textf("cd '%s' && ROOT='%s' && %s", run->folder, root, command)),
        0);
}

/* A run whose folder has a copy of deploy/, as far as jobs go. */
static int setup_copy(void **state) {
    cluster_run_setup(state);
    shell(*state, "mkdir deploy && cp -r \"$ROOT/deploy/azureml\" "
                  "\"$ROOT/deploy/fashion-mnist.json\" deploy");
    return 0;
}

FIXTURE(setup_copy, cluster_run_teardown);

struct file {
    const char *name, *strategy;
    unsigned trainers;
};
static const struct file files[] = {
    {"tensorflow-8-0", "all-reduce: 8 trainers", 8},
    {"tensorflow-4-1", "parameter server: 4 trainers, 1 ps", 4},
    {"tensorflow-2-1", "parameter server: 2 trainers, 1 ps", 2},
    {"pytorch", "parameter server: 2 trainers, 2 ps", 2},
    {"mpi", "all-reduce: 4 trainers", 4},
};

TEST(every_job_trains_as_its_file_says) {
    if (access("/usr/share/datasets/fashion-mnist", R_OK))
        skip_test("no /usr/share/datasets/fashion-mnist "
                  "(dataset-fashion-mnist)");
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char list[128];
        struct cluster_process *process = cluster_run_start(
            run, files[i].name,
            WORDS("local", "--distribution",
                  textf("deploy/azureml/%s.yml", files[i].name),
                  "--train_steps", "5", "--json"),
            NULL);
        cluster_run_expect(process, 0, DEADLINE);
        cluster_fixture_expect_logged(process, files[i].strategy);
        cluster_fixture_expect_logged(
            process, "not used here: compute, environment, limits, "
                     "resources.shm_size");
        const json_t *summary = cluster_run_json(process);
        assert_int_equal(json_integer_value(json_object_get(summary, "steps")),
                         5);
        assert_int_equal(
            json_integer_value(json_object_get(summary, "replicas")),
            files[i].trainers);
        snprintf(list, sizeof list, "deploy/outputs/%s/run/checkpoint",
                 files[i].name);
        uint64_t step;
        assert_int_equal(cluster_fixture_checkpoints(run, list, &step, 1), 1);
        assert_int_equal(step, 5);
        snprintf(list, sizeof list,
                 "test -s deploy/outputs/%s/run/model.safetensors",
                 files[i].name);
        shell(run, list);
    }
}

/* Starts FOLDER/a.yml, a job of type tensorflow with TEXT. */
static struct cluster_process *start_job(struct cluster_run *run,
                                         const char *text) {
    FILE *file = cluster_run_create(run, "a.yml");
    fprintf(file,
            "%s\ndistribution: {type: tensorflow, worker_count: 2, "
            "parameter_server_count: 1}\n",
            text);
    fclose(file);
    return cluster_run_start(run, "a",
                             WORDS("local", "--distribution", "a.yml"), NULL);
}

TEST(a_command_has_its_folder_and_variables) {
    shell(run, "mkdir src");
    struct cluster_process *process =
        start_job(run, "command: >-\n  cd . && test -d ${{outputs.o}} &&\n"
                       "  echo \"$A ${PWD##*/} ${TF_CONFIG%%:*}\"\n"
                       "code: src\nenvironment_variables: {A: b c}\n"
                       "outputs: {o: null}");
    cluster_run_expect(process, 0, DEADLINE);
    const char *line = cluster_run_output(process);
    for (int i = 0; i < 3; i++, line += strcspn(line, "\n") + 1)
        assert_int_equal(strncmp(line, "b c src {\"cluster\"\n", 19), 0);
    assert_string_equal(line, "");
}

/* By a file that all may read, as Azure ML mounts it. */
TEST(every_process_has_the_secret_of_an_input) {
    cluster_run_job(run, NULL);
    cluster_fixture_tool(run, 0, WORDS("keygen", "job.secret"));
    assert_return_code(chmod(cluster_run_path(run, "job.secret"), 0644), 0);
    struct cluster_process *process =
        start_job(run, "command: >-\n  secret=$(mktemp) &&\n"
                       "  cat ${{inputs.secret}} > \"$secret\" &&\n"
                       "  exec capstan run job.json --secret-file \"$secret\"\n"
                       "inputs: {secret: {type: uri_file, path: job.secret}}");
    cluster_run_expect(process, 0, DEADLINE);
    cluster_fixture_expect_logged(process, "only processes with the run's "
                                           "secret take part");
    cluster_fixture_expect_logged(process, "chief: worker 1 joined");
    cluster_fixture_expect_logged(process, "chief: ps 0 joined");
}

TEST(the_exit_code_is_that_of_the_leading_command) {
    struct cluster_process *process = start_job(
        run, "command: >-\n  case $TF_CONFIG in\n"
             "  *'\"worker\",\"index\":0'*) exit 3;; *) sleep 60;; esac");
    cluster_run_expect(process, 3, DEADLINE);
}

TEST(a_signal_reaches_the_command_and_it_saves) {
    uint64_t step;
    cluster_run_job(run, "{\"epochs\": 100000}");
    struct cluster_process *process =
        start_job(run, "command: capstan run job.json");
    cluster_run_await(process, "chief: epoch 1/", DEADLINE);
    cluster_run_signal(process, SIGTERM);
    cluster_run_expect(process, TERMINATED, DEADLINE);
    assert_int_equal(cluster_fixture_checkpoints(run, "checkpoint", &step, 1),
                     1);
}

/* As by preemption: no process can save anything, and the same file is started
 * again, with the same output. */
TEST(a_killed_job_resumes_from_its_output) {
    static const char text[] =
        "command: capstan run job.json --model_dir ${{outputs.run}}\n"
        "outputs: {run: {path: kept}}";
    cluster_run_job(run, "{\"epochs\": 100000, \"checkpoint\": "
                         "{\"every_steps\": 20, \"keep\": 2}}");
    struct cluster_process *process = start_job(run, text);
    cluster_run_await(process, "/kept/step-000000020", DEADLINE);
    cluster_run_signal(process, SIGKILL);
    cluster_run_expect(process, 128 + SIGKILL, DEADLINE);
    process = start_job(run, text);
    cluster_run_await(process, "resuming from ", DEADLINE);
    cluster_run_signal(process, SIGTERM);
    cluster_run_expect(process, TERMINATED, DEADLINE);
}

/* Not a job's: the words are the command, here, without the file's folder. */
TEST(every_process_runs_a_command_of_the_command_line) {
    struct cluster_process *process = cluster_fixture_tool(
        run, 0,
        WORDS("local", "--distribution", "deploy/azureml/mpi.yml", "--num-ps",
              "1", "--", "capstan", "cluster"));
    static const char *const processes[] = {
        "\"role\":\"worker\",\"index\":0,\"num_ps\":1,\"num_workers\":3",
        "\"role\":\"worker\",\"index\":1,\"num_ps\":1,\"num_workers\":3",
        "\"role\":\"worker\",\"index\":2,\"num_ps\":1,\"num_workers\":3",
        "\"role\":\"ps\",\"index\":0,\"num_ps\":1,\"num_workers\":3"};
    for (size_t i = 0; i < sizeof processes / sizeof *processes; i++)
        assert_contains(cluster_run_output(process), processes[i]);
}

TEST(the_page_shows_what_the_program_prints) {
    char build[PATH_MAX];
    assert_true(build_folder_find(build));
    if (system("python3 -c '' 2>/dev/null"))
        skip_test("no python3");
    assert_int_equal(
        system(textf("python3 tests/cluster/cluster_azureml.py '%s' '%s' >&2",
                     build, run->folder)),
        0);
}
