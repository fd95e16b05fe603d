/* SPDX-License-Identifier: Apache-2.0 */
/* Runs whose processes know nothing but their ranks and where rank 0 is. */
#include "commands/launch/port.h"
#include "tests/cluster/cluster_clicks.h"
#include "tests/cluster/cluster_run.h"
#include "tests/lib/skip.h"
#include "tests/lib/test.h"

#include <glob.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

enum { RANKS = 3, VARIABLES = 10 };
static const char mpirun[] = "/usr/bin/mpirun";

/* Somebody who listens on PORT and says nothing; -1: it is taken. */
static int listen_on(int port) {
    int one = 1, holder = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in6 any = {.sin6_family = AF_INET6,
                               .sin6_port = htons((uint16_t)port)};
    setsockopt(holder, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (!bind(holder, (struct sockaddr *)&any, sizeof any) &&
        !listen(holder, 16))
        return holder;
    close(holder);
    return -1;
}

/* Two listeners on neighbouring ports; returns the lower port. They are below
 * those that the system gives to whoever asks for any: ranks try the next ones,
 * which there may be held for another test. */
static int listen_on_two(int holders[2]) {
    enum { FIRST = 20000, PORTS = 10000, APART = 20, TRIES = 100 };
    static int used; /* each test has other ports */
    for (int tries = 0; tries < TRIES; tries++) {
        int port = FIRST + (getpid() + used++) * APART % PORTS;
        holders[0] = listen_on(port);
        holders[1] = holders[0] < 0 ? -1 : listen_on(port + 1);
        if (holders[1] >= 0)
            return port;
        if (holders[0] >= 0)
            close(holders[0]);
    }
    fail_msg("no two ports beside each other are free");
    return 0;
}

/* `capstan ARGUMENTS...` as one rank of a world of SIZE, with the variables
 * that torchrun writes. */
static struct cluster_process *start_as_rank(struct cluster_run *run,
                                             const char *name,
                                             const char *const *arguments,
                                             int port, int rank, int size) {
    char texts[VARIABLES][80];
    const char *environment[VARIABLES + 1] = {NULL};
    int count = 0;
#define SET(...) snprintf(texts[count++], sizeof *texts, __VA_ARGS__)
    SET("RANK=%d", rank);
    SET("LOCAL_RANK=%d", rank);
    SET("WORLD_SIZE=%d", size);
    SET("LOCAL_WORLD_SIZE=%d", size);
    SET("GROUP_RANK=0");
    SET("MASTER_ADDR=localhost");
    SET("MASTER_PORT=%d", port);
    SET("TORCHELASTIC_USE_AGENT_STORE=True");
    SET("TORCHELASTIC_RUN_ID=none");
#undef SET
    for (int i = 0; i < count; i++)
        environment[i] = texts[i];
    return cluster_run_start(run, name, arguments, environment);
}

static struct cluster_process *start_rank_of(struct cluster_run *run,
                                             const char *job, int port,
                                             int rank, int size) {
    const char *const arguments[] = {"run", "--num-ps", "1", job, NULL};
    return start_as_rank(run, textf("%s-rank-%d-of-%d", job, rank, size),
                         arguments, port, rank, size);
}

static struct cluster_process *start_rank(struct cluster_run *run,
                                          const char *job, int port, int rank) {
    return start_rank_of(run, job, port, rank, RANKS);
}

static void job_of(struct cluster_run *run, const char *name) {
    cluster_run_job(
        run, textf("{\"checkpoint\": {\"dir\": \"%s-checkpoint\"}}", name));
    const char *from = cluster_run_path(run, "job.json");
    assert_int_equal(rename(from, cluster_run_path(run, name)), 0);
}

static void expect_all(struct cluster_process *const *ranks) {
    for (int r = 0; r < RANKS; r++)
        cluster_run_expect(ranks[r], 0, 2 * CLUSTER_RUN_DEADLINE);
}

FIXTURE(cluster_run_setup, cluster_run_teardown);

/* Two ports are taken by others: the agent's own, and the next. */
TEST(ranks_rendezvous_above_the_port_of_torchruns_agent) {
    struct cluster_process *ranks[RANKS];
    int holders[2], port = listen_on_two(holders);
    job_of(*state, "one.json");
    for (int r = RANKS - 1; r >= 0; r--)
        ranks[r] = start_rank(*state, "one.json", port, r);
    const char *text = textf("joined the chief at localhost:");
    const char *line = cluster_run_await_soon(ranks[1], text);
    int found = atoi(strstr(line, text) + strlen(text));
    assert_in_range(found, port + 2, port + 16);
    expect_all(ranks);
    assert_contains(cluster_run_errors(ranks[2]), " ps 0: ");
    assert_contains(cluster_run_errors(ranks[1]), "rank 1 of 2");
    close(holders[0]);
    close(holders[1]);
}

TEST(a_check_finds_the_chief_above_the_port_of_torchruns_agent) {
    static const char *const check[] = {"cluster", "--check", NULL};
    int holders[2], port = listen_on_two(holders);
    job_of(*state, "one.json");
    struct cluster_process *leader = start_rank(*state, "one.json", port, 0);
    cluster_run_await_soon(leader, "listening on port");
    struct cluster_process *process =
        start_as_rank(*state, "check", check, port, 1, RANKS);
    cluster_run_expect_soon(process, 0);
    assert_contains(cluster_run_output(process), "chief: answers\n");
    for (int i = 0; i < 2; i++)
        close(holders[i]);
}

/* The second job looks first where the first one's chief is. */
TEST(two_concurrent_jobs_do_not_mix) {
    struct cluster_process *one[RANKS], *two[RANKS];
    int holders[2], port = listen_on_two(holders);
    job_of(*state, "one.json");
    job_of(*state, "two.json");
    one[0] = start_rank(*state, "one.json", port, 0);
    cluster_run_await_soon(one[0], "listening on port");
    for (int r = RANKS - 1; r >= 1; r--)
        two[r] = start_rank(*state, "two.json", port + 1, r);
    for (int r = 1; r < RANKS; r++)
        cluster_run_await_soon(two[r], "another job's chief answers");
    two[0] = start_rank(*state, "two.json", port + 1, 0);
    for (int r = 1; r < RANKS; r++)
        one[r] = start_rank(*state, "one.json", port, r);
    expect_all(one);
    expect_all(two);
    close(holders[0]);
    close(holders[1]);
}

TEST(a_rank_of_another_world_is_refused_and_the_run_continues) {
    static const char figures[] = "counts 3 workers and 1 ps by torch, and the "
                                  "chief 2 workers and 1 ps by torch";
    struct cluster_process *ranks[RANKS];
    int holders[2], port = listen_on_two(holders);
    job_of(*state, "one.json");
    ranks[0] = start_rank(*state, "one.json", port, 0);
    struct cluster_process *other =
        start_rank_of(*state, "one.json", port, 1, RANKS + 1);
    cluster_run_expect_soon(other, 2);
    assert_contains(cluster_run_errors(other), figures);
    cluster_run_await_soon(ranks[0], figures);
    for (int r = 1; r < RANKS; r++)
        ranks[r] = start_rank(*state, "one.json", port, r);
    expect_all(ranks);
    close(holders[0]);
    close(holders[1]);
}

/* That of CAPSTAN_TORCHRUN, else the one on PATH. */
static bool find_torchrun(char path[PATH_MAX]) {
    const char *given = getenv("CAPSTAN_TORCHRUN");
    if (given && *given) {
        snprintf(path, PATH_MAX, "%s", given);
        return true;
    }
    FILE *output = popen("command -v torchrun", "r");
    bool found = output && fgets(path, PATH_MAX, output);
    if (output)
        pclose(output);
    path[strcspn(path, "\n")] = 0;
    return found;
}

/* Its agent listens on the port that it tells. */
static struct cluster_process *torchrun(struct cluster_run *run,
                                        const char *const *set) {
    static char path[PATH_MAX], port_text[16];
    const char *arguments[16] = {"--nproc_per_node",
                                 "2",
                                 "--master_addr",
                                 "127.0.0.1",
                                 "--master_port",
                                 port_text,
                                 "--no_python",
                                 getenv("CAPSTAN"),
                                 "run",
                                 "--json",
                                 "job.json"};
    uint16_t port;
    int holder;
    if (!find_torchrun(path))
        skip_test("no torchrun on PATH or in CAPSTAN_TORCHRUN");
    assert_int_equal(port_reserve(&port, &holder, NULL), 0);
    close(holder);
    snprintf(port_text, sizeof port_text, "%u", port);
    for (int i = 0; set[i]; i++)
        arguments[11 + i] = set[i];
    cluster_run_job(run, NULL);
    return cluster_run_program(run, "torchrun", path, arguments, NULL);
}

/* torchrun is slow to start, and to end. */
TEST(torchrun_starts_an_all_reduce_run) {
    struct cluster_process *process = torchrun(*state, (const char *[]){NULL});
    cluster_run_expect(process, 0, 3 * CLUSTER_RUN_DEADLINE);
    const json_t *summary = cluster_run_json(process);
    assert_int_equal(json_integer_value(json_object_get(summary, "exit")), 0);
    assert_int_equal(json_integer_value(json_object_get(summary, "steps")), 90);
    const char *said = cluster_run_errors(process);
    assert_contains(said, "cluster from torch");
    assert_contains(said, "all-reduce: 2 trainers (no ps is listed)");
}

TEST(torchrun_ends_when_a_rank_has_failed) {
    struct cluster_process *process =
        torchrun(*state, WORDS("--set", "data.dir=nowhere"));
    cluster_run_expect(process, 1, 3 * CLUSTER_RUN_DEADLINE);
    const char *said = cluster_run_errors(process);
    assert_contains(said, "nowhere");
    assert_contains(said, "exitcode  : 2");
}

/* The summary of the folder's job, run by three trainers and a ps. */
static const json_t *run_by_open_mpi(struct cluster_run *run) {
    if (access(mpirun, X_OK))
        skip_test("there is no %s here (openmpi-bin)", mpirun);
    char master[32]; /* other runs here have the usual one */
    uint16_t port;
    int holder;
    assert_int_equal(port_reserve(&port, &holder, NULL), 0);
    snprintf(master, sizeof master, "MASTER_PORT=%u", port);
    struct cluster_process *process = cluster_run_program(
        run, "mpirun", mpirun,
        WORDS("--allow-run-as-root", "--oversubscribe", "-n", "4",
              getenv("CAPSTAN"), "run", "--json", "--num-ps", "1", "job.json"),
        WORDS(master));
    cluster_run_expect(process, 0, 2 * CLUSTER_RUN_DEADLINE);
    close(holder);
    const json_t *summary = cluster_run_json(process);
    assert_int_equal(json_integer_value(json_object_get(summary, "exit")), 0);
    assert_contains(cluster_run_errors(process), "cluster from mpi");
    assert_contains(cluster_run_errors(process), "3 trainers, 1 ps");
    return summary;
}

TEST(open_mpi_starts_a_run) {
    cluster_run_job(*state, NULL);
    run_by_open_mpi(*state);
}

TEST(open_mpi_starts_a_run_with_tables) {
    cluster_clicks_write(*state);
    cluster_run_job(*state, "{" CLUSTER_CLICKS_DEEPFM ", \"epochs\": 2}");
    const json_t *summary = run_by_open_mpi(*state);
    const json_t *rows =
        json_object_get(json_object_get(summary, "table_rows"), "user");
    assert_int_equal(json_integer_value(rows), CLUSTER_CLICKS_USERS);
}

/* deploy/mpi as it is written, with both of its hosts on this machine
 * (tests/cluster/mpi/hosts.sh), as a process of NUM_PS ("NUM_PS=2"). */
static struct cluster_process *start_on_two_hosts(struct cluster_run *run,
                                                  const char *num_ps) {
    char script[PATH_MAX], start[PATH_MAX], hosts[PATH_MAX];
    uint16_t port;
    static int holder;
    if (access(mpirun, X_OK))
        skip_test("there is no %s here (openmpi-bin)", mpirun);
    if (holder) /* of the run before */
        close(holder);
    assert_non_null(realpath("tests/cluster/mpi/hosts.sh", script));
    assert_non_null(realpath("deploy/mpi/run.sh", start));
    assert_non_null(realpath("deploy/mpi/hostfile", hosts));
    const char *folder = cluster_run_path(run, "mpi");
    assert_int_equal(port_reserve(&port, &holder, NULL), 0);
    return cluster_run_program(
        run, num_ps, script, WORDS(folder, start, hosts, "job.json"),
        WORDS(textf("MASTER_PORT=%u", port), num_ps, "GRACE=5"));
}

static void skip_without_hosts(struct cluster_process *process) {
    const char *said = cluster_run_output(process);
    if (!strncmp(said, "skip ", 5))
        skip_test("no two hosts here, without %.*s",
                  (int)strcspn(said + 5, "\n"), said + 5);
}

TEST(the_files_for_mpi_start_a_run_on_two_hosts) {
    static const char *const said[][2] = {
        {"NUM_PS=2", "ps 1 joined from node2"},
        {"NUM_PS=0", "worker 5 joined from node2"},
    };
    cluster_run_job(*state, "{\"checkpoint\": {\"resume\": \"never\"}}");
    for (unsigned i = 0; i < sizeof said / sizeof *said; i++) {
        struct cluster_process *process =
            start_on_two_hosts(*state, said[i][0]);
        cluster_run_expect(process, 0, 2 * CLUSTER_RUN_DEADLINE);
        skip_without_hosts(process);
        assert_contains(cluster_run_errors(process), said[i][1]);
    }
}

/* No step is later than the newest checkpoint. Open MPI reads no log while it
 * waits, and then mixes the ranks' lines. */
static void expect_last_checkpoint(const struct cluster_run *run,
                                   const char *said) {
    static const char begin[] = "chief: step ", end[] = "/100000000";
    unsigned long last = 0, newest;
    char *after;
    glob_t found;
    for (const char *line = said; (line = strstr(line, begin));) {
        unsigned long step = strtoul(line += sizeof begin - 1, &after, 10);
        if (!strncmp(after, end, sizeof end - 1) && step > last)
            last = step;
    }
    assert_int_equal(
        glob(cluster_run_path(run, "checkpoint/step-*/manifest.json"), 0, NULL,
             &found),
        0);
    const char *path = found.gl_pathv[found.gl_pathc - 1];
    newest = strtoul(strstr(path, "/step-") + sizeof "/step-" - 1, NULL, 10);
    globfree(&found);
    assert_int_not_equal(last, 0);
    if (newest < last)
        fail_msg("the newest checkpoint is of step %lu, after step %lu: %s",
                 newest, last,
                 said + (strlen(said) > 600 ? strlen(said) - 600 : 0));
}

TEST(a_signal_to_the_start_for_mpi_ends_the_run) {
    if (geteuid())
        skip_test("no two hosts here, without root");
    cluster_run_job(*state, "{\"steps\": 100000000, \"steps_per_print\": 100}");
    struct cluster_process *process = start_on_two_hosts(*state, "NUM_PS=2");
    cluster_run_await(process, "chief: step ", 2 * CLUSTER_RUN_DEADLINE);
    cluster_run_signal(process, SIGTERM);
    cluster_run_expect(process, 143, 2 * CLUSTER_RUN_DEADLINE);
    const char *said = cluster_run_errors(process);
    assert_null(strstr(said, "the run is started again"));
    expect_last_checkpoint(*state, said);
}

/* A process of `capstan run` with a job, and with VARIABLES as in a shell:
 * "A=1 B=2". */
static struct cluster_process *start_with(struct cluster_run *run,
                                          const char *name, const char *num_ps,
                                          const char *variables) {
    char text[512];
    const char *environment[VARIABLES + 1] = {NULL}, *rest = text;
    char *word;
    snprintf(text, sizeof text, "%s", variables);
    word = strtok_r(text, " ", (char **)&rest);
    for (int i = 0; word; word = strtok_r(NULL, " ", (char **)&rest)) {
        assert_in_range(i, 0, VARIABLES - 1);
        environment[i++] = word;
    }
    return cluster_run_start(
        run, name, WORDS("run", "job.json", num_ps ? "--num-ps" : NULL, num_ps),
        environment);
}

/* The name of each process and the variables that only it has. */
struct launched {
    const char *name, *variables;
};

/* Starts COUNT processes with COMMON variables beside their own; all train to
 * the end, and the first leads and says SAID. */
static void expect_launched(struct cluster_run *run,
                            const struct launched *launched, size_t count,
                            const char *common, const char *num_ps,
                            const char *const said[2]) {
    struct cluster_process *processes[VARIABLES];
    char variables[512];
    cluster_run_job(run, NULL);
    for (size_t i = count; i-- > 0;) {
        snprintf(variables, sizeof variables, "%s %s", common,
                 launched[i].variables);
        processes[i] = start_with(run, launched[i].name, num_ps, variables);
    }
    for (size_t i = 0; i < count; i++)
        cluster_run_expect(processes[i], 0, 2 * CLUSTER_RUN_DEADLINE);
    for (size_t i = 0; i < 2; i++)
        assert_contains(cluster_run_errors(processes[0]), said[i]);
}

TEST(ps_lites_variables_start_a_run_that_its_scheduler_leads) {
    static const struct launched launched[] = {
        {"scheduler", "DMLC_ROLE=scheduler"},
        {"server", "DMLC_ROLE=server"},
        {"worker-0", "DMLC_ROLE=worker DMLC_WORKER_ID=0"},
        {"worker-1", "DMLC_ROLE=worker DMLC_WORKER_ID=1"},
    };
    static const char *const said[] = {"cluster from DMLC",
                                       "parameter server: 2 trainers, 1 ps"};
    uint16_t port;
    int holder;
    assert_int_equal(port_reserve(&port, &holder, NULL), 0);
    expect_launched(*state, launched, 4,
                    textf("DMLC_PS_ROOT_URI=127.0.0.1 DMLC_PS_ROOT_PORT=%u "
                          "DMLC_NUM_WORKER=2 DMLC_NUM_SERVER=1",
                          port),
                    NULL, said);
    close(holder);
}

/* As Paddle's examples for one machine do, which say nothing of trainer 0. */
TEST(paddles_variables_start_a_run_on_one_host) {
    static const struct launched launched[] = {
        {"trainer-0", "TRAINING_ROLE=TRAINER PADDLE_TRAINER_ID=0"},
        {"trainer-1", "TRAINING_ROLE=TRAINER PADDLE_TRAINER_ID=1"},
        {"pserver", "TRAINING_ROLE=PSERVER POD_IP=127.0.0.1"},
    };
    static const char *const said[] = {"cluster from PADDLE",
                                       "parameter server: 2 trainers, 1 ps"};
    uint16_t ports[2];
    int holders[2];
    for (int i = 0; i < 2; i++)
        assert_int_equal(port_reserve(&ports[i], &holders[i], NULL), 0);
    expect_launched(
        *state, launched, 3,
        textf("PADDLE_PSERVERS_IP_PORT_LIST=127.0.0.1:%u PADDLE_PORT=%u "
              "PADDLE_TRAINERS_NUM=2 MASTER_PORT=%u",
              ports[0], ports[0], ports[1]),
        NULL, said);
    for (int i = 0; i < 2; i++)
        close(holders[i]);
}

TEST(horovods_last_ranks_are_ps) {
    static const struct launched launched[] = {
        {"rank-0", "HOROVOD_RANK=0 HOROVOD_LOCAL_RANK=0"},
        {"rank-1", "HOROVOD_RANK=1 HOROVOD_LOCAL_RANK=1"},
        {"rank-2", "HOROVOD_RANK=2 HOROVOD_LOCAL_RANK=2"},
    };
    static const char *const said[] = {"cluster from HOROVOD",
                                       "parameter server: 2 trainers, 1 ps"};
    uint16_t port;
    int holder;
    assert_int_equal(port_reserve(&port, &holder, NULL), 0);
    expect_launched(
        *state, launched, 3,
        textf("HOROVOD_SIZE=3 HOROVOD_LOCAL_SIZE=3 MASTER_PORT=%u", port), "1",
        said);
    close(holder);
}

/* Each of them would train a model of its own, and end with 0. */
TEST(a_process_launched_with_others_does_not_train_alone) {
    static const char *const lines[][5] = {
        {"run", "job.json"}, {"bench"}, {"cluster"}};
    cluster_run_job(*state, NULL);
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        struct cluster_process *process =
            cluster_run_start(*state, lines[i][0], lines[i],
                              WORDS("HOROVOD_RANK=1", "HOROVOD_SIZE=2"));
        cluster_run_expect_soon(process, 2);
        assert_contains(cluster_run_errors(process),
                        "error: not_alone: HOROVOD_RANK is \"1\"");
        assert_string_equal(cluster_run_output(process), "");
    }
}

/* What it starts here has a cluster of its own. */
TEST(a_single_process_bench_is_allowed_under_a_launcher) {
    struct cluster_process *process =
        cluster_run_start(*state, "bench",
                          WORDS("bench", "--alone", "--json", "--sizes", "64",
                                "--seconds", "0.01", "--repeats", "1"),
                          WORDS("HOROVOD_SIZE=2"));
    cluster_run_expect_soon(process, 0);
    const json_t *result = cluster_run_json(process);
    assert_non_null(json_object_get(result, "sizes"));
}

TEST(local_ignores_outer_launchers) {
    cluster_run_job(*state, NULL);
    cluster_run_expect_soon(
        cluster_run_start(*state, "local", WORDS("local", "job.json"),
                          WORDS("HOROVOD_RANK=1", "DMLC_ROLE=server",
                                "SM_HOSTS=[\"a\",\"b\"]", "WORLD_SIZE=2")),
        0);
}
