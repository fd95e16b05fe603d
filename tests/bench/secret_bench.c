/* SPDX-License-Identifier: Apache-2.0 */
/* What a secret costs a run of 1 ps and 2 workers on this machine, and what
 * those who have none do to the time of its rounds.
 *
 * costs: rounds/s of a built-in model with and without a secret, by shared
 * memory, by TCP on loopback, and by TCP between network namespaces, which need
 * root, at 1 Gbit/s a host. The cases are interleaved; medians, and the median
 * of the shares of each pair.
 *
 * flood: the time of a round of 256 KB that computes nothing, in a run with a
 * secret by TCP, while nobody, or BAD_PEERS threads of this process at full
 * speed, connect, begin CURVE's handshake with a wrong key and wait for the end
 * of the connection; once at a port of this process, which shows what their
 * processor time alone takes, and once at those of the run.
 *
 * Usage: secret_bench [costs|flood|all] [repeats] [rounds] [bad peers] */
#include "commands/launch/port.h"
#include "commands/measure/bench_iteration.h"
#include "core/base/secret_file.h"
#include "core/base/time.h"

#include <arpa/inet.h>
#include <jansson.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

enum { MAXIMUM = 31, TASKS = 3, BAD_PEERS = 64, LANES = 3, FLOODS = 3 };

static const char data[] =
    "{\"model\":{\"type\":\"mlp\",\"layers\":[784,512,512,10]},"
    "\"data\":{\"format\":\"idx\",\"dir\":\"/usr/share/datasets/fashion-mnist\","
    "\"train\":[\"train-images-idx3-ubyte.gz\",\"train-labels-idx1-ubyte.gz\"]},"
    "\"optimizer\":{\"type\":\"SGD\",\"params\":{\"lr\":0.05}},"
    "\"train_micro_batch_size_per_gpu\":32,\"steps\":%d,"
    "\"strategy\":{\"type\":\"ps\",\"staleness\":0}}\n";

/* Where files are, and the ports of worker 0, which leads, worker 1 and ps 0.
 */
struct bench {
    char folder[64], equals_secret[96]; /* "=", and the secret's file */
    uint16_t ports[TASKS];
    int repeats, rounds, bad_peers;
};

static const char *capstan(void) {
    const char *program = getenv("CAPSTAN");
    return program ? program : "build/capstan";
}

/* Appends a task that runs COMMAND to the shell's TEXT. */
static void add_task(const struct bench *bench, char *text, size_t size,
                     const char *type, int index, const char *command) {
    size_t used = strlen(text);
    snprintf(text + used, size - used,
             "TF_CONFIG='{\"cluster\":{\"ps\":[\"127.0.0.1:%u\"],"
             "\"worker\":[\"127.0.0.1:%u\",\"127.0.0.1:%u\"]},"
             "\"task\":{\"type\":\"%s\",\"index\":%d}}' %s 2>%s/%s-%d.err%s ",
             bench->ports[2], bench->ports[0], bench->ports[1], type, index,
             command, bench->folder, type, index,
             index || *type == 'p' ? ">/dev/null &" : "; wait");
}

/* The standard output of worker 0, which runs LEADER, worker 1 FOLLOWER; close
 * it with pclose. */
static FILE *start(const struct bench *bench, bool has_secret, const char *lane,
                   const char *leader, const char *follower) {
    char text[8192], ps[512];
    snprintf(text, sizeof text, "export CAPSTAN_LANE=%s; %s %s%s; ", lane,
             has_secret ? "export" : "unset", SECRET_FILE_VARIABLE,
             has_secret ? bench->equals_secret : "");
    snprintf(ps, sizeof ps, "%s run", capstan());
    add_task(bench, text, sizeof text, "ps", 0, ps);
    add_task(bench, text, sizeof text, "worker", 1, follower);
    add_task(bench, text, sizeof text, "worker", 0, leader);
    return popen(text, "r");
}

/* Fails with what worker 0 has said. */
static bool fail_run(const struct bench *bench) {
    char command[256];
    snprintf(command, sizeof command, "cat %s/worker-0.* >&2", bench->folder);
    if (system(command))
        fprintf(stderr, "no run\n");
    return false;
}

struct lane_case {
    const char *name, *lane; /* NULL: between hosts */
    int steps, least;        /* per cent that a secret has to leave; 0: none */
    double rates[2][MAXIMUM], shares[MAXIMUM];
    bool skipped;
};

/* Steps a second of one run with or without a secret; 0: there can be no
 * hosts. */
static bool run_case(const struct bench *bench, struct lane_case *lane,
                     bool has_secret, double *rate) {
    char job[96], command[1024], line[8192] = "";
    snprintf(job, sizeof job, "%s/job.json", bench->folder);
    FILE *file = fopen(job, "w"), *output;
    if (!file)
        return false;
    fprintf(file, data, lane->steps);
    fclose(file);
    if (lane->lane) {
        char follower[512];
        snprintf(command, sizeof command, "%s run %s --json", capstan(), job);
        snprintf(follower, sizeof follower, "%s run", capstan());
        output = start(bench, has_secret, lane->lane, command, follower);
    } else {
        snprintf(command, sizeof command,
                 "env %s%s%s tests/cluster/net/cluster.sh 1 2 1000mbit %s %s "
                 "--json",
                 has_secret ? "" : "-u ", SECRET_FILE_VARIABLE,
                 has_secret ? bench->equals_secret : "", bench->folder, job);
        output = popen(command, "r");
    }
    bool said = output && fgets(line, sizeof line, output);
    if (output)
        pclose(output);
    json_t *object = said ? json_loads(line, 0, NULL) : NULL;
    *rate = json_number_value(json_object_get(object, "steps_per_second"));
    json_decref(object);
    lane->skipped = said && !strncmp(line, "skip", 4);
    return *rate > 0 || lane->skipped || fail_run(bench);
}

static void print_costs(struct lane_case *lanes, int repeats) {
    printf("| rounds/s of 1 ps and 2 workers, batch 32 | without a secret | "
           "with one | share | at least |\n|---|---|---|---|---|\n");
    for (int c = 0; c < LANES; c++) {
        struct lane_case *lane = &lanes[c];
        if (lane->skipped)
            continue;
        printf("| %s |", lane->name);
        for (int s = 0; s < 2; s++) {
            double middle =
                bench_iteration_median(lane->rates[s], (size_t)repeats);
            printf(" %.1f (%.1f to %.1f) |", middle, lane->rates[s][0],
                   lane->rates[s][repeats - 1]);
        }
        printf(" %.3f |",
               bench_iteration_median(lane->shares, (size_t)repeats));
        if (lane->least)
            printf(" %.2f |\n", lane->least / 100.0);
        else
            printf(" |\n");
    }
}

static bool measure_costs(const struct bench *bench) {
    struct lane_case lanes[LANES] = {
        {.name = "shared memory", .lane = "auto", .steps = 2000, .least = 98},
        {.name = "TCP, loopback", .lane = "tcp", .steps = 1000},
        {.name = "TCP, 1 Gbit/s a host", .steps = 200, .least = 95}};
    for (int i = 0; i < bench->repeats; i++)
        for (int c = 0; c < LANES; c++) {
            struct lane_case *lane = &lanes[c];
            for (int s = 0; s < 2; s++) /* each goes first in turns */
                if (!run_case(bench, lane, (s + i) % 2,
                              &lane->rates[(s + i) % 2][i]))
                    return false;
            lane->shares[i] = lane->rates[1][i] / lane->rates[0][i];
        }
    print_costs(lanes, bench->repeats);
    return true;
}

/* Those who connect to PORTS. */
struct flood {
    const uint16_t *ports;
    int num_ports;
    atomic_bool ends;
    atomic_uint connections;
};

/* A greeting for CURVE and a HELLO of zeros. */
static void connect_once(uint16_t port) {
    static const unsigned char bytes[64 + 202] = {0xff, [9] = 0x7f, 3,   1,
                                                  'C',  'U',        'R', 'V',
                                                  'E',  [64] = 4,   200, 5,
                                                  'H',  'E',        'L', 'L',
                                                  'O',  1};
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons(port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct timeval limit = {1, 0};
    char answer[256];
    int connection = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(connection, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    if (!connect(connection, (struct sockaddr *)&to, sizeof to) &&
        send(connection, bytes, sizeof bytes, MSG_NOSIGNAL) > 0)
        while (recv(connection, answer, sizeof answer, 0) > 0)
            continue;
    close(connection);
}

static void *connect_often(void *context) {
    struct flood *flood = context;
    for (unsigned i = 0; !atomic_load(&flood->ends); i++) {
        connect_once(flood->ports[i % (unsigned)flood->num_ports]);
        atomic_fetch_add(&flood->connections, 1);
    }
    return NULL;
}

/* Takes connections as a port of nobody's, until it is shut down. */
static void *take_connections(void *context) {
    char bytes[512];
    int listener = *(int *)context, connection;
    while ((connection = accept(listener, NULL, NULL)) >= 0) {
        (void)recv(connection, bytes, sizeof bytes, 0);
        close(connection);
    }
    return NULL;
}

static int listen_elsewhere(uint16_t *port) {
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(listener, (struct sockaddr *)&address, size) ||
        listen(listener, SOMAXCONN) ||
        getsockname(listener, (struct sockaddr *)&address, &size))
        return -1;
    *port = ntohs(address.sin_port);
    return listener;
}

struct rounds {
    const char *name;
    double medians[MAXIMUM], late[MAXIMUM], rates[MAXIMUM],
        connections[MAXIMUM];
};

/* One run, of which worker 0 says median, 99th percentile and rate. */
static bool time_rounds(const struct bench *bench, struct rounds *rounds,
                        int i) {
    char command[128];
    snprintf(command, sizeof command, "build/tests/round_times %d",
             bench->rounds);
    FILE *output = start(bench, true, "tcp", command, command);
    bool said = output && fscanf(output, "%lf %lf %lf", &rounds->medians[i],
                                 &rounds->late[i], &rounds->rates[i]) == 3;
    if (output)
        pclose(output);
    return said || fail_run(bench);
}

/* The same amid FLOOD. */
static bool time_amid(const struct bench *bench, struct flood *flood,
                      struct rounds *rounds, int i) {
    pthread_t threads[BAD_PEERS];
    int count = flood->num_ports ? bench->bad_peers : 0, started = 0;
    int64_t begun = time_now();
    atomic_store(&flood->ends, false);
    atomic_store(&flood->connections, 0);
    while (started < count &&
           !pthread_create(&threads[started], NULL, connect_often, flood))
        started++;
    bool timed = started == count && time_rounds(bench, rounds, i);
    rounds->connections[i] =
        atomic_load(&flood->connections) / time_to_seconds(time_now() - begun);
    atomic_store(&flood->ends, true);
    while (started)
        pthread_join(threads[--started], NULL);
    return timed;
}

static void print_rounds(struct rounds *rounds, int repeats) {
    size_t count = (size_t)repeats;
    printf("| a round of 256 KB by TCP with a secret, 1 ps and 2 workers | "
           "median ms | p99 ms | rounds/s | connections/s |\n"
           "|---|---|---|---|---|\n");
    for (int f = 0; f < FLOODS; f++)
        printf("| %s | %.2f | %.2f | %.0f | %.0f |\n", rounds[f].name,
               bench_iteration_median(rounds[f].medians, count),
               bench_iteration_median(rounds[f].late, count),
               bench_iteration_median(rounds[f].rates, count),
               bench_iteration_median(rounds[f].connections, count));
}

static bool measure_flood(const struct bench *bench) {
    struct rounds rounds[FLOODS] = {
        {.name = "nobody connects"},
        {.name = "unknown peers, to another process"},
        {.name = "unknown peers, to its three ports"}};
    uint16_t elsewhere;
    int listener = listen_elsewhere(&elsewhere);
    pthread_t taker;
    bool measured = listener >= 0 &&
                    !pthread_create(&taker, NULL, take_connections, &listener);
    if (!measured)
        return false;
    struct flood floods[FLOODS] = {
        {0}, {&elsewhere, 1, 0, 0}, {bench->ports, TASKS, 0, 0}};
    for (int i = 0; i < bench->repeats && measured; i++)
        for (int f = 0; f < FLOODS && measured; f++)
            measured = time_amid(bench, &floods[f], &rounds[f], i);
    shutdown(listener, SHUT_RDWR);
    pthread_join(taker, NULL);
    close(listener);
    if (measured)
        print_rounds(rounds, bench->repeats);
    return measured;
}

static bool prepare(struct bench *bench, int held[TASKS]) {
    struct failure why;
    snprintf(bench->folder, sizeof bench->folder, "/tmp/capstan-bench-XXXXXX");
    if (!mkdtemp(bench->folder))
        return false;
    snprintf(bench->equals_secret, sizeof bench->equals_secret, "=%s/secret",
             bench->folder);
    for (int i = 0; i < TASKS; i++)
        if (port_reserve(&bench->ports[i], &held[i], &why))
            return false;
    return !secret_file_create(bench->equals_secret + 1, &why);
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "all";
    struct bench bench = {.repeats = argc > 2 ? atoi(argv[2]) : 7,
                          .rounds = argc > 3 ? atoi(argv[3]) : 3000,
                          .bad_peers = argc > 4 ? atoi(argv[4]) : 4};
    char command[128];
    int held[TASKS];
    bool all = !strcmp(what, "all"), measured = true;
    if (bench.repeats < 1 || bench.repeats > MAXIMUM || bench.bad_peers < 1 ||
        bench.bad_peers > BAD_PEERS || !prepare(&bench, held))
        return 2;
    if (all || !strcmp(what, "costs"))
        measured = measure_costs(&bench);
    if (measured && (all || !strcmp(what, "flood")))
        measured = measure_flood(&bench);
    snprintf(command, sizeof command, "rm -rf %s", bench.folder);
    return system(command) || !measured;
}
