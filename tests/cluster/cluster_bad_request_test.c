/* SPDX-License-Identifier: Apache-2.0 */
/* What strangers learn, and can do, at the HTTP ports of a run with a secret:
 * they read how it stands, and nothing of the secret; they change nothing, cost
 * little memory and keep no probe out. */
#define STATE struct served_run *served

#include "commands/launch/port.h"
#include "core/base/time.h"
#include "tests/cluster/bad_peers.h"
#include "tests/cluster/cluster_fixture.h"
#include "tests/lib/process_memory.h"
#include "tests/lib/test.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { ROLES = 2, DIGITS = 64, TELLING = 16, ANSWER = 1 << 18 };
enum { GROWTH_KB = 10 << 10, SILENT = 500, HASTY = 2000 };
/* How long Kubernetes waits for the answer to a probe. */
static const double PROBE_LIMIT = 1; /* seconds */
static const int64_t DEADLINE = 30 * TIME_S;
static const char *const paths[] = {"/",       "/healthz", "/metrics",
                                    "/points", "/report",  "/status"};
enum { PATHS = sizeof paths / sizeof *paths };

/* A chief that trains and a ps, each with a port for HTTP. */
struct served_run {
    struct cluster_run *run;
    struct cluster_process *tasks[ROLES];
    uint16_t ports[ROLES];
    int held[ROLES];
    char secret[DIGITS + 1];
};

static struct cluster_process *start_task(struct served_run *served, int i) {
    return cluster_run_task(served->run, i ? "ps" : "chief", 0,
                            WORDS("--secret-file", "secret", "--metrics-port",
                                  textf("%u", served->ports[i]),
                                  i ? NULL : "job.json"));
}

static int setup(void **state) {
    struct served_run *served = calloc(1, sizeof *served);
    void *run;
    if (!served || cluster_run_setup(&run))
        return -1;
    *state = served;
    served->run = run;
    cluster_fixture_tool(run, 0, WORDS("keygen", "secret"));
    FILE *file = fopen(cluster_run_path(run, "secret"), "r");
    assert_non_null(file);
    assert_int_equal(fread(served->secret, 1, DIGITS, file), DIGITS);
    fclose(file);
    cluster_run_job(run, "{\"steps\": 1000000, \"steps_per_epoch\": 1000000,"
                         " \"steps_per_print\": 100}");
    cluster_run_describe(run, 1, 1, 0);
    for (int i = 0; i < ROLES; i++) {
        assert_ok(port_reserve(&served->ports[i], &served->held[i], &failure));
        served->tasks[i] = start_task(served, i);
    }
    cluster_run_await_soon(served->tasks[0], "%)");
    return 0;
}

static int teardown(void **state) {
    struct served_run *served = *state;
    void *run = served->run;
    cluster_run_teardown(&run);
    for (int i = 0; i < ROLES; i++)
        close(served->held[i]);
    free(served);
    return 0;
}

FIXTURE(setup, teardown);

/* Sends SIZE bytes, or what the other side takes of them. */
static void send_all(int connection, const char *bytes, size_t size) {
    ssize_t sent;
    for (; size && (sent = send(connection, bytes, size, MSG_NOSIGNAL)) > 0;
         bytes += sent)
        size -= (size_t)sent;
}

/* Reads until the other side closes CONNECTION, which it has to: views what it
 * has said until the next call. */
static const char *read_to_end(int connection) {
    static char answer[ANSWER];
    struct pollfd item = {connection, POLLIN, 0};
    size_t used = 0;
    ssize_t got = 1;
    while (got > 0) {
        if (poll(&item, 1, (int)(DEADLINE / TIME_MS)) != 1)
            fail_msg("still connected after %zu bytes", used);
        assert_true(used + 1 < sizeof answer);
        got = recv(connection, answer + used, sizeof answer - 1 - used, 0);
        used += got > 0 ? (size_t)got : 0;
    }
    answer[used] = 0;
    close(connection);
    return answer;
}

static const char *ask(uint16_t port, const char *method, const char *path) {
    const char *request = textf("%s %s HTTP/1.0\r\n\r\n", method, path);
    return read_to_end(bad_peers_send_bytes(port, request, strlen(request)));
}

TEST(nothing_that_is_served_has_a_part_of_the_secret) {
    char part[TELLING + 1] = "";
    for (int i = 0; i < ROLES * PATHS; i++) {
        const char *answer =
            ask(served->ports[i / PATHS], "GET", paths[i % PATHS]);
        assert_non_null(strstr(answer, " 200 OK\r\n"));
        for (int at = 0; at + TELLING <= DIGITS; at++) {
            memcpy(part, served->secret + at, TELLING);
            if (strcasestr(answer, part))
                fail_msg("%s has the secret", paths[i % PATHS]);
        }
    }
}

TEST(no_method_but_those_that_read_is_answered) {
    static const char *const methods[] = {"POST",    "PUT",   "DELETE", "PATCH",
                                          "OPTIONS", "TRACE", "STOP",   "get"};
    for (size_t m = 0; m < sizeof methods / sizeof *methods; m++)
        for (int p = 0; p < PATHS; p++)
            assert_non_null(
                strstr(ask(served->ports[0], methods[m], paths[p]), " 405 "));
    assert_non_null(strstr(ask(served->ports[0], "HEAD", "/status"), " 200 "));
}

/* START, then PART over and over, SIZE bytes in all at least. */
static void send_endless(uint16_t port, const char *start, const char *part,
                         size_t size) {
    int connection = bad_peers_send_bytes(port, start, strlen(start));
    size_t length = strlen(part), each = (1 << 16) / length * length;
    char *bytes = malloc(each);
    assert_non_null(bytes);
    for (size_t i = 0; i < each; i += length)
        memcpy(bytes + i, part, length);
    for (size_t sent = 0; sent < size; sent += each)
        send_all(connection, bytes, each);
    free(bytes);
    (void)read_to_end(connection);
}

static void send_large_requests(uint16_t port) {
    enum { MANY = 16 << 20 };
    static const struct {
        const char *start, *part;
    } requests[] = {
        {
            "GET /",
            "x",
        },
        {"", "G"},
        {"GET /status HTTP/1.1\r\nX: ", "y"},
        {"GET /status HTTP/1.1\r\n", "A: b\r\n"},
        {"GET /status HTTP/1.1\r\nCookie: ", "a=b; "},
        {"GET /status?", "a=b&"},
        {"", "\r\n"},
        {"POST /status HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n", "z"},
        {"POST /report HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
         "8\r\n12345678\r\n"},
        {"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", "f"},
        {"", "GET /report HTTP/1.1\r\n\r\n"},
    };
    for (size_t i = 0; i < sizeof requests / sizeof *requests; i++)
        send_endless(port, requests[i].start, requests[i].part, MANY);
}

/* The largest answers, asked for and not read. */
static void ask_without_reading(uint16_t port, int connections[SILENT]) {
    for (int i = 0; i < SILENT; i++) {
        const char *request =
            textf("GET %s HTTP/1.0\r\n\r\n", paths[i % PATHS]);
        connections[i] = bad_peers_send_bytes(port, request, strlen(request));
    }
}

/* As fast as they are taken. */
static void *come_and_go(void *context) {
    static const char request[] = "GET /report HTTP/1.0\r\n\r\n";
    uint16_t port = *(const uint16_t *)context;
    for (int i = 0; i < HASTY; i++)
        bad_peers_reset(
            bad_peers_send_bytes(port, request, sizeof request - 1));
    return NULL;
}

static uint64_t step_of(uint16_t port) {
    const char *at = strstr(ask(port, "GET", "/status"), "\"step\": ");
    assert_non_null(at);
    return strtoull(at + strlen("\"step\": "), NULL, 10);
}

/* A probe from an address of its own. */
static void expect_answered(uint16_t port) {
    static const char request[] = "GET /healthz HTTP/1.0\r\n\r\n";
    struct sockaddr_in own = {.sin_family = AF_INET},
                       to = {.sin_family = AF_INET, .sin_port = htons(port)};
    int64_t begun = time_now();
    int probe = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    own.sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_return_code(bind(probe, (struct sockaddr *)&own, sizeof own), errno);
    assert_return_code(connect(probe, (struct sockaddr *)&to, sizeof to),
                       errno);
    send_all(probe, request, sizeof request - 1);
    assert_non_null(strstr(read_to_end(probe), "training"));
    double seconds = time_to_seconds(time_now() - begun);
    if (seconds > PROBE_LIMIT)
        fail_msg("a probe is answered after %.2f s", seconds);
}

static void expect_answered_meanwhile(uint16_t port) {
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, come_and_go, &port), 0);
    while (pthread_tryjoin_np(thread, NULL))
        expect_answered(port);
}

TEST(hostile_requests_cost_little_and_harm_nothing) {
    static int silent[ROLES][SILENT];
    long before[ROLES];
    uint64_t step = step_of(served->ports[0]);
    for (int i = 0; i < ROLES; i++)
        before[i] = process_memory_kb(cluster_run_pid(served->tasks[i]));
    for (int i = 0; i < ROLES; i++) {
        send_large_requests(served->ports[i]);
        expect_answered(served->ports[i]);
        ask_without_reading(served->ports[i], silent[i]);
        expect_answered(served->ports[i]);
        expect_answered_meanwhile(served->ports[i]);
    }
    for (int i = 0; i < ROLES; i++) {
        long grown =
            process_memory_kb(cluster_run_pid(served->tasks[i])) - before[i];
        print_message("# process %d has grown by %ld KB\n", i, grown);
#ifndef __SANITIZE_ADDRESS__ /* which keeps what is freed */
        assert_true(grown < GROWTH_KB);
#endif
        for (int c = 0; c < SILENT; c++)
            close(silent[i][c]);
    }
    assert_true(step_of(served->ports[0]) > step);
    for (int i = 0; i < ROLES; i++)
        cluster_run_signal(served->tasks[i], SIGTERM);
    cluster_run_expect_soon(served->tasks[0], 128 + SIGTERM);
}
