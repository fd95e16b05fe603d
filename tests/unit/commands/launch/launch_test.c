/* SPDX-License-Identifier: Apache-2.0 */
/* What each process of a launch is given: its task and no other's, its words,
 * its streams. */
#define STATE struct launch_fixture *set

#include "commands/launch/launch.h"

#include "tests/lib/launch_fixture.h"
#include "tests/lib/test.h"

#include <fcntl.h>
#include <glob.h>
#include <jansson.h>
#include <unistd.h>

static const char *const clusters =
    "echo \"$TF_CONFIG\" > config-$$\n"
    "for a; do echo \"$a\" >> arguments-$me-$$; done\n"
    "env | grep -q 'CLUSTER_SPEC\\|LOCAL_RANK' && : > leak-$$\n"
    "exit 0";

FIXTURE(launch_fixture_setup, launch_fixture_teardown);

TEST(every_process_gets_its_own_task_of_one_cluster) {
    setenv("CLUSTER_SPEC", "{}", 1);
    setenv("LOCAL_RANK", "3", 1);
    setenv("TF_CONFIG", "{}", 1);
    launch_fixture_set_program(set, clusters);
    assert_int_equal(launch_fixture_run(set, 2, 3, 60), STATUS_OK);
    unsetenv("CLUSTER_SPEC");
    unsetenv("LOCAL_RANK");
    unsetenv("TF_CONFIG");
    assert_int_equal(set->exit_code, 0);
    assert_int_equal(launch_fixture_count(set, "leak-*"), 0);

    glob_t found = launch_fixture_files(set, "config-*");
    json_t *cluster = NULL;
    unsigned tasks[3] = {0};
    assert_int_equal(found.gl_pathc, 6);
    for (size_t i = 0; i < found.gl_pathc; i++) {
        json_t *config = json_load_file(found.gl_pathv[i], 0, NULL);
        json_t *described;
        const char *type;
        int index;
        assert_non_null(config);
        assert_int_equal(json_unpack(config, "{s:O, s:{s:s, s:i}}", "cluster",
                                     &described, "task", "type", &type, "index",
                                     &index),
                         0);
        assert_true(!cluster || json_equal(cluster, described));
        json_decref(cluster);
        cluster = described;
        tasks[strcmp(type, "chief") == 0 ? 0
              : strcmp(type, "ps")       ? 2
                                         : 1] |= 1u << index;
        json_decref(config);
    }
    globfree(&found);
    assert_int_equal(tasks[0], 1);
    assert_int_equal(tasks[1], 3);
    assert_int_equal(tasks[2], 7);
    assert_int_equal(json_array_size(json_object_get(cluster, "chief")), 1);
    assert_int_equal(json_array_size(json_object_get(cluster, "ps")), 2);
    assert_int_equal(json_array_size(json_object_get(cluster, "worker")), 3);
    json_decref(cluster);
}

/* All that a process is told, in the order of the names. */
static const char *const exit_text =
    "env | LC_ALL=C grep -E '_RANK=|^RANK=|^MASTER_|WORLD_.*SIZE=|HOROVOD_|AZ_|TF_CONFIG|SLURM|OMPI|PET_' "
    "| LC_ALL=C sort > env-$$\n"
    "echo \"$@\" >> env-$$\n"
    "exit 0";

static enum status launch_distribution(struct launch_fixture *set,
                                       const char *text) {
    struct azureml_distribution distribution;
    struct launch_settings options = {
        .grace = 60, .stop = 60, .azureml_distribution = &distribution};
    const char *num_ps = strstr(text, "tensorflow") ? NULL : "1";
    assert_int_equal(azureml_read(&distribution, text, "2", num_ps, NULL),
                     STATUS_OK);
    static const char *const others[] = {"SLURM_PROCID", "PET_NNODES",
                                         "GROUP_WORLD_SIZE", "HOROVOD_RANK"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        setenv(others[i], "0", 1);
    launch_fixture_set_program(set, exit_text);
    enum status status = launch_fixture_run_with(set, &options);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        unsetenv(others[i]);
    return status;
}

/* How many of the COUNT processes were told exactly TEXT. */
static unsigned count_exits(const struct launch_fixture *set, unsigned count,
                            const char *text) {
    glob_t found = launch_fixture_files(set, "env-*");
    unsigned same = 0;
    assert_int_equal(found.gl_pathc, count);
    for (size_t i = 0; i < found.gl_pathc; i++) {
        char read[2048] = "";
        FILE *file = fopen(found.gl_pathv[i], "r");
        assert_non_null(file);
        read[fread(read, 1, sizeof read - 1, file)] = 0;
        fclose(file);
        same += strcmp(read, text) == 0;
    }
    globfree(&found);
    return same;
}

TEST(ranks_of_a_distribution_have_its_variables) {
    const char *torch =
        "{\"type\": \"pytorch\", \"process_count_per_instance\": 2}";
    assert_int_equal(launch_distribution(set, torch), STATUS_OK);
    assert_int_equal(count_exits(set, 4,
                                 "LOCAL_RANK=1\nMASTER_ADDR=127.0.0.1\n"
                                 "MASTER_PORT=6105\nNODE_RANK=1\nRANK=3\n"
                                 "WORLD_SIZE=4\nrun --num-ps=1\n"),
                     1);
    assert_int_equal(count_exits(set, 4,
                                 "LOCAL_RANK=0\nMASTER_ADDR=127.0.0.1\n"
                                 "MASTER_PORT=6105\nNODE_RANK=0\nRANK=0\n"
                                 "WORLD_SIZE=4\nrun job.json --set seed=2 3 "
                                 "--num-ps=1\n"),
                     1);
}

TEST(mpi_processes_have_mpi_variables) {
    assert_int_equal(launch_distribution(set, "{\"type\": \"mpi\"}"),
                     STATUS_OK);
    assert_int_equal(count_exits(set, 2,
                                 "AZ_BATCH_MASTER_NODE=127.0.0.1:6000\n"
                                 "OMPI_COMM_WORLD_LOCAL_RANK=0\n"
                                 "OMPI_COMM_WORLD_LOCAL_SIZE=1\n"
                                 "OMPI_COMM_WORLD_RANK=1\n"
                                 "OMPI_COMM_WORLD_SIZE=2\nrun --num-ps=1\n"),
                     1);
}

/* The leader prints it: worker 0, and no chief. */
TEST(tensorflow_processes_have_a_cluster_without_a_chief) {
    struct azureml_distribution distribution;
    struct launch_settings options = {
        .grace = 60, .stop = 60, .azureml_distribution = &distribution};
    const char *text = "{\"type\": \"tensorflow\", \"worker_count\": 2, "
                       "\"parameter_server_count\": 1}";
    assert_int_equal(azureml_read(&distribution, text, "2", NULL, NULL),
                     STATUS_OK);
    launch_fixture_set_program(set,
                               "echo \"$TF_CONFIG\" | tee config-$$\nexit 0");
    assert_int_equal(launch_fixture_run_with(set, &options), STATUS_OK);
    assert_int_equal(launch_fixture_count(set, "config-*"), 3);
    json_t *config = json_loads(set->out, 0, NULL);
    json_t *workers, *ps, *cluster;
    const char *type, *environment;
    int index;
    assert_non_null(config);
    assert_int_equal(json_unpack(config, "{s:o, s:s, s:{s:s, s:i}}", "cluster",
                                 &cluster, "environment", &environment, "task",
                                 "type", &type, "index", &index),
                     0);
    assert_int_equal(
        json_unpack(cluster, "{s:o, s:o!}", "worker", &workers, "ps", &ps), 0);
    assert_int_equal(json_array_size(workers), 2);
    assert_int_equal(json_array_size(ps), 1);
    assert_string_equal(environment, "cloud");
    assert_string_equal(type, "worker");
    assert_int_equal(index, 0);
    json_decref(config);
}

TEST(only_the_chief_gets_the_job) {
    char text[256] = "";
    launch_fixture_set_program(set, clusters);
    assert_int_equal(launch_fixture_run(set, 1, 1, 60), STATUS_OK);
    glob_t found = launch_fixture_files(set, "arguments-chief-*");
    assert_int_equal(found.gl_pathc, 1);
    FILE *file = fopen(found.gl_pathv[0], "r");
    assert_true(fread(text, 1, sizeof text - 1, file) > 0);
    fclose(file);
    globfree(&found);
    assert_string_equal(text, "run\njob.json\n--set\nseed=2 3\n");

    found = launch_fixture_files(set, "arguments-worker-*");
    assert_int_equal(found.gl_pathc, 1);
    file = fopen(found.gl_pathv[0], "r");
    memset(text, 0, sizeof text);
    assert_true(fread(text, 1, sizeof text - 1, file) > 0);
    fclose(file);
    globfree(&found);
    assert_string_equal(text, "run\n");
}

TEST(only_the_chief_has_stdout_and_no_process_has_stdin) {
    int ends[2], saved = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3);
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(write(ends[1], "input\n", 6), 6);
    dup2(ends[0], STDIN_FILENO);
    launch_fixture_set_program(set, "cat; echo from $me");
    assert_int_equal(launch_fixture_run(set, 1, 1, 60), STATUS_OK);
    dup2(saved, STDIN_FILENO);
    close(saved);
    close(ends[0]);
    close(ends[1]);
    assert_string_equal(set->out, "from chief\n");
    launch_fixture_expect_log(set, "from ps\n");
    launch_fixture_expect_log(set, "from worker\n");
}

TEST(nobody_has_stdout_if_that_is_asked_for) {
    struct launch_settings options = {.writers = LAUNCH_STDOUT_NOBODY,
                                      .num_ps = 1,
                                      .num_workers = 1,
                                      .grace = 60,
                                      .stop = 60};
    launch_fixture_set_program(set, "echo from $me");
    assert_int_equal(launch_fixture_run_with(set, &options), STATUS_OK);
    assert_string_equal(set->out, "");
    launch_fixture_expect_log(set, "from chief\n");
    launch_fixture_expect_log(set, "from worker\n");
}

TEST(another_verb_forwards_its_arguments_and_workers_have_stdout) {
    struct launch_settings options = {.verb = "bench",
                                      .writers = LAUNCH_STDOUT_WORKERS,
                                      .arguments_for_all = true,
                                      .num_ps = 2,
                                      .num_workers = 1,
                                      .grace = 60,
                                      .stop = 60};
    launch_fixture_set_program(
        set, "echo \"$me $1 $2\"\n"
             "case $me in worker)\n"
             "for pid in $(echo $CAPSTAN_PS_PIDS | tr , ' '); do\n"
             "echo $pid > pid-$pid; done ;; esac");
    assert_int_equal(launch_fixture_run_with(set, &options), STATUS_OK);
    assert_string_equal(set->out, "worker bench job.json\n");
    launch_fixture_expect_log(set, "chief bench job.json");
    launch_fixture_expect_log(set, "ps bench job.json");
    assert_int_equal(launch_fixture_count(set, "pid-*"), 2);
}

/* In the order chief, ps, workers. */
TEST(processes_serve_their_status_on_ports_of_their_own) {
    struct launch_settings options = {.num_ps = 1,
                                      .num_workers = 1,
                                      .grace = 60,
                                      .stop = 60,
                                      .metrics = {.port = 9100, .host = "::1"}};
    launch_fixture_set_program(set, "echo \"$me $CAPSTAN_METRICS_PORT\"");
    assert_int_equal(launch_fixture_run_with(set, &options), STATUS_OK);
    assert_string_equal(set->out, "chief [::1]:9100\n");
    launch_fixture_expect_log(set, "ps [::1]:9101\n");
    launch_fixture_expect_log(set, "worker [::1]:9102\n");
    options.metrics.port = 65534;
    assert_fails(launch_fixture_run_with(set, &options), &set->why,
                 FAILURE_BAD_FLAG_VALUE);
    options.metrics.port = 0;
    setenv("CAPSTAN_METRICS_PORT", "9100", 1);
    assert_int_equal(launch_fixture_run_with(set, &options), STATUS_OK);
    unsetenv("CAPSTAN_METRICS_PORT");
    assert_string_equal(set->out, "chief 0\n");
    launch_fixture_expect_log(set, "ps 0\n");
}

/* A terminal's Ctrl-C goes to the launcher's process group. */
TEST(every_process_leads_a_process_group) {
    launch_fixture_set_program(
        set, "[ $(cut -d ' ' -f 5 /proc/$$/stat) = $$ ] && : > head-$$\n"
             "exit 0");
    assert_int_equal(launch_fixture_run(set, 1, 1, 60), STATUS_OK);
    assert_int_equal(launch_fixture_count(set, "head-*"), 3);
}
