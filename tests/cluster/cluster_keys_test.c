/* SPDX-License-Identifier: Apache-2.0 */
/* Runs with a secret: they train as without one, and who has another secret, or
 * none, takes no part and is told so on both sides. */
#define STATE struct cluster_run *run

#include "commands/launch/port.h"
#include "core/base/secret_file.h"
#include "core/base/time.h"
#include "tests/cluster/bad_peers.h"
#include "tests/cluster/cluster_fixture.h"
#include "tests/lib/build_folder.h"
#include "tests/lib/skip.h"
#include "tests/lib/test.h"

#include <fcntl.h>
#include <signal.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CONFIG = 2, NAMED_WITHIN = 2, START = 2 /* seconds */ };

FIXTURE(cluster_run_setup, cluster_run_teardown);

static void make_secret(struct cluster_run *run, const char *name) {
    cluster_fixture_tool(run, 0, WORDS("keygen", name));
}

TEST(keygen_makes_a_secret_and_replaces_none) {
    struct stat about;
    make_secret(run, "secret");
    assert_return_code(stat(cluster_run_path(run, "secret"), &about), 0);
    assert_int_equal(about.st_mode & 07777, 0600);
    struct cluster_process *again =
        cluster_fixture_tool(run, CONFIG, WORDS("keygen", "secret"));
    cluster_fixture_expect_logged(again, "secret is there already");
    cluster_fixture_tool(run, CONFIG, WORDS("keygen"));
}

/* Starts the tasks of a described cluster, SECRETS by task (NULL: none). */
static struct cluster_process *start_task(struct cluster_run *run,
                                          const char *type, unsigned index,
                                          const char *secret) {
    bool leads = !strcmp(type, "chief");
    if (!secret)
        return cluster_run_task(run, type, index,
                                leads ? WORDS("job.json") : NULL);
    return cluster_run_task(
        run, type, index,
        WORDS("--secret-file", secret, leads ? "job.json" : NULL));
}

static void run_to_end(struct cluster_run *run, const char *secret) {
    struct cluster_process *all[] = {
        start_task(run, "chief", 0, secret), start_task(run, "ps", 0, secret),
        start_task(run, "ps", 1, secret), start_task(run, "worker", 0, secret),
        start_task(run, "worker", 1, secret)};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        cluster_run_expect_soon(all[i], 0);
}

TEST(a_run_with_a_secret_trains_to_the_same_bits) {
    make_secret(run, "secret");
    cluster_run_describe(run, 1, 2, 2);
    cluster_run_job(run, NULL);
    run_to_end(run, "secret");
    cluster_run_job(run, "{\"checkpoint\": {\"dir\": \"other\"}}");
    run_to_end(run, NULL);
    cluster_fixture_expect_same_checkpoints(run, "checkpoint", "other");
}

TEST(a_worker_that_others_do_not_list_takes_part_by_its_key) {
    make_secret(run, "secret");
    cluster_run_job(run, "{\"workers\": 2}");
    cluster_run_describe(run, 1, 1, 2);
    json_t *workers = json_object_get(run->cluster, "worker"),
           *last = json_incref(json_array_get(workers, 1));
    json_array_remove(workers, 1);
    struct cluster_process *all[] = {start_task(run, "chief", 0, "secret"),
                                     start_task(run, "ps", 0, "secret"),
                                     start_task(run, "worker", 0, "secret"),
                                     NULL};
    json_array_append_new(workers, last);
    all[3] = start_task(run, "worker", 1, "secret");
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        cluster_run_expect_soon(all[i], 0);
}

TEST(all_reduce_with_a_secret_trains_to_the_same_bits) {
    make_secret(run, "secret");
    cluster_run_job(run, NULL);
    CLUSTER_FIXTURE_RUN(run, 0, 3, 0, "strategy.type=allreduce");
    struct cluster_process *kept = CLUSTER_FIXTURE_RUN(
        run, 0, 3, 0, "strategy.type=allreduce", "checkpoint.dir=other",
        "security.secret_file=secret");
    cluster_fixture_expect_logged(kept, "in the clear");
    cluster_fixture_expect_logged(kept, "all-reduce: over shared memory");
    cluster_fixture_expect_same_checkpoints(run, "checkpoint", "other");
}

TEST(local_gives_the_secret_of_the_job_to_all_its_processes) {
    make_secret(run, "secret");
    cluster_run_job(run, "{\"security\": {\"secret_file\": \"secret\"}}");
    CLUSTER_FIXTURE_RUN(run, 2, 2, 0, "checkpoint.every_steps=30");
}

/* Only worker 0, which leads, reads the job: the others could not know. */
TEST(a_job_of_a_command_of_local_names_no_secret_that_local_does_not_know) {
    char built[PATH_MAX];
    assert_true(build_folder_find(built));
    const char *program = textf("%s/capstan", built);
    make_secret(run, "secret");
    cluster_run_job(run, "{\"security\": {\"secret_file\": \"secret\"}}");
    struct cluster_process *local =
        cluster_fixture_tool(run, CONFIG,
                             WORDS("local", "--ps", "1", "--workers", "2", "--",
                                   program, "run", "job.json"));
    cluster_fixture_expect_logged(local, "security.secret_file of the job");
    cluster_fixture_tool(run, 0,
                         WORDS("local", "--ps", "1", "--workers", "2",
                               "--secret-file", "secret", "--", program, "run",
                               "job.json"));
}

/* The chief's port is all that the bad peer knows. */
TEST(who_finds_a_port_of_local_takes_no_part_in_its_run) {
    cluster_run_job(run, "{\"steps\": 1000000, \"steps_per_epoch\": 1000000}");
    struct cluster_process *local = cluster_fixture_local(run, 1, 1, NULL);
    const char *line =
        cluster_run_await_soon(local, "chief: listening on port");
    const char *cluster =
        textf("TF_CONFIG={\"cluster\": {\"chief\": [\"127.0.0.1:%ld\"], \"ps\":"
              " [\"127.0.0.1:1\"], \"worker\": [\"127.0.0.1:2\"]}, \"task\":"
              " {\"type\": \"worker\", \"index\": 0}}",
              strtol(strstr(line, "on port ") + strlen("on port "), NULL, 10));
    struct cluster_process *bad_peer =
        cluster_run_start(run, "bad-peer", WORDS("run"), WORDS(cluster));
    cluster_run_await_soon(bad_peer, "has a secret, and this process has none");
    cluster_run_signal(bad_peer, 15);
    cluster_run_signal(local, 15);
    cluster_run_expect_soon(bad_peer, 128 + 15);
    cluster_run_expect_soon(local, 128 + 15);
}

/* By the JSON log, which has the lines of level detail. */
TEST(processes_of_one_host_share_memory_with_a_secret_too) {
    make_secret(run, "secret");
    cluster_run_job(run, NULL);
    struct cluster_process *local = cluster_fixture_tool(
        run, 0,
        WORDS("local", "--ps", "1", "--workers", "2", "--secret-file", "secret",
              "--json-log", "job.json"));
    cluster_fixture_expect_logged(local, "ps 0: over shared memory");
    assert_false(cluster_fixture_has_logged(local, "ps 0: over TCP"));
}

TEST(a_run_is_resumed_with_another_secret) {
    make_secret(run, "secret");
    make_secret(run, "other");
    cluster_run_job(run, NULL);
    CLUSTER_FIXTURE_RUN(run, 1, 2, 0, "security.secret_file=secret");
    cluster_fixture_expect_logged(
        CLUSTER_FIXTURE_RUN(run, 1, 2, 0, "security.secret_file=other",
                            "epochs=4"),
        "resuming from");
}

/* The launcher's word of the death reaches the chief: else it would be noticed
 * only after timeouts.peer. */
TEST(the_death_of_a_process_of_a_run_with_a_secret_is_reported_at_once) {
    make_secret(run, "secret");
    cluster_run_job(run, "{\"steps\": 1000000, \"steps_per_epoch\": 1000000,"
                         " \"security\": {\"secret_file\": \"secret\"},"
                         " \"timeouts\": {\"peer\": 600}}");
    struct cluster_process *local = cluster_fixture_local(run, 1, 2, NULL);
    const char *pid =
        strstr(cluster_run_await_soon(local, "chief: worker 1 joined"), "pid ");
    assert_non_null(pid);
    pid_t worker = (pid_t)strtol(pid + strlen("pid "), NULL, 10);
    cluster_run_await_soon(local, "%)");
    assert_return_code(kill(worker, SIGKILL), 0);
    assert_contains(
        cluster_run_await_soon(local, "chief: warning: worker 1 on host"),
        "was killed by signal 9");
    cluster_run_signal(local, 15);
    cluster_run_expect_soon(local, 128 + 15);
}

/* CHIEFS and WORKERS are their secrets. */
static void expect_named(struct cluster_run *run, const char *chiefs,
                         const char *workers, const char *chief_says,
                         const char *worker_says) {
    cluster_run_describe(run, 1, 1, 1);
    struct cluster_process *chief = start_task(run, "chief", 0, chiefs);
    cluster_run_await_soon(chief, "listening on port");
    struct cluster_process *worker = start_task(run, "worker", 0, workers);
    cluster_run_await(worker, worker_says, START + NAMED_WITHIN);
    cluster_run_await(chief, chief_says, START + NAMED_WITHIN);
    cluster_run_signal(worker, 15);
    cluster_run_signal(chief, 15);
    cluster_run_expect_soon(worker, 128 + 15);
    cluster_run_expect_soon(chief, 128 + 15);
}

TEST(a_worker_with_another_secret_is_named_on_both_sides) {
    make_secret(run, "secret");
    make_secret(run, "other");
    cluster_run_job(run, NULL);
    expect_named(run, "secret", "other", "is the secret file the same",
                 "refuses this process's key");
}

TEST(a_worker_without_the_secret_is_named_on_both_sides) {
    make_secret(run, "secret");
    cluster_run_job(run, NULL);
    expect_named(run, "secret", NULL, "no secret, and this run has one",
                 "has a secret, and this process has none");
}

TEST(a_worker_with_a_secret_of_a_run_without_is_named_on_both_sides) {
    make_secret(run, "secret");
    cluster_run_job(run, NULL);
    expect_named(run, NULL, "secret", "a secret, and this run has none",
                 "has no secret, and this process has one");
}

TEST(a_run_without_a_secret_says_which_ports_others_reach) {
    make_secret(run, "secret");
    cluster_run_job(run, NULL);
    cluster_run_describe(run, 1, 0, 1);
    json_array_set_new(json_object_get(run->cluster, "worker"), 0,
                       json_string("192.0.2.1:2222"));
    struct cluster_process *open = start_task(run, "chief", 0, NULL);
    assert_contains(cluster_run_await_soon(open, "this run has no secret"),
                    "192.0.2.1:2222");
    cluster_run_signal(open, 15);
    cluster_run_expect_soon(open, 128 + 15);
    struct cluster_process *closed = start_task(run, "chief", 0, "secret");
    cluster_run_await_soon(closed, "only processes with the run's secret");
    cluster_run_signal(closed, 15);
    cluster_run_expect_soon(closed, 128 + 15);
    assert_false(cluster_fixture_has_logged(closed, "this run has no secret"));
}

enum { DIGITS = 2 * SECRET_FILE_BYTES };

/* Writes the digits of the secret and its BYTES. */
static void read_secret_file(struct cluster_run *run, char digits[DIGITS + 1],
                             unsigned char bytes[SECRET_FILE_BYTES]) {
    FILE *file = fopen(cluster_run_path(run, "secret"), "r");
    assert_non_null(file);
    assert_int_equal(fread(digits, 1, DIGITS, file), DIGITS);
    fclose(file);
    digits[DIGITS] = 0;
    assert_int_equal(sodium_hex2bin(bytes, SECRET_FILE_BYTES, digits, DIGITS,
                                    NULL, NULL, NULL),
                     0);
}

/* Are the SIZE bytes of WANTED in what is mapped by process PID? */
static bool memory_has(int pid, const void *wanted, size_t size) {
    char line[512], access;
    unsigned long from, to;
    bool found = false;
    FILE *maps = fopen(textf("/proc/%d/maps", pid), "r");
    int memory = open(textf("/proc/%d/mem", pid), O_RDONLY | O_CLOEXEC);
    if (!maps || memory < 0)
        fail_msg("the memory of process %d cannot be read", pid);
    while (!found && fgets(line, sizeof line, maps)) {
        if (sscanf(line, "%lx-%lx %c", &from, &to, &access) != 3 ||
            access != 'r')
            continue;
        char *bytes = malloc(to - from);
        assert_non_null(bytes);
        ssize_t got = pread(memory, bytes, to - from, (off_t)from);
        found = got > 0 && memmem(bytes, (size_t)got, wanted, size);
        free(bytes);
    }
    fclose(maps);
    close(memory);
    return found;
}

TEST(a_process_forgets_the_secret_once_it_has_its_keys) {
    static const char *const types[] = {"chief", "ps", "worker"};
    struct cluster_process *tasks[3];
    unsigned char secret[SECRET_FILE_BYTES];
    char digits[DIGITS + 1];
    if (geteuid())
        skip_test("only root can read the memory of such a process");
    make_secret(run, "secret");
    read_secret_file(run, digits, secret);
    cluster_run_job(run, "{\"steps\": 1000000, \"steps_per_epoch\": 1000000}");
    cluster_run_describe(run, 1, 1, 1);
    for (int i = 0; i < 3; i++)
        tasks[i] = start_task(run, types[i], 0, "secret");
    cluster_run_await_soon(tasks[0], "%)");
    for (int i = 0; i < 3; i++) {
        int pid = cluster_run_pid(tasks[i]);
        assert_true(memory_has(pid, "--secret-file", strlen("--secret-file")));
        assert_false(memory_has(pid, secret, sizeof secret));
        assert_false(memory_has(pid, digits, DIGITS));
    }
    for (int i = 0; i < 3; i++)
        cluster_run_signal(tasks[i], 15);
    for (int i = 0; i < 3; i++)
        cluster_run_exit(tasks[i], CLUSTER_RUN_DEADLINE);
    for (int i = 0; i < 3; i++) {
        assert_null(strstr(cluster_run_errors(tasks[i]), digits));
        assert_null(strstr(cluster_run_output(tasks[i]), digits));
    }
}

enum { NOBODY = 65534 };

/* What /proc has of a process belongs to its user, where others of that user
 * may read its memory, else to root. */
static void expect_owner(struct cluster_run *run, uid_t owner,
                         const char *secret) {
    const char *const options[] = {"--reuid=65534",
                                   "--regid=65534",
                                   "--clear-groups",
                                   getenv("CAPSTAN"),
                                   "run",
                                   "job.json",
                                   secret ? "--secret-file" : NULL,
                                   secret,
                                   NULL};
    struct stat about;
    struct cluster_process *chief =
        cluster_run_task_program(run, "chief", 0, "/usr/bin/setpriv", options);
    cluster_run_await_soon(chief, "listening on port");
    assert_return_code(
        stat(textf("/proc/%d/environ", cluster_run_pid(chief)), &about), 0);
    assert_int_equal(about.st_uid, owner);
    cluster_run_signal(chief, 15);
    cluster_run_expect_soon(chief, 128 + 15);
}

TEST(a_process_with_a_secret_is_closed_to_others_of_its_user) {
    static const char prefix[] =
        "setpriv --reuid=65534 --regid=65534 --clear-groups";
    if (geteuid() || access("/usr/bin/setpriv", X_OK))
        skip_test("needs root, and setpriv of util-linux");
    make_secret(run, "secret");
    cluster_run_job(run, NULL);
    if (chown(run->folder, NOBODY, NOBODY) ||
        chown(cluster_run_path(run, "secret"), NOBODY, NOBODY) ||
        system(textf("%s test -x %s", prefix, getenv("CAPSTAN"))))
        skip_test("another user cannot reach the program");
    cluster_run_describe(run, 1, 0, 1);
    expect_owner(run, NOBODY, NULL);
    expect_owner(run, 0, "secret");
}

static uint16_t port_of_task(const struct cluster_run *run, const char *type) {
    const char *address = json_string_value(
        json_array_get(json_object_get(run->cluster, type), 0));
    return (uint16_t)strtoul(strrchr(address, ':') + 1, NULL, 10);
}

enum { CHIEF, PS, WORKER, OTHER, PROCESSES }; /* worker 1 is the other */

/* Starts a run that exports to FILE, and stops a trainer in its midst, so that
 * no round closes. */
static void start_and_pause(struct cluster_run *run, const char *file,
                            uint16_t status_port,
                            struct cluster_process *tasks[PROCESSES]) {
    cluster_run_job(run, textf("{\"steps\": 3000, \"steps_per_print\": 1,"
                               " \"timeouts\": {\"peer\": 600},"
                               " \"checkpoint\": {\"dir\": null},"
                               " \"export\": {\"path\": \"%s\"}}",
                               file));
    tasks[CHIEF] =
        cluster_run_task(run, "chief", 0,
                         WORDS("--secret-file", "secret", "--metrics-port",
                               textf("%u", status_port), "job.json"));
    tasks[PS] = start_task(run, "ps", 0, "secret");
    tasks[WORKER] = start_task(run, "worker", 0, "secret");
    tasks[OTHER] = start_task(run, "worker", 1, "secret");
    cluster_run_await_soon(tasks[CHIEF], "step 20/");
    cluster_run_signal(tasks[OTHER], SIGSTOP);
}

static void go_on_to_end(struct cluster_process *tasks[PROCESSES]) {
    cluster_run_signal(tasks[OTHER], SIGCONT);
    for (int i = 0; i < PROCESSES; i++)
        cluster_run_expect_soon(tasks[i], 0);
}

/* A process with another secret, whose TF_CONFIG has CLUSTER. */
static struct cluster_process *start_stray(struct cluster_run *run,
                                           const char *type, unsigned index,
                                           const char *cluster) {
    const char *config =
        textf("TF_CONFIG={\"cluster\": {%s}, \"task\": {\"type\": \"%s\","
              " \"index\": %u}}",
              cluster, type, index);
    return cluster_run_start(
        run, textf("stray-%s-%u", type, index),
        WORDS("run", "--secret-file", "other",
              strcmp(type, "chief") != 0 ? NULL : "job.json"),
        WORDS(config));
}

static void end_stray(struct cluster_process *stray) {
    cluster_run_signal(stray, 15);
    cluster_run_expect_soon(stray, 128 + 15);
}

/* Those of another run come to each port of TASKS, and to the one of HTTP. */
static void expect_strays_named(struct cluster_run *run, unsigned status_port,
                                struct cluster_process *tasks[PROCESSES]) {
    unsigned chief = port_of_task(run, "chief"), ps = port_of_task(run, "ps"),
             worker = port_of_task(run, "worker");
    struct cluster_process *strays[] = {
        start_stray(run, "worker", 0,
                    textf("\"chief\": [\"127.0.0.1:%u\"], \"ps\":"
                          " [\"127.0.0.1:1\"], \"worker\": [\"127.0.0.1:0\"]",
                          chief)),
        start_stray(run, "ps", 0,
                    textf("\"chief\": [\"127.0.0.1:%u\"], \"ps\":"
                          " [\"127.0.0.1:0\"], \"worker\": [\"127.0.0.1:1\"]",
                          status_port)),
        start_stray(run, "worker", 1,
                    textf("\"ps\": [\"127.0.0.1:%u\"], \"worker\":"
                          " {\"1\": \"127.0.0.1:0\"}",
                          ps)),
        start_stray(run, "chief", 0,
                    textf("\"chief\": [\"127.0.0.1:0\"], \"ps\":"
                          " [\"127.0.0.1:%u\"], \"worker\": [\"127.0.0.1:%u\"]",
                          ps, worker))};
    for (int i = 0; i < 3; i++)
        cluster_run_await(strays[i], "refuses this process's key",
                          START + NAMED_WITHIN);
    cluster_run_await_both(strays[3], textf("ps 0 at 127.0.0.1:%u refuses", ps),
                           textf("worker 0 at 127.0.0.1:%u refuses", worker),
                           START + NAMED_WITHIN);
    for (int i = CHIEF; i < OTHER; i++)
        cluster_run_await(tasks[i], "is the secret file the same",
                          NAMED_WITHIN);
    for (int i = 0; i < 4; i++)
        end_stray(strays[i]);
}

TEST(members_of_another_run_are_named_on_both_sides_and_change_nothing) {
    struct cluster_process *tasks[PROCESSES];
    uint16_t port;
    int held;
    assert_ok(port_reserve(&port, &held, &failure));
    make_secret(run, "secret");
    make_secret(run, "other");
    cluster_run_describe(run, 1, 1, 2);
    start_and_pause(run, "alone.safetensors", port, tasks);
    go_on_to_end(tasks);
    start_and_pause(run, "beset.safetensors", port, tasks);
    expect_strays_named(run, port, tasks);
    go_on_to_end(tasks);
    assert_int_equal(
        system(textf("cmp %s/alone.safetensors %s/beset.safetensors",
                     run->folder, run->folder)),
        0);
    close(held);
}

TEST(a_refused_job_is_answered_by_the_secret_that_it_names) {
    make_secret(run, "secret");
    cluster_run_job(run, "{\"epoch\": 3,"
                         " \"security\": {\"secret_file\": \"secret\"}}");
    cluster_run_describe(run, 1, 0, 1);
    struct cluster_process *worker = start_task(run, "worker", 0, "secret");
    struct cluster_process *chief = start_task(run, "chief", 0, NULL);
    cluster_run_expect_soon(chief, CONFIG);
    cluster_run_expect_soon(worker, CONFIG);
    cluster_fixture_expect_logged(worker, "the chief ended the run: ");
}

/* The worker, which is not told, ends when it gets a signal. */
TEST(a_refused_job_whose_secret_is_unusable_is_not_answered_in_the_clear) {
    static const char *const unusable[] = {
        "{\"epoch\": 3, \"security\": \"secret\"}",
        "{\"epoch\": 3, \"security\": {\"secret\": \"secret\"}}",
        "{\"epoch\": 3, \"security\": {\"secret_file\": 3}}"};
    cluster_run_describe(run, 1, 0, 1);
    for (size_t i = 0; i < sizeof unusable / sizeof *unusable; i++) {
        cluster_run_job(run, unusable[i]);
        struct cluster_process *worker = start_task(run, "worker", 0, NULL);
        struct cluster_process *chief = start_task(run, "chief", 0, NULL);
        cluster_run_expect_soon(chief, CONFIG);
        cluster_run_signal(worker, 15);
        cluster_run_expect_soon(worker, 128 + 15);
    }
}

TEST(a_job_whose_deepspeed_file_is_refused_is_answered_by_its_secret) {
    static const char *const files[] = {"missing.json", "no.json"};
    make_secret(run, "secret");
    cluster_run_job(run, "{\"security\": {\"secret_file\": \"secret\"}}");
    FILE *no_json = cluster_run_create(run, "no.json");
    fputs("no JSON", no_json);
    fclose(no_json);
    cluster_run_describe(run, 1, 0, 1);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        struct cluster_process *worker = start_task(run, "worker", 0, "secret");
        struct cluster_process *chief = cluster_run_task(
            run, "chief", 0, WORDS("--deepspeed_config", files[i], "job.json"));
        cluster_run_expect_soon(chief, CONFIG);
        cluster_run_expect_soon(worker, CONFIG);
        cluster_fixture_expect_logged(worker, "the chief ended the run: ");
    }
}

/* They say nothing, at the ports of two processes that have few descriptors. */
TEST(silent_bad_peers_do_not_keep_a_run_with_a_secret_from_its_end) {
    enum { BAD_PEERS = 900, FEW = 128 };
    static const char *const types[] = {"chief", "ps"}, *const awaited[] = {
                                                            "listening on port",
                                                            "ps 0 joined"};
    static int bad_peers[2][BAD_PEERS];
    struct rlimit few = {FEW, FEW}, own;
    struct cluster_process *tasks[2];
    assert_return_code(getrlimit(RLIMIT_NOFILE, &own), 0);
    own.rlim_cur = own.rlim_max;
    assert_return_code(setrlimit(RLIMIT_NOFILE, &own), 0);
    make_secret(run, "secret");
    cluster_run_job(run, NULL);
    cluster_run_describe(run, 1, 1, 1);
    for (int t = 0; t < 2; t++) {
        tasks[t] = start_task(run, types[t], 0, "secret");
        cluster_run_await_soon(tasks[0], awaited[t]);
        assert_return_code(
            prlimit(cluster_run_pid(tasks[t]), RLIMIT_NOFILE, &few, NULL), 0);
    }
    for (int t = 0; t < 2; t++)
        for (int i = 0; i < BAD_PEERS; i++)
            bad_peers[t][i] = bad_peers_connect(port_of_task(run, types[t]));
    struct cluster_process *worker = start_task(run, "worker", 0, "secret");
    cluster_run_expect_soon(worker, 0);
    cluster_run_expect_soon(tasks[0], 0);
    cluster_run_expect_soon(tasks[1], 0);
    for (int t = 0; t < 2; t++)
        for (int i = 0; i < BAD_PEERS; i++)
            close(bad_peers[t][i]);
}

static void expect_unusable(struct cluster_run *run, const char *says) {
    struct cluster_process *process = cluster_fixture_tool(
        run, CONFIG, WORDS("run", "--secret-file", "secret", "job.json"));
    cluster_fixture_expect_logged(process, says);
}

TEST(a_secret_that_others_may_read_or_that_is_none_ends_the_process) {
    cluster_run_job(run, NULL);
    cluster_fixture_expect_logged(
        cluster_fixture_tool(run, CONFIG,
                             WORDS("run", "--secret-file=", "job.json")),
        "the file of the job's secret");
    expect_unusable(run, "No such file");
    fclose(cluster_run_create(run, "secret"));
    assert_return_code(chmod(cluster_run_path(run, "secret"), 0600), 0);
    expect_unusable(run, "an empty file");
    assert_return_code(remove(cluster_run_path(run, "secret")), 0);
    make_secret(run, "secret");
    assert_return_code(chmod(cluster_run_path(run, "secret"), 0644), 0);
    expect_unusable(run, "chmod 600");
}
