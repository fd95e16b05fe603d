#include "chief/launch/launch.h"

#include "proto/base/time.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>
#include <glob.h>
#include <jansson.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* A folder with a script in the place of capstan, two named pipes for its
 * processes to wait on each other, and what they write. */
struct stage_set {
    char dir[64], program[128];
    char log[4096]; /* standard error of the last launch */
    char out[256];  /* and standard output */
    int exit_code;
    struct failure why;
};

static int set_up(void **state) {
    struct stage_set *set = calloc(1, sizeof *set);
    char path[128];
    if (!set)
        return -1;
    strcpy(set->dir, "/tmp/launch-test-XXXXXX");
    if (!mkdtemp(set->dir))
        return -1;
    snprintf(set->program, sizeof set->program, "%s/capstan", set->dir);
    snprintf(path, sizeof path, "%s/first", set->dir);
    mkfifo(path, 0600);
    snprintf(path, sizeof path, "%s/second", set->dir);
    mkfifo(path, 0600);
    *state = set;
    return 0;
}

static int tear_down(void **state) {
    struct stage_set *set = *state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", set->dir);
    int status = system(command);
    free(set);
    return status;
}

/* The script runs in the folder, with $me the type of its task. */
static void play(struct stage_set *set, const char *script) {
    FILE *file = fopen(set->program, "w");
    assert_non_null(file);
    fprintf(file,
            "#!/bin/sh\n"
            "cd %s\n"
            "case $TF_CONFIG in\n"
            "*'\"type\":\"chief\"'*) me=chief ;;\n"
            "*'\"type\":\"ps\"'*) me=ps ;;\n"
            "*) me=worker ;;\n"
            "esac\n"
            "%s\n",
            set->dir, script);
    fclose(file);
    chmod(set->program, 0700);
}

/* Opens NAME in the folder in the place of descriptor FD; the saved one. */
static int divert(struct stage_set *set, int fd, const char *name) {
    char path[128];
    snprintf(path, sizeof path, "%s/%s", set->dir, name);
    int saved = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    int file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    assert_true(saved >= 0 && file >= 0);
    dup2(file, fd);
    close(file);
    return saved;
}

/* Puts the saved descriptor back and reads what was written. */
static void undo(int fd, int saved, char *text, size_t size) {
    ssize_t length = pread(fd, text, size - 1, 0);
    text[length < 0 ? 0 : length] = '\0';
    dup2(saved, fd);
    close(saved);
}

static enum status launch_with(struct stage_set *set,
                               struct launch_options *options) {
    const struct log log = {.who = "local"};
    char job[] = "job.json", flag[] = "--set", value[] = "seed=2 3";
    char *const arguments[] = {job, flag, value, NULL};
    options->program = set->program;
    options->run_arguments = arguments;
    options->log = &log;
    fflush(stdout);
    int error = divert(set, STDERR_FILENO, "stderr");
    int output = divert(set, STDOUT_FILENO, "stdout");
    enum status status = launch_run(options, &set->exit_code, &set->why);
    undo(STDOUT_FILENO, output, set->out, sizeof set->out);
    undo(STDERR_FILENO, error, set->log, sizeof set->log);
    return status;
}

static enum status launch(struct stage_set *set, unsigned num_ps,
                          unsigned num_workers, double seconds) {
    struct launch_options options = {.num_ps = num_ps,
                                     .num_workers = num_workers,
                                     .grace = seconds,
                                     .stop = seconds};
    return launch_with(set, &options);
}

static void expect_logged(const struct stage_set *set, const char *text) {
    if (!strstr(set->log, text))
        fail_msg("no \"%s\" in: %s", text, set->log);
}

/* The files of the folder whose names match PATTERN. */
static glob_t files(const struct stage_set *set, const char *pattern) {
    char path[128];
    glob_t found;
    snprintf(path, sizeof path, "%s/%s", set->dir, pattern);
    glob(path, 0, NULL, &found);
    return found;
}

static size_t count_files(const struct stage_set *set, const char *pattern) {
    glob_t found = files(set, pattern);
    size_t count = found.gl_pathc;
    globfree(&found);
    return count;
}

static const char *const clusters =
    "echo \"$TF_CONFIG\" > config-$$\n"
    "for a; do echo \"$a\" >> arguments-$me-$$; done\n"
    "env | grep -q 'CLUSTER_SPEC\\|LOCAL_RANK' && : > leak-$$\n"
    "exit 0";

static void every_process_gets_its_own_task_of_one_cluster(void **state) {
    struct stage_set *set = *state;
    setenv("CLUSTER_SPEC", "{}", 1);
    setenv("LOCAL_RANK", "3", 1);
    setenv("TF_CONFIG", "{}", 1);
    play(set, clusters);
    assert_int_equal(launch(set, 2, 3, 60), STATUS_OK);
    unsetenv("CLUSTER_SPEC");
    unsetenv("LOCAL_RANK");
    unsetenv("TF_CONFIG");
    assert_int_equal(set->exit_code, 0);
    assert_int_equal(count_files(set, "leak-*"), 0);

    glob_t found = files(set, "config-*");
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
static const char *const told =
    "env | LC_ALL=C grep -E '_RANK=|^RANK=|^MASTER_|_SIZE=|AZ_|TF_CONFIG|SLURM|OMPI' "
    "| LC_ALL=C sort > env-$$\n"
    "echo \"$@\" >> env-$$\n"
    "exit 0";

static enum status launch_distribution(struct stage_set *set,
                                       const char *text) {
    struct distribution distribution;
    struct launch_options options = {
        .grace = 60, .stop = 60, .distribution = &distribution};
    const char *num_ps = strstr(text, "tensorflow") ? NULL : "1";
    assert_int_equal(distribution_read(&distribution, text, "2", num_ps, NULL),
                     STATUS_OK);
    setenv("SLURM_PROCID", "0", 1);
    play(set, told);
    enum status status = launch_with(set, &options);
    unsetenv("SLURM_PROCID");
    return status;
}

/* How many of the COUNT processes were told exactly TEXT. */
static unsigned told_so(const struct stage_set *set, unsigned count,
                        const char *text) {
    glob_t found = files(set, "env-*");
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

static void ranks_of_a_distribution_have_its_variables(void **state) {
    struct stage_set *set = *state;
    const char *torch =
        "{\"type\": \"pytorch\", \"process_count_per_instance\": 2}";
    assert_int_equal(launch_distribution(set, torch), STATUS_OK);
    assert_int_equal(told_so(set, 4,
                             "LOCAL_RANK=1\nMASTER_ADDR=127.0.0.1\n"
                             "MASTER_PORT=6105\nNODE_RANK=1\nRANK=3\n"
                             "WORLD_SIZE=4\nrun --num-ps=1\n"),
                     1);
    assert_int_equal(told_so(set, 4,
                             "LOCAL_RANK=0\nMASTER_ADDR=127.0.0.1\n"
                             "MASTER_PORT=6105\nNODE_RANK=0\nRANK=0\n"
                             "WORLD_SIZE=4\nrun job.json --set seed=2 3 "
                             "--num-ps=1\n"),
                     1);
}

static void mpis_processes_have_theirs(void **state) {
    struct stage_set *set = *state;
    assert_int_equal(launch_distribution(set, "{\"type\": \"mpi\"}"),
                     STATUS_OK);
    assert_int_equal(told_so(set, 2,
                             "AZ_BATCH_MASTER_NODE=127.0.0.1:6000\n"
                             "OMPI_COMM_WORLD_LOCAL_RANK=0\n"
                             "OMPI_COMM_WORLD_LOCAL_SIZE=1\n"
                             "OMPI_COMM_WORLD_RANK=1\n"
                             "OMPI_COMM_WORLD_SIZE=2\nrun --num-ps=1\n"),
                     1);
}

/* The leader prints it: worker 0, and no chief. */
static void tensorflows_have_a_cluster_without_a_chief(void **state) {
    struct stage_set *set = *state;
    struct distribution distribution;
    struct launch_options options = {
        .grace = 60, .stop = 60, .distribution = &distribution};
    const char *text = "{\"type\": \"tensorflow\", \"worker_count\": 2, "
                       "\"parameter_server_count\": 1}";
    assert_int_equal(distribution_read(&distribution, text, "2", NULL, NULL),
                     STATUS_OK);
    play(set, "echo \"$TF_CONFIG\" | tee config-$$\nexit 0");
    assert_int_equal(launch_with(set, &options), STATUS_OK);
    assert_int_equal(count_files(set, "config-*"), 3);
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

static void the_chief_alone_gets_the_job(void **state) {
    struct stage_set *set = *state;
    char text[256] = "";
    play(set, clusters);
    assert_int_equal(launch(set, 1, 1, 60), STATUS_OK);
    glob_t found = files(set, "arguments-chief-*");
    assert_int_equal(found.gl_pathc, 1);
    FILE *file = fopen(found.gl_pathv[0], "r");
    assert_true(fread(text, 1, sizeof text - 1, file) > 0);
    fclose(file);
    globfree(&found);
    assert_string_equal(text, "run\njob.json\n--set\nseed=2 3\n");

    found = files(set, "arguments-worker-*");
    assert_int_equal(found.gl_pathc, 1);
    file = fopen(found.gl_pathv[0], "r");
    memset(text, 0, sizeof text);
    assert_true(fread(text, 1, sizeof text - 1, file) > 0);
    fclose(file);
    globfree(&found);
    assert_string_equal(text, "run\n");
}

static void standard_output_is_the_chiefs_and_input_nobodys(void **state) {
    struct stage_set *set = *state;
    int ends[2], saved = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3);
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(write(ends[1], "input\n", 6), 6);
    dup2(ends[0], STDIN_FILENO);
    play(set, "cat; echo from $me");
    assert_int_equal(launch(set, 1, 1, 60), STATUS_OK);
    dup2(saved, STDIN_FILENO);
    close(saved);
    close(ends[0]);
    close(ends[1]);
    assert_string_equal(set->out, "from chief\n");
    expect_logged(set, "from ps\n");
    expect_logged(set, "from worker\n");
}

/* A terminal's Ctrl-C goes to the launcher's process group. */
static void another_verb_gives_its_words_to_all_and_workers_speak(
    void **state) {
    struct stage_set *set = *state;
    struct launch_options options = {.verb = "bench",
                                     .workers_speak = true,
                                     .arguments_for_all = true,
                                     .num_ps = 2,
                                     .num_workers = 1,
                                     .grace = 60,
                                     .stop = 60};
    play(set, "echo \"$me $1 $2\"\n"
              "case $me in worker)\n"
              "for pid in $(echo $CAPSTAN_PS_PIDS | tr , ' '); do\n"
              "echo $pid > pid-$pid; done ;; esac");
    assert_int_equal(launch_with(set, &options), STATUS_OK);
    assert_string_equal(set->out, "worker bench job.json\n");
    expect_logged(set, "chief bench job.json");
    expect_logged(set, "ps bench job.json");
    assert_int_equal(count_files(set, "pid-*"), 2);
}

static void every_process_heads_a_group_of_its_own(void **state) {
    struct stage_set *set = *state;
    play(set, "[ $(cut -d ' ' -f 5 /proc/$$/stat) = $$ ] && : > head-$$\n"
              "exit 0");
    assert_int_equal(launch(set, 1, 1, 60), STATUS_OK);
    assert_int_equal(count_files(set, "head-*"), 3);
}

static void the_exit_code_is_the_chiefs(void **state) {
    struct stage_set *set = *state;
    play(set, "[ $me = chief ] && exit 7; exit 0");
    assert_int_equal(launch(set, 1, 1, 60), STATUS_OK);
    assert_int_equal(set->exit_code, 7);
    assert_string_equal(set->log, "");
}

static void a_killed_chief_is_named_with_its_signal(void **state) {
    struct stage_set *set = *state;
    play(set, "[ $me = chief ] && kill -9 $$; exit 0");
    assert_int_equal(launch(set, 1, 1, 60), STATUS_OK);
    assert_int_equal(set->exit_code, 128 + SIGKILL);
    expect_logged(set, "the chief was killed by signal 9 (Killed)");
}

/* The server ends on SIGTERM, the worker does not. */
static void who_stays_after_the_chief_is_told_then_killed(void **state) {
    struct stage_set *set = *state;
    play(set, "case $me in\n"
              "chief) read x < first; exit 0 ;;\n"
              "ps) exec sleep 60 ;;\n"
              "worker) trap '' TERM; echo > first; exec sleep 60 ;;\n"
              "esac");
    assert_int_equal(launch(set, 1, 1, 0.2), STATUS_OK);
    assert_int_equal(set->exit_code, 0);
    expect_logged(set, "warning: ps 0 (pid ");
    expect_logged(set, ") still runs 0.2 s (timeouts.stop) after the chief");
    char *killed = strstr(set->log, "does not end on SIGTERM: killed");
    assert_non_null(killed);
    assert_null(strstr(killed + 1, "does not end"));
    while (killed > set->log && killed[-1] != '\n')
        killed--;
    assert_memory_equal(strstr(killed, "worker 0"), "worker 0", 8);
}

static void nobody_waits_long_for_a_chief_that_failed(void **state) {
    struct stage_set *set = *state;
    int64_t began = time_now();
    play(set, "[ $me = chief ] && exit 138\nexec sleep 60");
    assert_int_equal(launch(set, 1, 1, 60), STATUS_OK);
    assert_int_equal(set->exit_code, 138);
    assert_true(time_now() - began < 20 * TIME_S);
    expect_logged(set, "chief ended the run: its own lines say why\n");
    assert_null(strstr(set->log, "still runs"));
}

/* The chief signals its launcher once the worker waits for the chief's end. */
static void forward(struct stage_set *set, const char *name, int code) {
    char script[512];
    snprintf(script, sizeof script,
             "case $me in\n"
             "chief) trap 'exit %d' %s; exec 3> first 4<> second\n"
             "    kill -%s $PPID; read x <&4 ;;\n"
             "worker) trap ': > told; exit 0' TERM INT; read x < first ;;\n"
             "esac\n"
             "exit 0",
             code, name, name);
    play(set, script);
    assert_int_equal(launch(set, 0, 1, 60), STATUS_OK);
    assert_int_equal(set->exit_code, code);
    assert_int_equal(count_files(set, "told"), 0);
}

static void sigterm_goes_to_the_chief_alone(void **state) {
    forward(*state, "TERM", 143);
}

static void sigint_goes_to_the_chief_alone(void **state) {
    forward(*state, "INT", 130);
}

static void a_chief_that_ignores_the_signal_is_killed(void **state) {
    struct stage_set *set = *state;
    play(set, "[ $me = chief ] || exit 0\n"
              "trap '' TERM; kill -TERM $PPID; exec sleep 60");
    assert_int_equal(launch(set, 0, 1, 0.1), STATUS_OK);
    assert_int_equal(set->exit_code, 128 + SIGKILL);
    expect_logged(set, "timeouts.grace + timeouts.stop (0.2 s): killed");
}

static void an_early_death_is_named_and_the_run_goes_on(void **state) {
    struct stage_set *set = *state;
    play(set, "case $me in\n"
              "chief) read pid < first\n"
              "    while kill -0 $pid 2> /dev/null; do :; done; exit 5 ;;\n"
              "worker) echo $$ > first; kill -9 $$ ;;\n"
              "esac");
    assert_int_equal(launch(set, 0, 1, 60), STATUS_OK);
    assert_int_equal(set->exit_code, 5);
    expect_logged(set, "worker 0 was killed by signal 9 (Killed) while the "
                       "chief still runs");
}

static void a_bad_configuration_of_one_ends_the_run(void **state) {
    struct stage_set *set = *state;
    play(set, "[ $me = chief ] || exit 2\n"
              "trap 'exit 143' TERM; exec 3<> second; read x <&3");
    assert_int_equal(launch(set, 1, 0, 60), STATUS_OK);
    assert_int_equal(set->exit_code, STATUS_CONFIG);
    assert_non_null(strstr(set->log, "ps 0 ended the run: its own lines"));
}

/* Each process holds the pipe open: its end is theirs. */
static void nobody_outlives_a_killed_launcher(void **state) {
    struct stage_set *set = *state;
    char path[128], byte;
    snprintf(path, sizeof path, "%s/first", set->dir);
    play(set, "exec 3> first; echo >&3; exec sleep 60");
    int first = open(path, O_RDONLY | O_NONBLOCK);
    pid_t launcher = fork();
    if (launcher == 0)
        _exit(launch(set, 1, 1, 60));
    struct pollfd waited = {.fd = first, .events = POLLIN};
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(poll(&waited, 1, 20000), 1);
        if (read(first, &byte, 1) != 1)
            i--; /* a hang-up between two of them */
    }
    kill(launcher, SIGKILL);
    waitpid(launcher, NULL, 0);
    assert_int_equal(poll(&waited, 1, 20000), 1);
    assert_int_equal(read(first, &byte, 1), 0);
    close(first);
}

static void a_program_that_is_not_there_is_named(void **state) {
    struct stage_set *set = *state;
    assert_int_equal(launch(set, 1, 1, 1), STATUS_CONFIG);
    assert_non_null(strstr(set->why.text, set->program));
}

static void signals_are_as_before_afterwards(void **state) {
    struct stage_set *set = *state;
    sigset_t before, after;
    struct sigaction ignored = {.sa_handler = SIG_IGN}, child;
    sigaction(SIGCHLD, &ignored, NULL);
    sigprocmask(SIG_SETMASK, NULL, &before);
    play(set, "[ $me = chief ] || exit 0\n"
              "trap '' TERM; kill -TERM $PPID; kill -TERM $PPID; exit 3");
    assert_int_equal(launch(set, 1, 1, 60), STATUS_OK);
    assert_int_equal(set->exit_code, 3);
    sigprocmask(SIG_SETMASK, NULL, &after);
    for (int number = 1; number < SIGRTMIN; number++)
        assert_int_equal(sigismember(&before, number),
                         sigismember(&after, number));
    sigaction(SIGCHLD, NULL, &child);
    assert_ptr_equal(child.sa_handler, SIG_IGN);
    signal(SIGCHLD, SIG_DFL);
}

#define WITH_SET(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        WITH_SET(every_process_gets_its_own_task_of_one_cluster),
        WITH_SET(ranks_of_a_distribution_have_its_variables),
        WITH_SET(mpis_processes_have_theirs),
        WITH_SET(tensorflows_have_a_cluster_without_a_chief),
        WITH_SET(the_chief_alone_gets_the_job),
        WITH_SET(standard_output_is_the_chiefs_and_input_nobodys),
        WITH_SET(another_verb_gives_its_words_to_all_and_workers_speak),
        WITH_SET(every_process_heads_a_group_of_its_own),
        WITH_SET(the_exit_code_is_the_chiefs),
        WITH_SET(a_killed_chief_is_named_with_its_signal),
        WITH_SET(who_stays_after_the_chief_is_told_then_killed),
        WITH_SET(nobody_waits_long_for_a_chief_that_failed),
        WITH_SET(sigterm_goes_to_the_chief_alone),
        WITH_SET(sigint_goes_to_the_chief_alone),
        WITH_SET(a_chief_that_ignores_the_signal_is_killed),
        WITH_SET(an_early_death_is_named_and_the_run_goes_on),
        WITH_SET(a_bad_configuration_of_one_ends_the_run),
        WITH_SET(nobody_outlives_a_killed_launcher),
        WITH_SET(a_program_that_is_not_there_is_named),
        WITH_SET(signals_are_as_before_afterwards),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
