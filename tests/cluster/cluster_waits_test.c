/* SPDX-License-Identifier: Apache-2.0 */
/* Whom a call waits for, and in what state that is: 12 calls that block by 8
 * states of the peer. Each wait ends within its deadline, by the line that a
 * cell of the table has: the peer, its address, how long was waited, and the
 * cause where it can be known. A cell without a line names the test that has
 * it, or says why there is none. */
#include "core/base/time.h"
#include "tests/cluster/bad_peers.h"
#include "tests/cluster/cluster_fixture.h"
#include "tests/lib/test.h"

#include <signal.h>
#include <unistd.h>

enum { FAILED = 1, RETRY = 138 };

enum peer_state {
    ABSENT,     /* never started: its port refuses */
    UNRESOLVED, /* its host's name is known nowhere */
    DROPPED,    /* packets to its address are dropped */
    STOPPED,    /* by SIGSTOP */
    KILLED,     /* by SIGKILL */
    SILENT,     /* a program at its address says nothing */
    FOREIGN,    /* a program at its address speaks another protocol */
    OTHER_RUN,  /* a process of another run is at its address */
    PEER_STATES
};
static const char *const state_names[] = {"absent",  "unresolved",    "dropped",
                                          "stopped", "killed",        "silent",
                                          "foreign", "of another run"};

/* Seconds; what of a job is not named here is longer than any cell takes. */
enum { JOIN = 8, PEER = 2, STEP = 10, CALL = 4, REACH = 8 };
#define JOB(more)                                                              \
    "{\"steps\": 1000000000, \"steps_per_epoch\": 1000000,"                    \
    " \"steps_per_print\": 50, \"chief\": \"coordinate\","                     \
    " \"strategy\": {\"recovery\": \"end\"}, \"timeouts\":"                    \
    " {\"join\": 8, \"peer\": 2, \"step\": 10, \"stop\": 1}" more "}"

/* WHO ends with a space if the address follows, which is a host and a process
 * number behind "on host "; then comes SAID. */
struct wait_cell {
    const char *who, *said, *cause, *elsewhere;
    int code;
    double limit; /* seconds */
};

struct wait_case;

struct wait_call {
    const char *name;
    void (*begin)(struct wait_case *one);
    struct wait_cell cells[PEER_STATES];
};

/* A cell under way. */
struct wait_case {
    const struct wait_call *call;
    enum peer_state state;
    struct cluster_run *run;
    struct bad_peers_program *program; /* in the peer's place */
    struct cluster_process *waits, *peer;
    char address[64];
    int64_t end; /* by which it is to be over */
    bool over;
};

static struct wait_case cases[3 * PEER_STATES];
static unsigned num_cases;

static int waits_teardown(void **state) {
    (void)state;
    for (; num_cases; num_cases--) {
        struct wait_case *one = &cases[num_cases - 1];
        void *run = one->run;
        cluster_run_teardown(&run);
        bad_peers_stop(&one->program);
    }
    return 0;
}

FIXTURE(NULL, waits_teardown);

static const struct wait_cell *cell_of(const struct wait_case *one) {
    return &one->call->cells[one->state];
}

static const char *address_in(const struct cluster_run *run, const char *type,
                              unsigned index) {
    return json_string_value(
        json_array_get(json_object_get(run->cluster, type), index));
}

/* For those that are started from now on. */
static void move_task(const struct wait_case *one, const char *type,
                      const char *address) {
    json_array_set_new(json_object_get(one->run->cluster, type), 0,
                       json_string(address));
}

/* From now on time counts: the deadline and a tenth, and a second in which
 * processes start and end. */
static void begin_wait(struct wait_case *one) {
    one->end = time_now() + time_from_seconds(1.1 * cell_of(one)->limit + 1);
}

/* A ps that waits for the chief of another run, at ADDRESS. */
static void start_other_run(const struct wait_case *one, const char *address) {
    const char *config =
        textf("TF_CONFIG={\"cluster\": {\"chief\": [\"127.0.0.1:1\"], \"ps\":"
              " [\"%s\"], \"worker\": [\"127.0.0.1:2\"]}, \"task\":"
              " {\"type\": \"ps\", \"index\": 0}}",
              address);
    cluster_run_await_soon(
        cluster_run_start(one->run, "other", WORDS("run"), WORDS(config)),
        "listening on port");
}

/* Who is at the address of a task that is not there, or not any more. */
static void take_place(struct wait_case *one, const char *type) {
    const char *address = address_in(one->run, type, 0);
    uint16_t port = (uint16_t)strtoul(strrchr(address, ':') + 1, NULL, 10);
    if (one->state == UNRESOLVED)
        move_task(one, type, "no-such-host.invalid:2222");
    if (one->state == DROPPED)
        one->program = bad_peers_start(BAD_PEERS_FULL, &port);
    if (one->state == SILENT)
        one->program = bad_peers_start(BAD_PEERS_SILENT, &port);
    if (one->state == FOREIGN)
        one->program = bad_peers_start(BAD_PEERS_GREETS, &port);
    if (one->state == OTHER_RUN)
        start_other_run(one, address);
    snprintf(one->address, sizeof one->address, "%s",
             address_in(one->run, type, 0));
}

/* The peer, which is there, comes into its state. */
static void strike(struct wait_case *one, const char *type) {
    cluster_run_signal(one->peer, one->state == STOPPED ? SIGSTOP : SIGKILL);
    begin_wait(one);
    if (one->state == STOPPED || one->state == KILLED)
        return;
    cluster_run_expect_soon(one->peer, 128 + SIGKILL);
    take_place(one, type);
}

static void begin_join(struct wait_case *one, const char *type,
                       const char *program, const char *const *arguments) {
    cluster_run_job(one->run, JOB(""));
    cluster_run_describe(one->run, 1, 1, 2);
    take_place(one, "chief");
    if (one->state == STOPPED || one->state == KILLED) {
        one->peer =
            cluster_run_task_program(one->run, "chief", 0, program,
                                     WORDS(program ? "none" : "job.json"));
        cluster_run_await_soon(one->peer, "listening on port");
    }
    if (one->state == STOPPED)
        cluster_run_signal(one->peer, SIGSTOP);
    one->waits =
        cluster_run_task_program(one->run, type, 0, program, arguments);
    cluster_run_await_soon(one->waits, ": host ");
    begin_wait(one);
    if (one->state == KILLED) {
        cluster_run_await_soon(one->waits, "joined the chief at ");
        strike(one, "chief");
    }
}

static void begin_join_of_ps(struct wait_case *one) {
    begin_join(one, "ps", NULL, WORDS("--join-timeout", "8"));
}

static void begin_join_of_worker(struct wait_case *one) {
    begin_join(one, "worker", NULL, WORDS("--join-timeout", "8"));
}

static void begin_join_of_caller(struct wait_case *one) {
    char caller[PATH_MAX];
    cluster_fixture_caller(caller);
    setenv("CAPSTAN_SET", "timeouts.join=8\ntimeouts.peer=2\nchief=coordinate",
           1);
    begin_join(one, "worker", caller, WORDS("sums"));
    unsetenv("CAPSTAN_SET");
}

/* The chief waits for a ps, which is not started, and for a worker. */
static void begin_members(struct wait_case *one) {
    cluster_run_job(one->run, JOB(""));
    cluster_run_describe(one->run, 1, 1, 1);
    for (unsigned i = 0; i < 2; i++)
        cluster_fixture_tool(one->run, 0,
                             WORDS("keygen", i ? "other" : "secret"));
    snprintf(one->address, sizeof one->address, "%s",
             address_in(one->run, "worker", 0));
    one->waits = cluster_run_task(one->run, "chief", 0,
                                  WORDS("--secret-file", "secret", "job.json"));
    cluster_run_await_soon(one->waits, ": host ");
    begin_wait(one);
    one->peer = cluster_run_task(
        one->run, "worker", 0,
        WORDS("--secret-file", one->state == OTHER_RUN ? "other" : "secret"));
    if (one->state == OTHER_RUN)
        return;
    cluster_run_await_soon(one->waits, "worker 0 joined from ");
    cluster_run_signal(one->peer, one->state == STOPPED ? SIGSTOP : SIGKILL);
}

/* The ps has joined, and its address, of which the chief tells the worker, is
 * another. */
static void begin_pull(struct wait_case *one) {
    cluster_run_job(one->run, JOB(""));
    cluster_run_describe(one->run, 1, 1, 1);
    setenv("CAPSTAN_LANE", "tcp", 1);
    one->peer = cluster_run_task(one->run, "ps", 0, NULL);
    bool moves = one->state != STOPPED && one->state != KILLED;
    if (moves) {
        move_task(one, "ps", address_in(one->run, "worker", 0));
        take_place(one, "ps");
        move_task(one, "worker", "127.0.0.1:0");
    }
    struct cluster_process *chief =
        cluster_run_task(one->run, "chief", 0, WORDS("job.json"));
    cluster_run_await_soon(chief, "ps 0 joined from ");
    one->waits = chief;
    if (!moves)
        strike(one, "ps");
    (void)cluster_run_task(one->run, "worker", 0, NULL);
    unsetenv("CAPSTAN_LANE");
    begin_wait(one);
}

/* A run of a chief, NUM_PS and two workers, whose task TYPE INDEX is the peer
 * and is struck as it trains; WAITS is who waits. */
static void begin_running(struct wait_case *one, const char *job,
                          unsigned num_ps, const char *type, unsigned index,
                          const char *waits) {
    struct cluster_fixture fixture;
    cluster_run_job(one->run, job);
    cluster_fixture_describe(&fixture, one->run, 1, num_ps, 2);
    cluster_fixture_start_all(&fixture);
    one->peer =
        fixture.tasks[cluster_fixture_find(&fixture, type, index)].process;
    one->waits =
        fixture.tasks[cluster_fixture_find(&fixture, waits, 0)].process;
    snprintf(one->address, sizeof one->address, "%s",
             address_in(one->run, type, index));
    cluster_run_await_soon(fixture.tasks[0].process, "%)");
    strike(one, type);
}

static void begin_round(struct wait_case *one) {
    begin_running(one, JOB(""), 1, "ps", 0, "chief");
}

static void begin_norm(struct wait_case *one) {
    begin_running(one, JOB(", \"gradient_clipping\": 0.5"), 1, "chief", 0,
                  "worker");
}

static void begin_all_reduce(struct wait_case *one) {
    begin_running(one, JOB(""), 0, "worker", 1, "chief");
}

/* Worker 0, which leads, meets worker 1 again and again. */
static void begin_collective(struct wait_case *one) {
    char caller[PATH_MAX];
    cluster_fixture_caller(caller);
    cluster_run_describe(one->run, 0, 1, 2);
    setenv("CAPSTAN_SET", "timeouts.peer=2\ntimeouts.step=4\ntimeouts.stop=1",
           1);
    (void)cluster_run_task(one->run, "ps", 0, NULL);
    one->waits =
        cluster_run_task_program(one->run, "worker", 0, caller, WORDS("meets"));
    one->peer =
        cluster_run_task_program(one->run, "worker", 1, caller, WORDS("meets"));
    unsetenv("CAPSTAN_SET");
    cluster_run_await_soon(one->peer, "rank 1 has met");
    strike(one, "worker");
}

/* Its part of the last checkpoint takes the ps long enough to be seen. */
static void begin_last_checkpoint(struct wait_case *one) {
    cluster_run_job(one->run, "{\"chief\": \"coordinate\", \"steps\": 2,"
                              " \"epochs\": null, \"data\": {\"test\": null},"
                              " \"strategy\": {\"recovery\": \"end\"},"
                              " \"model\": {\"layers\": [64, 4096, 4096, 10]},"
                              " \"optimizer\": {\"type\": \"Adam\"},"
                              " \"timeouts\": {\"peer\": 2, \"stop\": 1}}");
    struct cluster_fixture fixture;
    cluster_fixture_describe(&fixture, one->run, 1, 1, 1);
    cluster_fixture_start_all(&fixture);
    one->waits = fixture.tasks[0].process;
    one->peer = fixture.tasks[cluster_fixture_find(&fixture, "ps", 0)].process;
    cluster_fixture_await_file(one->run, "checkpoint/step-*/*",
                               CLUSTER_RUN_DEADLINE);
    strike(one, "ps");
}

/* The port of the status of a chief, which waits for its members. */
static void begin_status(struct wait_case *one) {
    cluster_run_job(one->run, JOB(""));
    cluster_run_describe(one->run, 1, 1, 1);
    take_place(one, "ps");
    if (one->state == STOPPED) {
        one->peer =
            cluster_run_task(one->run, "chief", 0,
                             WORDS("--metrics-port",
                                   strrchr(one->address, ':') + 1, "job.json"));
        cluster_run_await_soon(one->peer, "listening on port");
        cluster_run_signal(one->peer, SIGSTOP);
    }
    begin_wait(one);
    one->waits = cluster_run_start(one->run, "status",
                                   WORDS("status", one->address), NULL);
}

#define NO_CHIEF                                                               \
    "the chief at ", " did not answer within 8 s (timeouts.join, or "          \
                     "--join-timeout)"
#define SILENT_CHIEF "the chief at ", " was silent for 2 s (timeouts.peer)"
#define NO_WORKER "did not join within 8 s (timeouts.join): worker 0 at ", ""
#define CUT_OFF                                                                \
    "ps 0 on host ", " is out of reach of every trainer (worker 0 on host "
#define SILENT_PS "ps 0 on host ", " is gone: silent for 2."
#define CLOSED_PS "ps 0 on host ", " is gone: its connection is closed, and "
#define SILENT_RANK "worker 1 on host ", " is gone: silent for 2."
#define ELSEWHERE(text)                                                        \
    { .elsewhere = (text) }
#define TRAINS ELSEWHERE("a run that trains has had it")
#define CONNECTED                                                              \
    ELSEWHERE("the two are connected: no name is looked up, and nothing "      \
              "connects to another program at the address")
#define COMES ELSEWHERE("nobody connects to a worker: it connects to others")

#define JOINS                                                                  \
    {                                                                          \
        [ABSENT] = {NO_CHIEF, "connections to it fail at once", .code = RETRY, \
                    .limit = JOIN},                                            \
        [UNRESOLVED] = {NO_CHIEF, "cannot find host no-such-host.invalid",     \
                        .code = RETRY, .limit = JOIN},                         \
        [DROPPED] = {NO_CHIEF, "does its host answer", .code = RETRY,          \
                     .limit = JOIN},                                           \
        [STOPPED] = {NO_CHIEF, "accepts connections and says nothing",         \
                     .code = RETRY, .limit = JOIN},                            \
        [KILLED] = {SILENT_CHIEF, "it is gone, or the network is",             \
                    .code = RETRY, .limit = PEER},                             \
        [SILENT] = {NO_CHIEF, "accepts connections and says nothing",          \
                    .code = RETRY, .limit = JOIN},                             \
        [FOREIGN] = {NO_CHIEF, "it speaks another protocol", .code = RETRY,    \
                     .limit = JOIN},                                           \
        [OTHER_RUN] = {NO_CHIEF, "has not answered a join for 5 s: a ps, a ",  \
                       .code = RETRY, .limit = JOIN},                          \
    }

enum {
    JOIN_OF_PS,
    JOIN_OF_WORKER,
    JOIN_OF_CALLER,
    MEMBERS,
    PULL,
    STATUS,
    ROUND,
    NORM,
    OTHER_WORKER,
    ALL_REDUCE,
    COLLECTIVE,
    LAST_CHECKPOINT,
    CALLS
};

static const struct wait_call calls[CALLS] = {
    [JOIN_OF_PS] = {"the join of a ps", begin_join_of_ps, JOINS},
    [JOIN_OF_WORKER] = {"the join of a worker", begin_join_of_worker, JOINS},
    [JOIN_OF_CALLER] = {"capstan_join", begin_join_of_caller, JOINS},
    [MEMBERS] = {"the chief's wait for a worker",
                 begin_members,
                 {
                     [ABSENT] = ELSEWHERE(
                         "cluster_startup_failure_test: "
                         "a_process_that_does_not_join_in_time_is_named"),
                     [UNRESOLVED] = COMES,
                     [DROPPED] = COMES,
                     [STOPPED] = {NO_WORKER, "worker 0 on host ", .code = RETRY,
                                  .limit = JOIN},
                     [KILLED] = {NO_WORKER, "worker 0 on host ", .code = RETRY,
                                 .limit = JOIN},
                     [SILENT] = COMES,
                     [FOREIGN] = COMES,
                     [OTHER_RUN] = {NO_WORKER,
                                    "its key is not of this run's secret",
                                    .code = RETRY, .limit = JOIN},
                 }},
    [PULL] = {"the first weights of a ps",
              begin_pull,
              {
                  [ABSENT] = {CUT_OFF, .code = RETRY, .limit = REACH},
                  [UNRESOLVED] = {CUT_OFF, "no-such-host.invalid",
                                  .code = RETRY, .limit = REACH},
                  [DROPPED] = {CUT_OFF, .code = RETRY, .limit = REACH},
                  [STOPPED] = {SILENT_PS, .code = RETRY, .limit = PEER},
                  /* The chief may not have reached it yet. */
                  [KILLED] = {"ps 0 on host ", " is gone: ", .code = RETRY,
                              .limit = PEER},
                  [SILENT] = {CUT_OFF, .code = RETRY, .limit = REACH},
                  [FOREIGN] = {CUT_OFF, .code = RETRY, .limit = REACH},
                  [OTHER_RUN] = {"for ps 0 at ", ", gives up in ",
                                 " for 10 s (timeouts.step)", .code = RETRY,
                                 .limit = STEP},
              }},
    [STATUS] =
        {"capstan status",
         begin_status,
         {
             [ABSENT] =
                 ELSEWHERE("cluster_hang_test: "
                           "capstan_status_says_who_does_not_answer"),
             [UNRESOLVED] = {"no address is known for no-such-host.invalid", "",
                             .code = RETRY, .limit = 2},
             [DROPPED] = {"error: ", " has not answered within 2 s",
                          .code = RETRY, .limit = 2},
             [STOPPED] = {"error: ",
                          " is connected and has not answered within 5 s",
                          .code = RETRY, .limit = 5},
             [KILLED] = ELSEWHERE("as one that was never started"),
             [SILENT] = {"error: ",
                         " is connected and has not answered within 5 s",
                         .code = RETRY, .limit = 5},
             [FOREIGN] = {"error: ", " answers without a report",
                          .code = FAILED, .limit = 5},
             [OTHER_RUN] = {"error: ", " answers without a report",
                            .code = FAILED, .limit = 5},
         }},
    [ROUND] = {"a round, for a ps",
               begin_round,
               {
                   [ABSENT] = TRAINS,
                   [UNRESOLVED] = CONNECTED,
                   [DROPPED] =
                       ELSEWHERE("cluster_firewall_test: "
                                 "a_ps_that_no_trainer_reaches_ends_the_run"),
                   [STOPPED] = {SILENT_PS, .code = RETRY, .limit = PEER},
                   [KILLED] = {CLOSED_PS, " refuses", .code = RETRY,
                               .limit = PEER},
                   [SILENT] = {SILENT_PS, .code = RETRY, .limit = PEER},
                   [FOREIGN] = {SILENT_PS, .code = RETRY, .limit = PEER},
                   [OTHER_RUN] = {SILENT_PS, .code = RETRY, .limit = PEER},
               }},
    [NORM] = {"the norm of a round, for the chief",
              begin_norm,
              {
                  [ABSENT] = TRAINS,
                  [UNRESOLVED] = CONNECTED,
                  [DROPPED] = {SILENT_CHIEF, .code = RETRY, .limit = PEER},
                  [STOPPED] = {SILENT_CHIEF, .code = RETRY, .limit = PEER},
                  [KILLED] = {SILENT_CHIEF, .code = RETRY, .limit = PEER},
                  [SILENT] = {SILENT_CHIEF, .code = RETRY, .limit = PEER},
                  [FOREIGN] = {SILENT_CHIEF, .code = RETRY, .limit = PEER},
                  [OTHER_RUN] = {SILENT_CHIEF, .code = RETRY, .limit = PEER},
              }},
    /* The run goes on without it. */
    [OTHER_WORKER] =
        {"a round, for the push of another worker",
         NULL,
         {
             [ABSENT] = TRAINS,
             [UNRESOLVED] = COMES,
             [DROPPED] =
                 ELSEWHERE("cluster_firewall_test: "
                           "a_worker_that_the_chief_does_not_hear_ends_alone"),
             [STOPPED] =
                 ELSEWHERE("cluster_rewind_test: a_worker_that_is_stopped_"
                           "for_too_long_is_ended_and_started_again"),
             [KILLED] = ELSEWHERE("cluster_kill_test: "
                                  "a_synchronous_round_closes_without_a_worker_"
                                  "killed_in_it"),
             [SILENT] = COMES,
             [FOREIGN] = COMES,
             [OTHER_RUN] = COMES,
         }},
    [ALL_REDUCE] = {"a step of all-reduce, for another rank",
                    begin_all_reduce,
                    {
                        [ABSENT] = TRAINS,
                        [UNRESOLVED] = CONNECTED,
                        [DROPPED] = ELSEWHERE("cluster_net_test"),
                        [STOPPED] = {SILENT_RANK, .code = RETRY, .limit = PEER},
                        [KILLED] =
                            ELSEWHERE("cluster_allreduce_test: "
                                      "a_killed_rank_ends_all_with_138_and_is_"
                                      "named"),
                        [SILENT] = CONNECTED,
                        [FOREIGN] = CONNECTED,
                        [OTHER_RUN] = CONNECTED,
                    }},
    [COLLECTIVE] =
        {"a collective of a script, for another rank",
         begin_collective,
         {
             [ABSENT] = ELSEWHERE("python/tests/test_numpy.py: test_a_time_out_"
                                  "names_who_has_called_and_who_has_not"),
             [UNRESOLVED] = CONNECTED,
             [DROPPED] = ELSEWHERE("cluster_net_test, as a step of all-reduce"),
             [STOPPED] = {SILENT_RANK, .code = RETRY, .limit = CALL},
             [KILLED] = {"barrier: rank 1 was lost", "", .code = RETRY,
                         .limit = PEER},
             [SILENT] = CONNECTED,
             [FOREIGN] = CONNECTED,
             [OTHER_RUN] = CONNECTED,
         }},
    [LAST_CHECKPOINT] =
        {"the last checkpoint, for a ps",
         begin_last_checkpoint,
         {
             [ABSENT] = TRAINS,
             [UNRESOLVED] = CONNECTED,
             [DROPPED] = ELSEWHERE("as of a ps that is stopped: its chief "
                                   "hears nothing"),
             [STOPPED] = {SILENT_PS, .code = RETRY, .limit = PEER},
             [KILLED] = {CLOSED_PS, " refuses", .code = RETRY, .limit = PEER},
             [SILENT] = ELSEWHERE("as in a round"),
             [FOREIGN] = ELSEWHERE("as in a round"),
             [OTHER_RUN] = ELSEWHERE("as in a round"),
         }},
};

static void begin_calls(unsigned from, unsigned to) {
    for (unsigned i = from; i < to; i++)
        for (unsigned s = 0; s < PEER_STATES; s++) {
            const struct wait_cell *cell = &calls[i].cells[s];
            void *run = NULL;
            assert_true(!cell->said != !cell->elsewhere);
            if (cell->elsewhere)
                continue;
            assert_int_equal(cluster_run_setup_in_memory(&run), 0);
            struct wait_case *one = &cases[num_cases++];
            *one =
                (struct wait_case){.call = &calls[i], .state = s, .run = run};
            calls[i].begin(one);
        }
}

/* The next one to be over. */
static struct wait_case *next_case(void) {
    struct wait_case *next = NULL;
    for (unsigned i = 0; i < num_cases; i++)
        if (!cases[i].over && (!next || cases[i].end < next->end))
            next = &cases[i];
    return next;
}

static void expect_cell(struct wait_case *one) {
    const struct wait_cell *cell = cell_of(one);
    double left = time_to_seconds(one->end - time_now());
    char host[256] = "", text[512];
    size_t length = strlen(cell->who);
    bool has_host = length > 8 && !strcmp(cell->who + length - 8, "on host ");
    print_message("# %s: %s\n", one->call->name, state_names[one->state]);
    cluster_run_expect(one->waits, cell->code, left > 0 ? left : 0);
    one->over = true;
    gethostname(host, sizeof host - 1);
    if (has_host)
        snprintf(text, sizeof text, "%s%s (pid %d)%s", cell->who, host,
                 cluster_run_pid(one->peer), cell->said);
    else
        snprintf(text, sizeof text, "%s%s%s", cell->who,
                 cell->who[length - 1] == ' ' ? one->address : "", cell->said);
    cluster_fixture_expect_logged(one->waits, text);
    if (cell->cause)
        cluster_fixture_expect_logged(one->waits, cell->cause);
}

/* Those of some calls, side by side, as they do nothing but wait. */
static void try_calls(unsigned from, unsigned to) {
    struct wait_case *one;
    begin_calls(from, to);
    while ((one = next_case()))
        expect_cell(one);
}

TEST(a_join_ends_whatever_is_at_the_address_of_the_chief) {
    try_calls(JOIN_OF_PS, MEMBERS);
}

TEST(a_start_and_a_question_end_whatever_the_other_side_is) {
    try_calls(MEMBERS, ROUND);
}

TEST(a_round_ends_whatever_becomes_of_its_ps) {
    try_calls(ROUND, NORM);
}

TEST(a_wait_for_a_norm_ends_whatever_becomes_of_the_chief) {
    try_calls(NORM, OTHER_WORKER);
}

TEST(a_collective_and_a_last_checkpoint_end_without_a_member) {
    try_calls(OTHER_WORKER, CALLS);
}
