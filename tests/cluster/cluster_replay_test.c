/* SPDX-License-Identifier: Apache-2.0 */
/* What processes of a run with a secret have sent to each other, sent again by
 * somebody who has read along, as a client and as a server: no handshake ends,
 * so no message is taken. */
#define STATE struct recorded_run *recorded

#include "core/base/time.h"
#include "tests/cluster/bad_peers.h"
#include "tests/cluster/cluster_fixture.h"
#include "tests/cluster/recording_proxy.h"
#include "tests/lib/test.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* CURVE's first commands with their heads (rfc.zeromq.org/spec/26). */
enum { GREETING = 64, HELLO = 202, WELCOME = 170 };
enum { CHIEF, PS, WORKER, PORTS };
enum { LATE = PORTS, PROCESSES }; /* worker 2, which is stopped */
enum { NAMED_WITHIN = 2, START = 2 /* seconds */, SAYS_MORE_MS = 500 };
enum { TIMED_OUT = 138, TRIES = 1000 };
static const int64_t DEADLINE = 30 * TIME_S, LOG_INTERVAL = 10 * TIME_S;

/* Worker 0 leads. Worker 1 knows no chief and finds no ps that could tell, so
 * the chief announces itself at its port. */
struct recorded_run {
    struct cluster_run *run;
    uint16_t ports[PORTS];
    struct recording_proxy *proxies[PORTS];
    struct cluster_process *processes[PROCESSES];
    struct recording recordings[2 * PORTS * RECORDING_PROXY_CONNECTIONS];
    unsigned count;
    struct recording answers[PORTS][RECORDING_PROXY_CONNECTIONS];
    unsigned num_answers[PORTS];
};

static int setup(void **state) {
    struct recorded_run *recorded = calloc(1, sizeof *recorded);
    void *run;
    if (!recorded || cluster_run_setup(&run))
        return -1;
    recorded->run = run;
    *state = recorded;
    setenv("CAPSTAN_LANE", "tcp", 1);
    return 0;
}

static int teardown(void **state) {
    struct recorded_run *recorded = *state;
    void *run = recorded->run;
    cluster_run_teardown(&run);
    for (int p = 0; p < PORTS; p++)
        recording_proxy_close(&recorded->proxies[p]);
    unsetenv("CAPSTAN_LANE");
    free(recorded);
    return 0;
}

FIXTURE(setup, teardown);

static uint16_t port_of_worker(const struct cluster_run *run, unsigned index) {
    const char *address = json_string_value(
        json_array_get(json_object_get(run->cluster, "worker"), index));
    return (uint16_t)strtoul(strrchr(address, ':') + 1, NULL, 10);
}

static void start_part(struct recorded_run *recorded, int process,
                       const char *name, const char *workers, uint16_t ps) {
    const char *type = strncmp(name, "ps", 2) != 0 ? "worker" : "ps";
    const char *config = textf(
        "TF_CONFIG={\"cluster\": {\"ps\": [\"127.0.0.1:%u\"], \"worker\": %s},"
        " \"task\": {\"type\": \"%s\", \"index\": %s}}",
        ps, workers, type, strchr(name, '-') + 1);
    recorded->processes[process] =
        cluster_run_start(recorded->run, name,
                          WORDS("run", "--secret-file", "secret",
                                process == CHIEF ? "job.json" : NULL),
                          WORDS(config));
}

/* Each process has the addresses of proxies instead of all but its own. */
static void start_all(struct recorded_run *recorded) {
    static const char *const three = "[\"127.0.0.1:%u\", \"127.0.0.1:%u\","
                                     " \"127.0.0.1:%u\"]";
    char own[256], others[256];
    uint16_t *to = recorded->ports, at[PORTS],
             late = port_of_worker(recorded->run, 2);
    for (int p = 0; p < PORTS; p++)
        recorded->proxies[p] = recording_proxy_open(to[p], &at[p]);
    snprintf(own, sizeof own, three, to[CHIEF], at[WORKER], late);
    snprintf(others, sizeof others, three, at[CHIEF], at[WORKER], late);
    start_part(recorded, CHIEF, "worker-0", own, at[PS]);
    start_part(recorded, WORKER, "worker-1",
               textf("{\"1\": \"127.0.0.1:%u\"}", to[WORKER]), at[PS]);
    cluster_run_await_soon(recorded->processes[CHIEF], "worker 1 joined");
    start_part(recorded, PS, "ps-0", others, to[PS]);
    start_part(recorded, LATE, "worker-2", others, at[PS]);
}

/* With one trainer stopped in the midst, no round closes: the run is there. */
static void pause_training(struct recorded_run *recorded) {
    cluster_run_await_soon(recorded->processes[CHIEF], "step 20/");
    cluster_run_signal(recorded->processes[LATE], SIGSTOP);
}

/* Fills TAKEN with what SIDE has said in each connection to port P that has
 * got beyond the handshake: how many there are. */
static unsigned take_side(struct recorded_run *recorded, int p,
                          enum recording_side side, struct recording *taken) {
    unsigned whole = 0,
             count = recording_proxy_copy(recorded->proxies[p], side, taken);
    for (unsigned i = 0; i < count; i++)
        if (taken[i].size > 2 * (GREETING + HELLO))
            taken[whole++] = taken[i];
    if (!whole)
        fail_msg("of %u connections to port %d none is recorded", count, p);
    return whole;
}

/* Adds what was sent to each port. */
static void take_recordings(struct recorded_run *recorded) {
    for (int p = 0; p < PORTS; p++)
        recorded->count += take_side(recorded, p, RECORDING_CLIENT,
                                     &recorded->recordings[recorded->count]);
}

/* Takes what was answered there, for which no worker's own port is asked. */
static void take_answers(struct recorded_run *recorded) {
    for (int p = 0; p < WORKER; p++)
        recorded->num_answers[p] =
            take_side(recorded, p, RECORDING_SERVER, recorded->answers[p]);
}

/* Reads until the other side closes, or COUNT bytes are here: how many. */
static size_t read_answer(int connection, size_t count) {
    unsigned char byte;
    struct pollfd item = {connection, POLLIN, 0};
    size_t got = 0;
    while (got < count) {
        if (poll(&item, 1, (int)(DEADLINE / TIME_MS)) != 1)
            fail_msg("%zu bytes of %zu, and the connection is open", got,
                     count);
        if (recv(connection, &byte, 1, 0) != 1)
            break;
        got++;
    }
    return got;
}

/* Sends RECORDING in its parts. A server that goes on after the handshake
 * answers READY. False: the guard of the port lets nobody in for a second, as
 * several have ended. */
static bool replay(uint16_t port, const struct recording *recording) {
    const size_t ends[] = {GREETING, GREETING + HELLO, recording->size};
    const size_t answers[] = {GREETING, WELCOME, 1};
    int connection = bad_peers_connect(port);
    size_t sent = 0, answered = 1;
    if (connection < 0)
        fail_msg("nobody listens on port %u", port);
    for (int part = 0; part < 3; part++) {
        (void)send(connection, recording->bytes + sent, ends[part] - sent,
                   MSG_NOSIGNAL);
        sent = ends[part];
        answered = read_answer(connection, answers[part]);
        if (part == 0 && !answered)
            break;
        if (part == 2 && answered)
            fail_msg("port %u goes on after a handshake of before", port);
    }
    close(connection);
    return sent == recording->size;
}

/* Each recording to each port, and again until there are so many tries. */
static void replay_all(const struct recorded_run *recorded) {
    int64_t deadline = time_now() + DEADLINE;
    for (unsigned i = 0; i < recorded->count * PORTS || i < TRIES;)
        if (replay(recorded->ports[i % PORTS],
                   &recorded->recordings[i / PORTS % recorded->count]))
            i++;
        else if (time_now() < deadline)
            cluster_fixture_sleep(0.2);
        else
            fail_msg("port %u lets nobody in", recorded->ports[i % PORTS]);
}

/* PROCESS names those whom it refuses, the same once in LOG_INTERVAL. */
static void expect_few_lines(const struct cluster_process *process,
                             int64_t elapsed) {
    const char *errors = cluster_run_errors(process), *at = errors;
    int64_t count = 0;
    for (; (at = strstr(at, "is refused: its key")); at++)
        count++;
    if (count > 1 + elapsed / LOG_INTERVAL)
        fail_msg("%d lines: %s", (int)count, strstr(errors, "is refused"));
}

/* One run to FILE, where AGAIN with all recordings so far sent to its ports. */
static void run_once(struct recorded_run *recorded, const char *file,
                     bool again) {
    cluster_run_job(recorded->run,
                    textf("{\"steps\": 3000, \"steps_per_print\": 1,"
                          " \"timeouts\": {\"peer\": 600},"
                          " \"checkpoint\": {\"resume\": \"never\"},"
                          " \"export\": {\"path\": \"%s\"}}",
                          file));
    start_all(recorded);
    pause_training(recorded);
    take_recordings(recorded);
    take_answers(recorded);
    int64_t begun = time_now();
    if (again)
        replay_all(recorded);
    int64_t elapsed = time_now() - begun;
    cluster_run_signal(recorded->processes[LATE], SIGCONT);
    for (int i = 0; i < PROCESSES; i++)
        cluster_run_expect_soon(recorded->processes[i], 0);
    for (int i = 0; i < PROCESSES; i++)
        expect_few_lines(recorded->processes[i], elapsed);
    for (int p = 0; p < PORTS; p++)
        recording_proxy_close(&recorded->proxies[p]);
}

static void make_secret_and_ports(struct recorded_run *recorded) {
    struct cluster_run *run = recorded->run;
    cluster_fixture_tool(run, 0, WORDS("keygen", "secret"));
    cluster_run_describe(run, 0, 1, 3);
    recorded->ports[CHIEF] = port_of_worker(run, 0);
    recorded->ports[WORKER] = port_of_worker(run, 1);
    const char *ps = json_string_value(
        json_array_get(json_object_get(run->cluster, "ps"), 0));
    recorded->ports[PS] = (uint16_t)strtoul(strrchr(ps, ':') + 1, NULL, 10);
}

/* Those of the run that goes on, and those of an earlier one with the same
 * secret at the same ports. */
TEST(what_was_sent_before_does_nothing_when_it_is_sent_again) {
    struct cluster_run *run = recorded->run;
    make_secret_and_ports(recorded);
    run_once(recorded, "alone.safetensors", false);
    run_once(recorded, "replayed.safetensors", true);
    print_message("# %u connections, each to %d ports\n", recorded->count,
                  PORTS);
    assert_int_equal(
        system(textf("cmp %s/alone.safetensors %s/replayed.safetensors",
                     run->folder, run->folder)),
        0);
}

/* Somebody at a port who answers as a server of before has. */
struct player {
    int listener;
    const struct recording *answers;
    unsigned count, played; /* connections that were told all */
    size_t most;            /* bytes that a client has said to one */
    pthread_t thread;
    atomic_bool ends;
};

/* Until the client has said COUNT bytes in all; false: it has left, or says no
 * more. */
static bool await_client(int client, size_t *said, size_t count) {
    char bytes[512];
    struct pollfd item = {client, POLLIN, 0};
    while (*said < count) {
        ssize_t got = poll(&item, 1, SAYS_MORE_MS) == 1
                          ? recv(client, bytes, sizeof bytes, 0)
                          : 0;
        if (got <= 0)
            return false;
        *said += (size_t)got;
    }
    return true;
}

static void play_to(struct player *player, int client) {
    const struct recording *answer =
        &player->answers[player->played % player->count];
    const size_t ends[] = {GREETING, GREETING + WELCOME, answer->size};
    const size_t asked[] = {GREETING + HELLO, GREETING + HELLO, SIZE_MAX};
    size_t sent = 0, said = 0;
    for (int part = 0; part < 3; part++) {
        (void)send(client, answer->bytes + sent, ends[part] - sent,
                   MSG_NOSIGNAL);
        sent = ends[part];
        if (!await_client(client, &said, asked[part]))
            break;
    }
    player->played += sent == answer->size;
    player->most = said > player->most ? said : player->most;
}

static void *play(void *context) {
    struct player *player = context;
    struct pollfd item = {player->listener, POLLIN, 0};
    while (!atomic_load(&player->ends)) {
        int client = poll(&item, 1, SAYS_MORE_MS) == 1
                         ? accept(player->listener, NULL, NULL)
                         : -1;
        if (client < 0)
            continue;
        play_to(player, client);
        close(client);
    }
    return NULL;
}

/* A worker finds an earlier server of KIND in place of what it looks for: it
 * says so, goes on asking until its deadline, and never gives its key. */
static void expect_named(struct recorded_run *recorded, int kind,
                         const char *cluster) {
    struct player player = {.answers = recorded->answers[kind],
                            .count = recorded->num_answers[kind]};
    uint16_t port;
    player.listener = bad_peers_listen(&port);
    assert_int_equal(pthread_create(&player.thread, NULL, play, &player), 0);
    char tasks[256];
    snprintf(tasks, sizeof tasks, cluster, port);
    struct cluster_process *worker = cluster_run_start(
        recorded->run, textf("fooled-%d", kind),
        WORDS("run", "--secret-file", "secret", "--join-timeout", "8"),
        WORDS(textf("TF_CONFIG={\"cluster\": %s, \"task\": {\"type\":"
                    " \"worker\", \"index\": 1}}",
                    tasks)));
    cluster_run_await(worker, "refuses this process's key",
                      START + NAMED_WITHIN);
    cluster_run_expect_soon(worker, TIMED_OUT);
    atomic_store(&player.ends, true);
    pthread_join(player.thread, NULL);
    close(player.listener);
    print_message("# %u connections\n", player.played);
    assert_true(player.played > 0);
    assert_int_equal(player.most, GREETING + HELLO);
}

TEST(what_was_answered_before_is_believed_by_nobody) {
    make_secret_and_ports(recorded);
    run_once(recorded, "alone.safetensors", false);
    expect_named(recorded, CHIEF,
                 "{\"worker\": [\"127.0.0.1:%u\", \"127.0.0.1:0\"]}");
    expect_named(recorded, PS,
                 "{\"ps\": [\"127.0.0.1:%u\"],"
                 " \"worker\": {\"1\": \"127.0.0.1:0\"}}");
}
